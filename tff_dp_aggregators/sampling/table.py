"""The schemes and schedules that there are, and which schedule keeps a scheme."""

from typing import Any, Optional, cast

from tff_dp_aggregators.sampling import b_min_sep
from tff_dp_aggregators.sampling import balls_in_bins
from tff_dp_aggregators.sampling import fixed_size
from tff_dp_aggregators.sampling import limits
from tff_dp_aggregators.sampling import poisson
from tff_dp_aggregators.sampling import random_allocation
from tff_dp_aggregators.sampling import replay
from tff_dp_aggregators.sampling import schedule as schedule_lib
from tff_dp_aggregators.sampling import scheme
from tff_dp_aggregators.sampling import truncated_poisson

_SCHEMES: tuple[type[scheme.Scheme], ...] = (
  limits.Limits,
  poisson.PoissonSampling,
  fixed_size.FixedSizeSampling,
  balls_in_bins.BallsInBins,
  random_allocation.RandomAllocation,
  b_min_sep.BMinSepSampling,
  truncated_poisson.TruncatedPoissonSampling,
)
for _scheme in _SCHEMES:
  scheme.register(_scheme)

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
  """Reads what `Schedule.to_json` wrote.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> within = strategies.Participation(num_rounds=4, min_separation=2)
    >>> schedule = limits.RandomEligible(within, 9, 2, seed=1)
    >>> schedule_from_json(schedule.to_json()) == schedule
    True
  """
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
  """The schedule that keeps what a mechanism's privacy rests on.

  It is `for_scheme` of its `participation`, with the same arguments and errors; options
  are `dropouts` and `reporting_goal`.

  Example:
    >>> from tff_dp_aggregators import accounting
    >>> drawn = poisson.PoissonSampling(100, sampling_probability=0.01)
    >>> fed_avg = accounting.Mechanism('gaussian', drawn, noise_multiplier=1.0)
    >>> for_mechanism(fed_avg, 5000, clients_per_round=50, seed=1).name
    'poisson'
  """
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

  So training without privacy can ask the same clients in the same rounds.

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
