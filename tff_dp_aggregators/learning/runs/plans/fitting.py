"""Whether a mechanism goes with the cohorts that a schedule makes, and with packing."""

from typing import Any, Optional, Protocol

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting.reports import nbafl_report


class TooFewExamplesError(ValueError):
  """A client has fewer examples than the noise is for."""


class Clients(Protocol):
  """Who has which examples: `learning.population`, which loads TensorFlow."""

  def fewest_examples(self) -> tuple[str, int]:
    """A client with the fewest examples, for messages, and how many."""


def check_packing(packed_simulation: Any, why_one_by_one: Optional[str]) -> None:
  """Refuses to pack clients who cannot be.

  `why_one_by_one`: Why they cannot be; `None` if they can.
  """
  if packed_simulation not in (True, False, 'auto'):
    raise ValueError(
      f"packed_simulation must be True, False or 'auto'; got {packed_simulation!r}."
    )
  if packed_simulation is True and why_one_by_one is not None:
    raise ValueError(
      f'packed_simulation=True does not go with this: {why_one_by_one}, so clients are '
      "trained one by one. Leave it out ('auto'), or give False."
    )


def check_clip_norm(
  mechanism: Optional[joint_mechanism.AnyMechanism], clip_norm: Optional[float]
) -> None:
  """Refuses a mechanism without clip norm, and one beside those of its parts.

  `mechanism`: Of the run; `None` for none.
  `clip_norm`: Bound of one client's update; `None` for none.
  """
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
  scale: float, mechanism: Optional[joint_mechanism.AnyMechanism]
) -> None:
  """Refuses the noise of a larger cohort where that is not less.

  `mechanism`: Of the run; `None` for none.
  """
  if scale != 1 and mechanism is not None and mechanism.parts:
    raise ValueError(
      f'simulated_cohort_scale={scale:g} does not go with a joint mechanism: what a '
      'larger cohort would have spent is stated of one mechanism for all weights. '
      'Leave one of them out.'
    )
  if scale != 1 and mechanism is not None and mechanism.noise_site != 'server':
    raise ValueError(
      f'simulated_cohort_scale={scale:g} does not go with noise_site='
      f'{mechanism.noise_site}: it stands for a cohort that shares the noise of one '
      'server. Noise of clients grows with their number; leave one of them out.'
    )


def refuse_seed(noise_seed: int, *, can_be_packed: bool) -> None:
  """Refuses a seed for noise that clients draw one by one."""
  packing = ', or pack the clients, who are numbered then' if can_be_packed else ''
  raise ValueError(
    f'noise_seed={noise_seed} does not go with noise of clients who are trained one by '
    'one: each draws a key of its own, for with one seed all would add the same noise. '
    f'Leave noise_seed out{packing}.'
  )


def check_clients(
  mechanism: joint_mechanism.AnyMechanism,
  min_clients: int,
  schedule: sampling.Schedule,
) -> None:
  """Refuses cohorts for which the noise is not, or which show what is hidden."""
  dropouts = getattr(schedule, 'dropouts', None)
  goal = schedule.reporting_goal
  site = mechanism.placement
  hides_each = site.is_on_clients and site.is_of_client
  if hides_each:
    _check_sent_once(site.name, dropouts, schedule)
  if not min_clients:
    return
  if dropouts and (goal is None or goal < min_clients):
    found = (
      'without a reporting goal' if goal is None else f'with reporting_goal={goal}'
    )
    remedy = (
      f'Give the schedule reporting_goal={min_clients} or more, so that such '
      'a round is tried again, or plan with a smaller min_clients.'
    )
    if hides_each:
      remedy = (
        'Leave min_clients out: with noise of its own a client is hidden in a round of '
        'any size.'
      )
    raise ValueError(
      f'min_clients is {min_clients}, and clients drop out {found}: a round in which '
      f'fewer report cannot be released. {remedy}'
    )
  if dropouts:
    return
  for this_round in range(schedule.num_rounds):
    size = len(schedule.cohort(this_round))
    if size < min_clients:
      raise ValueError(
        f'round {this_round} of the schedule is of {size} clients, but min_clients is '
        f'{min_clients}: with fewer it has too little noise to be released. Ask for '
        'more clients a round, or plan with a smaller min_clients.'
      )


def check_nbafl(
  plan: Any,
  mechanism: Optional[joint_mechanism.AnyMechanism],
  clip_norm: Optional[float],
  delta: float,
  schedule: sampling.Schedule,
  clients: Clients,
) -> None:
  """Refuses a run that is not the one that NbAFL plans.

  `mechanism`: Of the run; `None` for none.
  `clip_norm`: Bound of one client's update; `None` for none.
  """
  if not isinstance(plan, accounting.nbafl.Nbafl):
    raise TypeError(f'nbafl must be an accounting.nbafl.Nbafl, got {plan!r}.')
  if mechanism is None:
    raise ValueError(
      'nbafl does not go without a mechanism: give accounting.Mechanism('
      '**nbafl.mechanism_arguments()), or leave it out.'
    )
  nbafl_report.check_cohorts(plan, schedule.to_json())
  nbafl_report.check(plan, mechanism, delta=delta, clip_norm=clip_norm)
  who, fewest = clients.fewest_examples()
  if fewest < plan.min_examples:
    raise TooFewExamplesError(
      f'{who} has {fewest} examples, and NbAFL counts on min_examples='
      f'{plan.min_examples} or more of each: its noise is too little for fewer. Leave '
      f'such clients out, or plan with min_examples={fewest}.'
    )


def _check_sent_once(
  noise_site: str, dropouts: Any, schedule: sampling.Schedule
) -> None:
  """Refuses rounds in which a client may send two updates, each with noise."""
  found = None
  if dropouts and schedule.reporting_goal is not None:
    found = f'reporting_goal={schedule.reporting_goal}'
  elif dropouts is None:
    attempts = map(schedule.attempts, range(schedule.num_rounds))
    again = next((i for i, each in enumerate(attempts) if len(each) > 1), None)
    found = None if again is None else f'round {again}, which was tried again,'
  if found is not None:
    raise ValueError(
      f'{found} does not go with noise_site={noise_site}: clients in an attempt that '
      'is aborted have sent their updates by then, and send others when they are asked '
      'again, which no event counts. Leave the reporting goal out: with noise of its '
      'own a client is hidden in a round of any size.'
    )
