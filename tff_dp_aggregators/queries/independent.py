"""Queries with independent noise in each round: their base class, and Laplace noise.

Each round costs its clients the same, so the total cost depends on how many rounds one
client can have been in.
"""

import abc
import collections
import json
import math
from typing import Any, NamedTuple, Optional

import dp_accounting
import numpy as np
import tensorflow as tf
from typing_extensions import Unpack

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.noise import options
from tff_dp_aggregators.noise import rows
from tff_dp_aggregators.noise import streaming
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import matrix_mechanism


class IndependentNoiseQuery(matrix_mechanism.NoisySumQuery):
  """Base class of queries with independent noise, which counts participations."""

  def __init__(
    self, participation: Optional[strategies.Participation], record_specs: Any
  ):
    """Initializes the query; `participation=None` assumes a client in all rounds."""
    super().__init__(record_specs)
    self._limits: Optional[strategies.Participation] = None
    if participation is not None:
      self._limits = strategies.participation.require(participation)
      taken = np.zeros(self._limits.num_rounds + 1, np.int64)
      taken[1 + np.array(self._limits.rounds, np.int64)] = 1
      # Maximum participations of one client, by number of rounds.
      self._participations = np.cumsum(taken)

  @property
  def participation(self) -> strategies.Participation:
    """Participation that the privacy analysis assumes."""
    if self._limits is None:
      raise matrix_mechanism.unlimited_error()
    return self._limits

  @abc.abstractmethod
  def _event(self) -> dp_accounting.DpEvent:
    """Returns the event of a round for a client that takes part in it."""

  @abc.abstractmethod
  def _facts(self) -> dict[str, Any]:
    """Returns the JSON object that identifies the mechanism, without participation."""

  def _belongs_to(self) -> str:
    facts = {**self._facts(), 'num_rounds': None}
    if self._limits is not None:
      for name in ('num_rounds', 'min_separation', 'max_participations'):
        facts[name] = getattr(self._limits, name)
    return matrix_mechanism.mechanism_text(facts)

  def __repr__(self) -> str:
    facts = [f'{key}={each!r}' for key, each in self._facts().items() if key != 'noise']
    return f'{type(self).__name__}({self._limits}, {", ".join(facts)})'  # No seed.

  def run_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together, for a client in as many as it may be in."""
    count = int(self.participation.possible_participations)
    return dp_accounting.SelfComposedDpEvent(self._event(), count)

  def derive_sample_params(self, global_state: Any) -> Any:
    """Returns the clip norm, all that clients need to know."""
    return global_state.clip_norm

  def _this_round(self, global_state: Any) -> tf.Tensor:
    """Returns the round, after asserting that it is planned and the state fits."""
    this_round = matrix_mechanism.check_state(
      global_state.belongs_to, self._belongs_to(), global_state.round
    )
    if self._limits is None:
      return this_round
    return matrix_mechanism.check_round(this_round, self._limits.num_rounds)

  def _participations_after(self, rounds: tf.Tensor) -> tf.Tensor:
    """Returns how many of the first rounds a client can have been in; int64."""
    if self._limits is None:
      return rounds
    return tf.gather(tf.constant(self._participations, tf.int64), rounds)

  def _added_by_last(self, rounds: tf.Tensor) -> tf.Tensor:
    """Returns by how much the last of these rounds increases that, 0 or 1; int64."""
    before = self._participations_after(tf.maximum(rounds - 1, 0))
    return self._participations_after(rounds) - before

  def _event_of(self, this_round: tf.Tensor) -> dp_accounting.DpEvent:
    """Returns the event that a round adds; of infinite noise if that is nothing."""
    event = self._event()
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
      return event
    adds = self._added_by_last(this_round + 1) > 0
    # A tensor, because `tf.function` converts a Python number to float32.
    multiplier = tf.constant(event.noise_multiplier, tf.float64)
    return type(event)(tf.where(adds, multiplier, tf.constant(math.inf, tf.float64)))

  def spent(self, global_state: Any) -> matrix_mechanism.Spent:
    """Returns the event of a round, and how many rounds a client can have been in."""
    event, rounds = self._event(), global_state.round
    last, total = self._added_by_last(rounds), self._participations_after(rounds)
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
      last, total = tf.minimum(rounds, 1), rounds
    text = tf.constant(json.dumps(events.to_json(event)))
    return matrix_mechanism.RepeatedSpent(text, last, total)


class LaplaceState(NamedTuple):
  """State of a query between rounds; the key is secret."""

  key: Any  # int64 [4].
  round: Any  # The next round, int64.
  clip_norm: Any  # L1 bound of a record, float32.
  belongs_to: Any  # The `mechanism_text` of the mechanism.

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}(key={streaming.hidden(self.key)}, '
      f'round={self.round!r}, clip_norm={self.clip_norm!r})'
    )


class LaplaceSumQuery(IndependentNoiseQuery):
  """Clips records in L1 norm, sums them and adds independent Laplace noise.

  A round is epsilon-private with epsilon = 1 / `noise_multiplier` (Dwork et al. 2006,
  theorem 1); for a client in n rounds it is n times that. The noise of a coordinate has
  scale b = `clip_norm * noise_multiplier` and standard deviation sqrt(2) b, and ends at
  88 b (`noise.rows` has the cost of this).

  Example:
    >>> query = LaplaceSumQuery(
    ...   strategies.Participation(num_rounds=6, min_separation=2),
    ...   clip_norm=2.0,
    ...   noise_multiplier=4.0,
    ...   record_specs=tf.TensorSpec([2]),
    ... )
    >>> state = query.initial_global_state()
    >>> params = query.derive_sample_params(state)
    >>> sample = query.initial_sample_state()
    >>> sample = query.accumulate_record(params, sample, tf.constant([3.0, -1.0]))
    >>> (sample.numpy() / 2**32).round(6)  # 2^32 grid steps are 1.0 here.
    array([ 1.5, -0.5])
    >>> noised, state, event = query.get_noised_result(sample, state)
    >>> float(event.noise_multiplier), float(query.derive_metrics(state)['epsilon'])
    (4.0, 0.25)
    >>> query.run_event().count  # A client is in every second of six rounds at most.
    3
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
    """Initializes the query from arguments like those of `GaussianSumQuery`.

    `clip_norm` bounds the L1 norm; `noise_multiplier` is the noise's scale over it.
    """
    super().__init__(participation, record_specs)
    self._clip_norm = grid.check_clip_norm(clip_norm)
    self._noise_multiplier = grid.check_noise_multiplier(noise_multiplier)
    opts = options.checked(noise_options, noise_lib.IndependentOptions)
    self._rows = rows.LaplaceRows(record_specs, opts.seed, opts.generator)

  def _event(self) -> dp_accounting.DpEvent:
    if not self._noise_multiplier:
      return dp_accounting.NonPrivateDpEvent()
    return dp_accounting.LaplaceDpEvent(self._noise_multiplier)

  def initial_global_state(self) -> LaplaceState:
    """Returns the state before round 0, with a new key."""
    return LaplaceState(
      key=self._rows.new_key(),
      round=tf.constant(0, tf.int64),
      clip_norm=tf.constant(self._clip_norm, tf.float32),
      belongs_to=tf.constant(self._belongs_to()),
    )

  def _facts(self) -> dict[str, Any]:
    return {
      'mechanism': 'laplace',
      'clip_norm': self._clip_norm,
      'noise_multiplier': self._noise_multiplier,
      'noise': f'{self.generator}, {self.seed_identity}',
      'vectors': self._rows.layout.vectors,
    }

  def encode_record(self, params: tf.Tensor, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the record clipped, in steps of the grid, and whether it was finite."""
    clipped = grid.clip_to_grid(
      self._check(record), params, self._steps(params), order=1
    )
    return clipped.integers, clipped.finite

  def _steps(self, clip_norm: tf.Tensor) -> tf.Tensor:
    return grid.steps_per_unit(clip_norm, self._noise_multiplier)

  def get_noised_result(
    self, sample_state: Any, global_state: LaplaceState
  ) -> matrix_mechanism.Released:
    """Returns the noised sum, the next state and the round's `LaplaceDpEvent`.

    Its noise multiplier is infinite in rounds that add nothing to the worst case: the
    events of all rounds so far compose to the privacy that they spent.
    """
    this_round = self._this_round(global_state)
    row = self._rows.row(global_state.key, this_round)
    steps = self._steps(global_state.clip_norm)
    unit_noise = self._rows.layout.unflatten(row)
    noised = grid.add_noise(sample_state, unit_noise, self._scale(global_state) * steps)
    result = grid.to_floats(noised, self._record_specs, steps)
    state = global_state._replace(round=this_round + 1)
    return result, state, self._event_of(this_round)

  def signal_and_noise(
    self, sample_state: Any, global_state: LaplaceState
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the L2 norm of a round's exact sum, and 2 d b^2 for its noise."""
    signal = grid.norm(sample_state, self._steps(global_state.clip_norm))
    scale = tf.square(self._scale(global_state))
    return signal, 2 * self._num_coordinates() * scale

  def _scale(self, state: LaplaceState) -> tf.Tensor:
    return tf.cast(state.clip_norm, tf.float64) * self._noise_multiplier

  def derive_metrics(self, global_state: LaplaceState) -> matrix_mechanism.Metrics:
    """Returns number of rounds, clip norm, noise and privacy spent; no clients' data.

    `epsilon` is that of all rounds so far, with delta = 0, for a client in as many of
    them as it may be in. `noise_key_tag` is as for `MatrixMechanismQuery`.
    """
    rounds = global_state.round
    epsilon = 1 / self._noise_multiplier if self._noise_multiplier else math.inf
    return collections.OrderedDict(
      rounds=rounds,
      clip_norm=global_state.clip_norm,
      noise_multiplier=tf.constant(self._noise_multiplier, tf.float64),
      epsilon=tf.math.multiply_no_nan(
        tf.constant(epsilon, tf.float64),
        tf.cast(self._participations_after(rounds), tf.float64),
      ),
      noise_generator=tf.constant(self.generator),
      noise_key_tag=self._rows.key_tag(global_state.key),
    )
