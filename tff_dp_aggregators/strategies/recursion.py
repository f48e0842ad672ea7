"""Recursions: how a server computes a round's noise from buffers, as plain data.

The noise of round t is row t of `D z`, where z has iid standard Gaussian rows. A server
computes it from row t of z and a few model-sized buffers. The *recursion* that
`Strategy.recursion` returns contains the weights, and what is stored in the buffers.
The package `noise` implements it in TensorFlow.
"""

import abc
import bisect
import dataclasses
from collections.abc import Callable, Iterable, MutableMapping
from typing import ClassVar, NamedTuple, Optional

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import workload as workload_lib

Memory = MutableMapping[int, np.ndarray]  # The buffers, by slot.
_TOLERANCE = 1e-6  # Relative rounding error that covariances may have.


class Work(NamedTuple):
  """The maximum work of a round if the noise of earlier rounds is stored."""

  buffers: int  # Buffers stored.
  draws: int  # Rows of z drawn.
  reads: int  # Buffers read.
  writes: int  # Buffers written.


class Recursion(abc.ABC):
  """Computes a round's noise from its row of z and buffers of earlier rounds."""

  # Whether the noise equals `noise_matrix()` times rows of z, not only in distribution.
  applies_noise_matrix: ClassVar[bool] = True

  @property
  @abc.abstractmethod
  def work(self) -> Work:
    """The maximum work of a round."""

  @property
  def max_terms(self) -> Optional[int]:
    """Maximum rows of z in a round's noise; `None` for all earlier rounds."""
    return None

  @property
  def buffers_needed(self) -> int:
    """Buffers that must be stored; 0 if it suffices to draw rows of z again."""
    return self.work.buffers if self.max_terms is None else 0

  @abc.abstractmethod
  def serve(
    self, this_round: int, row: Callable[[int], np.ndarray], memory: Memory
  ) -> np.ndarray:
    """Returns the noise of round t, `this_round`, in the shape of a row of z.

    `row` draws the row of z of a round from 0 to t. `memory` is modified; its slots are
    0 to `work.buffers - 1`, and a missing slot means zeros.
    """

  def noise_rows(self, z: np.ndarray) -> np.ndarray:
    """Returns the noise of all rounds, from all rows of z.

    Example:
      >>> LastRounds([[1.0, -0.5]], remembers='noise').noise_rows(np.eye(3))
      array([[ 1.  ,  0.  ,  0.  ],
             [-0.5 ,  1.  ,  0.  ],
             [ 0.25, -0.5 ,  1.  ]])
    """
    z = np.asarray(z, np.float64)
    memory: Memory = {}
    noise = np.zeros_like(z)
    for this_round in range(len(z)):
      noise[this_round] = self.serve(this_round, lambda i: z[i], memory)
    return noise


