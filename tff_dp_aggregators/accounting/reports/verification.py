"""Computing a report again, to find any difference.

A report lists its inputs: mechanism, strategy, events, delta, and the files they came
from with their checksums. `verify` holds the report against the JSON schema, reads the
files again, builds the statement again from the inputs, and compares all of it. Then it
does what the command in the report says, and compares that as well. Where
the stated epsilon is one of the exact curve, privacy loss distributions, which share
no code with it, have to come to the same.

What can be changed in a report without being found: texts that people wrote, which are
what enforces limits and where the noise comes from, if neither a run's configuration
nor the command has them; of a run without privacy, if its configuration is not among
its files, how it was simulated; of a run of parts, names of weights that fit the
patterns, as its configuration has them; where a file was, if it is not there any more;
digits beyond the ninth; the command, if it leads to the same or is taken away; and
names and versions of software, of which the result has a note. And whoever changes
inputs and results together has written another report, which is right for what it says.
"""

import dataclasses
import datetime
import json
import math
import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import dp_accounting

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting import sites
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import nbafl_report
from tff_dp_aggregators.accounting.reports import schema as schema_lib
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.base import version

# Numbers may differ by so much, relative: another machine's last digits.
_TOLERANCE = 1e-9
# Makes a statement of the arguments of the report program; files that they name are
# where the second argument says, to which it gives each path and whether that is of a
# run directory. Raises ValueError or OSError if the program would refuse them.
StatementOf = Callable[[Sequence[str], Callable[[str, bool], str]], dict[str, Any]]
# Strategies that were optimised on another machine give figures this close.
_ALIKE = 1e-6
_UNCHECKED = 'the command in the report was not tried, as the report program does'
_NO_COMMAND = 'the report states no command that leads to it'
# What the other method may be above the exact epsilon, relative above 1.
_AGREEMENT = 1e-3
_MIN_MU, _MAX_MU, _MIN_DELTA = 0.1, 10.0, 1e-13
# Reports whose commands are being followed; each may name others.
_being_verified: list[str] = []
# What a report that is not one of ours can lead to.
_FAILURES = (
  OSError,
  ValueError,
  KeyError,
  TypeError,
  AttributeError,
  OverflowError,
  dp_accounting.UnsupportedEventError,
)


@dataclasses.dataclass(frozen=True)
class Result:
  """What verifying a report found.

  Attributes:
    differences: One line for each, naming the field and both values; none if the
      report is right.
    notes: What else a reader should know, such as other versions of the software.
  """

  differences: tuple[str, ...]
  notes: tuple[str, ...]

  @property
  def ok(self) -> bool:
    """Whether the report is right."""
    return not self.differences

  @property
  def text(self) -> str:
    """The result for people."""
    lines = [f'note: {_in_a_line(note)}' for note in self.notes]
    lines += [f'difference: {_in_a_line(each)}' for each in self.differences]
    verdict = (
      'verified: every number was computed again and is the same. Said and not '
      'computed: what enforces the limits, where the noise comes from, which code '
      'trained where no file of the run says it, and what was '
      'asked for.'
    )
    if self.differences:
      verdict = f'NOT verified: {len(self.differences)} difference(s).'
    return '\n'.join([*lines, verdict]) + '\n'


def _in_a_line(text: str) -> str:
  """A text with parts of a report, which might end the line or move the cursor."""
  return ''.join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def verify(path: str, statement_of: Optional[StatementOf] = None) -> Result:
  """Computes a JSON report again and compares.

  Args:
    path: Of the report. Files it was made from are looked for where it says, relative
      paths from the current directory, and else beside the report.
    statement_of: What the report program makes of a command line, without printing it:
      `programs.report.statement_of`. Without it the report's command is not checked,
      and a note says so.

  Raises:
    OSError: If the report cannot be read.
    ValueError: If it is not a report of this format and version, or its command leads
      back to itself.
  """
  if os.path.isdir(path):
    raise ValueError(
      f'{path} is a directory; give the report in it, as {path}/report.json.'
    )
  place = os.path.realpath(path)
  if place in _being_verified:
    raise ValueError(f'the command of {path} leads back to that report.')
  _being_verified.append(place)
  try:
    return _verify(path, statement_of)
  finally:
    _being_verified.remove(place)


