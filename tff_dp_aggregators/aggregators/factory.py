"""The factory that turns a query into a TFF aggregation process: a value's life.

`DPMeanFactory.create` checks the type of values. In each round `DPMean.encode` clips a
client's value to the grid; what may add these up is said here; and `DPMean.release`
has noise added, divides and measures.
"""

import collections
import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from typing_extensions import Required

from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.noise import options
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import matrix_mechanism

# Name of the count in a process's measurements.
NONFINITE_COUNT = 'nonfinite_count'
# Type of a record that is one number.
_ONE_NUMBER = tf.TensorSpec([], tf.float32)
# What TFF's runtime carries in one call; above, it fails or, from 2 GB on, retries
# for ever without an error.
_MAX_STATE_BYTES = 1_895_825_408
# What sums records: a factory, or `None` for `tff.aggregators.SumFactory`.
SumOfRecords = Optional[tff.aggregators.UnweightedAggregationFactory]


class DPMeanState(NamedTuple):
  """State of a `DPMeanFactory` process."""

  query: Any  # The query's, with the key of the noise; secret.
  record_sum: Any  # State of the aggregation that sums records.
  count_sum: Any  # State of the aggregation that counts clients.
  spent: Any  # What all rounds so far have spent, and the last: one of `queries.spent`.