@dataclasses.dataclass(frozen=True, eq=False)
class LastRounds(Recursion):
  """Weighted sums over the last rounds: for banded `C` or `C^-1`, and quotients.

      noise[t] = weights[t, 0] z[t] + sum_{i >= 1} weights[t, i] value[t - i],

  where the stored value of a round is its noise (arXiv:2306.08153), its row of z
  (arXiv:2505.12128, the bands of `C^-1`), or a sum

      value[t] = sums[t, 0] z[t] + sum_{i >= 1} sums[t, i] value[t - i].
  """

  # Float64 array of shape [rounds, lags + 1]; the last row is also used for all later
  # rounds. Entries [t, i] with i > t are unused.
  weights: np.ndarray
  remembers: str  # The stored values: 'noise', 'row' or 'sum'.
  sums: Optional[np.ndarray] = None  # Sums of the same shape; only with 'sum'.

  def __post_init__(self) -> None:
    shape = _set_array(self, 'weights', (None, None))
    if self.remembers not in ('noise', 'row') and self.sums is None:
      raise ValueError(
        "remembers must be 'noise' or 'row', or 'sum' with sums, got "
        f'{self.remembers!r}.'
      )
    if self.sums is not None and self.remembers != 'sum':
      raise ValueError(f"sums are for remembers='sum', got {self.remembers!r}.")
    if self.sums is not None:
      _set_array(self, 'sums', shape)

  @classmethod
  def solving(cls, entries: np.ndarray) -> 'LastRounds':
    """Forward substitution in `C noise = z`: `entries` has C[t, t - i] at [t, i]."""
    weights = -entries / entries[:, :1]
    weights[:, 0] = 1.0 / entries[:, 0]
    return cls(weights, 'noise')

  @classmethod
  def of_quotient(cls, numerator: np.ndarray, denominator: np.ndarray) -> 'LastRounds':
    """The noise `M N^-1 z` of `C = N M^-1`, Toeplitz, given by their first columns."""
    lags = max(len(numerator), len(denominator))
    solved, applied = np.zeros(lags), np.zeros(lags)
    solved[: len(numerator)] = numerator
    applied[: len(denominator)] = denominator
    sums = -solved / numerator[0]
    sums[0] = 1.0 / numerator[0]
    # M's first entry is multiplied with the round's own value, the others with earlier.
    weights = applied[0] * sums
    weights[1:] += applied[1:]
    return cls(weights[np.newaxis], 'sum', sums[np.newaxis])

  @property
  def num_lags(self) -> int:
    """Number of earlier rounds that a round's noise depends on directly."""
    return self.weights.shape[1] - 1

  @property
  def work(self) -> Work:
    """A round reads all buffers and overwrites one."""
    return Work(self.num_lags, 1, self.num_lags, min(1, self.num_lags))

  @property
  def max_terms(self) -> Optional[int]:
    """`None` if stored values depend on earlier stored values."""
    if self.remembers != 'row' and self.num_lags:
      return None
    return self.num_lags + 1

  def serve(
    self, this_round: int, row: Callable[[int], np.ndarray], memory: Memory
  ) -> np.ndarray:
    """Computes the sum, and overwrites the oldest stored value."""
    index = min(this_round, len(self.weights) - 1)
    own = row(this_round)
    lags = range(1, min(self.num_lags, this_round) + 1)
    earlier = [memory[(this_round - lag) % self.num_lags] for lag in lags]

    def total(weights: np.ndarray) -> np.ndarray:
      result = weights[0] * own
      for weight, value in zip(weights[1:], earlier):
        result = result + weight * value
      return result

    noise = total(self.weights[index])
    if self.num_lags:
      stored = noise if self.remembers == 'noise' else own
      if self.sums is not None:
        stored = total(self.sums[index])
      memory[this_round % self.num_lags] = stored
    return noise


@dataclasses.dataclass(frozen=True, eq=False)
class TreeNodes(Recursion):
  """Prefix sums from the nodes of a binary tree, with one row of z a round.

  Round t completes its leaf and one node of each level up to m, the number of 1-bits at
  the end of t. In the nodes that make up the prefix sum, the highest one, of value
  u[t], replaces one left child of each lower level l, which round t - 2^l completed.
  With w the weights, round t adds

      noise[t] = w[m] u[t] - sum_{l < m} w[l] u[t - 2^l].

  The value of a node is u[t] = z[t] (arXiv:2103.00039), or a combination with the nodes
  below it:

      u[t] = combination[m, m] z[t] + sum_{l < m} combination[m, l] u[t - 2^l].

  The nodes that t completes are used for the first time in round t, so a single
  Gaussian, z[t], stands for their weighted sum, with the variance of that sum.
  """

  weights: np.ndarray  # w, float64 of shape [levels].
  # [levels, levels], used on and below the diagonal; `None` for u[t] = z[t].
  combination: Optional[np.ndarray] = None
  # Rounds after which a new tree begins; `None` for a single tree.
  tree_rounds: Optional[int] = None
  applies_noise_matrix = False

  def __post_init__(self) -> None:
    (levels,) = _set_array(self, 'weights', (None,))
    if self.combination is not None:
      _set_array(self, 'combination', (levels, levels))
    if self.tree_rounds is not None:
      checks.check_positive_int('tree_rounds', self.tree_rounds)

  @property
  def num_levels(self) -> int:
    """Number of levels of the tree, leaves included."""
    return len(self.weights)

  @property
  def work(self) -> Work:
    """There is a buffer for each level; a round overwrites one."""
    return Work(self.num_levels, 1, self.num_levels - 1, 1)

  @property
  def max_terms(self) -> Optional[int]:
    """`None` if nodes are combined."""
    return self.num_levels if self.combination is None else None

  def variance_by_height(self) -> np.ndarray:
    """Variance of a round's noise, by the level m of its highest node; [levels].

    The u[t - 2^l] are independent of each other, but combined nodes u[t] contain them.
    """
    combination = self.combination
    if combination is None:
      combination = np.eye(self.num_levels)
    values, noise = np.zeros(self.num_levels), np.zeros(self.num_levels)
    for m, weight in enumerate(self.weights):
      own, below = combination[m, m], combination[m, :m]
      values[m] = own**2 + np.square(below) @ values[:m]
      replaced = np.square(weight * below - self.weights[:m]) @ values[:m]
      noise[m] = (weight * own) ** 2 + replaced
    return noise

  def serve(
    self, this_round: int, row: Callable[[int], np.ndarray], memory: Memory
  ) -> np.ndarray:
    """Replaces a node of each lower level by the highest node that t completes."""
    in_tree = this_round % self.tree_rounds if self.tree_rounds else this_round
    height = (in_tree ^ (in_tree + 1)).bit_length() - 1
    below = [memory[level] for level in range(height)]  # u[t - 2^level].
    value = row(this_round)
    if self.combination is not None:
      value = self.combination[height, height] * value
      for weight, node in zip(self.combination[height], below):
        value = value + weight * node
    noise = self.weights[height] * value
    for weight, node in zip(self.weights, below):
      noise = noise - weight * node
    memory[height] = value
    return noise


