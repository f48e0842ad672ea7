"""The table of a comparison: a line for each point of the grid, mean over its seeds."""

import csv
import io
import itertools
import math
import os
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import rounding

from . import cells as cells_lib
from . import grid
from . import record as record_lib
from . import tuning as tuning_lib

CELLS, TABLE, MARKDOWN = 'cells.csv', 'table.csv', 'table.md'
ERROR = '_stderr'  # After the name of a measure: the standard error of its mean.
_MOST_PAIRS = 5  # That are named of lines which cannot be ranked.
_OF_NOISE = ('delta', 'noise_multiplier', 'rmse')  # The same for all seeds.
TUNED = 'tuned_'  # Before the name of a flag that was chosen.
Row = dict[str, Any]


def mean_and_error(values: Sequence[float]) -> tuple[Optional[float], Optional[float]]:
  """The mean, and its standard error by the sample's variance (n - 1)."""
  if not values:
    return None, None
  mean = float(np.mean(values))
  if len(values) < 2:
    return mean, None
  return mean, float(np.std(values, ddof=1) / math.sqrt(len(values)))


def rows(
  record: record_lib.Record,
  results: Sequence[cells_lib.Result],
  selections: Mapping[grid.Point, tuning_lib.Selected],
) -> list[Row]:
  measures = _measures(results)
  found = []
  for point in record.points:
    of_point = [each for each in results if each.cell.point == point]
    finished = [each for each in of_point if each.is_finished]
    row: Row = {name: point.values.get(name, '') for name in columns_varied(record)}
    selected = selections.get(point)
    chosen = dict(selected.settings) if selected else {}
    row |= {f'{TUNED}{name}': chosen.get(name, '') for name in record.tuned}
    for name in measures:
      values = [each.measures[name] for each in finished if name in each.measures]
      row[name], row[f'{name}{ERROR}'] = mean_and_error(values)
    # All seeds have the same, but that drop-outs, say, may make of it.
    row['epsilon'] = max((each.epsilon for each in finished), default=None)
    if record.tuned:
      row['epsilon_with_tuning'] = None if selected is None else selected.epsilon
    for name in _OF_NOISE:
      known = (getattr(each, name) for each in finished)
      row[name] = next((each for each in known if each is not None), None)
    row['seeds'] = len(finished)
    row['seeds_missing'] = record.seeds - len(finished)
    seconds, _ = mean_and_error([each.seconds for each in finished])
    row['seconds'] = None if seconds is None else round(seconds, 3)
    found.append(row)
  return found


def columns_varied(record: record_lib.Record) -> list[str]:
  """The flags in which points differ, also those that values bring along."""
  along = [flag for point in record.points for flag in point.values]
  return list(dict.fromkeys([*record.varied, *along]))


def _measures(results: Sequence[cells_lib.Result]) -> list[str]:
  names = [f'test_{each.cell.settings.model.metric.name}' for each in results]
  others = sorted({name for each in results for name in each.measures})
  return list(dict.fromkeys([*names, *others]))


def write(
  output: str,
  record: record_lib.Record,
  results: Sequence[cells_lib.Result],
  selections: Mapping[grid.Point, tuning_lib.Selected],
  notes: Sequence[str],
) -> list[Row]:
  made = rows(record, results, selections)
  contents = {
    CELLS: to_csv(_cell_rows(output, record, results)),
    TABLE: to_csv(made),
    MARKDOWN: to_markdown(record, made, notes),
  }
  for name, content in contents.items():
    new_files.replace(os.path.join(output, name), content)
  return made


def _cell_rows(
  output: str, record: record_lib.Record, results: Sequence[cells_lib.Result]
) -> list[Row]:
  measures = _measures(results)
  found = []
  for each in results:
    values = {**each.cell.point.values, **dict(each.cell.tuned)}
    row: Row = {name: values.get(name, '') for name in columns_varied(record)}
    row |= {f'{TUNED}{name}': values.get(name, '') for name in record.tuned}
    row |= {'seed': each.cell.seed, 'status': each.status, 'rounds': each.rounds}
    row |= {name: each.measures.get(name) for name in measures}
    row |= {name: getattr(each, name) for name in ('epsilon', *_OF_NOISE)}
    row |= {
      'seconds': round(each.seconds, 3),
      'directory': os.path.relpath(each.cell.directory, output),
      'error': each.error,
    }
    found.append(row)
  return found


def to_csv(rows: Sequence[Row]) -> str:
  """Rows of the same columns as CSV; `None` is empty, and numbers are exact."""
  text = io.StringIO()
  if rows:  # Else nothing is tuned yet.
    writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
  return text.getvalue()


def read(output: str) -> list[dict[str, str]]:
  path = os.path.join(output, TABLE)
  try:
    with open(path, newline='', encoding='utf-8') as file:
      return list(csv.DictReader(file))
  except OSError as e:
    raise ValueError(
      f'{path} cannot be read: {e.strerror}. The command of the comparison writes it.'
    ) from e


