"""The Laplace sum: pure epsilon, for records that are few or sparse numbers."""

import collections
import math
from typing import Any, NamedTuple, Optional

import dp_accounting
import tensorflow as tf
from typing_extensions import Unpack

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.noise import options
from tff_dp_aggregators.noise import rows
from tff_dp_aggregators.noise import streaming
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import participations as participations_lib


class LaplaceState(NamedTuple):
  """State of a query between rounds; the key is secret."""

  key: Any  # int64 [4].
  round: Any  # The one to come, int64.
  clip_norm: Any  # L1 bound of a record, float32.
  belongs_to: Any  # The mechanism, as `mechanism_text` writes it.

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}(key={streaming.hidden(self.key)}, '
      f'round={self.round!r}, clip_norm={self.clip_norm!r})'
    )


class LaplaceSumQuery(participations_lib.IndependentNoiseQuery):
  """Clips records in L1 norm, sums them and adds independent Laplace noise.

  A round is epsilon-private with epsilon = 1 / `noise_multiplier` (Dwork et al. 2006,
  theorem 1), and n rounds of a client are n times that. The noise of a coordinate is of
  scale b = `clip_norm * noise_multiplier`, of standard deviation sqrt(2) b, and ends at
  88 b (`noise.rows` tells what this costs).

  For models this is rarely what one wants: the L1 norm of a vector of d entries is up
  to sqrt(d) times its L2 norm, and so is the noise.

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
    >>> (sample.numpy() / 2**32).round(6)  # In steps of the grid: 2^32 are 1 here.
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
    """Initializes the query from arguments as for `GaussianSumQuery`.

    `clip_norm` bounds the L1 norm; `noise_multiplier` is the scale of the noise over
    it.
    """
    super().__init__(participation, record_specs)
    self._clip_norm = grid.check_clip_norm(clip_norm)
    self._noise_multiplier = events.check_noise_multiplier(noise_multiplier)
    grid.check_noise_multiplier(noise_multiplier)
    given = options.checked(noise_options, noise_lib.IndependentOptions)
    self._rows = rows.LaplaceRows(record_specs, given.seed, given.generator)

  def _event(self) -> dp_accounting.DpEvent:
    if not self._noise_multiplier:
      return dp_accounting.NonPrivateDpEvent()
    return dp_accounting.LaplaceDpEvent(self._noise_multiplier)

  def initial_global_state(self) -> LaplaceState:
    """Returns the state before round 0, with a key of its own."""
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
  ) -> tuple[Any, LaplaceState, dp_accounting.DpEvent]:
    """Returns the noised sum, the next state and the round's `LaplaceDpEvent`.

    Its noise multiplier is infinite in rounds that add nothing to the worst case: the
    events of all rounds so far compose to what they spent.
    """
    this_round = self._this_round(global_state)
    row = self._rows.row(global_state.key, this_round)
    steps = self._steps(global_state.clip_norm)
    noised = grid.add_noise(
      sample_state,
      self._rows.layout.unflatten(row),
      self._scale(global_state) * steps,
    )
    result = grid.to_floats(noised, self._record_specs, steps)
    state = global_state._replace(round=this_round + 1)
    return result, state, self._event_of(this_round)

  def signal_and_noise(
    self, sample_state: Any, global_state: LaplaceState
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the L2 norm of a round's exact sum, and the mean square of its noise's.

    That of the noise is 2 d b^2, for d coordinates and scale b.
    """
    signal = grid.norm(sample_state, self._steps(global_state.clip_norm))
    scale = tf.square(self._scale(global_state))
    return signal, 2 * self._num_coordinates() * scale

  def _scale(self, state: LaplaceState) -> tf.Tensor:
    return tf.cast(state.clip_norm, tf.float64) * self._noise_multiplier

  def derive_metrics(
    self, global_state: LaplaceState
  ) -> 'collections.OrderedDict[str, tf.Tensor]':
    """Returns rounds served, clip norm, noise and what has been spent; nothing of data.

    `epsilon` is that of all rounds so far for a client who was in as many of them as it
    may, with delta = 0. `noise_key_tag` differs where secret keys do; it is empty with
    a seed.
    """
    rounds = global_state.round
    each = 1 / self._noise_multiplier if self._noise_multiplier else math.inf
    return collections.OrderedDict(
      rounds=rounds,
      clip_norm=global_state.clip_norm,
      noise_multiplier=tf.constant(self._noise_multiplier, tf.float64),
      epsilon=tf.math.multiply_no_nan(
        tf.constant(each, tf.float64),
        tf.cast(self._participations_after(rounds), tf.float64),
      ),
      noise_generator=tf.constant(self.generator),
      noise_key_tag=self._rows.key_tag(global_state.key),
    )

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}({self._limits}, clip_norm={self._clip_norm}, '
      f'noise_multiplier={self._noise_multiplier})'
    )