def _verify(path: str, statement_of: Optional[StatementOf]) -> Result:
  with open(path, encoding='utf-8') as file:
    try:
      report = strict_json.loads(file.read())
    except ValueError as e:
      raise ValueError(
        f'{path} is not a JSON report ({str(e).rstrip(".")}). Give the JSON: '
        'report.json of a run, which is beside its report.md, or what --format=json '
        'prints.'
      ) from e
  if not isinstance(report, dict) or report.get('format') != model.FORMAT:
    raise ValueError(f'{path} is not a privacy report of this package.')
  if report.get('version') != model.VERSION:
    raise ValueError(
      f'{path} has version {report.get("version")!r}; this release verifies version '
      f'{model.VERSION}.'
    )
  _add_options(report)
  broken = tuple(schema_lib.violations(report))
  if broken:
    return Result(broken, ('the report is not what its JSON schema says',))
  folder = os.path.dirname(path)
  try:
    again = _build_again(report, folder)
    other = _by_another_method(again)
    again = json.loads(json.dumps(again))
    notes = tuple(_notes_on_software(report.get('software'), again.get('software')))
    for each in (report, again):
      _drop_software(each)
    differences = tuple(_differences(report, again))
    led_to, said = _check_command(report, lambda path: find(path, folder), statement_of)
  except _FAILURES as e:
    failure = f'it cannot be computed again: {type(e).__name__}: {e}'
    return Result((*_other_files(report, folder), failure), ())
  differences, notes = (*differences, *led_to), (*notes, *said)
  notes += _notes_on_outcomes(again) if differences else ()
  if other is not None:
    method, epsilon = other
    notes += (f'{method}, another method, give epsilon = {epsilon!r}',)
    stated = again['guarantee']['epsilon']
    if not 0 <= epsilon - stated <= _AGREEMENT * max(1.0, stated):
      differences += (
        f'guarantee.epsilon is {stated!r}, by another method {epsilon!r}',
      )
  return Result(differences, notes)


def _notes_on_outcomes(statement: dict[str, Any]) -> tuple[str, ...]:
  """What another processor may do to figures of drawn outcomes."""
  entry = accountants.ACCOUNTANTS.get(statement['guarantee'].get('accountant'))
  if entry is None or not entry.is_drawn:
    return ()
  return (
    f'{terms.of_accountant(entry.name).title} has the same outcomes on any machine, to '
    'round-off; where that decides, a figure is a step of 0.2% beside the one of '
    'another processor, which is as right',
  )


def _other_files(report: dict[str, Any], folder: str) -> Iterator[str]:
  """Which files are missing, or not those that the report was made of."""
  for stated in (report['verification'] or {}).get('files', ()):
    role, path = stated['role'], stated['path']
    try:
      found = sources.file_of(role, find(path, folder))
    except FileNotFoundError:
      yield (
        f'the {role} {path!r} is missing; it is looked for from the current directory '
        'and beside the report'
      )
    except (OSError, ValueError):
      continue  # The failure says it.
    else:
      if found['sha256'] != stated['sha256']:
        yield (
          f'the {role} {path!r} is not the file that the report was made of: its '
          f'SHA-256 is {found["sha256"]}, the report has {stated["sha256"]}'
        )


