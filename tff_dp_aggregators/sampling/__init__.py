"""Schemes of participation: what accountants may assume, and the cohorts to draw.

A scheme states in which rounds clients take part; a schedule has the cohorts of all
rounds. With sampling, nobody may learn which client was drawn for which rounds.

| scheme | assumption | relation |
|---|---|---|
| `strategies.Participation` (`limits`) | rounds of a client are `min_separation` \
apart (or a multiple of it: fixed epochs), at most `max_participations` of them; no \
sampling | zero-out, replace-one |
| `PoissonSampling` | each round draws every client of a group independently, with \
the same probability | add-or-remove |
| `FixedSizeSampling` | each round draws a cohort of fixed size, uniformly and without \
replacement | replace-one, add-or-remove |
| `TruncatedPoissonSampling` | Poisson sampling, of which a random subset is kept if \
more clients are drawn than may take part | add-or-remove (without groups), zero-out |
| `BallsInBins` | every client draws one place in a cycle of rounds, and has it in \
every cycle | add-or-remove, zero-out |
| `RandomAllocation` | every client draws the same number of rounds | add-or-remove, \
zero-out |
| `BMinSepSampling` | each round draws every client that was in none of the last \
rounds independently, with the same probability | add-or-remove, zero-out |

Sampling amplifies privacy only if the rounds of a client do not share noise. So
correlated noise needs a banded strategy with cyclic sampling (arXiv:2306.08153, section
4), or balls in bins, which allow any strategy; other combinations are refused.
Neighbouring relations are those of dp_accounting. Zero-out is its `REPLACE_SPECIAL`:
all contributions of one client become zeros (arXiv:2103.00039, Definition 1.1).
"""

# This has to precede anything that imports dp-accounting.
from tff_dp_aggregators.base import dp_accounting_import  # noqa: F401

# isort: split
from typing import Any, Optional, cast

from tff_dp_aggregators.sampling.allocation import BallsInBins
from tff_dp_aggregators.sampling.allocation import BMinSepSampling
from tff_dp_aggregators.sampling.allocation import RandomAllocation
from tff_dp_aggregators.sampling.limits import Limits
from tff_dp_aggregators.sampling.limits import RandomEligible
from tff_dp_aggregators.sampling.limits import ReportingGoalError
from tff_dp_aggregators.sampling.limits import ShuffledEpochs
from tff_dp_aggregators.sampling.round_sampling import FixedSizeSampling
from tff_dp_aggregators.sampling.round_sampling import PoissonSampling
from tff_dp_aggregators.sampling.round_sampling import TruncatedPoissonSampling
from tff_dp_aggregators.sampling.schedule import Attempt
from tff_dp_aggregators.sampling.schedule import Dropouts
from tff_dp_aggregators.sampling.schedule import Header
from tff_dp_aggregators.sampling.schedule import ParticipationWatch
from tff_dp_aggregators.sampling.schedule import Replay
from tff_dp_aggregators.sampling.schedule import SampledSchedule
from tff_dp_aggregators.sampling.schedule import Schedule
from tff_dp_aggregators.sampling.scheme import ADJACENCIES
from tff_dp_aggregators.sampling.scheme import SCHEMES
from tff_dp_aggregators.sampling.scheme import Schema
from tff_dp_aggregators.sampling.scheme import Scheme
from tff_dp_aggregators.sampling.scheme import adjacency
from tff_dp_aggregators.sampling.scheme import check_relation
from tff_dp_aggregators.sampling.scheme import for_flag
from tff_dp_aggregators.sampling.scheme import from_json
from tff_dp_aggregators.sampling.scheme import is_sampled
from tff_dp_aggregators.sampling.scheme import limits_of
from tff_dp_aggregators.sampling.scheme import of
from tff_dp_aggregators.sampling.scheme import of_report
from tff_dp_aggregators.sampling.scheme import register
from tff_dp_aggregators.sampling.scheme import sensitivity_factor
from tff_dp_aggregators.sampling.scheme import to_json
from tff_dp_aggregators.strategies.participation import PopulationTooSmallError

