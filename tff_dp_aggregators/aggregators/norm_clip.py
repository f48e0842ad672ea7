"""Clipping alone: what bounding contributions costs before there is any noise."""

from typing import Any, Optional

import tensorflow_federated as tff

from tff_dp_aggregators import queries
from tff_dp_aggregators.aggregators import factory


def norm_clip(
  *,
  clip_norm: float,
  clients_per_round: float,
  order: float = 2.0,
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """The mean of clipped values, without noise and without privacy.

  What is left of a private mean if its noise is taken away: to see what clipping
  does, and as a sum that no client can move far.

  Args:
    clip_norm: Bound of one client's contribution to one round, in the p-norm of
      `order`.
    clients_per_round: Denominator of the mean.
    order: Which p-norm: 1 <= order <= infinity (`math.inf` clips each entry).
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory. What `extract_dp_event` says of its states is
    `NonPrivateDpEvent`.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range.

  Example:
    >>> import numpy as np
    >>> process = norm_clip(clip_norm=1.0, clients_per_round=2, order=1).create(
    ...   tff.TensorType(np.float32, [2])
    ... )
    >>> values = [np.float32([3.0, -1.0]), np.float32([0.5, 0.0])]
    >>> process.next(process.initialize(), values).result.round(3)
    array([ 0.625, -0.125], dtype=float32)
  """

  def build_query(record_specs: Any) -> queries.NormClipSumQuery:
    return queries.NormClipSumQuery(
      order=order, clip_norm=clip_norm, record_specs=record_specs
    )

  return factory.DPMeanFactory(
    build_query,
    clients_per_round=clients_per_round,
    record_aggregation_factory=record_aggregation_factory,
  )