def _add_options(report: dict[str, Any]) -> None:
  """Adds options of kinds of strategies that came after the report was made."""
  mechanism, parts = report.get('mechanism'), report.get('parts')
  if parts:
    report.setdefault('warnings', [])
    report.setdefault('other_releases', [])
  if isinstance(mechanism, dict) and 'strategy' in mechanism:
    for name in (*mechanism_lib.options(), sites.SERVER_NOISE):
      mechanism.setdefault(name, None)
    report.setdefault('nbafl', None)
    report.setdefault('warnings', [])
  if isinstance(mechanism, dict) and isinstance(mechanism.get('parts'), list):
    for part in mechanism['parts']:
      _add_options({'mechanism': part})
  for part in parts if isinstance(parts, list) else ():
    if isinstance(part, dict):
      _add_options(part)


def _by_another_method(statement: dict[str, Any]) -> Optional[tuple[str, float]]:
  """Epsilon by an accountant that shares no code with the statement's, if one can."""
  guarantee = statement['guarantee']
  name = guarantee.get('accountant')
  checked_by = terms.of_accountant(name).checked_by
  if checked_by is None:
    return None
  if guarantee['delta'] < _MIN_DELTA or guarantee['gdp_mu'] is None:
    return None
  if not _MIN_MU <= guarantee['gdp_mu'] <= _MAX_MU:
    return None  # Where that method is a bound.
  inputs, adjacency = statement['verification']['inputs'], statement['definition']
  epsilon = accountants.epsilon(
    events.from_json(inputs['event']),
    inputs['delta'],
    checked_by,
    sampling.ADJACENCIES[adjacency['adjacency']['name']],
  )
  return terms.of_accountant(checked_by).title, epsilon


def _build_again(report: dict[str, Any], folder: str) -> dict[str, Any]:
  if report['mechanism'] is None:
    return _without_privacy_again(report, folder)
  if nbafl_report.is_one(report):
    stated = report['verification']
    plan = nbafl.Nbafl(**stated['inputs']['plan'])
    return statement_lib.build_nbafl(plan, command=stated['command'])
  if report['parts']:
    files = report['verification']['files']
    sources.check_not_forked(
      [find(file['path'], folder) for file in files if file['role'] == 'ledger']
    )
    return statement_lib.compose(
      [_build_again(part, folder) for part in report['parts']],
      accountant=report['verification']['inputs']['accountant'],
      command=report['verification']['command'],
      other_releases=[
        inputs_lib.OtherRelease(**release) for release in report['other_releases']
      ],
    )
  return statement_lib.build(
    _inputs(report, folder),
    with_curves=report['verification']['inputs']['with_curves'],
  )


def _without_privacy_again(report: dict[str, Any], folder: str) -> dict[str, Any]:
  """The statement of a run without a guarantee, from its files where there are any."""
  if report['verification'] is None:
    return statement_lib.build_without_privacy(
      inputs_lib.WithoutPrivacy(report['simulation'])
    )
  paths = _paths_by_role(report, folder)
  if 'config' not in paths:
    raise ValueError('the report of a run names no configuration of it.')
  for role, path in paths.items():
    sources.file_of(role, path)  # Each has to be there under its own name.
  run_dir = os.path.dirname(paths['config']) or '.'
  if report['simulated_cohort'] is not None:
    return statement_lib.build(_of_run(report, run_dir), with_curves=False)
  found = sources.without_privacy(run_dir)
  return statement_lib.build_without_privacy(
    dataclasses.replace(found, files=_as_stated(report, found.files))
  )


