"""Adaptive clip norms that follow a private estimate of a quantile of clients' norms.

The state has a running estimate nu of the quantile (Andrew et al., arXiv:1905.03871).
Each client sends one bit, b, whether its norm is at most nu, and after each round

    nu <- nu * exp(-learning_rate * (fraction - target_quantile)),

where `fraction` is the noised mean of b. Every `update_every` rounds the clip norm
zeta becomes nu.

**Privacy.** In round t a client contributes its record x, clipped to norm zeta_t, and
b - 1/2. The released sums are

    sum of x        +  zeta_t * z_delta * (D Z)[t]
    sum of b - 1/2  +           sigma_b * (D Z)[t]

with D the strategy's noise matrix and Z iid standard Gaussian rows that have one
coordinate more than a record. Claim: all rounds together cost exactly as much privacy
as the strategy with a fixed clip norm and noise multiplier z, where (theorem 1 of the
paper)

    z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2).

1. Write a client's contribution as u = (x / (zeta_t z_delta), (b - 1/2) / sigma_b).
   Then |u|^2 <= z_delta^-2 + (2 sigma_b)^-2 = z^-2, whatever x, zeta_t and nu_t are. A
   client that is absent contributes zero in both parts (zeroing-out, arXiv:2103.00039,
   definition 1.1), so a client changes the sum by exactly u.
2. Let U_t be the sum of the u of round t. U_t + (D Z)[t] for t = 0, 1, ... is the
   matrix mechanism of the strategy, with clip norm 1 / z and noise of standard
   deviation 1: noise multiplier z.
3. zeta_t and nu_t are functions of the results of rounds 0 to t - 1, so contributions
   are chosen adaptively. This costs no privacy: the rows of C that enter round t depend
   on rounds up to t only, and the noise is Gaussian (arXiv:2202.08312, theorem 2.1; for
   several participations arXiv:2211.06530, section 2).
4. The released sums are those of (2), with their parts multiplied by zeta_t z_delta and
   sigma_b, which are known from earlier rounds; estimate, clip norms and rows of a
   workload are functions of them. This is post-processing.

For step 4 a round's sum and noise have to be scaled together, by this round's clip
norm, so noise of earlier rounds is stored at unit scale.

**Utility.** With N = D Z the noise of the sum of rounds 0 to t is

    sum_s zeta_s N_s = zeta_t P_t - sum_{s < t} (zeta_{s+1} - zeta_s) P_s,

where P_s = N_0 + ... + N_s is the small noise of a prefix sum: every change of the clip
norm leaves a part of P_s that does not cancel. So a tree that restarts keeps its clip
norm until the restart, and other strategies can keep it for any number of rounds. The
estimate still changes in every round, as in TF Privacy's `QAdaClipTreeResSumQuery`.
"""

import logging
from typing import Any, NamedTuple, Optional

import tensorflow as tf
from typing_extensions import Unpack

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import adaptive_clipping as split
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.noise import options
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import matrix_mechanism
from tff_dp_aggregators.queries import statistics

_logger = logging.getLogger(__name__)


# The integer for 1 in the count of small norms; b - 1/2 is plus or minus half of it.
# With noise of up to this standard deviation, 64 bits are more than enough. A step may
# be as small as 2^-50 standard deviations, but only float32 numbers made of steps are
# released. Near one (default) standard deviation, at least 2^17 float64 values of the
# noise have the same estimate, as in `grid`, and so has a `fraction_below` above 2^-16.
UNIT = 2**30
_LARGEST_COUNT_STDDEV = 2.0**20


class AdaptiveParams(NamedTuple):
  """Parameters that clients receive; they have been released already."""

  clip_norm: Any  # L2 bound of a record, float32.
  quantile_estimate: Any  # The record's norm is compared with this, float32.


class AdaptiveSample(NamedTuple):
  """A preprocessed record, or a sum of them."""

  record: Any  # The clipped record, in steps of the grid.
  below: Any  # `UNIT / 2` if its norm is at most the estimate, else `-UNIT / 2`; int64.


