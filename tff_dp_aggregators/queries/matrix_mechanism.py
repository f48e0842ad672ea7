"""Base classes of queries, and the query of all matrix mechanisms.

A query implements TF Privacy's `DPQuery`: it clips records, sums them, adds noise and
returns the privacy event. Gaussian sums, trees and banded matrices are constructors of
one class, `MatrixMechanismQuery`.
"""

import abc
import collections
import json
import math
from typing import Any, NamedTuple, Optional, Union

import dp_accounting
import numpy as np
import tensorflow as tf

# TensorFlow Privacy is imported only here: TFF's next releases contain these classes,
# and moving to them then changes this file alone.
from tensorflow_privacy.privacy.dp_query import normalized_query
from tensorflow_privacy.privacy.dp_query.dp_query import DPQuery
from tensorflow_privacy.privacy.dp_query.dp_query import SumAggregationDPQuery
from typing_extensions import Unpack

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.noise import options
from tff_dp_aggregators.queries import grid

__all__ = ['DPQuery', 'SumAggregationDPQuery']

# The result of a round, the next state and the event.
Released = tuple[Any, Any, dp_accounting.DpEvent]
# Metrics of a state, by name.
Metrics = collections.OrderedDict[str, tf.Tensor]

# Privacy spent by the rounds up to a state. Checkpoints and TFF's worker carry tensors
# but no events, so a state holds one of these classes, which convert to events.


class GaussianSpent(NamedTuple):
  """Privacy spent by a Gaussian mechanism, correlated or not, as noise multipliers.

  Both are infinite before the first round. That of the last round is infinite, too, if
  the round did not add to the worst case.
  """

  last_round_noise_multiplier: Any  # float64.
  all_rounds_noise_multiplier: Any  # float64.

  def to_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds so far."""
    return _gaussian(self.all_rounds_noise_multiplier)

  def last_to_event(self) -> dp_accounting.DpEvent:
    """The event of the last round; those of all rounds compose to `to_event`."""
    return _gaussian(self.last_round_noise_multiplier)


class RepeatedSpent(NamedTuple):
  """Privacy spent by independent noise, for a client in as many rounds as it may be.

  `event` is that of one round, as JSON. The counts say how many times it was spent: in
  the last round, 0 or 1, and in all rounds.
  """

  event: Any  # String scalar.
  last_round: Any  # int64.
  all_rounds: Any  # int64.

  def to_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds so far."""
    return self._times(self.all_rounds)

  def last_to_event(self) -> dp_accounting.DpEvent:
    """The event of the last round; those of all rounds compose to `to_event`."""
    return self._times(self.last_round)

  def _times(self, count: Any) -> dp_accounting.DpEvent:
    event = events.from_json(json.loads(np.asarray(self.event).item()))
    return events.simplify(dp_accounting.SelfComposedDpEvent(event, int(count)))


class ComposedSpent(NamedTuple):
  """Privacy spent by several mechanisms; clients took part in all of them."""

  parts: Any

  def to_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds so far."""
    return _composed([part.to_event() for part in self.parts])

  def last_to_event(self) -> dp_accounting.DpEvent:
    """The event of the last round; those of all rounds compose to `to_event`."""
    return _composed([part.last_to_event() for part in self.parts])


Spent = Union[GaussianSpent, RepeatedSpent, ComposedSpent]


def _composed(parts: list[dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
  return events.simplify(dp_accounting.ComposedDpEvent(parts))


def _gaussian(noise_multiplier: Any) -> dp_accounting.DpEvent:
  return events.simplify(dp_accounting.GaussianDpEvent(float(noise_multiplier)))


def check_round(this_round: tf.Tensor, num_rounds: int) -> tf.Tensor:
  """Returns the round, after asserting that it is one of the planned rounds."""
  return grid.asserted(
    this_round,
    this_round < tf.constant(num_rounds, tf.int64),
    f'This query was built for {num_rounds} rounds and has served them all. What comes '
    'after them is a run of its own: begin one with `initialize`, and add up what both '
    'spend.',
  )


def unlimited_error() -> ValueError:
  """Returns the error for uses of a participation that was not given."""
  return ValueError(
    'this query serves any number of rounds, so there is no limit to what they spend '
    'together. Give a participation, or compose the events that the rounds return.'
  )


class RecordSumQuery(SumAggregationDPQuery):
  """Base class of all queries: checks records, and sums half precision in float32."""

  def __init__(self, record_specs: Optional[Any] = None):
    """Initializes the query for records of these specs; `None` for any records."""
    self._record_specs = (
      None if record_specs is None else noise_lib.sum_specs(record_specs)
    )

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns zeros like `template`, by default like the query's records."""
    template = self._record_specs if template is None else template
    if template is None:
      raise ValueError(
        'initial_sample_state needs a template, or the query record_specs.'
      )
    return self._check(super().initial_sample_state(template))

  def preprocess_record(self, params: Any, record: Any) -> Any:
    """Returns the record as tensors, half precision in float32."""
    del params
    return self._check(record)

  def _check(self, record: Any) -> Any:
    if self._record_specs is None:
      return grid.as_tensors(record)
    return grid.check_record(record, self._record_specs)


