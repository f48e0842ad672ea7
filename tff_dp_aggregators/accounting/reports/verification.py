"""Verifies a report by computing it again and comparing.

`verify` reads the files that a report lists, builds the statement again from its
inputs, and compares all of it with the report, as well as with the result of the
report's command. If epsilon is that of the exact curve, privacy loss distributions,
which share no code with it, have to give the same.

Changes of the following are not found: texts that people wrote, which are what enforces
limits and where the noise comes from, if the report has no command and no configuration
of a run; how a run without privacy was simulated, if its configuration is not among its
files; names of weights of a part that match its patterns; the path of a file that does
not exist any more; digits after the ninth; the command, if it gives the same result or
is removed; and software, on which the result has a note. If inputs and results are
changed consistently, the report is another one, which is correct for these inputs.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.reports import composition
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import schema as schema_lib
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import messages
from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.base import version

_TOLERANCE = 1e-9  # Relative; the last digits of numbers depend on the machine.
# Makes a statement from arguments of the report program. Raises ValueError or OSError
# if the program would refuse them.
StatementOf = Callable[[Sequence[str]], dict[str, Any]]
_STRATEGY_TOLERANCE = 1e-6  # If a strategy was optimised on another machine.
_OTHER_STRATEGY = (
  'the command finds a strategy that is not the same to the last bit, as another '
  'machine or version may; figures were compared to six digits'
)
_NO_COMMAND = 'the report states no command that leads to it'
# Fields that are compared in other ways: software, files and commands; and, if the
# command optimises a strategy again, what depends on its last bits.
_NOT_COMPARED = frozenset({'software', 'path', 'command'})
_OF_STRATEGY = frozenset({'strategy', 'strategy_checksum', 'event'})
# The beginning of commands in reports from before the program had a name.
_OLD_PROGRAM = 'python -m tff_dp_aggregators.accounting.report '
_OLD_FLAG = re.compile(rf'(?<= --)({"|".join(messages.RENAMED)})(?==)')
_VERIFIED = (
  'verified: every number was computed again and is the same. Said and not computed: '
  'what enforces the limits, where the noise comes from, what was asked for, and, '
  'where no file of the run says it, which code trained and which mechanism and noise '
  'multiplier it had.'
)
_DRAWN = (
  ' has the same outcomes on any machine, to round-off; where that decides, a figure '
  'is a step of 0.2% beside the one of another processor, which is as right'
)
_LED_TO = 'verification.command leads to something else: '
_SHOWN = 20  # The most differences that are printed.
# An accountant that shares no code with the exact one has to give the same epsilon, up
# to `_AGREEMENT` above it, relative above 1. For smaller deltas or other mu, it is only
# an upper bound.
_OTHER_METHOD, _AGREEMENT = 'pld', 1e-3
_MIN_MU, _MAX_MU, _MIN_DELTA = 0.1, 10.0, 1e-13
# Reports that are being verified; the command of each may name other reports.
_being_verified: list[str] = []


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of verifying a report."""

  # A line for each, with the field and both values; none if the report is correct.
  differences: tuple[str, ...]
  notes: tuple[str, ...]  # Such as on other versions of the software.
  # What is computed, if it could be, with the paths at which files are.
  statement: Optional[dict[str, Any]] = None

  @property
  def ok(self) -> bool:
    """Whether the report is correct."""
    return not self.differences

  @property
  def text(self) -> str:
    """The result as text, with the first differences."""
    lines = [f'note: {messages.visible(note)}' for note in self.notes]
    shown = self.differences[:_SHOWN]
    lines += [f'difference: {messages.visible(each)}' for each in shown]
    verdict = f'NOT verified: {len(self.differences)} difference(s).'
    return '\n'.join([*lines, _VERIFIED if self.ok else verdict]) + '\n'


