"""Noise whose past is carried in the state."""

from typing import Any

import tensorflow as tf

from tff_dp_aggregators.noise import interpreters
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import streaming


class CarriedNoise(streaming.StreamingNoise):
  """Keeps what a round needs of earlier ones in the state, a buffer for each slot."""

  storage = 'state'

  def __init__(self, past: interpreters.Past, rows: rows_lib.GaussianRows):
    super().__init__(rows)
    self._past = past

  @property
  def num_buffers(self) -> int:
    """Buffers that the state carries, one for each slot."""
    return self._past.num_slots

  def next(self, state: streaming.NoiseState) -> tuple[Any, streaming.NoiseState]:
    """Makes the round's noise of its row of z and the buffers, and changes these."""
    memory = _Buffers(state.buffers)
    noise = self._past.advance(self._rows, state.key, state.round, memory)
    kept = streaming.hidden_buffers(memory.after)
    after = streaming.NoiseState(state.key, state.round + 1, kept)
    return self._rows.layout.unflatten(noise), after


class _Buffers(interpreters.Memory):
  """Tensors of shape [slots, size].

  Attributes:
    after: Them after the round.
  """

  def __init__(self, buffers: Any):
    self._buffers = list(buffers)
    self.after = list(buffers)

  def weighted(self, position: int, step: interpreters.Step) -> tf.Tensor:
    buffer = self._buffers[position]
    return tf.linalg.matmul(tf.cast(step.past, buffer.dtype), buffer)

  def read(
    self, position: int, slots: list[tf.Tensor], stamp: tf.Tensor
  ) -> list[tf.Tensor]:
    del slots, stamp  # A round reads all of them, or `weighted`.
    return tf.unstack(self._buffers[position])

  def write(
    self, position: int, slots: list[tf.Tensor], vectors: list[tf.Tensor]
  ) -> None:
    before = self._buffers[position]
    if len(vectors) == before.shape[0]:
      self.after[position] = tf.stack(vectors)  # In the order of the slots.
    else:
      indices = tf.stack(slots)[:, tf.newaxis]
      self.after[position] = tf.tensor_scatter_nd_update(before, indices, vectors)
