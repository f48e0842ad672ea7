"""What a query is here, and the one that all mechanisms share: the matrix mechanism.

A query clips records, sums them, adds noise and says what that cost, by TF Privacy's
interface. Gaussian sum, trees and banded matrices are constructors of one query.
"""

import abc
import collections
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import dp_accounting
import numpy as np
import tensorflow as tf

# The one place where TensorFlow Privacy is imported. TFF's next releases carry these
# classes themselves; moving there changes this file alone.
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

# What a round releases: the result, the next state and the event.
Released = tuple[Any, Any, dp_accounting.DpEvent]
# What a state tells, by name.
Metrics = collections.OrderedDict[str, tf.Tensor]

# What the rounds up to a state have spent. A state goes through checkpoints and TFF's
# worker, where there are tensors and no events, which follow from one of these forms.


class GaussianSpent(NamedTuple):
  """What a Gaussian mechanism has spent, correlated or not, as noise multipliers.

  Infinite before the first round, and that of the last round if it added nothing.
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
  """What independent noise has spent, for a client who was in as many rounds as it may.

  `event` is that of one round, as JSON; the counts are how many of them the
  last round added, 0 or 1, and how many there are in all.
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
    one = events.from_json(json.loads(np.asarray(self.event).item()))
    return events.simplify(dp_accounting.SelfComposedDpEvent(one, int(count)))