def to_markdown(
  record: record_lib.Record, rows: Sequence[Row], notes: Sequence[str]
) -> str:
  shown = [name for name in rows[0] if _is_shown(name, rows)]
  flags = columns_varied(record)
  lines = [
    f'| {" | ".join(_heading(name) for name in shown)} |',
    f'|{"|".join("---" if name in flags else "--:" for name in shown)}|',
    *(f'| {" | ".join(_cell(row, name) for name in shown)} |' for row in rows),
  ]
  given = ' '.join(shlex.join(each) for each in record.given.values())
  about = (
    'Mean and standard error of the mean over '
    f'{seeds_in_words(row["seeds"] for row in rows)}, after the last round.'
  )
  settings = f'Flags of all runs: `{given}`.' if given else ''
  parts = ['# Comparison', ' '.join(filter(None, (about, settings))), '\n'.join(lines)]
  notes = [*filter(None, [ranking(record, rows)]), *notes]
  parts += ['\n'.join(f'- {note}' for note in notes)] if notes else []
  return '\n\n'.join(parts) + '\n'


def ranking(record: record_lib.Record, rows: Sequence[Row]) -> str:
  """Which lines their seeds are too few to rank, in a sentence; '' if none.

  Two means are told apart if they differ by more than the Student's t quantile of 97.5%
  times both standard errors combined, with as many degrees of freedom as there are
  seeds less one for each line.
  """
  from scipy import stats

  measure = next((name for name in rows[0] if f'{name}{ERROR}' in rows[0]), '')
  told = [row for row in rows if measure and row[measure] is not None]
  if len(told) < 2:
    return ''
  if any(row[f'{measure}{ERROR}'] is None for row in told):
    return (
      'One seed does not rank lines: how much a result changes from seed to seed is '
      'not known. Give more --seeds.'
    )

  def named(row: Row) -> str:
    values = (row[name] for name in columns_varied(record))
    return ', '.join(str(value) for value in values if value != '') or 'all'

  near = []
  for one, other in itertools.combinations(told, 2):
    quantile = float(stats.t.ppf(0.975, one['seeds'] + other['seeds'] - 2))
    error = math.hypot(one[f'{measure}{ERROR}'], other[f'{measure}{ERROR}'])
    if abs(one[measure] - other[measure]) <= quantile * error:
      near.append(f'{named(one)} and {named(other)}')
  if not near:
    return ''
  more = f'; and {len(near) - _MOST_PAIRS} more' if len(near) > _MOST_PAIRS else ''
  return (
    f'Seeds are too few to rank these by {_heading(measure)}, whose difference is '
    f'within its error (95%): {"; ".join(near[:_MOST_PAIRS])}{more}.'
  )


def to_text(record: record_lib.Record, rows: Sequence[Row]) -> str:
  """What tells the points apart, their metric and epsilon: fits into a terminal."""
  measures = [name for name in rows[0] if f'{name}{ERROR}' in rows[0]]
  told = {*columns_varied(record), *measures[:1]}
  if any(row['seeds_missing'] for row in rows):
    told.add('seeds')
  shown = [
    name
    for name in rows[0]
    if _is_shown(name, rows) and (name in told or name.startswith((TUNED, 'epsilon')))
  ]
  table = [[_heading(name) for name in shown]]
  table += [[_cell(row, name) for name in shown] for row in rows]
  widths = [max(map(len, column)) for column in zip(*table)]
  lines = [
    '  '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
    for line in table
  ]
  seeds = seeds_in_words(row['seeds'] for row in rows)
  about = f'After the last round, mean of {seeds}'
  if record.seeds > 1:
    about += ' ± its standard error'
  said = textwrap.wrap(ranking(record, rows), 88)
  return '\n'.join(['', f'{about}:', '', *lines, *([''] if said else []), *said, ''])


def seeds_in_words(numbers: Iterable[int]) -> str:
  """Over how many seeds lines are: of a part-done comparison, from fewest to most.

  Example:
    >>> seeds_in_words([5, 5]), seeds_in_words([2, 0, 5])
    ('5 seeds', '0 to 5 seeds')
  """
  all_numbers = [*numbers]
  fewest, most = min(all_numbers), max(all_numbers)
  many = f'{most} seed{"" if most == 1 else "s"}'
  return many if fewest == most else f'{fewest} to {many}'


def _is_shown(name: str, rows: Sequence[Row]) -> bool:
  if name.endswith(ERROR) or name == 'seeds_missing':  # Beside mean, and number.
    return False
  return any(row[name] not in (None, '') for row in rows)


def _heading(name: str) -> str:
  return {'seconds': 'seconds a run'}.get(name, name.replace('_', ' '))


def _cell(row: Row, name: str) -> str:
  value = row[name]
  if name == 'seeds':
    missing = row['seeds_missing']
    return f'{value} ({missing} missing)' if missing else str(value)
  if value is None or value == '':
    return ''
  if f'{name}{ERROR}' in row:
    error = row[f'{name}{ERROR}']
    return f'{value:.4f}' + ('' if error is None else f' ± {error:.4f}')
  if name.startswith('epsilon'):
    return rounding.up(value)
  if isinstance(value, float):
    return format(value, {'seconds': '.1f', 'noise_multiplier': '.4f'}.get(name, 'g'))
  return str(value).replace('|', '\\|')
