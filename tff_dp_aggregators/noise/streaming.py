"""What streaming noise is: pure `initialize` and `next` over an explicit state.

For a mechanism with noise matrix `D` (`Strategy.noise_matrix`; `C^-1` for a square
strategy) the t-th call of `next` emits `(D z)[t]` with z of unit variance. Scaling it
by clip norm and noise multiplier is the caller's.
"""

import abc
from typing import Any, NamedTuple

import tensorflow as tf

from tff_dp_aggregators.noise import rows as rows_lib


class NoiseState(NamedTuple):
  """Everything needed to continue; secret, because the key is.

  Attributes:
    key: Key of the rows of z, int64 of shape [2].
    round: Number of the round that `next` will serve, int64 scalar.
    buffers: Structure like a record, each tensor with one more, leading dimension of
      size `noise_buffers`; empty if the noise needs none.
  """

  key: Any
  round: Any
  buffers: Any


class StreamingNoise(abc.ABC):
  """Correlated noise, one round after the other.

  Both functions are pure: equal states give equal noise, bit by bit in each of eager
  mode, `tf.function` and TFF computations, and up to rounding between them.
  """

  def __init__(self, rows: rows_lib.GaussianRows, noise_buffers: int):
    """Initializes the noise.

    Args:
      rows: Source of the rows of z.
      noise_buffers: Model-sized buffers the state carries.
    """
    self._rows = rows
    self._noise_buffers = noise_buffers

  def initialize(self) -> NoiseState:
    """Returns the state before round 0."""
    buffers: Any = ()
    if self._noise_buffers:
      buffers = tf.nest.map_structure(
        lambda spec: tf.zeros([self._noise_buffers, *spec.shape], spec.dtype),
        self._rows.record_specs,
      )
    return NoiseState(self._rows.new_key(), tf.constant(0, tf.int64), buffers)

  @abc.abstractmethod
  def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
    """Returns the round's noise, a structure like a record, and the next state."""


def store(buffers: Any, slot: tf.Tensor, values: Any) -> Any:
  """Returns `buffers` with a structure like a record written to one slot."""

  def store_tensor(buffer: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    if value.shape.num_elements() == 0:  # TensorFlow refuses to scatter nothing.
      return buffer
    return tf.tensor_scatter_nd_update(buffer, [[slot]], [value])

  return tf.nest.map_structure(store_tensor, buffers, values)


class IndependentNoise(StreamingNoise):
  """Row t is row t of z: the Gaussian sum, `C = I`."""

  def __init__(self, rows: rows_lib.GaussianRows):
    """Initializes the noise from its source of rows."""
    super().__init__(rows, noise_buffers=0)

  def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
    """See `StreamingNoise`."""
    noise = self._rows.row(state.key, state.round)
    return noise, state._replace(round=state.round + 1)
