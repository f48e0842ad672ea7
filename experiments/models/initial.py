"""Initial weights, as Keras draws them, from a NumPy generator.

So a model starts with the same weights on every machine, and models are told from their
shapes alone.
"""

import math
from collections.abc import Sequence

import numpy as np

# The standard deviation of a normal distribution that is cut at two of its own.
_CUT = 0.87962566103423978


def generator(seed: int) -> np.random.Generator:
  """The one of a run's initial weights."""
  return np.random.default_rng([seed, 1])


def glorot_uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """Uniform with variance 2 / (fan in + fan out)."""
  fan_in, fan_out = _fans(shape)
  limit = math.sqrt(6 / (fan_in + fan_out))
  return rng.uniform(-limit, limit, shape).astype(np.float32)


def glorot_normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """Normal with variance 2 / (fan in + fan out)."""
  return rng.normal(0, math.sqrt(2 / sum(_fans(shape))), shape).astype(np.float32)


def lecun_normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """Normal with variance 1 / fan in."""
  return rng.normal(0, math.sqrt(1 / _fans(shape)[0]), shape).astype(np.float32)


def he_normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """Normal with variance 2 / fan in, cut at two standard deviations."""
  stddev = math.sqrt(2 / _fans(shape)[0]) / _CUT
  drawn = rng.normal(0, 1, shape)
  while (outside := np.abs(drawn) > 2).any():
    drawn[outside] = rng.normal(0, 1, int(outside.sum()))
  return (stddev * drawn).astype(np.float32)


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
  """Orthonormal rows or columns, whichever are fewer."""
  tall = rng.normal(0, 1, (max(rows, columns), min(rows, columns)))
  q, r = np.linalg.qr(tall)
  q *= np.sign(np.diag(r))
  return np.ascontiguousarray(q if rows >= columns else q.T, np.float32)


def embedding(rng: np.random.Generator, num_tokens: int, size: int) -> np.ndarray:
  """Uniform within 0.05."""
  return rng.uniform(-0.05, 0.05, (num_tokens, size)).astype(np.float32)


def tables(sizes: Sequence[int], size: int) -> list[np.ndarray]:
  """Embeddings of values, for `layers.features`: zeros, which those unknown have."""
  return [zeros(each, size) for each in sizes]


def zeros(*shape: int) -> np.ndarray:
  return np.zeros(shape, np.float32)


def dense(rng: np.random.Generator, inputs: int, units: int) -> list[np.ndarray]:
  return [glorot_uniform(rng, inputs, units), zeros(units)]


def lstm(
  rng: np.random.Generator, inputs: int, units: int, kernel=glorot_uniform
) -> list[np.ndarray]:
  """Kernel, recurrent kernel and bias of an LSTM, whose gates forget nothing yet."""
  bias = zeros(4 * units)
  bias[units : 2 * units] = 1  # Of the forget gate: Jozefowicz et al., ICML 2015.
  return [kernel(rng, inputs, 4 * units), orthogonal(rng, units, 4 * units), bias]


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
  field = int(np.prod(shape[:-2]))
  return field * shape[-2], field * shape[-1]
