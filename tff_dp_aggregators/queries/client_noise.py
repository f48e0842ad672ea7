"""Sums of records to which clients add noise themselves, before anything is sent.

A client sends integers on the grid of the sums (`grid`): its clipped record X plus its
rounded noise, floor(Z + 1/2). As X is an integer, that is floor(X + Z + 1/2), a
post-processing of the mechanism that the accounting analyses, and sums stay exact.
`accounting.local` has the cost of rounding shares of central noise. An entry is at most
`grid.LARGEST_ENTRY` with its noise, so the grid is coarser than with server noise.

**Keys.** A client draws a key from its own kernel's entropy (`noise.generators`) for
each record: nobody else ever has it, no two records share noise, and a round that is
run again has different noise. Clients cannot share a seed. Packed simulations
(`learning.packed`), which number clients, can: there `round_key` returns a key for a
round, and `noise_of` the noise of a client, from that key and the client's number.
"""

import collections
import math
from typing import Any, NamedTuple, Optional

import dp_accounting
import tensorflow as tf
from typing_extensions import Unpack

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import local
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.noise import generators
from tff_dp_aggregators.noise import options
from tff_dp_aggregators.noise import rows
from tff_dp_aggregators.noise import streaming
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import independent
from tff_dp_aggregators.queries import matrix_mechanism

# Upper bounds of noise of unit scale: Gaussians end at 11.6, Laplace numbers at 88.8.
_LARGEST = {noises.GAUSSIAN: 12.0, noises.LAPLACE: 89.0}
_ROWS = {noises.GAUSSIAN: noise_lib.GaussianRows, noises.LAPLACE: rows.LaplaceRows}
# Smallest scale of one client's noise in steps of the grid: see `accounting.local`.
_SMALLEST_SCALE = 2.0**16
# Index of a vector in nonces that no row and no tag uses (`generators`).
_ROUND_VECTOR = 2**32 - 2


class ClientNoiseState(NamedTuple):
  """State of a query between rounds; the key of the server's noise is secret."""

  round: Any  # The next round, int64.
  clip_norm: Any  # Bound of a record, float32.
  server_key: Any  # int64 [4]; empty if only clients add noise.
  belongs_to: Any  # The `mechanism_text` of the mechanism.

  def __repr__(self) -> str:
    key = (
      self.server_key if self.server_key == () else streaming.hidden(self.server_key)
    )
    return (
      f'{type(self).__name__}(round={self.round!r}, clip_norm={self.clip_norm!r}, '
      f'server_key={key})'
    )


