"""The inputs of statements from files: of a plan, a run, a ledger, a round log.

Each function reads its files and keeps their checksums; `statement.build` makes a
statement of what it returns.
"""

import collections
import dataclasses
import datetime
import functools
import hashlib
import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import dp_accounting
import msgspec

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.records import round_log as round_log_lib
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import nbafl_report
from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.base import version

# The command that makes a report, as reports name it.
PROGRAM = 'tff-dp-report'
# What files are to a statement.
ROLES = ('config', 'strategy', 'ledger', 'round_log')
# Schedules from a file, as configurations call them; which file, is private.
_REPLAY = 'replay'
# Probability of what is taken for no chance: cohorts of two runs alike in all rounds.
_HARDLY_EVER = 1e-9
# What a run keeps from others, beside its configuration.
_PRIVATE = 'private.json'
_STRATEGY_FILES = ('strategy.json', 'strategy.npz')


def from_plan(
  plan: inputs_lib.Inputs,
  *,
  ledger: Optional[str] = None,
  strategy_file: Optional[str] = None,
  round_log: Optional['RoundLog'] = None,
  command: Optional[str] = None,
) -> inputs_lib.Inputs:
  """The statement's inputs for a plan, or for the rounds of it that a ledger lists.

  Args:
    plan: Mechanism and target, and what else is stated.
    ledger: Path of a ledger of a run of this mechanism.
    strategy_file: Where the strategy was loaded from, if it was.
    round_log: Where the limits on participation come from, if from a log; with a
      ledger, what shows that they were kept.
    command: A command that gives the same numbers again.

  Raises:
    OSError: If a file cannot be read.
    ValueError: If the ledger is wrong, or does not agree with the round log.
  """
  files = []
  if ledger is not None:
    read = ledger_lib.read(ledger)
    plan = dataclasses.replace(plan, ledger=read)
    if plan.noise_source == inputs_lib.Inputs.noise_source:
      said = inputs_lib.noise_source_of(read) or plan.noise_source
      plan = dataclasses.replace(plan, noise_source=said)
  if round_log is not None:
    check_log(round_log, plan.mechanism, plan.ledger)
    summary = summary_of(round_log, plan)
    enforced_by = functools.partial(
      inputs_lib.enforced_by,
      summary['basis'],
      inputs_lib.which_limits(summary, plan.ledger is not None),
    )
    cap_enforced_by = enforced_by(plan.cap_enforced_by)
    if round_log.has_no_more_rounds:
      cap_enforced_by = inputs_lib.capped_by(summary)
    plan = dataclasses.replace(
      plan,
      enforced_by=enforced_by(plan.enforced_by),
      cap_enforced_by=cap_enforced_by,
      participation_source=summary,
    )
    files.append(round_log.file)
  if ledger is not None:
    files.append(file_of('ledger', ledger))
  if strategy_file is not None:
    files.append(file_of('strategy', strategy_file))
  return dataclasses.replace(plan, command=command, files=tuple(files))


def from_run_dir(run_dir: str, accountant: Optional[str] = None) -> inputs_lib.Inputs:
  """The statement's inputs for what a run left: configuration, strategy and ledger.

  Args:
    run_dir: Its directory.
    accountant: Whose epsilon counts; `None` for the one that the run was planned by, if
      no tighter one has as little, or else the tightest.

  Raises:
    OSError: If a file cannot be read.
    ValueError: If the run in the directory had no mechanism, or its files contradict
      each other.
  """
  run_dir = os.path.normpath(run_dir)
  config_path = os.path.join(run_dir, 'config.json')
  config = _config_of(run_dir, config_path)
  try:
    return _from_config(run_dir, config_path, config, accountant)
  except KeyError as e:
    raise ValueError(f'{config_path} is not complete: it lacks {e}.') from e
  except (AttributeError, TypeError) as e:
    raise ValueError(f'{config_path} has a value of another kind: {e}.') from e


