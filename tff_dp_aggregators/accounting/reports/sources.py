"""The inputs of statements, as values, and their reading from files.

Flags, `from_run_dir`, `from_plan` and `verification` produce `Inputs`; only
`statement.build` makes a statement of them. Checksums of files are recorded.
"""

import dataclasses
import hashlib
import math
import os
import shlex
import sys
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Optional, Union, cast

import dp_accounting
import msgspec
from msgspec import Meta

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import canaries as canaries_lib
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl as nbafl_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.records import round_log as round_log_lib
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.base import version

_TEXTS = terms.sentences('statement.j2')
# The text if it is not stated what enforces limits.
NOT_STATED: str = _TEXTS.not_stated
_LARGEST = sys.float_info.max
# The noise source in the configuration of a run that draws noise from a seed.
SEEDED_NOISE: str = _TEXTS.seeded_noise
PROGRAM = 'tff-dp-report'  # The report program, in the commands of reports.
# The roles of files in a statement.
ROLES = ('config', 'strategy', 'ledger', 'canaries', 'round_log')
_SAME_NOISE = 1e-9  # Relative; of noise multipliers that two machines found.
_ALTERED = 'something was altered, or is of another run'


class SimulatedCohort(msgspec.Struct, frozen=True):
  """A run with the noise of a larger cohort, for which no guarantee holds.

  The noise of a cohort s times as large is 1/s of what the mechanism says, in clip
  norms of the sum: the mean has the noise of the mean over the larger cohort
  (`noise_cohort_size` in pfl-research; the StackOverflow runs of DP-FTRL,
  arXiv:2103.00039). Epsilon is that of a run with s times the clients in each round, of
  a population s times as large.
  """

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

  # The planned mechanism, joint or not, including what was found from a target.
  mechanism: Any = None
  delta: float = math.nan  # At which epsilon is stated.
  target_epsilon: Optional[float] = None  # The privacy target.
  target_rho: Optional[float] = None  # The privacy target in zCDP, instead.
  # 'noise_multiplier', 'num_rounds' or 'max_participations', if found from the target.
  found: Optional[str] = None
  accountant: Optional[str] = None  # Computes epsilon; `None` for the tightest.
  # L2 bound of a client's contribution; a ledger must have it in all rounds.
  clip_norm: Optional[float] = None
  # Shapes by names of part and weight, from the configuration, which is in `files`.
  weights_of_parts: Optional[dict[str, dict[str, list[int]]]] = None
  ledger: Optional[ledger_lib.Ledger] = None  # The rounds that ran.
  # What fixed the number of rounds of a run that ended early, before anything was
  # computed from clients. Without it, the guarantee is of all planned rounds.
  rounds_fixed_by: Optional[str] = None
  enforced_by: str = NOT_STATED  # Who enforces separation or sampling.
  cap_enforced_by: Optional[str] = None  # The same for a cap on participations.
  noise_source: str = 'not stated'  # Where the noise's keys come from.
  code_version: Optional[str] = None  # Version of the code that trained.
  # The source of the limits: the summary of a round log.
  participation_source: Optional[dict[str, Any]] = None
  # Limits on a client in the rounds of a round log, which may be fewer than planned.
  limits_in_log: Optional[strategies.Participation] = None
  # 'packed' if many clients were trained in one computation, or 'one_by_one'.
  simulation: Optional[str] = None
  reporting: Optional[model.Reporting] = None  # `None` if all clients reported.
  before_clipping: Optional[model.BeforeClipping] = None  # What bounds updates.
  # The larger cohort whose noise the run has, and whose mechanism is `mechanism`.
  simulated_cohort: Optional[SimulatedCohort] = None
  nbafl: Optional[nbafl_lib.Nbafl] = None  # The NbAFL plan that the noise is from.
  # Sentences about what else was computed from clients' data without noise.
  not_covered: tuple[str, ...] = ()
  tuning: Optional[model.Tuning] = None  # The runs from which this one was chosen.
  num_clients: Optional[float] = None  # That a run draws from, if not secret.
  canary_record: Optional[canaries_lib.Record] = None  # Scores of made-up clients.
  command: Optional[str] = None  # A command that prints the same numbers.
  # Files that the statement is made from, each with `role`, `path` and `sha256`.
  files: tuple[dict[str, Any], ...] = ()

  def epsilon_of(self, event: dp_accounting.DpEvent) -> float:
    """Epsilon of an event at `delta`, by `accountant`."""
    return accountants.epsilon(
      event, self.delta, self.accountant, self.mechanism.relation
    )

  def check_target(self, event: dp_accounting.DpEvent) -> None:
    """Raises ValueError if an event of the mechanism spends more than the target."""
    if self.target_epsilon is not None:
      gaussian.check_epsilon(self.target_epsilon, 'target_epsilon')
    at_delta = f' at delta = {self.delta:g}'
    for name, target, spent_by, digits, at in (
      ('rho', self.target_rho, mechanism_lib.rho_of, 6, ''),
      ('epsilon', self.target_epsilon, self.epsilon_of, 4, at_delta),
    ):
      if target is not None and not (spent := spent_by(event)) <= target:
        raise ValueError(
          f'the mechanism spends {name} = {rounding.up(spent, digits)}{at}, more than '
          f'target_{name}={rounding.exact(target)}.'
        )


