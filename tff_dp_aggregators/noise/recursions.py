"""Noise matrices as recursions: what a round needs of the rounds before.

A recursion says with which weights a round's noise is made of its row of z and of what
is remembered, and what it remembers in turn. Where that is kept (in the state, in
files) is not its business.

There are two kinds. `PastValues` remember one value of each round for a while: the
noise of the last rounds (banded C), their rows of z (banded C^-1), or the nodes of a
tree. `Decays` remember sums over all rounds, which change in every round (BLT).
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import numpy as np
import tensorflow as tf

from tff_dp_aggregators import strategies
from tff_dp_aggregators.noise import rows as rows_lib


class Step(NamedTuple):
  """One round of `PastValues`.

  Outputs are the noise and, unless it is the noise or the row of z, what is remembered.

  Attributes:
    fresh: Weights of the round's row of z, float64 of shape [outputs].
    past: Weights of what is remembered, float64 of shape [outputs, slots].
    stamps: Round in which what is in a slot was written, int64 of shape [slots]; of no
      meaning where the weights are 0.
    slot: Where this round's value goes, an int64 scalar.
  """

  fresh: tf.Tensor
  past: tf.Tensor
  stamps: tf.Tensor
  slot: tf.Tensor


class PastValues(abc.ABC):
  """One value of each round is remembered, in a slot that a later one takes over.

  Attributes:
    keeps: What the value is: 'noise', 'row', or 'other', the second output of `step`.
    num_slots: How many there are.
    max_reads: Of how many slots a round is made at most.
  """

  keeps: str
  num_slots: int
  max_reads: int

  @abc.abstractmethod
  def step(self, this_round: tf.Tensor) -> Step:
    """The weights of a round, an int64 scalar."""


class LastRounds(PastValues):
  """Sums over a round and the ones before it; slots are taken in turn."""

  def __init__(self, weights: np.ndarray, keeps: str, rewind: int = 0):
    """Initializes the recursion.

    Args:
      weights: Shape [rounds, lags + 1], or [1, lags + 1] for all rounds alike. Entry
        [t, 0] is the weight of round t's row of z, entry [t, i] that of the value of
        round t - i.
      keeps: 'noise' or 'row'.
      rewind: How many of the rounds served last can be served again.
    """
    self.keeps = keeps
    self.max_reads = weights.shape[1] - 1
    self.num_slots = self.max_reads + rewind
    self.weights = weights

  def step(self, this_round: tf.Tensor) -> Step:
    """See `PastValues`."""
    row = tf.minimum(this_round, len(self.weights) - 1)
    weights = tf.gather(tf.constant(self.weights, tf.float64), row)
    last = this_round - 1
    slots = tf.range(self.num_slots, dtype=tf.int64)
    # Slot s holds the value of the latest round that is s modulo the slots.
    stamps = last - (last - slots) % max(self.num_slots, 1)
    lag = this_round - stamps
    known = (stamps >= 0) & (lag <= self.max_reads)
    past = tf.where(known, tf.gather(weights, tf.where(known, lag, 0)), 0.0)
    return Step(
      weights[:1], past[tf.newaxis], stamps, this_round % max(self.num_slots, 1)
    )

  @classmethod
  def over_rows(
    cls, strategy: strategies.BandedInverse, rewind: int = 0
  ) -> 'LastRounds':
    """The rows of a banded `C^-1` themselves."""
    bands = strategy.inverse_coefficients()[: strategy.num_inverse_bands]
    return cls(bands[np.newaxis], 'row', rewind)

  @classmethod
  def solving(cls, strategy: strategies.Strategy, rewind: int = 0) -> 'LastRounds':
    """Forward substitution in `C w = z` (arXiv:2306.08153).

    w[t] = (z[t] - sum_i C[t, t - i] w[t - i]) / C[t, t], i from 1 to num_bands - 1.

    Args:
      strategy: A banded, banded Toeplitz or dense one.
      rewind: See the class.
    """
    if isinstance(strategy, strategies.BandedToeplitz):
      entries = np.array([strategy.coefficients])
    else:
      entries = _by_lag(strategy.materialize(), strategy.noise_buffers + 1)
    weights = -entries / entries[:, :1]
    weights[:, 0] = 1.0 / entries[:, 0]
    return cls(weights, 'noise', rewind)


def _by_lag(matrix: np.ndarray, num_bands: int) -> np.ndarray:
  """Entries [t, t - i] of a matrix at [t, i]; 0 where there are none."""
  entries = np.zeros((len(matrix), num_bands))
  for lag in range(num_bands):
    entries[lag:, lag] = np.diagonal(matrix, -lag)
  return entries


class Tree(PastValues):
  """The binary tree with one row of z a round, for both estimators, with restarts.

  Round t completes its leaf and then one node a level, up to level m, as many as t has
  1-bits at its end (t counted from the last restart). Only the highest one, which is a
  left child, is used by later rounds. Honaker's estimate of it combines all nodes
  below. Those that t completes have not been used before, and come in as one Gaussian:

      u[t] = sqrt(sum_{i <= m} 4^-i) z[t] + sum_{l < m} 2^(l - m) u[left child, level l]

  The plain estimate is u[t] = z[t]. The noise of a prefix sum is that of the nodes that
  cover it, each `weight[level] u`; so round t adds its node's and takes away that of
  the left children which the node replaces.
  """

  def __init__(self, strategy: strategies.BinaryTree, rewind: int = 0):
    """Initializes the recursion.

    Args:
      strategy: Estimator and restarts.
      rewind: How many of the rounds served last can be served again.
    """
    self.keeps = 'other' if strategy.honaker else 'row'
    self.max_reads = strategy.num_levels - 1
    self._levels = np.arange(strategy.num_levels)
    self._weights = np.ones(strategy.num_levels)
    self._fresh = np.ones(strategy.num_levels)
    if strategy.honaker:
      weight = strategies.tree.honaker_weight
      self._weights = np.array([weight(int(level)) for level in self._levels])
      self._fresh = np.sqrt(np.cumsum(0.25**self._levels))
    self._tree_rounds = strategy.restart_every or strategy.num_rounds
    # Values of a level that the rounds to be served again may need: one, and one for
    # each time that it is written in them, every 2^(level + 1) rounds of a tree.
    written = -(-rewind // (2 << self._levels))
    if strategy.restart_every is not None:
      written += -(-rewind // self._tree_rounds)
    self._versions = 1 + np.minimum(rewind, written)
    self._first_slots = np.cumsum(self._versions) - self._versions
    self.num_slots = int(self._versions.sum())

  def step(self, this_round: tf.Tensor) -> Step:
    """See `PastValues`."""
    levels = tf.constant(self._levels, tf.int64)
    weights = tf.constant(self._weights, tf.float64)
    in_tree = this_round % self._tree_rounds
    ending_ones = tf.bitwise.bitwise_xor(in_tree, in_tree + 1)
    height = tf.cast(tf.raw_ops.PopulationCount(x=ending_ones), tf.int64) - 1
    replaced = levels < height
    covered = tf.bitwise.left_shift(tf.bitwise.right_shift(in_tree, levels), levels)
    stamps = tf.where(replaced, covered - 1 + this_round - in_tree, -1)
    slots = self._slots(levels, stamps)
    halves = tf.pow(tf.constant(2.0, tf.float64), tf.cast(levels - height, tf.float64))
    own_weight = tf.gather(weights, height)
    fresh = tf.gather(tf.constant(self._fresh, tf.float64), height)
    if self.keeps == 'row':
      outputs, fresh_outputs = [-weights], [fresh]
    else:
      outputs = [own_weight * halves - weights, halves]
      fresh_outputs = [own_weight * fresh, fresh]
    past = tf.where(replaced[:, tf.newaxis], tf.stack(outputs, axis=1), 0.0)
    shape = tf.constant([self.num_slots, len(outputs)], tf.int64)
    indices = slots[:, tf.newaxis]
    return Step(
      tf.stack(fresh_outputs),
      tf.transpose(tf.scatter_nd(indices, past, shape)),
      tf.scatter_nd(indices, stamps, shape[:1]),
      self._slots(levels, tf.fill(tf.shape(levels), this_round))[height],
    )

  def _slots(self, levels: tf.Tensor, stamps: tf.Tensor) -> tf.Tensor:
    """Where the values that nodes of these levels got in these rounds are."""
    half = tf.bitwise.left_shift(tf.ones_like(levels), levels)
    in_a_tree = (self._tree_rounds + half) // (2 * half)
    written = stamps // self._tree_rounds * in_a_tree
    written += stamps % self._tree_rounds // (2 * half)
    return tf.constant(self._first_slots) + written % tf.constant(self._versions)


class Decays:
  """Sums that decay, of all rounds: BLTs, and windowed ones.

  A BLT's forward substitution in `C w = z` (arXiv:2408.08868) is, with sums s_j,

      w = z[t] - sum_j output_scales[j] s_j,    s_j <- buffer_decays[j] s_j + w.

  For a windowed BLT, late copies of the recursion do the same with rows of z drawn
  again, and each ends the terms of the copy before it (`strategies.windowed_blt`).

  Attributes:
    delays: For each copy, how many rounds late it runs, int64 of shape [copies].
    decays: Of each sum, shape [sums].
    outputs: Weights of the sums in the copies' noises, shape [copies, sums].
    inputs: Weights of the copies' noises in the sums, shape [sums, copies].
  """

  def __init__(self, strategy: Union[strategies.BLT, strategies.WindowedBLT]):
    """Initializes the recursion."""
    scales = np.array(strategy.output_scales)
    decays = np.array(strategy.buffer_decays)
    copies, late = 1, 0
    if isinstance(strategy, strategies.WindowedBLT):
      copies, late = max(1, strategy.num_copies), strategy.window - 1
    if not strategy.noise_buffers:
      scales, decays = scales[:0], decays[:0]
    self.delays = late * np.arange(copies)
    self.decays = np.tile(decays, copies)
    self.outputs = np.kron(np.eye(copies), -scales)
    self.inputs = np.kron(np.eye(copies), np.ones_like(decays)[:, np.newaxis])
    ends = -(decays**late)[:, np.newaxis]
    self.inputs += np.kron(np.eye(copies, k=1), ends)

  @property
  def num_slots(self) -> int:
    """How many sums there are."""
    return len(self.decays)

  def advance(
    self, rows: rows_lib.GaussianRows, key: tf.Tensor, this_round: tf.Tensor, sums: Any
  ) -> tuple[list[tf.Tensor], list[list[tf.Tensor]]]:
    """One round.

    Vector by vector: products with matrices of a few rows take three times as long.

    Args:
      rows: Source of the rows of z.
      key: Their key.
      this_round: An int64 scalar.
      sums: The sums before the round: for each vector of the layout a list of vectors.

    Returns:
      The round's noise and the sums after it.
    """
    drawn = [self._row(rows, key, this_round - int(delay)) for delay in self.delays]
    noise, after = [], []
    for position, before in enumerate(sums):
      noises = [
        _weighted_sum([1.0, *weights], [vectors[position], *before])
        for weights, vectors in zip(self.outputs, drawn)
      ]
      after.append(
        [
          _weighted_sum([decay, *weights], [total, *noises])
          for decay, weights, total in zip(self.decays, self.inputs, before)
        ]
      )
      noise.append(noises[0])
    return noise, after

  def _row(
    self, rows: rows_lib.GaussianRows, key: tf.Tensor, index: tf.Tensor
  ) -> list[tf.Tensor]:
    """A row of z, zeros before the first one."""
    layout = rows.layout
    return tf.cond(
      index >= 0,
      lambda: rows.row(key, index),
      lambda: [tf.zeros([n], dtype) for n, dtype in zip(layout.sizes, layout.dtypes)],
    )


def _weighted_sum(weights: Sequence[float], vectors: list[tf.Tensor]) -> tf.Tensor:
  """Without the vectors whose weight is 0."""
  terms = [
    vector if weight == 1.0 else tf.constant(weight, vector.dtype) * vector
    for weight, vector in zip(weights, vectors)
    if weight
  ]
  total = terms[0]
  for term in terms[1:]:
    total += term
  return total
