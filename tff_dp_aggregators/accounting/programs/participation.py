r"""Finds from a production log how often one device can have taken part.

    tff-dp-participation --round_log=rounds.csv

A log has a line for each round whose result was released:

    round,completion_time
    0,2024-03-01T10:00:00Z
    1,2024-03-01T18:00:00Z

It may name clients: in client_ids or participants of such lines, separated by spaces or
semicolons or as a JSON list; or it has one line per participation, with client_id and
round, whose times are not read, so --min_wait_hours does not go with it.

`tff_dp_aggregators.accounting.records.round_log` describes other columns, and other
forms of files, times and names, and what is refused.

Exit codes: 0 success; 1 the log breaks the promise; 2 the log or a flag is refused.
"""

import csv
import dataclasses
import io
import json
import sys
from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.records import round_log
from tff_dp_aggregators.base import new_files


@dataclasses.dataclass
class _Promises:
  promised_min_separation: Optional[int] = program.flag(
    'Fail if two rounds of one device can be, or were, closer than this difference.',
    within='[1, inf)',
  )
  promised_max_participations: Optional[int] = program.flag(
    'Fail if one device can take part, or did, in more rounds.', within='[1, inf)'
  )
  offenders: Optional[str] = program.flag(
    'File to write clients to that broke a promise, if the log names clients: CSV, '
    'with their participations, smallest separation, and which promise they broke. It '
    'is private: mode 0600. Must not exist.'
  )


def groups() -> tuple[program.Group, ...]:
  """Returns the program's flags."""
  log = program.Flag(
    'round_log',
    str,
    'The log: CSV or TSV with a header, JSON lines or Parquet; plain or gzipped.',
  )
  printed = table.printed('text', 'json')
  rows = (log, *table.ROUND_LOG, *program.rows_of(_Promises), *printed)
  return (('Flags', rows),)


def columns_from_flags(values: flags.FlagValues) -> dict[str, str]:
  """Returns the log's names of columns, by the standard names."""
  columns: dict[str, str] = {}
  for entry in values.columns:
    name, separator, source = entry.partition('=')
    name = name.strip()
    if not separator:
      raise ValueError(f'--columns has {entry!r}; write column=name_in_the_log.')
    if name in columns:
      raise ValueError(f'--columns has {name} twice; give it once.')
    columns[name] = source.strip()
  return columns


def main(values: flags.FlagValues) -> int:
  """Prints or writes the summary; returns the exit code."""
  if values.round_log is None:
    raise ValueError('--round_log is missing: the file that says the rounds.')
  promised = (values.promised_min_separation, values.promised_max_participations)
  if values.offenders is not None and promised == (None, None):
    raise ValueError(
      '--offenders needs what was promised: --promised_min_separation, '
      '--promised_max_participations, or both.'
    )
  program.check_new(values, 'output', 'offenders')
  columns = columns_from_flags(values)
  log = round_log.read(values.round_log, columns, values.population_name)
  summary = log_participation.summarize(
    log, values.min_wait_hours, values.wait_from, values.first_start
  )
  offenders = summary.offenders(*promised)
  if values.offenders is not None:
    _write_offenders(values.offenders, summary, promised)
    summary = summary.without_names()  # What is printed is not private.
  broken = summary.broken(*promised)
  if offenders:
    assert summary.observed is not None
    what = 'were twice in a round' if promised == (None, None) else 'broke a promise'
    broken.append(
      f'{len(offenders)} of {summary.observed.num_clients} clients {what}, '
      f'in {log_participation.in_contributions(offenders)}'
    )
  if values.format == 'json':
    result = {**summary.to_json(), 'broken': broken}
    text = json.dumps(result, indent=2, allow_nan=False) + '\n'
  else:
    text = summary.to_text() + ''.join(f'{"BROKEN":<20}{b}\n' for b in broken)
  program.print_or_write(text, values.output)
  # Once is enough where both streams are the terminal.
  if values.output or not (sys.stdout.isatty() and sys.stderr.isatty()):
    for sentence in broken:
      print(f'broken: {sentence}', file=sys.stderr)
  return program.CHECK_FAILED if broken else 0


def _write_offenders(
  path: str,
  summary: log_participation.Summary,
  promised: tuple[Optional[int], Optional[int]],
) -> None:
  """Writes the clients that broke a promise, to a private file."""
  if summary.observed is None:
    raise ValueError(
      '--offenders needs a log that names clients, in a column client_ids.'
    )
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(('client', 'participations', 'min_separation', 'broke'))
  separation, cap = promised
  for name, times, closest, _ in summary.offenders(*promised):
    broke = []
    if closest is not None and closest < (separation or 1):
      broke.append('min_separation')
    if cap is not None and times > cap:
      broke.append('max_participations')
    writer.writerow((name, times, closest, ' '.join(broke)))
  new_files.write_new(path, text.getvalue(), is_private=True)


PROGRAM = program.Program(
  'tff-dp-participation',
  f'{__doc__}\n{log_participation.__doc__}',
  groups,
  main,
)
execute, run = PROGRAM.execute, PROGRAM.run
