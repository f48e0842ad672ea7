"""Sums and averages of records as they are: what private ones are compared with."""

from typing import Any

import dp_accounting
import tensorflow as tf

from tff_dp_aggregators.queries import records


class NoPrivacySumQuery(records.RecordSumQuery):
  """Sums records without bounding them and without noise.

  Nothing is hidden: a NaN or an infinity in a record is in the sum.

  Example:
    >>> query = NoPrivacySumQuery()
    >>> sample = query.initial_sample_state(tf.TensorSpec([2]))
    >>> for record in [[2.0, 0.0], [-1.0, 1.0]]:
    ...   sample = query.accumulate_record((), sample, tf.constant(record))
    >>> result, _, event = query.get_noised_result(sample, ())
    >>> result.numpy(), event
    (array([1., 1.], dtype=float32), NonPrivateDpEvent())
  """

  def get_noised_result(
    self, sample_state: Any, global_state: Any
  ) -> tuple[Any, Any, dp_accounting.DpEvent]:
    """Returns the sum, the state as it was, and `NonPrivateDpEvent`."""
    return sample_state, global_state, dp_accounting.NonPrivateDpEvent()

  def __repr__(self) -> str:
    return f'{type(self).__name__}()'


class NoPrivacyAverageQuery(records.RecordSumQuery):
  """Averages records, weighted if wanted, by the sum of their weights.

  The sample state is the weighted sum and the sum of weights, a float32 scalar. The
  average of nothing, or of weights that add up to zero, is not a number.

  Example:
    >>> query = NoPrivacyAverageQuery(tf.TensorSpec([2]))
    >>> sample = query.initial_sample_state()
    >>> for weight, record in [(1, [4.0, 0.0]), (3, [-1.0, 1.0])]:
    ...   sample = query.accumulate_record((), sample, tf.constant(record), weight)
    >>> query.get_noised_result(sample, ())[0].numpy()
    array([0.25, 0.75], dtype=float32)
  """

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns zeros like `template`, by default like the query's records, and 0."""
    return super().initial_sample_state(template), tf.constant(0.0)

  def preprocess_record(self, params: Any, record: Any) -> Any:
    """Returns the record and a weight of 1; errors as for a sum.

    (TFF refuses functions with an optional argument, so the weight is not one here.)
    """
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
  ) -> tuple[Any, Any, dp_accounting.DpEvent]:
    """Returns the average, the state as it was, and `NonPrivateDpEvent`."""
    total, weight = sample_state
    average = tf.nest.map_structure(
      lambda tensor: tensor / tf.cast(weight, tensor.dtype), total
    )
    return average, global_state, dp_accounting.NonPrivateDpEvent()

  def __repr__(self) -> str:
    return f'{type(self).__name__}()'
