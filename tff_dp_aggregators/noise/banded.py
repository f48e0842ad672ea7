"""Streaming noise of banded Toeplitz strategies.

`C w = z` solved forward: `w[t] = (z[t] - sum_i c[i] w[t - i]) / c[0]`, i from 1 to
`num_bands - 1` (arXiv:2306.08153). The last `num_bands - 1` outputs are kept in a
ring: round t overwrites slot `t mod (num_bands - 1)`.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tff_dp_aggregators import strategies
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import streaming


class BandedToeplitzNoise(streaming.StreamingNoise):
  """Rows of `C^-1 z` for a `BandedToeplitz` strategy."""

  def __init__(self, strategy: strategies.BandedToeplitz, rows: rows_lib.GaussianRows):
    """Initializes the noise.

    Args:
      strategy: Supplies the coefficients.
      rows: Source of the rows of z.
    """
    super().__init__(rows, strategy.noise_buffers)
    self._first = strategy.coefficients[0]
    self._lagged = np.asarray(strategy.coefficients[1:])

  def next(self, state: streaming.NoiseState) -> tuple[Any, streaming.NoiseState]:
    """See `StreamingNoise`."""
    fresh = self._rows.row(state.key, state.round)
    if not self._noise_buffers:
      noise = tf.nest.map_structure(self._divide_by_first, fresh)
      return noise, state._replace(round=state.round + 1)
    slots = self._noise_buffers
    slot = state.round % slots
    # Slot s holds the noise of lag 1 + (t - 1 - s) mod slots; zeros before round 0.
    lag = (state.round - 1 - tf.range(slots, dtype=tf.int64)) % slots
    weights = tf.gather(self._lagged, lag)

    def step(row: tf.Tensor, ring: tf.Tensor) -> tf.Tensor:
      past = tf.tensordot(tf.cast(weights, ring.dtype), ring, axes=1)
      return self._divide_by_first(row - past)

    noise = tf.nest.map_structure(step, fresh, state.buffers)
    buffers = streaming.store(state.buffers, slot, noise)
    return noise, streaming.NoiseState(state.key, state.round + 1, buffers)

  def _divide_by_first(self, tensor: tf.Tensor) -> tf.Tensor:
    return tensor / tf.constant(self._first, tensor.dtype)