def check_not_covered(not_covered: Any) -> tuple[str, ...]:
  """Returns the sentences, each in one line."""
  stated = not_covered if isinstance(not_covered, (list, tuple)) else [None]
  if not all(
    isinstance(each, str) and each.strip() and each.isprintable() for each in stated
  ):
    raise ValueError(
      'not_covered must be a sequence of sentences, each in one line, such as '
      f"('The vocabulary was counted without noise.',); got {not_covered!r}."
    )
  return tuple(map(str.strip, stated))


def check_nbafl(
  plan: nbafl_lib.Nbafl,
  mechanism: joint_mechanism.AnyMechanism,
  *,
  delta: float,
  clip_norm: Optional[float],
) -> None:
  """Raises ValueError if a mechanism is not the one of a plan."""
  if mechanism.parts:
    raise ValueError('NbAFL plans noise for all weights, and this mechanism has parts.')
  expected = mechanism_lib.Mechanism(**plan.mechanism_arguments())
  clip_norm = plan.clip_norm if clip_norm is None else clip_norm
  actual = {**mechanism.to_json(), 'delta': delta, 'clip_norm': clip_norm}
  planned = {**expected.to_json(), 'delta': plan.delta, 'clip_norm': plan.clip_norm}
  remedy = 'accounting.Mechanism(**plan.mechanism_arguments()) is its mechanism'
  _check_same('the run', actual, 'NbAFL plans', planned, remedy)


def check_nbafl_cohorts(plan: nbafl_lib.Nbafl, schedule: Mapping[str, Any]) -> None:
  """Raises ValueError if the cohorts of a schedule are not those of a plan."""
  planned = {
    'schedule': 'random_eligible',
    'num_clients': plan.num_clients,
    'clients_per_round': plan.cohort,
    'dropouts': None,
    'reporting_goal': None,
  }
  reason = (
    f'it counts the noise of all {plan.cohort} clients of a round, drawn at random'
  )
  _check_same('the schedule', schedule, 'NbAFL is planned with', planned, reason)


