"""Noise whose past is drawn again: the state is a key and a round.

That a row of the noise matrix has few entries makes it cheap; that z is random access
makes it possible.
"""

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from tff_dp_aggregators import strategies
from tff_dp_aggregators.noise import recursions
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import streaming
from tff_dp_aggregators.strategies import noise_cost


class Terms(abc.ABC):
  """The entries of a noise matrix that are not 0, row by row."""

  most: int

  @abc.abstractmethod
  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Columns, int64, and weights, float64, both of shape [terms]."""


class BandTerms(Terms):
  """A few bands."""

  def __init__(self, weights: np.ndarray):
    """Initializes the terms from weights as of `recursions.LastRounds`."""
    self._weights = weights
    self.most = weights.shape[1]

  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """See `Terms`."""
    lags = tf.range(tf.minimum(this_round + 1, self.most))
    row = tf.minimum(this_round, len(self._weights) - 1)
    weights = tf.gather(tf.constant(self._weights, tf.float64), row)
    return this_round - lags, tf.gather(weights, lags)


class MatrixTerms(Terms):
  """A matrix that is written out."""

  def __init__(self, matrix: np.ndarray):
    """Initializes the terms from a lower-triangular matrix."""
    self._matrix = matrix
    self.most = len(matrix)

  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """See `Terms`."""
    row = tf.constant(self._matrix, tf.float64)[this_round]
    columns = tf.where(tf.not_equal(row, 0.0))[:, 0]
    return columns, tf.gather(row, columns)


class PlainTreeTerms(Terms):
  """The nodes that a round adds to and takes from the cover of a prefix sum."""

  def __init__(self, strategy: strategies.BinaryTree):
    """Initializes the terms of a tree with the plain estimator."""
    self._tree = recursions.Tree(strategy)
    self.most = strategy.num_levels

  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """See `Terms`."""
    step = self._tree.step(this_round)
    taken = tf.where(tf.not_equal(step.past[0], 0.0))[:, 0]
    columns = tf.concat([[this_round], tf.gather(step.stamps, taken)], axis=0)
    weights = tf.concat([step.fresh, tf.gather(step.past[0], taken)], axis=0)
    return columns, weights


def terms_of(strategy: strategies.Strategy) -> Terms:
  """The terms of a strategy's noise.

  Raises:
    ValueError: If there would be thousands of them.
  """
  if isinstance(strategy, strategies.BandedInverse):
    return BandTerms(recursions.LastRounds.over_rows(strategy).weights)
  if isinstance(strategy, strategies.BinaryTree) and not strategy.honaker:
    return PlainTreeTerms(strategy)
  if not strategy.noise_buffers:
    return BandTerms(1.0 / _diagonal(strategy)[:, np.newaxis])
  if noise_cost.max_terms(strategy) is None:
    raise ValueError(
      f"storage 'redraw' would make the noise of {strategy} of all rows of z so far. "
      f'That is offered for up to {noise_cost.MAX_ROUNDS_WRITTEN_OUT} rounds, and '
      "not for Honaker's trees; use 'state' or 'files'."
    )
  return MatrixTerms(strategy.noise_matrix())


def _diagonal(strategy: strategies.Strategy) -> np.ndarray:
  if isinstance(strategy, strategies.toeplitz.LowerToeplitz):
    return strategy.matrix_coefficients()[:1]
  return np.diagonal(strategy.materialize())


class RedrawnNoise(streaming.StreamingNoise):
  """Sums over rows of z that are drawn in each round."""

  storage = 'redraw'

  def __init__(self, strategy: strategies.Strategy, rows: rows_lib.GaussianRows):
    """Initializes the noise.

    Args:
      strategy: Supplies the noise matrix.
      rows: Source of the rows of z.

    Raises:
      ValueError: As `terms_of`.
    """
    super().__init__(rows)
    self._terms = terms_of(strategy)

  def next(self, state: streaming.NoiseState) -> tuple[Any, streaming.NoiseState]:
    """See `StreamingNoise`."""
    columns, weights = self._terms.of(state.round)

    def weighted(term: tf.Tensor) -> list[tf.Tensor]:
      weight = weights[term]
      row = self._rows.row(state.key, columns[term])
      return [tf.cast(weight, vector.dtype) * vector for vector in row]

    def add(term: tf.Tensor, total: list[tf.Tensor]) -> tuple[tf.Tensor, Any]:
      return term + 1, [t + v for t, v in zip(total, weighted(term))]

    noise = weighted(tf.constant(0))
    if self._terms.most > 1:
      _, noise = tf.while_loop(
        lambda term, _: term < tf.size(columns),
        add,
        (tf.constant(1), noise),
        parallel_iterations=1,
      )
    after = state._replace(round=state.round + 1)
    return self._rows.layout.unflatten(noise), after
