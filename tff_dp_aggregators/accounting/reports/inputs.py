"""The inputs of a statement, as one value, and their provenance.

Flags, `sources` and `verification` produce `Inputs`; only `statement.build` makes a
statement of them. Computing a report again cannot confirm some facts, such as which
mechanism ran; `provenance` says of each whether a file of the run records it, or only
whoever made the report states it.
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
# The text if it is not stated what enforces limits.
NOT_STATED: str = _TEXTS.not_stated
_LARGEST = sys.float_info.max
# The noise source in the configuration of a run that draws noise from a seed.
SEEDED_NOISE: str = _TEXTS.seeded_noise
# Facts that ledgers record as well as configurations; the first two are always stated.
_MECHANISM_FACTS = ('mechanism', 'noise_multiplier')
_IN_LEDGERS = (*_MECHANISM_FACTS, 'clip_norm')
# Stated adjacencies that imply the adjacency of a report: if a client is removed, or
# replaced by a client without data, its contributions are replaced by zeros.
_IMPLYING = {'zero_out': ('zero_out', 'add_or_remove', 'replace_one')}


class Tuning(model.Tuning, frozen=True):
  """The runs on the same clients from which one was chosen, including that one.

  `epsilon` is that of all of them composed, at the delta of the chosen one; infinite if
  one of them had no privacy.
  """

  def to_json(self) -> dict[str, Any]:
    """Returns JSON-ready values; infinity is `None`."""
    return model.to_json(self)

  @classmethod
  def from_json(cls, data: Any) -> Optional['Tuning']:
    """Reads what `to_json` wrote; `None` is no tuning."""
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
  arXiv:2103.00039, with 100 clients a round for 1,000). The clients of the run have no
  guarantee: epsilon is that of a run with s times the clients in each round, of a
  population s times as large.
  """

  # The factor s, by which cohort and population are larger.
  scale: Union[Annotated[int, Meta(ge=1)], Annotated[float, Meta(ge=1, le=_LARGEST)]]
  # The next two are those of the run itself.
  clients_per_round: Union[
    Annotated[int, Meta(ge=0)], Annotated[float, Meta(ge=0, le=_LARGEST)]
  ]
  num_clients: Annotated[int, Meta(ge=1)]

  @property
  def simulated_clients_per_round(self) -> float:
    """Clients per round of the larger cohort."""
    return self.scale * self.clients_per_round

  @property
  def simulated_num_clients(self) -> float:
    """Size of the population that the larger cohort is drawn from."""
    return self.scale * self.num_clients


@dataclasses.dataclass(frozen=True)
class Inputs:
  """A mechanism, and facts about it or about a run of it, for a statement.

  Facts that are unknown or do not apply are `None`.
  """

  # The planned mechanism, including what was found from a target.
  mechanism: joint_mechanism.AnyMechanism
  delta: float  # Delta of the guarantee.
  target_epsilon: Optional[float] = None  # The privacy target.
  target_rho: Optional[float] = None  # The privacy target in zCDP, instead.
  # 'noise_multiplier', 'num_rounds' or 'max_participations', if found from the target.
  found: Optional[str] = None
  accountant: Optional[str] = None  # Computes epsilon; `None` for the tightest.
  # L2 bound of a client's contribution; a ledger must have it in all rounds.
  clip_norm: Optional[float] = None
  # Shapes of the weights of a joint mechanism, by names of part and weight, from the
  # run's configuration, which has to be among `files`.
  weights_of_parts: Optional[dict[str, dict[str, list[int]]]] = None
  ledger: Optional[ledger_lib.Ledger] = None  # The ledger of the run.
  # What fixed the number of rounds that ran, fewer than planned, before anything was
  # computed from clients. The guarantee is then of those rounds; without it, it is of
  # all planned rounds, as released results may have decided when to stop.
  rounds_fixed_by: Optional[str] = None
  # What enforces the assumed separation of a client's rounds, or draws clients as it is
  # assumed.
  enforced_by: str = NOT_STATED
  # What enforces `max_participations`, if it is less than the separation allows.
  cap_enforced_by: Optional[str] = None
  noise_source: str = 'not stated'  # Where the randomness comes from.
  code_version: Optional[str] = None  # Version of the code that trained.
  # The source of the limits, such as the summary of a round log.
  participation_source: Optional[dict[str, Any]] = None
  # 'packed' if many clients were trained in one computation, or 'one_by_one'.
  simulation: Optional[str] = None
  # Dropouts and reporting goal; `None` if all selected clients reported.
  reporting: Optional[model.Reporting] = None
  # Changes of a client's update before it is clipped.
  before_clipping: Optional[model.BeforeClipping] = None
  # The larger cohort whose noise the run has; `mechanism` is then the one which that
  # cohort would have had.
  simulated_cohort: Optional[SimulatedCohort] = None
  nbafl: Optional[nbafl_lib.Nbafl] = None  # The NbAFL plan that the noise is from.
  # Sentences about what else was computed from clients' data without noise.
  not_covered: tuple[str, ...] = ()
  tuning: Optional[Tuning] = None  # The runs from which this one was chosen, if any.
  num_clients: Optional[float] = None  # That a run draws from, if not secret.
  # Scores of canaries, for an empirical lower bound on epsilon.
  canary_record: Optional[canaries_lib.Record] = None
  command: Optional[str] = None  # A command that prints the same numbers.
  # Files that the statement is made from, each with `role`, `path` and `sha256`.
  files: tuple[dict[str, Any], ...] = ()

  def epsilon_of(self, event: dp_accounting.DpEvent) -> float:
    """Epsilon of an event at `delta`, by `accountant`."""
    relation = self.mechanism.relation
    return accountants.epsilon(event, self.delta, self.accountant, relation)

  def check_target(self, event: dp_accounting.DpEvent) -> None:
    """Raises ValueError if an event of the mechanism spends more than the target."""
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
  """The inputs for a run without a mechanism; fields are those of `Inputs`."""

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
  """Returns a valid tuning, or `None`; raises TypeError or ValueError otherwise."""
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
  """Raises ValueError if other releases cannot be composed with runs."""
  names = [release.name for release in releases]
  if len(set(names)) < len(names):
    raise ValueError(f'other releases must have names of their own; got {names}.')
  accepted = _IMPLYING.get(adjacency, (adjacency,))
  for release in releases:
    if release.adjacency not in (None, *accepted):
      raise ValueError(
        f'{release.name!r} is stated for adjacency={release.adjacency}, and the runs '
        f'are for {adjacency}, with which {" or ".join(accepted)} goes.'
      )
  deltas = sum(release.delta for release in releases)
  if not deltas < delta:
    raise ValueError(
      f'deltas of other releases sum to {deltas:g}, which leaves nothing for the runs '
      f'of delta = {delta:g}, that of all together. Give a larger --target_delta.'
    )


