"""Queries without noise, for comparison: sums of unclipped and of clipped records."""

import collections
from typing import Any

import dp_accounting
import tensorflow as tf

from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import matrix_mechanism


class NoPrivacySumQuery(matrix_mechanism.RecordSumQuery):
  """Sums records without bounds and without noise, including NaN and infinity."""

  def get_noised_result(
    self, sample_state: Any, global_state: Any
  ) -> matrix_mechanism.Released:
    """Returns the sum, the state as it was, and `NonPrivateDpEvent`."""
    return sample_state, global_state, dp_accounting.NonPrivateDpEvent()


class NoPrivacyAverageQuery(matrix_mechanism.RecordSumQuery):
  """Averages records with optional weights; it divides by the sum of the weights.

  The sample state is the weighted sum and the sum of weights, a float32 scalar. The
  average of nothing, or of weights that add up to zero, is not a number.
  """

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns zeros like `template`, and a sum of weights of 0."""
    return super().initial_sample_state(template), tf.constant(0.0)

  def preprocess_record(self, params: Any, record: Any) -> Any:
    """Returns the record and a weight of 1."""
    # The weight is not an argument, because TFF refuses optional arguments.
    return super().preprocess_record(params, record), tf.constant(1.0)

  def accumulate_record(
    self, params: Any, sample_state: Any, record: Any, weight: Any = 1
  ) -> Any:
    """Returns the sample state with one more record of this weight."""
    record, _ = self.preprocess_record(params, record)
    weighted = tf.nest.map_structure(
      lambda tensor: tf.cast(weight, tensor.dtype) * tensor, record
    )
    return self.accumulate_preprocessed_record(
      sample_state, (weighted, tf.cast(weight, tf.float32))
    )

  def get_noised_result(
    self, sample_state: Any, global_state: Any
  ) -> matrix_mechanism.Released:
    """Returns the average, the state as it was, and `NonPrivateDpEvent`."""
    total, weight = sample_state
    average = tf.nest.map_structure(
      lambda tensor: tensor / tf.cast(weight, tensor.dtype), total
    )
    return average, global_state, dp_accounting.NonPrivateDpEvent()


class NormClipSumQuery(matrix_mechanism.GridSumQuery):
  """Sums records clipped to a p-norm, without noise and without privacy.

  Records are clipped as `grid.clip_to_grid` does it; one with an entry that is NaN
  or infinite counts as zero. The global state is the clip norm, a float32 scalar.
  """

  # There is no noise.
  noise_multiplier = 0.0

  def __init__(self, *, order: float, clip_norm: float, record_specs: Any):
    """Initializes the query.

    Args:
      order: Order p of the p-norm, from 1 to infinity (`math.inf` clips each entry).
      clip_norm: Bound of that norm of one record.
      record_specs: Structure of float tensor specs like a record.

    Raises:
      TypeError: If a record tensor is not of a float dtype.
      ValueError: If a number is out of range, or a shape not fully defined.
    """
    super().__init__(record_specs)
    # Order of the norm.
    self.order = grid.check_order(order)
    # Bound of one record.
    self.clip_norm = grid.check_clip_norm(clip_norm)

  def initial_global_state(self) -> tf.Tensor:
    """Returns the clip norm."""
    return tf.constant(self.clip_norm, tf.float32)

  def derive_sample_params(self, global_state: tf.Tensor) -> tf.Tensor:
    """Returns the clip norm, all that clients need to know."""
    return global_state

  def encode_record(self, params: tf.Tensor, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the record clipped, in steps of the grid, and whether it was finite."""
    steps = grid.steps_per_unit(params, noise_multiplier=0.0)
    clipped = grid.clip_to_grid(self._check(record), params, steps, self.order)
    return clipped.integers, clipped.finite

  def get_noised_result(
    self, sample_state: Any, global_state: tf.Tensor
  ) -> matrix_mechanism.Released:
    """Returns the sum, the state as it was, and `NonPrivateDpEvent`."""
    steps = grid.steps_per_unit(global_state, noise_multiplier=0.0)
    total = grid.to_floats(sample_state, self._record_specs, steps)
    return total, global_state, dp_accounting.NonPrivateDpEvent()

  def signal_and_noise(
    self, sample_state: Any, global_state: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the L2 norm of the exact sum, and 0."""
    steps = grid.steps_per_unit(global_state, noise_multiplier=0.0)
    return grid.norm(sample_state, steps), tf.constant(0.0, tf.float64)

  def spent(self, global_state: tf.Tensor) -> matrix_mechanism.GaussianSpent:
    """Returns a noise multiplier of 0, that is, no privacy."""
    del global_state
    zero = tf.constant(0.0, tf.float64)
    return matrix_mechanism.GaussianSpent(zero, zero)

  def derive_metrics(self, global_state: tf.Tensor) -> matrix_mechanism.Metrics:
    """Returns the clip norm as `clip_norm`."""
    return collections.OrderedDict(clip_norm=global_state)

  def __repr__(self) -> str:
    return f'{type(self).__name__}(order={self.order:g}, clip_norm={self.clip_norm:g})'