def _from_config(
  run_dir: str, config_path: str, config: dict[str, Any], accountant: Optional[str]
) -> inputs_lib.Inputs:
  """The inputs by a configuration, which may lack something or have something else."""
  simulated: Any = config.get('simulated_cohort')
  try:
    cohort = _simulated_cohort(simulated)
    privacy = simulated['as_planned'] if cohort else _privacy_of(run_dir, config)
  except (KeyError, TypeError) as e:
    raise ValueError(f'{config_path}: simulated_cohort is not complete: {e}.') from e
  read = [file_of('config', config_path)]
  strategy = None
  for name in _STRATEGY_FILES:
    path = os.path.join(run_dir, name)
    if os.path.exists(path):
      strategy = joint_mechanism.load_strategy(privacy['mechanism'], path)
      read.append(file_of('strategy', path))
  ledger_path = os.path.join(run_dir, 'ledger.jsonl')
  ledger = ledger_lib.read(ledger_path)
  ledger_lib.check_schedule(ledger, _training_of(config).get('schedule'))
  read.append(file_of('ledger', ledger_path))
  arguments = [f'--run_dir={run_dir}']
  planned_by = privacy.get('accountant')
  if planned_by is not None:
    accountants.entry_of(planned_by)
  if accountant not in (None, planned_by):
    arguments.append(f'--accountant={accountant}')
  mechanism = joint_mechanism.stored(privacy['mechanism'], strategy)
  _check_noise_source(config_path, privacy, ledger)
  _check_delta(config_path, privacy, ledger)
  _check_numbers(config_path, privacy)
  if not cohort:
    schedule = _training_of(config).get('schedule')
    _check_schedule(config_path, mechanism, privacy, schedule)
  target = privacy['target_epsilon']
  if target is not None and accountant not in (None, planned_by):
    # Another accountant may say more; then it is no target of its report.
    spent = mechanism.epsilon(privacy['delta'], accountant=accountant)
    target = target if spent <= target else None
  return inputs_lib.Inputs(
    mechanism,
    privacy['delta'],
    target_epsilon=target,
    found=None if target is None else 'noise_multiplier',
    accountant=planned_by if accountant is None else accountant,
    clip_norm=privacy['clip_norm'],
    weights_of_parts=_weights_of_parts(config_path, mechanism, privacy),
    ledger=ledger,
    enforced_by=privacy['enforced_by'],
    cap_enforced_by=privacy.get('cap_enforced_by'),
    noise_source=privacy['noise_source'],
    code_version=_code_version(config.get('software')),
    simulation=_simulation_of(config),
    reporting=_reporting_of(config),
    before_clipping=_before_clipping_of(config),
    simulated_cohort=cohort,
    nbafl=_nbafl_of(config_path, config),
    not_covered=_not_covered_of(config_path, config),
    tuning=inputs_lib.Tuning.from_json(config.get('tuning')),
    command=command_of(arguments),
    files=tuple(read),
  )


def _check_schedule(
  config_path: str,
  mechanism: joint_mechanism.AnyMechanism,
  privacy: Mapping[str, Any],
  schedule: Any,
) -> None:
  """Refuses a configuration whose schedule is not that which it accounts for."""
  if not isinstance(schedule, dict):
    return
  stated = sampling.to_json(mechanism.participation)
  if schedule.get('schedule') == _REPLAY:
    said = schedule.get('stated')
    kept = stated if said is None else said.get('schema')  # Or its file says it.
  else:
    unknown = None if mechanism.is_sampled else stated  # Of a schedule of one's own.
    kept = schedule.get('sampling', schedule.get('participation', unknown))
  if kept != stated:
    raise ValueError(
      f'{config_path}: its schedule keeps {kept}, but its mechanism counts on '
      f'{stated}: it was altered, or is of several runs.'
    )
  denominator, said = (
    privacy.get('clients_per_round'),
    schedule.get('clients_per_round'),
  )
  if None not in (denominator, said) and denominator != said:
    raise ValueError(
      f'{config_path}: its schedule has clients_per_round={said}, but the mean is '
      f'divided by {denominator}: it was altered, or is of several runs.'
    )


