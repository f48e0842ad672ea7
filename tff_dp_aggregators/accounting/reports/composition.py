"""What several runs spent together: statements from any sources, composed.

A client may take part in all of them, so all that they released counts. What has to
hold for that is checked here: the same delta and adjacency, no run counted twice, and
no two runs whose noise is known to come from the same seed, or from the same key as
they went on from one state.

A run is told by its ledger, or without one by its round log and population. A plan has
neither: nothing shows whether the same plan again is a mistake or a second run of it,
so it counts as often as it is given.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from tff_dp_aggregators.accounting import sites
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import nbafl_report
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.accounting.reports import verification
from tff_dp_aggregators.base import strict_json


@dataclasses.dataclass(frozen=True)
class Part:
  """A statement to be composed with others.

  Attributes:
    name: Where it comes from, for messages, such as '--ledger=ledger.jsonl'.
    statement: As `statement.build` or `statement.compose` returned it.
  """

  name: str
  statement: dict[str, Any]


def compose(
  parts: Sequence[Part],
  *,
  accountant: Optional[str] = None,
  command: Optional[str] = None,
  other_releases: Sequence[inputs_lib.OtherRelease] = (),
) -> dict[str, Any]:
  """The statement of all parts together; of a single one, that itself.

  Args:
    parts: One or more.
    accountant: Whose epsilon the guarantee states; `None` for the tightest.
    command: A command that prints the same numbers again.
    other_releases: As for `statement.compose`.

  Raises:
    OSError: If the ledger of a run cannot be read.
    ValueError: If the parts do not compose; the message names two that do not.
  """
  _check_distinct(parts)
  if len(parts) == 1 and not other_releases:
    return parts[0].statement
  for part in parts:
    if part.statement['mechanism'] is None:
      why = 'had no privacy mechanism'
      if part.statement['simulated_cohort'] is not None:
        why = 'simulates a larger cohort and has no guarantee'
      raise ValueError(f'{part.name} {why}; with it nothing has a guarantee.')
    if nbafl_report.is_one(part.statement):
      raise ValueError(
        f'{part.name} is of an NbAFL plan, which has several guarantees, of examples '
        'and of clients; it stands alone.'
      )
    site = part.statement['mechanism'].get('noise_site')
    if site is not None and sites.SITES[site].is_simulation:
      raise ValueError(
        f'{part.name} only simulates local privacy; with it nothing has a guarantee.'
      )
  sources.check_not_forked(
    [
      file['path']
      for part in parts
      for file in part.statement['verification']['files']
      if file['role'] == 'ledger'
    ]
  )
  return statement_lib.compose(
    [part.statement for part in parts],
    accountant=accountant,
    command=command,
    other_releases=other_releases,
    names=[part.name for part in parts],
  )


def from_report(
  path: str, statement_of: Optional[verification.StatementOf] = None
) -> dict[str, Any]:
  """A JSON report that is right, with its files where they are found."""
  result = verification.verify(path, statement_of)
  if not result.ok:
    more = len(result.differences) - 1
    others = f' (and {more} more)' if more else ''
    raise ValueError(
      f'{path} is not what is computed from its inputs: {result.differences[0]}'
      f'{others}; --verify={path} shows all.'
    )
  with open(path, encoding='utf-8') as file:
    return _located(strict_json.loads(file.read()), os.path.dirname(path))


def _located(statement: dict[str, Any], folder: str) -> dict[str, Any]:
  """The statement, with files named as they are found from here."""
  stated = statement['verification']
  if stated is None:
    return statement
  parts = [_located(part, folder) for part in statement.get('parts', ())]
  files = [
    dict(file, path=verification.find(file['path'], folder)) for file in stated['files']
  ]
  if files == stated['files']:
    return statement
  config = [file['path'] for file in files if file['role'] == 'config']
  if statement['mechanism'] is None:
    return dict(statement, verification=dict(stated, files=files, command=None))
  if config and not parts:
    found = sources.from_run_dir(
      os.path.dirname(config[0]) or '.', stated['inputs']['accountant']
    )
    return statement_lib.build(found, with_curves=statement['curves'] is not None)
  # The command was right where the files were.
  return dict(
    statement, parts=parts, verification=dict(stated, files=files, command=None)
  )


def _check_distinct(parts: Sequence[Part]) -> None:
  """Refuses a run that is given twice."""
  seen: dict[Any, str] = {}
  for part in parts:
    for run in _told_by(part.statement):
      if run in seen:
        raise ValueError(
          f'a run is given twice, in {seen[run]} and in {part.name}: the same '
          f'{run[0].replace("_", " ")} (sha256 {run[1]}). Give each run once.'
        )
      seen[run] = part.name


def _told_by(statement: dict[str, Any]) -> Iterator[tuple[str, str, Optional[str]]]:
  """By what each run in a statement is told from others."""
  for _, run in model.runs(statement):
    files = run['verification']['files'] if run['mechanism'] else ()
    by_role = {file['role']: file['sha256'] for file in files}
    if 'ledger' in by_role:
      yield 'ledger', by_role['ledger'], None
    elif 'round_log' in by_role:
      source = run['participation']['source']
      yield 'round_log', by_role['round_log'], source['arguments'].get('population')
