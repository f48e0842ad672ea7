"""Computing a report again, to find any difference.

A report lists its inputs: mechanism, strategy, events, delta, and the files they came
from with their checksums. `verify` reads the files again, builds the statement again
from the inputs, and compares all of it but the versions of the software.
"""

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any, Optional

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import ledger as ledger_lib
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import sources
from tff_dp_aggregators.accounting import statement as statement_lib

# Numbers may differ by so much, relative: another machine's last digits.
_TOLERANCE = 1e-9


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
    lines = [f'note: {note}' for note in self.notes]
    lines += [f'difference: {difference}' for difference in self.differences]
    verdict = 'verified: every number was computed again and is the same.'
    if self.differences:
      verdict = f'NOT verified: {len(self.differences)} difference(s).'
    return '\n'.join([*lines, verdict]) + '\n'


def verify(path: str) -> Result:
  """Computes a JSON report again and compares.

  Args:
    path: Of the report. Files it was made from are looked for where it says, relative
      paths from the current directory.

  Raises:
    OSError: If the report cannot be read.
    ValueError: If it is not a report of this format and version.
  """
  with open(path, encoding='utf-8') as file:
    try:
      report = json.load(file)
    except ValueError as e:
      raise ValueError(f'{path} is not a JSON report: {e}') from e
  if not isinstance(report, dict) or report.get('format') != statement_lib.FORMAT:
    raise ValueError(f'{path} is not a privacy report of this package.')
  if report.get('version') != statement_lib.VERSION:
    raise ValueError(
      f'{path} has version {report.get("version")!r}; this release verifies version '
      f'{statement_lib.VERSION}.'
    )
  try:
    again = _build_again(report)
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
    return Result((f'it cannot be computed again: {type(e).__name__}: {e}',), ())
  again = json.loads(json.dumps(again))
  notes = tuple(
    f'the report was made with {each}'
    for each in _differences(report.get('software'), again.get('software'), '')
  )
  for each in (report, again):
    each.pop('software', None)
  return Result(tuple(_differences(report, again, '')), notes)


def _build_again(report: dict[str, Any]) -> dict[str, Any]:
  if report['mechanism'] is None:
    return statement_lib.build_without_privacy()
  command = report['verification']['command']
  inputs = report['verification']['inputs']
  if report['parts']:
    return statement_lib.compose(
      [_build_again(part) for part in report['parts']],
      accountant=inputs['accountant'],
      command=command,
    )
  files = [_same_file(file) for file in report['verification']['files']]
  paths = {file['role']: file['path'] for file in files}
  mechanism = mechanism_lib.Mechanism.from_json(
    inputs['mechanism'], _strategy(inputs['strategy'], paths.get('strategy'))
  )
  entries = ledger_lib.read(paths['ledger']).entries if 'ledger' in paths else None
  target = report['target'] or {'epsilon': None, 'found': None}
  return statement_lib.build(
    mechanism,
    inputs['delta'],
    clip_norm=report['mechanism']['clip_norm'],
    entries=entries,
    target_epsilon=target['epsilon'],
    found=target['found'],
    accountant=inputs['accountant'],
    enforced_by=report['participation']['enforced_by'],
    noise_source=report['mechanism']['noise_source'],
    participation_source=report['participation']['source'],
    command=command,
    files=files,
    with_curves=report['curves'] is not None,
  )


def _same_file(file: dict[str, Any]) -> dict[str, Any]:
  """The file as it is now."""
  return sources.file_of(file['role'], file['path'])


def _strategy(
  data: Optional[dict[str, Any]], path: Optional[str]
) -> Optional[strategies.Strategy]:
  if data is not None:
    return strategies.Strategy.from_json(json.dumps(data))
  return None if path is None else strategies.Strategy.load(path)


def _differences(stated: Any, found: Any, name: str) -> Iterator[str]:
  if isinstance(stated, dict) and isinstance(found, dict):
    for key in dict.fromkeys([*stated, *found]):
      inner = f'{name}.{key}' if name else key
      if key not in stated or key not in found:
        where = 'missing' if key not in stated else 'not computed here'
        yield f'{inner} is {where}'
      else:
        yield from _differences(stated[key], found[key], inner)
  elif isinstance(stated, list) and isinstance(found, list):
    if len(stated) != len(found):
      yield f'{name} has {len(stated)} entries, computed {len(found)}'
      return
    for index, (one, other) in enumerate(zip(stated, found)):
      yield from _differences(one, other, f'{name}[{index}]')
  elif not _same(stated, found):
    yield f'{name} is {stated!r}, computed {found!r}'


def _same(stated: Any, found: Any) -> bool:
  numbers = (int, float)
  if isinstance(stated, bool) or isinstance(found, bool):
    return stated is found
  if isinstance(stated, numbers) and isinstance(found, numbers):
    return math.isclose(stated, found, rel_tol=_TOLERANCE, abs_tol=1e-300)
  return bool(stated == found) and type(stated) is type(found)