class DPMeanFactory(checks.SetOnce, tff.aggregators.UnweightedAggregationFactory):
  """Differentially private mean with a fixed denominator.

  The process clips each client's value, sums, adds the mechanism's noise, and divides
  by `clients_per_round`, however many clients reported: a denominator that depended on
  data would need noise of its own. Sums are exact (`queries.grid`), so a client moves
  them by no more than the clip norm. A round of more than 10^7 clients fails.

  `extract_dp_event` says of a state what has been spent. The measurements hold
  `nonfinite_count`, and under `dp_query_metrics` what the query measures
  (`derive_metrics`).

  A state names its mechanism: with another one `next` fails. It holds the key of the
  noise: keep checkpoints as safe as the data, and do not run a round again from an old
  state with other clients, which would add the same noise to different data.
  """

  def __init__(
    self,
    build_query: Callable[[Any], matrix_mechanism.GridSumQuery],
    *,
    clients_per_round: float,
    min_clients: Optional[int] = None,
    record_aggregation_factory: SumOfRecords = None,
    count_sum_factory: SumOfRecords = None,
    specs_to_look_at: Any = _ONE_NUMBER,
  ):
    """Initializes the factory.

    Args:
      build_query: Makes the query, any that sums on the grid, from the specs of a
        record; called once here, for one that is only looked at, and in each `create`.
      clients_per_round: The denominator, normally the size of the cohort asked for.
      min_clients: How many clients have to report: a round with fewer fails, and what
        they sent is discarded. `None` for as many as the query needs, if it needs any.
      record_aggregation_factory: Sums the clipped records, structures of int64 with
        entries of magnitude at most `queries.grid.LARGEST_ENTRY`; `None` means
        `tff.aggregators.SumFactory`, and `secure_sum()` sums them securely. Of any
        other, `ExactSum` has to say that what it returns is the sum.
      count_sum_factory: Sums pairs of int32 scalars, 1 for each client and 1 for each
        value that is not finite; `None` sums them as records are summed.
      specs_to_look_at: Specs for the query that is only looked at, if not every
        structure of records will do.

    Raises:
      TypeError: If an argument is not of its type.
      ValueError: If a number is out of range, the query refuses its arguments, or what
        sums records may return something else.
    """
    checks.check_number('clients_per_round', clients_per_round)
    if not 0 < clients_per_round <= grid.MAX_CLIENTS:
      raise ValueError(
        'clients_per_round must be positive and finite, and at most 10^7, for so many '
        f'are summed exactly; got {clients_per_round}.'
      )
    if record_aggregation_factory is None:
      record_aggregation_factory = tff.aggregators.SumFactory()
    if count_sum_factory is None:
      # Securely, if records are summed securely.
      is_secure = isinstance(
        record_aggregation_factory, tff.aggregators.SecureSumFactory
      )
      count_sum_factory = (
        tff.aggregators.SecureSumFactory(1, 0)
        if is_secure
        else tff.aggregators.SumFactory()
      )
    check_exact_sum('record_aggregation_factory', record_aggregation_factory)
    check_unweighted('count_sum_factory', count_sum_factory)
    self._build_query = build_query
    # The denominator.
    self.clients_per_round = float(clients_per_round)
    self._record_aggregation_factory = record_aggregation_factory
    self._count_sum_factory = count_sum_factory
    self._tells_signal = False
    self._specs_to_look_at = specs_to_look_at
    # The query, for records that are one number, mostly. Bad arguments are refused
    # here.
    self.query = build_query(specs_to_look_at)
    # How many clients have to report for a round to be released; 0 for any number.
    self.min_clients = _min_clients_of(self.query, min_clients, self.clients_per_round)

  def query_for(self, record_specs: Any) -> matrix_mechanism.GridSumQuery:
    """A query of its own, for records of these specs; seeds as for `create`."""
    return self._build_query(record_specs)

  def spec_to_look_at(self, number: int) -> tf.TensorSpec:
    """The spec of tensor `number` of records that the query is looked at with."""
    flat = tf.nest.flatten(self._specs_to_look_at)
    return flat[min(number, len(flat) - 1)]

  @property
  def sums_plainly(self) -> bool:
    """Whether nothing but `tff.aggregators.SumFactory` adds up."""
    adding_up = (self._record_aggregation_factory, self._count_sum_factory)
    return all(type(each) is tff.aggregators.SumFactory for each in adding_up)

  @property
  def strategy(self) -> strategies.Strategy:
    """Strategy matrix C, or ValueError if the mechanism has none."""
    return self._of_query('strategy')

  @property
  def participation(self) -> strategies.Participation:
    """What the privacy analysis assumes of clients; ValueError if nothing."""
    return self._of_query('participation')

  @property
  def workload(self) -> Optional[strategies.Workload]:
    """Whose rows rounds return, of all means so far; `None` for the round's mean."""
    return getattr(self.query, 'workload', None)

  @property
  def clip_norm(self) -> float:
    """Bound of one client's contribution to one round, in the query's norm: L2, mostly.

    ValueError if it adapts; the measurements have it then.
    """
    return self._of_query('clip_norm')

  @property
  def noise_multiplier(self) -> float:
    """Standard deviation of z over the clip norm; of Laplace noise its scale."""
    return self._of_query('noise_multiplier')

  @property
  def effective_noise_multiplier(self) -> float:
    """`noise_multiplier / sens(C)` of all rounds; ValueError if there is none."""
    return self._of_query('effective_noise_multiplier')

  @property
  def generator(self) -> str:
    """What random words the noise is made of: 'chacha20' or 'philox'."""
    return self._of_query('generator')

  @property
  def seed_identity(self) -> str:
    """'secret', or which seed and stream the noise is of: 'seed 7, stream 0'."""
    return self._of_query('seed_identity')

  def _of_query(self, name: str) -> Any:
    """What the query says of itself, if it does."""
    if not hasattr(self.query, name):
      raise ValueError(f'{self.query} has no {name}.')
    return getattr(self.query, name)

  def with_min_clients(self, min_clients: int) -> 'DPMeanFactory':
    """The same mean, whose rounds fail in which fewer clients report.

    Nothing of such a round is released: what clients sent is discarded, and the state
    before it serves another try. `min_clients` is at least what the query needs.
    """
    checks.check_positive_int('min_clients', min_clients)
    strict = copy.copy(self)
    strict.__dict__['min_clients'] = _min_clients_of(
      self.query, max(min_clients, self.min_clients), self.clients_per_round
    )
    return strict

  def with_not_private_signal_to_noise(self) -> 'DPMeanFactory':
    """This factory, measuring in each round the norms of exact mean and noise.

    **What it measures is exact and of clients: it is not private**, no event covers it,
    and whoever publishes it says so (`not_covered` of `learning.RunOptions`). It is for
    simulations and for data that may be looked at. Nothing of it is in the state.

    Among `dp_query_metrics` there are `not_private_signal_norm` and
    `squared_noise_norm`, of the round alone (`SignalToNoise` says what they are).
    """
    telling = copy.copy(self)
    telling._tells_signal = True
    return telling

  def create(self, value_type: Any) -> tff.templates.AggregationProcess:
    """Creates the process, whose result is the private mean, a structure like a value.

    With a seed, each process after the first has a part of the seed's stream of its
    own, so that no two of them add the same noise.

    Args:
      value_type: Type of a client's value: float tensors of known shape. The mean of
        half precision is in float32.

    Raises:
      TypeError: If a tensor of it has another dtype, or there is something else in it,
        such as a sequence.
      ValueError: If a shape is not known, or the state would be too large for TFF.
    """
    return self.mean_of(value_type).process(
      self._record_aggregation_factory, self._count_sum_factory
    )

  def mean_of(self, value_type: Any) -> 'DPMean':
    """What `create` makes a process of, before it is one; seeds and errors as there."""
    check_value_type(value_type)
    return DPMean(
      self._build_query(_record_specs(value_type)),
      self.clients_per_round,
      value_type,
      min_clients=self.min_clients,
      tells_signal=self._tells_signal,
    )


