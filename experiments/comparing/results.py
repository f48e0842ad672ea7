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
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import rounding

from .. import plot
from . import cells as cells_lib
from . import grid

CELLS, TABLE, MARKDOWN = 'cells.csv', 'table.csv', 'table.md'
PICTURES = tuple(f'comparison.{each}' for each in plot.FORMATS)
ERROR = '_stderr'  # Suffix of columns: the standard error of a mean.
TUNED = 'tuned_'  # Prefix of columns: the value that tuning chose for a flag.
_MAX_PAIRS = 5  # Pairs of rows that a note on the ranking names.
_NOISE_COLUMNS = ('delta', 'noise_multiplier', 'rmse')  # The same for all seeds.
_NOISE = ('target_epsilon', 'target_rho', 'noise_multiplier')
_MIN_AXIS_VALUES = 3  # Different numbers for which a flag becomes an axis.
_LOG_RATIO = 7.0  # Largest by smallest value from which on an axis is logarithmic.
_SIMULATED = 'simulated_epsilon'  # Column of runs with the noise of a larger cohort.
Row = dict[str, Any]  # A row of the table, with numbers.


def rows(
  record: grid.Record,
  results: Sequence[cells_lib.Result],
  selections: Mapping[grid.Point, cells_lib.Selected],
) -> list[Row]:
  table, measures = [], _measures(results)
  for point in record.points:
    of_point = [each for each in results if each.cell.point == point]
    finished = [each for each in of_point if each.is_finished]
    selected = selections.get(point)
    row = _settings_of(record, point, selected.settings if selected else ())
    for name in measures:
      values = [each.measures[name] for each in finished if name in each.measures]
      error = np.std(values, ddof=1) / math.sqrt(len(values)) if values[1:] else None
      row[name] = float(np.mean(values)) if values else None
      row[f'{name}{ERROR}'] = None if error is None else float(error)
    # All seeds have the same epsilon unless, for example, clients drop out.
    row['epsilon'] = max((each.epsilon for each in finished), default=None)
    if record.tuned:
      row['epsilon_with_tuning'] = None if selected is None else selected.epsilon
    row |= dict.fromkeys(_NOISE_COLUMNS)
    for each in finished[:1]:
      row |= {name: getattr(each, name) for name in _NOISE_COLUMNS}
    row['seeds'], row['seeds_missing'] = len(finished), record.seeds - len(finished)
    seconds = [each.seconds for each in finished]
    row['seconds'] = round(float(np.mean(seconds)), 3) if seconds else None
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
  table, measures = rows(record, results, selections), _measures(results)
  of_cells = [
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
  for name, content in (
    (CELLS, to_csv(of_cells)),
    (TABLE, to_csv(table)),
    (MARKDOWN, to_markdown(record, table, notes)),
  ):
    new_files.replace(os.path.join(output, name), content)
  return table


def to_csv(rows: Sequence[Row]) -> str:
  """Writes rows with equal columns as CSV; `None` is empty, and numbers are exact."""
  text = io.StringIO()
  if rows:  # There are none before anything is tuned.
    writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
  return text.getvalue()


def to_markdown(record: grid.Record, rows: Sequence[Row], notes: Sequence[str]) -> str:
  shown, flags = _shown(rows), columns_varied(record)
  heading, *lines = (f'| {" | ".join(each)} |' for each in _texts(rows, shown))
  rule = f'|{"|".join("---" if name in flags else "--:" for name in shown)}|'
  given = ' '.join(shlex.join(each) for each in record.given.values())
  caption = f'Mean and standard error of the mean over {seeds_in_words(rows)}, '
  caption += 'after the last round.'
  if given:
    caption += f' Flags of all runs: `{given}`.'
  table = '\n'.join([heading, rule, *lines])
  listed = '\n'.join(f'- {each}' for each in (ranking(record, rows), *notes) if each)
  return '\n\n'.join(['# Comparison', caption, table, listed]) + '\n'


def to_text(record: grid.Record, rows: Sequence[Row]) -> str:
  """A table for terminals: how points differ, and their metric and epsilon."""
  wanted = {*columns_varied(record), *_measured(rows)[:1]}
  if any(row['seeds_missing'] for row in rows):
    wanted.add('seeds')
  shown = [
    name
    for name in _shown(rows)
    if name in wanted or name.startswith((TUNED, 'epsilon'))
  ]
  table = _texts(rows, shown)
  widths = [max(map(len, column)) for column in zip(*table)]
  lines = ['  '.join(map(str.ljust, line, widths)).rstrip() for line in table]
  error = ' ± its standard error' if record.seeds > 1 else ''
  caption = f'After the last round, mean of {seeds_in_words(rows)}{error}:'
  note = textwrap.wrap(ranking(record, rows), 88)
  return '\n'.join(['', caption, '', *lines, '', *note])


def seeds_in_words(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns the number of seeds of rows; in an unfinished comparison, the range.

  Example:
    >>> seeds_in_words([{'seeds': 5}]), seeds_in_words([{'seeds': '2'}, {'seeds': '0'}])
    ('5 seeds', '0 to 2 seeds')
  """
  numbers = [int(row['seeds']) for row in rows]
  lower, upper = min(numbers), max(numbers)
  many = f'{upper} seed{"" if upper == 1 else "s"}'
  return many if lower == upper else f'{lower} to {many}'


def ranking(record: grid.Record, rows: Sequence[Row]) -> str:
  """Says which rows have too few seeds to be ranked by Student's t test; '' if none."""
  from scipy import stats

  (measure, *_), too_close = (*_measured(rows), ''), []
  measured = [row for row in rows if measure and row[measure] is not None]
  if len(measured) < 2:
    return ''
  if any(row[f'{measure}{ERROR}'] is None for row in measured):
    return (
      'One seed does not rank lines: how much a result changes from seed to seed is '
      'not known. Give more --seeds.'
    )
  for pair in itertools.combinations(measured, 2):
    quantile = stats.t.ppf(0.975, sum(row['seeds'] for row in pair) - 2)
    error = math.hypot(*(row[f'{measure}{ERROR}'] for row in pair))
    if abs(pair[0][measure] - pair[1][measure]) <= quantile * error:
      settings = ([row[each] for each in columns_varied(record)] for row in pair)
      names = (', '.join(str(v) for v in values if v != '') for values in settings)
      too_close.append(' and '.join(names))
  if not too_close:
    return ''
  more = f'; and {len(too_close) - _MAX_PAIRS} more' if too_close[_MAX_PAIRS:] else ''
  return (
    f'Seeds are too few to rank these by {_heading(measure)}, whose difference is '
    f'within its error (95%): {"; ".join(too_close[:_MAX_PAIRS])}{more}.'
  )


def _measured(rows: Sequence[Mapping[str, Any]]) -> list[str]:
  return [name for name in rows[0] if f'{name}{ERROR}' in rows[0]]


def _shown(rows: Sequence[Row]) -> list[str]:
  """The columns that have values, and are not in cells of other columns."""
  return [
    name
    for name in rows[0]
    if not (name.endswith(ERROR) or name == 'seeds_missing')
    and any(row[name] not in (None, '') for row in rows)
  ]


def _texts(rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
  heading = [_heading(name) for name in names]
  return [heading, *([_cell(row, name) for name in names] for row in rows)]


def _heading(name: str) -> str:
  return {'seconds': 'seconds a run'}.get(name, name.replace('_', ' '))


def _cell(row: Row, name: str) -> str:
  value = row[name]
  if value is None or value == '':
    return ''
  if name == 'seeds' and row['seeds_missing']:
    return f'{value} ({row["seeds_missing"]} missing)'
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
  assert record is not None
  with open(os.path.join(output, TABLE), newline='', encoding='utf-8') as file:
    drawing = picture(record, list(csv.DictReader(file)))
  paths = [path] if path else [os.path.join(output, name) for name in PICTURES]
  for each in paths if drawing else ():
    plot.save(drawing, each)
  return paths if drawing else []


def picture(record: grid.Record, rows: Sequence[Mapping[str, str]]) -> Any:
  """Draws a table as it is read; returns axes, or `None` if no run is finished yet."""
  # The metric is the table's first measure that has values.
  measures = (name for name in _measured(rows) if any(row[name] for row in rows))
  measure = next(measures, '')
  drawn = [row for row in rows if measure and math.isfinite(_number(row[measure]))]
  if not drawn:
    return None
  varied = columns_varied(record)
  x, metric_name = _axis(record, varied, drawn), _heading(measure)
  title = f'{", ".join(record.tasks)}: {metric_name}, {seeds_in_words(drawn)}'
  if record.seeds > 1:
    title += ' (bars: standard error)'
  style: dict[str, Any] = {'marker': 'o', 'markersize': 4.5, 'capsize': 2.5}
  errors = [_number(row[f'{measure}{ERROR}']) for row in drawn]
  values = [float(row[measure]) for row in drawn]
  if x is None:
    names = [_label(row, varied) or 'all' for row in drawn]
    axes = plot.new_axes(title, metric_name, '')
    axes.errorbar(values, names, xerr=errors, linestyle='', **style)
    axes.invert_yaxis()
    return axes
  axes = plot.new_axes(title, _x_label(x, drawn), metric_name)
  lines: dict[str, list[tuple[float, float, float]]] = {}
  places, levels = [_x(row, x) for row in drawn], itertools.cycle(plot.LEVELS)
  for row, place, value, error in zip(drawn, places, values, errors):
    label = _label(row, [name for name in varied if name != x])
    if math.isfinite(place):
      lines.setdefault(label, []).append((place, value, error))
      continue
    is_private = math.isfinite(_number(row['epsilon']))
    label = label if is_private else f'{label} (no privacy)'.lstrip()
    axes.axhline(value, label=label, **next(levels))
    if math.isfinite(error):
      axes.axhspan(value - error, value + error, color=plot.GREY, alpha=0.12)
  for label, points in lines.items():
    x_values, y_values, y_errors = zip(*sorted(points))
    axes.errorbar(x_values, y_values, yerr=y_errors, label=label, **style)
  finite = [place for place in places if math.isfinite(place)]
  if min(finite) > 0 and max(finite) >= _LOG_RATIO * min(finite):
    axes.set_xscale('log', base=2)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter('{x:.4g}')
  return axes


def _axis(
  record: grid.Record, varied: Sequence[str], rows: Sequence[Mapping[str, str]]
) -> Optional[str]:
  """The flag of the horizontal axis: a varied noise, or else a varied number."""
  usable = [n for n in varied if any(math.isfinite(_x(row, n)) for row in rows)]
  for name in _NOISE:
    is_usable = name in usable and name in record.varied
    if is_usable and len({row[name] for row in rows} - {''}) > 1:
      return name
  for name in usable:
    numbers = {_number(row[name]) for row in rows if row[name]}
    if len(numbers) >= _MIN_AXIS_VALUES and all(map(math.isfinite, numbers)):
      return name
  return None


def _x(row: Mapping[str, str], axis: str) -> float:
  """Position of a row on the axis; not finite for a horizontal line."""
  # With equal noise, mechanisms spend different epsilons; and with a target, runs may
  # spend less, if the accountant is not the tightest one.
  own = row.get(_SIMULATED) or row['epsilon']
  return _number(own if axis in _NOISE else row[axis])


def _x_label(axis: str, rows: Sequence[Mapping[str, str]]) -> str:
  if axis not in _NOISE:
    return _heading(axis)
  deltas = {row['delta'] for row in rows} - {''}
  at_delta = f' at delta = {float(deltas.pop()):g}' if len(deltas) == 1 else ''
  if any(row.get(_SIMULATED) for row in rows):
    return f'epsilon{at_delta} of a simulated, larger cohort: no guarantee'
  return f'epsilon{at_delta}'


def _label(row: Mapping[str, str], names: Sequence[str]) -> str:
  """Label of a row by its flags; a mechanism is named without its flag."""
  return ', '.join(
    row[name] if name == 'mechanism' else f'{name}={row[name]}'
    for name in names
    if row[name]
  )


def _number(text: str) -> float:
  try:
    return float(text)
  except ValueError:
    return math.nan