def _check_numbers(config_path: str, privacy: Mapping[str, Any]) -> None:
  """Refuses what is no number, where numbers are computed with it."""
  for name in ('delta', 'target_epsilon', 'clip_norm'):
    value = privacy[name]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number and (value is not None or name == 'delta'):
      raise ValueError(f'{config_path}: {name} is {value!r}, which is no number.')


def _check_delta(
  config_path: str, privacy: Mapping[str, Any], ledger: ledger_lib.Ledger
) -> None:
  """Refuses a configuration with another delta than its ledger."""
  for entry in ledger.entries:
    if entry.delta != privacy['delta']:
      raise ValueError(
        f'{config_path} says delta = {privacy["delta"]}, but round {entry.round} of '
        f'the ledger {entry.delta}: one of them was altered, or they are of two runs.'
      )


def _check_noise_source(
  config_path: str, privacy: Mapping[str, Any], ledger: ledger_lib.Ledger
) -> None:
  """Refuses a configuration with another source of noise than its ledger."""
  generator = privacy.get('noise_generator')
  said = {privacy['noise_source'] == inputs_lib.SEEDED_NOISE}
  if 'noise_seed' in privacy:  # Of a release before.
    said.add(privacy['noise_seed'] is not None)
  for entry in ledger.entries:
    if entry.noise_source is None and entry.noise_generator is None:
      continue  # It says nothing.
    same_generator = entry.noise_generator in (None, generator) or generator is None
    if said != {entry.has_seeded_noise} or not same_generator:
      stated = entry.noise_source or 'not stated'
      raise ValueError(
        f'{config_path} says of the noise that its generator is {generator} and its '
        f'source {privacy["noise_source"]!r}, but round {entry.round} of the ledger '
        f'has the generator {entry.noise_generator} and the source {stated}: one of '
        'them was altered, or they are of two runs.'
      )


def without_privacy(run_dir: str) -> inputs_lib.WithoutPrivacy:
  """What is to be said of a run without a mechanism, by its configuration."""
  run_dir = os.path.normpath(run_dir)
  config_path = os.path.join(run_dir, 'config.json')
  config = _config_of(run_dir, config_path)
  if config['privacy'] is not None or config.get('simulated_cohort') is not None:
    raise ValueError(f'the run in {run_dir} had a mechanism.')
  return inputs_lib.WithoutPrivacy(
    _simulation_of(config),
    _not_covered_of(config_path, config),
    inputs_lib.Tuning.from_json(config.get('tuning')),
    (file_of('config', config_path),),
  )


def _drawn_sizes(entries: Sequence[Any]) -> list[int]:
  """Clients of each round, if it drew each by itself; those of one cycle, of bins."""
  if any(entry.cohort_requested is None for entry in entries):
    return []  # Their draws are told apart by tags.
  together, _ = ledger_lib.split(entries[0].dp_event)
  if any(ledger_lib.is_allocated(each) for each in together):
    sizes = [entry.cohort_requested for entry in entries]
    cycles = range(1, len(sizes) + 1)
    return sizes[: next(c for c in cycles if sizes[c:] == sizes[: len(sizes) - c])]
  return [
    entry.cohort_requested
    for entry in entries
    if entry.event.get('type') == dp_accounting.PoissonSampledDpEvent.__name__
  ]


def _are_of_one_draw(sizes: Sequence[int], others: Sequence[int]) -> bool:
  """Whether sizes are the same by more than chance.

  Two rounds of a run have the same size as often as rounds of two runs would by chance.
  """
  common = min(len(sizes), len(others))
  if not common or sizes[:common] != others[:common]:
    return False
  counts = collections.Counter(sizes[:common]).values()
  by_chance = sum((count / common) ** 2 for count in counts)
  return bool(by_chance**common < _HARDLY_EVER)


