"""Noise whose past is drawn again: the state is a key and a round.

That a row of the noise matrix has few entries makes it cheap; that z is random access
makes it possible.
"""

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.noise import interpreters
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import streaming


class Terms(abc.ABC):
  """Which rows of z a round's noise is made of.

  Attributes:
    max_terms: How many there are at most.
  """

  max_terms: int

  @abc.abstractmethod
  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Numbers of rows, int64, and their weights, float64, both of shape [terms]."""


class RecursionTerms(Terms):
  """Those of a recursion that remembers rows of z, or nothing."""

  def __init__(self, past: interpreters.PastValues, max_terms: int):
    self._past = past
    self.max_terms = max_terms

  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The round's own row, and what would be read if it were kept."""
    step = self._past.step(this_round)
    if self.max_terms == 1:
      return this_round[tf.newaxis], step.fresh
    slots = step.read_slots()
    indices = tf.concat([[this_round], tf.gather(step.stamps, slots)], axis=0)
    weights = tf.concat([step.fresh, tf.gather(step.past[0], slots)], axis=0)
    return indices, weights


class ScaledTerms(Terms):
  """Those of other terms, with weights times a factor of the round."""

  def __init__(self, terms: Terms, factor: Callable[[tf.Tensor], tf.Tensor]):
    self._terms = terms
    self._factor = factor
    self.max_terms = terms.max_terms

  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The same rows, with scaled weights."""
    indices, weights = self._terms.of(this_round)
    return indices, self._factor(this_round) * weights


class MatrixTerms(Terms):
  """The entries that are not 0 of a noise matrix that is written out."""

  def __init__(self, matrix: np.ndarray):
    """Initializes the terms from a lower-triangular matrix."""
    self._matrix = matrix
    self.max_terms = len(matrix)

  def of(self, this_round: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Columns and entries of the round's line of the matrix."""
    row = tf.constant(self._matrix, tf.float64)[this_round]
    columns = tf.where(tf.not_equal(row, 0.0))[:, 0]
    return columns, tf.gather(row, columns)


class RedrawnNoise(streaming.StreamingNoise):
  """Sums over rows of z that are drawn in each round."""

  storage = 'redraw'

  def __init__(self, terms: Terms, rows: rows_lib.GaussianRows):
    """Initializes the noise from the rows to sum up, and their source."""
    super().__init__(rows)
    self._terms = terms

  def next(self, state: streaming.NoiseState) -> tuple[Any, streaming.NoiseState]:
    """Draws the rows that the round's noise is made of, and sums them up."""
    indices, weights = self._terms.of(state.round)

    def weighted(term: tf.Tensor) -> list[tf.Tensor]:
      weight = weights[term]
      row = self._rows.row(state.key, indices[term])
      return [tf.cast(weight, vector.dtype) * vector for vector in row]

    def add(term: tf.Tensor, total: list[tf.Tensor]) -> tuple[tf.Tensor, Any]:
      return term + 1, [t + v for t, v in zip(total, weighted(term))]

    noise = weighted(tf.constant(0))
    if self._terms.max_terms > 1:
      _, noise = tf.while_loop(
        lambda term, _: term < tf.size(indices),
        add,
        (tf.constant(1), noise),
        parallel_iterations=1,
      )
    after = state._replace(round=state.round + 1)
    return self._rows.layout.unflatten(noise), after
