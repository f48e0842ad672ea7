"""Counting clients whose update is NaN or infinite, and zeroing it.

The count is exact, not differentially private: it is for whoever runs the training,
like the clients' own metrics, and must not be released with the model.
"""

import collections
from typing import Any, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.queries import clipping

# Name of the count in a process's measurements.
NONFINITE_COUNT = 'nonfinite_count'


class ZeroNonfiniteState(NamedTuple):
  """State of a `ZeroNonfiniteFactory` process.

  Attributes:
    inner: State of the inner aggregation.
    count_sum: State of the sum of counts.
  """

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
      check_unweighted(name, value)
    self._inner = inner
    self._count_sum_factory = count_sum_factory

  @property
  def inner(self) -> tff.aggregators.UnweightedAggregationFactory:
    """What aggregates the values."""
    return self._inner

  def create(self, value_type: Any) -> tff.templates.AggregationProcess:
    """Creates the process.

    Args:
      value_type: Type of a client's value: a structure of float tensors.

    Returns:
      A process with the result of the inner one, and `nonfinite_count` among the
      measurements.

    Raises:
      TypeError: If it is none, such as a sequence.
    """
    check_value_type(value_type)
    inner = self._inner.create(value_type)
    count_sum = self._count_sum_factory.create(tff.TensorType(tf.int32.as_numpy_dtype))

    @tff.tensorflow.computation(value_type)
    @tracing.as_written
    def zero_and_count(value: Any) -> Any:
      kept, finite = clipping.zero_unless_finite(value)
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
        add_nonfinite_count(output.measurements, count.result),
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)


def check_unweighted(name: str, value: Any) -> None:
  """Refuses what is not an unweighted aggregation factory."""
  if isinstance(value, tff.aggregators.UnweightedAggregationFactory):
    return
  reason = ''
  if isinstance(value, tff.aggregators.WeightedAggregationFactory):
    reason = (
      ' A weighted mean divides by the sum of weights, such as numbers of examples: '
      'data of clients, released without noise, that no privacy analysis here covers. '
      'Give the factory of an unweighted mean, such as aggregators.gaussian(...), as '
      'it is, without tff.aggregators.as_weighted_aggregator.'
    )
  raise TypeError(
    f'{name} must be a tff.aggregators.UnweightedAggregationFactory, got '
    f'{type(value).__name__}.{reason}'
  )


def check_value_type(value_type: Any, path: str = '') -> None:
  """Refuses types that are no structures of tensors, as TFF's factories do."""
  if isinstance(value_type, tff.TensorType):
    return
  if not isinstance(value_type, tff.StructType):  # A sequence, or a function.
    where = f'has {value_type} at {path}' if path else f'is {value_type}'
    kind = type(value_type).__name__
    raise TypeError(
      f'value_type {where}, a {kind}, and must be a structure of tensors: only what '
      'has the same shape on all clients can be clipped and added up. Make tensors of '
      "a client's value before it is aggregated: a sum over the sequence, say."
    )
  if not isinstance(value_type, tff.StructWithPythonType):
    where = f' at {path}' if path else ''
    raise TypeError(
      f'value_type {value_type}{where} has no Python container, as TensorFlow needs '
      'one: make it with tff.to_type, of dicts, lists and tuples.'
    )
  for number, (name, each) in enumerate(tff.structure.iter_elements(value_type)):
    key = number if name is None else name
    check_value_type(each, f'{path}.{key}' if path else str(key))


def add_nonfinite_count(measurements: Any, count: Any) -> Any:
  """Adds a count to measurements, inside a federated computation.

  Returns the measurements as an ordered dict in which `nonfinite_count` is `count`,
  plus what stood there before. Measurements without names go under `aggregation`.
  """

  @tff.tensorflow.computation(
    measurements.type_signature.member, count.type_signature.member
  )
  @tracing.as_written
  def merge(measured: Any, counted: Any) -> Any:
    if not isinstance(measured, collections.abc.Mapping):
      measured = {'aggregation': measured} if tf.nest.flatten(measured) else {}
    merged = collections.OrderedDict(measured)
    merged[NONFINITE_COUNT] = counted + merged.get(NONFINITE_COUNT, 0)
    return merged

  return tff.federated_map(merge, (measurements, count))