def check_not_forked(ledgers: Sequence[str]) -> None:
  """Checks that runs compose: that what one released tells nothing of others' noise.

  Noise from one key, or one seed, is the same for two data sets, whose difference then
  has none. Ledgers with it name one key, begin alike, or have a result in common: with
  noise of its own no run releases what another did.

  Nor, where privacy rests on sampling, of who was drawn for others: accountants compose
  draws that are independent, and from one seed or file the same clients are in both.
  Ledgers with it name one seed, or have cohorts of the same sizes.
  """
  runs: dict[str, _Run] = {}
  for path in ledgers:
    entries = ledger_lib.read(path).entries
    if not entries:
      continue
    run = _Run(
      entries[0], _alone(entries), _drawn_sizes(entries), _cohorts(path, entries[0])
    )
    for other, before in runs.items():
      why = _why_one(before, run)
      if why is not None:
        raise ValueError(f'{other} and {path} {why}')
    runs[path] = run


_OF_ONE_RUN = (
  ': they are of one run, or of two that went on from one state with the same noise, '
  'so that what they released together has no guarantee that is known. If one is the '
  'beginning of the other, give the longer one alone.'
)
_ONE_SEED = (
  'have their noise from the same seed, or from seeds that no noise_key_tag tells '
  'apart, so what they released together has no guarantee that is known. Runs compose '
  'if their noise is independent: secret, or of different seeds.'
)
_ONE_DRAW = (
  'drew their clients from the same seed, so that they had the same ones, where '
  'epsilon is for draws that are independent: what they released together has no '
  'guarantee that is known. Give each run with sampling a seed of its own.'
)
_ONE_FILE = (
  'drew their clients from the same file, or from what nothing tells apart, so that '
  'they may have had the same ones, where epsilon is for draws that are independent. '
  'Files are told apart where the run directories are, by private.json; a file and a '
  'seed by nothing. The ledger of a loop of your own says by sampling_tag from which '
  'seed it drew.'
)


_SAME_SIZES = (
  'have cohorts of the same sizes, drawn at random: they drew the same clients, and '
  'epsilon is for draws that are independent. Give each run with sampling a seed of '
  'its own.'
)


class _Run(NamedTuple):
  """What a ledger tells, by which runs are told apart.

  Attributes:
    first: Its first line.
    alone: What no two runs have in common, each with what is wrong if they do.
    sizes: Clients of each round, as far as chance drew them.
    cohorts: Of a file, hashes of those of so many rounds together that no two draws
      have them by chance.
  """

  first: ledger_lib.LedgerEntry
  alone: dict[tuple[str, Any], None]
  sizes: Sequence[int]
  cohorts: Sequence[str]


def _why_one(one: _Run, other: _Run) -> Optional[str]:
  """Why two ledgers may be of one run, or of one draw; `None` if they are not.

  Two of which one does not tell are as two that are the same.
  """
  for what in other.alone:
    if what in one.alone:
      return what[0]
  both = (one.first, other.first)
  tags = {each.noise_key_tag for each in both}
  if all(each.has_seeded_noise for each in both) and (None in tags or len(tags) == 1):
    return _ONE_SEED
  if all(ledger_lib.is_drawn(each.dp_event) for each in both):
    tagged = all(each.sampling_tag is not None for each in both)
    from_files = any(each.sampling_source == ledger_lib.FILE for each in both)
    # Seeds that both tell are compared above, and sizes below.
    told = not from_files and (tagged or (one.sizes and other.sizes))
    if not told and not (one.cohorts and other.cohorts):
      return _ONE_FILE
    if not told and not set(one.cohorts).isdisjoint(other.cohorts):
      return _ONE_FILE
  return _SAME_SIZES if _are_of_one_draw(one.sizes, other.sizes) else None