def verify(path: str, statement_of: Optional[StatementOf] = None) -> Result:
  """Computes a JSON report again and compares.

  Files are looked for at the paths in the report, and otherwise beside the report.
  `statement_of` is `programs.report.statement_of`. Without it the report's command is
  not checked, and a note says so.
  """
  place = os.path.realpath(path)
  if place in _being_verified:
    raise ValueError(f'the command of {path} leads back to that report.')
  _being_verified.append(place)
  try:
    return _verify(path, statement_of)
  finally:
    _being_verified.remove(place)


def _verify(path: str, statement_of: Optional[StatementOf]) -> Result:
  report, folder = _read(path), os.path.dirname(path)
  if broken := tuple(schema_lib.violations(report)):
    return Result(broken, ('the report is not what its JSON schema says',))
  wrong_files: list[str] = []
  try:
    located = _located(report, folder)
    wrong_files, notes = _check_files(located, folder)
    again = json.loads(json.dumps(_build_again(located)))
    differences = [*wrong_files, *_differences(report, again)]
    notes += _notes_on_software(report, again)
    # Differences that the command leads to as well are listed once.
    known = {f'{_LED_TO}{each}' for each in differences}
    for found, remarks in (
      _check_command(report, folder, statement_of),
      _check_by_another_method(again),
    ):
      differences += [each for each in found if each not in known]
      notes += remarks
  except Exception as e:  # Inputs from a file may cause any error.
    failure = f'it cannot be computed again: {type(e).__name__}: {e}'
    # A wrong file is the reason, so both are one difference.
    return Result(('; so '.join((*wrong_files, failure)),), ())
  entry = accountants.ACCOUNTANTS.get(again['guarantee'].get('accountant'))
  if differences and entry is not None and entry.is_drawn:
    notes.append(f'{terms.of_accountant(entry.name).title}{_DRAWN}')
  # Those of inputs come first, as others follow from them, and of curves last.
  differences.sort(
    key=lambda each: ('curves.' in each) - ('verification.inputs' in each)
  )
  same = report if located == report else again
  return Result(tuple(differences), tuple(notes), same)


def _read(path: str) -> dict[str, Any]:
  if os.path.isdir(path):
    raise ValueError(f'{path} is a folder; give the report.json in it.')
  with open(path, encoding='utf-8') as file:
    try:
      report = strict_json.loads(file.read())
    except ValueError as e:
      raise ValueError(
        f'{path} is not a JSON report ({str(e).rstrip(".")}). Give the JSON: '
        'report.json of a run, which is beside its report.md, or what --format=json '
        'prints.'
      ) from e
  stated = report if isinstance(report, dict) else {}
  if (stated.get('format'), stated.get('version')) != (model.FORMAT, model.VERSION):
    raise ValueError(
      f'{path} is not a privacy report of this package in version {model.VERSION}, but '
      f'in {stated.get("version")!r}.'
    )
  # What is no report of any release cannot be computed again, which `verify` says.
  with contextlib.suppress(AttributeError, KeyError, TypeError):
    _bring_up_to_date(report, path)
  return report


def _bring_up_to_date(report: dict[str, Any], path: str) -> None:
  """Adds what a report of an earlier release lacks, and renames program and flags.

  Raises ValueError if a kind of strategy is not registered.
  """
  mechanism, parts = report['mechanism'] or {}, report.get('parts') or ()
  stated, provenance = report['verification'] or {}, report.get('provenance')
  if (stated.get('command') or '').startswith(_OLD_PROGRAM):
    arguments = stated['command'][len(_OLD_PROGRAM) - 1 :]
    arguments = _OLD_FLAG.sub(lambda old: messages.RENAMED[old[0]], arguments)
    stated['command'] = sources.PROGRAM + arguments
  mechanisms = [mechanism, *mechanism.get('parts', ())]
  single = [each for each in mechanisms if 'strategy' in each]
  for each in single:
    for field, known in (
      ('name', (*mechanism_lib.names(), mechanism_lib.FROM_FILE)),
      ('strategy', strategies.Strategy._kinds),
    ):
      if each[field] not in known:
        raise ValueError(
          f'{path}: nothing was compared, as {field} {each[field]!r} of a mechanism is '
          'unknown; import the module that registers it.'
        )
    absent = dict.fromkeys((*mechanism_lib.options(), noises.SERVER_NOISE))
    each.update({**absent, **each})
  if parts or single:
    report.setdefault('warnings', [])
    report.setdefault('other_releases' if parts else 'nbafl', [] if parts else None)
  if provenance is not None and not {'mechanism', 'noise_multiplier'} & set(provenance):
    is_recorded = {'config', 'ledger'} & {file['role'] for file in stated['files']}
    origin = 'recorded' if is_recorded else 'stated'
    provenance.update(mechanism=origin, noise_multiplier=origin)
  for part in parts:
    _bring_up_to_date(part, path)


