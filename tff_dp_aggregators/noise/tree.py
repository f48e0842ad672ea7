"""Streaming noise of the binary tree, with both of its estimators.

z has one row per complete node, numbered as in `strategies.tree.node_index`. Round t
completes its leaf and then one node of each level l with `2^l` dividing `t + 1`; the
prefix of rounds 0 to t is covered by one node per 1-bit of `t + 1`.

The plain estimator draws those nodes again from the key and carries nothing.
Honaker's carries, a level, the unnormalised estimate of the node that covers the
current prefix there: `u = z[node] + (u[left] + u[right]) / 2`.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tff_dp_aggregators import strategies
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import streaming


def _node_index(last_round: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
  """`strategies.tree.node_index` on int64 tensors."""
  ones = tf.cast(tf.raw_ops.PopulationCount(x=last_round), tf.int64)
  return 2 * last_round - ones + level


def _has_bit(number: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
  return tf.equal(tf.bitwise.right_shift(number, level) % 2, 1)


class TreeNoise(streaming.StreamingNoise):
  """Noise of the prefix-sum estimates, or of what each round adds to them."""

  def __init__(
    self,
    strategy: strategies.BinaryTree,
    rows: rows_lib.GaussianRows,
    cumulative: bool = False,
  ):
    """Initializes the noise.

    Args:
      strategy: Supplies the number of rounds and the estimator.
      rows: Source of the rows of z.
      cumulative: If true, `next` emits the noise of the prefix sum, `(B z)[t]`; if
        false, as every streaming noise does, what the round adds to it.

    Raises:
      ValueError: If the strategy restarts, which cannot be streamed yet.
    """
    if strategy.restart_every is not None:
      raise ValueError(
        'trees with restarts cannot be streamed yet: restart_every must be None, got '
        f'{strategy.restart_every}.'
      )
    super().__init__(rows, strategy.noise_buffers)
    self._num_levels = strategy.num_levels
    self._cumulative = cumulative
    self._weights = np.array(
      [strategies.tree.honaker_weight(level) for level in range(self._num_levels)]
    )

  def next(self, state: streaming.NoiseState) -> tuple[Any, streaming.NoiseState]:
    """See `StreamingNoise`."""
    buffers = self._complete_nodes(state) if self._noise_buffers else ()
    after = streaming.NoiseState(state.key, state.round + 1, buffers)
    noise = self._prefix_noise(after)
    if not self._cumulative:
      noise = tf.nest.map_structure(tf.subtract, noise, self._prefix_noise(state))
    return noise, after

  def _prefix_noise(self, state: streaming.NoiseState) -> Any:
    """Noise of the estimated sum of the rounds before `state.round`."""
    if self._noise_buffers:
      return self._honaker_prefix_noise(state)
    return self._plain_prefix_noise(state)

  def _honaker_prefix_noise(self, state: streaming.NoiseState) -> Any:
    levels = tf.range(self._num_levels, dtype=tf.int64)
    occupied = tf.cast(_has_bit(state.round, levels), tf.float64)
    weights = occupied * self._weights
    return tf.nest.map_structure(
      lambda buffer: tf.tensordot(tf.cast(weights, buffer.dtype), buffer, axes=1),
      state.buffers,
    )

  def _plain_prefix_noise(self, state: streaming.NoiseState) -> Any:
    zeros = tf.nest.map_structure(
      lambda spec: tf.zeros(spec.shape, spec.dtype), self._rows.record_specs
    )

    def add(level: tf.Tensor, total: Any) -> tuple[tf.Tensor, Any]:
      def with_node() -> Any:
        covered = tf.bitwise.left_shift(
          tf.bitwise.right_shift(state.round, level), level
        )
        node = self._rows.row(state.key, _node_index(covered - 1, level))
        return tf.nest.map_structure(tf.add, total, node)

      return level + 1, tf.cond(_has_bit(state.round, level), with_node, lambda: total)

    _, total = tf.while_loop(
      lambda level, _: level < self._num_levels,
      add,
      (tf.constant(0, tf.int64), zeros),
    )
    return total

  def _complete_nodes(self, state: streaming.NoiseState) -> Any:
    """Estimates the nodes that the round completes; stores the highest one."""
    this_round = state.round

    def is_right_child(level: tf.Tensor, estimate: Any) -> tf.Tensor:
      del estimate
      return _has_bit(this_round, level)

    def parent(level: tf.Tensor, estimate: Any) -> tuple[tf.Tensor, Any]:
      fresh = self._rows.row(state.key, _node_index(this_round, level + 1))
      combined = tf.nest.map_structure(
        lambda node, left, right: node + 0.5 * (left[level] + right),
        fresh,
        state.buffers,
        estimate,
      )
      return level + 1, combined

    leaf_level = tf.constant(0, tf.int64)
    leaf = self._rows.row(state.key, _node_index(this_round, leaf_level))
    level, estimate = tf.while_loop(is_right_child, parent, (leaf_level, leaf))
    return streaming.store(state.buffers, level, estimate)