class GridSumQuery(checks.SetOnce, RecordSumQuery):
  """Base class of queries that bound records and sum them as integers (see `grid`).

  Callers that use one without `aggregators`, which count records, have to make sure
  that no sum is of more than `grid.MAX_CLIENTS` records.
  """

  # Whether each execution of `encode_record` draws a new key. Clients that are
  # vectorised in one computation would share this key, and so their noise.
  clients_draw_keys: bool = False
  # Whether the integers that `encode_record` returns contain noise of the client.
  clients_add_noise: bool = False
  # Minimum number of clients for a round to have as much noise as is stated.
  min_clients: int = 0

  @property
  def noise_identities(self) -> tuple[str, ...]:
    """Seeds and streams of the noise; empty if the noise is secret."""
    identity = getattr(self, 'seed_identity', 'secret')
    return () if identity == 'secret' else (identity,)

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns the sum of no records: int64 zeros like `template`."""
    return grid.zeros_like(super().initial_sample_state(template))

  def preprocess_record(self, params: Any, record: Any) -> Any:
    """Returns the record clipped, in steps of the grid; zeros if it is not finite."""
    sample, _ = self.encode_record(params, record)
    return sample

  @abc.abstractmethod
  def encode_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the result of `preprocess_record`, and whether the record was finite."""

  def mean_of(self, result: Any, clients_per_round: float) -> Any:
    """Returns the private mean of a round, given its noised result."""
    return tf.nest.map_structure(
      lambda tensor: tensor / tf.cast(clients_per_round, tensor.dtype), result
    )

  # For packed simulations, which train many numbered clients in one computation.

  def encode_without_noise(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the result of `encode_record` without the client's noise."""
    return self.encode_record(params, record)

  def sum_without_noise(self, params: Any, stacked: Any) -> tuple[Any, tf.Tensor]:
    """Returns the sum of stacked records, and which of them were finite."""
    samples, finite = tf.vectorized_map(
      lambda record: self.encode_without_noise(params, record),
      stacked,
      fallback_to_while_loop=False,
    )
    sums = tf.nest.map_structure(lambda each: tf.reduce_sum(each, axis=0), samples)
    return sums, finite

  def round_key(self, global_state: Any) -> Any:
    """Returns the key of the noise of a round's clients; empty if they add none."""
    del global_state
    return ()

  def with_noise_of(
    self, params: Any, sample_state: Any, round_key: Any, number: tf.Tensor
  ) -> Any:
    """Returns the sum with the noise of client `number` added, if clients add noise."""
    del params, round_key, number
    return sample_state

  def signal_and_noise(
    self, sample_state: Any, global_state: Any
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the norm of the exact sum, not private, and the noise's mean square."""
    del sample_state, global_state
    raise ValueError(
      f'{type(self).__name__} cannot measure signal and noise separately; leave this '
      'measurement out.'
    )

  def _num_coordinates(self) -> int:
    specs = tf.nest.flatten(self._record_specs)
    return sum(spec.shape.num_elements() for spec in specs)

  @abc.abstractmethod
  def spent(self, global_state: Any) -> Spent:
    """Returns the privacy spent by all rounds up to a state, and by the last one."""


def check_grid_sum(name: str, query: Any) -> None:
  """Raises TypeError unless the query sums on the grid."""
  if not isinstance(query, GridSumQuery):
    raise TypeError(
      f'{name} must be a query that bounds records and sums them exactly, such as '
      f'queries.GaussianSumQuery; got one of type {type(query).__name__}.'
    )


class NoisySumQuery(GridSumQuery):
  """Base class of queries with noise: properties of the noise and of the clip norm."""

  _clip_norm: float
  _noise_multiplier: float
  _rows: noise_lib.GaussianRows

  @property
  def generator(self) -> str:
    """Generator of the random words for the noise: 'chacha20' or 'philox'."""
    return self._rows.generator

  @property
  def seed_identity(self) -> str:
    """'secret', or the seed and stream of the noise: 'seed 7, stream 0'."""
    return self._rows.seed_identity

  @property
  def clip_norm(self) -> float:
    """Bound of one record, in L2 norm, or in L1 norm for Laplace noise."""
    return self._clip_norm

  @property
  def noise_multiplier(self) -> float:
    """Standard deviation of z, or scale of Laplace noise, over the clip norm.

    For local noise it is that of one client, for shares that of `min_clients` together.
    """
    return self._noise_multiplier


class NormalizedQuery(normalized_query.NormalizedQuery):
  """TensorFlow Privacy's query of this name: divides the result of another query.

  Records and events are those of the other query.
  """

  def __init__(self, numerator_query: SumAggregationDPQuery, *, denominator: float):
    """Initializes the query; `denominator` divides the numerator query's result."""
    super().__init__(numerator_query, denominator)

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns the numerator query's sum of no records."""
    return self._numerator.initial_sample_state(template)


# If a state were used with another strategy, noise multiplier or participation, noise
# would not cancel and events would be wrong, and nobody would notice. So each state
# carries a text that describes its mechanism, and a round with another one fails.

# Incremented when the contents of states change, so that older states are refused.
_STATE_FORMAT = 2


def mechanism_text(mechanism: dict[str, Any]) -> str:
  """Returns the text that describes a mechanism; equal mechanisms have equal texts."""
  return json.dumps({**mechanism, 'state_format': _STATE_FORMAT}, sort_keys=True)


def check_state(belongs_to: Any, mechanism: str, this_round: tf.Tensor) -> tf.Tensor:
  """Returns the round, after asserting that the state belongs to this mechanism."""
  return grid.asserted(
    this_round,
    tf.equal(belongs_to, mechanism),
    'This state belongs to another mechanism. Continue with its own mechanism, or '
    'begin anew with `initialize`. (Each use of an int as seed takes its next '
    'stream: if those in "noise" differ, pass the stream of the state, as '
    '`seed=noise.Seed(7, stream=0, part=0)`.) The state is of',
    belongs_to,
    'and the process of',
    mechanism,
  )


class GlobalState(NamedTuple):
  """State of a query between rounds."""

  noise: Any  # `noise.NoiseState`; secret, because it holds the key.
  clip_norm: Any  # L2 bound of a record, float32.
  # With a workload, the last result, and with momentum the velocity before it:
  # structures like a record.
  released: Any
  belongs_to: Any  # The `mechanism_text` of the mechanism; string scalar.
  adaptation: Any = ()  # State of an adaptive clip norm; empty if it is fixed.


class MatrixMechanismQuery(NoisySumQuery):
  """Sums of clipped records with the correlated noise of a strategy.

  In round t the query releases the sum of the round's clipped records plus
  `clip_norm * noise_multiplier * (D z)[t]`, with `D` the strategy's noise matrix and z
  iid standard Gaussian. All rounds together are one Gaussian mechanism with
  effective noise multiplier `noise_multiplier / sens(C)`. With a workload it releases
  row t of the workload applied to these sums, which is the same information. The caller
  has to enforce that clients take part no more often than the participation says
  (`sampling` does).

  Records are structures of float tensors; half precision is summed, and released, in
  float32. A record with an entry that is NaN or infinite counts as zero.
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
    participation: strategies.Participation,
    *,
    clip_norm: float,
    noise_multiplier: float,
    record_specs: Any,
    workload: Optional[strategies.Workload] = None,
    **noise_options: Unpack[noise_lib.Options],
  ):
    """Initializes the query.

    Args:
      strategy: Strategy matrix C. One round more than it has is an error.
      participation: Who may take part when, for the same number of rounds.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of z over `clip_norm`; 0 adds no noise.
      record_specs: Structure of float tensor specs like a record.
      workload: `None` to release the sum of each round (the residual of a prefix sum);
        `Workload(num_rounds)` for prefix sums, with momentum, learning rates or weight
        decay if it has them.
      **noise_options: See `noise.Options`.

    Raises:
      OSError: If `storage` names a directory that cannot be used.
      RuntimeError: If another process uses this directory.
      TypeError: If an argument has the wrong type; `participation` may not be `None`.
      ValueError: If a number is out of range, a shape is not fully defined, or the
        participation or workload is for another number of rounds than the strategy.
    """
    super().__init__(record_specs)
    # Whether the strategy has one round, which is repeated any number of times.
    self._unlimited = False
    strategies.strategy.require(strategy)
    self._clip_norm = grid.check_clip_norm(clip_norm)
    self._noise_multiplier = grid.check_noise_multiplier(noise_multiplier)
    # Strategy matrix C.
    self.strategy = strategy
    self._participation = strategies.participation.require(participation)
    self._round_noise_multipliers = events.round_noise_multipliers(
      strategy, self._participation, self._noise_multiplier
    )
    if not isinstance(workload, (strategies.Workload, type(None))):
      raise TypeError(
        f'workload must be a strategies.Workload or None, got {workload!r}.'
      )
    if workload is not None:
      strategies.workload.check(strategy.num_rounds, workload)
    # Workload whose rows are released; `None` to release the sum of each round.
    self.workload = workload
    opts = options.checked(noise_options)
    self._rows = noise_lib.GaussianRows(self._sum_specs(), opts.seed, opts.generator)
    self._noise = noise_lib.build(strategy, self._rows, opts.storage)

  @property
  def participation(self) -> strategies.Participation:
    """Participation that the privacy analysis assumes."""
    self._check_limited()
    return self._participation

  @property
  def storage(self) -> str:
    """Storage of the noise of earlier rounds: 'state', 'redraw' or 'files'."""
    return self._noise.storage

  @property
  def effective_noise_multiplier(self) -> float:
    """`noise_multiplier / sens(C)`, which determines the privacy of all rounds."""
    self._check_limited()
    return float(self._round_noise_multipliers[1][-1])

  def run_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together."""
    self._check_limited()
    return events.run_event(self.strategy, self._participation, self._noise_multiplier)

  def _check_limited(self) -> None:
    if self._unlimited:
      raise unlimited_error()

  def initial_global_state(self) -> GlobalState:
    """Returns the state before round 0, with a new key."""
    return GlobalState(
      noise=self._noise.initialize(),
      clip_norm=tf.constant(self._clip_norm, tf.float32),
      released=self._initial_released(),
      belongs_to=tf.constant(mechanism_text(self._mechanism())),
    )

  def _mechanism(self) -> dict[str, Any]:
    """Returns the JSON object that identifies the mechanism of a state."""
    # Fixed epochs allow fewer patterns, so less sensitivity may be claimed for them.
    fixed_epoch = {'fixed_epoch': True} if self._participation.fixed_epoch else {}
    return {
      **fixed_epoch,
      'strategy': f'{self.strategy.kind} {self.strategy.checksum}',
      'num_rounds': None if self._unlimited else self._participation.num_rounds,
      'min_separation': self._participation.min_separation,
      'max_participations': self._participation.max_participations,
      'clip_norm': self._clip_norm,
      'noise_multiplier': self._noise_multiplier,
      'noise': f'{self.generator}, {self.seed_identity}',
      # A row of z depends on how its vectors are laid out.
      'vectors': self._rows.layout.vectors,
      'released': 'sums' if self.workload is None else repr(self.workload),
    }

  def _sum_specs(self) -> Any:
    """Returns the specs of the sum of preprocessed records."""
    return self._record_specs

  def _initial_released(self) -> Any:
    if self.workload is None:
      return ()
    zeros = self._rows.layout.zeros
    return (zeros(), zeros()) if self.workload.momentum else (zeros(),)

  def derive_sample_params(self, global_state: GlobalState) -> tf.Tensor:
    """Returns the clip norm, all that clients need to know."""
    return global_state.clip_norm

  def encode_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the record clipped, in steps of the grid, and whether it was finite."""
    clip_norm = self._clip_norm_of(params)
    clipped = grid.clip_to_grid(self._check(record), clip_norm, self._steps(clip_norm))
    return self._sample(params, clipped.integers, clipped.norm), clipped.finite

  def sum_without_noise(self, params: Any, stacked: Any) -> tuple[Any, tf.Tensor]:
    """Returns the sum of stacked records, and which of them were finite."""
    if not self._uses_default_encoding:
      return super().sum_without_noise(params, stacked)
    clip_norm = self._clip_norm_of(params)
    added = grid.sum_clipped(stacked, clip_norm, self._steps(clip_norm))
    return self._sample(params, added.integers, added.norms), added.finite

  @property
  def _uses_default_encoding(self) -> bool:
    """Whether no subclass overrides the encoding of records."""
    names = ('encode_record', 'encode_without_noise', 'preprocess_record')
    base = MatrixMechanismQuery
    return all(getattr(type(self), each) is getattr(base, each) for each in names)

  # A sample consists of integers on the grid; adaptive clipping overrides this.

  def _clip_norm_of(self, params: Any) -> tf.Tensor:
    return params

  def _sample(self, params: Any, integers: Any, norms: Any) -> Any:
    del params, norms
    return integers

  def _integers(self, sample_state: Any) -> Any:
    return sample_state

  def _steps(self, clip_norm: tf.Tensor) -> tf.Tensor:
    """Returns the number of grid steps in 1.0."""
    return grid.steps_per_unit(clip_norm, self._noise_multiplier)

  def get_noised_result(self, sample_state: Any, global_state: GlobalState) -> Released:
    """Returns the noised sum, the next state and the round's `GaussianDpEvent`.

    The events of all rounds so far compose to the privacy that they spent; the noise
    multiplier is infinite in rounds that add nothing to the worst case. A state of
    another mechanism, or after the last round, is an `InvalidArgumentError` when run.
    """
    this_round = check_state(
      global_state.belongs_to,
      mechanism_text(self._mechanism()),
      global_state.noise.round,
    )
    if not self._unlimited:
      this_round = check_round(this_round, self.strategy.num_rounds)
    state = global_state._replace(noise=global_state.noise._replace(round=this_round))
    noise, noise_state = self._noise.next(state.noise)
    result, state = self._publish(self._add_noise(sample_state, noise, state), state)
    state = state._replace(noise=noise_state)
    event = dp_accounting.GaussianDpEvent(self._noise_multiplier_of(this_round))
    return result, state, event

  def _noise_multiplier_of(self, this_round: tf.Tensor) -> tf.Tensor:
    """Returns the noise multiplier of one round's event."""
    if self._unlimited:
      return tf.constant(self._noise_multiplier, tf.float64)
    return tf.gather(self._round_noise_multipliers[0], this_round)

  def _effective_noise_multiplier_after(self, rounds: tf.Tensor) -> tf.Tensor:
    """Returns the effective noise multiplier of the first `rounds` rounds together."""
    if self._unlimited:
      # Infinite before the first round, also without noise.
      return tf.where(
        rounds > 0,
        self._noise_multiplier / tf.sqrt(tf.cast(rounds, tf.float64)),
        tf.constant(math.inf, tf.float64),
      )
    by_num_rounds = np.concatenate([[math.inf], self._round_noise_multipliers[1]])
    return tf.gather(by_num_rounds, rounds)

  def _add_noise(self, sample_state: Any, noise: Any, state: GlobalState) -> Any:
    """Adds the noise on the grid and returns the sum in the dtypes of the record."""
    steps = self._steps(state.clip_norm)
    noised = grid.add_noise(sample_state, noise, self._stddev(state) * steps)
    return grid.to_floats(noised, self._record_specs, steps)

  def _publish(self, noised_sum: Any, state: GlobalState) -> tuple[Any, GlobalState]:
    """Returns the result for a noised sum, and the updated state."""
    workload = self.workload
    if workload is None:
      return noised_sum, state
    step, total = noised_sum, state.released[-1]
    if workload.momentum:
      momentum = tf.constant(workload.momentum, tf.float64)
      step = _add_scaled(noised_sum, state.released[0], momentum)
    rate = tf.constant(1.0, tf.float64)
    if workload.learning_rates is not None:
      rates = tf.constant(workload.learning_rates, tf.float64)
      rate = tf.gather(rates, state.noise.round)
    if workload.weight_decay:
      decay = tf.constant(-workload.weight_decay, tf.float64)
      total = _add_scaled(total, total, decay)
    total = _add_scaled(total, step, rate)
    released = (step, total) if workload.momentum else (total,)
    return total, state._replace(released=released)

  def _stddev(self, state: GlobalState) -> tf.Tensor:
    """Returns the standard deviation of z, float64."""
    return tf.cast(state.clip_norm, tf.float64) * self._noise_multiplier

  def signal_and_noise(
    self, sample_state: Any, global_state: GlobalState
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns both for the sum of the round, whatever the workload is."""
    row_norms = self.strategy.noise_row_norms()
    # A Gaussian sum without participation repeats its one round.
    this_round = tf.minimum(global_state.noise.round, len(row_norms) - 1)
    stddev = self._stddev(global_state) * tf.gather(row_norms, this_round)
    integers = self._integers(sample_state)
    signal = grid.norm(integers, self._steps(global_state.clip_norm))
    return signal, self._num_coordinates() * tf.square(stddev)

  def spent(self, global_state: GlobalState) -> GaussianSpent:
    """Returns the noise multipliers of the last round, and of all rounds together."""
    rounds = global_state.noise.round
    last = self._noise_multiplier_of(tf.maximum(rounds - 1, 0))
    infinite = tf.constant(math.inf, tf.float64)
    return GaussianSpent(
      tf.where(rounds > 0, tf.cast(last, tf.float64), infinite),
      self._effective_noise_multiplier_after(rounds),
    )

  def derive_metrics(self, global_state: GlobalState) -> Metrics:
    """Returns number of rounds, clip norm, noise and privacy spent; no clients' data.

    `effective_noise_multiplier` is that of all rounds so far together. `noise_key_tag`
    identifies the secret key without revealing it; it is empty with a seed.
    """
    rounds = global_state.noise.round
    return collections.OrderedDict(
      rounds=rounds,
      clip_norm=global_state.clip_norm,
      noise_multiplier=tf.constant(self._noise_multiplier, tf.float64),
      effective_noise_multiplier=self._effective_noise_multiplier_after(rounds),
      noise_storage=tf.constant(self.storage),
      noise_generator=tf.constant(self.generator),
      noise_key_tag=self._rows.key_tag(global_state.noise.key),
    )

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}({self.strategy.kind}, {self._participation}, '
      f'clip_norm={self._clip_norm}, noise_multiplier={self._noise_multiplier})'
    )


def _add_scaled(one: Any, other: Any, factor: tf.Tensor) -> Any:
  """`one + factor * other`, tensor by tensor."""
  return tf.nest.map_structure(
    lambda x, y: x + tf.cast(factor, x.dtype) * y, one, other
  )


class GaussianSumQuery(MatrixMechanismQuery):
  """Clips records, sums them and adds independent Gaussian noise (1710.06963).

  Its strategy is the identity. With a `participation`, a client pays nothing for rounds
  in which it cannot take part.

  Example:
    >>> query = GaussianSumQuery(
    ...   strategies.Participation(num_rounds=10, min_separation=5),
    ...   clip_norm=1.0,
    ...   noise_multiplier=2.0,
    ...   record_specs=tf.TensorSpec([3]),
    ... )
    >>> state = query.initial_global_state()
    >>> params = query.derive_sample_params(state)
    >>> sample = query.initial_sample_state()
    >>> for record in [[3.0, 0.0, 4.0], [0.0, 0.5, 0.0]]:
    ...   sample = query.accumulate_record(params, sample, tf.constant(record))
    >>> (sample / 2**34).numpy().round(3).tolist()  # 2^34 grid steps are 1.0 here.
    [0.6, 0.5, 0.8]
    >>> noised, state, event = query.get_noised_result(sample, state)
    >>> float(event.noise_multiplier)
    2.0
  """

  def __init__(
    self,
    participation: Optional[strategies.Participation] = None,
    *,
    clip_norm: float,
    noise_multiplier: float,
    record_specs: Any,
    **noise_options: Unpack[noise_lib.IndependentOptions],
  ):
    """Initializes the query.

    Args:
      participation: Who may take part when, and the number of rounds. `None` assumes
        that a client may take part in every round, and allows any number of rounds;
        then there is no event of a whole run, only of each round.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of the noise over `clip_norm`; 0 adds none.
      record_specs: Structure of float tensor specs like a record.
      **noise_options: See `noise.Options`.
    """
    options.checked(noise_options, noise_lib.IndependentOptions)
    planned = planned_participation(participation)
    super().__init__(
      strategies.Identity(planned.num_rounds),
      planned,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      **noise_options,
    )
    self._unlimited = participation is None


def planned_participation(
  participation: Optional[strategies.Participation],
) -> strategies.Participation:
  """Returns the participation; `None` becomes a single round, to be repeated."""
  if participation is None:
    return strategies.Participation(num_rounds=1)
  return strategies.participation.require(participation)


class TreeResidualSumQuery(MatrixMechanismQuery):
  """Sums of each round, with noise that cancels in their prefix sums (2103.00039).

  They have the distribution of TF Privacy's query of this name (tests compare both).
  """

  def __init__(
    self,
    participation: strategies.Participation,
    *,
    honaker: bool = True,
    restart_every: Optional[int] = None,
    **arguments: Any,
  ):
    """Initializes the query.

    Args:
      participation: Who may take part when, and the number of rounds; one round more
        is an error.
      honaker: Whether to use Honaker's estimator, with less noise, or the plain one,
        with no noise in the state.
      restart_every: Rounds after which a new tree begins; `None` for a single tree.
      **arguments: As for `MatrixMechanismQuery`; `noise_multiplier` is that of a node.
    """
    strategies.participation.require(participation)
    super().__init__(
      strategies.BinaryTree(participation.num_rounds, honaker, restart_every),
      participation,
      **arguments,
    )


class TreeCumulativeSumQuery(TreeResidualSumQuery):
  """Prefix sums over rounds, each with the noise of the tree's estimate.

  `TreeResidualSumQuery` with a `workload`, which is prefix sums by default.
  """

  def __init__(
    self,
    participation: strategies.Participation,
    *,
    workload: Optional[strategies.Workload] = None,
    **arguments: Any,
  ):
    """Initializes the query from the arguments of `TreeResidualSumQuery`."""
    strategies.participation.require(participation)
    if workload is None:
      workload = strategies.Workload(participation.num_rounds)
    super().__init__(participation, workload=workload, **arguments)


class BandedMatrixFactorizationQuery(MatrixMechanismQuery):
  """Sums with the noise `C^-1 z` of a banded strategy (2306.08153)."""

  def __init__(
    self,
    strategy: Union[strategies.Banded, strategies.BandedToeplitz],
    participation: strategies.Participation,
    **arguments: Any,
  ):
    """Initializes the query from the arguments of `MatrixMechanismQuery`."""
    if not isinstance(strategy, (strategies.Banded, strategies.BandedToeplitz)):
      raise TypeError(
        'strategy must be a Banded or BandedToeplitz, got '
        f'{type(strategy).__name__}; use MatrixMechanismQuery for others.'
      )
    super().__init__(strategy, participation, **arguments)
