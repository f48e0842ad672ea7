"""The results of a comparison: its table, and the picture of that.

The table has a row for each point of the grid, the mean over its seeds. The picture
shows the metric against epsilon, with a line for each combination of the other varied
flags; runs without privacy are horizontal lines. If epsilon is not varied, the metric
is shown against a number that is, or as a dot for each row of the table.
"""

import csv
import io
import itertools
import math
import os
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import rounding

from .. import plotting
from . import cells as cells_lib
from . import grid

CELLS, TABLE, MARKDOWN = 'cells.csv', 'table.csv', 'table.md'
PICTURES = tuple(f'comparison.{each}' for each in plotting.FORMATS)
ERROR = '_stderr'  # Suffix of columns: the standard error of a mean.
_MAX_PAIRS = 5  # Pairs of rows that a note on the ranking names.
_NOISE_COLUMNS = ('delta', 'noise_multiplier', 'rmse')  # The same for all seeds.
TUNED = 'tuned_'  # Prefix of columns: the value that tuning chose for a flag.
_NOISE = ('target_epsilon', 'target_rho', 'noise_multiplier')
_MIN_AXIS_VALUES = 3  # Different numbers for which a flag becomes an axis.
_LOG_RATIO = 8.0  # Largest by smallest value from which on an axis is logarithmic.
_TOLERANCE = 1e-3  # Relative difference of epsilons that are drawn as equal.
_SIMULATED = 'simulated_epsilon'  # Column of runs with the noise of a larger cohort.
Row = dict[str, Any]  # A row of the table, with numbers.
_Row = Mapping[str, str]  # The same when it is read, with texts.


def mean_and_error(values: Sequence[float]) -> tuple[Optional[float], Optional[float]]:
  """The mean, and its standard error by the sample variance (n - 1)."""
  if not values:
    return None, None
  mean = float(np.mean(values))
  if len(values) < 2:
    return mean, None
  return mean, float(np.std(values, ddof=1) / math.sqrt(len(values)))


def rows(
  record: grid.Record,
  results: Sequence[cells_lib.Result],
  selections: Mapping[grid.Point, cells_lib.Selected],
) -> list[Row]:
  table, measures = [], _measures(results)
  for point in record.points:
    of_point = (each for each in results if each.cell.point == point)
    finished = [each for each in of_point if each.is_finished]
    selected = selections.get(point)
    row = _settings_of(record, point, selected.settings if selected else ())
    for name in measures:
      values = [each.measures[name] for each in finished if name in each.measures]
      row[name], row[f'{name}{ERROR}'] = mean_and_error(values)
    # All seeds have the same epsilon unless, for example, clients drop out.
    row['epsilon'] = max((each.epsilon for each in finished), default=None)
    if record.tuned:
      row['epsilon_with_tuning'] = None if selected is None else selected.epsilon
    for name in _NOISE_COLUMNS:
      known = (getattr(each, name) for each in finished)
      row[name] = next((each for each in known if each is not None), None)
    row['seeds'] = len(finished)
    row['seeds_missing'] = record.seeds - len(finished)
    seconds, _ = mean_and_error([each.seconds for each in finished])
    row['seconds'] = None if seconds is None else round(seconds, 3)
    table.append(row)
  return table


def _settings_of(
  record: grid.Record, point: grid.Point, tuned: Iterable[grid.Setting]
) -> Row:
  chosen = dict(tuned)
  row = {name: point.settings.get(name, '') for name in columns_varied(record)}
  return row | {f'{TUNED}{name}': chosen.get(name, '') for name in record.tuned}


def columns_varied(record: grid.Record) -> list[str]:
  """Returns the flags in which points differ, also those that values bring along."""
  extra = [flag for point in record.points for flag in point.settings]
  return list(dict.fromkeys([*record.varied, *extra]))


def _measures(results: Sequence[cells_lib.Result]) -> list[str]:
  names = [f'test_{each.cell.settings.model.metric.name}' for each in results]
  others = sorted({name for each in results for name in each.measures})
  return list(dict.fromkeys([*names, *others]))


def write(
  output: str,
  record: grid.Record,
  results: Sequence[cells_lib.Result],
  selections: Mapping[grid.Point, cells_lib.Selected],
  notes: Sequence[str],
) -> list[Row]:
  table = rows(record, results, selections)
  contents = {
    CELLS: to_csv(_cell_rows(output, record, results)),
    TABLE: to_csv(table),
    MARKDOWN: to_markdown(record, table, notes),
  }
  for name, content in contents.items():
    new_files.replace(os.path.join(output, name), content)
  return table


def _cell_rows(
  output: str, record: grid.Record, results: Sequence[cells_lib.Result]
) -> list[Row]:
  measures = _measures(results)
  return [
    {
      **_settings_of(record, each.cell.point, each.cell.tuned),
      **{'seed': each.cell.seed, 'status': each.status, 'rounds': each.rounds},
      **{name: each.measures.get(name) for name in measures},
      **{name: getattr(each, name) for name in ('epsilon', *_NOISE_COLUMNS)},
      'seconds': round(each.seconds, 3),
      'directory': os.path.relpath(each.cell.directory, output),
      'error': each.error,
    }
    for each in results
  ]


