"""Says it while a run runs, if clients' updates or its losses are not finite.

An update with a NaN or an infinity counts as zero, and its round like any other:
without a word, a run in which nothing is learned would end as if all were well.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import numpy as np

from tff_dp_aggregators.learning.runs import metrics_file

_COUNT = f'{metrics_file.NOT_PRIVATE}nonfinite_count'
_TRAIN = f'{metrics_file.NOT_PRIVATE}train_'
_REMEDY = (
  'Take a smaller learning rate of the clients, or look for extreme numbers in their '
  'data.'
)


class NotFinite:
  """Counts, and says what it finds for the first time."""

  def __init__(self, num_rounds: int, say: Callable[[str], None]):
    """Initializes it, before any round."""
    self._num_rounds, self._say = num_rounds, say
    self._updates = self._lost = self._rounds = 0
    self._losses: dict[str, int] = {}
    self._said: set[str] = set()

  def take_up(self, rows: Sequence[Mapping[str, str]]) -> None:
    """Counts the rounds of a run that goes on."""
    for row in rows:
      self._add(row)

  def after(self, row: Mapping[str, Any]) -> None:
    """Counts a round, and says so if it is the first of its kind."""
    lost, losses = self._add(row)
    begin = f'round {int(row["round"]) + 1} of {self._num_rounds}: '
    if lost and _COUNT not in self._said:
      self._said.add(_COUNT)
      self._say(
        f'{begin}the updates of {lost} of {row[metrics_file.CLIENTS]} clients are not '
        'finite (NaN or infinite) and count as zero, while the round costs what any '
        f'other does. {_REMEDY}'
      )
    for name in losses:
      if name not in self._said:
        self._said.add(name)
        self._say(f'{begin}{name} is {row[name]}: the training diverged. {_REMEDY}')

  def _add(self, row: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Lost updates of a round, and which of its losses are not finite."""
    clients, lost = int(row[metrics_file.CLIENTS] or 0), int(row.get(_COUNT) or 0)
    self._updates += clients
    self._lost += lost
    self._rounds += bool(lost)
    losses = [
      name
      for name, value in row.items()
      if (name == 'test_loss' or (name.startswith(_TRAIN) and clients > lost))
      and not _is_finite(value)
    ]
    for name in losses:
      self._losses[name] = self._losses.get(name, 0) + 1
    return lost, losses

  def sum_up(self) -> None:
    """Says how much there was of it, if there was any."""
    if self._lost:
      self._say(
        f'{self._lost} of {self._updates} updates of clients were not finite, in '
        f'{self._rounds} of the rounds, and counted as zero.'
      )
    for name, rounds in self._losses.items():
      self._say(f'{name} was not finite in {rounds} of the rounds.')


def _is_finite(value: Any) -> bool:
  """Whether a metric is, or what a file has of it; what is empty was not measured."""
  if value is None or value == '':
    return True
  if isinstance(value, str):
    try:
      return math.isfinite(float(value))
    except ValueError:
      return 'nan' not in value and 'inf' not in value  # Of a list.
  return bool(np.isfinite(np.asarray(value, np.float64)).all())
