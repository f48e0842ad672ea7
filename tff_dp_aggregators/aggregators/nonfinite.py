"""Counting clients whose update is NaN or infinite, and zeroing it.

The count is exact, not differentially private: it is for whoever runs the training,
like the clients' own metrics, and must not be released with the model.
"""

from typing import Any, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.queries import grid


class ZeroNonfiniteState(NamedTuple):
  """State of a `ZeroNonfiniteFactory` process."""

  inner: Any
  count_sum: Any


class ZeroNonfiniteFactory(tff.aggregators.UnweightedAggregationFactory):
  """Zeroes non-finite values before an inner aggregation, and counts them.

  A client with any NaN or infinity in its value contributes zeros instead. The
  measurements are those of the inner aggregation with `nonfinite_count` added.

  (`tff.aggregators.zeroing_factory` compares norms, which NaN escapes.)
  """

  def __init__(
    self,
    inner: tff.aggregators.UnweightedAggregationFactory,
    count_sum_factory: Optional[tff.aggregators.UnweightedAggregationFactory] = None,
  ):
    """Initializes the factory.

    Args:
      inner: What aggregates the values.
      count_sum_factory: What adds up the counts, int32 scalars; `None` means
        `tff.aggregators.SumFactory`. Pass a secure sum where the records are summed
        securely.

    Raises:
      TypeError: If an argument is not an unweighted aggregation factory.
    """
    if count_sum_factory is None:
      count_sum_factory = tff.aggregators.SumFactory()
    for name, value in (('inner', inner), ('count_sum_factory', count_sum_factory)):
      factory.check_unweighted(name, value)
    self._inner = inner
    self._count_sum_factory = count_sum_factory

  @property
  def inner(self) -> tff.aggregators.UnweightedAggregationFactory:
    """What aggregates the values."""
    return self._inner

  def create(self, value_type: Any) -> tff.templates.AggregationProcess:
    """Creates the process, with `nonfinite_count` among the inner measurements."""
    factory.check_value_type(value_type)
    inner = self._inner.create(value_type)
    count_sum = self._count_sum_factory.create(tff.TensorType(tf.int32.as_numpy_dtype))

    @tff.tensorflow.computation(value_type)
    @tracing.as_written
    def zero_and_count(value: Any) -> Any:
      kept, finite = grid.zero_unless_finite(value)
      return kept, tf.cast(tf.logical_not(finite), tf.int32)

    @tff.federated_computation
    def init_fn() -> Any:
      return tff.federated_zip(
        ZeroNonfiniteState(inner.initialize(), count_sum.initialize())
      )

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state: Any, value: Any) -> Any:
      inner_state, count_state = state
      value, is_nonfinite = tff.federated_map(zero_and_count, value)
      output = inner.next(inner_state, value)
      count = count_sum.next(count_state, is_nonfinite)
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(ZeroNonfiniteState(output.state, count.state)),
        output.result,
        factory.add_nonfinite_count(output.measurements, count.result),
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)