def _check_same(
  what: str,
  found: Mapping[str, Any],
  planner: str,
  planned: Mapping[str, Any],
  reason: str,
) -> None:
  """Raises ValueError for the first planned value that is not the one found."""
  for name, value in planned.items():
    # The least noise is found by a search, whose last digits depend on the machine.
    is_close = name.endswith('noise_multiplier') and math.isclose(
      found.get(name) or 0.0, value or 0.0, rel_tol=_SAME_NOISE
    )
    if found.get(name) != value and not is_close:
      raise ValueError(
        f'{what} has {name}={found.get(name)}, and {planner} {value}: {reason}.'
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


def from_plan(
  plan: Inputs,
  *,
  ledger: Optional[str] = None,
  strategy_file: Optional[str] = None,
  round_log: Optional['RoundLog'] = None,
  command: Optional[str] = None,
) -> Inputs:
  """Returns the inputs for a plan, or for those of its rounds that a ledger lists.

  Without a ledger, the plan must have the limits that a round log gives; with one, the
  log must show that the plan's limits were kept.
  """
  files = [] if round_log is None else [round_log.file]
  facts: dict[str, Any] = {'command': command}
  if ledger is not None:
    ledger_file, facts['ledger'] = _read_ledger(ledger)
    files.append(ledger_file)
    recorded = noise_source_of(facts['ledger'])
    if recorded and plan.noise_source == Inputs.noise_source:
      facts['noise_source'] = recorded
  if round_log is not None:
    limits, schema = plan.mechanism.limits, plan.mechanism.participation
    if ledger is not None:
      log_participation.check_agreement(round_log.proved, facts['ledger'], limits)
    else:
      shown = log_participation.of_plan(round_log.limits, limits.num_rounds)
      if shown != schema:
        raise ValueError(f'the round log gives {shown}, the report has {schema}.')
    summary, cap = summary_of(round_log, plan), plan.cap_enforced_by
    if cap is None and summary['basis'] == 'min_wait':
      cap = plan.enforced_by  # The wait implies both the separation and the cap.
    facts |= {'participation_source': summary, 'limits_in_log': round_log.limits_in_log}
    for name, stated in ('enforced_by', plan.enforced_by), ('cap_enforced_by', cap):
      facts[name] = enforced_by_log(summary, ledger is not None, stated)
  if strategy_file is not None:
    files.append(file_of('strategy', strategy_file))
  return dataclasses.replace(plan, files=tuple(files), **facts)


# Run directories.


class _Privacy(msgspec.Struct, frozen=True):
  """The privacy mechanism in a run's configuration."""

  mechanism: dict[str, Any]
  delta: float
  target_epsilon: Optional[float]
  clip_norm: Optional[float]
  enforced_by: str
  noise_source: str
  cap_enforced_by: Optional[str] = None
  target_rho: Optional[float] = None
  accountant: Any = None
  noise_generator: Optional[str] = None
  noise_seed: Any = msgspec.UNSET  # Written by an earlier release.
  clients_per_round: Union[int, float, None] = None
  weights_of_parts: Optional[dict[str, dict[str, list[model.Count]]]] = None


class _SimulatedCohort(SimulatedCohort, frozen=True):
  """The larger cohort whose noise a run has, in the run's configuration."""

  as_planned: _Privacy


class _Training(msgspec.Struct, frozen=True):
  """How a run trained, in its configuration."""

  schedule: dict[str, Any] = {}
  simulation: Optional[str] = None
  aggregation: Optional[dict[str, Any]] = None


class _Config(msgspec.Struct, frozen=True):
  """The fields of a run's configuration that a statement needs."""

  privacy: Optional[_Privacy]
  simulated_cohort: Optional[_SimulatedCohort] = None
  training: _Training = _Training()
  nbafl: Optional[dict[str, Any]] = None
  not_covered: Any = ()
  tuning: Optional[model.Tuning] = None
  canaries: Optional[dict[str, Any]] = None
  software: Optional[dict[str, Any]] = None

  def facts(self) -> dict[str, Any]:
    """Fields of `Inputs` on training and clients; `None` for what is not stated."""
    schedule, cohort = self.training.schedule, self.simulated_cohort
    num_clients = schedule.get('num_clients')  # A number that is secret is not there.
    if not (isinstance(num_clients, int) and num_clients > 0):
      num_clients = None
    code_version = reporting = before_clipping = None
    if self.software is not None:
      code_version = ', '.join(map(' '.join, version.in_words(self.software).items()))
    dropouts, goal = schedule.get('dropouts'), schedule.get('reporting_goal')
    if (dropouts, goal) != (None, None):
      reporting = model.Reporting(
        dropout_rate=None if dropouts is None else dropouts['rate'],
        reporting_goal=goal,
        denominator=getattr(self.privacy, 'clients_per_round', None),
      )
    names, stated = model.BeforeClipping.__struct_fields__, self.training.aggregation
    values = {name: (stated or {}).get(name) for name in names}
    if any(value is not None for value in values.values()):
      before_clipping = model.BeforeClipping(**values)
    simulation = self.training.simulation
    return {
      'code_version': code_version,
      'simulation': simulation if simulation in (None, 'packed') else 'one_by_one',
      'reporting': reporting,
      'before_clipping': before_clipping,
      'not_covered': check_not_covered(self.not_covered),
      'tuning': self.tuning,
      'num_clients': num_clients if cohort is None else cohort.simulated_num_clients,
    }


def from_run_dir(
  run_dir: str,
  accountant: Optional[str] = None,
  rounds_fixed_by: Optional[str] = None,
) -> Inputs:
  """Returns the inputs from a run's configuration, strategy and ledger.

  Those of a run without privacy have no mechanism.

  `accountant`: Computes epsilon; `None` for the one that the run was planned with.
  """
  path, config = _read_config(run_dir)
  try:
    if config.privacy is None and config.simulated_cohort is None:
      return Inputs(files=(file_of('config', path),), **config.facts())
    return _from_config(path, config, accountant, rounds_fixed_by)
  except (AttributeError, KeyError, TypeError, ValueError) as e:
    words = str(e) if isinstance(e, ValueError) else f'{type(e).__name__}: {e}.'
    raise ValueError(f'{os.path.normpath(run_dir)}: {words}') from e


def _read_config(run_dir: str) -> tuple[str, _Config]:
  path = os.path.join(os.path.normpath(run_dir), 'config.json')
  try:
    with open(path, encoding='utf-8') as file:
      return path, strict_json.convert(strict_json.loads(file.read()), _Config)
  except (FileNotFoundError, NotADirectoryError) as e:
    raise ValueError(f'{run_dir} is not a run directory: it has no config.json.') from e
  except ValueError as e:
    raise ValueError(f'{path} is not the configuration of a run: {e}') from e


def _from_config(
  config_path: str,
  config: _Config,
  accountant: Optional[str],
  rounds_fixed_by: Optional[str],
) -> Inputs:
  run_dir = os.path.dirname(config_path)
  strategy = canary_record = plan = None
  cohort, schedule = config.simulated_cohort, config.training.schedule
  privacy = cast(_Privacy, config.privacy if cohort is None else cohort.as_planned)
  files = [file_of('config', config_path)]
  for path in (os.path.join(run_dir, f'strategy.{end}') for end in ('npz', 'json')):
    if strategy is None and os.path.exists(path):
      strategy = joint_mechanism.load_strategy(privacy.mechanism, path)
      files.append(file_of('strategy', path))
  ledger_file, ledger = _read_ledger(os.path.join(run_dir, 'ledger.jsonl'))
  ledger_lib.check_schedule(ledger, schedule)
  files.append(ledger_file)
  if config.canaries is not None and ledger.entries:
    path = os.path.join(run_dir, canaries_lib.FILE)  # Written at the end of the run.
    canary_record = canaries_lib.Record.load(
      path,
      inserted=config.canaries['inserted'],
      confidence=config.canaries['confidence'],
      most_rounds=len(ledger.entries),
    )
    files.append(file_of('canaries', path))
  if privacy.accountant is not None:
    accountants.entry_of(privacy.accountant)
  arguments = [f'--run_dir={run_dir or "."}']
  is_other = accountant not in (None, privacy.accountant)
  if is_other:
    arguments.append(f'--accountant={accountant}')
  if rounds_fixed_by is not None:
    arguments.append(f'--rounds_fixed_by={rounds_fixed_by}')
  mechanism = joint_mechanism.stored(privacy.mechanism, strategy)
  _check_ledger(privacy, ledger)
  if cohort is None and schedule:
    _check_schedule(mechanism, privacy, schedule)
  if config.nbafl is not None:
    plan = nbafl_lib.Nbafl(**config.nbafl)
    check_nbafl_cohorts(plan, schedule)
  target = privacy.target_epsilon
  if target is not None and is_other:
    # By another accountant epsilon may exceed the target, which is then left out.
    spent = mechanism.epsilon(privacy.delta, accountant=accountant)
    target = target if spent <= target else None
  same = ['delta', 'target_rho', 'clip_norm', 'noise_source']
  same += ['enforced_by', 'cap_enforced_by']
  return Inputs(
    mechanism,
    target_epsilon=target,
    found='noise_multiplier' if target or privacy.target_rho else None,
    accountant=privacy.accountant if accountant is None else accountant,
    weights_of_parts=_weights_of_parts(mechanism, privacy),
    ledger=ledger,
    rounds_fixed_by=rounds_fixed_by,
    simulated_cohort=cohort,
    nbafl=plan,
    canary_record=canary_record,
    command=command_of(arguments),
    files=tuple(files),
    **{name: getattr(privacy, name) for name in same},
    **config.facts(),
  )


def _check_schedule(
  mechanism: joint_mechanism.AnyMechanism,
  privacy: _Privacy,
  schedule: Mapping[str, Any],
) -> None:
  """Raises ValueError if the schedule is not the one that the mechanism assumes."""
  planned: dict[str, Any] = {'participation': sampling.to_json(mechanism.participation)}
  kept = planned['participation']
  if schedule.get('schedule') == 'replay':  # Cohorts of a file, whose name is private.
    if schedule.get('stated') is not None:  # Or the file states it.
      kept = schedule['stated'].get('schema')
  else:
    unknown = None if mechanism.is_sampled else kept  # For user-defined schedules.
    kept = schedule.get('sampling', schedule.get('participation', unknown))
  if None not in (privacy.clients_per_round, schedule.get('clients_per_round')):
    planned['clients_per_round'] = privacy.clients_per_round  # The mean's denominator.
  found = {**schedule, 'participation': kept}
  _check_same('its schedule', found, 'its mechanism counts on', planned, _ALTERED)


def _check_ledger(privacy: _Privacy, ledger: ledger_lib.Ledger) -> None:
  """Raises ValueError if delta or the noise source differ from those in the ledger."""
  generator = privacy.noise_generator
  seeded = {privacy.noise_source == SEEDED_NOISE}
  if privacy.noise_seed is not msgspec.UNSET:
    seeded.add(privacy.noise_seed is not None)
  for entry in ledger.entries:
    is_same = entry.delta == privacy.delta
    if (entry.noise_source, entry.noise_generator) != (None, None):
      is_same &= seeded == {entry.has_seeded_noise}
      is_same &= generator is None or entry.noise_generator in (None, generator)
    if not is_same:
      raise ValueError(
        f'it says delta = {privacy.delta}, and noise of {generator} from '
        f'{privacy.noise_source!r}, but round {entry.round} of the ledger has '
        f'{entry.delta}, {entry.noise_generator} and {entry.noise_source}: {_ALTERED}.'
      )


def _weights_of_parts(
  mechanism: joint_mechanism.AnyMechanism, privacy: _Privacy
) -> Optional[dict[str, dict[str, list[int]]]]:
  if not mechanism.parts:
    return None
  stated = privacy.weights_of_parts or {}
  names = [name for weights in stated.values() for name in weights]
  parts = tuple(part for part, weights in stated.items() for _ in weights)
  if not stated or mechanism.part_of(names) != parts:
    raise ValueError(
      f'weights_of_parts is {stated}, but patterns of parts do not give it: {_ALTERED}.'
    )
  return stated


# Round logs of production systems.


class RoundLog(NamedTuple):
  """Facts about participation from a production system's round log."""

  # The planned limits, widened by those that the log shows; or the latter alone.
  limits: strategies.Participation
  limits_in_log: strategies.Participation  # The same, of the rounds in the log alone.
  proved: log_participation.Summary
  # JSON-ready, with the arguments of `from_round_log`, and without names of clients.
  summary: dict[str, Any]
  file: dict[str, Any]  # Role, path and checksum, as `file_of` returns them.


def from_round_log(
  path: str,
  min_wait_hours: Optional[float] = None,
  wait_from: str = 'contribution',
  first_start: Optional[str] = None,
  columns: Optional[Mapping[str, str]] = None,
  population: Optional[str] = None,
  planned: Optional[strategies.Participation] = None,
) -> RoundLog:
  """Reads the limits that a round log proves; `planned` ones are widened by these.

  The other arguments are those of `round_log.read` and `log_participation.summarize`.
  """
  file = file_of('round_log', path)
  log = round_log_lib.read(path, columns, population)
  if file_of('round_log', path) != file:
    raise ValueError(f'{path} was changed while it was read; give a copy of it.')
  summary = log_participation.summarize(log, min_wait_hours, wait_from, first_start)
  summary_json = summary.to_json()
  for name in ('closest', 'most_active', 'rounds_of_most_active'):
    summary_json.get('observed', {}).pop(name, None)
  summary_json['arguments'] = {
    'min_wait_hours': min_wait_hours,
    'wait_from': wait_from,
    'first_start': first_start,
    'columns': dict(columns or {}),
    'population': population,
  }
  limits = in_log = summary.participation
  if planned is not None:
    if summary.num_rounds > planned.num_rounds:
      raise ValueError(
        f'{path} has {summary.num_rounds} rounds, and num_rounds={planned.num_rounds} '
        'were planned.'
      )
    cap = planned.assumed_at_most
    broken = summary.broken_in_short(planned.min_separation, cap)
    summary_json['planned'] = {
      'num_rounds': planned.num_rounds,
      'min_separation': planned.min_separation,
      'max_participations': cap,
      'broken': broken,
    }
    limits, in_log = (
      log_participation.of_plan(limits, num_rounds, planned, bool(broken))
      for num_rounds in (planned.num_rounds, summary.num_rounds)
    )
  return RoundLog(limits, in_log, summary, summary_json, file)


def summary_of(log: RoundLog, plan: Inputs) -> dict[str, Any]:
  """Returns the summary of a round log with `occurred`, for a report.

  That has the largest epsilon of a client's participations in the log, if it names
  clients and the server's noise is one Gaussian.
  """
  mechanism, squared = plan.mechanism, None
  if not mechanism.parts and mechanism.is_one_gaussian and mechanism.is_private:
    if not mechanism.placement.is_of_client:
      squared = log.proved.sensitivity_squared(mechanism.strategy)
  if squared is None:
    return {**log.summary, 'occurred': None}
  # Sensitivities without the factor 2 of replacing a contribution, which the event has.
  # Either may be an upper bound.
  allowed = mechanism.strategy.sensitivity_squared(mechanism.limits)
  share = min(squared / allowed, 1.0)
  mu = accountants.gdp_mu(mechanism.event) * math.sqrt(share)
  occurred = {
    'sensitivity_squared': share * mechanism.sensitivity_squared,
    'epsilon': plan.epsilon_of(dp_accounting.GaussianDpEvent(1 / mu)),
    'delta': plan.delta,
  }
  return {**log.summary, 'occurred': occurred}


def file_of(role: str, path: str) -> dict[str, Any]:
  """Returns role, path and SHA-256 of a file that a statement rests on."""
  # A pipe and the like cannot be read a second time.
  if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
    raise ValueError(
      f'the {role.replace("_", " ")} {path} is no regular file, and reports are '
      'verified from files. Give a file.'
    )
  digest = hashlib.sha256()
  with open(path, 'rb') as file:
    for block in iter(lambda: file.read(2**20), b''):
      digest.update(block)
  return {'role': role, 'path': path, 'sha256': digest.hexdigest()}


def _read_ledger(path: str) -> tuple[dict[str, Any], ledger_lib.Ledger]:
  file, ledger = file_of('ledger', path), ledger_lib.read(path)
  # A run may append more before a file is read again.
  return {**file, 'sha256': ledger.sha256}, ledger


def command_of(arguments: list[str]) -> str:
  """Returns a command line of the report program."""
  return f'{PROGRAM} {shlex.join(arguments)}'
