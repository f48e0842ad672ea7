"""Reads the learning curves of a run from `metrics.csv`, for its HTML page alone.

Test data may be that of clients, so the page that is shared has no such curves. They
are not a part of the statement and are not verified.
"""

import csv
import math
import os
from typing import NamedTuple, Optional

FILE = 'metrics.csv'
_ROUND, _EPSILON, _SIMULATED = 'round', 'epsilon', 'simulated_epsilon'
_TEST = 'test_'


class Curve(NamedTuple):
  """A measure over rounds."""

  points: tuple[tuple[int, float], ...] = ()  # Rounds completed, value.
  left_out: int = 0  # Number of values that are infinite or NaN.


class Curves(NamedTuple):
  """The curves of `metrics.csv`."""

  rounds: int
  test: dict[str, Curve]  # Measures on test data, in the order of the file.
  epsilon: Curve = Curve()  # Epsilon spent so far; no points without privacy.
  simulated_epsilon: Curve = Curve()  # That of a simulated larger cohort.


def of_run(run_dir: str) -> Optional[Curves]:
  """Returns the curves of a run; `None` if it has no metrics."""
  path = os.path.join(run_dir, FILE)
  if not os.path.exists(path):
    return None
  with open(path, newline='', encoding='utf-8') as file:
    text = file.read()
  # A run that was killed may have left an incomplete last line.
  lines = text[: text.rfind('\n') + 1].splitlines()
  try:
    return _parse_rows(csv.DictReader(lines, strict=True))
  except (TypeError, ValueError, csv.Error) as e:
    raise ValueError(f'{path} is no file of metrics: {e}') from e


def _parse_rows(reader: 'csv.DictReader[str]') -> Curves:
  names = list(reader.fieldnames or ())
  if names[:1] != [_ROUND]:
    raise ValueError(f'its first column must be {_ROUND}, got {names[:1]}.')
  rows: list[dict[str, str]] = []
  for row in reader:
    if row[_ROUND] != str(len(rows)):
      raise ValueError(
        f'line {reader.line_num} must be of round {len(rows)}, got {row[_ROUND]!r}.'
      )
    rows.append(row)

  def curve(name: str) -> Curve:
    values = [(i, float(row[name])) for i, row in enumerate(rows, 1) if row[name] != '']
    finite = tuple(point for point in values if math.isfinite(point[1]))
    return Curve(finite, len(values) - len(finite))

  test = {name[len(_TEST) :]: curve(name) for name in names if name.startswith(_TEST)}
  spent = (curve(name) if name in names else Curve() for name in (_EPSILON, _SIMULATED))
  return Curves(len(rows), test, *spent)
