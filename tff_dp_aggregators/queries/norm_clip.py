"""Clipping alone: what bounding contributions costs before there is any noise."""

import collections
from typing import Any

import dp_accounting
import tensorflow as tf

from tff_dp_aggregators.queries import clipping
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import records
from tff_dp_aggregators.queries import spent as spent_lib


class NormClipSumQuery(records.GridSumQuery):
  """Sums records clipped to a p-norm, without noise and without privacy.

  Records are clipped as `clipping.clip_to_grid` does it; one with an entry that is NaN
  or infinite counts as zero. The global state is the clip norm, a float32 scalar.

  Example:
    >>> query = NormClipSumQuery(
    ...   order=1, clip_norm=3.5, record_specs=tf.TensorSpec([2])
    ... )
    >>> state = query.initial_global_state()
    >>> params = query.derive_sample_params(state)
    >>> sample = query.initial_sample_state()
    >>> for record in [[3.0, -4.0], [0.5, 0.0]]:
    ...   sample = query.accumulate_record(params, sample, tf.constant(record))
    >>> query.get_noised_result(sample, state)[0].numpy().round(6)
    array([ 2., -2.], dtype=float32)
  """

  def __init__(self, *, order: float, clip_norm: float, record_specs: Any):
    """Initializes the query.

    Args:
      order: Which p-norm: 1 <= order <= infinity (`math.inf` clips each entry).
      clip_norm: Bound of that norm of one record.
      record_specs: Structure of float tensor specs like a record.

    Raises:
      TypeError: If a record tensor is not of a float dtype.
      ValueError: If a number is out of range, or a shape not fully defined.
    """
    super().__init__(record_specs)
    self._order = clipping.check_order(order)
    self._clip_norm = grid.check_clip_norm(clip_norm)

  @property
  def noise_multiplier(self) -> float:
    """0: there is no noise."""
    return 0.0

  @property
  def order(self) -> float:
    """Which norm is bounded."""
    return self._order

  @property
  def clip_norm(self) -> float:
    """Bound of one record."""
    return self._clip_norm

  def initial_global_state(self) -> tf.Tensor:
    """Returns the clip norm."""
    return tf.constant(self._clip_norm, tf.float32)

  def derive_sample_params(self, global_state: tf.Tensor) -> tf.Tensor:
    """Returns the clip norm, all that clients need to know.

    Args:
      global_state: The clip norm.
    """
    return global_state

  def encode_record(self, params: tf.Tensor, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the record clipped, in steps of the grid, and whether it was finite.

    Args:
      params: The clip norm, from `derive_sample_params`.
      record: Structure of float tensors.

    Raises:
      TypeError: If the record is not made of float tensors, or its dtypes are not
        those of `record_specs`.
      ValueError: If its structure or shapes are not those of `record_specs`.
    """
    steps = grid.steps_per_unit(params, noise_multiplier=0.0)
    clipped = clipping.clip_to_grid(self._check(record), params, steps, self._order)
    return clipped.integers, clipped.finite

  def get_noised_result(
    self, sample_state: Any, global_state: tf.Tensor
  ) -> tuple[Any, tf.Tensor, dp_accounting.DpEvent]:
    """Returns the sum, the state as it was, and `NonPrivateDpEvent`.

    Args:
      sample_state: Sum of preprocessed records.
      global_state: State before the round.
    """
    steps = grid.steps_per_unit(global_state, noise_multiplier=0.0)
    total = grid.to_floats(sample_state, self._record_specs, steps)
    return total, global_state, dp_accounting.NonPrivateDpEvent()

  def signal_and_noise(
    self, sample_state: Any, global_state: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the L2 norm of the exact sum, and 0.

    Args:
      sample_state: Sum of the round's preprocessed records; the norm is not private.
      global_state: The clip norm.
    """
    steps = grid.steps_per_unit(global_state, noise_multiplier=0.0)
    return grid.norm(sample_state, steps), tf.constant(0.0, tf.float64)

  def spent(self, global_state: tf.Tensor) -> spent_lib.GaussianSpent:
    """Returns that there is no noise: everything is told.

    Args:
      global_state: The clip norm.
    """
    del global_state
    none = tf.constant(0.0, tf.float64)
    return spent_lib.GaussianSpent(none, none)

  def derive_metrics(
    self, global_state: tf.Tensor
  ) -> 'collections.OrderedDict[str, tf.Tensor]':
    """Returns the clip norm under its name.

    Args:
      global_state: The clip norm.
    """
    return collections.OrderedDict(clip_norm=global_state)

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}(order={self._order:g}, clip_norm={self._clip_norm:g})'
    )
