"""A quantile of clients' numbers over rounds, estimated from noised counts.

Each client says whether its number is at most the estimate, by 1/2 or -1/2, and after
each round the estimate moves by how far the noised fraction of those below is from the
target (Andrew et al., arXiv:1905.03871):

    estimate <- estimate * exp(-learning_rate * (fraction - target_quantile)),

or, for numbers that may be negative,

    estimate <- estimate - learning_rate * (fraction - target_quantile).

**Privacy** is that of the counts. A client adds 1/2 or -1/2 to their sum, whatever the
estimate is, and one that is not there adds nothing: it moves the sum by 1/2, where
counts of 0 and 1 would move by 1. So any query of this package counts, with clip norm
1/2, and its event is that of the quantile. That the estimate follows from earlier
rounds, and clients' answers from the estimate, changes nothing: noise that is
independent, or of a strategy, holds for contributions that are chosen adaptively
(`adaptive_clipping` has the reasons).
"""

import collections
import math
from typing import Any, NamedTuple

import dp_accounting
import tensorflow as tf

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.queries import belonging
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import records
from tff_dp_aggregators.queries.statistics import around

# What a client adds to a count, or its negative.
HALF = 0.5
_COUNT_SPEC = tf.TensorSpec([], tf.float32)
_NUMBER_SPEC = tf.TensorSpec([], tf.float32)


class QuantileState(NamedTuple):
  """State of a query between rounds.

  Attributes:
    quantile_estimate: What numbers will be compared with, float32 scalar.
    fraction_below: Noised fraction of the last round, float32 scalar; 0.5 before the
      first.
    counts: State of the query that counts; it may hold a secret key.
    belongs_to: The mechanism, as `belonging` writes it; string scalar.
  """

  quantile_estimate: Any
  fraction_below: Any
  counts: Any
  belongs_to: Any


class QuantileParams(NamedTuple):
  """What clients have to know.

  Attributes:
    quantile_estimate: What their numbers are compared with, float32 scalar.
    counts: What the query that counts tells them.
  """

  quantile_estimate: Any
  counts: Any


