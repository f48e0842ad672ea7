"""Checks that a mechanism goes with a run's other settings, without TensorFlow."""

from collections.abc import Mapping
from typing import Any, Optional

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.learning import options as options_lib

# Memory limits of canaries: dense matrices of rounds, and 2 GiB of directions.
_MAX_AUDITED_ROUNDS = 8192
_MAX_CANARY_NUMBERS = 2**29


class TooFewExamplesError(ValueError):
  """A client has fewer examples than the noise was planned for."""


def check_packing(why_not_packed: Optional[str], needing: Mapping[str, bool]) -> None:
  """Refuses stated settings that need packs, if clients are trained one by one."""
  for stated, is_stated in needing.items():
    if is_stated and why_not_packed is not None:
      raise ValueError(
        f'{stated} is for packs of clients, and these clients are trained one by one: '
        f'{why_not_packed}. Leave one of them out.'
      )


def check_clip_norm(
  mechanism: Optional[joint_mechanism.AnyMechanism], clip_norm: Optional[float]
) -> None:
  """Refuses a mechanism without clip norm, and a clip norm beside those of parts."""
  if mechanism is None:
    return
  if mechanism.parts and clip_norm is not None:
    raise ValueError(
      f'clip_norm={clip_norm:g} does not go with a joint mechanism: each of its parts '
      'has its own. Leave it out.'
    )
  if not mechanism.parts and clip_norm is None:
    raise ValueError('clip_norm is missing, which a mechanism needs.')


def check_scale(
  scale: float, mechanism: Optional[joint_mechanism.AnyMechanism], name: str = 'scale'
) -> None:
  """Refuses a larger cohort's noise unless one server adds it for all weights."""
  if mechanism is None:
    given = 'training without a mechanism'
  elif mechanism.parts:
    given = 'a joint mechanism'
  else:
    given = f'noise_site={mechanism.noise_site}'
  if scale != 1 and given != 'noise_site=server':
    raise ValueError(
      f'{name}={scale:g} does not go with {given}: it is for the noise of one server, '
      'under one mechanism for all weights. Leave one of them out.'
    )


def check_clients(
  mechanism: joint_mechanism.AnyMechanism, min_clients: int, schedule: sampling.Schedule
) -> None:
  """Refuses cohorts of fewer than `min_clients`, and retries that no event counts."""
  dropouts = getattr(schedule, 'dropouts', None)
  goal, rounds = schedule.reporting_goal, range(schedule.num_rounds)
  placement = mechanism.placement
  if placement.is_on_clients and placement.is_of_client:
    if (dropouts and goal is not None) or (
      not dropouts and any(len(schedule.attempts(number)) > 1 for number in rounds)
    ):
      raise ValueError(
        f'rounds that are tried again (reporting_goal={goal}) do not go with '
        f'noise_site={placement.name}: clients have sent their updates by then, and '
        'send others when they are asked again, which no event counts. Leave the '
        'reporting goal out: with noise of its own a client is hidden in any round.'
      )
  if dropouts and min_clients > (goal or 0):
    raise ValueError(
      f'min_clients is {min_clients}, and clients drop out with reporting_goal={goal}: '
      'a round in which fewer report cannot be released. Give the schedule '
      f'reporting_goal={min_clients} or more, so that such a round is tried again, or '
      'plan with a smaller min_clients.'
    )
  if dropouts or not min_clients:
    return
  for number in rounds:
    size = len(schedule.cohort(number))
    if size < min_clients:
      raise ValueError(
        f'round {number} is of {size} clients, but min_clients is {min_clients}. '
        'Ask for more clients a round, or plan with a smaller min_clients.'
      )


def check_canaries(
  number: int,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  server: options_lib.Server,
  *,
  is_packed: bool,
  is_other_noise: bool,
  model_size: Any = None,
  name: str = 'run.audit_canaries',
) -> None:
  """Refuses canaries if no epsilon is claimed for them, or the run cannot carry them.

  `is_other_noise` says that the noise is that of a simulated cohort, or of NbAFL.
  """
  gaussian_of_server = (
    isinstance(mechanism, accounting.Mechanism)
    and mechanism.has_noise
    and mechanism.noise_site == 'server'
    and mechanism.noise.is_gaussian
    and mechanism.clipped_count_stddev is None
  )
  rounds = 0 if mechanism is None else mechanism.limits.num_rounds
  size = model_size if isinstance(model_size, int) else 0
  for does_not_fit, why in (
    (
      not gaussian_of_server or is_other_noise,
      'their scores are for Gaussian noise of the server, without adaptive clipping, a '
      'joint mechanism, a larger cohort or NbAFL',
    ),
    (
      server.zeroing_norm is not None or server.coordinate_bound is not None,
      'zeroing_norm and coordinate_bound would change what they send; leave them out',
    ),
    (
      not is_packed,
      'clients are trained one by one, and they are added to sums of packs',
    ),
    (
      rounds > _MAX_AUDITED_ROUNDS,
      f'the noise covariance of at most {_MAX_AUDITED_ROUNDS} rounds fits in memory',
    ),
    (
      number * size > _MAX_CANARY_NUMBERS,
      f'their directions of {size} parameters do not fit in memory; at most '
      f'{_MAX_CANARY_NUMBERS // max(size, 1)} do',
    ),
  ):
    if does_not_fit:
      raise ValueError(f'{name}={number} does not go with this: {why}.')


def check_server(
  server: options_lib.Server,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  clip_norm: Optional[float],
  prefix: str = 'server.',
) -> None:
  """Refuses options of the server that do not go with the mechanism, or with none."""
  plain, secure, modular = options_lib.INNER
  inner = server.inner_aggregator
  is_adaptive = is_of_server = False
  fits = secure
  if mechanism is not None:
    is_adaptive = mechanism.clipped_count_stddev is not None
    is_of_server = mechanism.noise_site == 'server'
    fits = modular if mechanism.has_integer_noise else secure
  is_clipped_alone = mechanism is None and clip_norm is not None
  for name, purpose, is_so in (
    ('clip_order', 'a clip_norm without a mechanism', is_clipped_alone),
    ('not_private_signal_to_noise', 'noise of the server', is_of_server),
    ('target_quantile', 'adaptive clipping', is_adaptive),
    ('clip_learning_rate', 'adaptive clipping', is_adaptive),
  ):
    value = getattr(server, name)
    if value is not None and value is not False and not is_so:
      raise ValueError(f'{prefix}{name}={value} is for {purpose}; leave it out.')
  if inner != plain and (inner != fits or (mechanism or clip_norm) is None):
    raise ValueError(
      f'{prefix}inner_aggregator={inner} does not go with this: clipped updates with '
      f'integer noise (skellam, discrete_gaussian) take {modular} or {plain}, other '
      f'clipped updates {secure} or {plain}, and updates without clip norm {plain}.'
    )


def why_one_by_one(
  server: options_lib.Server,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  prefix: str = 'server.',
) -> Optional[str]:
  """Why clients cannot be packed; `None` if they can."""
  if mechanism is not None and mechanism.has_integer_noise:
    return f'each client draws its share of {mechanism.name} noise with its own key'
  if server.inner_aggregator != options_lib.SUM:
    name = f'{prefix}inner_aggregator={server.inner_aggregator}'
    return f'{name} sums what each client sends'
  return None