class ClientNoiseSumQuery(independent.IndependentNoiseQuery):
  """Base class of queries whose clients add noise to their own records."""

  # 'local' if each client adds enough noise for itself, 'clients_and_server' if the
  # server adds noise as well, 'clients' if clients add shares of a central noise, and
  # 'local_approximate' if the server adds noise instead of clients, in simulations.
  noise_site: str = 'local'
  # Standard deviation of the server's noise over the clip norm.
  server_noise_multiplier = 0.0

  def __init__(
    self,
    participation: Optional[strategies.Participation],
    *,
    noise: str,
    clip_norm: float,
    client_noise_multiplier: float,
    record_specs: Any,
    **noise_options: Unpack[noise_lib.IndependentOptions],
  ):
    """Initializes the query.

    Args:
      participation: As for `GaussianSumQuery`.
      noise: Clients' noise: 'gaussian', with records clipped in L2 norm, or 'laplace',
        in L1 norm. The server's noise is Gaussian.
      clip_norm: Bound of one record.
      client_noise_multiplier: Scale of one client's noise over `clip_norm`; 0 for none.
      record_specs: Structure of float tensor specs like a record.
      **noise_options: See `noise.Options`.
    """
    super().__init__(participation, record_specs)
    self._noise = noises.real(noise)
    # Kind of the clients' noise: 'gaussian' or 'laplace'.
    self.noise = self._noise.name
    self._clip_norm = grid.check_clip_norm(clip_norm)
    scale = grid.check_noise_multiplier(
      client_noise_multiplier, "a client's noise_multiplier", bits=20
    )
    self._noise_multiplier = scale
    # Scale of one client's noise over the clip norm.
    self.client_noise_multiplier = scale
    self.clients_add_noise = scale > 0
    opts = options.checked(noise_options, noise_lib.IndependentOptions)
    self._seed = options.resolve(opts.seed)
    self._rows = _ROWS[self._noise](record_specs, self._seed, opts.generator)
    self._server_rows = noise_lib.GaussianRows(record_specs, self._seed, opts.generator)
    self._server_adds_noise = self.server_noise_multiplier > 0
    # Bits of an entry that are reserved for clients' noise.
    self._spare_bits = math.ceil(math.log2(1 + _LARGEST[self._noise] * scale))
    exponent = grid.exponent_of_steps(self.server_noise_multiplier)
    # A clip norm is more than 2^(exponent - 1) steps.
    if 0 < scale * 2.0 ** (exponent - self._spare_bits - 1) < _SMALLEST_SCALE:
      raise ValueError(
        "the clients' noise is too small compared with the server's: noise "
        f'multipliers of {scale} and {self.server_noise_multiplier}; leave one out.'
      )

  def run_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together, for a client in as many as it may be in."""
    return events.simplify(super().run_event())

  def _event(self) -> dp_accounting.DpEvent:
    return local.local_event(
      self.client_noise_multiplier, noise=self.noise, adjacency='zero_out'
    )

  def initial_global_state(self) -> ClientNoiseState:
    """Returns the state before round 0, with a key if the server adds noise."""
    return ClientNoiseState(
      round=tf.constant(0, tf.int64),
      clip_norm=tf.constant(self._clip_norm, tf.float32),
      server_key=self._server_rows.new_key() if self._server_adds_noise else (),
      belongs_to=tf.constant(self._belongs_to()),
    )

  def _facts(self) -> dict[str, Any]:
    return {
      'mechanism': type(self).__name__,
      'clip_norm': self._clip_norm,
      'client_noise': self.noise,
      'client_noise_multiplier': self.client_noise_multiplier,
      'server_noise_multiplier': self.server_noise_multiplier,
      'noise': f'{self.generator}, {self.seed_identity}',
      'vectors': self._rows.layout.vectors,
    }

  def encode_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the record clipped, in steps of the grid, with noise from a new key."""
    clipped, finite = self.encode_without_noise(params, record)
    if not self.clients_add_noise:
      return clipped, finite
    if self._seed is not None:
      raise ValueError(
        f'the noise of clients has a seed ({self.seed_identity}): all would add the '
        'same. Leave seed out, or simulate clients in packs (`learning.packed`).'
      )
    noise = self.noise_of(params, generators.new_key(), tf.constant(0, tf.int64))
    return tf.nest.map_structure(tf.add, clipped, noise), finite

  def encode_without_noise(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the result of `encode_record` without the client's noise."""
    clipped = grid.clip_to_grid(
      self._check(record), params, self._steps(params), self._noise.order
    )
    finite = clipped.finite
    # A client with local noise sends nothing about its record that has no noise.
    if self.noise_site != 'clients' and self.client_noise_multiplier:
      finite = tf.ones_like(finite)
    return clipped.integers, finite

  def noise_of(self, params: Any, key: tf.Tensor, number: tf.Tensor) -> Any:
    """Returns one client's noise in steps of the grid, int64, like a record."""
    steps = self._steps(params)
    clip_norm = tf.cast(params, tf.float64)
    unit_noise = self._rows.layout.unflatten(self._rows.row(key, number))
    return grid.add_noise(
      grid.zeros_like(self._record_specs),
      unit_noise,
      clip_norm * self.client_noise_multiplier * steps,
    )

  def round_key(self, global_state: ClientNoiseState) -> Any:
    """Returns a key for the noise of a round's clients, in simulations; int64 [4].

    It is a function of seed and round; without a seed each execution draws a new one.
    """
    if not self.clients_add_noise:
      return ()
    if self._seed is None:
      return generators.new_key()
    nonce = tf.concat(
      [
        tf.bitcast(global_state.round, tf.uint32),
        tf.constant([_ROUND_VECTOR], tf.uint32),
      ],
      axis=0,
    )
    key = generators.words_of(self._rows.new_key())
    block = generators.blocks(key, tf.constant(0, tf.uint32), nonce, 1)
    return tf.bitcast(tf.reshape(block[:8, 0], [generators.KEY_WORDS, 2]), tf.int64)

  def with_noise_of(
    self, params: Any, sample_state: Any, round_key: Any, number: tf.Tensor
  ) -> Any:
    """Returns the sum with the noise of client `number` added, if clients add noise."""
    if not self.clients_add_noise:
      return sample_state
    noise = self.noise_of(params, round_key, number)
    return tf.nest.map_structure(tf.add, sample_state, noise)

  def _steps(self, clip_norm: tf.Tensor) -> tf.Tensor:
    return grid.steps_per_unit(
      clip_norm, self.server_noise_multiplier, self._spare_bits
    )

  def get_noised_result(
    self, sample_state: Any, global_state: ClientNoiseState
  ) -> matrix_mechanism.Released:
    """Returns the sum, with the server's noise if any, next state, and added event.

    Its noise multiplier is infinite in rounds that add nothing to the worst case: the
    events of all rounds so far compose to the privacy that they spent.
    """
    this_round = self._this_round(global_state)
    with tf.control_dependencies([this_round]):
      sums, multiplier = self._sums_and_noise_multiplier(
        tf.nest.map_structure(tf.identity, sample_state)
      )
    steps = self._steps(global_state.clip_norm)
    if self._server_adds_noise:
      row = self._server_rows.row(global_state.server_key, this_round)
      unit_noise = self._server_rows.layout.unflatten(row)
      clip_norm = tf.cast(global_state.clip_norm, tf.float64)
      sums = grid.add_noise(sums, unit_noise, clip_norm * multiplier * steps)
    result = grid.to_floats(sums, self._record_specs, steps)
    state = global_state._replace(round=this_round + 1)
    return result, state, self._event_of(this_round)

  def _sums_and_noise_multiplier(self, sample_state: Any) -> tuple[Any, tf.Tensor]:
    """Returns the sum, in steps of the grid, and the server's noise multiplier."""
    return sample_state, tf.constant(self.server_noise_multiplier, tf.float64)

  def spent(self, global_state: ClientNoiseState) -> matrix_mechanism.Spent:
    """Returns the privacy spent by all rounds up to a state, and by the last one."""
    event, spent = self._event(), super().spent(global_state)
    assert isinstance(spent, matrix_mechanism.RepeatedSpent)
    if not isinstance(event, dp_accounting.GaussianDpEvent):
      return spent
    single = tf.constant(event.noise_multiplier, tf.float64)
    infinite = tf.constant(math.inf, tf.float64)

    def repeated(count: tf.Tensor) -> tf.Tensor:
      return tf.where(count > 0, single / tf.sqrt(tf.cast(count, tf.float64)), infinite)

    return matrix_mechanism.GaussianSpent(
      repeated(spent.last_round), repeated(spent.all_rounds)
    )

  def derive_metrics(self, global_state: ClientNoiseState) -> matrix_mechanism.Metrics:
    """Returns number of rounds, clip norm, noise, participations; no clients' data."""
    key_tag = tf.constant('')
    if self._server_adds_noise:
      key_tag = self._server_rows.key_tag(global_state.server_key)
    return collections.OrderedDict(
      rounds=global_state.round,
      clip_norm=global_state.clip_norm,
      client_noise_multiplier=tf.constant(self.client_noise_multiplier, tf.float64),
      server_noise_multiplier=tf.constant(self.server_noise_multiplier, tf.float64),
      participations=self._participations_after(global_state.round),
      noise_site=tf.constant(self.noise_site),
      noise_generator=tf.constant(self.generator),
      noise_key_tag=key_tag,
    )


class LocalGaussianSumQuery(ClientNoiseSumQuery):
  """Sums records to which each client has added Gaussian noise.

  Records are clipped in L2 norm and get noise of standard deviation
  `clip_norm * noise_multiplier` in each coordinate. Whether one was finite is not sent.

  Events and `spent` are the local guarantee, for what one client sends, against
  everybody: `accounting.local.local_event` under the zero-out neighbouring relation.
  Local privacy is usually stated for any two records of a client; for that divide the
  noise multiplier by two (`adjacency='replace_one'`). Against those who see sums only
  there is more privacy, `accounting.local.central_event`.

  With `server_noise_multiplier` the server adds Gaussian noise to the sum, of standard
  deviation `clip_norm * server_noise_multiplier` (as in NbAFL, arXiv:1911.00222). It
  only counts for the central guarantee.

  Example:
    >>> query = LocalGaussianSumQuery(
    ...   clip_norm=1.0, noise_multiplier=5.0, record_specs=tf.TensorSpec([3])
    ... )
    >>> state = query.initial_global_state()
    >>> params = query.derive_sample_params(state)
    >>> sample = query.initial_sample_state()
    >>> for _ in range(4):  # Each record has noise from a new key.
    ...   sample = query.accumulate_record(params, sample, tf.constant([0.5, 0.0, 0.0]))
    >>> noised, state, event = query.get_noised_result(sample, state)
    >>> float(event.noise_multiplier), float(query.spent(state)[1])
    (5.0, 5.0)
  """

  def __init__(
    self,
    participation: Optional[strategies.Participation] = None,
    *,
    noise_multiplier: float,
    server_noise_multiplier: float = 0.0,
    **arguments: Any,
  ):
    """Initializes the query from arguments of `ClientNoiseSumQuery`.

    `noise_multiplier` and `server_noise_multiplier` are the standard deviations of one
    client's noise and of the server's over `clip_norm`; 0 adds none.
    """
    self.server_noise_multiplier = grid.check_noise_multiplier(
      server_noise_multiplier, 'server_noise_multiplier'
    )
    if server_noise_multiplier:
      self.noise_site = 'clients_and_server'
    super().__init__(
      participation,
      noise=noises.GAUSSIAN.name,
      client_noise_multiplier=noise_multiplier,
      **arguments,
    )


class LocalLaplaceSumQuery(ClientNoiseSumQuery):
  """Sums records to which each client has added Laplace noise.

  Records are clipped in L1 norm and get noise of scale `clip_norm * noise_multiplier`
  in each coordinate. Against everybody, and with delta = 0, epsilon is
  1 / `noise_multiplier` under the zero-out neighbouring relation, and twice that for
  any two records of a client. Clients do not report whether their record was finite.
  """

  def __init__(
    self,
    participation: Optional[strategies.Participation] = None,
    *,
    noise_multiplier: float,
    **arguments: Any,
  ):
    """Initializes the query from arguments of `ClientNoiseSumQuery`.

    `noise_multiplier` is the scale of one client's noise over `clip_norm`.
    """
    super().__init__(
      participation,
      noise=noises.LAPLACE.name,
      client_noise_multiplier=noise_multiplier,
      **arguments,
    )


class GaussianSharesSumQuery(ClientNoiseSumQuery):
  """Sums records with shares of noise that add up to a central Gaussian mechanism.

  Each client adds Gaussian noise of standard deviation
  `clip_norm * noise_multiplier / sqrt(min_clients)`. The sum of `min_clients` clients
  has the noise of `GaussianSumQuery`; a sum of more clients has more noise. A sum of
  fewer has too little and must not be released, which is up to the caller that counts
  clients (`aggregators.DPMeanFactory`).

  A share hardly hides what a single client sends, so sums have to be secure, or the
  server has to discard it. A client of the round knows its own share, so against this
  client the noise is sqrt((m - 1) / m) times as large, with m = `min_clients`
  (`accounting.local.central_event` with `known_shares`). Clients that add less noise
  than they should reduce the privacy of all.
  """

  noise_site = 'clients'

  def __init__(
    self,
    participation: Optional[strategies.Participation] = None,
    *,
    noise_multiplier: float,
    min_clients: int,
    **arguments: Any,
  ):
    """Initializes the query from arguments of `ClientNoiseSumQuery`.

    `noise_multiplier` is the standard deviation of the noise of a sum of `min_clients`
    records over `clip_norm`; 0 adds none.
    """
    self.min_clients = checks.check_positive_int('min_clients', min_clients)
    super().__init__(
      participation,
      noise=noises.GAUSSIAN.name,
      client_noise_multiplier=local.share(noise_multiplier, self.min_clients),
      **arguments,
    )
    self._noise_multiplier = float(noise_multiplier)

  def _event(self) -> dp_accounting.DpEvent:
    if not self._noise_multiplier:
      return dp_accounting.NonPrivateDpEvent()
    return dp_accounting.GaussianDpEvent(self._noise_multiplier)

  def _facts(self) -> dict[str, Any]:
    # With equal shares, more clients make more noise, and spend less privacy.
    return {**super()._facts(), 'min_clients': self.min_clients}


class ApproximateSample(NamedTuple):
  """A preprocessed record and a count of 1, or a sum of them."""

  record: Any  # Clipped, in steps of the grid, structure of int64.
  clients: Any  # 1, int64.


class ApproximateLocalSumQuery(ClientNoiseSumQuery):
  """SIMULATION ONLY: approximates the error of local noise with Gaussian server noise.

  The server adds Gaussian noise once, with the variance of the sum of the noise of all
  reporting clients. Sums have the mean and covariance of the approximated query
  (`LocalGaussianSumQuery` or `LocalLaplaceSumQuery`). For Gaussian noise they have the
  same distribution, apart from rounding; for Laplace noise only in the limit of many
  clients.

  Clients send records without noise, so nothing is hidden from the server, and `spent`
  and the events are `NonPrivateDpEvent`. `accounting.local.local_event` computes the
  privacy of the approximated query.
  """

  noise_site = 'local_approximate'

  def __init__(
    self,
    participation: Optional[strategies.Participation] = None,
    *,
    noise: str,
    noise_multiplier: float,
    **arguments: Any,
  ):
    """Initializes the query; `noise` is the kind of the approximated client noise.

    The other arguments are those of `LocalGaussianSumQuery` and `LocalLaplaceSumQuery`.
    """
    super().__init__(
      participation,
      noise=noise,
      client_noise_multiplier=noise_multiplier,
      **arguments,
    )
    self._server_adds_noise = self.clients_add_noise
    self.__dict__['clients_add_noise'] = False

  def _event(self) -> dp_accounting.DpEvent:
    return dp_accounting.NonPrivateDpEvent()

  def initial_sample_state(self, template: Any = None) -> ApproximateSample:
    """Returns the sum of no records: int64 zeros."""
    return ApproximateSample(
      super().initial_sample_state(template), tf.constant(0, tf.int64)
    )

  def encode_without_noise(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns the clipped record and a count, and whether the record was finite."""
    clipped, finite = super().encode_without_noise(params, record)
    return ApproximateSample(clipped, tf.constant(1, tf.int64)), finite

  def _sums_and_noise_multiplier(self, sample_state: Any) -> tuple[Any, tf.Tensor]:
    stddev = self.client_noise_multiplier * self._noise.stddev
    sum_stddev = stddev * tf.sqrt(tf.cast(sample_state.clients, tf.float64))
    return sample_state.record, sum_stddev
