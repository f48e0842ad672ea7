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
    """Returns the sum, the state as it was, and `NonPrivateDpEvent`.

    Args:
      sample_state: Sum of preprocessed records.
      global_state: Any state, such as the empty one.
    """
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
    """Returns zeros like `template`, and a sum of weights of 0.

    Args:
      template: Structure of float tensors or their specs; `None` for `record_specs`.

    Raises:
      TypeError: If the template is not made of float tensors, or a dtype or container
        is not that of `record_specs`.
      ValueError: If its structure or a shape is not that of `record_specs`, or there is
        neither of the two.
    """
    return super().initial_sample_state(template), tf.constant(0.0)

  def preprocess_record(self, params: Any, record: Any) -> Any:
    """Returns the record and a weight of 1.

    (TFF refuses functions with an optional argument, so the weight is not one here.)

    Args:
      params: Not used.
      record: Structure of float tensors.

    Raises:
      TypeError: If the record is not made of float tensors, or its dtypes are not
        those of `record_specs`.
      ValueError: If its structure or shapes are not those of `record_specs`.
    """
    return super().preprocess_record(params, record), tf.constant(1.0)

  def accumulate_record(
    self, params: Any, sample_state: Any, record: Any, weight: Any = 1
  ) -> Any:
    """Returns the sample state with one more record of this weight.

    Args:
      params: Not used.
      sample_state: Weighted sum of records so far, and the sum of weights.
      record: Structure of float tensors.
      weight: How often the record counts; any number.

    Raises:
      TypeError: If the record is not made of float tensors, or its dtypes are not
        those of `record_specs`.
      ValueError: If its structure or shapes are not those of `record_specs`.
    """
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
    """Returns the average, the state as it was, and `NonPrivateDpEvent`.

    Args:
      sample_state: Weighted sum of records, and the sum of weights.
      global_state: Any state, such as the empty one.
    """
    total, weight = sample_state
    average = tf.nest.map_structure(
      lambda tensor: tensor / tf.cast(weight, tensor.dtype), total
    )
    return average, global_state, dp_accounting.NonPrivateDpEvent()

  def __repr__(self) -> str:
    return f'{type(self).__name__}()'
