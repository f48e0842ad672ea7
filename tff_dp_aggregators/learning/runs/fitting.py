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
  if scale == 1:
    return
  if mechanism is None:
    conflict = 'training without a mechanism'
  elif mechanism.parts:
    conflict = 'a joint mechanism'
  elif mechanism.noise_site != 'server':
    conflict = f'noise_site={mechanism.noise_site}'
  else:
    return
  raise ValueError(
    f'{name}={scale:g} does not go with {conflict}: it stands for a cohort that shares '
    'the noise of one server, under one mechanism for all weights. Leave one of them '
    'out.'
  )


def check_clients(
  mechanism: joint_mechanism.AnyMechanism, min_clients: int, schedule: sampling.Schedule
) -> None:
  """Refuses cohorts of fewer than `min_clients`, and retries that no event counts."""
  dropouts = getattr(schedule, 'dropouts', None)
  goal = schedule.reporting_goal
  placement = mechanism.placement
  hides_each = placement.is_on_clients and placement.is_of_client
  if hides_each:
    has_retries = goal is not None
    if not dropouts:
      rounds = range(schedule.num_rounds)
      has_retries = any(len(schedule.attempts(number)) > 1 for number in rounds)
    if has_retries:
      raise ValueError(
        f'rounds that are tried again (reporting_goal={goal}) do not go with '
        f'noise_site={placement.name}: clients have sent their updates by then, and '
        'send others when they are asked again, which no event counts. Leave the '
        'reporting goal out: with noise of its own a client is hidden in any round.'
      )
  if not min_clients:
    return
  if dropouts and (goal is None or goal < min_clients):
    raise ValueError(
      f'min_clients is {min_clients}, and clients drop out with reporting_goal={goal}: '
      'a round in which fewer report cannot be released. '
      + (
        'Leave min_clients out: with noise of its own a client is hidden in any round.'
        if hides_each
        else f'Give the schedule reporting_goal={min_clients} or more, so that such a '
        'round is tried again, or plan with a smaller min_clients.'
      )
    )
  if dropouts:
    return
  for this_round in range(schedule.num_rounds):
    size = len(schedule.cohort(this_round))
    if size < min_clients:
      raise ValueError(
        f'round {this_round} is of {size} clients, but min_clients is {min_clients}. '
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
  why = None
  if mechanism is None or not mechanism.has_noise:
    why = 'without noise no epsilon is claimed that they could be held against'
  elif is_other_noise:
    why = 'noise of a larger cohort, or of NbAFL, is not what the report claims'
  elif not isinstance(mechanism, accounting.Mechanism):
    why = 'each part of a joint mechanism has a clip norm of its own'
  elif mechanism.noise_site != 'server' or not mechanism.noise.is_gaussian:
    why = 'their scores are for Gaussian noise of the server'
  elif mechanism.clipped_count_stddev is not None:
    why = (
      'with adaptive clipping the norms of clients are released as well, which their '
      'scores ignore; give a fixed clip norm'
    )
  elif server.zeroing_norm is not None or server.coordinate_bound is not None:
    why = (
      'zeroing_norm and coordinate_bound would change what they send; leave them out'
    )
  elif not is_packed:
    why = 'clients are trained one by one, and they are added to sums of packs'
  if why is not None:
    raise ValueError(f'{name}={number} does not go with this: {why}.')
  assert mechanism is not None
  rounds = mechanism.limits.num_rounds
  if rounds > _MAX_AUDITED_ROUNDS:
    raise ValueError(
      f'{name}={number} is for at most {_MAX_AUDITED_ROUNDS} rounds, whose noise '
      f'covariance fits in memory; got {rounds}. Leave it out, or audit fewer rounds.'
    )
  if isinstance(model_size, int) and number * model_size > _MAX_CANARY_NUMBERS:
    raise ValueError(
      f'{name}={number} directions of {model_size} parameters do not fit in memory; at '
      f'most {_MAX_CANARY_NUMBERS // model_size} do.'
    )


def check_server(
  server: options_lib.Server,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  clip_norm: Optional[float],
  prefix: str = 'server.',
) -> None:
  """Refuses options of the server that do not go with the mechanism, or with none."""
  name = f'{prefix}inner_aggregator={server.inner_aggregator}'
  plain, secure, modular = options_lib.INNER
  has_integers = mechanism is not None and mechanism.has_integer_noise
  if server.clip_order is not None and (mechanism is not None or clip_norm is None):
    raise ValueError(
      f'{prefix}clip_order={server.clip_order:g} is for a clip_norm without a '
      'mechanism, which clips in the norm of its noise. Leave it out.'
    )
  if server.inner_aggregator != plain and mechanism is None and clip_norm is None:
    raise ValueError(
      f'{name} does not go with updates that are not clipped: a secure sum is of '
      'bounded integers. Give a mechanism or a clip_norm.'
    )
  if server.inner_aggregator == (secure if has_integers else modular):
    raise ValueError(
      f'{name} does not go with this noise: sums of integer noise (skellam, '
      f'discrete_gaussian) are modulo two to the bits and take {modular}, all others '
      f'{secure}; or take {plain}.'
    )
  if server.not_private_signal_to_noise and (
    mechanism is None or mechanism.noise_site != 'server'
  ):
    raise ValueError(
      f'{prefix}not_private_signal_to_noise needs a mechanism with noise of the '
      'server: what clients send with noise of their own has it already, and their '
      'exact sum is nowhere. Leave it out.'
    )
  for name in ('target_quantile', 'clip_learning_rate'):
    value = getattr(server, name)
    if value is not None and (
      mechanism is None or mechanism.clipped_count_stddev is None
    ):
      raise ValueError(
        f'{prefix}{name}={value:g} is for adaptive clipping, and this clip norm is '
        'fixed; leave it out.'
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