def _inputs(report: dict[str, Any], folder: str) -> inputs_lib.Inputs:
  """What a report says that it was made of, from its files where it names any."""
  stated = report['verification']['files']
  paths = _paths_by_role(report, folder)
  files = tuple(
    dict(sources.file_of(file['role'], paths[file['role']]), path=file['path'])
    for file in stated
  )
  if 'config' in paths:
    return _of_run(report, os.path.dirname(paths['config']) or '.')
  inputs, said = report['verification']['inputs'], report['participation']
  stored = inputs['mechanism']
  mechanism = joint_mechanism.stored(
    stored, _strategy(stored, inputs['strategy'], paths.get('strategy'))
  )
  plan = inputs_lib.Inputs(
    mechanism,
    inputs['delta'],
    target_epsilon=inputs['target_epsilon'],
    found=inputs['found'],
    accountant=inputs['accountant'],
    clip_norm=inputs['clip_norm'],
    code_version=report['code_version'],
  )
  log = None
  if 'round_log' in paths:
    log = _log(said['source'], paths['round_log'])
  found = sources.from_plan(plan, ledger=paths.get('ledger'), round_log=log)
  return dataclasses.replace(
    found,
    enforced_by=said['enforced_by'],
    cap_enforced_by=said['cap_enforced_by'],
    noise_source=report['mechanism']['noise_source'],
    command=report['verification']['command'],
    files=files,
  )


def _check_roles(roles: list[str]) -> None:
  """Refuses a file that would not be read: a run's configuration called otherwise."""
  for role in roles:
    if role not in sources.ROLES or roles.count(role) > 1:
      raise ValueError(
        f'a report rests on at most one file of each role, {", ".join(sources.ROLES)}; '
        f'this one says {", ".join(map(str, roles))}.'
      )


def _paths_by_role(report: dict[str, Any], folder: str) -> dict[str, str]:
  stated = report['verification']['files']
  _check_roles([file['role'] for file in stated])
  return {file['role']: find(file['path'], folder) for file in stated}


def _of_run(report: dict[str, Any], run_dir: str) -> inputs_lib.Inputs:
  """The inputs that a run directory gives, under the paths that the report states."""
  verification = report['verification']
  found = sources.from_run_dir(run_dir, verification['inputs']['accountant'])
  files = _as_stated(report, found.files)
  moved = files != found.files
  command = verification['command'] if moved else found.command
  return dataclasses.replace(found, files=files, command=command)


def _as_stated(
  report: dict[str, Any], files: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], ...]:
  """Files that were found, under the paths that the report states."""
  stated = {file['role']: file['path'] for file in report['verification']['files']}
  return tuple(
    dict(file, path=stated.get(file['role'], file['path'])) for file in files
  )


def _log(source: dict[str, Any], path: str) -> sources.RoundLog:
  """A round log, read with the arguments that a report has."""
  arguments, planned = source['arguments'], source.get('planned')
  hours = arguments['min_wait_hours']
  return sources.from_round_log(
    path,
    None if hours is None else datetime.timedelta(hours=hours),
    arguments['wait_from'],
    arguments['first_start'],
    arguments['columns'],
    arguments['population'],
    planned
    and strategies.Participation(
      planned['num_rounds'], planned['min_separation'], planned['max_participations']
    ),
  )


def _notes_on_software(stated: Any, found: Any) -> Iterator[str]:
  if found is None:  # Nothing was computed: there is no privacy.
    return
  if not isinstance(stated, dict):
    yield 'the report does not say which software made it'
    return
  theirs, ours = version.in_words(stated), version.in_words(found)
  for name in dict.fromkeys([*theirs, *ours]):
    if theirs.get(name) != ours.get(name):
      made, again = (
        f'with {name} {words[name]}' if name in words else f'without {name}'
        for words in (theirs, ours)
      )
      yield f'the report was made {made}, verified {again}'
  if stated.get('modified') is True:
    yield 'files of the package had been changed when the report was made'


def _drop_software(report: dict[str, Any]) -> None:
  report.pop('software', None)
  for part in report.get('parts', ()):
    _drop_software(part)


def find(path: str, folder: str) -> str:
  """Where a file of a report is: where it was, or else beside the report."""
  beside = os.path.join(folder, os.path.basename(path))
  found = path if os.path.exists(path) or not os.path.exists(beside) else beside
  # A pipe or a device may never end, and reading it may do something.
  if os.path.exists(found) and not os.path.isfile(found):
    raise ValueError(f'{found!r}, which the report names, is no regular file.')
  return found