def enforced_by_log(
  source: Mapping[str, Any], has_ledger: bool, stated: Optional[str] = None
) -> str:
  """The text on what enforces limits that a round log shows, or shows to be kept."""
  planned = source.get('planned')
  status = 'shown' if planned is None else 'widened' if planned['broken'] else 'kept'
  status = 'kept' if has_ledger else status
  stated = None if stated in (None, NOT_STATED) else stated
  return terms.in_a_line(_TEXTS.enforced_by_log(source['basis'], status, stated))


def noise_source_of(ledger: Optional[ledger_lib.Ledger]) -> Optional[str]:
  """The source of the noise according to a ledger; `None` if it does not say."""
  entries = () if ledger is None else ledger.entries
  if any(entry.has_seeded_noise for entry in entries):
    return SEEDED_NOISE
  if any(entry.noise_source for entry in entries):
    return str(_TEXTS.secret_noise)
  return None


def warnings(inputs: Inputs) -> list[str]:
  """The warnings of a report, such as against whom the guarantee does not hold."""
  mechanism, ledger = inputs.mechanism, inputs.ledger
  entries = () if ledger is None else ledger.entries
  texts = []
  source = inputs.participation_source or {}
  planned, observed = source.get('planned') or {}, source.get('observed') or {}
  if planned.get('broken'):
    texts.append(_TEXTS.broken_limits(planned))
  clients = inputs.num_clients or observed.get('num_clients')
  clients = getattr(mechanism.participation, 'num_clients', clients)
  doubt = clients and gaussian.doubt_of_delta(inputs.delta, clients)
  if doubt and mechanism.has_noise:
    texts.append(doubt[0].upper() + doubt[1:])
  is_seeded = noise_source_of(ledger) == SEEDED_NOISE
  if mechanism.has_noise and (is_seeded or inputs.noise_source == SEEDED_NOISE):
    texts.append(_TEXTS.known_noise)
  if mechanism.is_sampled:
    if any(entry.sampling_source == ledger_lib.SEED for entry in entries):
      texts.append(_TEXTS.known_draws(_without_sampling(inputs)))
    are_sizes_known = any(entry.cohort_requested is not None for entry in entries)
    if are_sizes_known and not sampling.of(mechanism.participation).has_public_sizes:
      texts.append(_TEXTS.known_sizes)
  return [terms.in_a_line(each) for each in texts]


def _without_sampling(inputs: Inputs) -> str:
  """Epsilon of all planned rounds against whoever knows the draws; '' if infinite."""
  mechanism = inputs.mechanism
  if not isinstance(mechanism, mechanism_lib.Mechanism):
    return ''  # Each part has its own event.
  # In a cohort of limited size, a client that is added takes the place of another one.
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
  """The origin of each fact that computing a report again does not confirm."""
  roles = {file['role'] for file in inputs.files}
  if inputs.ledger is not None:
    roles.add('ledger')
  names = model.Provenance.__struct_fields__
  origins: Any = {name: _origin(name, inputs, roles) for name in names}
  return model.Provenance(**origins)


def _origin(name: str, inputs: Inputs, roles: set[str]) -> str:
  if name in _IN_LEDGERS and 'ledger' in roles:
    return 'recorded'
  if name in _MECHANISM_FACTS:
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