def _check_files(report: dict[str, Any], folder: str) -> tuple[list[str], list[str]]:
  """Lines on files that are missing or changed, and notes on others beside a report."""
  wrong, notes = [], []
  runs = [run['verification'] or {} for _, run in model.runs(report)]
  for stated in [file for run in runs for file in run.get('files', ())]:
    role, path, sha256 = stated['role'], stated['path'], stated['sha256']
    try:
      found = sources.file_of(role, path)['sha256']
    except OSError as e:
      wrong.append(
        f'the {role} {path!r} cannot be read; it is looked for from the current '
        f'directory and beside the report: {e}'
      )
      continue
    if found != sha256:
      wrong.append(
        f'the {role} {path!r} is not the file that the report was made of: its sha256 '
        f'is {found}, the report has {sha256}'
      )
    beside = os.path.join(folder, os.path.basename(path))
    if os.path.isfile(beside) and sources.file_of(role, beside)['sha256'] != found:
      notes.append(
        f'{beside} is not the {role} of the report, and was not verified: that is '
        f'{path}, where the report says'
      )
  return list(dict.fromkeys(wrong)), list(dict.fromkeys(notes))


def _check_by_another_method(
  statement: dict[str, Any],
) -> tuple[list[str], list[str]]:
  """Differences and notes by `_OTHER_METHOD`, if that is expected to agree."""
  guarantee = statement['guarantee']
  mu, delta = guarantee.get('gdp_mu'), guarantee['delta']
  is_exact = guarantee.get('accountant') == accountants.EXACT and mu is not None
  if not is_exact or delta < _MIN_DELTA or not _MIN_MU <= mu <= _MAX_MU:
    return [], []
  relation = sampling.ADJACENCIES[statement['definition']['adjacency']['name']]
  event = events.from_json(statement['verification']['inputs']['event'])
  other = accountants.epsilon(event, delta, _OTHER_METHOD, relation)
  method, stated = terms.of_accountant(_OTHER_METHOD).title, guarantee['epsilon']
  notes = [f'{method}, another method, give epsilon = {other!r}']
  if 0 <= other - stated <= _AGREEMENT * max(1.0, stated):
    return [], notes
  return [f'guarantee.epsilon is {stated!r}, by another method {other!r}'], notes


def _build_again(report: dict[str, Any]) -> dict[str, Any]:
  """Builds the statement of a report from its inputs; its files are at their paths."""
  stated = report['verification']
  if stated is None:  # Without privacy, and not of a run.
    return statement_lib.build(sources.Inputs(simulation=report['simulation']))
  if model.is_plan(report):
    return statement_lib.build_nbafl(nbafl.Nbafl(**stated['inputs']['plan']))
  inputs = stated['inputs']
  if report.get('parts'):
    parts = [
      composition.Part(f'part {number}', _build_again(part))
      for number, part in enumerate(report['parts'], start=1)
    ]
    releases = [model.OtherRelease(**each) for each in report['other_releases']]
    return composition.compose(
      parts, accountant=inputs['accountant'], other_releases=releases
    )
  paths = {file['role']: file['path'] for file in stated['files']}
  if not set(paths) <= set(sources.ROLES) or len(paths) < len(stated['files']):
    # A configuration with another role would not be read.
    raise ValueError(
      f'a report rests on at most one file of each role, {", ".join(sources.ROLES)}; '
      f'this one says {", ".join(file["role"] for file in stated["files"])}.'
    )
  fixed_by = report.get('stopped', {}).get('rounds_fixed_by')
  if 'config' not in paths:
    built = _of_plan(report, paths, fixed_by)
  else:
    run_dir = os.path.dirname(paths['config']) or '.'
    built = sources.from_run_dir(run_dir, inputs['accountant'], fixed_by)
  with_curves = inputs.get('with_curves', False)
  return statement_lib.build(built, with_curves=with_curves)