def honaker_combination(num_levels: int) -> np.ndarray:
  """`TreeNodes.combination` of Honaker's estimation from below (Honaker 2015).

  A node of level m has weight 1 and each of its two children, combined in the same way,
  weight 1/2, so the left child of level l has weight 2^(l - m). The node itself and the
  right children, of variances 4^-i for i from 0 to m, are a single row of z.
  """
  levels = np.arange(num_levels)
  combination = np.tril(2.0 ** (levels - levels[:, np.newaxis]))
  np.fill_diagonal(combination, np.sqrt(np.cumsum(0.25**levels)))
  return combination


@dataclasses.dataclass(frozen=True, eq=False)
class DecayingSums(Recursion):
  """Exponentially decaying sums over all rounds, optionally with delayed copies.

      noise[t] = z[t] + sum_j outputs[j] s_j,    s_j <- decays[j] s_j + noise[t]

  is a BLT's forward substitution in `C noise = z` (arXiv:2404.16706, algorithm 1), with
  outputs -omega and decays theta. In general there are several copies c of this
  recursion, each `delay` rounds behind the one before, which draw rows of z again. They
  remove the terms that leave the window from the sums of the copy before
  (`strategies.blt`). The noise is that of the first copy:

      w_c = z[t - c delay] + sum_j outputs[j] s_cj,
      s_cj <- decays[j] s_cj + w_c + ends[j] w_{c + 1},

  where rows of z before the first round are zero, and so is w after the last copy.
  `decays`, `outputs` and `ends` (`None` for one copy) are of shape [sums].
  """

  decays: np.ndarray
  outputs: np.ndarray
  ends: Optional[np.ndarray] = None
  copies: int = 1
  delay: int = 0

  def __post_init__(self) -> None:
    shape = _set_array(self, 'decays', (None,))
    _set_array(self, 'outputs', shape)
    if self.ends is not None:
      _set_array(self, 'ends', shape)
    checks.check_positive_int('copies', self.copies)
    checks.check_int('delay', self.delay, at_least=0)
    if self.copies > 1 and (self.ends is None or not self.delay):
      raise ValueError(
        f'{self.copies} copies need ends and a delay of at least 1 round, got '
        f'ends={self.ends!r} and delay={self.delay}.'
      )

  @property
  def num_sums(self) -> int:
    """Number of sums in all copies."""
    return self.copies * len(self.decays)

  @property
  def work(self) -> Work:
    """A round changes all sums, each a buffer, and draws a row of z for each copy."""
    return Work(self.num_sums, self.copies, self.num_sums, self.num_sums)

  def serve(
    self, this_round: int, row: Callable[[int], np.ndarray], memory: Memory
  ) -> np.ndarray:
    """Updates each copy that has begun, from the last to the first."""
    later = None  # w of the copy after this one.
    for copy in reversed(range(self.copies)):
      if this_round < copy * self.delay:
        continue
      noise = row(this_round - copy * self.delay)
      slots = range(copy * len(self.decays), (copy + 1) * len(self.decays))
      sums = [memory.get(slot, np.zeros_like(noise)) for slot in slots]
      for output, total in zip(self.outputs, sums):
        noise = noise + output * total
      for j, (slot, total) in enumerate(zip(slots, sums)):
        memory[slot] = self.decays[j] * total + noise
        if later is not None and self.ends is not None:
          memory[slot] = memory[slot] + self.ends[j] * later
      later = noise
    assert later is not None  # The first copy has no delay.
    return later


