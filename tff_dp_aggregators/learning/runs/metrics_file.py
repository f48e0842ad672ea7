"""Files of a run's metrics: a line of CSV and a TensorBoard event for each round."""

import csv
import os
import time
from collections.abc import Collection
from typing import Any

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning.runs import run_directory

# Prefix of exact columns on clients' data: for those who train, not for release.
NOT_PRIVATE = 'not_private_'
# With sampling, the number of clients reveals something of who was drawn.
CLIENTS = f'{NOT_PRIVATE}clients'


class MetricsFile:
  """Appends rows to a CSV file, whose columns are those of the first row."""

  def __init__(self, path: str, rounds: int = 0, measured: Collection[str] = ()):
    """Keeps the first `rounds` rounds of a file with the same columns of test data."""
    self._path, self._columns = path, list[str]()
    self.rows: list[dict[str, str]] = []
    if not rounds:
      if os.path.exists(path):
        os.unlink(path)
      return
    with run_directory.reading(path), open(path, newline='', encoding='utf-8') as file:
      lines = file.readlines()[: 1 + rounds]
    if len(lines) != 1 + rounds or not lines[-1].endswith('\n'):
      raise run_directory.FilesError(
        f'{path} does not have the metrics of rounds 0 to {rounds - 1}: something '
        'changed it. Put it back, or begin another run.'
      )
    new_files.replace(path, ''.join(lines))
    self.rows = list(csv.DictReader(lines))
    self._columns = list(self.rows[0])
    before = [each for each in self._columns if each.startswith('test_')]
    if sorted(before) != sorted(measured):
      raise run_directory.FilesError(
        f'{path} has {before} of test data, and this run measures {sorted(measured)}: '
        'resume it with the same test data and metrics, or begin another run.'
      )

  def append(self, row: dict[str, Any]) -> None:
    """Appends the row of a round; values that are `None` are left empty."""
    with open(self._path, 'a', newline='', encoding='utf-8') as file:
      writer = csv.DictWriter(file, self._columns or list(row), lineterminator='\n')
      if not self._columns:
        self._columns = list(row)
        writer.writeheader()
      writer.writerow(row)


class EventFile:
  """A new file of events for TensorBoard, with one record per round."""

  def __init__(self, directory: str, rounds: int = 0):
    import tensorflow.compat.v1 as tf  # Programs that only read do not load it.

    self._tf = tf
    with tf.Graph().as_default():  # Without a graph, no writer takes whole records.
      suffix = f'.{time.time_ns()}'  # Tells apart files that begin in one second.
      self._writer = tf.summary.FileWriter(directory, filename_suffix=suffix)
    self.flush, self.close = self._writer.flush, self._writer.close
    start = tf.SessionLog(status=tf.SessionLog.START)
    self._writer.add_session_log(start, rounds)

  def append(self, row: dict[str, Any]) -> None:
    """Appends the numeric values of a round."""
    values = [
      self._tf.Summary.Value(tag=name, simple_value=value)
      for name, value in row.items()
      if name != 'round' and isinstance(value, (int, float))
    ]
    self._writer.add_summary(self._tf.Summary(value=values), row['round'])
