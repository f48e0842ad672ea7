"""What a statement is made of, as one value.

Whoever has something to report produces `Inputs` (flags, `sources` from files,
`verification` from a report), and `statement.build` alone makes a statement of them.
"""

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import nbafl as nbafl_lib
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.base import checks

# What is said of limits if it is not stated what enforces them.
NOT_STATED = 'not stated; whoever runs the training must see to it'
# What a run's configuration says of noise that it draws from a seed.
SEEDED_NOISE = (
  'a given seed, so that the simulation can be repeated; the guarantee holds only '
  'towards those who do not know it'
)
# Stated adjacencies that imply the one of a report: who is removed from a table, or
# replaced in it by a client without data, has its contributions replaced by zeros.
_IMPLY = {'zero_out': ('zero_out', 'add_or_remove', 'replace_one')}
# How clients may be simulated, as reports call it: many in one computation, or each in
# one of its own.
SIMULATIONS = ('packed', 'one_by_one')


class OtherRelease(NamedTuple):
  """What another system released of the same clients, and what is stated of it.

  Attributes:
    name: In a few words, such as 'the survey of March'.
    epsilon: Of all that it released, for all data of a client together.
    delta: To that epsilon.
    adjacency: Which data sets are neighbours; `None` if it is not stated.
  """

  name: str
  epsilon: float
  delta: float
  adjacency: Optional[str] = None

  def to_event(self) -> events.EpsilonDeltaDpEvent:
    """For accountants.

    Raises:
      TypeError: If epsilon or delta is no number.
      ValueError: If one is out of range.
    """
    return events.EpsilonDeltaDpEvent(self.epsilon, self.delta)

  def to_json(self) -> dict[str, Any]:
    """JSON-ready."""
    return self._asdict()

  @classmethod
  def parse(cls, text: str) -> 'OtherRelease':
    """Reads 'NAME: epsilon=0.5, delta=1e-7', which may end with adjacency=....

    Args:
      text: As it stands in a flag.

    Raises:
      ValueError: If it is not written so, or a number is out of range.

    Example:
      >>> OtherRelease.parse('survey: epsilon=0.5, delta=1e-7').delta
      1e-07
    """
    name, _, rest = text.partition(':')
    settings = [each.partition('=') for each in rest.split(',')]
    given = {key.strip(): value.strip() for key, _, value in settings}
    known = {'epsilon', 'delta'} <= set(given) <= {'epsilon', 'delta', 'adjacency'}
    if not (known and len(given) == len(settings) and name.strip().isprintable()):
      raise ValueError(_NO_RELEASE.format(text))
    try:
      epsilon, delta = float(given['epsilon']), float(given['delta'])
    except ValueError as e:
      raise ValueError(f'{_NO_RELEASE.format(text)} {e}') from e
    release = cls(name.strip(), epsilon, delta, given.get('adjacency'))
    if not release.name:
      raise ValueError(_NO_RELEASE.format(text))
    try:
      release.to_event()
    except ValueError as e:
      raise ValueError(f'{text!r}: {e}') from e
    return release


_NO_RELEASE = (
  '{!r} is not a name, a colon, epsilon and delta, as in '
  "'survey of March: epsilon=0.5, delta=1e-7'; adjacency=add_or_remove may follow."
)


class Tuning(NamedTuple):
  """Runs on the same clients among which one was chosen.

  Attributes:
    num_runs: How many there were, the chosen one among them.
    epsilon: Of all of them composed, at the delta of the chosen one; infinite if one of
      them had no privacy.
  """

  num_runs: int
  epsilon: float

  def to_json(self) -> dict[str, Any]:
    """JSON-ready; infinity is `None`."""
    finite = math.isfinite(self.epsilon)
    return {'num_runs': self.num_runs, 'epsilon': self.epsilon if finite else None}

  @classmethod
  def from_json(cls, data: Any) -> Optional['Tuning']:
    """Reads what `to_json` wrote; `None` for none.

    Raises:
      ValueError: If it is something else.
    """
    if data is None:
      return None
    try:
      epsilon = math.inf if data['epsilon'] is None else data['epsilon']
      return check_tuning(cls(data['num_runs'], epsilon))
    except (KeyError, TypeError) as e:
      raise ValueError(f'tuning must have num_runs and epsilon; got {data!r}.') from e


