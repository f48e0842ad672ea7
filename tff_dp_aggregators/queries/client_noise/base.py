"""Sums of records to which clients add noise themselves, before anything is sent.

What a client sends are integers on the grid of the sums (`grid`): its clipped record,
and noise that was brought to the grid by floor(. + 1/2) and added. X being integer,
that is floor(X + Z + 1/2), post-processing of the mechanism that the accounting is of,
and sums stay exact. What rounding shares of central noise costs is in
`accounting.local`. The grid is coarser than that of noise on the server, for an entry
has to be at most `grid.LARGEST_ENTRY` with its noise, so that 10^7 of them, and secure
sums, cannot overflow.

**Whose noise is whose.** A client draws a key from its own kernel's entropy
(`noise.keys`) whenever its computation runs, once for each record: nobody else ever has
it, no two records share noise, and a round that is run again has other noise (it is
another release if both are released). Clients know neither each other nor a number of
their own, so they cannot share a seed. Simulations can, `learning.packed`: they train
clients by number. There `round_key` makes a key for a round, of the seed or new, and
`noise_of` the noise of a client, of that key and the client's number in the round. So
with a seed the noise is the same however clients are packed, and differs between
clients, rounds and seeds.
"""

import abc
import collections
import math
from typing import Any, NamedTuple, Optional

import dp_accounting
import tensorflow as tf

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.noise import chacha20
from tff_dp_aggregators.noise import keys
from tff_dp_aggregators.noise import laplace
from tff_dp_aggregators.noise import seeds
from tff_dp_aggregators.noise import streaming
from tff_dp_aggregators.queries import belonging
from tff_dp_aggregators.queries import clipping
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import participations as participations_lib
from tff_dp_aggregators.queries import records
from tff_dp_aggregators.queries import spent as spent_lib

# Magnitudes that no number of unit scale is above: Gaussians end at 11.6, Laplace
# numbers at 88.8.
_LARGEST = {noises.GAUSSIAN: 12.0, noises.LAPLACE: 89.0}
_ROWS = {noises.GAUSSIAN: noise_lib.GaussianRows, noises.LAPLACE: laplace.LaplaceRows}
_SMALLEST_NOISE_MULTIPLIER, _LARGEST_NOISE_MULTIPLIER = 2.0**-20, 2.0**20
# Of one client's noise in steps of the grid: see `accounting.local`.
_SMALLEST_SCALE = 2.0**16
# Number of a vector in nonces that no row and no tag has (`generators`, `keys`).
_ROUND_VECTOR = 2**32 - 2


class ClientNoiseState(NamedTuple):
  """State of a query between rounds.

  Attributes:
    round: Number of the round to come, int64 scalar.
    clip_norm: Bound of a record, float32 scalar.
    server_key: Key of the server's noise, int64 of shape [4], secret; empty where only
      clients add noise. Keys of clients are in no state.
    belongs_to: The mechanism, as `belonging` writes it; string scalar.
  """

  round: Any
  clip_norm: Any
  server_key: Any
  belongs_to: Any

  def __repr__(self) -> str:
    server_key: Any = ()
    if not isinstance(self.server_key, tuple):
      server_key = streaming.hidden(self.server_key)
    return (
      f'{type(self).__name__}(round={self.round!r}, clip_norm={self.clip_norm!r}, '
      f'server_key={server_key})'
    )


