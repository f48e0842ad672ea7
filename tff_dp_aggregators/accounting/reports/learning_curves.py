"""Reads `metrics.csv` of a run, and its learning curves for its HTML page alone.

Test data may be that of clients, so the page that is shared has no such curves. They
are not a part of the statement and are not verified.
"""

import csv
import math
import os
from typing import NamedTuple, Optional

FILE = 'metrics.csv'
_TEST = 'test_'


class Curve(NamedTuple):
  """A measure over rounds."""

  points: tuple[tuple[int, float], ...] = ()  # Rounds completed, value.
  left_out: int = 0  # Number of values that are infinite or NaN.


class Curves(NamedTuple):
  """The curves of `metrics.csv`."""

  rounds: int
  test: dict[str, Curve]  # Measures on test data, in the order of the file.
  epsilon: Curve  # Epsilon spent so far; no points without privacy.
  simulated_epsilon: Curve  # That of a simulated larger cohort.


def read(path: str) -> list[dict[str, str]]:
  """Returns the rows of a file of metrics, without an incomplete last line.

  A run that was killed may have left one.
  """
  with open(path, newline='', encoding='utf-8') as file:
    return list(csv.DictReader(line for line in file if line.endswith('\n')))


def of_run(run_dir: str) -> Optional[Curves]:
  """Returns the curves of a run; `None` if it has no metrics with values."""
  path = os.path.join(run_dir, FILE)
  if not os.path.exists(path):
    return None
  try:
    rows = read(path)
    tests = [name for name in (rows[0] if rows else ()) if f'{name}'.startswith(_TEST)]
    test = {name[len(_TEST) :]: _curve(rows, name) for name in tests}
    spent = [_curve(rows, name) for name in ('epsilon', 'simulated_epsilon')]
    is_any = any(curve.points for curve in (*test.values(), *spent))
    return Curves(len(rows), test, *spent) if is_any else None
  except (KeyError, TypeError, ValueError, csv.Error) as e:
    raise ValueError(f'{path} is no file of metrics: {type(e).__name__}: {e}') from e


def _curve(rows: list[dict[str, str]], name: str) -> Curve:
  stated = [row for row in rows if row.get(name, '') != '']
  values = [(int(row['round']) + 1, float(row[name])) for row in stated]
  finite = tuple(point for point in values if math.isfinite(point[1]))
  return Curve(finite, len(values) - len(finite))