def to_csv(rows: Sequence[Row]) -> str:
  """Writes rows with equal columns as CSV; `None` is empty, and numbers are exact."""
  text = io.StringIO()
  if rows:  # There are none before anything is tuned.
    writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
  return text.getvalue()


def read(output: str) -> list[dict[str, str]]:
  path = os.path.join(output, TABLE)
  with open(path, newline='', encoding='utf-8') as file:
    return list(csv.DictReader(file))


def to_markdown(record: grid.Record, rows: Sequence[Row], notes: Sequence[str]) -> str:
  shown = [name for name in rows[0] if _is_shown(name, rows)]
  flags = columns_varied(record)
  lines = [
    f'| {" | ".join(_heading(name) for name in shown)} |',
    f'|{"|".join("---" if name in flags else "--:" for name in shown)}|',
    *(f'| {" | ".join(_cell(row, name) for name in shown)} |' for row in rows),
  ]
  given = ' '.join(shlex.join(each) for each in record.given.values())
  caption = (
    'Mean and standard error of the mean over '
    f'{seeds_in_words(row["seeds"] for row in rows)}, after the last round.'
  )
  if given:
    caption += f' Flags of all runs: `{given}`.'
  notes = (ranking(record, rows), *notes)
  listed = '\n'.join(f'- {note}' for note in notes if note)
  return '\n\n'.join(['# Comparison', caption, '\n'.join(lines), listed]) + '\n'


def ranking(record: grid.Record, rows: Sequence[Row]) -> str:
  """Says which rows have too few seeds to be ranked by Student's t test; '' if none."""
  from scipy import stats

  measure = next((name for name in rows[0] if f'{name}{ERROR}' in rows[0]), '')
  measured = [row for row in rows if measure and row[measure] is not None]
  if len(measured) < 2:
    return ''
  if any(row[f'{measure}{ERROR}'] is None for row in measured):
    return (
      'One seed does not rank lines: how much a result changes from seed to seed is '
      'not known. Give more --seeds.'
    )

  def name_of_row(row: Row) -> str:
    values = (row[name] for name in columns_varied(record))
    return ', '.join(str(value) for value in values if value != '') or 'all'

  too_close = []
  for one, other in itertools.combinations(measured, 2):
    quantile = float(stats.t.ppf(0.975, one['seeds'] + other['seeds'] - 2))
    error = math.hypot(one[f'{measure}{ERROR}'], other[f'{measure}{ERROR}'])
    if abs(one[measure] - other[measure]) <= quantile * error:
      too_close.append(f'{name_of_row(one)} and {name_of_row(other)}')
  if not too_close:
    return ''
  more = (
    f'; and {len(too_close) - _MAX_PAIRS} more' if len(too_close) > _MAX_PAIRS else ''
  )
  return (
    f'Seeds are too few to rank these by {_heading(measure)}, whose difference is '
    f'within its error (95%): {"; ".join(too_close[:_MAX_PAIRS])}{more}.'
  )


def to_text(record: grid.Record, rows: Sequence[Row]) -> str:
  """A table for terminals: how points differ, and their metric and epsilon."""
  measures = [name for name in rows[0] if f'{name}{ERROR}' in rows[0]]
  wanted = {*columns_varied(record), *measures[:1]}
  if any(row['seeds_missing'] for row in rows):
    wanted.add('seeds')
  shown = [
    name
    for name in rows[0]
    if _is_shown(name, rows) and (name in wanted or name.startswith((TUNED, 'epsilon')))
  ]
  table = [[_heading(name) for name in shown]]
  table += [[_cell(row, name) for name in shown] for row in rows]
  widths = [max(map(len, column)) for column in zip(*table)]
  lines = [
    '  '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
    for line in table
  ]
  error = ' ± its standard error' if record.seeds > 1 else ''
  seeds = seeds_in_words(row['seeds'] for row in rows)
  caption = f'After the last round, mean of {seeds}{error}:'
  note = textwrap.wrap(ranking(record, rows), 88)
  return '\n'.join(['', caption, '', *lines, '', *note, *([''] if note else [])])


def seeds_in_words(numbers: Iterable[int]) -> str:
  """Returns the number of seeds of rows; in an unfinished comparison, the range.

  Example:
    >>> seeds_in_words([5, 5]), seeds_in_words([2, 0, 5])
    ('5 seeds', '0 to 5 seeds')
  """
  all_numbers = [*numbers]
  lower, upper = min(all_numbers), max(all_numbers)
  many = f'{upper} seed{"" if upper == 1 else "s"}'
  return many if lower == upper else f'{lower} to {many}'


def _is_shown(name: str, rows: Sequence[Row]) -> bool:
  if name.endswith(ERROR) or name == 'seeds_missing':  # In cells of other columns.
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