def _alone(entries: Sequence[ledger_lib.LedgerEntry]) -> dict[tuple[str, Any], None]:
  first = entries[0]
  line = json.dumps(dataclasses.asdict(first), sort_keys=True)
  told: list[tuple[str, Any]] = [(f'begin with the same line{_OF_ONE_RUN}', line)]
  if first.noise_key_tag is not None and not first.has_seeded_noise:
    told.append((f'have noise of the same key{_OF_ONE_RUN}', first.noise_key_tag))
  if first.sampling_tag is not None:
    told.append((_ONE_DRAW, first.sampling_tag))
  results = {entry.result_checksum for entry in entries} - {None}
  told += [(f'have the same result{_OF_ONE_RUN}', each) for each in results]
  return dict.fromkeys(told)


def _cohorts(ledger: str, first: ledger_lib.LedgerEntry) -> Sequence[str]:
  """Hashes of cohorts of a file, where a run's private settings are there to see."""
  path = os.path.join(os.path.dirname(ledger), _PRIVATE)
  if first.sampling_source != ledger_lib.FILE or not os.path.exists(path):
    return ()
  with open(path, encoding='utf-8') as file:
    private = json.load(file)
  found: Sequence[str] = private['training']['schedule'].get('cohorts', ())
  return found


@dataclasses.dataclass(frozen=True)
class RoundLog:
  """What a production system's round log says about participation.

  Attributes:
    limits: The planned limits if it shows that they were kept, or else those that it
      shows.
    proved: All that it says.
    summary: JSON-ready, with the arguments of `from_round_log` and without who took
      part.
    file: As `file_of` describes it.
  """

  limits: strategies.Participation
  proved: log_participation.Summary
  summary: dict[str, Any]
  file: dict[str, Any]

  @property
  def has_no_more_rounds(self) -> bool:
    """Whether planned limits were kept, by fewer rounds than planned and no cap."""
    planned = self.summary.get('planned')
    return bool(
      planned is not None
      and not planned['broken']
      and planned['max_participations'] is None
      and planned['num_rounds'] > self.proved.num_rounds
    )


def from_round_log(
  path: str,
  min_wait: Optional[datetime.timedelta] = None,
  wait_from: str = 'contribution',
  first_start: Optional[str] = None,
  columns: Optional[Mapping[str, str]] = None,
  population: Optional[str] = None,
  planned: Optional[strategies.Participation] = None,
) -> RoundLog:
  """Limits on participation that a production system's round log proves.

  Args:
    path: The log; `records.round_log` says what it looks like.
    min_wait: Least time between two contributions of a device; `None` for 24 hours, or
      for no such rule if the log names the clients.
    wait_from: With what the wait begins: 'contribution' or 'completion'.
    first_start: When the first round started, for logs without start times.
    columns: The log's own names of columns, as for `records.round_log.read`.
    population: Of which population, in a log of several.
    planned: Limits that were planned, of at least as many rounds.

  Raises:
    OSError: If the file cannot be read.
    ValueError: If an entry is wrong; the message names the line.
  """
  log = round_log_lib.read(path, columns, population)
  summary = log_participation.summarize(log, min_wait, wait_from, first_start)
  said = summary.to_json()
  for name in ('closest', 'most_active', 'rounds_of_most_active'):
    said.get('observed', {}).pop(name, None)
  hours = None if min_wait is None else min_wait / datetime.timedelta(hours=1)
  said['arguments'] = {
    'min_wait_hours': hours,
    'wait_from': wait_from,
    'first_start': first_start,
    'columns': dict(columns or {}),
    'population': population,
  }
  limits = summary.participation
  if planned is not None:
    if summary.num_rounds > planned.num_rounds:
      raise ValueError(
        f'{path} has {summary.num_rounds} rounds, and num_rounds={planned.num_rounds} '
        'were planned; give the limits of the run that the log is of.'
      )
    cap = planned.assumed_at_most
    broken = summary.broken_in_short(planned.min_separation, cap)
    said['planned'] = {
      'num_rounds': planned.num_rounds,
      'min_separation': planned.min_separation,
      'max_participations': cap,
      'broken': broken,
    }
    allowed = strategies.Participation(summary.num_rounds, planned.min_separation, cap)
    if broken:
      # What was allowed counts as well: who broke one limit makes no other one less.
      allowed = strategies.Participation(
        summary.num_rounds,
        min(planned.min_separation, summary.min_separation),
        max(allowed.possible_participations, limits.possible_participations),
      )
    limits = allowed
  return RoundLog(limits, summary, said, file_of('round_log', path))


