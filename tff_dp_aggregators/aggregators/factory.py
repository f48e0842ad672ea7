"""The factory that turns a query into a TFF aggregation process for a private mean.

In each round `DPMean.encode` clips a client's value to the grid, an inner aggregation
sums the values (`check_exact_sum` says which ones are allowed), and `DPMean.release`
adds the noise, divides, and computes the metrics.
"""

import collections
import copy
import dataclasses
import math
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

# Name of the count of non-finite values in a process's measurements.
NONFINITE_COUNT = 'nonfinite_count'
_SCALAR_SPEC = tf.TensorSpec([], tf.float32)
# The most that TFF's runtime carries in one call; above it fails or, from 2 GB on,
# retries for ever without an error.
_MAX_STATE_BYTES = 1_895_825_408
# An aggregation factory that sums records; `None` for `tff.aggregators.SumFactory`.
SumOfRecords = Optional[tff.aggregators.UnweightedAggregationFactory]


class DPMeanState(NamedTuple):
  """State of a `DPMeanFactory` process."""

  query: Any  # State of the query; secret, because it holds the key of the noise.
  record_sum: Any  # State of the aggregation that sums records.
  count_sum: Any  # State of the aggregation that counts clients.
  # Privacy spent by all rounds so far and by the last one: a `matrix_mechanism.Spent`.
  spent: Any


