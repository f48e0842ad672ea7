"""A run directory: everything a run leaves, and nothing half written.

| file | content |
|------|---------|
| `config.json` | every setting, and the privacy parameters that follow from them |
| `metrics.csv` | one line per round |
| `ledger.jsonl` | one line per round: what it released and what was spent by then |
| `report.md`, `report.json`, `report.html` | the privacy report |
| `strategy.npz` | the strategy of the noise, if there is any |
| `accuracy.png` | test accuracy, or what else the task measures, and epsilon |
"""

import csv
import json
import os
import time
from typing import Any, Optional

from tff_dp_aggregators.base import new_files


class RunDirectory:
  """A new directory for one run."""

  def __init__(self, path: Optional[str], default_name: str):
    """Creates the directory.

    Args:
      path: Where; must not exist, or be empty. `None` chooses a new name under
        `runs`.
      default_name: What a chosen name begins with.

    Raises:
      FileExistsError: If there is something at `path` already.
    """
    if path is None:
      stamp = time.strftime('%Y%m%d-%H%M%S')
      path = os.path.join('runs', f'{default_name}-{stamp}')
      number = 1
      while os.path.exists(path):
        number += 1
        path = os.path.join('runs', f'{default_name}-{stamp}-{number}')
    check_free(path)
    os.makedirs(path, exist_ok=True)
    self._path = path
    self._metrics: list[str] = []

  @property
  def path(self) -> str:
    """The directory."""
    return self._path

  def file(self, name: str) -> str:
    """Path of a file in the directory."""
    return os.path.join(self._path, name)

  def write_json(self, name: str, data: Any) -> None:
    """Writes a new JSON file, whole or not at all."""
    new_files.write_new(
      self.file(name), json.dumps(data, indent=2, allow_nan=False) + '\n'
    )

  def write_text(self, name: str, text: str) -> None:
    """Writes a new text file, whole or not at all."""
    new_files.write_new(self.file(name), text)

  def append_metrics(self, metrics: dict[str, Any]) -> None:
    """Appends one round's metrics to `metrics.csv`."""
    new = not self._metrics
    self._metrics = self._metrics or list(metrics)
    with open(self.file('metrics.csv'), 'x' if new else 'a', newline='') as file:
      writer = csv.DictWriter(file, self._metrics, lineterminator='\n')
      if new:
        writer.writeheader()
      writer.writerow(metrics)


def check_free(path: str) -> None:
  """Checks that a run may be written to `path`.

  Raises:
    FileExistsError: If `path` is a file or a directory with something in it.
  """
  if os.path.exists(path) and not (os.path.isdir(path) and not os.listdir(path)):
    raise FileExistsError(
      f'{path} exists and is not empty; a run is never overwritten. Give another '
      '--run_dir, or remove it first.'
    )
