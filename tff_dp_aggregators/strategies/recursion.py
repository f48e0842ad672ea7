"""How a strategy's noise follows from the rounds before, as plain data.

The noise of round t is row t of `D z`, where z has iid standard Gaussian rows. A server
forms it from the round's own row and a few model-sized buffers, its memory: with what
weights, and what is remembered in turn, is the *recursion* that `Strategy.recursion`
returns. The layer `noise` interprets it in TensorFlow.
"""

import abc
import bisect
import dataclasses
from collections.abc import Callable, Iterable, MutableMapping
from typing import ClassVar, NamedTuple, Optional

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import workload as workload_lib

# What is remembered of earlier rounds, by slot.
Memory = MutableMapping[int, np.ndarray]
_TOLERANCE = 1e-6  # How far covariances may be apart by rounding, relative.


class Work(NamedTuple):
  """What a round takes at most if the noise of earlier rounds is kept."""

  buffers: int  # That are kept.
  draws: int  # Rows of z.
  reads: int  # Buffers that the round's noise and what is kept are made of.
  writes: int  # Buffers that change.


class Recursion(abc.ABC):
  """A round's noise from its row of z and a memory of earlier rounds."""

  # Whether the noise is `noise_matrix()` times these rows of z, or so in distribution.
  applies_noise_matrix: ClassVar[bool] = True

  @property
  @abc.abstractmethod
  def work(self) -> Work:
    """What a round takes at most."""

  @property
  def max_terms(self) -> Optional[int]:
    """How many rows of z a round's noise combines at most; `None` for all so far."""
    return None

  @property
  def buffers_needed(self) -> int:
    """Buffers that have to be kept: none if few rows of z, drawn again, do as well."""
    return self.work.buffers if self.max_terms is None else 0

  @abc.abstractmethod
  def serve(
    self, this_round: int, row: Callable[[int], np.ndarray], memory: Memory
  ) -> np.ndarray:
    """The noise of the round t, `this_round`, of the shape of a row.

    `row` draws the row of z of a round from 0 to t. `memory` is changed; its slots are
    0 to `work.buffers - 1`, and one that is not there holds zeros.
    """

  def noise_rows(self, z: np.ndarray) -> np.ndarray:
    """The noise of all rounds, one after the other, from all rows of z.

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
  """Sums over a round and the ones before it: banded `C` or `C^-1`, and quotients.

      noise[t] = weights[t, 0] z[t] + sum_{i >= 1} weights[t, i] value[t - i],

  where the value of a round that is remembered is its noise (arXiv:2306.08153), its row
  of z (arXiv:2505.12128, the bands of `C^-1`), or a sum

      value[t] = sums[t, 0] z[t] + sum_{i >= 1} sums[t, i] value[t - i].
  """

  # Float64 array of shape [rounds, lags + 1]; the last line is that of all later
  # rounds. Entries [t, i] with i > t are of no meaning.
  weights: np.ndarray
  remembers: str  # 'noise', 'row' or 'sum'.
  sums: Optional[np.ndarray] = None  # Of the same shape; only with 'sum'.

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
    """The noise `M N^-1 z` of `C = N / M`, Toeplitz matrices by their first columns."""
    lags = max(len(numerator), len(denominator))
    solved, applied = np.zeros(lags), np.zeros(lags)
    solved[: len(numerator)] = numerator
    applied[: len(denominator)] = denominator
    sums = -solved / numerator[0]
    sums[0] = 1.0 / numerator[0]
    # M's first entry meets the value of the round itself, the others those before it.
    weights = applied[0] * sums
    weights[1:] += applied[1:]
    return cls(weights[np.newaxis], 'sum', sums[np.newaxis])

  @property
  def num_lags(self) -> int:
    """How many earlier rounds a round's noise is made of."""
    return self.weights.shape[1] - 1

  @property
  def work(self) -> Work:
    """One of the buffers changes."""
    return Work(self.num_lags, 1, self.num_lags, min(1, self.num_lags))

  @property
  def max_terms(self) -> Optional[int]:
    """`None` if sums are made of sums."""
    if self.remembers != 'row' and self.num_lags:
      return None
    return self.num_lags + 1

  def serve(
    self, this_round: int, row: Callable[[int], np.ndarray], memory: Memory
  ) -> np.ndarray:
    """Sums up, and puts the round in the place of the oldest one."""
    line = min(this_round, len(self.weights) - 1)
    own = row(this_round)
    lags = range(1, min(self.num_lags, this_round) + 1)
    earlier = [memory[(this_round - lag) % self.num_lags] for lag in lags]

    def total(weights: np.ndarray) -> np.ndarray:
      result = weights[0] * own
      for weight, value in zip(weights[1:], earlier):
        result = result + weight * value
      return result

    noise = total(self.weights[line])
    if self.num_lags:
      kept = noise if self.remembers == 'noise' else own
      if self.sums is not None:
        kept = total(self.sums[line])
      memory[this_round % self.num_lags] = kept
    return noise


