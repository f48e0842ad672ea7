"""The kinds of schedule there are, by name, and which of them fits a mechanism."""

from typing import Any, Optional

from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.learning.schedules import b_min_sep
from tff_dp_aggregators.learning.schedules import balls_in_bins
from tff_dp_aggregators.learning.schedules import base
from tff_dp_aggregators.learning.schedules import dropouts as dropouts_lib
from tff_dp_aggregators.learning.schedules import fixed_size
from tff_dp_aggregators.learning.schedules import poisson
from tff_dp_aggregators.learning.schedules import random_allocation
from tff_dp_aggregators.learning.schedules import random_eligible
from tff_dp_aggregators.learning.schedules import replay
from tff_dp_aggregators.learning.schedules import shuffled_epochs

# Every kind of schedule, by name; `register` adds to them.
KINDS: dict[str, type[base.Schedule]] = {}


def register(kind: type[base.Schedule]) -> type[base.Schedule]:
  """Adds a kind of schedule; from then on `from_json` and `for_mechanism` know it.

  Args:
    kind: Its class. It can decorate that.

  Raises:
    ValueError: If its name is taken.
  """
  if kind.kind in KINDS:
    raise ValueError(f'the kind {kind.kind!r} is taken by {KINDS[kind.kind].__name__}.')
  KINDS[kind.kind] = kind
  return kind


register(random_eligible.RandomEligible)
register(shuffled_epochs.ShuffledEpochs)
register(fixed_size.FixedSize)
register(poisson.Poisson)
register(balls_in_bins.BallsInBins)
register(random_allocation.RandomAllocation)
register(b_min_sep.BMinSep)
register(replay.Replay)


def from_json(data: dict[str, Any]) -> base.Schedule:
  """Reads what `Schedule.to_json` wrote.

  Raises:
    ValueError: If it is none of the schedules, or a value is out of range.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> limits = strategies.Participation(num_rounds=4, min_separation=2)
    >>> schedule = random_eligible.RandomEligible(limits, 9, 2, seed=1)
    >>> from_json(schedule.to_json()) == schedule
    True
  """
  if not isinstance(data, dict) or data.get('schedule') not in KINDS:
    raise ValueError(f'not a schedule, of {sorted(KINDS)}: {data!r}.')
  values = {name: value for name, value in data.items() if name != 'schedule'}
  try:
    return KINDS[data['schedule']].from_fields(values)
  except TypeError as e:
    raise ValueError(f'the stored {data["schedule"]} is not one: {e}') from e


def for_mechanism(
  mechanism: joint_mechanism.AnyMechanism,
  num_clients: int,
  clients_per_round: float,
  seed: int,
  *,
  dropouts: Optional[dropouts_lib.Dropouts] = None,
  reporting_goal: Optional[int] = None,
) -> base.Schedule:
  """The schedule that keeps what a mechanism's privacy rests on.

  Args:
    mechanism: Its `participation` says which kind of schedule it is.
    num_clients: Clients to choose from.
    clients_per_round: The mean's denominator: clients asked for a round; where chance
      decides how many, the expected number of them.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.
    reporting_goal: Least number of clients that have to report; `None` for any.

  Raises:
    PopulationTooSmallError: If the clients are too few; the message says what would
      fit.
    ReportingGoalError: If a round never reaches its goal.
    TypeError: If an argument is not of its type.
    ValueError: If an argument does not fit the mechanism.

  Example:
    >>> from tff_dp_aggregators.accounting import Mechanism, schemas
    >>> sampling = schemas.PoissonSampling(100, sampling_probability=0.01)
    >>> fed_avg = Mechanism('gaussian', sampling, noise_multiplier=1.0)
    >>> for_mechanism(fed_avg, 5000, clients_per_round=50, seed=1).kind
    'poisson'
  """
  if not hasattr(mechanism, 'participation'):
    raise TypeError(f'mechanism must be an accounting.Mechanism; got {mechanism!r}.')
  return for_schema(
    mechanism.participation,
    num_clients,
    clients_per_round,
    seed,
    dropouts=dropouts,
    reporting_goal=reporting_goal,
  )


def for_schema(
  schema: Any,
  num_clients: int,
  clients_per_round: float,
  seed: int,
  *,
  dropouts: Optional[dropouts_lib.Dropouts] = None,
  reporting_goal: Optional[int] = None,
) -> base.Schedule:
  """The schedule that has a schema; of several kinds, the one registered first.

  So training without privacy can ask the same clients in the same rounds.

  Args:
    schema: Limits on participation, or a kind of sampling.
    num_clients: As for `for_mechanism`.
    clients_per_round: As for `for_mechanism`.
    seed: As for `for_mechanism`.
    dropouts: As for `for_mechanism`.
    reporting_goal: As for `for_mechanism`.

  Raises:
    PopulationTooSmallError: If the clients are too few; the message says what would
      fit.
    ReportingGoalError: If a round never reaches its goal.
    TypeError: If an argument is not of its type.
    ValueError: If an argument does not fit the schema.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> epochs = strategies.Participation(10, min_separation=5, fixed_epoch=True)
    >>> for_schema(epochs, num_clients=50, clients_per_round=10, seed=1).kind
    'shuffled_epochs'
  """
  for kind in KINDS.values():
    if kind.serves(schema):
      return kind.of_schema(
        schema,
        num_clients,
        clients_per_round,
        seed,
        dropouts=dropouts,
        reporting_goal=reporting_goal,
      )
  raise ValueError(
    f'no kind of schedule keeps a {type(schema).__name__}; register one.'
  )
