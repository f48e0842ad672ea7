"""The metrics of a run: a line of CSV and an event of TensorBoard for each round."""

import csv
import io
import os
import time
from collections.abc import Sequence
from typing import Any

from tff_dp_aggregators.base import new_files

# What is exact and of clients: for whoever runs the training, not to be released.
NOT_PRIVATE = 'not_private_'
# With sampling, their number tells something of who was drawn.
CLIENTS = f'{NOT_PRIVATE}clients'


class MetricsFile:
  """Appends rows to a CSV file that a run which resumes takes up again."""

  def __init__(self, path: str, columns: Sequence[str], rounds: int = 0):
    """Makes the file, or cuts one that is there to its first rounds."""
    self._path, self._columns = path, list(columns)
    header = self._line(dict(zip(columns, columns)))
    if not os.path.exists(path) and not rounds:
      new_files.replace(path, header)
      return
    with open(path, newline='', encoding='utf-8') as file:
      lines = file.readlines()
    kept = lines[: 1 + rounds]
    if not rounds and (not kept or not kept[0].endswith('\n')):
      kept = [header]  # Killed while it was made.
    if kept[0] != header or len(kept) != 1 + rounds or not kept[-1].endswith('\n'):
      raise ValueError(
        f'{path} does not have the metrics of rounds 0 to {rounds - 1} in columns '
        f'{", ".join(columns)}: something changed it. Put it back, or begin another '
        'run.'
      )
    if len(lines) > len(kept) or kept != lines:
      new_files.replace(path, ''.join(kept))

  def append(self, row: dict[str, Any]) -> None:
    """Appends the row of a round; what is `None` or missing is left empty."""
    with open(self._path, 'a', newline='', encoding='utf-8') as file:
      file.write(self._line(row))

  def _line(self, row: dict[str, Any]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, self._columns, lineterminator='\n').writerow(row)
    return text.getvalue()


class EventFile:
  """A new file of events for TensorBoard, in which a round is one record."""

  def __init__(self, directory: str, rounds: int = 0):
    import tensorflow.compat.v1 as tf  # Which programs that only read do not load.

    self._tf = tf
    with tf.Graph().as_default():  # There is none of whole records without a graph.
      suffix = f'.{time.time_ns()}'  # Of those that began in one second.
      self._writer = tf.summary.FileWriter(directory, filename_suffix=suffix)
    self.flush, self.close = self._writer.flush, self._writer.close
    start = tf.SessionLog(status=tf.SessionLog.START)
    self._writer.add_session_log(start, rounds)

  def append(self, row: dict[str, Any]) -> None:
    """Appends the numbers of a round."""
    values = [
      self._tf.Summary.Value(tag=name, simple_value=value)
      for name, value in row.items()
      if name != 'round' and isinstance(value, (int, float))
    ]
    self._writer.add_summary(self._tf.Summary(value=values), row['round'])


def read(path: str) -> list[dict[str, str]]:
  """The rows of a metrics file; what is empty is ''."""
  with open(path, newline='', encoding='utf-8') as file:
    return list(csv.DictReader(file))


def count(path: str) -> int:
  """How many rounds a metrics file has; half a line at its end is none."""
  with open(path, 'rb') as file:
    return max(0, sum(line.endswith(b'\n') for line in file) - 1)
