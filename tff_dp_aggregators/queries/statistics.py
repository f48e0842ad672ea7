"""Statistics of clients' numbers: quantiles, and histograms for sums over ranges.

These queries post-process the results of an inner query. Noise and events are those of
the inner query.
"""

import abc
import collections
import math
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
import tensorflow as tf

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import matrix_mechanism


class QueryAround(matrix_mechanism.GridSumQuery):
  """Base class of queries that convert records for, and results of, an inner query.

  `_inner_state` and `_inner_params` return the inner query's part of state and params.
  """

  def __init__(self, inner: matrix_mechanism.GridSumQuery, record_specs: Any):
    super().__init__(record_specs)
    self._inner = inner
    self.clients_draw_keys = inner.clients_draw_keys
    self.clients_add_noise = inner.clients_add_noise
    self.min_clients = inner.min_clients

  def _inner_state(self, global_state: Any) -> Any:
    return global_state

  def _inner_params(self, params: Any) -> Any:
    return params

  @abc.abstractmethod
  def _inner_record(self, params: Any, record: Any) -> Any:
    """Converts a record to a record of the inner query."""

  def _to_record(self, tensor: tf.Tensor) -> Any:
    (spec,) = tf.nest.flatten(self._record_specs)
    return tf.nest.pack_sequence_as(self._record_specs, [tf.cast(tensor, spec.dtype)])

  @property
  def noise_multiplier(self) -> float:
    """Scale of the inner query's noise over its clip norm."""
    return self._inner.noise_multiplier

  @property
  def participation(self) -> strategies.Participation:
    """Participation that the privacy analysis assumes."""
    return self._inner.participation

  @property
  def generator(self) -> str:
    """Generator of the random words for the noise: 'chacha20' or 'philox'."""
    return self._inner.generator

  @property
  def seed_identity(self) -> str:
    """'secret', or the seed and stream of the noise: 'seed 7, stream 0'."""
    return getattr(self._inner, 'seed_identity', 'secret')

  def run_event(self) -> dp_accounting.DpEvent:
    """The inner query's event of all rounds together."""
    return self._inner.run_event()

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns the inner query's sum of no records."""
    if template is not None:
      super().initial_sample_state(template)
    return self._inner.initial_sample_state()

  def encode_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the inner query's encoding of a record, and whether it was finite."""
    inner = self._inner_record(params, record)
    return self._inner.encode_record(self._inner_params(params), inner)

  def encode_without_noise(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the result of `encode_record` without the client's noise."""
    inner = self._inner_record(params, record)
    return self._inner.encode_without_noise(self._inner_params(params), inner)

  def round_key(self, global_state: Any) -> Any:
    """Returns the key of the noise of a round's clients; empty if they add none."""
    return self._inner.round_key(self._inner_state(global_state))

  def with_noise_of(
    self, params: Any, sample_state: Any, round_key: Any, number: tf.Tensor
  ) -> Any:
    """Returns the sum with the noise of client `number` added, if clients add noise."""
    return self._inner.with_noise_of(
      self._inner_params(params), sample_state, round_key, number
    )

  def spent(self, global_state: Any) -> matrix_mechanism.Spent:
    """Returns the privacy spent by all rounds up to a state, and by the last one."""
    return self._inner.spent(self._inner_state(global_state))

  def derive_metrics(self, global_state: Any) -> matrix_mechanism.Metrics:
    """Returns the metrics of the inner query."""
    return collections.OrderedDict(
      self._inner.derive_metrics(self._inner_state(global_state))
    )


# A quantile of clients' numbers over rounds, estimated from noised counts.
#
# Each client sends 1/2 if its number is at most the estimate, and else -1/2, and after
# each round (Andrew et al., arXiv:1905.03871)
#
#     estimate <- estimate * exp(-learning_rate * (fraction - target_quantile)),
#
# with the noised fraction of those below, or, for numbers that may be negative,
#
#     estimate <- estimate - learning_rate * (fraction - target_quantile).
#
# **Privacy** is that of the counts, which are summed by any query with clip norm 1/2: a
# client adds 1/2 or -1/2 to the sum, whatever the estimate is, and an absent client
# adds nothing. Contributions depend on results of earlier rounds, but this costs no
# privacy: the guarantee, with independent noise or that of a strategy, holds for
# adaptively chosen contributions (see `adaptive_clipping` for the reasons).

# A client adds this number, or its negative, to a count.
HALF = 0.5
_NUMBER_SPEC = tf.TensorSpec([], tf.float32)


class QuantileState(NamedTuple):
  """State of a query between rounds."""

  quantile_estimate: Any  # Numbers of the next round are compared with it, float32.
  # Noised fraction of the last round, float32; 0.5 before the first round.
  fraction_below: Any
  counts: Any  # State of the count query; it may hold a secret key.
  belongs_to: Any  # The `mechanism_text` of the mechanism.


class QuantileParams(NamedTuple):
  """Parameters that clients receive."""

  quantile_estimate: Any  # The client's number is compared with it, float32.
  counts: Any  # Parameters of the count query.


class QuantileQuery(QueryAround):
  """Estimates a quantile of clients' numbers, one number of each (1905.03871).

  It corresponds to TF Privacy's `QuantileEstimatorQuery` and, with a tree as the count
  query, to its `TreeQuantileEstimatorQuery`. The result of a round is the new estimate.
  A number that is NaN or infinite is not counted, neither as below nor as above.

  Geometric estimates stay within 2^-80 and 2^80, others within -2^80 and 2^80.
  """

  def __init__(
    self,
    count_query: matrix_mechanism.GridSumQuery,
    *,
    initial_estimate: float,
    clients_per_round: float,
    target_quantile: float = 0.5,
    learning_rate: float = 0.2,
    geometric_update: bool = True,
    record_specs: Any = _NUMBER_SPEC,
  ):
    """Initializes the query.

    Args:
      count_query: Sums the clients' 1/2 or -1/2, with any noise: a query with
        `clip_norm=0.5` for float32 scalar records that releases the sum of each round.
      initial_estimate: The first estimate; positive if updates are geometric.
      clients_per_round: Expected number of clients in a round, by which counts are
        divided. It is fixed, so that the number of clients stays private.
      target_quantile: Target fraction of numbers that are at most the estimate.
      learning_rate: The estimate changes by a factor of at most exp(learning_rate) a
        round or, if updates are not geometric, by at most `learning_rate`.
      geometric_update: Whether updates multiply the estimate, or add to it.
      record_specs: Structure like a record, with the spec of one float number.

    Raises:
      TypeError: If an argument has the wrong type.
      ValueError: If a number is out of range, or a query or record does not fit.
    """
    _check_inner('count_query', count_query, _NUMBER_SPEC)
    clip_norm = getattr(count_query, 'clip_norm', None)
    if clip_norm != HALF:
      raise ValueError(
        'count_query must have clip_norm=0.5, which is what each client adds, up to '
        f'its sign; got {clip_norm} of {count_query!r}.'
      )
    super().__init__(count_query, record_specs)
    # The query that counts.
    self.count_query = count_query
    _single_spec(self._record_specs, rank=0)
    checks.check_number('initial_estimate', initial_estimate)
    self._clients_per_round = checks.check_positive(
      'clients_per_round', clients_per_round
    )
    self._target_quantile = checks.check_within(
      'target_quantile', target_quantile, 0, 1
    )
    self._learning_rate = checks.check_not_negative('learning_rate', learning_rate)
    self._geometric_update = bool(geometric_update)
    if geometric_update:
      grid.check_clip_norm(initial_estimate, 'initial_estimate')
    else:
      largest = grid.CLIP_NORM_LIMITS[1]
      checks.check_within('initial_estimate', initial_estimate, -largest, largest)
    self._initial_estimate = float(initial_estimate)

  def initial_global_state(self) -> QuantileState:
    """Returns the state before round 0."""
    return QuantileState(
      quantile_estimate=tf.constant(self._initial_estimate, tf.float32),
      fraction_below=tf.constant(0.5, tf.float32),
      counts=self._inner.initial_global_state(),
      belongs_to=tf.constant(self._belongs_to()),
    )

  def _belongs_to(self) -> str:
    return matrix_mechanism.mechanism_text(
      {
        'mechanism': 'quantile',
        'clients_per_round': self._clients_per_round,
        'target_quantile': self._target_quantile,
        'learning_rate': self._learning_rate,
        'geometric_update': self._geometric_update,
      }
    )

  def derive_sample_params(self, global_state: QuantileState) -> QuantileParams:
    """Returns the estimate to compare with, and the parameters of the count query."""
    return QuantileParams(
      global_state.quantile_estimate,
      self._inner.derive_sample_params(global_state.counts),
    )

  def _inner_state(self, global_state: QuantileState) -> Any:
    return global_state.counts

  def _inner_params(self, params: QuantileParams) -> Any:
    return params.counts

  def _inner_record(self, params: QuantileParams, record: Any) -> tf.Tensor:
    """1/2 or -1/2, float32; NaN, which counts as 0, if the number is not finite."""
    (number,) = tf.nest.flatten(self._check(record))
    number = tf.cast(number, tf.float64)
    is_below = number <= tf.cast(params.quantile_estimate, tf.float64)
    half = tf.where(is_below, tf.constant(HALF), tf.constant(-HALF))
    return tf.where(tf.math.is_finite(number), half, tf.constant(math.nan))

  def get_noised_result(
    self, sample_state: Any, global_state: QuantileState
  ) -> matrix_mechanism.Released:
    """Returns the new estimate, the next state, and the event of the counts."""
    estimate = matrix_mechanism.check_state(
      global_state.belongs_to, self._belongs_to(), global_state.quantile_estimate
    )
    noised, counts, event = self._inner.get_noised_result(
      sample_state, global_state.counts
    )
    fraction = fraction_below(noised, self._clients_per_round)
    excess = fraction - self._target_quantile
    estimate = moved(
      estimate, excess, self._learning_rate, geometric=self._geometric_update
    )
    state = QuantileState(
      estimate, tf.cast(fraction, tf.float32), counts, global_state.belongs_to
    )
    return self._to_record(estimate), state, event

  def mean_of(self, result: Any, clients_per_round: float) -> Any:
    """Returns the estimate unchanged, because it is not a sum."""
    del clients_per_round
    return result

  def derive_metrics(self, global_state: QuantileState) -> matrix_mechanism.Metrics:
    """Returns the metrics of the count query, and both estimates."""
    metrics = super().derive_metrics(global_state)
    metrics['quantile_estimate'] = global_state.quantile_estimate
    metrics['fraction_below'] = global_state.fraction_below
    return metrics

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}({self._inner!r}, '
      f'initial_estimate={self._initial_estimate}, '
      f'target_quantile={self._target_quantile}, '
      f'learning_rate={self._learning_rate}, '
      f'geometric_update={self._geometric_update})'
    )