def _strategy(
  mechanism: dict[str, Any], data: Optional[dict[str, Any]], path: Optional[str]
) -> Optional[joint_mechanism.AnyStrategy]:
  within = None
  if data is not None:
    within = joint_mechanism.strategy_from_json(mechanism, data)
  if path is None:
    return within
  loaded = joint_mechanism.load_strategy(mechanism, path)
  if within is not None and within.checksum != loaded.checksum:
    raise ValueError(f'the strategy in the report is not that of {path}.')
  return loaded


# Where two statements differ.


def _differences(
  stated: Any, found: Any, name: str = '', tolerance: float = _TOLERANCE
) -> Iterator[str]:
  """One line for each value that is not the same, naming it and both values."""
  if isinstance(stated, dict) and isinstance(found, dict):
    options = mechanism_lib.options()
    for key in dict.fromkeys([*stated, *found]):
      inner = f'{name}.{key}' if name else key
      if key not in stated or key not in found:
        if key in options and stated.get(key) is found.get(key) is None:
          continue  # One of a kind of strategy that came later.
        where = 'missing' if key not in stated else 'not computed here'
        yield f'{inner} is {where}'
      else:
        yield from _differences(stated[key], found[key], inner, tolerance)
  elif isinstance(stated, list) and isinstance(found, list):
    if len(stated) != len(found):
      yield f'{name} has {len(stated)} entries, computed {len(found)}'
      return
    for index, (one, other) in enumerate(zip(stated, found)):
      yield from _differences(one, other, f'{name}[{index}]', tolerance)
  elif not _same(stated, found, tolerance):
    yield f'{name} is {stated!r}, computed {found!r}'


def _same(stated: Any, found: Any, tolerance: float) -> bool:
  numbers = (int, float)
  if isinstance(stated, bool) or isinstance(found, bool):
    return stated is found
  if isinstance(stated, numbers) and isinstance(found, numbers):
    return math.isclose(stated, found, rel_tol=tolerance, abs_tol=1e-300)
  return bool(stated == found) and type(stated) is type(found)


# The command that a report prints.


class WrongCommand(ValueError):
  """A command that is not one of the report program."""


def _check_command(
  report: dict[str, Any],
  find: Callable[[str], str],
  statement_of: Optional[StatementOf],
) -> tuple[list[str], list[str]]:
  """Differences and notes from doing what the command in a report says."""
  if report['mechanism'] is None and not (report['verification'] or {}).get('command'):
    return [], []
  command = report['verification']['command']
  if command is None:
    by_part = [_check_command(part, find, statement_of) for part in report['parts']]
    found = [each for differences, _ in by_part for each in differences]
    return found, [_NO_COMMAND]
  if statement_of is None:
    return [], [_UNCHECKED]
  files = _Files(find)
  try:
    led_to = statement_of(_arguments_of(command), files.locate)
  except Exception as e:  # A text from a file may lead to anything.
    return [f'verification.command does not work: {type(e).__name__}: {e}'], []
  return _compared(report, led_to, files.moved)


def _arguments_of(command: str) -> list[str]:
  """The arguments of a command line of the report program."""
  start = sources.command_of([])
  try:
    words = shlex.split(command)
  except ValueError as e:
    raise WrongCommand(f'{command!r} is no command line: {e}') from e
  program = shlex.split(start)
  if words[: len(program)] != program:
    raise WrongCommand(f'{command!r} does not begin with {start.strip()!r}.')
  arguments = words[len(program) :]
  written = sources.command_of(arguments)
  if command != written:
    raise WrongCommand(f'{command!r} is not written as reports do it, {written!r}.')
  return arguments