@dataclasses.dataclass(frozen=True)
class SimulatedCohort:
  """A run with the noise of a larger cohort, for which no guarantee holds.

  Attributes:
    scale: How many times larger that cohort is, and the population it is drawn from.
    clients_per_round: Clients of a round in the run itself.
    num_clients: Clients in the run itself.

  Raises:
    ValueError: If `scale` is not finite or less than 1, or another number not positive.
  """

  scale: float
  clients_per_round: float
  num_clients: int

  def __post_init__(self) -> None:
    for name, least in (('scale', 1), ('clients_per_round', 0), ('num_clients', 1)):
      value = getattr(self, name)
      if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f'{name} of a simulated cohort must be a number; got {value}.')
      if not (math.isfinite(value) and value >= least):
        raise ValueError(
          f'{name} of a simulated cohort must be finite and at least {least}; got '
          f'{value}.'
        )

  @property
  def simulated_clients_per_round(self) -> float:
    """Clients of a round as the noise has it."""
    return self.scale * self.clients_per_round

  @property
  def simulated_num_clients(self) -> float:
    """Clients of the population that such a cohort is drawn from."""
    return self.scale * self.num_clients


@dataclasses.dataclass(frozen=True)
class Inputs:
  """A mechanism, and what is to be said of it or of a run of it.

  Attributes:
    mechanism: What was planned, with what was found from a target.
    delta: At which delta the guarantee is stated.
    target_epsilon: What was asked for, if anything was.
    found: What was found from the target: 'noise_multiplier', 'num_rounds' or
      'max_participations'; `None` if everything was given.
    accountant: Whose epsilon the guarantee states; `None` for the tightest.
    clip_norm: L2 bound of a client's contribution; it does not change the guarantee. A
      ledger must have the same in all rounds.
    weights_of_parts: Of a joint mechanism: the shapes of the weights, by the names of
      part and weight, as the run's configuration has them, which is to be among the
      files; `None` if they are not known.
    ledger: What the run's ledger says. With it the guarantee is of the rounds that ran;
      without it, of all rounds planned.
    enforced_by: What keeps rounds of a client as far apart as they are assumed to be,
      or draws clients as they are assumed to be drawn.
    cap_enforced_by: What keeps a client within `max_participations`, where fewer are
      assumed than the separation leaves possible; `None` if that is not stated.
    noise_source: Where the randomness comes from.
    code_version: Of the code that trained.
    participation_source: Where the participation limits come from, such as the summary
      of a round log.
    simulation: A key of `SIMULATIONS`, if it is known how clients were simulated.
    reporting: Which clients that were asked reported, as `sources.reporting_of` tells
      it of a run; `None` if all did, or nothing is known.
    before_clipping: What was done with an update before it was clipped, as
      `sources.before_clipping_of` tells it of a run; `None` if nothing was, or nothing
      is known.
    simulated_cohort: Of a run whose noise is less than the mechanism's, as if its
      cohort were larger; the mechanism is then what that cohort would have had. `None`
      for all other runs.
    nbafl: The plan of NbAFL that the noise is from; `None` if it is from none.
    not_covered: Sentences: what else was computed from clients' data without noise.
    tuning: Among how many runs on the same clients this one was chosen; `None` if that
      is not known.
    command: A command that prints the same numbers again.
    files: Files that the statement is made from, each with `role`, `path` and `sha256`.
  """

  mechanism: joint_mechanism.AnyMechanism
  delta: float
  target_epsilon: Optional[float] = None
  found: Optional[str] = None
  accountant: Optional[str] = None
  clip_norm: Optional[float] = None
  weights_of_parts: Optional[dict[str, dict[str, list[int]]]] = None
  ledger: Optional[ledger_lib.Ledger] = None
  enforced_by: str = NOT_STATED
  cap_enforced_by: Optional[str] = None
  noise_source: str = 'not stated'
  code_version: Optional[str] = None
  participation_source: Optional[dict[str, Any]] = None
  simulation: Optional[str] = None
  reporting: Optional[dict[str, Any]] = None
  before_clipping: Optional[dict[str, Any]] = None
  simulated_cohort: Optional[SimulatedCohort] = None
  nbafl: Optional[nbafl_lib.Nbafl] = None
  not_covered: tuple[str, ...] = ()
  tuning: Optional[Tuning] = None
  command: Optional[str] = None
  files: tuple[dict[str, Any], ...] = ()

  @property
  def epsilon_planned(self) -> float:
    """Epsilon of all rounds planned, by `accountant`."""
    return self.mechanism.epsilon(self.delta, accountant=self.accountant)