def _of_plan(
  report: dict[str, Any], paths: dict[str, str], fixed_by: Optional[str]
) -> sources.Inputs:
  if report['mechanism'] is None:
    raise ValueError('the report of a run names no configuration of it.')
  verified, participation = report['verification'], report['participation']
  inputs, log = verified['inputs'], None
  stored, strategy, path = inputs['mechanism'], None, paths.get('strategy')
  if inputs['strategy'] is not None:
    strategy = joint_mechanism.strategy_from_json(stored, inputs['strategy'])
  if path is not None:
    reported, strategy = strategy, joint_mechanism.load_strategy(stored, path)
    if reported is not None and reported.checksum != strategy.checksum:
      raise ValueError(f'the strategy in the report is not that of {path}.')
  names = ('delta', 'target_epsilon', 'found', 'accountant', 'clip_norm')
  plan = sources.Inputs(
    joint_mechanism.stored(stored, strategy),
    code_version=report['code_version'],
    rounds_fixed_by=fixed_by,
    target_rho=inputs.get('target_rho'),
    **{name: inputs[name] for name in names},
  )
  if 'round_log' in paths:
    source, limits = participation['source'], None
    if stated := source.get('planned'):
      limits = strategies.Participation(
        stated['num_rounds'], stated['min_separation'], stated['max_participations']
      )
    log = sources.from_round_log(
      paths['round_log'], planned=limits, **source['arguments']
    )
  return dataclasses.replace(
    sources.from_plan(plan, ledger=paths.get('ledger'), round_log=log),
    enforced_by=participation['enforced_by'],
    cap_enforced_by=participation['cap_enforced_by'],
    noise_source=report['mechanism']['noise_source'],
    command=verified['command'],
    files=tuple(verified['files']),
  )


def find(path: str, folder: str) -> str:
  """Returns the path of a report's file: the stated one, or one beside the report."""
  beside = os.path.join(folder, os.path.basename(path))
  located = path if os.path.exists(path) or not os.path.exists(beside) else beside
  # A pipe or a device may never end, and reading it may have side effects.
  if os.path.exists(located) and not os.path.isfile(located):
    raise ValueError(f'{located!r}, which the report names, is no regular file.')
  return located


def _notes_on_software(report: dict[str, Any], again: dict[str, Any]) -> Iterator[str]:
  # Without privacy nothing is computed.
  stated, now = (each.get('software', {}) for each in (report, again))
  theirs, ours = version.in_words(stated), version.in_words(now)
  for name in dict.fromkeys([*theirs, *ours]):
    then, now = theirs.get(name, 'none'), ours.get(name, 'none')
    if then != now:
      yield f'the report was made with {name} {then}, verified with {now}'
  if stated.get('modified') is True:
    yield 'files of the package had been changed when the report was made'


def statement_of_report(
  path: str, statement_of: Optional[StatementOf] = None
) -> dict[str, Any]:
  """Returns a JSON report that is correct, with the paths at which its files are."""
  result = verify(path, statement_of)
  if not result.ok:
    raise ValueError(
      f'{path} is not what is computed from its inputs: {result.differences[0]}; '
      f'--verify={path} shows all {len(result.differences)} difference(s).'
    )
  assert result.statement is not None
  return result.statement


def _located(report: dict[str, Any], folder: str) -> dict[str, Any]:
  """The report with the paths at which its files are; if others, without command."""
  stated = report['verification']
  if stated is None:
    return report
  files = [{**file, 'path': find(file['path'], folder)} for file in stated['files']]
  command = stated['command'] if files == stated['files'] else None
  located: dict[str, Any] = {
    'verification': {**stated, 'files': files, 'command': command}
  }
  if report.get('parts'):
    located['parts'] = [_located(part, folder) for part in report['parts']]
  return {**report, **located}


