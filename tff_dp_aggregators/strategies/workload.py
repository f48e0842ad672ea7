"""Workloads: the linear queries over rounds whose error strategies are compared by.

Plain stochastic gradient descent needs prefix sums of the noisy sums, the default. With
momentum, a learning-rate schedule and weight decay, the model after round t needs

    A[t, j] = sum_{s = j..t} kept^(t - s) * learning_rates[s] * momentum^(s - j)

with kept = 1 - weight_decay (arXiv:2202.08312, section 4; arXiv:2211.06530, section 5;
with weight decay arXiv:2405.13763). Functions with an argument `workload` also accept
`None`, which means prefix sums, or a lower-triangular array.
"""

import dataclasses
import reprlib
from typing import Any, Optional, Union

import numpy as np
import scipy.linalg

from tff_dp_aggregators.base import checks


@dataclasses.dataclass(frozen=True)
class Workload:
  """Prefix sums, optionally with momentum, a learning-rate schedule and weight decay.

  Attributes:
    num_rounds: Rounds n; `A` is n x n.
    momentum: Server momentum, at least 0 and below 1.
    learning_rates: Relative learning rate of each round, not negative and not all 0;
      `None` for 1 in every round.
    weight_decay: The fraction of the model that each round subtracts before its step,
      at least 0 and below 1, independent of the learning rate.

  Example:
    >>> Workload(3, momentum=0.5).materialize()
    array([[1.  , 0.  , 0.  ],
           [1.5 , 1.  , 0.  ],
           [1.75, 1.5 , 1.  ]])
  """

  num_rounds: int
  momentum: float = 0.0
  learning_rates: Optional[tuple[float, ...]] = None
  weight_decay: float = 0.0

  def __post_init__(self) -> None:
    num_rounds = checks.check_positive_int('num_rounds', self.num_rounds)
    object.__setattr__(self, 'num_rounds', num_rounds)
    for name in ('momentum', 'weight_decay'):
      given = getattr(self, name)
      value = float(real_array(name, given))
      checks.check_number(name, given)  # NumPy would also convert a string.
      if not 0 <= value < 1:
        raise ValueError(f'{name} must be at least 0 and below 1, got {given}.')
      object.__setattr__(self, name, value)
    if self.learning_rates is not None:
      rates = real_array('learning_rates', self.learning_rates)
      valid = np.isfinite(rates) & (rates >= 0)
      if rates.shape != (num_rounds,) or not np.all(valid) or not np.any(rates):
        raise ValueError(
          f'learning_rates must be num_rounds={num_rounds} finite numbers, none '
          f'negative and not all 0; got {reprlib.repr(self.learning_rates)}.'
        )
      object.__setattr__(self, 'learning_rates', tuple(rates.tolist()))

  @classmethod
  def cooldown(
    cls,
    num_rounds: int,
    momentum: float = 0.0,
    cooldown_rounds: Optional[int] = None,
    final_learning_rate: float = 0.05,
  ) -> 'Workload':
    """A learning rate of 1 that falls linearly over the last `cooldown_rounds`.

    By default these are a quarter of all, as in the experiments of arXiv:2211.06530.
    """
    checks.check_positive_int('num_rounds', num_rounds)
    if cooldown_rounds is None:
      cooldown_rounds = num_rounds // 4
    checks.check_int('cooldown_rounds', cooldown_rounds, at_least=0)
    if cooldown_rounds >= num_rounds:
      raise ValueError(
        f'cooldown_rounds must be below num_rounds={num_rounds}, got {cooldown_rounds}.'
      )
    if not 0 < final_learning_rate <= 1:
      raise ValueError(
        f'final_learning_rate must be above 0 and at most 1, got {final_learning_rate}.'
      )
    falling = np.linspace(1.0, final_learning_rate, cooldown_rounds + 1)[1:]
    constant = np.ones(num_rounds - cooldown_rounds)
    return cls(num_rounds, momentum, tuple(np.concatenate([constant, falling])))

  def __repr__(self) -> str:
    # States identify their workload by this text, so a weight decay of 0 is left out.
    decay = f', weight_decay={self.weight_decay}' if self.weight_decay else ''
    return (
      f'Workload(num_rounds={self.num_rounds}, momentum={self.momentum}, '
      f'learning_rates={self.learning_rates}{decay})'
    )

  @property
  def is_toeplitz(self) -> bool:
    """Whether `A` is constant along diagonals, i.e. the learning rate is constant."""
    return self.learning_rates is None or len(set(self.learning_rates)) == 1

  def coefficients(self) -> np.ndarray:
    """First column of `A`, float64 [n]; raises ValueError unless `is_toeplitz`."""
    if not self.is_toeplitz:
      raise ValueError(
        'a workload whose learning rate changes has no Toeplitz coefficients; use '
        'materialize() or apply().'
      )
    return self.apply(np.eye(self.num_rounds, 1))[:, 0]

  def materialize(self) -> np.ndarray:
    """`A` as a dense float64 array of shape [n, n]."""
    return self.apply(np.eye(self.num_rounds))

  def apply(self, matrix: np.ndarray) -> np.ndarray:
    """`A @ matrix` for a matrix of shape [n, m], in O(n m)."""
    steps = self._rates * decayed_sums(matrix, self.momentum)
    return decayed_sums(steps, self._kept)

  def apply_transposed(self, matrix: np.ndarray) -> np.ndarray:
    """`A.T @ matrix` for a matrix of shape [n, m], in O(n m)."""
    sums = decayed_sums(matrix[::-1], self._kept)[::-1]
    return decayed_sums((self._rates * sums)[::-1], self.momentum)[::-1]

  def inverse_diagonals(self) -> np.ndarray:
    """The diagonals of the inverse of `A`, which is banded, from the main one down.

    With learning rates L it is (I - momentum S) L^-1 (I - (1 - weight_decay) S), S the
    shift by one round. Float64 of shape [2, n], or [3, n] with momentum; row i, column
    j holds entry [j + i, j], or 0. ValueError if a learning rate is 0.
    """
    rates = self._rates[:, 0]
    if not np.all(rates > 0):
      raise ValueError(
        f'the learning rate of round {int(np.argmin(rates > 0))} is 0, so the '
        'workload has no inverse; make it small and positive.'
      )
    reciprocal = 1.0 / rates
    shifted = self._kept * np.append(reciprocal[1:], 0.0)
    diagonals = [reciprocal, -shifted - self.momentum * reciprocal]
    if self.momentum:
      diagonals.append(self.momentum * shifted)
    for i, diagonal in enumerate(diagonals):
      diagonal[self.num_rounds - i :] = 0.0
    return np.stack(diagonals)

  @property
  def _kept(self) -> float:
    """The fraction of the model that a round keeps."""
    return 1.0 - self.weight_decay

  @property
  def _rates(self) -> np.ndarray:
    """Learning rates as a column, shape [n, 1]."""
    if self.learning_rates is None:
      return np.ones((self.num_rounds, 1))
    return np.array(self.learning_rates)[:, np.newaxis]