class QuantileQuery(around.QueryAround):
  """Estimates a quantile of clients' numbers, one number of each (1905.03871).

  TF Privacy's `QuantileEstimatorQuery`, and with a tree that counts its
  `TreeQuantileEstimatorQuery`. What is released in a round is the new estimate, which
  is private; so it can serve as a norm to clip or to zero with elsewhere. A number that
  is NaN or infinite is not counted, neither as below nor as above.

  Geometric estimates stay within 2^-80 and 2^80, others within -2^80 and 2^80.

  Example:
    >>> from tff_dp_aggregators import queries
    >>> query = QuantileQuery(
    ...   queries.GaussianSumQuery(
    ...     clip_norm=0.5, noise_multiplier=0.0, record_specs=tf.TensorSpec([])
    ...   ),
    ...   initial_estimate=1.0,
    ...   clients_per_round=3,
    ...   target_quantile=0.5,
    ... )
    >>> state = query.initial_global_state()
    >>> for _ in range(20):
    ...   params = query.derive_sample_params(state)
    ...   sample = query.initial_sample_state()
    ...   for number in (2.0, 3.0, 30.0):
    ...     sample = query.accumulate_record(params, sample, tf.constant(number))
    ...   estimate, state, event = query.get_noised_result(sample, state)
    >>> bool(2.8 < estimate < 3.2)
    True
  """

  def __init__(
    self,
    count_query: records.GridSumQuery,
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
      geometric_update: Whether the estimate is multiplied, for numbers that are
        positive, or added to.
      record_specs: Structure like a record, of the spec of one float number.

    Raises:
      TypeError: If `count_query` is no such query, or another argument not of its type.
      ValueError: If a number is out of range, `count_query` is for other records or
        another clip norm, or releases sums over rounds, or a record has more numbers
        than one.
    """
    super().__init__(_check_count_query(count_query), record_specs)
    specs = tf.nest.flatten(self._record_specs)
    if len(specs) != 1 or specs[0].shape.rank != 0:
      raise ValueError(
        'a quantile is of one number of each client, a scalar; got records of shapes '
        f'{[tuple(spec.shape) for spec in specs]}.'
      )
    checks.check_number('initial_estimate', initial_estimate)
    _check_positive('clients_per_round', clients_per_round)
    self._clients_per_round = float(clients_per_round)
    _check_within('target_quantile', target_quantile, 0, 1)
    self._target_quantile = float(target_quantile)
    _check_within('learning_rate', learning_rate, 0, math.inf)
    self._learning_rate = float(learning_rate)
    self._geometric_update = bool(geometric_update)
    if geometric_update:
      grid.check_clip_norm(initial_estimate, 'initial_estimate')
    else:
      largest = grid.CLIP_NORM_LIMITS[1]
      _check_within('initial_estimate', initial_estimate, -largest, largest)
    self._initial_estimate = float(initial_estimate)

  @property
  def count_query(self) -> records.GridSumQuery:
    """What sums what clients say."""
    return self._inner

  def initial_global_state(self) -> QuantileState:
    """Returns the state before round 0."""
    return QuantileState(
      quantile_estimate=tf.constant(self._initial_estimate, tf.float32),
      fraction_below=tf.constant(0.5, tf.float32),
      counts=self._inner.initial_global_state(),
      belongs_to=tf.constant(self._belongs_to()),
    )

  def _belongs_to(self) -> str:
    return belonging.text_of(
      {
        'mechanism': 'quantile',
        'clients_per_round': self._clients_per_round,
        'target_quantile': self._target_quantile,
        'learning_rate': self._learning_rate,
        'geometric_update': self._geometric_update,
      }
    )

  def derive_sample_params(self, global_state: QuantileState) -> QuantileParams:
    """Returns the estimate to compare with, and what is to be known to count.

    Args:
      global_state: State before the round.
    """
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
  ) -> tuple[Any, QuantileState, dp_accounting.DpEvent]:
    """Returns the new estimate, the next state, and the event of the counts.

    Args:
      sample_state: Sum of what the round's clients said.
      global_state: State before the round.

    Returns:
      A structure like a record with the estimate that follows from this round; the
      state; and the event.

    Raises:
      tf.errors.InvalidArgumentError: If the state belongs to another mechanism, or the
        query that counts refuses it.
    """
    estimate = belonging.check(
      global_state.belongs_to, self._belongs_to(), global_state.quantile_estimate
    )
    noised, counts, event = self._inner.get_noised_result(
      sample_state, global_state.counts
    )
    fraction = fraction_below(noised, self._clients_per_round)
    estimate = moved(
      estimate,
      fraction - self._target_quantile,
      self._learning_rate,
      geometric=self._geometric_update,
    )
    state = QuantileState(
      estimate, tf.cast(fraction, tf.float32), counts, global_state.belongs_to
    )
    (spec,) = tf.nest.flatten(self._record_specs)
    result = tf.nest.pack_sequence_as(
      self._record_specs, [tf.cast(estimate, spec.dtype)]
    )
    return result, state, event

  def mean_of(self, result: Any, clients_per_round: float) -> Any:
    """Returns the estimate as it is, which is no sum.

    Args:
      result: From `get_noised_result`.
      clients_per_round: Not used.
    """
    del clients_per_round
    return result

  def derive_metrics(
    self, global_state: QuantileState
  ) -> 'collections.OrderedDict[str, tf.Tensor]':
    """Returns what the query that counts measures, and both estimates.

    `quantile_estimate` and `fraction_below` depend on data, and what that costs is
    accounted for.

    Args:
      global_state: State after some rounds.
    """
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
  """The fraction of clients whose number is at most the estimate, within 0 and 1.

  Args:
    noised_count: Noised sum of 1/2 for each of them and -1/2 for the others.
    clients_per_round: How many there are to be.

  Returns:
    float64 scalar.
  """
  mean = tf.cast(noised_count, tf.float64) / clients_per_round
  return tf.clip_by_value(mean + HALF, 0.0, 1.0)


def moved(
  estimate: tf.Tensor,
  excess: tf.Tensor,
  learning_rate: float,
  *,
  geometric: bool = True,
) -> tf.Tensor:
  """The next estimate, float32 scalar.

  Args:
    estimate: The one before.
    excess: By how much the fraction below it is above the target, float64 scalar.
    learning_rate: How much of that the estimate moves by.
    geometric: Whether it is multiplied, or added to.
  """
  before = tf.cast(estimate, tf.float64)
  smallest, largest = grid.CLIP_NORM_LIMITS
  if geometric:
    after = before * tf.exp(-learning_rate * excess)
  else:
    smallest, after = -largest, before - learning_rate * excess
  return tf.cast(tf.clip_by_value(after, smallest, largest), tf.float32)


def _check_count_query(query: Any) -> records.GridSumQuery:
  if not isinstance(query, records.GridSumQuery):
    raise TypeError(
      'count_query must be a query that bounds records and sums them exactly, such as '
      f'queries.GaussianSumQuery; got one of type {type(query).__name__}.'
    )
  clip_norm = getattr(query, 'clip_norm', None)
  if clip_norm != HALF:
    raise ValueError(
      'count_query must have clip_norm=0.5, which is what each client adds, up to its '
      f'sign; got {clip_norm} of {query!r}.'
    )
  if getattr(query, 'workload', None) is not None:
    raise ValueError(
      'count_query must release the sum of each round; this one releases sums over '
      f'rounds: {query!r}. Leave out the workload.'
    )
  try:
    query.initial_sample_state(_COUNT_SPEC)
  except (TypeError, ValueError) as e:
    raise ValueError(
      'count_query must be for records that are one float32 number, '
      f'record_specs=tf.TensorSpec([]); got {query!r}: {e}'
    ) from e
  return query


def _check_positive(name: str, value: float) -> None:
  checks.check_number(name, value)
  if not (value > 0 and math.isfinite(value)):
    raise ValueError(f'{name} must be positive and finite; got {value}.')


def _check_within(name: str, value: float, low: float, high: float) -> None:
  checks.check_number(name, value)
  if not (low <= value <= high and math.isfinite(value)):
    raise ValueError(
      f'{name} must be finite, and within {low:g} and {high:g}; got {value}.'
    )
