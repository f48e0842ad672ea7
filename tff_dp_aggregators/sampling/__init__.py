"""Who takes part when: what an accountant may assume, and the cohorts that are drawn.

| scheme | assumption | relation |
|---|---|---|
| `strategies.Participation` (`limits`) | rounds of a client are `min_separation` \
apart (or a multiple of it: fixed epochs), at most `max_participations` of them; no \
sampling | zero-out, replace-one |
| `PoissonSampling` | in each round every client of a group is drawn independently, \
with the same probability, and nobody learns who was | add-or-remove |
| `FixedSizeSampling` | each round draws a cohort of fixed size, uniformly and without \
replacement, and nobody learns who was | replace-one, add-or-remove |
| `TruncatedPoissonSampling` | Poisson sampling, of which a random subset is kept if \
more clients are drawn than may take part | add-or-remove (without groups), zero-out |
| `BallsInBins` | every client draws one place in a cycle of rounds, which it has in \
every cycle, and nobody learns which | add-or-remove, zero-out |
| `RandomAllocation` | every client draws so many of all rounds, and nobody learns \
which | add-or-remove, zero-out |
| `BMinSepSampling` | every client that was in none of the last rounds is drawn \
independently, with the same probability, and nobody learns who was | add-or-remove, \
zero-out |

Sampling amplifies privacy only where the rounds of a client do not share noise:
correlated noise needs a banded strategy and cyclic sampling (arXiv:2306.08153, section
4), or balls in bins, which bear any strategy; any other combination is refused.
Neighbouring relations are those of dp_accounting; zero-out is its `REPLACE_SPECIAL`,
where all contributions of one client become zeros (arXiv:2103.00039, Definition 1.1). A
schedule has the cohorts of all rounds.
"""

# Before anything that imports dp-accounting.
from tff_dp_aggregators.base import dp_accounting_import  # noqa: F401

# isort: split
from typing import Any, Optional, cast

from tff_dp_aggregators.sampling import allocation
from tff_dp_aggregators.sampling import limits
from tff_dp_aggregators.sampling import replay
from tff_dp_aggregators.sampling import round_sampling
from tff_dp_aggregators.sampling import schedule as schedule_lib
from tff_dp_aggregators.sampling import scheme
from tff_dp_aggregators.sampling.allocation import BallsInBins
from tff_dp_aggregators.sampling.allocation import BMinSepSampling
from tff_dp_aggregators.sampling.allocation import RandomAllocation
from tff_dp_aggregators.sampling.limits import Limits
from tff_dp_aggregators.sampling.limits import RandomEligible
from tff_dp_aggregators.sampling.limits import ReportingGoalError
from tff_dp_aggregators.sampling.limits import ShuffledEpochs
from tff_dp_aggregators.sampling.replay import Replay
from tff_dp_aggregators.sampling.round_sampling import FixedSizeSampling
from tff_dp_aggregators.sampling.round_sampling import PoissonSampling
from tff_dp_aggregators.sampling.round_sampling import TruncatedPoissonSampling
from tff_dp_aggregators.sampling.schedule import Attempt
from tff_dp_aggregators.sampling.schedule import Dropouts
from tff_dp_aggregators.sampling.schedule import Header
from tff_dp_aggregators.sampling.schedule import ParticipationWatch
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

_SCHEMES: tuple[type[scheme.Scheme], ...] = (
  limits.Limits,
  round_sampling.PoissonSampling,
  round_sampling.FixedSizeSampling,
  allocation.BallsInBins,
  allocation.RandomAllocation,
  allocation.BMinSepSampling,
  round_sampling.TruncatedPoissonSampling,
)
SCHEMES.update((_each.name, _each) for _each in _SCHEMES)
# Schedules that are no `SampledSchedule`, by what JSON calls them.
SCHEDULES: dict[str, type[schedule_lib.Schedule]] = {
  limits.RandomEligible.name: limits.RandomEligible,
  limits.ShuffledEpochs.name: limits.ShuffledEpochs,
  replay.Replay.name: replay.Replay,
}


def schedule_names() -> tuple[str, ...]:
  """What JSON and `--schedule` call schedules."""
  sampled = (each.flag for each in scheme.SCHEMES.values() if each.is_sampled)
  random_eligible, shuffled_epochs, *others = SCHEDULES
  return (random_eligible, shuffled_epochs, *sampled, *others)


def schedule_from_json(data: dict[str, Any]) -> schedule_lib.Schedule:
  """Reads what `Schedule.to_json` wrote."""
  names = sorted(schedule_names())
  if not isinstance(data, dict) or data.get('schedule') not in names:
    raise ValueError(f'not a schedule, of {names}: {data!r}.')
  values = dict(data)
  name = values.pop('schedule')
  try:
    read = SCHEDULES.get(name, schedule_lib.SampledSchedule).from_fields(values)
  except (KeyError, TypeError) as e:
    raise ValueError(f'the stored {name} is not one: {e}') from e
  if read.name != name:
    raise ValueError(f'the stored {name} is the schedule {read.name}.')
  return read


def for_mechanism(
  mechanism: Any, num_clients: int, clients_per_round: float, seed: int, **options: Any
) -> schedule_lib.Schedule:
  """`for_scheme` of a mechanism's `participation`, with the same arguments."""
  if not hasattr(mechanism, 'participation'):
    raise TypeError(f'mechanism must be an accounting.Mechanism; got {mechanism!r}.')
  return for_scheme(
    mechanism.participation, num_clients, clients_per_round, seed, **options
  )


def for_scheme(
  schema: scheme.Schema,
  num_clients: int,
  clients_per_round: float,
  seed: int,
  *,
  dropouts: Optional[schedule_lib.Dropouts] = None,
  reporting_goal: Optional[int] = None,
) -> schedule_lib.Schedule:
  """The schedule that keeps a scheme.

  Args:
    schema: Limits on participation, or a scheme of sampling.
    num_clients: Clients to choose from.
    clients_per_round: The mean's denominator: clients asked for a round; where chance
      decides how many, the expected number of them.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.
    reporting_goal: Least number of clients that have to report; `None` for any.

  Raises:
    PopulationTooSmallError: If the clients are too few; it says what would fit.
    ReportingGoalError: If a round never reaches its goal.
    ValueError: If an argument does not fit the scheme.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> epochs = strategies.Participation(10, min_separation=5, fixed_epoch=True)
    >>> for_scheme(epochs, num_clients=50, clients_per_round=10, seed=1).name
    'shuffled_epochs'
  """
  stated = scheme.of(schema)
  if not stated.is_sampled:
    made: type[Any] = SCHEDULES[stated.schedule_name]
    of_cohort = (num_clients, clients_per_round, seed, dropouts, reporting_goal)
    return cast(schedule_lib.Schedule, made(schema, *of_cohort))
  if reporting_goal is not None:
    raise ValueError(
      f'reporting_goal={reporting_goal} does not go with sampling: drawing again '
      'makes clients more likely than the sampling that epsilon is for. Leave it out, '
      'or plan with limits, strategies.Participation.'
    )
  return schedule_lib.SampledSchedule(
    stated, num_clients, seed, dropouts, clients_per_round
  )


def __dir__() -> list[str]:
  return sorted(__all__)