class DPMeanFactory(checks.SetOnce, tff.aggregators.UnweightedAggregationFactory):
  """Differentially private mean with a fixed denominator.

  The process clips each client's value, sums the clipped values, adds the mechanism's
  noise, and divides by `clients_per_round`, however many clients reported: a
  denominator that depends on the data would need noise of its own. The sums are exact
  (`queries.grid`), so one client changes them by at most the clip norm. A round of more
  than 10^7 clients fails.

  `extract_dp_event` returns the privacy event of a state. The measurements contain
  `nonfinite_count` and, under `dp_query_metrics`, the query's metrics
  (`derive_metrics`).

  A state records its mechanism; `next` fails if the process has another one. The state
  also holds the key of the noise: keep checkpoints as safe as the data, and do not run
  a round again from an old state with other clients, whose data would get equal noise.
  """

  def __init__(
    self,
    build_query: Callable[[Any], matrix_mechanism.GridSumQuery],
    *,
    clients_per_round: float,
    min_clients: Optional[int] = None,
    record_aggregation_factory: SumOfRecords = None,
    count_sum_factory: SumOfRecords = None,
    sample_specs: Any = _SCALAR_SPEC,
    draws_are_secret: bool = False,
  ):
    """Initializes the factory.

    Args:
      build_query: Returns a query that sums on the grid, given the specs of a record.
        It is called once here, for a sample query whose attributes this factory
        reports, and again in each `create`.
      clients_per_round: The denominator, normally the intended size of the cohort.
      min_clients: Minimum number of clients that have to report: a round with fewer
        fails, and what they sent is discarded. `None` for the query's minimum, if any.
      record_aggregation_factory: Sums the clipped records, structures of int64 with
        entries of magnitude at most `queries.grid.LARGEST_ENTRY`. `None` means
        `tff.aggregators.SumFactory`, and `secure_sum()` sums them securely. Any other
        factory has to be wrapped in `ExactSum`, which asserts that it returns the sum.
      count_sum_factory: Sums pairs of int32 scalars, 1 for each client and 1 for each
        value that is not finite; `None` sums them in the same way as records.
      sample_specs: Record specs of the sample query, if it does not accept scalars.
      draws_are_secret: Whether privacy rests on clients being drawn in secret.

    Raises:
      TypeError: If an argument has the wrong type.
      ValueError: If a number is out of range, the query refuses its arguments, or
        `record_aggregation_factory` might not return the exact sum.
    """
    check_clients_per_round(clients_per_round)
    if record_aggregation_factory is None:
      record_aggregation_factory = tff.aggregators.SumFactory()
    if count_sum_factory is None:
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
    # The denominator of the mean.
    self.clients_per_round = float(clients_per_round)
    self._record_aggregation_factory = record_aggregation_factory
    self._count_sum_factory = count_sum_factory
    # Whether privacy rests on clients being drawn in secret.
    self.draws_are_secret = draws_are_secret
    self._measures_signal = False
    self._sample_specs = sample_specs
    # A sample query, normally for scalar records; its constructor checks the arguments.
    self.query = build_query(sample_specs)
    # Minimum number of clients that have to report; 0 for no minimum.
    self.min_clients = self._least(min_clients)

  def query_for(self, record_specs: Any) -> matrix_mechanism.GridSumQuery:
    """Returns a new query for records of these specs, seeded like one of `create`."""
    return self._build_query(record_specs)

  def sample_spec(self, index: int) -> tf.TensorSpec:
    """Returns the spec of tensor `index` of the sample query's records."""
    flat = tf.nest.flatten(self._sample_specs)
    return flat[min(index, len(flat) - 1)]

  @property
  def uses_plain_sums(self) -> bool:
    """Whether records and counts are both summed by `tff.aggregators.SumFactory`."""
    sums = (self._record_aggregation_factory, self._count_sum_factory)
    return all(type(each) is tff.aggregators.SumFactory for each in sums)

  @property
  def strategy(self) -> strategies.Strategy:
    """Strategy matrix C; ValueError if the mechanism has none."""
    return self._query_attribute('strategy')

  @property
  def participation(self) -> strategies.Participation:
    """Participation that the privacy analysis assumes; ValueError if there is none."""
    return self._query_attribute('participation')

  @property
  def workload(self) -> Optional[strategies.Workload]:
    """Workload applied to all means so far; `None` if rounds return their own mean."""
    return getattr(self.query, 'workload', None)

  @property
  def clip_norm(self) -> float:
    """Bound of one client's contribution to one round, usually in L2 norm.

    ValueError if the clip norm is adaptive; it is in the measurements then.
    """
    return self._query_attribute('clip_norm')

  @property
  def noise_multiplier(self) -> float:
    """Standard deviation of z, or scale of Laplace noise, over the clip norm."""
    return self._query_attribute('noise_multiplier')

  @property
  def effective_noise_multiplier(self) -> float:
    """`noise_multiplier / sens(C)` of all rounds; ValueError if there is none."""
    return self._query_attribute('effective_noise_multiplier')

  @property
  def generator(self) -> str:
    """Generator of the random words for the noise: 'chacha20' or 'philox'."""
    return self._query_attribute('generator')

  @property
  def seed_identity(self) -> str:
    """'secret', or the seed and stream of the noise: 'seed 7, stream 0'."""
    return self._query_attribute('seed_identity')

  def _query_attribute(self, name: str) -> Any:
    """Returns an attribute of the query; raises ValueError if it has none."""
    if not hasattr(self.query, name):
      raise ValueError(f'{self.query} has no {name}.')
    return getattr(self.query, name)

  def with_min_clients(self, min_clients: int) -> 'DPMeanFactory':
    """Returns this factory with a minimum number of clients that have to report.

    A round with fewer clients fails: what they sent is discarded, nothing is released,
    and the state before that round can be used for another attempt. If this factory
    already has a larger minimum, that one applies.

    Raises:
      ValueError: If the number is out of range, or privacy rests on sampling.
    """
    checks.check_positive_int('min_clients', min_clients)
    strict = copy.copy(self)
    strict.__dict__['min_clients'] = max(self._least(min_clients), self.min_clients)
    return strict

  def _least(self, min_clients: Optional[int]) -> int:
    """Returns the larger of the caller's and the query's minimum number of clients."""
    minimum: int = self.query.min_clients
    if min_clients is not None:
      minimum = max(minimum, checks.check_positive_int('min_clients', min_clients))
    if minimum > self.clients_per_round:
      raise ValueError(
        f'min_clients is {minimum}, but clients_per_round is '
        f'{self.clients_per_round:g}; lower min_clients, or ask for more clients.'
      )
    if minimum and self.draws_are_secret:
      raise ValueError(
        f'min_clients={minimum} does not go with sampling: whether a round fails tells '
        'how many clients were drawn. Leave it out, or plan with limits.'
      )
    return minimum

  def with_not_private_signal_to_noise(self) -> 'DPMeanFactory':
    """Returns this factory, with the norms of exact mean and noise among the metrics.

    **These metrics are computed from clients' data without noise: they are not
    private**, no event covers them, and whoever publishes them has to say so
    (`not_covered` of `learning.RunOptions`). They are for simulations and for data that
    may be looked at. They are not part of the state.

    `dp_query_metrics` then contains `not_private_signal_norm` and `squared_noise_norm`
    of the round alone (see `SignalToNoise`).
    """
    measuring = copy.copy(self)
    measuring._measures_signal = True
    return measuring

  def create(self, value_type: Any) -> tff.templates.AggregationProcess:
    """Creates the process, whose result is the private mean, a structure like a value.

    With a seed, each process after the first uses a separate part of the seed's stream,
    so that no two processes add the same noise.

    Args:
      value_type: Type of a client's value: float tensors of known shape. The mean of
        half-precision tensors is in float32.

    Raises:
      TypeError: If a tensor has another dtype, or the type contains something other
        than tensors, such as a sequence.
      ValueError: If a shape is not known, or the state would be too large for TFF.
    """
    return self.mean_of(value_type).process(
      self._record_aggregation_factory, self._count_sum_factory
    )

  def mean_of(self, value_type: Any) -> 'DPMean':
    """Returns the mean that `create` makes a process of; same seeds and errors."""
    check_value_type(value_type)
    return DPMean(
      self._build_query(_record_specs(value_type)),
      self.clients_per_round,
      value_type,
      min_clients=self.min_clients,
      measures_signal=self._measures_signal,
    )


