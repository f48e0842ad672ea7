"""Whether the command that a report prints leads to what the report says.

A command is not only read: a statement is made of its flags, as the report program
would, from the same files, and compared with the report.
"""

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

from tff_dp_aggregators.accounting.reports import comparing
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import nbafl_report
from tff_dp_aggregators.accounting.reports import sources

# Makes a statement of the arguments of the report program; files that they name are
# where the second argument says, to which it gives each path and whether that is of a
# run directory. Raises ValueError or OSError if the program would refuse them.
StatementOf = Callable[[Sequence[str], Callable[[str, bool], str]], dict[str, Any]]
# Strategies that were optimised on another machine give figures this close.
_ALIKE = 1e-6
_UNCHECKED = 'the command in the report was not tried, as the report program does'
_NO_COMMAND = 'the report states no command that leads to it'


class WrongCommand(ValueError):
  """A command that is not one of the report program."""


def check(
  report: dict[str, Any],
  find: Callable[[str], str],
  statement_of: Optional[StatementOf],
) -> tuple[list[str], list[str]]:
  """Does what the command in a report says.

  Args:
    report: What was verified to be right but for its command.
    find: Where a file of the report is, given where the report says that it is.
    statement_of: Makes the statement; `None` if nobody can.

  Returns:
    Differences and notes.
  """
  if report['mechanism'] is None and not (report['verification'] or {}).get('command'):
    return [], []
  command = report['verification']['command']
  if command is None:
    by_part = [check(part, find, statement_of) for part in report['parts']]
    found = [each for differences, _ in by_part for each in differences]
    return found, [_NO_COMMAND]
  if statement_of is None:
    return [], [_UNCHECKED]
  files = _Files(find)
  try:
    led_to = statement_of(arguments_of(command), files.locate)
  except Exception as e:  # A text from a file may lead to anything.
    return [f'verification.command does not work: {type(e).__name__}: {e}'], []
  return _compared(report, led_to, files.moved)


def arguments_of(command: str) -> list[str]:
  """The arguments of a command line of the report program.

  Raises:
    WrongCommand: If it is one of another program, or no command line.

  Example:
    >>> arguments_of('python -m tff_dp_aggregators.accounting.report --num_rounds=9')
    ['--num_rounds=9']
  """
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
  tolerance = comparing.TOLERANCE
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
    for each in comparing.differences(stated, found, tolerance=tolerance)
  ]
  return differences, notes


def _checksums(statement: dict[str, Any]) -> list[Any]:
  """Of the strategies, in their order."""
  if statement['mechanism'] is None or nbafl_report.is_one(statement):
    return []
  if not statement['parts']:
    return [statement['mechanism']['strategy_checksum']]
  return [each for part in statement['parts'] for each in _checksums(part)]


def _comparable(
  statement: dict[str, Any], led_to: Any, moved: bool, optimised_again: bool
) -> dict[str, Any]:
  """What of a statement a command has to lead to.

  Args:
    statement: A report, or what its command leads to.
    led_to: What its command leads to.
    moved: Whether files are elsewhere, so that paths and other commands differ.
    optimised_again: Whether strategies may be slightly different ones.
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
