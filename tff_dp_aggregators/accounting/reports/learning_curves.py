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
  points_by_name: dict[str, list[tuple[int, float]]] = {
    name: []
    for name in names
    if name in (_EPSILON, _SIMULATED) or name.startswith(_TEST)
  }
  rounds = 0
  for row in reader:
    if row[_ROUND] != str(rounds):
      raise ValueError(
        f'line {reader.line_num} must be of round {rounds}, got {row[_ROUND]!r}.'
      )
    rounds += 1
    for name, points in points_by_name.items():
      if row[name] != '':
        points.append((rounds, float(row[name])))
  curves = {}
  for name, points in points_by_name.items():
    finite = tuple(point for point in points if math.isfinite(point[1]))
    curves[name] = Curve(finite, len(points) - len(finite))
  epsilon, simulated = (curves.pop(each, Curve()) for each in (_EPSILON, _SIMULATED))
  test = {name[len(_TEST) :]: curve for name, curve in curves.items()}
  return Curves(rounds, test, epsilon, simulated)