def fraction_below(noised_count: tf.Tensor, clients_per_round: float) -> tf.Tensor:
  """Returns the fraction of numbers at most the estimate, clipped to [0, 1]."""
  mean = tf.cast(noised_count, tf.float64) / clients_per_round
  return tf.clip_by_value(mean + HALF, 0.0, 1.0)


def moved(
  estimate: tf.Tensor,
  excess: tf.Tensor,
  learning_rate: float,
  *,
  geometric: bool = True,
) -> tf.Tensor:
  """Returns the next estimate, float32 scalar."""
  before = tf.cast(estimate, tf.float64)
  smallest, largest = grid.CLIP_NORM_LIMITS
  if geometric:
    after = before * tf.exp(-learning_rate * excess)
  else:
    smallest, after = -largest, before - learning_rate * excess
  return tf.cast(tf.clip_by_value(after, smallest, largest), tf.float32)


def _single_spec(record_specs: Any, rank: int) -> tf.TensorSpec:
  """Returns the spec of records that are one nonempty tensor of this rank."""
  specs = tf.nest.flatten(record_specs)
  shapes = [tuple(spec.shape) for spec in specs]
  if len(specs) != 1 or len(shapes[0]) != rank or not specs[0].shape.num_elements():
    what = 'vector of numbers' if rank else 'number, a scalar'
    raise ValueError(f'a record must be one {what}; got shapes {shapes}.')
  return specs[0]


