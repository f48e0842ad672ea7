"""Statistics of clients' numbers: queries that ask another one, and fit its result.

Noise and events are the other query's, whatever is done with its results.
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
  """Asks `inner`; subclasses say what of, and what becomes of the result.

  `_inner_state` and `_inner_params` say where what is the inner query's is.
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
  def _asked(self, params: Any, record: Any) -> Any:
    """What the inner query is asked about a record."""

  def _like_a_record(self, tensor: tf.Tensor) -> Any:
    (spec,) = tf.nest.flatten(self._record_specs)
    return tf.nest.pack_sequence_as(self._record_specs, [tf.cast(tensor, spec.dtype)])

  @property
  def noise_multiplier(self) -> float:
    """That of the inner query: scale of the noise over its clip norm."""
    return self._inner.noise_multiplier

  @property
  def participation(self) -> strategies.Participation:
    """What the privacy analysis assumes of clients."""
    return self._inner.participation

  @property
  def generator(self) -> str:
    """What random words the noise is made of: 'chacha20' or 'philox'."""
    return self._inner.generator

  @property
  def seed_identity(self) -> str:
    """'secret', or which seed and stream the noise is of: 'seed 7, stream 0'."""
    return getattr(self._inner, 'seed_identity', 'secret')

  def run_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together, that of the inner query."""
    return self._inner.run_event()

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns the inner query's sum of no records."""
    if template is not None:
      super().initial_sample_state(template)
    return self._inner.initial_sample_state()

  def encode_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns what the inner query makes of a record, and whether that was finite."""
    asked = self._asked(params, record)
    return self._inner.encode_record(self._inner_params(params), asked)

  def encode_without_noise(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns what `encode_record` does, less the client's noise."""
    asked = self._asked(params, record)
    return self._inner.encode_without_noise(self._inner_params(params), asked)

  def round_key(self, global_state: Any) -> Any:
    """What the noise of a round's clients follows from; empty if they add none."""
    return self._inner.round_key(self._inner_state(global_state))

  def with_noise_of(
    self, params: Any, sample_state: Any, round_key: Any, number: tf.Tensor
  ) -> Any:
    """Returns a sum with the noise that one more client adds, if it does."""
    return self._inner.with_noise_of(
      self._inner_params(params), sample_state, round_key, number
    )

  def spent(self, global_state: Any) -> matrix_mechanism.Spent:
    """Returns what all rounds that led to a state have spent, and the last of them."""
    return self._inner.spent(self._inner_state(global_state))

  def derive_metrics(self, global_state: Any) -> matrix_mechanism.Metrics:
    """Returns what the inner query measures."""
    return collections.OrderedDict(
      self._inner.derive_metrics(self._inner_state(global_state))
    )


# A quantile of clients' numbers over rounds, estimated from noised counts.
#
# Each client says whether its number is at most the estimate, by 1/2 or -1/2, and after
# each round (Andrew et al., arXiv:1905.03871)
#
#     estimate <- estimate * exp(-learning_rate * (fraction - target_quantile)),
#
# with the noised fraction of those below, or, for numbers that may be negative,
#
#     estimate <- estimate - learning_rate * (fraction - target_quantile).
#
# **Privacy** is that of the counts, by any query with clip norm 1/2: a client adds 1/2
# or -1/2 to their sum, whatever the estimate is, and one that is not there adds
# nothing. That answers follow from earlier rounds changes nothing: noise that is
# independent, or of a strategy, holds for contributions that are chosen adaptively
# (`adaptive_clipping` has the reasons).

# What a client adds to a count, or its negative.
HALF = 0.5
_NUMBER_SPEC = tf.TensorSpec([], tf.float32)


class QuantileState(NamedTuple):
  """State of a query between rounds."""

  quantile_estimate: Any  # What numbers will be compared with, float32.
  fraction_below: Any  # Noised, of the last round, float32; 0.5 before the first.
  counts: Any  # State of the query that counts; it may hold a secret key.
  belongs_to: Any  # The mechanism, as `mechanism_text` writes it.


class QuantileParams(NamedTuple):
  """What clients have to know."""

  quantile_estimate: Any  # What their numbers are compared with, float32.
  counts: Any  # What the query that counts tells them.


