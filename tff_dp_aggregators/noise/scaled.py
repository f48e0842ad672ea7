"""Noise times a factor that changes in some rounds, wherever its past is kept."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_dp_aggregators.noise import streaming
from tff_dp_aggregators.strategies import recursion as recursion_lib


def factor_of(recursion: recursion_lib.Scaled) -> Callable[[tf.Tensor], tf.Tensor]:
  """What makes of a round, an int64 scalar, its factor, a float64 scalar."""

  def factor(this_round: tf.Tensor) -> tf.Tensor:
    starts = tf.constant(recursion.starts, tf.int64)
    part = tf.searchsorted(starts, this_round[tf.newaxis], side='right')[0] - 1
    return tf.gather(tf.constant(recursion.factors, tf.float64), part)

  return factor


class ScaledNoise(streaming.StreamingNoise):
  """Other noise, scaled as it is emitted.

  The state is that of the other noise, which remembers its rounds unscaled; so a round
  is scaled by its own number, whenever it is served.
  """

  def __init__(
    self,
    unscaled: streaming.StreamingNoise,
    factor: Callable[[tf.Tensor], tf.Tensor],
  ):
    self.storage = unscaled.storage
    self._unscaled = unscaled
    self._factor = factor

  def initialize(self) -> streaming.NoiseState:
    """The state of the other noise before round 0."""
    return self._unscaled.initialize()

  @property
  def num_buffers(self) -> int:
    """Model-sized buffers that the state carries."""
    return self._unscaled.num_buffers

  def next(self, state: streaming.NoiseState) -> tuple[Any, streaming.NoiseState]:
    """Scales the round's noise."""
    factor = self._factor(state.round)
    noise, after = self._unscaled.next(state)
    scaled = tf.nest.map_structure(
      lambda tensor: tf.cast(factor, tensor.dtype) * tensor, noise
    )
    return scaled, after
