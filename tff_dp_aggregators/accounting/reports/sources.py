"""Statements from what they can be made of: a plan, a run, a ledger, a round log.

Each function reads its files, keeps their checksums, and leaves the rest to
`statement.build`.
"""

import dataclasses
import datetime
import hashlib
import os
import shlex
from collections.abc import Sequence
from typing import Any, Optional

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.records import round_log
from tff_dp_aggregators.accounting.records import strict_json
from tff_dp_aggregators.accounting.reports import statement as statement_lib

# The command that makes a report, as reports name it.
PROGRAM = 'python -m tff_dp_aggregators.accounting.report'
_NOT_STATED = 'not stated; whoever runs the training must see to it'
_ENFORCED_BY = {
  'min_wait': (
    'the wait between two rounds of a device; the limits follow from it and from when '
    'rounds were complete'
  ),
  'client_ids': (
    'nothing that is known: the limits are what the clients of this log happened to '
    'keep, and say nothing of what they might have done'
  ),
}
_STRATEGY_FILES = ('strategy.json', 'strategy.npz')


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is asked for: a mechanism, and what is to be said of it.

  Attributes:
    mechanism: The mechanism, with what was found from the target.
    delta: At which delta its guarantee is stated.
    target_epsilon: The target, if one was given.
    found: 'noise_multiplier', 'num_rounds' or 'max_participations' if that was found
      from the target; `None` if everything was given.
    accountant: Whose epsilon counts; `None` for the tightest.
  """

  mechanism: mechanism_lib.Mechanism
  delta: float
  target_epsilon: Optional[float]
  found: Optional[str]
  accountant: Optional[str]


def from_plan(
  plan: Plan,
  *,
  ledger: Optional[str] = None,
  strategy_file: Optional[str] = None,
  participation_source: Optional[dict[str, Any]] = None,
  files: tuple[dict[str, Any], ...] = (),
  command: Optional[str] = None,
  with_curves: bool = True,
) -> dict[str, Any]:
  """The statement of a plan, or of the rounds of it that a ledger lists.

  Args:
    plan: Mechanism and target.
    ledger: Path of a ledger of a run of this mechanism.
    strategy_file: Where the strategy was loaded from, if it was.
    participation_source: Where the limits on participation come from.
    files: Files that were read for them, as `file_of` describes them.
    command: A command that gives the same numbers again.
    with_curves: As for `statement.build`.

  Raises:
    OSError: If a file cannot be read.
    ValueError: If the ledger is wrong, or of another mechanism.
  """
  read = list(files)
  enforced_by = _NOT_STATED
  if participation_source is not None:
    enforced_by = _ENFORCED_BY[participation_source['basis']]
  run = None
  if ledger is not None:
    run = ledger_lib.read(ledger)
    read.append(file_of('ledger', ledger))
  if strategy_file is not None:
    read.append(file_of('strategy', strategy_file))
  return statement_lib.build(
    plan.mechanism,
    plan.delta,
    ledger=run,
    target_epsilon=plan.target_epsilon,
    found=plan.found,
    accountant=plan.accountant,
    enforced_by=enforced_by,
    participation_source=participation_source,
    command=command,
    files=read,
    with_curves=with_curves,
  )


def from_run_dir(
  run_dir: str, accountant: Optional[str] = None, with_curves: bool = True
) -> dict[str, Any]:
  """The statement of what a simulation run spent.

  Args:
    run_dir: A run directory, with `config.json`, `ledger.jsonl` and the strategy.
    accountant: Whose epsilon counts; `None` for the tightest.
    with_curves: As for `statement.build`.

  Raises:
    OSError: If a file cannot be read.
    ValueError: If the directory has no private run, or its files contradict each
      other.
  """
  run_dir = os.path.normpath(run_dir)
  config_path = os.path.join(run_dir, 'config.json')
  privacy = _privacy_of(run_dir, config_path)
  read = [file_of('config', config_path)]
  strategy = None
  for name in _STRATEGY_FILES:
    path = os.path.join(run_dir, name)
    if os.path.exists(path):
      strategy = strategies.Strategy.load(path)
      read.append(file_of('strategy', path))
  ledger_path = os.path.join(run_dir, 'ledger.jsonl')
  ledger = ledger_lib.read(ledger_path)
  read.append(file_of('ledger', ledger_path))
  try:
    mechanism = mechanism_lib.Mechanism.from_json(privacy['mechanism'], strategy)
    return statement_lib.build(
      mechanism,
      privacy['delta'],
      clip_norm=privacy['clip_norm'],
      ledger=ledger,
      target_epsilon=privacy['target_epsilon'],
      found=None if privacy['target_epsilon'] is None else 'noise_multiplier',
      accountant=accountant,
      enforced_by=privacy['enforced_by'],
      noise_source=privacy['noise_source'],
      command=command_of([f'--run_dir={run_dir}']),
      files=read,
      with_curves=with_curves,
    )
  except KeyError as e:
    raise ValueError(f'{config_path} is not complete: it lacks {e}.') from e


def check_independent(run_dirs: Sequence[str]) -> None:
  """Checks that runs compose: that what one released tells nothing of others' noise.

  Raises:
    OSError: If a configuration cannot be read.
    ValueError: If a run is given twice, or two have their noise from the same seed.
  """
  by_path: dict[str, str] = {}
  by_seed: dict[int, str] = {}
  for run_dir in run_dirs:
    path = os.path.realpath(run_dir)
    if path in by_path:
      raise ValueError(f'a run is given twice: {by_path[path]} and {run_dir}.')
    by_path[path] = run_dir
    seed = _privacy_of(run_dir, os.path.join(run_dir, 'config.json')).get('noise_seed')
    if seed is None:
      continue
    if seed in by_seed:
      raise ValueError(
        f'{by_seed[seed]} and {run_dir} have their noise from the same seed, so what '
        'they released together has no guarantee that is known. Runs compose if their '
        'noise is independent: secret, or of different seeds.'
      )
    by_seed[seed] = run_dir


def from_round_log(
  path: str,
  min_wait: Optional[datetime.timedelta] = None,
  wait_from: str = 'contribution',
  first_start: Optional[str] = None,
) -> tuple[strategies.Participation, dict[str, Any], dict[str, Any]]:
  """Limits on participation that a production system's round log proves.

  Args:
    path: The log; see `round_log`.
    min_wait: As for `log_participation.summarize`, like the others.
    wait_from: With what the wait begins.
    first_start: When the first round started.

  Returns:
    The limits, a JSON-ready summary of the log, with the arguments and without who took
    part, and the file as `file_of` has it.

  Raises:
    OSError: If the file cannot be read.
    ValueError: If an entry is wrong; the message names the line.
  """
  log = round_log.read(path)
  summary = log_participation.summarize(log, min_wait, wait_from, first_start)
  said = summary.to_json()
  for name in ('closest', 'most_active', 'rounds_of_most_active'):
    said.get('observed', {}).pop(name, None)
  hours = None if min_wait is None else min_wait / datetime.timedelta(hours=1)
  said['arguments'] = {
    'min_wait_hours': hours,
    'wait_from': wait_from,
    'first_start': first_start,
  }
  return summary.participation, said, file_of('round_log', path)


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


def _privacy_of(run_dir: str, config_path: str) -> dict[str, Any]:
  """What a run's configuration says about privacy."""
  try:
    with open(config_path, encoding='utf-8') as file:
      config = strict_json.loads(file.read())
    privacy = config['privacy']
  except FileNotFoundError as e:
    raise ValueError(f'{run_dir} is not a run directory: no config.json.') from e
  except (ValueError, KeyError, TypeError) as e:
    raise ValueError(f'{config_path} is not the configuration of a run: {e}') from e
  if privacy is None:
    raise ValueError(f'the run in {run_dir} had no privacy mechanism.')
  return privacy