class ClientNoiseSumQuery(records.GridSumQuery):
  """What queries have in common whose records get noise where they are made.

  Concrete ones, beside this module, say what a round costs, and with which noise.
  """

  def __init__(
    self,
    participation: Optional[strategies.Participation],
    *,
    noise: str,
    clip_norm: float,
    client_noise_multiplier: float,
    server_noise_multiplier: float = 0.0,
    record_specs: Any,
    seed: noise_lib.SeedLike = None,
    generator: str = 'auto',
  ):
    """Initializes the query.

    Args:
      participation: Who may take part when, and for how many rounds; `None` for any
        number of rounds and a client that is in all of them.
      noise: Of the clients: 'gaussian', with records clipped in L2 norm, or 'laplace',
        in L1 norm. The server's is Gaussian.
      clip_norm: Bound of one record.
      client_noise_multiplier: Scale of one client's noise over `clip_norm`; 0 for none.
      server_noise_multiplier: Standard deviation of the server's noise over
        `clip_norm`; 0 for none.
      record_specs: Structure of float tensor specs like a record.
      seed: Reproducible noise, for simulations; `None` for secret noise.
      generator: What random words the noise is made of.

    Raises:
      TypeError: If a record tensor is not of a float dtype, or another argument not of
        its type.
      ValueError: If a number is out of range, or a shape not fully defined.
    """
    super().__init__(record_specs)
    self._noise = noises.real(noise)
    self._clip_norm = grid.check_clip_norm(clip_norm)
    self._client_noise_multiplier = _check_client_noise(client_noise_multiplier)
    checks.check_number('server_noise_multiplier', server_noise_multiplier)
    self._server_noise_multiplier = events.check_noise_multiplier(
      server_noise_multiplier
    )
    grid.check_noise_multiplier(server_noise_multiplier)
    self._participations = participations_lib.Participations(participation)
    self._seed = seeds.resolve(seed)
    self._rows = _ROWS[self._noise](record_specs, self._seed, generator)
    self._server_rows = noise_lib.GaussianRows(record_specs, self._seed, generator)
    self._spare_bits = _spare_bits(self._noise, self._client_noise_multiplier)
    self._check_scale()

  def _check_scale(self) -> None:
    """Refuses noise of clients for which the grid is too coarse."""
    exponent = grid.exponent_of_steps(self._server_noise_multiplier)
    # A clip norm is more than half of two to the exponent.
    scale = self._client_noise_multiplier * 2.0 ** (exponent - self._spare_bits - 1)
    if 0 < scale < _SMALLEST_SCALE:
      raise ValueError(
        'the noise of clients is too silent beside that of the server for sums on one '
        f'grid: noise multipliers of {self._client_noise_multiplier} and '
        f'{self._server_noise_multiplier}. Leave one of them out.'
      )

  @property
  def noise(self) -> str:
    """Kind of the clients' noise: 'gaussian' or 'laplace'."""
    return self._noise.name

  @property
  @abc.abstractmethod
  def noise_site(self) -> str:
    """'local' where a client's noise hides it alone, 'clients' where all theirs do."""

  @property
  def clients_add_noise(self) -> bool:
    """Whether they do."""
    return self._client_noise_multiplier > 0

  @property
  def clip_norm(self) -> float:
    """Bound of one record, in L2 norm, or in L1 norm for Laplace noise."""
    return self._clip_norm

  @property
  def client_noise_multiplier(self) -> float:
    """Scale of one client's noise over the clip norm."""
    return self._client_noise_multiplier

  @property
  def server_noise_multiplier(self) -> float:
    """Standard deviation of the server's noise over the clip norm."""
    return self._server_noise_multiplier

  @property
  def participation(self) -> strategies.Participation:
    """What the privacy analysis assumes of clients.

    Raises:
      ValueError: If the number of rounds is not limited.
    """
    return self._participations.limits

  @property
  def generator(self) -> str:
    """What random words the noise is made of: 'chacha20' or 'philox'."""
    return self._rows.generator

  @property
  def seed_identity(self) -> str:
    """'secret', or which seed and stream the noise is of: 'seed 7, stream 0'."""
    return self._rows.seed_identity

  def run_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together, for a client who is in as many as it may.

    Raises:
      ValueError: If the number of rounds is not limited.
    """
    count = self._participations.most
    return events.simplify(dp_accounting.SelfComposedDpEvent(self._event(), count))

  def _server_adds_noise(self) -> bool:
    return self._server_noise_multiplier > 0

  @abc.abstractmethod
  def _event(self) -> dp_accounting.DpEvent:
    """What a round costs a client who is in it."""

  # TF Privacy's interface.

  def initial_global_state(self) -> ClientNoiseState:
    """Returns the state before round 0, with a key if the server adds noise."""
    return ClientNoiseState(
      round=tf.constant(0, tf.int64),
      clip_norm=tf.constant(self._clip_norm, tf.float32),
      server_key=self._server_rows.new_key() if self._server_adds_noise() else (),
      belongs_to=tf.constant(self._belongs_to()),
    )

  def _belongs_to(self) -> str:
    return belonging.text_of(
      {
        'mechanism': type(self).__name__,
        'clip_norm': self._clip_norm,
        'client_noise': self.noise,
        'client_noise_multiplier': self._client_noise_multiplier,
        'server_noise_multiplier': self._server_noise_multiplier,
        **self._more_facts(),
        **self._participations.facts(),
        'noise': f'{self.generator}, {self.seed_identity}',
        'vectors': self._rows.layout.vectors,
      }
    )

  def _more_facts(self) -> dict[str, Any]:
    """What events rest on beside the noise of one client; JSON."""
    return {}

  def derive_sample_params(self, global_state: ClientNoiseState) -> tf.Tensor:
    """Returns the clip norm, all that clients need to know.

    Args:
      global_state: State before the round.
    """
    return global_state.clip_norm

  def encode_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the record clipped, in steps of the grid, with noise of a new key.

    Each execution has other noise: see `noise.keys`. Whether the record was finite is
    said where sums hide clients; a client that hides itself does not tell.

    Args:
      params: The clip norm, from `derive_sample_params`.
      record: Structure of float tensors.

    Raises:
      TypeError: If the record is not made of float tensors, or its dtypes are not
        those of `record_specs`.
      ValueError: If its structure or shapes are not those of `record_specs`, or the
        query has a seed.
    """
    clipped, finite = self.clip_record(params, record)
    if not self.clients_add_noise:
      return clipped, finite
    if self._seed is not None:
      raise ValueError(
        f'the noise of clients has a seed ({self.seed_identity}), but clients who do '
        'not know each other cannot share one: all would add the same noise. Leave '
        'seed out, or simulate clients in packs (`learning.packed`), which number them.'
      )
    noise = self.noise_of(params, keys.new(), tf.constant(0, tf.int64))
    return tf.nest.map_structure(tf.add, clipped, noise), finite

  def clip_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns what `encode_record` does, without noise.

    Args:
      params: The clip norm, from `derive_sample_params`.
      record: Structure of float tensors.

    Raises:
      TypeError: As `encode_record`.
      ValueError: If its structure or shapes are not those of `record_specs`.
    """
    clipped = clipping.clip_to_grid(
      self._check(record), params, self._steps(params), self._noise.order
    )
    finite = clipped.finite
    if self._hides_each and self._client_noise_multiplier:
      finite = tf.ones_like(finite)
    return clipped.integers, finite

  def encode_without_noise(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns what `encode_record` does, less the client's noise.

    Args:
      params: The clip norm, from `derive_sample_params`.
      record: Structure of float tensors.

    Raises:
      TypeError: As `encode_record`.
      ValueError: If its structure or shapes are not those of `record_specs`.
    """
    if not self.clients_add_noise:
      return self.encode_record(params, record)
    return self.clip_record(params, record)

  @property
  def _hides_each(self) -> bool:
    """Whether a client sends nothing of its record but with noise."""
    return self.noise_site != 'clients'

  def noise_of(self, params: Any, key: tf.Tensor, number: tf.Tensor) -> Any:
    """One client's noise in steps of the grid, structure of int64 like a record.

    Args:
      params: The clip norm, from `derive_sample_params`.
      key: Of the client, from `noise.keys`, or of the round, from `round_key`.
      number: 0 with a key of the client; with one of the round, the client's number,
        an int64 scalar of which no two clients of a round have the same.
    """
    steps = self._steps(params)
    clip_norm = tf.cast(params, tf.float64)
    unit_noise = self._rows.layout.unflatten(self._rows.row(key, number))
    return grid.add_noise(
      grid.zeros_like(self._record_specs),
      unit_noise,
      clip_norm * self._client_noise_multiplier * steps,
    )

  def round_key(self, global_state: ClientNoiseState) -> Any:
    """A key for the noise of a round's clients, in simulations; int64 of shape [4].

    Of the seed and the round; without a seed a new one in each execution. It is empty
    if clients add no noise.

    Args:
      global_state: State before the round.
    """
    if not self.clients_add_noise:
      return ()
    if self._seed is None:
      return keys.new()
    nonce = tf.concat(
      [
        tf.bitcast(global_state.round, tf.uint32),
        tf.constant([_ROUND_VECTOR], tf.uint32),
      ],
      axis=0,
    )
    key = keys.words_of(self._rows.new_key())
    block = chacha20.blocks(key, tf.constant(0, tf.uint32), nonce, 1)
    return tf.bitcast(tf.reshape(block[:8, 0], [keys.WORDS, 2]), tf.int64)

  def with_noise_of(
    self, params: Any, sample_state: Any, round_key: Any, number: tf.Tensor
  ) -> Any:
    """Returns a sum of records with the noise that one more client adds, if it does.

    Args:
      params: The clip norm, from `derive_sample_params`.
      sample_state: Sum of records.
      round_key: From `round_key`.
      number: The client's, an int64 scalar of which no two clients of a round have the
        same.
    """
    if not self.clients_add_noise:
      return sample_state
    noise = self.noise_of(params, round_key, number)
    return tf.nest.map_structure(tf.add, sample_state, noise)

  def _steps(self, clip_norm: tf.Tensor) -> tf.Tensor:
    return grid.steps_per_unit(
      clip_norm, self._server_noise_multiplier, self._spare_bits
    )

  def get_noised_result(
    self, sample_state: Any, global_state: ClientNoiseState
  ) -> tuple[Any, ClientNoiseState, dp_accounting.DpEvent]:
    """Returns the sum, with the server's noise if it adds any; next state; and event.

    The event's noise multiplier is infinite in rounds that add nothing to the worst
    case: the events of all rounds so far compose to what they spent.

    Args:
      sample_state: Sum of the round's preprocessed records, with their noise.
      global_state: State before the round.

    Raises:
      tf.errors.InvalidArgumentError: If all rounds were used, or the state belongs to
        another mechanism.
      ValueError: If the sum is not like `record_specs`.
    """
    this_round = belonging.check(
      global_state.belongs_to, self._belongs_to(), global_state.round
    )
    this_round = self._participations.check_round(this_round)
    with tf.control_dependencies([this_round]):
      noised = tf.nest.map_structure(tf.identity, sample_state)
    steps = self._steps(global_state.clip_norm)
    noised = self._add_server_noise(noised, global_state, this_round, steps)
    result = grid.to_floats(noised, self._record_specs, steps)
    state = global_state._replace(round=this_round + 1)
    return result, state, self._event_of(this_round)

  def _add_server_noise(
    self,
    sums: Any,
    state: ClientNoiseState,
    this_round: tf.Tensor,
    steps: tf.Tensor,
  ) -> Any:
    """The noised sum of records, in steps of the grid."""
    if not self._server_adds_noise():
      return sums
    multiplier = tf.constant(self._server_noise_multiplier, tf.float64)
    return self._add_gaussian(sums, multiplier, state, this_round, steps)

  def _add_gaussian(
    self,
    sums: Any,
    noise_multiplier: tf.Tensor,
    state: ClientNoiseState,
    this_round: tf.Tensor,
    steps: tf.Tensor,
  ) -> Any:
    row = self._server_rows.row(state.server_key, this_round)
    unit_noise = self._server_rows.layout.unflatten(row)
    clip_norm = tf.cast(state.clip_norm, tf.float64)
    return grid.add_noise(sums, unit_noise, clip_norm * noise_multiplier * steps)

  def _event_of(self, this_round: tf.Tensor) -> dp_accounting.DpEvent:
    return self._participations.event_of(this_round, self._event())

  def spent(self, global_state: ClientNoiseState) -> spent_lib.Spent:
    """Returns what all rounds that led to a state have spent, and the last of them.

    Args:
      global_state: State before or after any round.
    """
    event = self._event()
    several = self._participations.spent(global_state.round, event)
    if not isinstance(event, dp_accounting.GaussianDpEvent):
      return several
    own = tf.constant(event.noise_multiplier, tf.float64)
    infinite = tf.constant(math.inf, tf.float64)

    def repeated(count: tf.Tensor) -> tf.Tensor:
      return tf.where(count > 0, own / tf.sqrt(tf.cast(count, tf.float64)), infinite)

    return spent_lib.GaussianSpent(
      repeated(several.last_round), repeated(several.all_rounds)
    )

  def derive_metrics(
    self, global_state: ClientNoiseState
  ) -> 'collections.OrderedDict[str, tf.Tensor]':
    """Returns rounds served, clip norm, noise, and participations of the worst client.

    Nothing of it depends on data. `noise_site` and `noise_generator` are string
    tensors; so is `noise_key_tag`, which tells the server's secret keys apart and is
    empty where there is none.

    Args:
      global_state: State after some rounds.
    """
    key_tag = tf.constant('')
    if self._server_adds_noise():
      key_tag = self._server_rows.key_tag(global_state.server_key)
    return collections.OrderedDict(
      rounds=global_state.round,
      clip_norm=global_state.clip_norm,
      client_noise_multiplier=tf.constant(self._client_noise_multiplier, tf.float64),
      server_noise_multiplier=tf.constant(self._server_noise_multiplier, tf.float64),
      participations=self._participations.after(global_state.round),
      noise_site=tf.constant(self.noise_site),
      noise_generator=tf.constant(self.generator),
      noise_key_tag=key_tag,
    )

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}({self._participations}, clip_norm={self._clip_norm}, '
      f'client_noise_multiplier={self._client_noise_multiplier}, '
      f'server_noise_multiplier={self._server_noise_multiplier})'
    )


def _check_client_noise(noise_multiplier: float) -> float:
  """Returns it as a float, if the grid has room for it."""
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  if noise_multiplier and not (
    _SMALLEST_NOISE_MULTIPLIER <= noise_multiplier <= _LARGEST_NOISE_MULTIPLIER
  ):
    raise ValueError(
      "a client's noise multiplier must be 0 (no noise), or within 2^-20 and 2^20 "
      '(9.5e-7 to 1.0e6), so that the grid of the sums has room for it and shows it; '
      f'got {noise_multiplier}.'
    )
  return noise_multiplier


def _spare_bits(noise: noises.Noise, noise_multiplier: float) -> int:
  """Bits that clients' noise takes of an entry."""
  if not noise_multiplier:
    return 0
  return math.ceil(math.log2(1 + _LARGEST[noise] * noise_multiplier))