class QuantileQuery(QueryAround):
  """Estimates a quantile of clients' numbers, one number of each (1905.03871).

  TF Privacy's `QuantileEstimatorQuery`, and with a tree that counts its
  `TreeQuantileEstimatorQuery`. What is released in a round is the new estimate. A
  number that is NaN or infinite is not counted, neither as below nor as above.

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
      count_query: Sums what clients say, with any noise: a query with `clip_norm=0.5`,
        for records that are one float32 number, that releases the sum of each round.
      initial_estimate: The first estimate; positive if updates are geometric.
      clients_per_round: How many clients are expected in a round: what counts are
        divided by. It is fixed, so that the number of clients stays private.
      target_quantile: Which fraction of numbers is to be at most the estimate.
      learning_rate: The estimate changes by a factor of at most exp(learning_rate) a
        round or, if updates are not geometric, by at most that.
      geometric_update: Whether the estimate is multiplied, or added to.
      record_specs: Structure like a record, of the spec of one float number.

    Raises:
      TypeError: If an argument is not of its type.
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
    # What sums what clients say.
    self.count_query = count_query
    _the_one_spec(self._record_specs, rank=0)
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
    """Returns the estimate to compare with, and what is to be known to count."""
    return QuantileParams(
      global_state.quantile_estimate,
      self._inner.derive_sample_params(global_state.counts),
    )

  def _inner_state(self, global_state: QuantileState) -> Any:
    return global_state.counts

  def _inner_params(self, params: QuantileParams) -> Any:
    return params.counts

  def _asked(self, params: QuantileParams, record: Any) -> tf.Tensor:
    """1/2 or -1/2, float32; NaN, which counts as 0, if the number is not finite."""
    (number,) = tf.nest.flatten(self._check(record))
    number = tf.cast(number, tf.float64)
    is_below = number <= tf.cast(params.quantile_estimate, tf.float64)
    said = tf.where(is_below, tf.constant(HALF), tf.constant(-HALF))
    return tf.where(tf.math.is_finite(number), said, tf.constant(math.nan))

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
    return self._like_a_record(estimate), state, event

  def mean_of(self, result: Any, clients_per_round: float) -> Any:
    """Returns the estimate as it is, which is not a sum."""
    del clients_per_round
    return result

  def derive_metrics(self, global_state: QuantileState) -> matrix_mechanism.Metrics:
    """Returns what the query that counts measures, and both estimates."""
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
  """The fraction of clients whose number is at most the estimate, within 0 and 1."""
  mean = tf.cast(noised_count, tf.float64) / clients_per_round
  return tf.clip_by_value(mean + HALF, 0.0, 1.0)


def moved(
  estimate: tf.Tensor,
  excess: tf.Tensor,
  learning_rate: float,
  *,
  geometric: bool = True,
) -> tf.Tensor:
  """The next estimate, float32 scalar."""
  before = tf.cast(estimate, tf.float64)
  smallest, largest = grid.CLIP_NORM_LIMITS
  if geometric:
    after = before * tf.exp(-learning_rate * excess)
  else:
    smallest, after = -largest, before - learning_rate * excess
  return tf.cast(tf.clip_by_value(after, smallest, largest), tf.float32)


def _the_one_spec(record_specs: Any, rank: int) -> tf.TensorSpec:
  """The spec of records that are one tensor, with something in it."""
  specs = tf.nest.flatten(record_specs)
  shapes = [tuple(spec.shape) for spec in specs]
  if len(specs) != 1 or len(shapes[0]) != rank or not specs[0].shape.num_elements():
    what = 'vector of numbers' if rank else 'number, a scalar'
    raise ValueError(f'a record must be one {what}; got shapes {shapes}.')
  return specs[0]


def _check_inner(name: str, query: Any, spec: tf.TensorSpec) -> None:
  """Refuses anything but a query that sums such records of a round exactly."""
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
# A client's histogram becomes a tree: its bins are the leaves, and each node has the
# sum of up to `arity` nodes below it. The result is the histogram that agrees best with
# all noised nodes, by least squares (Hay et al., arXiv:0904.0942, section 4). So a
# range is a sum of the result's bins, with the least noise that any unbiased sum of
# nodes has.
#
# **Privacy** is that of the nodes: they are what is clipped. A client with one entry of
# 1 has a tree of L2 norm sqrt(levels) and L1 norm levels.


def tree_levels(num_bins: int, arity: int = 2) -> tuple[int, ...]:
  """Numbers of nodes by level, the leaves first and the root last.

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
  """How many bins a histogram has."""
  return int(_the_one_spec(record_specs, rank=1).shape[0])