class Counts(NamedTuple):
  """Numbers of clients, and of those whose value was not finite; int32 scalars."""

  clients: Any
  nonfinite: Any


class DPMean:
  """A private mean of values of one type, as TensorFlow functions.

  `process` has TFF add up what clients `encode`, for the server to `release`; a
  simulation adds up by itself, and comes to the same integers.
  """

  def __init__(
    self,
    query: matrix_mechanism.GridSumQuery,
    clients_per_round: float,
    value_type: Any,
    *,
    min_clients: int,
    tells_signal: bool,
  ):
    self._tells_signal = tells_signal
    self._query = query
    self._clients_per_round = clients_per_round
    self._value_type = value_type
    self._min_clients = min_clients
    self._query_init = tff.tensorflow.computation(
      tracing.as_written(query.initial_global_state)
    )
    num_bytes = _num_bytes(self._query_init.type_signature.result)
    if num_bytes > _MAX_STATE_BYTES:
      raise ValueError(
        f'this mechanism would need a state of {num_bytes / 1e9:.2f} GB with storage '
        f'{getattr(query, "storage", "state")!r}, but TFF carries at most '
        f'{_MAX_STATE_BYTES / 1e9:.2f} GB between rounds. Keep the noise in files '
        "(storage='files'), or use a mechanism that remembers less."
      )

  def initial_state(self) -> DPMeanState:
    """The state before the first round, if a plain sum adds up."""
    query_state = self._query.initial_global_state()
    return DPMeanState(query_state, (), (), self._query.spent(query_state))

  def client_params(self, query_state: Any) -> Any:
    """What clients have to know of the query's state; nothing of it is secret."""
    return self._query.derive_sample_params(query_state)

  def encode(self, params: Any, value: Any) -> tuple[Any, Counts]:
    """A client's clipped value in steps of the grid, and what it adds to the counts."""
    sample, finite = self._query.encode_record(params, value)
    is_nonfinite = tf.cast(tf.logical_not(finite), tf.int32)
    return sample, Counts(tf.constant(1, tf.int32), is_nonfinite)

  def release(
    self, query_state: Any, total: Any, counts: Counts
  ) -> tuple[Any, Any, Any, Any]:
    """The mean; the query's next state; what was spent so far; and its metrics."""
    total = grid.asserted(
      total,
      counts.clients <= grid.MAX_CLIENTS,
      'more clients in a round than can be summed exactly',
    )
    if self._min_clients:
      total = grid.asserted(
        total,
        counts.clients >= self._min_clients,
        f'fewer clients reported than min_clients, {self._min_clients}: this round is '
        'aborted and what they sent is discarded. The state before it is still good: '
        'run it again with more clients.',
      )
    before = query_state
    noised, query_state, _ = self._query.get_noised_result(total, query_state)
    mean = self._query.mean_of(noised, self._clients_per_round)
    metrics = self._query.derive_metrics(query_state)
    if self._tells_signal:
      signal, squared_noise = self._query.signal_and_noise(total, before)
      metrics['not_private_signal_norm'] = signal / self._clients_per_round
      metrics['squared_noise_norm'] = squared_noise / self._clients_per_round**2
    return mean, query_state, self._query.spent(query_state), metrics

  # For simulations, which train many clients in one computation and number them.

  @property
  def noised_by(self) -> Optional[matrix_mechanism.GridSumQuery]:
    """The query, if clients add noise, which sums leave out there."""
    return self._query if self._query.clients_add_noise else None

  def no_sum(self) -> Any:
    """The sum of no clients' values."""
    return self._query.initial_sample_state()

  def sum_without_noise(self, params: Any, stacked: Any) -> tuple[Any, tf.Tensor]:
    """The sum of what clients `encode`, less their noise, and whose were finite."""
    return self._query.sum_without_noise(params, stacked)

  def add_without_noise(
    self, params: Any, total: Any, values: Sequence[Any]
  ) -> tuple[Any, tf.Tensor]:
    """A sum with more clients' values, large ones, and whose were finite."""
    return self._query.add_without_noise(params, total, values)

  def process(
    self,
    record_aggregation_factory: tff.aggregators.UnweightedAggregationFactory,
    count_sum_factory: tff.aggregators.UnweightedAggregationFactory,
  ) -> tff.templates.AggregationProcess:
    """The process of the mean; clients compute once, on what they need to know."""
    query_init = self._query_init
    query_state_type = query_init.type_signature.result
    spent_at_first = tff.tensorflow.computation(
      tracing.as_written(self._query.spent), query_state_type
    )
    derive_params = tff.tensorflow.computation(
      tracing.as_written(self.client_params), query_state_type
    )
    encode = tff.tensorflow.computation(
      tracing.as_written(self.encode),
      [derive_params.type_signature.result, self._value_type],
    )
    sample_type, counts_type = encode.type_signature.result
    record_sum = record_aggregation_factory.create(sample_type)
    result_type = record_sum.next.type_signature.result.result.member
    if not result_type.is_equivalent_to(sample_type):
      raise TypeError(
        'record_aggregation_factory must return the exact sum of the integers it is '
        f'given, of type {sample_type}; it returns {result_type}. Use '
        'tff.aggregators.SumFactory() or aggregators.secure_sum().'
      )
    count_sum = count_sum_factory.create(counts_type)
    release = tff.tensorflow.computation(
      tracing.as_written(self.release), [query_state_type, sample_type, counts_type]
    )

    @tff.federated_computation
    def init_fn() -> Any:
      query_state = tff.federated_eval(query_init, tff.SERVER)
      return tff.federated_zip(
        DPMeanState(
          query_state,
          record_sum.initialize(),
          count_sum.initialize(),
          tff.federated_map(spent_at_first, query_state),
        )
      )

    @tff.federated_computation(
      init_fn.type_signature.result, tff.FederatedType(self._value_type, tff.CLIENTS)
    )
    def next_fn(state: Any, value: Any) -> Any:
      params = tff.federated_broadcast(tff.federated_map(derive_params, state.query))
      sample, counts = tff.federated_map(encode, (params, value))
      summed = record_sum.next(state.record_sum, sample)
      counted = count_sum.next(state.count_sum, counts)
      result, query_state, spent, metrics = tff.federated_map(
        release, (state.query, summed.result, counted.result)
      )
      new_state = DPMeanState(query_state, summed.state, counted.state, spent)
      measurements = tff.federated_zip(
        collections.OrderedDict(dp_query_metrics=metrics, dp=summed.measurements)
      )
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(new_state),
        result,
        add_nonfinite_count(measurements, counted.result.nonfinite),
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)