@dataclasses.dataclass(frozen=True)
class WithoutPrivacy:
  """What is to be said of a run that had no mechanism.

  Attributes:
    simulation: As in `Inputs`.
    not_covered: As in `Inputs`.
    tuning: As in `Inputs`.
    files: As in `Inputs`.
  """

  simulation: Optional[str] = None
  not_covered: tuple[str, ...] = ()
  tuning: Optional[Tuning] = None
  files: tuple[dict[str, Any], ...] = ()


def check_not_covered(not_covered: Any) -> tuple[str, ...]:
  """Returns the sentences, each in one line.

  Args:
    not_covered: What the caller passed.

  Raises:
    TypeError: If it is no sequence of texts; a single text is none.
    ValueError: If one is empty or has several lines.
  """
  if isinstance(not_covered, (str, bytes)) or not isinstance(not_covered, Sequence):
    raise TypeError(
      'not_covered must be a sequence of sentences, such as '
      f"('The vocabulary was counted without noise.',); got {not_covered!r}."
    )
  for sentence in not_covered:
    if not isinstance(sentence, str):
      raise TypeError(f'not_covered must have sentences; got {sentence!r}.')
    if not sentence.strip() or not sentence.isprintable():
      raise ValueError(
        f'not_covered must have sentences, each in one line; got {sentence!r}.'
      )
  return tuple(sentence.strip() for sentence in not_covered)


def check_tuning(tuning: Any) -> Optional[Tuning]:
  """Returns it, if it says among how many runs one was chosen and what they spent.

  Args:
    tuning: What the caller passed.

  Raises:
    TypeError: If it is no `Tuning`, or a number is none.
    ValueError: If a number is out of range.
  """
  if tuning is None:
    return None
  if not isinstance(tuning, Tuning):
    raise TypeError(f'tuning must be a Tuning(num_runs, epsilon); got {tuning!r}.')
  checks.check_positive_int('num_runs of tuning', tuning.num_runs)
  if isinstance(checks.check_number('epsilon of tuning', tuning.epsilon), bool):
    raise TypeError(f'epsilon of tuning must be a number, got {tuning.epsilon}.')
  if not tuning.epsilon >= 0:
    raise ValueError(
      'epsilon of tuning must be at least 0, that of all runs composed; got '
      f'{tuning.epsilon}.'
    )
  return Tuning(int(tuning.num_runs), float(tuning.epsilon))


def check_releases(
  releases: Sequence[OtherRelease], delta: float, adjacency: str
) -> None:
  """Refuses other releases that cannot be composed with runs.

  Args:
    releases: Which ones.
    delta: At which epsilon of all together is stated.
    adjacency: Of the runs.

  Raises:
    ValueError: If two have one name, an adjacency does not imply that of the runs, or
      their deltas leave nothing of `delta`.
  """
  names = [release.name for release in releases]
  for name in names:
    if names.count(name) > 1:
      raise ValueError(
        f'two other releases are named {name!r}; give each once, by a name of its own.'
      )
  implying = _IMPLY.get(adjacency, (adjacency,))
  for release in releases:
    if release.adjacency not in (None, *implying):
      raise ValueError(
        f'{release.name!r} is stated for adjacency={release.adjacency}, and the runs '
        f'are for {adjacency}, with which {" or ".join(implying)} goes.'
      )
  spent = sum(release.delta for release in releases)
  if not spent < delta:
    raise ValueError(
      f'deltas of other releases sum to {spent:g}, which leaves nothing for the runs '
      f'of delta = {delta:g}, that of all together. Give a larger --target_delta.'
    )
