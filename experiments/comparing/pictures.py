"""The picture of a comparison, from its table: the metric against epsilon.

A line for each combination of the flags that are varied besides; no privacy is a level.
Where epsilon is not varied, the metric over the number that is, or a dot for each line
of the table.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from .. import metrics as metrics_lib
from ..plotting import charts
from . import record as record_lib
from . import table

NAMES = tuple(f'comparison.{each}' for each in charts.FORMATS)
_NOISE = ('target_epsilon', 'target_rho', 'noise_multiplier')
_LEAST_VALUES = 3  # Of a number, to be an axis.
_LOG_RATIO = 8.0  # Largest value by the smallest from which on steps are ratios.
_SAME = 1e-3  # Relative difference of epsilons that are one in a picture.
_TEST = 'test_'
_SIMULATED = 'simulated_epsilon'  # Of runs with the noise of a larger cohort.
_Row = Mapping[str, str]


def draw(output: str, path: Optional[str] = None) -> list[str]:
  """Draws the picture of the comparison in a folder: there, or to a path."""
  record, rows = record_lib.read(output), table.read(output)
  made = picture(record, rows)
  if made is None:
    return []
  paths = [path] if path else [os.path.join(output, name) for name in NAMES]
  for each in paths:
    charts.save(made, each)
  return paths


def picture(
  record: record_lib.Record, rows: Sequence[_Row]
) -> Optional[charts.Picture]:
  """What the picture shows; `None` if no run is finished yet."""
  names = [name for row in rows for name in row if f'{name}{table.ERROR}' in row]
  # The metric is the first one that the table has.
  measure = next((name for name in names if any(row[name] for row in rows)), '')
  drawn = [row for row in rows if math.isfinite(_number(row.get(measure, '')))]
  if not drawn:
    return None
  varied = table.columns_varied(record)
  x = _axis(record, varied, drawn)
  seeds = table.seeds_in_words(int(row['seeds']) for row in drawn)
  note = 'Bars: standard error of the mean over seeds.' if record.seeds > 1 else ''
  if record.tuned:
    note += f' Tuned for each point: {", ".join(record.tuned)}.'
  common: dict[str, Any] = {
    'title': f'{", ".join(record.tasks)}: {_in_words(measure)}, {seeds}',
    'note': note.strip(),
  }
  if x is None:
    return charts.Dots(
      x_label=_in_words(measure),
      names=[_label(row, varied) or 'all' for row in drawn],
      values=[_number(row[measure]) for row in drawn],
      errors=[_number(row[f'{measure}{table.ERROR}']) for row in drawn],
      **common,
    )
  values = [_x(row, x) for row in drawn]
  finite = [each for each in values if each is not None]
  metric = metrics_lib.METRICS.get(measure.removeprefix(_TEST))
  return charts.Chart(
    x_label=_x_label(x, drawn),
    y_label=_in_words(measure),
    lines=_lines(drawn, [name for name in varied if name != x], x, measure),
    y_limits=metric.limits if metric else (None, None),
    are_points=True,
    log_x=min(finite) > 0 and max(finite) >= _LOG_RATIO * min(finite),
    **common,
  )


def _axis(
  record: record_lib.Record, varied: Sequence[str], rows: Sequence[_Row]
) -> Optional[str]:
  """Which of the flags is the horizontal axis: noise, or else a number."""
  for name in _NOISE:
    if name in record.varied and len({row[name] for row in rows} - {''}) > 1:
      return name
  for name in varied:
    values = [row[name] for row in rows if row[name]]
    numbers = {_number(value) for value in values}
    if len(numbers) >= _LEAST_VALUES and all(map(math.isfinite, numbers)):
      return name
  return None


def _x(row: _Row, axis: str) -> Optional[float]:
  """Where a line of the table is on the axis; `None` if it is a level."""
  # Other mechanisms spend another epsilon with the same noise; and with a target, runs
  # may spend less, where its accountant is not the tightest.
  own = row.get(_SIMULATED) or row['epsilon']
  value = _number(own if axis in _NOISE else row[axis])
  if axis == 'target_epsilon':
    target = _number(row[axis])
    value = target if math.isclose(value, target, rel_tol=_SAME) else value
  return value if math.isfinite(value) else None


def _x_label(axis: str, rows: Sequence[_Row]) -> str:
  if axis not in _NOISE:
    return _in_words(axis)
  deltas = {row['delta'] for row in rows} - {''}
  at_delta = f' at delta = {float(deltas.pop()):g}' if len(deltas) == 1 else ''
  if any(row.get(_SIMULATED) for row in rows):
    return f'epsilon{at_delta} of a simulated, larger cohort: no guarantee'
  return f'epsilon{at_delta}'


def _lines(
  rows: Sequence[_Row], others: Sequence[str], axis: str, measure: str
) -> list[charts.Line]:
  groups: dict[tuple[str, bool], list[tuple[float, _Row]]] = {}
  for row in rows:
    x = _x(row, axis)
    label = _label(row, others)
    groups.setdefault((label, x is None), []).append((x or 0.0, row))
  found = []
  for (label, is_level), points in groups.items():
    ordered = sorted(points, key=lambda each: each[0])
    for part in [[each] for each in ordered] if is_level else [ordered]:
      found.append(
        charts.Line(
          _of_level(label, part[0][1]) if is_level else label,
          () if is_level else [x for x, _ in part],
          [_number(row[measure]) for _, row in part],
          [_number(row[f'{measure}{table.ERROR}']) for _, row in part],
        )
      )
  return found


def _of_level(label: str, row: _Row) -> str:
  """The name of a level: without privacy, or with an epsilon that is not varied."""
  if math.isinf(_number(row['epsilon'])):
    others = [part for part in label.split(', ') if part not in ('none', '')]
    return ', '.join(['no privacy', *others])
  return label


def _label(row: _Row, names: Sequence[str]) -> str:
  """What tells a line from others; mechanisms are known without the flag's name."""
  return ', '.join(
    row[name] if name == 'mechanism' else f'{name}={row[name]}'
    for name in names
    if row[name]
  )


def _in_words(name: str) -> str:
  return name.replace('_', ' ')


def _number(text: str) -> float:
  try:
    return float(text) if text else math.nan
  except ValueError:
    return math.nan