def draw(output: str, path: Optional[str] = None) -> list[str]:
  """Draws the comparison in a folder, to that or to `path`; returns the paths."""
  record = grid.saved_record(output)
  drawing = None if record is None else picture(record, read(output))
  if drawing is None:
    return []
  paths = [path] if path else [os.path.join(output, name) for name in PICTURES]
  for each in paths:
    plotting.save(drawing, each)
  return paths


def picture(record: grid.Record, rows: Sequence[_Row]) -> Optional[plotting.Chart]:
  """Returns the picture of a table; `None` if no run is finished yet."""
  names = [name for row in rows for name in row if f'{name}{ERROR}' in row]
  # The metric is the table's first measure that has values.
  measure = next((name for name in names if any(row[name] for row in rows)), '')
  drawn = [row for row in rows if math.isfinite(_number(row.get(measure, '')))]
  if not drawn:
    return None
  varied = columns_varied(record)
  x, metric_name = _axis(record, varied, drawn), _heading(measure)
  seeds = seeds_in_words(int(row['seeds']) for row in drawn)
  title = f'{", ".join(record.tasks)}: {metric_name}, {seeds}'
  if record.seeds > 1:
    title += ' (bars: standard error)'
  if x is None:
    names = [_label(row, varied) or 'all' for row in drawn]
    return plotting.Chart(title, metric_name, '', [_line('', names, drawn, measure)])
  finite = [each for each in (_x(row, x) for row in drawn) if each is not None]
  return plotting.Chart(
    title,
    x_label=_x_label(x, drawn),
    y_label=metric_name,
    lines=_lines(drawn, [name for name in varied if name != x], x, measure),
    are_points=True,
    log_x=min(finite) > 0 and max(finite) >= _LOG_RATIO * min(finite),
  )


def _axis(
  record: grid.Record, varied: Sequence[str], rows: Sequence[_Row]
) -> Optional[str]:
  """The flag of the horizontal axis: a varied noise, or else a varied number."""
  for name in _NOISE:
    if name in record.varied and len({row[name] for row in rows} - {''}) > 1:
      return name
  for name in varied:
    values = [row[name] for row in rows if row[name]]
    numbers = {_number(value) for value in values}
    if len(numbers) >= _MIN_AXIS_VALUES and all(map(math.isfinite, numbers)):
      return name
  return None


def _x(row: _Row, axis: str) -> Optional[float]:
  """Position of a row on the axis; `None` for a horizontal line."""
  # With equal noise, mechanisms spend different epsilons; and with a target, runs may
  # spend less, if the accountant is not the tightest one.
  own = row.get(_SIMULATED) or row['epsilon']
  value = _number(own if axis in _NOISE else row[axis])
  if axis == 'target_epsilon':
    target = _number(row[axis])
    value = target if math.isclose(value, target, rel_tol=_TOLERANCE) else value
  return value if math.isfinite(value) else None


def _x_label(axis: str, rows: Sequence[_Row]) -> str:
  if axis not in _NOISE:
    return _heading(axis)
  deltas = {row['delta'] for row in rows} - {''}
  at_delta = f' at delta = {float(deltas.pop()):g}' if len(deltas) == 1 else ''
  if any(row.get(_SIMULATED) for row in rows):
    return f'epsilon{at_delta} of a simulated, larger cohort: no guarantee'
  return f'epsilon{at_delta}'


def _lines(
  rows: Sequence[_Row], others: Sequence[str], axis: str, measure: str
) -> list[plotting.Line]:
  groups: dict[Any, list[tuple[Optional[float], _Row]]] = {}
  for number, row in enumerate(rows):
    x, label = _x(row, axis), _label(row, others)
    # A row without a position is a horizontal line of its own.
    groups.setdefault(number if x is None else label, []).append((x, row))
  lines = []
  for points in groups.values():
    ordered = sorted(points, key=lambda each: each[0] or 0.0)
    label = _label(ordered[0][1], others)
    is_level = ordered[0][0] is None
    if is_level and math.isinf(_number(ordered[0][1]['epsilon'])):
      parts = [part for part in label.split(', ') if part not in ('none', '')]
      label = ', '.join(['no privacy', *parts])
    x_values = [x for x, _ in ordered if x is not None]
    lines.append(_line(label, x_values, [row for _, row in ordered], measure))
  return lines


def _line(
  label: str, x: Sequence[Union[float, str]], rows: Sequence[_Row], measure: str
) -> plotting.Line:
  values = [_number(row[measure]) for row in rows]
  return plotting.Line(
    label, x, values, [_number(row[f'{measure}{ERROR}']) for row in rows]
  )


def _label(row: _Row, names: Sequence[str]) -> str:
  """Label of a row by its flags; a mechanism is named without its flag."""
  return ', '.join(
    row[name] if name == 'mechanism' else f'{name}={row[name]}'
    for name in names
    if row[name]
  )


def _number(text: str) -> float:
  try:
    return float(text) if text else math.nan
  except ValueError:
    return math.nan