class Counts(NamedTuple):
  """Number of clients, and how many of their values were not finite; int32 scalars."""

  clients: Any
  nonfinite: Any


class DPMean:
  """A private mean of values of one type, as TensorFlow functions.

  In the `process` TFF sums what clients `encode`, for the server to `release`. Packed
  simulations compute the sum themselves and obtain the same integers.
  """

  def __init__(
    self,
    query: matrix_mechanism.GridSumQuery,
    clients_per_round: float,
    value_type: Any,
    *,
    min_clients: int,
    measures_signal: bool,
  ):
    self._measures_signal = measures_signal
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
    """Returns the state before the first round, for sums that have no state."""
    query_state = self._query.initial_global_state()
    return DPMeanState(query_state, (), (), self._query.spent(query_state))

  def client_params(self, query_state: Any) -> Any:
    """Returns the part of the query's state that clients receive; it is not secret."""
    return self._query.derive_sample_params(query_state)

  def encode(self, params: Any, value: Any) -> tuple[Any, Counts]:
    """Returns a client's clipped value in grid steps, and its share of the counts."""
    sample, finite = self._query.encode_record(params, value)
    is_nonfinite = tf.cast(tf.logical_not(finite), tf.int32)
    return sample, Counts(tf.constant(1, tf.int32), is_nonfinite)

  def release(
    self, query_state: Any, total: Any, counts: Counts
  ) -> tuple[Any, Any, Any, Any]:
    """Returns the mean, the query's next state, what was spent so far, and metrics."""
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
    previous_state = query_state
    noised, query_state, _ = self._query.get_noised_result(total, query_state)
    mean = self._query.mean_of(noised, self._clients_per_round)
    metrics = self._query.derive_metrics(query_state)
    if self._measures_signal:
      signal, squared_noise = self._query.signal_and_noise(total, previous_state)
      metrics['not_private_signal_norm'] = signal / self._clients_per_round
      metrics['squared_noise_norm'] = squared_noise / self._clients_per_round**2
    return mean, query_state, self._query.spent(query_state), metrics

  # For packed simulations, which train many numbered clients in one computation.

  @property
  def noised_by(self) -> Optional[matrix_mechanism.GridSumQuery]:
    """The query, if its clients add noise; the simulation then adds it to the sums."""
    return self._query if self._query.clients_add_noise else None

  def no_sum(self) -> Any:
    """Returns the sum of no values."""
    return self._query.initial_sample_state()

  def sum_without_noise(self, params: Any, stacked: Any) -> tuple[Any, tf.Tensor]:
    """Returns the sum of stacked values, without noise, and which ones are finite."""
    return self._query.sum_without_noise(params, stacked)

  def process(
    self,
    record_aggregation_factory: tff.aggregators.UnweightedAggregationFactory,
    count_sum_factory: tff.aggregators.UnweightedAggregationFactory,
  ) -> tff.templates.AggregationProcess:
    """Returns the TFF process of the mean; clients run a single computation."""
    query_init = self._query_init
    query_state_type = query_init.type_signature.result
    initial_spent = tff.tensorflow.computation(
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
          tff.federated_map(initial_spent, query_state),
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


def check_clients_per_round(clients_per_round: float) -> None:
  """Raises unless it is the denominator of a mean of records whose sum is exact."""
  checks.check_number('clients_per_round', clients_per_round)
  if not 0 < clients_per_round <= grid.MAX_CLIENTS:
    raise ValueError(
      'clients_per_round must be positive, finite and at most 10^7, the most clients '
      f'whose sum is exact; got {clients_per_round}.'
    )


class Mean(noise.IndependentOptions, total=False):
  """Arguments that several builders share; see `gaussian` for their meaning."""

  clip_norm: Required[float]
  noise_multiplier: Required[float]
  record_aggregation_factory: SumOfRecords


class IndependentMean(Mean, total=False):
  """The arguments of `Mean`, and the denominator of the mean."""

  clients_per_round: Required[float]


def from_query(
  query: Callable[..., matrix_mechanism.GridSumQuery],
  *args: Any,
  clients_per_round: Any = None,  # Required: the factory refuses `None`.
  record_aggregation_factory: SumOfRecords = None,
  seed: noise.SeedLike = None,
  **kwargs: Any,
) -> DPMeanFactory:
  """Returns the `DPMeanFactory` of `query(*args, record_specs=..., **kwargs)`."""
  next_seed = options.for_factory(seed)

  def build_query(record_specs: Any) -> matrix_mechanism.GridSumQuery:
    return query(*args, record_specs=record_specs, seed=next_seed(), **kwargs)

  return DPMeanFactory(
    build_query,
    clients_per_round=clients_per_round,
    record_aggregation_factory=record_aggregation_factory,
  )


def _record_specs(value_type: Any) -> Any:
  """Returns the tensor specs of a value as a TensorFlow computation will see it."""
  traced: list[Any] = []

  def trace(value: Any) -> Any:
    traced.append(tf.nest.map_structure(tf.TensorSpec.from_tensor, value))
    return value

  tff.tensorflow.computation(tracing.as_written(trace), value_type)
  return traced[0]


def _num_bytes(value_type: Any) -> int:
  """Returns the size in bytes of a TFF type made of tensors of known shapes."""
  if isinstance(value_type, tff.TensorType):
    dtype = tf.as_dtype(value_type.dtype)
    return dtype.size * (tf.TensorShape(value_type.shape).num_elements() or 0)
  return sum(_num_bytes(value_type[i]) for i in range(len(value_type)))


def check_unweighted(name: str, value: Any) -> None:
  """Raises TypeError unless the value is an unweighted aggregation factory."""
  if isinstance(value, tff.aggregators.UnweightedAggregationFactory):
    return
  raise TypeError(
    f'{name} must be a tff.aggregators.UnweightedAggregationFactory, such as '
    f'aggregators.gaussian(...), got {type(value).__name__}. (A weighted mean divides '
    "by the sum of weights, clients' data that would be released without noise.)"
  )


def check_value_type(value_type: Any, path: str = '') -> None:
  """Raises TypeError unless the type is a structure of tensors."""
  if isinstance(value_type, tff.TensorType):
    return
  if not isinstance(value_type, tff.StructWithPythonType):
    where = f'has {value_type} at {path}' if path else f'is {value_type}'
    raise TypeError(
      f'value_type {where}, a {type(value_type).__name__}, and must be a structure of '
      'tensors, of dicts, lists and tuples, as tff.to_type makes it. Make tensors of a '
      "client's value before it is aggregated: a sum over the sequence, say."
    )
  for index, (name, each) in enumerate(tff.structure.iter_elements(value_type)):
    key = index if name is None else name
    check_value_type(each, f'{path}.{key}' if path else str(key))


def check_part(name: str, mean: Any, user: str) -> DPMeanFactory:
  """Returns the private mean if `user`, another factory, can sum its records."""
  if not isinstance(mean, DPMeanFactory):
    raise TypeError(
      f'{name} must be a factory of private means, such as '
      f'aggregators.gaussian(...); got one of type {type(mean).__name__}.'
    )
  if not mean.uses_plain_sums:
    raise ValueError(
      f'{name} has its own record_aggregation_factory; give '
      f'record_aggregation_factory to {user} instead.'
    )
  return mean


def add_nonfinite_count(measurements: Any, count: Any) -> Any:
  """Adds `count` to the non-finite count of measurements, in a federated computation.

  Measurements without names are put under `aggregation`.
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


# Records may only be summed by aggregations that are known to return the exact sum,
# because the sensitivity is that of the sum (`queries.grid`). If the aggregation
# quantizes, wraps, clips or samples, one client can change the result by more than its
# clip norm, and the noise does not cover that. Neither the type of an aggregation nor a
# trial run shows whether it is exact: a secure sum runs only where it is deployed. So
# the exact classes are listed here, with the arguments that they must have; for any
# other one the caller has to vouch, visibly in the code, with `ExactSum`.


class ExactSum(checks.SetOnce, tff.aggregators.UnweightedAggregationFactory):
  """Asserts that a factory unknown to this package returns exact sums of integers.

  The stated privacy holds only if the following is true of the inner factory:

  * The result is the sum over all clients that report, in int64, of integers of
    magnitude at most `queries.grid.LARGEST_ENTRY`, for up to `queries.grid.MAX_CLIENTS`
    clients: nothing is rounded, clipped, wrapped, compressed, sampled or weighted.
  * It adds no noise and needs none: its measurements and its state depend on no client.
    (`extract_dp_event` refuses a sum that has a state.)
  """

  def __init__(self, inner: tff.aggregators.UnweightedAggregationFactory):
    """Wraps `inner`, which returns the exact sum; TypeError if it is weighted."""
    check_unweighted('inner', inner)
    # The factory that returns the exact sum.
    self.inner = inner

  def create(self, value_type: Any) -> tff.templates.AggregationProcess:
    """Creates the inner factory's process, for a structure of int64 tensors."""
    return self.inner.create(value_type)


def check_exact_sum(name: str, value: Any) -> None:
  """Raises ValueError unless the factory is known or asserted to sum exactly."""
  check_unweighted(name, value)
  # Subclasses are not accepted, because they may override what these classes do.
  if type(value) in (tff.aggregators.SumFactory, ExactSum) or _never_clips(value):
    return
  raise ValueError(
    f'{name} must return the exact sum of the integers that clients send, of magnitude '
    f'{grid.LARGEST_ENTRY} at most, and it is not known whether '
    f'{type(value).__qualname__}, with its arguments, does. Use '
    'tff.aggregators.SumFactory() or aggregators.secure_sum(). To change values before '
    'they are clipped, for instance by zeroing, rotation or compression, wrap the '
    'factory of the mechanism. If this factory does return the sum, bit for bit, say '
    'so: aggregators.ExactSum(...).'
  )


def _never_clips(value: Any) -> bool:
  """Whether the value is a secure sum with fixed bounds that no entry exceeds."""
  if type(value) is not tff.aggregators.SecureSumFactory:
    return False
  # TFF has no public accessor; this package requires one exact version of TFF.
  upper: Any = value._upper_bound_threshold
  lower: Any = value._lower_bound_threshold
  if not isinstance(upper, (int, np.integer)):
    return False
  lower_bound = -int(upper) if lower is None else int(lower)
  return int(upper) >= grid.LARGEST_ENTRY and lower_bound <= -grid.LARGEST_ENTRY


def secure_sum() -> tff.aggregators.SecureSumFactory:
  """Returns a `record_aggregation_factory` that sums clipped records securely.

  Its bounds are those of the grid, so it neither rounds nor clips. Entries, shifted to
  be positive, take 41 bits: sums of up to 2^22 clients fit into 63 bits; larger cohorts
  need a platform whose sums wrap around at 2^64.

  TFF leaves secure sums to the platform that it is compiled for. Its local runtime has
  none ("Cannot embed a federated value");
  `tff.backends.test.set_sync_test_cpp_execution_context()` simulates them, with the
  same result and no security; so does `learning.runtime.local_runtime`'s
  `simulated_secure_sums`.
  """
  return tff.aggregators.SecureSumFactory(grid.LARGEST_ENTRY)


@dataclasses.dataclass(frozen=True)
class SignalToNoise:
  """Norms of the signal and the noise of one round, or summed over several rounds.

  It corresponds to pfl-research's `SNRMetric`. Signals are added as if they all had the
  same direction, and squared noise norms as if the noise were independent, so the
  ratio is an upper bound. (`accounting.noise_to_signal` plans the ratio, and takes into
  account that correlated noise cancels.) **Not private**: `signal_norm` is computed
  from clients' data without noise.

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

  def __add__(self, other: Any) -> 'SignalToNoise':
    if not isinstance(other, SignalToNoise):
      return NotImplemented
    return SignalToNoise(
      self.signal_norm + other.signal_norm,
      self.squared_noise_norm + other.squared_noise_norm,
    )

  @property
  def ratio(self) -> float:
    """`signal_norm` over the root mean square of the noise; NaN if both are zero."""
    if self.squared_noise_norm == 0:
      return math.inf if self.signal_norm else math.nan
    return self.signal_norm / math.sqrt(self.squared_noise_norm)