def _min_clients_of(
  query: matrix_mechanism.GridSumQuery,
  min_clients: Optional[int],
  clients_per_round: float,
) -> int:
  """How many clients have to report, for the caller and for the query."""
  fewest = query.min_clients
  if min_clients is not None:
    fewest = max(fewest, checks.check_positive_int('min_clients', min_clients))
  if fewest > clients_per_round:
    raise ValueError(
      f'min_clients is {fewest}, but clients_per_round is {clients_per_round:g}; lower '
      'min_clients, or ask for more clients.'
    )
  return fewest


class Mean(noise.IndependentOptions, total=False):
  """Arguments of builders that hand all of them on; `gaussian` says what they are."""

  clip_norm: Required[float]
  noise_multiplier: Required[float]
  record_aggregation_factory: SumOfRecords


class IndependentMean(Mean, total=False):
  """These, and the mean's denominator."""

  clients_per_round: Required[float]


def from_query(
  query: Callable[..., matrix_mechanism.GridSumQuery],
  *args: Any,
  clients_per_round: float,
  record_aggregation_factory: SumOfRecords = None,
  seed: noise.SeedLike = None,
  **kwargs: Any,
) -> DPMeanFactory:
  """The factory of `query(*args, record_specs=..., **kwargs)`; see `DPMeanFactory`."""
  next_seed = options.for_factory(seed)

  def build_query(record_specs: Any) -> matrix_mechanism.GridSumQuery:
    return query(*args, record_specs=record_specs, seed=next_seed(), **kwargs)

  return DPMeanFactory(
    build_query,
    clients_per_round=clients_per_round,
    record_aggregation_factory=record_aggregation_factory,
  )