@dataclasses.dataclass(frozen=True, eq=False)
class Scaled(Recursion):
  """The noise of another recursion, whose buffers are not scaled, times factors.

  noise[t] = factors[i] * (noise of `recursion`)[t], starts[i] <= t < starts[i + 1]
  """

  recursion: Recursion
  factors: np.ndarray
  starts: tuple[int, ...]

  def __post_init__(self) -> None:
    if not isinstance(self.recursion, Recursion):
      raise TypeError(f'recursion must be a Recursion, got {self.recursion!r}.')
    starts = check_starts('starts', self.starts)
    object.__setattr__(self, 'starts', starts)
    _set_array(self, 'factors', (len(starts),))

  @property
  def applies_noise_matrix(self) -> bool:  # type: ignore[override]
    """The same as that of the unscaled recursion."""
    return self.recursion.applies_noise_matrix

  @property
  def work(self) -> Work:
    """The same as that of the unscaled recursion."""
    return self.recursion.work

  @property
  def max_terms(self) -> Optional[int]:
    """The same as that of the unscaled recursion."""
    return self.recursion.max_terms

  def serve(
    self, this_round: int, row: Callable[[int], np.ndarray], memory: Memory
  ) -> np.ndarray:
    """Scales the noise of the unscaled recursion."""
    factor = self.factors[bisect.bisect_right(self.starts, this_round) - 1]
    return factor * self.recursion.serve(this_round, row, memory)


def check_starts(name: str, starts: Iterable[int]) -> tuple[int, ...]:
  """Returns `starts`; raises ValueError unless they are increasing from 0."""
  checked = tuple(
    checks.check_int(f'{name}[{i}]', start, 0) for i, start in enumerate(starts)
  )
  if checked[:1] != (0,) or any(b <= a for a, b in zip(checked, checked[1:])):
    raise ValueError(f'{name} must be rounds in rising order from 0, got {checked}.')
  return checked


def check(recursion: Recursion, noise_matrix: np.ndarray) -> None:
  """Raises ValueError unless a recursion's noise has the covariance of `D z`."""
  actual_rows = recursion.noise_rows(np.eye(len(noise_matrix)))
  actual, expected = actual_rows @ actual_rows.T, noise_matrix @ noise_matrix.T
  scale = np.sqrt(np.diagonal(expected))
  is_wrong = ~(np.abs(actual - expected) <= _TOLERANCE * np.outer(scale, scale))
  if is_wrong.any():
    first, second = (int(each) for each in np.argwhere(is_wrong)[0])
    got, want = actual[first, second], expected[first, second]
    error = f'rounds {second} and {first} would have the covariance {got:.6g} and not '
    error += f'{want:.6g}, as'
    if first == second:
      error = f'round {first} would have {got / want:.6g} times the variance that'
    raise ValueError(
      f'the noise of {error} the noise matrix says; recursion() and noise_matrix() '
      'must describe the same noise.'
    )


def _set_array(
  recursion: Recursion, name: str, shape: tuple[Optional[int], ...]
) -> tuple[int, ...]:
  """Converts a field to a finite float64 array; `None` in `shape` is any size >= 1."""
  array = workload_lib.real_array(name, getattr(recursion, name))
  fits = array.ndim == len(shape) and array.size > 0
  fits = fits and all(want in (None, size) for want, size in zip(shape, array.shape))
  if not (fits and np.all(np.isfinite(array))):
    raise ValueError(
      f'{name} must be finite numbers of shape {shape}, None for 1 or more, got '
      f'{array.tolist()} of shape {array.shape}.'
    )
  object.__setattr__(recursion, name, array)
  return array.shape