__all__ = [
  'ADJACENCIES',
  'Attempt',
  'BMinSepSampling',
  'BallsInBins',
  'Dropouts',
  'FixedSizeSampling',
  'Header',
  'Limits',
  'ParticipationWatch',
  'PoissonSampling',
  'PopulationTooSmallError',
  'RandomAllocation',
  'RandomEligible',
  'Replay',
  'ReportingGoalError',
  'SampledSchedule',
  'SCHEMES',
  'Schedule',
  'Schema',
  'Scheme',
  'ShuffledEpochs',
  'TruncatedPoissonSampling',
  'adjacency',
  'check_relation',
  'for_flag',
  'for_mechanism',
  'for_scheme',
  'from_json',
  'is_sampled',
  'limits_of',
  'of',
  'of_report',
  'register',
  'schedule_from_json',
  'schedule_names',
  'sensitivity_factor',
  'to_json',
]

_SCHEMES: tuple[type[Scheme], ...] = (
  Limits,
  PoissonSampling,
  FixedSizeSampling,
  BallsInBins,
  RandomAllocation,
  BMinSepSampling,
  TruncatedPoissonSampling,
)
SCHEMES.update((_each.name, _each) for _each in _SCHEMES)
# Schedules other than `SampledSchedule`, by their names in JSON.
SCHEDULES: dict[str, type[Schedule]] = {
  RandomEligible.name: RandomEligible,
  ShuffledEpochs.name: ShuffledEpochs,
  Replay.name: Replay,
}


def schedule_names() -> tuple[str, ...]:
  """The names of schedules in JSON and for `--schedule`."""
  sampled = (each.flag for each in SCHEMES.values() if each.is_sampled)
  random_eligible, shuffled_epochs, *others = SCHEDULES
  return (random_eligible, shuffled_epochs, *sampled, *others)


def schedule_from_json(data: dict[str, Any]) -> Schedule:
  """Makes a schedule from the values of `Schedule.to_json`."""
  names = sorted(schedule_names())
  if not isinstance(data, dict) or data.get('schedule') not in names:
    raise ValueError(f'not one of the schedules {names}: {data!r}.')
  values = dict(data)
  name = values.pop('schedule')
  try:
    schedule = SCHEDULES.get(name, SampledSchedule).from_fields(values)
  except (AttributeError, KeyError, TypeError) as e:
    raise ValueError(f'the stored {name} is not one: {e}') from e
  if schedule.name != name:
    raise ValueError(f'the stored {name} is the schedule {schedule.name}.')
  return schedule


def for_mechanism(
  mechanism: Any, num_clients: int, clients_per_round: float, seed: int, **options: Any
) -> Schedule:
  """`for_scheme` of a mechanism's `participation`, with the same arguments."""
  if not hasattr(mechanism, 'participation'):
    raise TypeError(f'mechanism must be an accounting.Mechanism; got {mechanism!r}.')
  return for_scheme(
    mechanism.participation, num_clients, clients_per_round, seed, **options
  )


def for_scheme(
  schema: Schema,
  num_clients: int,
  clients_per_round: float,
  seed: int,
  *,
  dropouts: Optional[Dropouts] = None,
  reporting_goal: Optional[int] = None,
) -> Schedule:
  """Makes the schedule whose cohorts follow a scheme.

  Args:
    schema: Limits on participation, or a sampling scheme.
    num_clients: Number of clients to choose from.
    clients_per_round: The mean's denominator: the number of clients asked for a round,
      or its expectation if chance decides it.
    seed: Determines the cohorts.
    dropouts: Simulated drop-outs; `None` if all clients report.
    reporting_goal: Minimum number of clients that have to report; `None` for any.

  Raises:
    PopulationTooSmallError: If there are too few clients; it says what would fit.
    ReportingGoalError: If a round never reaches its goal.
    ValueError: If an argument does not fit the scheme.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> epochs = strategies.Participation(10, min_separation=5, fixed_epoch=True)
    >>> for_scheme(epochs, num_clients=50, clients_per_round=10, seed=1).name
    'shuffled_epochs'
  """
  chosen = of(schema)
  if not chosen.is_sampled:
    schedule_type: type[Any] = SCHEDULES[chosen.schedule_name]
    arguments = (num_clients, clients_per_round, seed, dropouts, reporting_goal)
    return cast(Schedule, schedule_type(schema, *arguments))
  if reporting_goal is not None:
    raise ValueError(
      f'reporting_goal={reporting_goal} does not go with sampling: drawing again '
      'makes clients more likely than the sampling that epsilon is for. Leave it out, '
      'or plan with limits, strategies.Participation.'
    )
  return SampledSchedule(chosen, num_clients, seed, dropouts, clients_per_round)


def __dir__() -> list[str]:
  return sorted(__all__)