def _record_specs(value_type: Any) -> Any:
  """The tensor specs of a value as a TensorFlow computation will see it."""
  seen: list[Any] = []

  def look(value: Any) -> Any:
    seen.append(tf.nest.map_structure(tf.TensorSpec.from_tensor, value))
    return value

  tff.tensorflow.computation(tracing.as_written(look), value_type)
  return seen[0]


def _num_bytes(value_type: Any) -> int:
  """Size of a TFF type made of tensors of known shapes."""
  if isinstance(value_type, tff.TensorType):
    dtype = tf.as_dtype(value_type.dtype)
    return dtype.size * (tf.TensorShape(value_type.shape).num_elements() or 0)
  return sum(_num_bytes(value_type[i]) for i in range(len(value_type)))


def check_unweighted(name: str, value: Any) -> None:
  """Refuses what is not an unweighted aggregation factory."""
  if isinstance(value, tff.aggregators.UnweightedAggregationFactory):
    return
  raise TypeError(
    f'{name} must be a tff.aggregators.UnweightedAggregationFactory, such as '
    f'aggregators.gaussian(...), got {type(value).__name__}. (A weighted mean divides '
    'by the sum of weights: data of clients, released without noise.)'
  )


def check_value_type(value_type: Any, path: str = '') -> None:
  """Refuses types that are no structures of tensors, as TFF's factories do."""
  if isinstance(value_type, tff.TensorType):
    return
  if not isinstance(value_type, tff.StructWithPythonType):
    where = f'has {value_type} at {path}' if path else f'is {value_type}'
    raise TypeError(
      f'value_type {where}, a {type(value_type).__name__}, and must be a structure of '
      'tensors, of dicts, lists and tuples, as tff.to_type makes it. Make tensors of a '
      "client's value before it is aggregated: a sum over the sequence, say."
    )
  for number, (name, each) in enumerate(tff.structure.iter_elements(value_type)):
    key = number if name is None else name
    check_value_type(each, f'{path}.{key}' if path else str(key))


def check_part(name: str, mean: Any, user: str) -> DPMeanFactory:
  """Returns the private mean, if it is one whose records another one may sum."""
  if not isinstance(mean, DPMeanFactory):
    raise TypeError(
      f'{name} must be a factory of private means, such as '
      f'aggregators.gaussian(...); got one of type {type(mean).__name__}.'
    )
  if not mean.sums_plainly:
    raise ValueError(
      f'{name} sums records in a way of its own: give record_aggregation_factory to '
      f'{user} instead.'
    )
  return mean


def add_nonfinite_count(measurements: Any, count: Any) -> Any:
  """Adds a count to what measurements have of it, inside a federated computation.

  Measurements without names go under `aggregation`.
  """

  def merge(measured: Any, counted: Any) -> Any:
    if not isinstance(measured, collections.abc.Mapping):
      measured = {'aggregation': measured} if tf.nest.flatten(measured) else {}
    merged = collections.OrderedDict(measured)
    merged[NONFINITE_COUNT] = counted + merged.get(NONFINITE_COUNT, 0)
    return merged

  types = [each.type_signature.member for each in (measurements, count)]
  merged = tff.tensorflow.computation(tracing.as_written(merge), types)
  return tff.federated_map(merged, (measurements, count))


# What may add up records inside a mechanism: only what is known to return the sum, of
# which the sensitivity is (`queries.grid`). If it quantizes, wraps, clips or samples, a
# client moves the result by more than its clip norm, and no noise pays for that.
# Neither its type nor a trial tells: a secure sum runs nowhere but where it is
# deployed. So the classes that are exact are listed here, with what they have to be
# made with, and for all others a caller gives their word, which the code then shows:
# `ExactSum`.


class ExactSum(checks.SetOnce, tff.aggregators.UnweightedAggregationFactory):
  """Says that a factory, unknown here, returns the exact sum of clients' integers.

  What has to be true of the inner one, or privacy is not what is stated:

  * The result is the sum over all clients that report, in int64, of integers of
    magnitude at most `queries.grid.LARGEST_ENTRY`, for up to `queries.grid.MAX_CLIENTS`
    clients: nothing is rounded, clipped, wrapped, compressed, sampled or weighted.
  * No noise is added, and none is needed: what it measures and remembers depends on no
    client. (`extract_dp_event` refuses a sum that remembers anything.)
  """

  def __init__(self, inner: tff.aggregators.UnweightedAggregationFactory):
    """Wraps `inner`, which returns the exact sum; TypeError if it is weighted."""
    check_unweighted('inner', inner)
    # What returns the exact sum.
    self.inner = inner

  def create(self, value_type: Any) -> tff.templates.AggregationProcess:
    """Creates the inner factory's process, for a structure of int64 tensors."""
    return self.inner.create(value_type)


