"""The factory that turns a query into a TFF aggregation process."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

import dp_accounting
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.aggregators import nonfinite
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.noise import seeds

# What TFF's runtime carries in one call; above, it fails or, from 2 GB on, retries
# for ever without an error.
_MAX_STATE_BYTES = 1_895_825_408


class DPMeanFactory(tff.aggregators.UnweightedAggregationFactory):
  """Differentially private mean with a fixed denominator.

  The process clips each client's value, sums, adds the mechanism's noise, and divides
  by `clients_per_round`, however many clients reported: a denominator that depended
  on data would need noise of its own.

  `extract_dp_event` finds the event of the last round in its state. Its measurements
  hold `nonfinite_count`, and under
  `dp_query_metrics` the rounds served, the clip norm, the noise multiplier and the
  effective noise multiplier of all rounds so far.

  The state holds the key of the noise: keep checkpoints as safe as the data, and do
  not run a round again from an old state with other clients, which would add the same
  noise to different data.
  """

  def __init__(
    self,
    build_query: Callable[[Any], queries.MatrixMechanismQuery],
    *,
    clients_per_round: float,
    record_aggregation_factory: Optional[
      tff.aggregators.UnweightedAggregationFactory
    ] = None,
    count_sum_factory: Optional[tff.aggregators.UnweightedAggregationFactory] = None,
  ):
    """Initializes the factory.

    Args:
      build_query: Makes the query from the specs of a record; called once here, for a
        query that is only looked at, and once in each `create`.
      clients_per_round: The denominator, normally the size of the cohort asked for.
      record_aggregation_factory: Sums the clipped records; `None` means
        `tff.aggregators.SumFactory`. It must not make a record longer.
      count_sum_factory: Sums the counts of non-finite values, int32 scalars; `None`
        means `tff.aggregators.SumFactory`.

    Raises:
      TypeError: If an aggregation factory is not unweighted, or `clients_per_round` no
        number.
      ValueError: If `clients_per_round` is not positive and finite, or the query
        refuses its arguments.
    """
    checks.check_number('clients_per_round', clients_per_round)
    if not (clients_per_round > 0 and math.isfinite(clients_per_round)):
      raise ValueError(
        f'clients_per_round must be positive and finite; got {clients_per_round}.'
      )
    if record_aggregation_factory is None:
      record_aggregation_factory = tff.aggregators.SumFactory()
    nonfinite.check_unweighted('record_aggregation_factory', record_aggregation_factory)
    self._build_query = build_query
    self._clients_per_round = float(clients_per_round)
    self._record_aggregation_factory = record_aggregation_factory
    self._count_sum_factory = count_sum_factory
    # Made for a scalar: bad arguments are refused here, before any model is known.
    self._query = build_query(tf.TensorSpec([], tf.float32))

  @property
  def clients_per_round(self) -> float:
    """The denominator."""
    return self._clients_per_round

  @property
  def strategy(self) -> strategies.Strategy:
    """Strategy matrix C of the mechanism."""
    return self._query.strategy

  @property
  def participation(self) -> strategies.Participation:
    """What the privacy analysis assumes of clients; theirs to enforce who call.

    Raises:
      ValueError: If the mechanism serves any number of rounds.
    """
    return self._query.participation

  @property
  def clip_norm(self) -> float:
    """L2 bound of one client's contribution to one round.

    Raises:
      ValueError: If it adapts; the measurements have it then.
    """
    return self._query.clip_norm

  @property
  def noise_multiplier(self) -> float:
    """Standard deviation of z over the clip norm."""
    return self._query.noise_multiplier

  @property
  def effective_noise_multiplier(self) -> float:
    """`noise_multiplier / sens(C)` of all rounds together.

    Raises:
      ValueError: If the mechanism serves any number of rounds.
    """
    return self._query.effective_noise_multiplier

  @property
  def generator(self) -> str:
    """What random words the noise is made of: 'chacha20' or 'philox'."""
    return self._query.generator

  @property
  def seed_identity(self) -> str:
    """'secret', or which seed and stream the noise is of: 'seed 7, stream 0'."""
    return self._query.seed_identity

  def create(self, value_type: Any) -> tff.templates.AggregationProcess:
    """Creates the process.

    With a seed, each process after the first has a part of the seed's stream of its
    own, so that no two of them add the same noise.

    Args:
      value_type: Type of a client's value: float tensors of known shape. The mean of
        half precision is in float32.

    Returns:
      A process whose result is the private mean, a structure like a value.

    Raises:
      TypeError: If a tensor of it has another dtype.
      ValueError: If a shape is not known, or the state would be too large for TFF.
    """
    query = self._build_query(_record_specs(value_type))
    self._check_state_size(query)
    mean = queries.NormalizedQuery(query, denominator=self._clients_per_round)
    return nonfinite.ZeroNonfiniteFactory(
      tff.aggregators.DifferentiallyPrivateFactory(
        mean, self._record_aggregation_factory
      ),
      self._count_sum_factory,
    ).create(value_type)

  def _check_state_size(self, query: queries.MatrixMechanismQuery) -> None:
    initial = tff.tensorflow.computation(query.initial_global_state)
    num_bytes = _num_bytes(initial.type_signature.result)
    if num_bytes > _MAX_STATE_BYTES:
      raise ValueError(
        f'this mechanism would need a state of {num_bytes / 1e9:.2f} GB with '
        f'storage {query.storage!r}, but TFF carries at most '
        f'{_MAX_STATE_BYTES / 1e9:.2f} GB between rounds. Keep the noise in files '
        "(storage='files'), or use a mechanism that remembers less: fewer bands or "
        'buffers, the tree, or the Gaussian mechanism.'
      )


def from_query(
  query: Callable[..., queries.MatrixMechanismQuery],
  *args: Any,
  clients_per_round: float,
  record_aggregation_factory: Optional[tff.aggregators.UnweightedAggregationFactory],
  seed: noise.SeedLike = None,
  **kwargs: Any,
) -> DPMeanFactory:
  """The factory of `query(*args, record_specs=..., **kwargs)`.

  Args:
    query: Class of the query.
    *args: Its strategy and participation.
    clients_per_round: The denominator.
    record_aggregation_factory: Sums the clipped records; `None` means
      `tff.aggregators.SumFactory`.
    seed: Of the query's noise.
    **kwargs: The query's numbers, but for `record_specs` and `seed`.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If the query or the factory refuses an argument.
  """
  next_seed = seeds.for_factory(seed)

  def build_query(record_specs: Any) -> queries.MatrixMechanismQuery:
    return query(*args, record_specs=record_specs, seed=next_seed(), **kwargs)

  return DPMeanFactory(
    build_query,
    clients_per_round=clients_per_round,
    record_aggregation_factory=record_aggregation_factory,
  )


def _record_specs(value_type: Any) -> Any:
  """The tensor specs of a value as a TensorFlow computation will see it."""
  seen: list[Any] = []

  @tff.tensorflow.computation(value_type)
  def look(value: Any) -> Any:
    seen.append(tf.nest.map_structure(tf.TensorSpec.from_tensor, value))
    return value

  del look
  return seen[0]


def _num_bytes(value_type: Any) -> int:
  """Size of a TFF type made of tensors of known shapes."""
  if isinstance(value_type, tff.TensorType):
    dtype = tf.as_dtype(value_type.dtype)
    return dtype.size * (tf.TensorShape(value_type.shape).num_elements() or 0)
  return sum(_num_bytes(value_type[i]) for i in range(len(value_type)))


def extract_dp_event(state: Any) -> dp_accounting.DpEvent:
  """The privacy event of the round that returned a state.

  Args:
    state: State of a `DPMeanFactory` process, of an aggregation composed around one
      (`tff.aggregators.zeroing_factory` and the like), or of a learning process with
      such an aggregator, as its `next` returned it.

  Returns:
    The event, simplified to what every accountant reads.

  Raises:
    TypeError: If there is not exactly one such aggregator state in `state`.
    ValueError: If the state comes from `initialize`, before any round.
  """
  if isinstance(state, tff.learning.templates.LearningAlgorithmState):
    state = state.aggregator
  found = list(_dp_states(state))
  if len(found) != 1:
    raise TypeError(
      'expected a state with that of one DPMeanFactory process in it, got '
      f'{type(state).__name__} with {len(found)}.'
    )
  event = tff.aggregators.differential_privacy.extract_dp_event_from_state(found[0])
  return events.simplify(event)


def _dp_states(state: Any) -> Iterator[Any]:
  """Looks for `DPMeanFactory` states inside those of what it is composed with."""
  if hasattr(state, 'dp_event') and hasattr(state, 'is_init_state'):
    yield state
  elif isinstance(state, Mapping):
    for value in state.values():
      yield from _dp_states(value)
  elif isinstance(state, (list, tuple)):
    for value in state:
      yield from _dp_states(value)