class ComposedSpent(NamedTuple):
  """What several mechanisms have spent, in all of which clients took part."""

  parts: Any

  def to_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds so far."""
    return _composed([part.to_event() for part in self.parts])

  def last_to_event(self) -> dp_accounting.DpEvent:
    """The event of the last round; those of all rounds compose to `to_event`."""
    return _composed([part.last_to_event() for part in self.parts])


# Any of them.
Spent = Union[GaussianSpent, RepeatedSpent, ComposedSpent]


def _composed(parts: list[dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
  return events.simplify(dp_accounting.ComposedDpEvent(parts))


def _gaussian(noise_multiplier: Any) -> dp_accounting.DpEvent:
  return events.simplify(dp_accounting.GaussianDpEvent(float(noise_multiplier)))


def check_round(this_round: tf.Tensor, num_rounds: int) -> tf.Tensor:
  """Returns the round, after making sure that it is one of those planned."""
  return grid.asserted(
    this_round,
    this_round < tf.constant(num_rounds, tf.int64),
    f'This query was built for {num_rounds} rounds and has served them all. What comes '
    'after them is a run of its own: begin one with `initialize`, and add up what both '
    'spend.',
  )


def unlimited() -> ValueError:
  """The error where limits are asked for that were not given."""
  return ValueError(
    'this query serves any number of rounds, so there is no limit to what they spend '
    'together. Give a participation, or compose the events that the rounds return.'
  )


class RecordSumQuery(SumAggregationDPQuery):
  """What all queries have in common: records like the ones announced.

  Half precision is summed in float32.
  """

  def __init__(self, record_specs: Optional[Any] = None):
    """For records like these specs; `None` takes them as they come."""
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
  """What the queries have in common that bound records: sums of integers (`grid`).

  Who uses one without `aggregators`, which count records, has to see to it that no sum
  is of more than `grid.MAX_CLIENTS`.
  """

  # Whether each execution of `encode_record` draws a key of its own: clients that are
  # vectorised in one computation would share it, and their noise.
  clients_draw_keys: bool = False
  # Whether what `encode_record` returns has noise of the client's in it.
  clients_add_noise: bool = False
  # How many clients a round needs to have as much noise as is stated.
  min_clients: int = 0

  @property
  def noise_identities(self) -> tuple[str, ...]:
    """Which streams of which seeds its noise is of; none where it is secret."""
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
    """Returns what `preprocess_record` does, and whether the record was finite."""

  def mean_of(self, result: Any, clients_per_round: float) -> Any:
    """Returns what a private mean releases of a round."""
    return tf.nest.map_structure(
      lambda tensor: tensor / tf.cast(clients_per_round, tensor.dtype), result
    )

  # For simulations, which have many clients in one computation and number them.

  def encode_without_noise(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns what `encode_record` does, less the client's noise."""
    return self.encode_record(params, record)

  def add_without_noise(
    self, params: Any, sample_state: Any, several: Sequence[Any]
  ) -> tuple[Any, tf.Tensor]:
    """Returns a sum with some more records, and which of these were finite."""
    finite = []
    for record in several:
      sample, is_finite = self.encode_without_noise(params, record)
      sample_state = tf.nest.map_structure(tf.add, sample_state, sample)
      finite.append(is_finite)
    return sample_state, tf.stack(finite)

  def sum_without_noise(self, params: Any, stacked: Any) -> tuple[Any, tf.Tensor]:
    """Returns the sum of records that are stacked, and which of them were finite."""
    samples, finite = tf.vectorized_map(
      lambda record: self.encode_without_noise(params, record),
      stacked,
      fallback_to_while_loop=False,
    )
    sums = tf.nest.map_structure(lambda each: tf.reduce_sum(each, axis=0), samples)
    return sums, finite

  def round_key(self, global_state: Any) -> Any:
    """What the noise of a round's clients follows from; empty if they add none."""
    del global_state
    return ()

  def with_noise_of(
    self, params: Any, sample_state: Any, round_key: Any, number: tf.Tensor
  ) -> Any:
    """A sum of records with the noise that the client of this number adds, if any."""
    del params, round_key, number
    return sample_state

  def signal_and_noise(
    self, sample_state: Any, global_state: Any
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """The norm of a round's exact sum, not private, and its noise's mean square."""
    del sample_state, global_state
    raise ValueError(
      f'{type(self).__name__} does not tell its signal from its noise; leave the '
      'measurement of both out.'
    )

  def _num_coordinates(self) -> int:
    """How many numbers a record has."""
    specs = tf.nest.flatten(self._record_specs)
    return sum(spec.shape.num_elements() for spec in specs)

  @abc.abstractmethod
  def spent(self, global_state: Any) -> Spent:
    """Returns what all rounds that led to a state have spent, and the last of them."""


def check_grid_sum(name: str, query: Any) -> None:
  """Refuses anything but a query that sums on the grid."""
  if not isinstance(query, GridSumQuery):
    raise TypeError(
      f'{name} must be a query that bounds records and sums them exactly, such as '
      f'queries.GaussianSumQuery; got one of type {type(query).__name__}.'
    )


class NoisySumQuery(GridSumQuery):
  """Sums with noise: what queries say of it, and of the bound that it is for."""

  _clip_norm: float
  _noise_multiplier: float
  _rows: noise_lib.GaussianRows

  @property
  def generator(self) -> str:
    """What random words the noise is made of: 'chacha20' or 'philox'."""
    return self._rows.generator

  @property
  def seed_identity(self) -> str:
    """'secret', or which seed and stream the noise is of: 'seed 7, stream 0'."""
    return self._rows.seed_identity

  @property
  def clip_norm(self) -> float:
    """Bound of one record, in L2 norm, or in L1 norm for Laplace noise."""
    return self._clip_norm

  @property
  def noise_multiplier(self) -> float:
    """Over the clip norm: standard deviation of z, or scale of Laplace noise.

    Of local noise, that of one client; of shares, that of `min_clients` together.
    """
    return self._noise_multiplier


class NormalizedQuery(normalized_query.NormalizedQuery):
  """TensorFlow Privacy's query of this name: the result of another, divided.

  Records and events are those of the other query.
  """

  def __init__(self, numerator_query: SumAggregationDPQuery, *, denominator: float):
    """Divides the result of the first by the second."""
    super().__init__(numerator_query, denominator)

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns the sum of no records of the other query."""
    return self._numerator.initial_sample_state(template)


# What a state belongs to. A state that goes on under another strategy, noise multiplier
# or limits would get noise that does not cancel and events that were never paid for,
# and nothing would look wrong. So each state carries the text of the mechanism it began
# with, and a round with another one fails.

# What a state consists of. Raised when that changes, so that no older one is continued.
_STATE_FORMAT = 2


def mechanism_text(mechanism: dict[str, Any]) -> str:
  """The text for a mechanism; equal texts for equal mechanisms."""
  return json.dumps({**mechanism, 'state_format': _STATE_FORMAT}, sort_keys=True)


def check_state(belongs_to: Any, mechanism: str, this_round: tf.Tensor) -> tf.Tensor:
  """Returns the round, after making sure that the state is of this mechanism."""
  return grid.asserted(
    this_round,
    tf.equal(belongs_to, mechanism),
    'This state belongs to another mechanism. Go on with the one that it began with, '
    'or begin anew with `initialize`. (Each use of an int as seed takes its next '
    'stream: if those in "noise" differ, name that of the state, as '
    '`seed=noise.Seed(7, stream=0, part=0)`.) The state is of',
    belongs_to,
    'and the process of',
    mechanism,
  )


class GlobalState(NamedTuple):
  """State of a query between rounds."""

  noise: Any  # `noise.NoiseState`; secret, because it holds the key.
  clip_norm: Any  # L2 bound of a record, float32.
  # With a workload, what was released last, and with momentum the velocity before it:
  # structures like a record.
  released: Any
  belongs_to: Any  # The mechanism, as `mechanism_text` writes it; string scalar.
  adaptation: Any = ()  # What the next clip norm depends on; empty if it is fixed.


class MatrixMechanismQuery(NoisySumQuery):
  """Sums of clipped records with the correlated noise of a strategy.

  In round t the query releases the sum of the round's clipped records plus
  `clip_norm * noise_multiplier * (D z)[t]`, with `D` the strategy's noise matrix and z
  iid standard Gaussian. All rounds together are one Gaussian mechanism with
  effective noise multiplier `noise_multiplier / sens(C)`. With a workload it releases
  row t of the workload applied to these sums, which is the same information. That
  clients take part no more often than the participation says is the caller's to enforce
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
      strategy: Strategy matrix C, for a number of rounds that cannot be exceeded.
      participation: Who may take part when, in as many rounds.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of z over `clip_norm`; 0 adds no noise.
      record_specs: Structure of float tensor specs like a record.
      workload: `None` to release the sum of each round (the residual of a prefix sum);
        `Workload(num_rounds)` for prefix sums, with momentum, learning rates or weight
        decay if it has them.
      **noise_options: See `noise.Options`.

    Raises:
      OSError: If `storage` names a directory that cannot be used.
      RuntimeError: If another process uses it.
      TypeError: If an argument is not of its type; `participation` may not be `None`.
      ValueError: If a number is out of range, a shape is not fully defined, or the
        participation or workload is for other rounds than the strategy.
    """
    super().__init__(record_specs)
    # Whether the plan is of one round, which is served any number of times.
    self._unlimited = False
    strategies.strategy.require(strategy)
    self._clip_norm = grid.check_clip_norm(clip_norm)
    self._noise_multiplier = events.check_noise_multiplier(noise_multiplier)
    grid.check_noise_multiplier(noise_multiplier)
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
    # Whose rows are released; `None` if it is the sum of each round.
    self.workload = workload
    given = options.checked(noise_options)
    self._rows = noise_lib.GaussianRows(self._sum_specs(), given.seed, given.generator)
    self._noise = noise_lib.build(strategy, self._rows, given.storage)

  @property
  def participation(self) -> strategies.Participation:
    """What the privacy analysis assumes of clients."""
    self._check_limited()
    return self._participation

  @property
  def storage(self) -> str:
    """Where the noise of earlier rounds is: 'state', 'redraw' or 'files'."""
    return self._noise.storage

  @property
  def effective_noise_multiplier(self) -> float:
    """`noise_multiplier / sens(C)`: how private all rounds together are."""
    self._check_limited()
    return float(self._round_noise_multipliers[1][-1])

  def run_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together."""
    self._check_limited()
    return events.run_event(self.strategy, self._participation, self._noise_multiplier)

  def _check_limited(self) -> None:
    if self._unlimited:
      raise unlimited()

  def initial_global_state(self) -> GlobalState:
    """Returns the state before round 0, with a key of its own."""
    return GlobalState(
      noise=self._noise.initialize(),
      clip_norm=tf.constant(self._clip_norm, tf.float32),
      released=self._nothing_released(),
      belongs_to=tf.constant(mechanism_text(self._mechanism())),
    )

  def _mechanism(self) -> dict[str, Any]:
    """What a state belongs to; JSON."""
    return {
      'strategy': f'{self.strategy.kind} {self.strategy.checksum}',
      'num_rounds': None if self._unlimited else self._participation.num_rounds,
      'min_separation': self._participation.min_separation,
      'max_participations': self._participation.max_participations,
      'clip_norm': self._clip_norm,
      'noise_multiplier': self._noise_multiplier,
      'noise': f'{self.generator}, {self.seed_identity}',
      # With other vectors, rows that are drawn again would be other ones.
      'vectors': self._rows.layout.vectors,
      'released': 'sums' if self.workload is None else repr(self.workload),
    }

  def _sum_specs(self) -> Any:
    """Specs of the sum of preprocessed records."""
    return self._record_specs

  def _nothing_released(self) -> Any:
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

  def add_without_noise(
    self, params: Any, sample_state: Any, several: Sequence[Any]
  ) -> tuple[Any, tf.Tensor]:
    """Returns a sum with some more records, and which of these were finite."""
    if not self._encodes_as_here:
      return super().add_without_noise(params, sample_state, several)
    clip_norm = self._clip_norm_of(params)
    several = [self._check(record) for record in several]
    before, steps = self._integers(sample_state), self._steps(clip_norm)
    added = grid.add_clipped(before, several, clip_norm, steps)
    sample = self._sample(params, added.integers, added.norms, sample_state)
    return sample, added.finite

  def sum_without_noise(self, params: Any, stacked: Any) -> tuple[Any, tf.Tensor]:
    """Returns the sum of records that are stacked, and which of them were finite."""
    if not self._encodes_as_here:
      return super().sum_without_noise(params, stacked)
    clip_norm = self._clip_norm_of(params)
    added = grid.sum_clipped(stacked, clip_norm, self._steps(clip_norm))
    return self._sample(params, added.integers, added.norms), added.finite

  @property
  def _encodes_as_here(self) -> bool:
    """Whether a subclass has left alone how records are encoded."""
    names = ('encode_record', 'encode_without_noise', 'preprocess_record')
    here = MatrixMechanismQuery
    return all(getattr(type(self), each) is getattr(here, each) for each in names)

  # What a sample is made of: integers on the grid alone, but with adaptive clipping.

  def _clip_norm_of(self, params: Any) -> tf.Tensor:
    return params

  def _sample(self, params: Any, integers: Any, norms: Any, before: Any = None) -> Any:
    del params, norms, before
    return integers

  def _integers(self, sample_state: Any) -> Any:
    return sample_state

  def _steps(self, clip_norm: tf.Tensor) -> tf.Tensor:
    """Steps of the grid in 1, for a clip norm."""
    return grid.steps_per_unit(clip_norm, self._noise_multiplier)

  def get_noised_result(self, sample_state: Any, global_state: GlobalState) -> Released:
    """Returns the noised sum, the next state and the round's `GaussianDpEvent`.

    The events of all rounds so far compose to what they spent: the noise multiplier is
    infinite in rounds that add nothing to the worst case. A state of another mechanism,
    or after the last round, is an `InvalidArgumentError` when run.
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
    """Noise multiplier of one round's event."""
    if self._unlimited:
      return tf.constant(self._noise_multiplier, tf.float64)
    return tf.gather(self._round_noise_multipliers[0], this_round)

  def _effective_noise_multiplier_after(self, rounds: tf.Tensor) -> tf.Tensor:
    """Effective noise multiplier of the first `rounds` rounds together."""
    if self._unlimited:
      # Infinite before the first round, also without noise.
      return tf.where(
        rounds > 0,
        self._noise_multiplier / tf.sqrt(tf.cast(rounds, tf.float64)),
        tf.constant(math.inf, tf.float64),
      )
    so_far = np.concatenate([[math.inf], self._round_noise_multipliers[1]])
    return tf.gather(so_far, rounds)

  def _add_noise(self, sample_state: Any, noise: Any, state: GlobalState) -> Any:
    """Their sum in floating point, of which the grid is as exact as the dtype."""
    steps = self._steps(state.clip_norm)
    noised = grid.add_noise(sample_state, noise, self._stddev(state) * steps)
    return grid.to_floats(noised, self._record_specs, steps)

  def _publish(self, noised_sum: Any, state: GlobalState) -> tuple[Any, GlobalState]:
    """The result that follows from the noised sum, and what else does in the state."""
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
      lost = tf.constant(-workload.weight_decay, tf.float64)
      total = _add_scaled(total, total, lost)
    total = _add_scaled(total, step, rate)
    released = (step, total) if workload.momentum else (total,)
    return total, state._replace(released=released)

  def _stddev(self, state: GlobalState) -> tf.Tensor:
    """Standard deviation of z, float64."""
    return tf.cast(state.clip_norm, tf.float64) * self._noise_multiplier

  def signal_and_noise(
    self, sample_state: Any, global_state: GlobalState
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """The norm of a round's exact sum, and its noise's mean square, of no workload."""
    row_norms = self.strategy.noise_row_norms()
    # A Gaussian sum without a plan repeats its one round.
    this_round = tf.minimum(global_state.noise.round, len(row_norms) - 1)
    stddev = self._stddev(global_state) * tf.gather(row_norms, this_round)
    integers = self._integers(sample_state)
    signal = grid.norm(integers, self._steps(global_state.clip_norm))
    return signal, self._num_coordinates() * tf.square(stddev)

  def spent(self, global_state: GlobalState) -> GaussianSpent:
    """Returns the noise multipliers of all rounds together, and of the last."""
    rounds = global_state.noise.round
    last = self._noise_multiplier_of(tf.maximum(rounds - 1, 0))
    infinite = tf.constant(math.inf, tf.float64)
    return GaussianSpent(
      tf.where(rounds > 0, tf.cast(last, tf.float64), infinite),
      self._effective_noise_multiplier_after(rounds),
    )

  def derive_metrics(self, global_state: GlobalState) -> Metrics:
    """Returns rounds served, clip norm, noise and what has been spent; nothing of data.

    `effective_noise_multiplier` is that of all rounds so far together. `noise_key_tag`
    differs where secret keys do, and no key follows from it; it is empty with a seed.
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

  The identity strategy: with `participation`, rounds in which a client cannot take
  part cost it nothing.

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
    >>> (sample / 2**34).numpy().round(3).tolist()  # In steps: 2^34 are 1 here.
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
      participation: Who may take part when, and for how many rounds. `None` assumes
        that a client may take part in every round, and serves any number of them;
        there is no event of a whole run then, only of each round.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of the noise over `clip_norm`; 0 adds none.
      record_specs: Structure of float tensor specs like a record.
      **noise_options: See `noise.Options`.
    """
    options.checked(noise_options, noise_lib.IndependentOptions)
    planned = planned_rounds(participation)
    super().__init__(
      strategies.Identity(planned.num_rounds),
      planned,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      **noise_options,
    )
    self._unlimited = participation is None


def planned_rounds(
  participation: Optional[strategies.Participation],
) -> strategies.Participation:
  """What is planned for; without a participation one round, again and again."""
  if participation is None:
    return strategies.Participation(num_rounds=1)
  return strategies.participation.require(participation)


class TreeResidualSumQuery(MatrixMechanismQuery):
  """Sums of each round, with noise that cancels in their prefix sums (2103.00039).

  In distribution they are TF Privacy's of this name (the tests compare).
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
      participation: Who may take part when, and for how many rounds; one more is an
        error.
      honaker: Whether to use Honaker's estimator, with less noise, or the plain one,
        with no noise in the state.
      restart_every: Rounds after which a fresh tree begins; `None` for a single one.
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

  The residual sums of the rounds, added up: `workload` is prefix sums unless given.
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