def check_exact_sum(name: str, value: Any) -> None:
  """Refuses what is not known, or said, to return the exact sum of the integers."""
  check_unweighted(name, value)
  # Not their subclasses, which may do as they like.
  if type(value) in (tff.aggregators.SumFactory, ExactSum) or _clips_nothing(value):
    return
  raise ValueError(
    f'{name} must return the exact sum of the integers that clients send, of magnitude '
    f'{grid.LARGEST_ENTRY} at most, and nothing here knows that '
    f'{type(value).__qualname__}, made like this, does. Use '
    'tff.aggregators.SumFactory() or aggregators.secure_sum(). What is to happen to '
    'values before they are clipped, such as zeroing, rotation or compression, goes '
    'around the factory of the mechanism. If it does return the sum, bit for bit, say '
    'so: aggregators.ExactSum(...).'
  )


def _clips_nothing(value: Any) -> bool:
  """Whether it is a secure sum with fixed thresholds, which no entry exceeds."""
  if type(value) is not tff.aggregators.SecureSumFactory:
    return False
  # TFF, of which this package takes one version alone, has no public way to ask.
  upper: Any = value._upper_bound_threshold
  lower: Any = value._lower_bound_threshold
  if not isinstance(upper, (int, np.integer)):
    return False
  lowest = -int(upper) if lower is None else int(lower)
  return int(upper) >= grid.LARGEST_ENTRY and lowest <= -grid.LARGEST_ENTRY


def secure_sum() -> tff.aggregators.SecureSumFactory:
  """Sums clipped records securely: a `record_aggregation_factory`.

  Its bounds are those of the grid, so nothing is rounded or clipped by it. Shifted to
  be positive, entries take 41 bits: sums of up to 2^22 clients fit into 63; larger
  cohorts need a platform whose sums wrap around at 2^64.

  TFF leaves secure sums to the platform that it is compiled for. Its local runtime has
  none ("Cannot embed a federated value");
  `tff.backends.test.set_sync_test_cpp_execution_context()` simulates them, with the
  same result and no security.
  """
  return tff.aggregators.SecureSumFactory(grid.LARGEST_ENTRY)


@dataclasses.dataclass(frozen=True)
class SignalToNoise:
  """The signal and the noise of one round, or of several that are added up.

  As pfl-research's `SNRMetric`. Signals add up as if they pointed the same way, squares
  of noise as if it were independent: the ratio is the most that it can be.
  (`accounting.noise_to_signal` plans it, and knows that correlated noise cancels.)
  **Not private**: `signal_norm` is exact and of clients.

  Attributes:
    signal_norm: L2 norm of the mean before noise, summed over rounds.
    squared_noise_norm: Expected square of the L2 norm of the noise in the mean, summed
      over rounds: number of coordinates times variance.
  """

  signal_norm: float = 0.0
  squared_noise_norm: float = 0.0

  def __post_init__(self) -> None:
    for name in ('signal_norm', 'squared_noise_norm'):
      value = float(getattr(self, name))
      if not value >= 0:
        raise ValueError(f'{name} must not be negative or NaN; got {value}.')
      object.__setattr__(self, name, value)

  @classmethod
  def of_measurements(cls, measurements: Mapping[str, Any]) -> 'SignalToNoise':
    """That of a round of `DPMeanFactory.with_not_private_signal_to_noise()`."""
    metrics = measurements.get('dp_query_metrics', measurements)
    try:
      return cls(metrics['not_private_signal_norm'], metrics['squared_noise_norm'])
    except KeyError as e:
      raise ValueError(
        f'the measurements lack {e}: make the process of '
        'factory.with_not_private_signal_to_noise().'
      ) from e

  def __add__(self, other: Any) -> 'SignalToNoise':
    if not isinstance(other, SignalToNoise):
      return NotImplemented
    return SignalToNoise(
      self.signal_norm + other.signal_norm,
      self.squared_noise_norm + other.squared_noise_norm,
    )

  @property
  def ratio(self) -> float:
    """Signal over the root of the mean square of the noise; NaN if there is neither."""
    if self.squared_noise_norm == 0:
      return math.inf if self.signal_norm else math.nan
    return self.signal_norm / math.sqrt(self.squared_noise_norm)
