"""Factories of private statistics, with any noise: quantiles and histograms."""

from typing import Any

import tensorflow as tf

from tff_dp_aggregators import queries
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.queries import statistics

_COUNT_SPEC = tf.TensorSpec([], tf.float32)


def quantile(
  counts: factory.DPMeanFactory,
  *,
  initial_estimate: float,
  target_quantile: float = 0.5,
  learning_rate: float = 0.2,
  geometric_update: bool = True,
  record_aggregation_factory: factory.SumOfRecords = None,
) -> factory.DPMeanFactory:
  """A quantile of clients' numbers, estimated over rounds (arXiv:1905.03871).

  A value is one float number, such as a client's loss; the result of a round is the
  estimate (`queries.QuantileQuery`). The privacy cost is that of the counts. It can be
  a part of `joint` to accompany a model. The measurements have `quantile_estimate` and
  `fraction_below` under `dp_query_metrics`.

  `queries.QuantileQuery` explains the numbers. The other arguments are:

  * `counts`: Factory of the private mean of the clients' 1/2 or -1/2: with any noise,
    `clip_norm=0.5`, the participation of the quantile's clients, and no
    `record_aggregation_factory` of its own.
  * `record_aggregation_factory`: Sums the clients' 1/2 or -1/2; `None` for
    `tff.aggregators.SumFactory`.

  Raises:
    TypeError: If an argument has the wrong type.
    ValueError: If a number is out of range, or `counts` has another clip norm or its
      own `record_aggregation_factory`, or releases sums over rounds.

  Example:
    >>> import numpy as np
    >>> import tensorflow_federated as tff
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
  """
  factory.check_part('counts', counts, 'quantile')

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
    draws_are_secret=counts.draws_are_secret,
  )


def range_sums(
  nodes: factory.DPMeanFactory,
  *,
  arity: int = 2,
  record_aggregation_factory: factory.SumOfRecords = None,
) -> factory.DPMeanFactory:
  """A mean of histograms whose sums over ranges of bins have little noise.

  A value is one float vector, a client's histogram. The result is a histogram, too: the
  least-squares fit to the noised sums of a tree over the bins
  (`queries.RangeSumsQuery`). The privacy cost is that of the noise on the tree.

  Args:
    nodes: Factory of the private mean of trees: with any noise, such as
      `aggregators.gaussian`, and without its own `record_aggregation_factory`. It clips
      all nodes of a client together: a client with one entry of 1 has a tree of L2 norm
      sqrt(levels) and L1 norm levels, with
      `levels = len(queries.tree_levels(num_bins, arity))`; a tree with a larger norm is
      scaled down as a whole.
    arity: Number of children of a node.
    record_aggregation_factory: Sums trees; `None` for `tff.aggregators.SumFactory`.

  Raises:
    TypeError: If an argument has the wrong type.
    ValueError: If `arity` is below 2, or `nodes` has its own
      `record_aggregation_factory`, or releases sums over rounds.

  Example:
    >>> import numpy as np
    >>> import tensorflow_federated as tff
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
  factory.check_part('nodes', nodes, 'range_sums')
  checks.check_int('arity', arity, at_least=2)

  def build_query(record_specs: Any) -> queries.RangeSumsQuery:
    num_bins = statistics.num_bins_of(record_specs)
    num_nodes = sum(statistics.tree_levels(num_bins, arity))
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
    sample_specs=tf.TensorSpec([1], tf.float32),
    draws_are_secret=nodes.draws_are_secret,
  )
