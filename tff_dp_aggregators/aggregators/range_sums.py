"""Private histograms for sums over ranges, with any noise."""

from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import queries
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.queries.statistics import range_sums as range_sums_lib


def range_sums(
  nodes: factory.DPMeanFactory,
  *,
  arity: int = 2,
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> factory.DPMeanFactory:
  """A mean of histograms whose sums over ranges of bins have little noise.

  A value is one float vector, a client's histogram; so is the result. There is noise on
  the sums in a tree over the bins, and the result is what agrees best with all of them
  (arXiv:0904.0942), so that the noise in a range of bins grows with the logarithm of
  its length, as the square root of its length does with noise on the bins alone. What
  that costs is what the noise on the tree costs: `extract_dp_event` has it.

  Args:
    nodes: Makes the private mean of trees: a factory of any noise, such as
      `aggregators.gaussian`, that clips what a client says in all nodes together. A
      client with one entry of 1 has a tree of L2 norm sqrt(levels) and L1 norm levels,
      with `levels = len(queries.tree_levels(num_bins, arity))`; a longer tree is scaled
      down as a whole, so that every range comes out too small. It sums in no way of its
      own; give that here.
    arity: How many nodes have their sum in one above.
    record_aggregation_factory: Sums trees; `None` for `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory, for values that are one float vector.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If `arity` is below 2, or `nodes` sums in a way of its own, or releases
      sums over rounds.

  Example:
    >>> import numpy as np
    >>> from tff_dp_aggregators import aggregators
    >>> levels = len(queries.tree_levels(64))
    >>> nodes = aggregators.gaussian(
    ...   clip_norm=levels**0.5, noise_multiplier=0.5, clients_per_round=1000
    ... )
    >>> process = range_sums(nodes).create(tff.TensorType(np.float32, [64]))
    >>> histograms = [np.eye(64, dtype=np.float32)[i % 64] for i in range(1000)]
    >>> output = process.next(process.initialize(), histograms)
    >>> bool(abs(output.result[:32].sum() - 0.5) < 0.02)
    True
    >>> aggregators.extract_dp_event(output.state).all_rounds_so_far
    GaussianDpEvent(noise_multiplier=0.5)
  """
  if not isinstance(nodes, factory.DPMeanFactory):
    raise TypeError(
      'nodes must be a factory of private means, such as '
      f'aggregators.gaussian(clip_norm=..., ...); got one of type '
      f'{type(nodes).__name__}.'
    )
  if not nodes.sums_plainly:
    raise ValueError(
      'nodes sums records in a way of its own: give record_aggregation_factory to '
      'range_sums instead.'
    )
  checks.check_int('arity', arity, at_least=2)

  def build_query(record_specs: Any) -> queries.RangeSumsQuery:
    num_bins = range_sums_lib.num_bins_of(record_specs)
    num_nodes = sum(range_sums_lib.tree_levels(num_bins, arity))
    return queries.RangeSumsQuery(
      nodes.query_for(tf.TensorSpec([num_nodes], tf.float32)),
      record_specs=record_specs,
      arity=arity,
    )

  return factory.DPMeanFactory(
    build_query,
    clients_per_round=nodes.clients_per_round,
    min_clients=nodes.min_clients or None,
    record_aggregation_factory=record_aggregation_factory,
    specs_to_look_at=tf.TensorSpec([1], tf.float32),
  )