def check_log(
  log: RoundLog,
  mechanism: joint_mechanism.AnyMechanism,
  ledger: Optional[ledger_lib.Ledger],
) -> None:
  """Checks that a round log is one of a mechanism, and of a ledger if there is one."""
  if ledger is not None:
    log_participation.check_agreement(log.proved, ledger, mechanism.limits)
    return
  shown = log_participation.in_longer_run(log.limits, mechanism.limits.num_rounds)
  if shown != mechanism.participation:
    raise ValueError(
      f'the round log gives {shown}, the report has {mechanism.participation}.'
    )


def summary_of(log: RoundLog, plan: inputs_lib.Inputs) -> dict[str, Any]:
  """What a report says of a round log: its summary, and what occurred.

  That is epsilon of the participations in the log, by the client with the largest one;
  `None` if the log names no clients, the strategy is too large, or the mechanism is not
  one Gaussian with noise of the server.
  """
  nothing = {**log.summary, 'occurred': None}
  mechanism = plan.mechanism
  if not isinstance(mechanism, mechanism_lib.Mechanism) or mechanism.site.is_of_client:
    return nothing
  if not (mechanism.is_one_gaussian and mechanism.is_private):
    return nothing
  squared = log.proved.sensitivity_squared(mechanism.strategy)
  if squared is None:
    return nothing
  # Of contributions alone, which replacing one moves twice as far. Either may be known
  # by a bound.
  allowed = mechanism.strategy.sensitivity_squared(mechanism.limits)
  share = min(squared / allowed, 1.0)
  squared = share * mechanism.sensitivity_squared
  mu = accountants.gdp_mu(mechanism.event) * math.sqrt(share)
  event = dp_accounting.GaussianDpEvent(1 / mu)
  epsilon = accountants.epsilon(event, plan.delta, plan.accountant, mechanism.relation)
  occurred = {'sensitivity_squared': squared, 'epsilon': epsilon, 'delta': plan.delta}
  return {**log.summary, 'occurred': occurred}


def file_of(role: str, path: str) -> dict[str, Any]:
  """A file that a statement rests on: its role, path and SHA-256."""
  digest = hashlib.sha256()
  with open(path, 'rb') as file:
    for block in iter(lambda: file.read(2**20), b''):
      digest.update(block)
  return {'role': role, 'path': path, 'sha256': digest.hexdigest()}


def command_of(arguments: list[str]) -> str:
  """The command line of the report program."""
  return f'{PROGRAM} {shlex.join(arguments)}'


def _simulation_of(config: Mapping[str, Any]) -> Optional[str]:
  """How clients were simulated, by a run's configuration; `None` if it does not say."""
  stated = _training_of(config).get('simulation')
  if stated is None:
    return None
  return 'packed' if stated == 'packed' else 'one_by_one'


def _reporting_of(config: Mapping[str, Any]) -> Optional[model.Reporting]:
  """Which clients that were asked reported, by a run's configuration."""
  schedule = _training_of(config).get('schedule')
  if not isinstance(schedule, dict):
    return None
  dropouts, goal = schedule.get('dropouts'), schedule.get('reporting_goal')
  if dropouts is None and goal is None:
    return None
  return model.Reporting(
    dropout_rate=None if dropouts is None else dropouts['rate'],
    reporting_goal=goal,
    denominator=(config.get('privacy') or {}).get('clients_per_round'),
  )