class RangeSumsQuery(QueryAround):
  """A histogram for sums over ranges of its bins, from a tree of noised sums.

  TF Privacy's `TreeRangeSumQuery`, whose result is the tree; here it is a histogram.
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
      node_query: Clips and sums trees, with any noise that is the same for all nodes: a
        query for records that are one float32 vector of `sum(tree_levels(num_bins,
        arity))` numbers, that releases the sum of each round.
      record_specs: Structure like a record, of the spec of one float vector: the
        histogram, of `num_bins` numbers.
      arity: How many nodes have their sum in one above.

    Raises:
      TypeError: If an argument is not of its type.
      ValueError: If `arity` is below 2, or a query or record does not fit.
    """
    self._arity = checks.check_int('arity', arity, at_least=2)
    self._levels = tree_levels(num_bins_of(record_specs), arity)
    _check_inner(
      'node_query', node_query, tf.TensorSpec([sum(self._levels)], tf.float32)
    )
    super().__init__(node_query, record_specs)
    # What clips and sums trees.
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
    """Returns what clients have to know for `node_query`."""
    return self._inner.derive_sample_params(global_state)

  def _asked(self, params: Any, record: Any) -> tf.Tensor:
    """The nodes of a client's tree, the leaves first."""
    del params
    (bins,) = tf.nest.flatten(self._check(record))
    levels = [tf.cast(bins, tf.float64)]
    while len(levels) < len(self._levels):
      levels.append(tf.reduce_sum(self._in_groups(levels[-1]), axis=1))
    return tf.cast(tf.concat(levels, axis=0), tf.float32)

  def _in_groups(self, level: tf.Tensor) -> tf.Tensor:
    """Nodes in rows, each of those that have their sum in one above."""
    missing = -level.shape[0] % self._arity
    return tf.reshape(tf.pad(level, [[0, missing]]), [-1, self._arity])

  def get_noised_result(
    self, sample_state: Any, global_state: Any
  ) -> matrix_mechanism.Released:
    """Returns the histogram, the next state, and the event of the nodes."""
    nodes, state, event = self._inner.get_noised_result(sample_state, global_state)
    bins = self._fitted(tf.cast(nodes, tf.float64))
    return self._like_a_record(bins), state, event

  def _fitted(self, nodes: tf.Tensor) -> tf.Tensor:
    """The histogram that agrees best with all nodes, by two passes over the tree."""
    noised = tf.split(nodes, self._levels)
    # Up: the best of each node that it and those below it say.
    fitted = [noised[0]]
    for level, (own, below) in zip(noised[1:], self._variances[1:]):
      from_below = tf.reduce_sum(self._in_groups(fitted[-1]), axis=1)
      fitted.append((level * below + from_below) * own / below)
    # Down: what those above know better is shared by variance.
    known = fitted[-1]
    for level, (own, _) in zip(fitted[-2::-1], self._variances[-2::-1]):
      variances = self._in_groups(tf.constant(own))
      children = self._in_groups(level)
      total = tf.reduce_sum(variances, axis=1, keepdims=True)
      more = known[:, tf.newaxis] - tf.reduce_sum(children, axis=1, keepdims=True)
      shared = children + more * variances / total
      known = tf.reshape(shared, [-1])[: level.shape[0]]
    return known

  def __repr__(self) -> str:
    return f'{type(self).__name__}({self._inner!r}, arity={self._arity})'


def _variances(
  levels: tuple[int, ...], arity: int
) -> list[tuple[np.ndarray, np.ndarray]]:
  """By level: of the best of a node from it and below, and of what is below, summed.

  In variances of a node's noise; what is below a leaf is not known.
  """
  found = [(np.ones(levels[0]), np.full(levels[0], math.inf))]
  for size in levels[1:]:
    children = np.zeros(size * arity)
    own = found[-1][0]
    children[: len(own)] = own
    below = children.reshape([size, arity]).sum(axis=1)
    found.append((below / (1 + below), below))
  return found