@dataclasses.dataclass(frozen=True, eq=False)
class TreeNodes(Recursion):
  """Prefix sums of nodes of a binary tree, with one row of z a round.

  Round t completes its leaf and then one node a level, up to level m, as many as t has
  1-bits at its end. The highest, of value u[t], replaces in the cover of the prefix sum
  one left child of each lower level l, which round t - 2^l completed. With w the
  weights, round t adds

      noise[t] = w[m] u[t] - sum_{l < m} w[l] u[t - 2^l].

  Nodes are taken as drawn, u[t] = z[t] (arXiv:2103.00039), or combined with those
  below:

      u[t] = combination[m, m] z[t] + sum_{l < m} combination[m, l] u[t - 2^l].

  The nodes between the levels that t completes are used for the first time, and so come
  in as one Gaussian, z[t], of the variance that they have together.
  """

  weights: np.ndarray  # w, float64 of shape [levels].
  # [levels, levels], used on and below the diagonal; `None` for nodes as drawn.
  combination: Optional[np.ndarray] = None
  # Rounds after which a fresh tree begins; `None` for a single one.
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
    """How many levels the tree has, leaves included."""
    return len(self.weights)

  @property
  def work(self) -> Work:
    """A buffer a level, one of which changes in each round."""
    return Work(self.num_levels, 1, self.num_levels - 1, 1)

  @property
  def max_terms(self) -> Optional[int]:
    """`None` if nodes are combined."""
    return self.num_levels if self.combination is None else None

  def variance_by_height(self) -> np.ndarray:
    """Variance of a round's noise by the level m of its highest node, shape [levels].

    The u[t - 2^l] are independent; with combined nodes they are part of u[t] as well.
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
    """Replaces one node a level below that of the round's highest node by it."""
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

  A node of level m counts in full, and half of its two children in the same way, so the
  left child of level l with 2^(l - m). The node itself and the right children, of
  variances 4^-i for i from 0 to m, are one row of z.
  """
  levels = np.arange(num_levels)
  combination = np.tril(2.0 ** (levels - levels[:, np.newaxis]))
  np.fill_diagonal(combination, np.sqrt(np.cumsum(0.25**levels)))
  return combination


@dataclasses.dataclass(frozen=True, eq=False)
class DecayingSums(Recursion):
  """Sums over all rounds that decay, and late copies of them.

      noise[t] = z[t] + sum_j outputs[j] s_j,    s_j <- decays[j] s_j + noise[t]

  is a BLT's forward substitution in `C noise = z` (arXiv:2404.16706, algorithm 1), with
  outputs -omega and decays theta. In general there are copies c of this, each `delay`
  rounds later than the one before, with rows of z drawn again, which end what they once
  began in the sums of the copy before (`strategies.blt`); the noise is the first one's:

      w_c = z[t - c delay] + sum_j outputs[j] s_cj,
      s_cj <- decays[j] s_cj + w_c + ends[j] w_{c + 1},

  where rows of z before the first round are zeros, and so is w of the copy after the
  last. `decays`, `outputs` and `ends`, `None` for one copy, are of shape [sums].
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
    """Sums of all copies."""
    return self.copies * len(self.decays)

  @property
  def work(self) -> Work:
    """A buffer that changes for each sum; a row of z for each copy."""
    return Work(self.num_sums, self.copies, self.num_sums, self.num_sums)

  def serve(
    self, this_round: int, row: Callable[[int], np.ndarray], memory: Memory
  ) -> np.ndarray:
    """Sums up for each copy that has begun, the last one first."""
    later = None  # The noise of the copy after this one.
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
  """The noise of another recursion, which remembers it unscaled, times factors.

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
    """That of what is scaled."""
    return self.recursion.applies_noise_matrix

  @property
  def work(self) -> Work:
    """That of what is scaled."""
    return self.recursion.work

  @property
  def max_terms(self) -> Optional[int]:
    """That of what is scaled."""
    return self.recursion.max_terms

  def serve(
    self, this_round: int, row: Callable[[int], np.ndarray], memory: Memory
  ) -> np.ndarray:
    """Serves the round of what is scaled, and scales its noise."""
    factor = self.factors[bisect.bisect_right(self.starts, this_round) - 1]
    return factor * self.recursion.serve(this_round, row, memory)


def check_starts(name: str, starts: Iterable[int]) -> tuple[int, ...]:
  """The rounds in which something begins anew, in rising order from 0."""
  checked = tuple(
    checks.check_int(f'{name}[{i}]', start, 0) for i, start in enumerate(starts)
  )
  if checked[:1] != (0,) or any(b <= a for a, b in zip(checked, checked[1:])):
    raise ValueError(f'{name} must be rounds in rising order from 0, got {checked}.')
  return checked


def check(recursion: Recursion, noise_matrix: np.ndarray) -> None:
  """Refuses a recursion whose noise has not the covariance over rounds of `D z`."""
  made = recursion.noise_rows(np.eye(len(noise_matrix)))
  is_so, wanted = made @ made.T, noise_matrix @ noise_matrix.T
  scale = np.sqrt(np.diagonal(wanted))
  off = ~(np.abs(is_so - wanted) <= _TOLERANCE * np.outer(scale, scale))
  if off.any():
    first, second = (int(each) for each in np.argwhere(off)[0])
    has, ought = is_so[first, second], wanted[first, second]
    wrong = f'rounds {second} and {first} would have the covariance {has:.6g} and not '
    wrong += f'{ought:.6g}, as'
    if first == second:
      wrong = f'round {first} would have {has / ought:.6g} times the variance that'
    raise ValueError(
      f'the noise of {wrong} the noise matrix says; recursion() and noise_matrix() '
      'must describe the same noise.'
    )


def _set_array(
  recursion: Recursion, name: str, shape: tuple[Optional[int], ...]
) -> tuple[int, ...]:
  """Makes a field a finite float64 array of a shape, where `None` is 1 or more."""
  array = workload_lib.real_array(name, getattr(recursion, name))
  fits = array.ndim == len(shape) and array.size > 0
  fits = fits and all(wanted in (None, has) for wanted, has in zip(shape, array.shape))
  if not (fits and np.all(np.isfinite(array))):
    raise ValueError(
      f'{name} must be finite numbers of shape {shape}, None for 1 or more, got '
      f'{array.tolist()} of shape {array.shape}.'
    )
  object.__setattr__(recursion, name, array)
  return array.shape