def _before_clipping_of(config: Mapping[str, Any]) -> Optional[model.BeforeClipping]:
  """What a run did with an update before it was clipped."""
  stated = _training_of(config).get('aggregation')
  if not isinstance(stated, dict):
    return None
  found = {name: stated.get(name) for name in model.BeforeClipping.__struct_fields__}
  return None if found == dict.fromkeys(found) else model.BeforeClipping(**found)


def _config_of(run_dir: str, config_path: str) -> dict[str, Any]:
  """A run's configuration."""
  try:
    with open(config_path, encoding='utf-8') as file:
      config: dict[str, Any] = strict_json.loads(file.read())
    config['privacy']
  except FileNotFoundError as e:
    raise ValueError(f'{run_dir} is not a run directory: no config.json.') from e
  except (ValueError, KeyError, TypeError) as e:
    raise ValueError(f'{config_path} is not the configuration of a run: {e}') from e
  return config


def _privacy_of(run_dir: str, config: dict[str, Any]) -> dict[str, Any]:
  """What a run's configuration says about privacy."""
  privacy: Optional[dict[str, Any]] = config['privacy']
  if config.get('simulated_cohort') is not None:
    raise ValueError(
      f'the run in {run_dir} simulates a larger cohort: it has no guarantee, and '
      'nothing has one together with it.'
    )
  if privacy is None:
    raise ValueError(f'the run in {run_dir} had no privacy mechanism.')
  return privacy


def _simulated_cohort(simulated: Any) -> Optional[inputs_lib.SimulatedCohort]:
  """The larger cohort that a configuration says was simulated, if it does."""
  if simulated is None:
    return None
  names = [field.name for field in dataclasses.fields(inputs_lib.SimulatedCohort)]
  return inputs_lib.SimulatedCohort(**{name: simulated[name] for name in names})


def _nbafl_of(config_path: str, config: Mapping[str, Any]) -> Optional[nbafl.Nbafl]:
  """The plan of NbAFL that a configuration says its noise is from, if it does."""
  try:
    plan = nbafl_report.from_json(config.get('nbafl'))
    if plan is not None:
      schedule = _training_of(config).get('schedule')
      nbafl_report.check_cohorts(plan, schedule if isinstance(schedule, dict) else {})
    return plan
  except ValueError as e:
    raise ValueError(f'{config_path}: {e}') from e


def _not_covered_of(config_path: str, config: Mapping[str, Any]) -> tuple[str, ...]:
  """What a configuration says was computed from clients' data besides."""
  try:
    return inputs_lib.check_not_covered(config.get('not_covered', ()))
  except (TypeError, ValueError) as e:
    raise ValueError(f'{config_path}: {e}') from e


def _weights_of_parts(
  config_path: str,
  mechanism: joint_mechanism.AnyMechanism,
  privacy: Mapping[str, Any],
) -> Optional[dict[str, dict[str, list[int]]]]:
  """The weights that a configuration says each part has, if the patterns say so too."""
  if not mechanism.parts:
    return None
  stated: dict[str, dict[str, list[int]]] = privacy['weights_of_parts']
  try:
    msgspec.convert(stated, dict[str, dict[str, list[model.Count]]])
  except msgspec.ValidationError as e:
    raise ValueError(
      f'{config_path}: weights_of_parts is {stated}, and not shapes by the names of '
      'part and weight.'
    ) from e
  names = [name for weights in stated.values() for name in weights]
  parts = tuple(part for part, weights in stated.items() for _ in weights)
  if mechanism.part_of(names) != parts:
    raise ValueError(
      f'{config_path}: weights_of_parts is {stated}, which the patterns of the parts '
      'do not give: something was altered.'
    )
  return stated


def _training_of(config: Mapping[str, Any]) -> dict[str, Any]:
  """What a configuration says of the training; nothing if it was another program's."""
  training = config.get('training')
  return training if isinstance(training, dict) else {}


def _code_version(software: Any) -> Optional[str]:
  """What a configuration says of the code that trained; `None` if nothing."""
  if not isinstance(software, dict):
    return None
  return ', '.join(
    f'{name} {words}' for name, words in version.in_words(software).items()
  )