class Adaptation(NamedTuple):
  """State of the clip norm's adaptation: private estimates, which may be published."""

  quantile_estimate: Any  # Quantile of the norms, float32.
  # Noised fraction of records whose norm was at most the estimate of the last round,
  # within [0, 1], float32; 1/2 before the first round.
  fraction_below: Any


class AdaptiveClippingQuery(matrix_mechanism.MatrixMechanismQuery):
  """A matrix mechanism whose clip norm follows a quantile of the norms (1905.03871).

  `noise_multiplier` covers everything that the query releases, including the estimates:
  events and `effective_noise_multiplier` are those of a `MatrixMechanismQuery` with the
  same numbers. The noise of the records, `value_noise_multiplier` times the clip norm,
  is a little larger. A record that is not finite counts as a zero record, in the sum
  and in the fraction of small norms. The clip norm stays within 2^-80 and 2^80.
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
    participation: strategies.Participation,
    *,
    initial_clip_norm: float,
    noise_multiplier: float,
    clients_per_round: float,
    record_specs: Any,
    target_quantile: float = 0.5,
    learning_rate: float = 0.2,
    clipped_count_stddev: Optional[float] = None,
    update_every: Optional[int] = None,
    workload: Optional[strategies.Workload] = None,
    **noise_options: Unpack[noise_lib.Options],
  ):
    """Initializes the query.

    Args:
      strategy: Strategy matrix C. One round more than it has is an error.
      participation: Who may take part when, for the same number of rounds.
      initial_clip_norm: L2 bound of a record in the first rounds, and the first
        estimate. Too small is better than too large: noise is proportional to it.
      noise_multiplier: Noise multiplier of a query with a fixed clip norm that is as
        private as records and counts together; 0 adds no noise to either.
      clients_per_round: Expected number of clients in a round, by which counts are
        divided. It is fixed, so that the number of clients stays private.
      record_specs: Structure of float tensor specs like a record.
      target_quantile: Target fraction of records that are not clipped.
      learning_rate: The estimate changes by a factor of at most exp(learning_rate) a
        round.
      clipped_count_stddev: Standard deviation of z for the count of small norms; `None`
        for a value that suits every cohort: a twentieth of `clients_per_round`, or as
        much as takes a tenth of the budget (`accounting.adaptive_clipping`).
      update_every: Number of rounds with the same clip norm, while the estimate changes
        in each. `None` means `restart_every` for a tree that restarts, and 1 otherwise.
      workload: As for `MatrixMechanismQuery`.
      **noise_options: See `noise.Options`.

    Raises:
      ValueError: As `MatrixMechanismQuery`, which raises other errors, too; if
        `clipped_count_stddev` is at most half of `noise_multiplier`, so that the count
        alone would cost more than the whole query; or if a tree restarts between two
        updates.
    """
    self._clients_per_round = checks.check_positive(
      'clients_per_round', clients_per_round
    )
    self._target_quantile = checks.check_within(
      'target_quantile', target_quantile, 0, 1
    )
    self._learning_rate = checks.check_not_negative('learning_rate', learning_rate)
    # Number of rounds with the same clip norm.
    self.update_every = _check_update_every(update_every, strategy)
    # sigma_b: standard deviation of z for the count of small norms.
    self.clipped_count_stddev = _check_count_stddev(
      clipped_count_stddev, noise_multiplier, self._clients_per_round
    )
    # z_delta: standard deviation of z for the records, over the clip norm.
    self.value_noise_multiplier = _value_noise_multiplier(
      noise_multiplier, self.clipped_count_stddev
    )
    grid.check_noise_multiplier(self.value_noise_multiplier)
    # L2 bound of a record in the first rounds.
    self.initial_clip_norm = grid.check_clip_norm(
      initial_clip_norm, 'initial_clip_norm'
    )
    super().__init__(
      strategy,
      participation,
      clip_norm=initial_clip_norm,
      noise_multiplier=noise_multiplier,
      record_specs=record_specs,
      workload=workload,
      **noise_options,
    )

  @property
  def clip_norm(self) -> float:
    """ValueError, because the clip norm is not known in advance."""
    raise ValueError(
      'the clip norm of this query changes from round to round: see clip_norm in its '
      'state or metrics, and initial_clip_norm for the first.'
    )

  @property
  def clipped_count_share(self) -> float:
    """The fraction of the budget, mu^2, that the count of small norms takes."""
    return split.share(self._noise_multiplier, self.clipped_count_stddev)

  def initial_global_state(self) -> matrix_mechanism.GlobalState:
    """Returns the state before round 0, with a new key."""
    state = super().initial_global_state()
    adaptation = Adaptation(
      quantile_estimate=state.clip_norm, fraction_below=tf.constant(0.5, tf.float32)
    )
    return state._replace(adaptation=adaptation)

  def _sum_specs(self) -> AdaptiveSample:
    return AdaptiveSample(super()._sum_specs(), tf.TensorSpec([], tf.float32))

  def _initial_released(self) -> Any:
    return tuple(sample.record for sample in super()._initial_released())

  def derive_sample_params(self, global_state: matrix_mechanism.GlobalState) -> Any:
    """Returns `AdaptiveParams`: the clip norm, and the estimate to compare with."""
    return AdaptiveParams(
      global_state.clip_norm, global_state.adaptation.quantile_estimate
    )

  def initial_sample_state(self, template: Any = None) -> AdaptiveSample:
    """Returns zeros like `template`, a record, and a count of zero."""
    return AdaptiveSample(
      super().initial_sample_state(template), tf.zeros([], tf.int64)
    )

  # A sample is a record on the grid and its bit; non-finite records count as zero.

  def _clip_norm_of(self, params: Any) -> tf.Tensor:
    return params.clip_norm

  def _sample(self, params: Any, integers: Any, norms: Any) -> Any:
    is_below = norms <= tf.cast(params.quantile_estimate, tf.float64)
    half = tf.constant(UNIT // 2, tf.int64)
    return AdaptiveSample(integers, tf.reduce_sum(tf.where(is_below, half, -half)))

  def _integers(self, sample_state: AdaptiveSample) -> Any:
    return sample_state.record

  def _steps(self, clip_norm: tf.Tensor) -> tf.Tensor:
    return grid.steps_per_unit(clip_norm, self.value_noise_multiplier)

  def _mechanism(self) -> dict[str, Any]:
    return {
      **super()._mechanism(),
      'clip_norm': 'adaptive',
      'initial_clip_norm': self._clip_norm,
      'clipped_count_stddev': self.clipped_count_stddev,
      'clients_per_round': self._clients_per_round,
      'target_quantile': self._target_quantile,
      'learning_rate': self._learning_rate,
      'update_every': self.update_every,
    }

  def _stddev(self, state: matrix_mechanism.GlobalState) -> tf.Tensor:
    """Returns the standard deviation of z for the records, float64."""
    return tf.cast(state.clip_norm, tf.float64) * self.value_noise_multiplier

  def _add_noise(
    self, sample_state: Any, noise: Any, state: matrix_mechanism.GlobalState
  ) -> AdaptiveSample:
    tf.nest.assert_same_structure(sample_state, noise)
    stddev = tf.constant(self.clipped_count_stddev * UNIT, tf.float64)
    count = grid.add_noise(sample_state.below, noise.below, stddev)
    return AdaptiveSample(
      super()._add_noise(sample_state.record, noise.record, state),
      tf.cast(count, tf.float64) / UNIT,
    )

  def _publish(
    self, noised_sum: AdaptiveSample, state: matrix_mechanism.GlobalState
  ) -> tuple[Any, matrix_mechanism.GlobalState]:
    result, state = super()._publish(noised_sum.record, state)
    fraction = statistics.fraction_below(noised_sum.below, self._clients_per_round)
    excess = fraction - self._target_quantile
    adaptation = Adaptation(
      statistics.moved(state.adaptation.quantile_estimate, excess, self._learning_rate),
      tf.cast(fraction, tf.float32),
    )
    updates = tf.equal((state.noise.round + 1) % self.update_every, 0)
    clip_norm = tf.where(updates, adaptation.quantile_estimate, state.clip_norm)
    return result, state._replace(clip_norm=clip_norm, adaptation=adaptation)

  def derive_metrics(
    self, global_state: matrix_mechanism.GlobalState
  ) -> matrix_mechanism.Metrics:
    """Returns the metrics of `MatrixMechanismQuery`, and the private estimates.

    `clip_norm` and `quantile_estimate` are those of the next round; `fraction_below` is
    the noised fraction of the last round.
    """
    metrics = super().derive_metrics(global_state)
    metrics.update(global_state.adaptation._asdict())
    return metrics

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}({self.strategy.kind}, {self._participation}, '
      f'initial_clip_norm={self._clip_norm}, '
      f'noise_multiplier={self._noise_multiplier}, '
      f'target_quantile={self._target_quantile}, update_every={self.update_every})'
    )


class AdaptiveGaussianSumQuery(AdaptiveClippingQuery):
  """A Gaussian sum whose clip norm follows a quantile of the norms (1905.03871).

  It corresponds to TF Privacy's `QuantileAdaptiveClipSumQuery` with geometric updates,
  and to `tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive`, except that
  the event covers records and counts together.
  """

  def __init__(
    self,
    participation: Optional[strategies.Participation] = None,
    *,
    initial_clip_norm: float,
    noise_multiplier: float,
    clients_per_round: float,
    record_specs: Any,
    target_quantile: float = 0.5,
    learning_rate: float = 0.2,
    clipped_count_stddev: Optional[float] = None,
    update_every: Optional[int] = None,
    **noise_options: Unpack[noise_lib.IndependentOptions],
  ):
    """Initializes the query from arguments of `AdaptiveClippingQuery`.

    `participation` may be `None`, as for `GaussianSumQuery`.
    """
    options.checked(noise_options, noise_lib.IndependentOptions)
    planned = matrix_mechanism.planned_participation(participation)
    super().__init__(
      strategies.Identity(planned.num_rounds),
      planned,
      initial_clip_norm=initial_clip_norm,
      noise_multiplier=noise_multiplier,
      clients_per_round=clients_per_round,
      record_specs=record_specs,
      target_quantile=target_quantile,
      learning_rate=learning_rate,
      clipped_count_stddev=clipped_count_stddev,
      update_every=update_every,
      **noise_options,
    )
    self._unlimited = participation is None


def _value_noise_multiplier(
  noise_multiplier: float, clipped_count_stddev: float
) -> float:
  """Returns the noise multiplier of the records; logs a warning if it is large."""
  result = split.values_noise_multiplier(noise_multiplier, clipped_count_stddev)
  if noise_multiplier and result >= 2 * noise_multiplier:
    _logger.warning(
      'adaptive clipping makes the noise of the records %.3g times as large: a '
      'clipped_count_stddev of %g is small for noise_multiplier %g; leave it out.',
      result / noise_multiplier,
      clipped_count_stddev,
      noise_multiplier,
    )
  return result


def _check_count_stddev(
  stddev: Optional[float], noise_multiplier: float, clients_per_round: float
) -> float:
  if stddev is None:
    stddev = split.default_stddev(noise_multiplier, clients_per_round)
  stddev = checks.check_not_negative('clipped_count_stddev', stddev)
  if stddev and not noise_multiplier:
    raise ValueError(
      'with noise_multiplier 0 there is no noise at all; leave out '
      f'clipped_count_stddev, got {stddev}.'
    )
  if stddev > _LARGEST_COUNT_STDDEV:
    raise ValueError(
      f'clipped_count_stddev must be at most 2^20; got {stddev:.4g}, by '
      f'noise_multiplier={noise_multiplier} and clients_per_round={clients_per_round} '
      'if it is not given. Choose less of both.'
    )
  return stddev


def _check_update_every(
  update_every: Optional[int], strategy: strategies.Strategy
) -> int:
  restart_every = (
    strategy.restart_every if isinstance(strategy, strategies.BinaryTree) else None
  )
  if update_every is None:
    return restart_every or 1
  update_every = checks.check_positive_int('update_every', update_every)
  if restart_every is not None and update_every % restart_every:
    raise ValueError(
      f'update_every must be a multiple of restart_every, {restart_every}; got '
      f'{update_every}. Within a tree, noise cancels only if the clip norm is the same.'
    )
  return update_every