class _Files:
  """Where the files of a command are, and whether they had moved."""

  def __init__(self, find: Callable[[str], str]):
    self._find = find
    self.moved = False

  def locate(self, path: str, is_run_dir: bool) -> str:
    """Where a file or a run directory is."""
    if is_run_dir:
      config = self._find(os.path.join(path, 'config.json'))
      found = path if os.path.dirname(config) == path else os.path.dirname(config)
    else:
      found = self._find(path)
    if found != path and os.path.normpath(found or '.') != os.path.normpath(path):
      self.moved = True
    return found or '.'


def _compared(
  report: dict[str, Any], led_to: dict[str, Any], moved: bool
) -> tuple[list[str], list[str]]:
  notes = []
  tolerance = _TOLERANCE
  optimised_again = _checksums(report) != _checksums(led_to)
  if optimised_again:
    tolerance = _ALIKE
    notes.append(
      'the command finds a strategy that is not the same to the last bit, as another '
      'machine or version may; figures were compared to six digits'
    )
  stated = _comparable(report, led_to, moved, optimised_again)
  found = _comparable(led_to, led_to, moved, optimised_again)
  differences = [
    f'verification.command leads to something else: {each}'
    for each in _differences(stated, found, tolerance=tolerance)
  ]
  return differences, notes


def _checksums(statement: dict[str, Any]) -> list[Any]:
  """Of the strategies, in their order."""
  found = [run['mechanism'] or {} for _, run in model.runs(statement)]
  return [each.get('strategy_checksum') for each in found]


def _comparable(
  statement: dict[str, Any], led_to: Any, moved: bool, optimised_again: bool
) -> dict[str, Any]:
  """What of a statement a command has to lead to.

  Where files have moved, paths and other commands differ; where strategies were
  optimised again, they may be slightly different ones.
  """
  if statement['mechanism'] is None:
    return _comparable_without_privacy(statement, moved)
  kept = {
    key: value
    for key, value in statement.items()
    if key not in ('curves', 'software', 'verification', 'parts')
  }
  verification = statement['verification']
  not_compared = {'with_curves', *(('strategy', 'event') if optimised_again else ())}
  inputs = {k: v for k, v in verification['inputs'].items() if k not in not_compared}
  if optimised_again and statement['mechanism'].get('strategy_checksum'):
    kept['mechanism'] = dict(statement['mechanism'], strategy_checksum=None)
    inputs['mechanism'] = dict(inputs['mechanism'], strategy_checksum=None)
  kept['inputs'] = inputs
  kept['files'] = _files(verification, moved)
  for group, field in _not_said(led_to):
    kept[group] = {key: each for key, each in kept[group].items() if key != field}
  stated, found = statement['parts'], led_to['parts']
  kept['parts'] = [
    dict(
      _comparable(part, found[index], moved, optimised_again)
      if index < len(found)
      else {},
      command=None if moved else part['verification']['command'],
    )
    for index, part in enumerate(stated)
  ]
  return kept


def _comparable_without_privacy(
  statement: dict[str, Any], moved: bool
) -> dict[str, Any]:
  verification = statement['verification'] or {'files': [], 'inputs': None}
  return dict(
    statement, verification=verification['inputs'], files=_files(verification, moved)
  )


def _files(verification: dict[str, Any], moved: bool) -> list[dict[str, Any]]:
  return [
    {key: file[key] for key in ('role', 'sha256', *(() if moved else ('path',)))}
    for file in verification['files']
  ]


def _not_said(led_to: dict[str, Any]) -> Iterator[tuple[str, str]]:
  """Texts that a command says nothing about, and a report has from elsewhere."""
  if led_to.get('participation') is None:
    return
  unsaid = {
    ('participation', 'enforced_by'): (inputs_lib.NOT_STATED,),
    ('participation', 'cap_enforced_by'): (inputs_lib.NOT_STATED, None),
    ('mechanism', 'noise_source'): (inputs_lib.Inputs.noise_source,),
  }
  for (group, field), texts in unsaid.items():
    if led_to[group][field] in texts:
      yield group, field
      yield 'provenance', field
