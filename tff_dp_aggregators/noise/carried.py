"""Noise whose past is carried in the state."""

import abc
from typing import Any, Generic, TypeVar

import tensorflow as tf

from tff_dp_aggregators.noise import interpreters
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import streaming

_Past = TypeVar('_Past', interpreters.PastValues, interpreters.Decays)


class CarriedNoise(streaming.StreamingNoise, Generic[_Past]):
  """Keeps what a round needs of earlier ones in the state, a buffer for each slot."""

  storage = 'state'

  def __init__(self, past: _Past, rows: rows_lib.GaussianRows):
    """Initializes the noise.

    Args:
      past: Interprets the recursion.
      rows: Source of the rows of z.
    """
    super().__init__(rows)
    self._past: _Past = past

  @property
  def num_buffers(self) -> int:
    """Buffers that the state carries, one for each slot."""
    return self._past.num_slots

  def next(self, state: streaming.NoiseState) -> tuple[Any, streaming.NoiseState]:
    """Makes the round's noise of its row of z and the buffers, and changes these.

    Args:
      state: From `initialize` or the round before.

    Returns:
      The noise, a structure like a record, and the next state.
    """
    noise, buffers = self._serve(state)
    kept = streaming.hidden_buffers(buffers)
    after = streaming.NoiseState(state.key, state.round + 1, kept)
    return self._rows.layout.unflatten(noise), after

  @abc.abstractmethod
  def _serve(
    self, state: streaming.NoiseState
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The round's noise, and the buffers after it."""


class CarriedPastValues(CarriedNoise[interpreters.PastValues]):
  """Writes to one buffer a round."""

  def _serve(
    self, state: streaming.NoiseState
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    step = self._past.step(state.round)
    noise, buffers = [], []
    for row, buffer in zip(self._rows.row(state.key, state.round), state.buffers):
      sums = tf.linalg.matmul(tf.cast(step.past, buffer.dtype), buffer)
      made = step.fresh[:, tf.newaxis] * row + tf.cast(sums, row.dtype)
      noise.append(made[0])
      kept = {'noise': made[0], 'row': row, 'other': made[-1]}[self._past.keeps]
      kept = tf.cast(kept, buffer.dtype)
      buffers.append(tf.tensor_scatter_nd_update(buffer, [[step.slot]], [kept]))
    return noise, buffers


class CarriedDecays(CarriedNoise[interpreters.Decays]):
  """Writes to all buffers in each round."""

  def _serve(
    self, state: streaming.NoiseState
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    before = [tf.unstack(buffer) for buffer in state.buffers]
    noise, after = self._past.advance(self._rows, state.key, state.round, before)
    return noise, [tf.stack(sums) for sums in after]