# What functions accept as a workload; `None` means prefix sums.
WorkloadLike = Union[Workload, np.ndarray, None]
Checked = Union[Workload, np.ndarray]  # What `check` returns.


def check(num_rounds: int, workload: WorkloadLike) -> Checked:
  """Returns the workload, `Workload(n)` for `None`, an array as float64; checks it."""
  if workload is None:
    return Workload(num_rounds)
  if isinstance(workload, Workload):
    if workload.num_rounds != num_rounds:
      raise ValueError(
        f'the workload is for {workload.num_rounds} rounds, but num_rounds is '
        f'{num_rounds}; build both for the same number.'
      )
    return workload
  workload = real_array('workload', workload)
  shape = (num_rounds, num_rounds)
  if workload.shape != shape or np.any(np.triu(workload, 1)):
    raise ValueError(
      f'workload must be lower-triangular of shape {shape}, got an array of shape '
      f'{workload.shape}.'
    )
  if not (np.all(np.isfinite(workload)) and np.any(workload)):
    raise ValueError('workload must be finite, and not all its entries 0.')
  return workload


def is_prefix_sums(workload: WorkloadLike) -> bool:
  """Whether a workload is known to be prefix sums; always False for an array."""
  return workload is None or (
    isinstance(workload, Workload)
    and not workload.momentum
    and not workload.weight_decay
    and set(workload.learning_rates or (1.0,)) == {1.0}
  )


def apply_transposed(workload: Checked, matrix: np.ndarray) -> np.ndarray:
  """A.T @ matrix."""
  if isinstance(workload, Workload):
    return workload.apply_transposed(matrix)
  return workload.T @ matrix


def errors(matrix: np.ndarray, workload: Checked) -> np.ndarray:
  """Squared row norms of A C^-1 for a dense lower-triangular C; shape [n]."""
  return np.square(estimator(matrix, workload)).sum(axis=1)


def estimator(matrix: np.ndarray, workload: Checked) -> np.ndarray:
  """B = A C^-1 for a dense lower-triangular C."""
  identity = np.eye(len(matrix))
  return apply(workload, scipy.linalg.solve_triangular(matrix, identity, lower=True))


def apply(workload: Checked, matrix: np.ndarray) -> np.ndarray:
  """A @ matrix."""
  if isinstance(workload, Workload):
    return workload.apply(matrix)
  return workload @ matrix


def decayed_sums(matrix: np.ndarray, decay: float) -> np.ndarray:
  """Rows m[t] = x[t] + decay * m[t - 1]."""
  if decay == 0:
    return matrix
  if decay == 1:
    return np.cumsum(matrix, axis=0)
  import scipy.signal  # Slow to import, and few callers need it.

  return scipy.signal.lfilter([1.0], [1.0, -decay], matrix, axis=0)


def real_array(name: str, values: Any) -> np.ndarray:
  """Returns a float64 array; raises TypeError unless the values are real numbers."""
  try:
    array = np.asarray(values)
    if array.dtype.kind not in 'fiu':
      raise TypeError(f'they have dtype {array.dtype}')
    return array.astype(np.float64)
  except (TypeError, ValueError) as e:
    raise TypeError(f'{name} must be real numbers, got {values!r}: {e}.') from e


def real_numbers(name: str, values: Any) -> tuple[float, ...]:
  """Returns the values as floats; raises an error unless a finite 1-D sequence."""
  array = real_array(name, values)
  if array.ndim != 1:
    raise TypeError(f'{name} must be a sequence of numbers, got {values!r}.')
  if not np.all(np.isfinite(array)):
    raise ValueError(f'{name} must be finite, got {array.tolist()}.')
  return tuple(array.tolist())
