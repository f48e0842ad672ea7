"""What a statement is made of, as one value, and from where it is known.

Flags, `sources` and `verification` produce `Inputs`, and `statement.build` alone makes
a statement of them. Some facts, such as which mechanism ran, computing it again cannot
confirm; `provenance` says whether a file of the run has each, or who made the report.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Optional, Union

import dp_accounting
import msgspec
from msgspec import Meta

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import canaries as canaries_lib
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl as nbafl_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import rounding

OtherRelease = model.OtherRelease
_TEXTS = terms.sentences('statement.j2')
# What is said of limits if it is not stated what enforces them.
NOT_STATED: str = _TEXTS.not_stated
_LARGEST = sys.float_info.max
# What a run's configuration says of noise that it draws from a seed.
SEEDED_NOISE: str = _TEXTS.seeded_noise
# Facts that ledgers record as well as configurations; the first two are always stated.
_OF_MECHANISM = ('mechanism', 'noise_multiplier')
_IN_LEDGERS = (*_OF_MECHANISM, 'clip_norm')
# Stated adjacencies that imply the one of a report: who is removed from a table, or
# replaced in it by a client without data, has its contributions replaced by zeros.
_IMPLY = {'zero_out': ('zero_out', 'add_or_remove', 'replace_one')}


class Tuning(model.Tuning, frozen=True):
  """Runs on the same clients among which one was chosen, itself among them.

  Its epsilon is that of all of them composed, at the delta of the chosen one; infinite
  if one of them had no privacy.
  """

  def to_json(self) -> dict[str, Any]:
    """JSON-ready; infinity is `None`."""
    return model.to_json(self)

  @classmethod
  def from_json(cls, data: Any) -> Optional['Tuning']:
    """Reads what `to_json` wrote; `None` for none."""
    if data is None:
      return None
    try:
      epsilon = math.inf if data['epsilon'] is None else data['epsilon']
      return check_tuning(cls(data['num_runs'], epsilon))
    except (KeyError, TypeError) as e:
      raise ValueError(f'tuning must have num_runs and epsilon; got {data!r}.') from e


class SimulatedCohort(msgspec.Struct, frozen=True):
  """A run with the noise of a larger cohort, for which no guarantee holds.

  The noise of a cohort s times as large is 1/s of what the mechanism says, in clip
  norms of the sum: the mean has the noise of the mean over the larger cohort
  (`noise_cohort_size` in pfl-research; the StackOverflow runs of DP-FTRL,
  arXiv:2103.00039, with 100 clients a round for 1,000). To the clients of the run it
  promises nothing: epsilon is that of a run with s times the clients in each round, of
  a population s times as large.
  """

  # How many times larger cohort and population are.
  scale: Union[Annotated[int, Meta(ge=1)], Annotated[float, Meta(ge=1, le=_LARGEST)]]
  # These two are the run's own.
  clients_per_round: Union[
    Annotated[int, Meta(ge=0)], Annotated[float, Meta(ge=0, le=_LARGEST)]
  ]
  num_clients: Annotated[int, Meta(ge=1)]

  @property
  def simulated_clients_per_round(self) -> float:
    """Clients of a round whose noise it is."""
    return self.scale * self.clients_per_round

  @property
  def simulated_num_clients(self) -> float:
    """Clients of the population that such a cohort is drawn from."""
    return self.scale * self.num_clients


@dataclasses.dataclass(frozen=True)
class Inputs:
  """A mechanism, and what is to be said of it or of a run of it.

  What is not known, or is not there, is `None`.
  """

  # What was planned, with what was found from a target.
  mechanism: joint_mechanism.AnyMechanism
  delta: float  # At which delta the guarantee is stated.
  target_epsilon: Optional[float] = None  # What was asked for.
  target_rho: Optional[float] = None  # What was asked for in zCDP, instead.
  # 'noise_multiplier', 'num_rounds' or 'max_participations', if found from it.
  found: Optional[str] = None
  accountant: Optional[str] = None  # Whose epsilon counts; `None` for the tightest.
  # L2 bound of a client's contribution; a ledger must have it in all rounds.
  clip_norm: Optional[float] = None
  # Shapes of weights of a joint mechanism, by the names of part and weight, as the
  # run's configuration has them, which is to be among the files.
  weights_of_parts: Optional[dict[str, dict[str, list[int]]]] = None
  ledger: Optional[ledger_lib.Ledger] = None  # What the run's ledger says.
  # What fixed the number of rounds that ran, fewer than planned, before anything was
  # computed from clients. The guarantee is then of those rounds; without it, of all
  # rounds planned, for released results may have decided when to stop.
  rounds_fixed_by: Optional[str] = None
  # What keeps rounds of a client as far apart as they are assumed to be, or draws
  # clients as they are assumed to be drawn.
  enforced_by: str = NOT_STATED
  # What keeps a client within `max_participations`, where fewer are assumed than the
  # separation allows.
  cap_enforced_by: Optional[str] = None
  noise_source: str = 'not stated'  # Where the randomness comes from.
  code_version: Optional[str] = None  # Version of the code that trained.
  # Where limits come from, such as the summary of a round log.
  participation_source: Optional[dict[str, Any]] = None
  # 'packed' if many clients were trained in one computation, or 'one_by_one'.
  simulation: Optional[str] = None
  # Which clients that were asked reported; `None` if all did.
  reporting: Optional[model.Reporting] = None
  # What was done with an update before it was clipped.
  before_clipping: Optional[model.BeforeClipping] = None
  # The larger cohort whose noise the run has; the mechanism is then what that cohort
  # would have had.
  simulated_cohort: Optional[SimulatedCohort] = None
  nbafl: Optional[nbafl_lib.Nbafl] = None  # The plan of NbAFL that the noise is from.
  # Sentences: what else was computed from clients' data without noise.
  not_covered: tuple[str, ...] = ()
  # Among how many runs on the same clients this one was chosen.
  tuning: Optional[Tuning] = None
  # What an attacker with canaries has seen, if there were any.
  canary_record: Optional[canaries_lib.Record] = None
  command: Optional[str] = None  # A command that prints the same numbers again.
  # Files that the statement is made from, each with `role`, `path` and `sha256`.
  files: tuple[dict[str, Any], ...] = ()

  def epsilon_of(self, event: dp_accounting.DpEvent) -> float:
    """Epsilon of what was spent, by `accountant`."""
    relation = self.mechanism.relation
    return accountants.epsilon(event, self.delta, self.accountant, relation)

  def check_target(self, event: dp_accounting.DpEvent) -> None:
    """Refuses an event of the mechanism that spends more than was asked for."""
    if self.target_rho is not None:
      rho = mechanism_lib.rho_of(event)
      if not rho <= self.target_rho:
        raise ValueError(
          f'the mechanism spends rho = {rounding.up(rho, 6)}, more than target_rho='
          f'{rounding.exact(self.target_rho)}.'
        )
    if self.target_epsilon is None:
      return
    gaussian.check_epsilon(self.target_epsilon, 'target_epsilon')
    spent = self.epsilon_of(event)
    if not spent <= self.target_epsilon:
      raise ValueError(
        f'the mechanism spends epsilon = {rounding.up(spent)} at delta = '
        f'{self.delta:g}, more than target_epsilon='
        f'{rounding.exact(self.target_epsilon)}.'
      )


@dataclasses.dataclass(frozen=True)
class WithoutPrivacy:
  """What is to be said of a run that had no mechanism; fields are those of `Inputs`."""

  simulation: Optional[str] = None
  not_covered: tuple[str, ...] = ()
  tuning: Optional[Tuning] = None
  files: tuple[dict[str, Any], ...] = ()
  accountant: Optional[str] = None
  command: Optional[str] = None


def check_not_covered(not_covered: Any) -> tuple[str, ...]:
  """Returns the sentences, each in one line."""
  is_list = isinstance(not_covered, Sequence) and not isinstance(not_covered, str)
  for each in not_covered if is_list else [not_covered]:
    is_sentence = isinstance(each, str) and each.strip() and each.isprintable()
    if not (is_list and is_sentence):
      raise ValueError(
        'not_covered must be a sequence of sentences, each in one line, such as '
        f"('The vocabulary was counted without noise.',); got {not_covered!r}."
      )
  return tuple(sentence.strip() for sentence in not_covered)


def check_tuning(tuning: Any) -> Optional[Tuning]:
  """Returns it, if it says among how many runs one was chosen and what they spent."""
  if tuning is None:
    return None
  if not isinstance(tuning, Tuning) or isinstance(tuning.epsilon, bool):
    raise TypeError(f'tuning must be a Tuning(num_runs, epsilon); got {tuning!r}.')
  num_runs = checks.check_positive_int('num_runs of tuning', tuning.num_runs)
  epsilon = checks.check_number('epsilon of tuning', tuning.epsilon)
  if not epsilon >= 0:
    raise ValueError(f'epsilon of tuning must be at least 0; got {epsilon}.')
  return Tuning(num_runs, float(epsilon))


def check_releases(
  releases: Sequence[OtherRelease], delta: float, adjacency: str
) -> None:
  """Refuses other releases that cannot be composed with runs."""
  names = [release.name for release in releases]
  if len(set(names)) < len(names):
    raise ValueError(f'other releases must have names of their own; got {names}.')
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


# From where facts are known.


def enforced_by_log(
  source: Mapping[str, Any], has_ledger: bool, stated: Optional[str] = None
) -> str:
  """What enforces limits that a round log shows, or shows that they were kept."""
  planned = source.get('planned')
  which = 'shown' if planned is None else 'widened' if planned['broken'] else 'kept'
  which = 'kept' if has_ledger else which
  stated = None if stated in (None, NOT_STATED) else stated
  return terms.in_a_line(_TEXTS.enforced_by_log(source['basis'], which, stated))


def noise_source_of(ledger: Optional[ledger_lib.Ledger]) -> Optional[str]:
  """What a ledger says of where the noise is from; `None` if it does not say."""
  entries = () if ledger is None else ledger.entries
  if any(entry.has_seeded_noise for entry in entries):
    return SEEDED_NOISE
  if any(entry.noise_source for entry in entries):
    return str(_TEXTS.secret_noise)
  return None


def warnings(inputs: Inputs) -> list[str]:
  """Towards whom the guarantee does not hold, for the top of a report."""
  mechanism, ledger = inputs.mechanism, inputs.ledger
  entries = () if ledger is None else ledger.entries
  found = []
  source = inputs.participation_source or {}
  planned, seen = source.get('planned') or {}, source.get('observed') or {}
  if planned.get('broken'):
    found.append(_TEXTS.broken_limits(planned))
  clients = getattr(mechanism.participation, 'num_clients', seen.get('num_clients'))
  doubt = clients and gaussian.doubt_of_delta(inputs.delta, clients)
  if doubt and mechanism.has_noise:
    found.append(doubt[0].upper() + doubt[1:])
  seeded = noise_source_of(ledger) == SEEDED_NOISE
  if mechanism.has_noise and (seeded or inputs.noise_source == SEEDED_NOISE):
    found.append(_TEXTS.known_noise)
  if mechanism.is_sampled:
    if any(entry.sampling_source == ledger_lib.SEED for entry in entries):
      found.append(_TEXTS.known_draws(_without_sampling(inputs)))
    told = any(entry.cohort_requested is not None for entry in entries)
    if told and not sampling.of(mechanism.participation).has_public_sizes:
      found.append(_TEXTS.known_sizes)
  return [terms.in_a_line(each) for each in found]


def _without_sampling(inputs: Inputs) -> str:
  """Epsilon of all planned rounds towards whoever knows the draws; '' if infinite."""
  mechanism = inputs.mechanism
  if not isinstance(mechanism, mechanism_lib.Mechanism):
    return ''  # Parts have events of their own.
  # Who comes takes the place of another in a cohort that can have no more.
  is_capped = sampling.of(mechanism.participation).largest_cohort is not None
  moves_two = mechanism.adjacency == 'replace_one' or (
    mechanism.adjacency == 'add_or_remove' and is_capped
  )
  adjacency = 'replace_one' if moves_two else 'zero_out'
  epsilon = dataclasses.replace(
    mechanism, participation=mechanism.limits, adjacency=adjacency
  ).epsilon(inputs.delta)
  return '' if math.isinf(epsilon) else rounding.up(epsilon)


def provenance(inputs: Inputs) -> model.Provenance:
  """From where it is known what computing a report again does not confirm."""
  roles = {file['role'] for file in inputs.files}
  if inputs.ledger is not None:
    roles.add('ledger')
  names = model.Provenance.__struct_fields__
  found: Any = {name: _origin(name, inputs, roles) for name in names}
  return model.Provenance(**found)


def _origin(name: str, inputs: Inputs, roles: set[str]) -> str:
  if name in _IN_LEDGERS and 'ledger' in roles:
    return 'recorded'
  if name in _OF_MECHANISM:
    return 'recorded' if 'config' in roles else 'stated'
  value = getattr(inputs, name)
  if name == 'clip_norm' and inputs.mechanism.parts:
    value = [part.clip_norm for part in inputs.mechanism.parts]
  if name == 'noise_source' and value == noise_source_of(inputs.ledger):
    return 'recorded'
  if value in (getattr(Inputs, name), NOT_STATED):
    return 'not_stated'
  if name == 'cap_enforced_by' and inputs.mechanism.limits.assumed_at_most is None:
    return 'not_stated'  # There is no such assumption.
  if 'config' in roles:
    return 'recorded'
  source = inputs.participation_source or {}
  if name in ('enforced_by', 'cap_enforced_by') and 'basis' in source:
    if value == enforced_by_log(source, inputs.ledger is not None):
      return 'recorded'
  return 'stated'