def _check_inner(name: str, query: Any, spec: tf.TensorSpec) -> None:
  """Raises an error unless a query sums records of this spec in each round."""
  matrix_mechanism.check_grid_sum(name, query)
  if getattr(query, 'workload', None) is not None:
    raise ValueError(
      f'{name} must release the sum of each round; this one releases sums over '
      f'rounds: {query!r}. Leave out the workload.'
    )
  try:
    query.initial_sample_state(spec)
  except (TypeError, ValueError) as e:
    raise ValueError(
      f'{name} must be for records that are {spec}; got {query!r}: {e}'
    ) from e


# Histograms whose sums over ranges have little noise, from noised trees.
#
# A client's histogram is converted to a tree: its bins are the leaves, and each node is
# the sum of up to `arity` nodes below it. The result is the least-squares fit of a
# histogram to all noised nodes (Hay et al., arXiv:0904.0942, section 4). The sum of the
# result's bins over a range has the least noise of all unbiased sums of nodes.
#
# **Privacy** is that of the nodes, which are clipped. A client with a single entry of 1
# has a tree of L2 norm sqrt(levels) and L1 norm levels.


def tree_levels(num_bins: int, arity: int = 2) -> tuple[int, ...]:
  """Returns the number of nodes of each level, from the leaves to the root.

  Example:
    >>> tree_levels(10), tree_levels(10, arity=4), sum(tree_levels(10))
    ((10, 5, 3, 2, 1), (10, 3, 1), 21)
  """
  sizes = [checks.check_positive_int('num_bins', num_bins)]
  arity = checks.check_int('arity', arity, at_least=2)
  while sizes[-1] > 1:
    sizes.append(-(-sizes[-1] // arity))
  return tuple(sizes)


def num_bins_of(record_specs: Any) -> int:
  """Returns the number of bins of a histogram."""
  return int(_single_spec(record_specs, rank=1).shape[0])


class RangeSumsQuery(QueryAround):
  """A histogram for sums over ranges of its bins, from a tree of noised sums.

  It corresponds to TF Privacy's `TreeRangeSumQuery`, whose result is the tree; the
  result of this query is a histogram.
  """

  def __init__(
    self,
    node_query: matrix_mechanism.GridSumQuery,
    *,
    record_specs: Any,
    arity: int = 2,
  ):
    """Initializes the query.

    Args:
      node_query: Clips and sums trees, with noise of the same scale for all nodes: a
        query for records that are one float32 vector of `sum(tree_levels(num_bins,
        arity))` numbers, which releases the sum of each round.
      record_specs: Structure like a record, with the spec of one float vector: the
        histogram, of `num_bins` numbers.
      arity: Number of children of a node.

    Raises:
      TypeError: If an argument has the wrong type.
      ValueError: If `arity` is below 2, or a query or record does not fit.
    """
    self._arity = checks.check_int('arity', arity, at_least=2)
    self._levels = tree_levels(num_bins_of(record_specs), arity)
    _check_inner(
      'node_query', node_query, tf.TensorSpec([sum(self._levels)], tf.float32)
    )
    super().__init__(node_query, record_specs)
    # The query that clips and sums trees.
    self.node_query = node_query
    self._variances = _variances(self._levels, self._arity)

  @property
  def clip_norm(self) -> float:
    """Bound of the tree of one client's histogram, in the norm of `node_query`."""
    return self._inner.clip_norm

  def initial_global_state(self) -> Any:
    """Returns the state of `node_query` before round 0."""
    return self._inner.initial_global_state()

  def derive_sample_params(self, global_state: Any) -> Any:
    """Returns the parameters of `node_query` for clients."""
    return self._inner.derive_sample_params(global_state)

  def _inner_record(self, params: Any, record: Any) -> tf.Tensor:
    """Returns the nodes of a client's tree, the leaves first."""
    del params
    (bins,) = tf.nest.flatten(self._check(record))
    levels = [tf.cast(bins, tf.float64)]
    while len(levels) < len(self._levels):
      levels.append(tf.reduce_sum(self._in_groups(levels[-1]), axis=1))
    return tf.cast(tf.concat(levels, axis=0), tf.float32)

  def _in_groups(self, level: tf.Tensor) -> tf.Tensor:
    """Reshapes a level to rows with the children of each parent, padded with zeros."""
    num_missing = -level.shape[0] % self._arity
    return tf.reshape(tf.pad(level, [[0, num_missing]]), [-1, self._arity])

  def get_noised_result(
    self, sample_state: Any, global_state: Any
  ) -> matrix_mechanism.Released:
    """Returns the histogram, the next state, and the event of the nodes."""
    nodes, state, event = self._inner.get_noised_result(sample_state, global_state)
    bins = self._fitted(tf.cast(nodes, tf.float64))
    return self._to_record(bins), state, event

  def _fitted(self, nodes: tf.Tensor) -> tf.Tensor:
    """Returns the least-squares histogram, by two passes over the tree."""
    noised = tf.split(nodes, self._levels)
    # Upwards: the best estimate of each node from itself and its descendants.
    fitted = [noised[0]]
    for level, (own, below) in zip(noised[1:], self._variances[1:]):
      from_below = tf.reduce_sum(self._in_groups(fitted[-1]), axis=1)
      fitted.append((level * below + from_below) * own / below)
    # Downwards: differences to the parents are shared in proportion to the variances.
    estimates = fitted[-1]
    for level, (own, _) in zip(fitted[-2::-1], self._variances[-2::-1]):
      variances = self._in_groups(tf.constant(own))
      children = self._in_groups(level)
      total = tf.reduce_sum(variances, axis=1, keepdims=True)
      rest = estimates[:, tf.newaxis] - tf.reduce_sum(children, axis=1, keepdims=True)
      shared = children + rest * variances / total
      estimates = tf.reshape(shared, [-1])[: level.shape[0]]
    return estimates

  def __repr__(self) -> str:
    return f'{type(self).__name__}({self._inner!r}, arity={self._arity})'


def _variances(
  levels: tuple[int, ...], arity: int
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns for each level the variances of the best estimates, and of children's sums.

  The best estimate of a node is from itself and its descendants. Variances are in units
  of that of a node's noise; those of sums below the leaves are infinite.
  """
  variances = [(np.ones(levels[0]), np.full(levels[0], math.inf))]
  for size in levels[1:]:
    children = np.zeros(size * arity)
    own = variances[-1][0]
    children[: len(own)] = own
    below = children.reshape([size, arity]).sum(axis=1)
    variances.append((below / (1 + below), below))
  return variances