# Comparison of statements.


def _differences(
  stated: Any,
  found: Any,
  name: str = '',
  skipped: frozenset[str] = _NOT_COMPARED,
  tolerance: float = _TOLERANCE,
) -> Iterator[str]:
  """Yields a line for each value that differs, with its name and both values."""
  if isinstance(stated, dict) and isinstance(found, dict):
    for key in dict.fromkeys([*stated, *found]):
      inner = f'{name}.{key}' if name else key
      if key in stated and key in found:
        if key in skipped:
          continue
        yield from _differences(stated[key], found[key], inner, skipped, tolerance)
      # Options of kinds that are registered only here, or only there, are `None`.
      elif (
        {**stated, **found}[key] is not None
        or key in found
        and key not in mechanism_lib.options()
      ):
        yield f'{inner} is {"missing" if key in found else "not computed here"}'
  elif isinstance(stated, list) and isinstance(found, list):
    if len(stated) != len(found):
      yield f'{name} has {len(stated)} entries, computed {len(found)}'
      return
    for index, (one, other) in enumerate(zip(stated, found)):
      yield from _differences(one, other, f'{name}[{index}]', skipped, tolerance)
  elif not _same(stated, found, tolerance):
    yield f'{name} is {stated!r}, computed {found!r}'


def _same(stated: Any, computed: Any, tolerance: float) -> bool:
  numbers = (int, float)
  if isinstance(stated, bool) or isinstance(computed, bool):
    return stated is computed
  if isinstance(stated, numbers) and isinstance(computed, numbers):
    return math.isclose(stated, computed, rel_tol=tolerance, abs_tol=1e-300)
  return bool(stated == computed) and type(stated) is type(computed)


def _check_command(
  report: dict[str, Any], folder: str, statement_of: Optional[StatementOf]
) -> tuple[list[str], list[str]]:
  """Returns differences and notes from executing the command in a report."""
  command = (report['verification'] or {}).get('command')
  if command is None:
    if report['mechanism'] is None:
      return [], []
    by_part = [_check_command(part, folder, statement_of) for part in report['parts']]
    return [each for found, _ in by_part for each in found], [_NO_COMMAND]
  if statement_of is None:
    return [], ['the command in the report was not tried, as the program does']
  try:
    words = shlex.split(command)
    if words[:1] != [sources.PROGRAM] or command != sources.command_of(words[1:]):
      raise ValueError(f'{command!r} is no command of {sources.PROGRAM}.')
    arguments = [_located_argument(word, folder) for word in words[1:]]
    result = statement_of(arguments)
  except Exception as e:  # A command from a file may cause any error.
    return [f'verification.command does not work: {type(e).__name__}: {e}'], []
  result['verification']['command'] = command
  skipped, tolerance, notes = {'software', 'curves', 'with_curves'}, _TOLERANCE, []
  if arguments != words[1:]:
    skipped |= _NOT_COMPARED
  checksums = [
    [(run['mechanism'] or {}).get('strategy_checksum') for _, run in model.runs(each)]
    for each in (report, result)
  ]
  if checksums[0] != checksums[1]:
    # Strategies that another machine optimised may differ in their last bits.
    skipped |= _OF_STRATEGY
    tolerance, notes = _STRATEGY_TOLERANCE, [_OTHER_STRATEGY]
  found = _differences(report, result, '', frozenset(skipped), tolerance)
  return [f'{_LED_TO}{each}' for each in found], notes


def _located_argument(argument: str, folder: str) -> str:
  """An argument of a command, with the path at which its file is found."""
  flag, _, path = argument.partition('=')
  if flag in ('--report', '--ledger', '--round_log', '--strategy_file'):
    return f'{flag}={find(path, folder)}'
  config = os.path.join(path, 'config.json')
  if flag == '--run_dir' and (located := find(config, folder)) != config:
    return f'{flag}={os.path.dirname(located) or "."}'
  return argument
