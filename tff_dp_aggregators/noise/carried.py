"""Noise whose past is carried in the state."""

import abc
from typing import Any, Generic, TypeVar, Union

import tensorflow as tf

from tff_dp_aggregators.noise import recursions
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import streaming


def build(
  recursion: Union[recursions.PastValues, recursions.Decays],
  rows: rows_lib.GaussianRows,
) -> streaming.StreamingNoise:
  """The noise of a recursion with rows of z from `rows`."""
  if isinstance(recursion, recursions.Decays):
    return CarriedDecays(recursion, rows)
  return CarriedPastValues(recursion, rows)


_Recursion = TypeVar('_Recursion', recursions.PastValues, recursions.Decays)


class CarriedNoise(streaming.StreamingNoise, Generic[_Recursion]):
  """Keeps what a round needs of earlier ones in the state, a buffer for each slot."""

  storage = 'state'

  def __init__(self, recursion: _Recursion, rows: rows_lib.GaussianRows):
    """Initializes the noise; see `build`."""
    super().__init__(rows)
    self._recursion: _Recursion = recursion

  @property
  def num_buffers(self) -> int:
    """See `StreamingNoise`."""
    return self._recursion.num_slots

  def next(self, state: streaming.NoiseState) -> tuple[Any, streaming.NoiseState]:
    """See `StreamingNoise`."""
    noise, buffers = self._serve(state)
    after = streaming.NoiseState(state.key, state.round + 1, buffers)
    return self._rows.layout.unflatten(noise), after

  @abc.abstractmethod
  def _serve(
    self, state: streaming.NoiseState
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The round's noise, and the buffers after it."""


class CarriedPastValues(CarriedNoise[recursions.PastValues]):
  """Writes to one buffer a round."""

  def _serve(
    self, state: streaming.NoiseState
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    step = self._recursion.step(state.round)
    noise, buffers = [], []
    for row, buffer in zip(self._rows.row(state.key, state.round), state.buffers):
      past = tf.linalg.matmul(tf.cast(step.past, row.dtype), buffer)
      made = tf.cast(step.fresh, row.dtype)[:, tf.newaxis] * row + past
      noise.append(made[0])
      kept = {'noise': made[0], 'row': row, 'other': made[-1]}[self._recursion.keeps]
      buffers.append(tf.tensor_scatter_nd_update(buffer, [[step.slot]], [kept]))
    return noise, buffers


class CarriedDecays(CarriedNoise[recursions.Decays]):
  """Writes to all buffers in each round."""

  def _serve(
    self, state: streaming.NoiseState
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    before = [tf.unstack(buffer) for buffer in state.buffers]
    noise, after = self._recursion.advance(self._rows, state.key, state.round, before)
    return noise, [tf.stack(sums) for sums in after]
