"""Private quantiles of clients' numbers, with any noise."""

from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import queries
from tff_dp_aggregators.aggregators import factory

_COUNT_SPEC = tf.TensorSpec([], tf.float32)


def quantile(
  counts: factory.DPMeanFactory,
  *,
  initial_estimate: float,
  target_quantile: float = 0.5,
  learning_rate: float = 0.2,
  geometric_update: bool = True,
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """A quantile of clients' numbers, estimated over rounds (arXiv:1905.03871).

  A value is one float number, such as a client's loss, how many examples it has, or the
  norm of its update. It says whether that is at most the estimate; the noised fraction
  of those that are moves the estimate, which is the result of a round. What that costs
  is what the counts cost: `extract_dp_event` has it.

  The estimate is private and may be used for anything: to clip or zero with, say, in
  another run. As a part of `joint` it accompanies a model. The measurements have
  `quantile_estimate` and `fraction_below` under `dp_query_metrics`.

  Args:
    counts: Makes the private mean of what clients say, 1/2 or -1/2: a factory with
      `clip_norm=0.5`, of any noise, such as `aggregators.gaussian` or
      `aggregators.tree`. Its participation and `clients_per_round` are those of the
      quantile. It sums in no way of its own; give that here.
    initial_estimate: The first estimate; positive if updates are geometric.
    target_quantile: Which fraction of numbers is to be at most the estimate.
    learning_rate: The estimate changes by a factor of at most exp(learning_rate) a
      round or, if updates are not geometric, by at most that.
    geometric_update: Whether the estimate is multiplied, for numbers that are positive,
      or added to.
    record_aggregation_factory: Sums what clients say; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory, for values that are one float number.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range, or `counts` has another clip norm, sums in
      a way of its own, or releases sums over rounds.

  Example:
    >>> import numpy as np
    >>> from tff_dp_aggregators import aggregators
    >>> counts = aggregators.gaussian(
    ...   clip_norm=0.5, noise_multiplier=2.0, clients_per_round=100
    ... )
    >>> aggregator = quantile(counts, initial_estimate=1.0, target_quantile=0.9)
    >>> process = aggregator.create(tff.TensorType(np.float32))
    >>> losses = [np.float32(number) for number in range(100)]
    >>> output = process.next(process.initialize(), losses)
    >>> bool(output.result > 1.1)  # Nearly all are above 1.
    True
    >>> aggregators.extract_dp_event(output.state).all_rounds_so_far
    GaussianDpEvent(noise_multiplier=2.0)
  """
  if not isinstance(counts, factory.DPMeanFactory):
    raise TypeError(
      'counts must be a factory of private means, such as '
      f'aggregators.gaussian(clip_norm=0.5, ...); got one of type '
      f'{type(counts).__name__}.'
    )
  if not counts.sums_plainly:
    raise ValueError(
      'counts sums records in a way of its own: give record_aggregation_factory to '
      'quantile instead.'
    )

  def build_query(record_specs: Any) -> queries.QuantileQuery:
    return queries.QuantileQuery(
      counts.query_for(_COUNT_SPEC),
      initial_estimate=initial_estimate,
      clients_per_round=counts.clients_per_round,
      target_quantile=target_quantile,
      learning_rate=learning_rate,
      geometric_update=geometric_update,
      record_specs=record_specs,
    )

  return factory.DPMeanFactory(
    build_query,
    clients_per_round=counts.clients_per_round,
    min_clients=counts.min_clients or None,
    record_aggregation_factory=record_aggregation_factory,
  )
