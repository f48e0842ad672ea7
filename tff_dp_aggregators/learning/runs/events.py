"""The metrics of a run for TensorBoard, one event for each round."""

import time
from typing import Any

from tensorboard.compat.proto import event_pb2
from tensorboard.compat.proto import summary_pb2
from tensorboard.summary.writer import event_file_writer


class EventFile:
  """A new file of events for TensorBoard beside those that are there.

  TensorFlow's summaries cost half a millisecond a number; here all of a round are one
  record, which a thread writes.
  """

  def __init__(self, directory: str, rounds: int = 0):
    """Makes the file."""
    self._writer = event_file_writer.EventFileWriter(directory)
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._writer.add_event(
      event_pb2.Event(wall_time=time.time(), step=rounds, session_log=start)
    )

  def append(self, row: dict[str, Any]) -> None:
    """Appends the numbers of a round."""
    values = [
      summary_pb2.Summary.Value(tag=name, simple_value=value)
      for name, value in row.items()
      if name != 'round' and isinstance(value, (int, float))
    ]
    self._writer.add_event(
      event_pb2.Event(
        wall_time=time.time(),
        step=row['round'],
        summary=summary_pb2.Summary(value=values),
      )
    )

  def flush(self) -> None:
    """Writes what is left, before a checkpoint that goes on after it."""
    self._writer.flush()

  def close(self) -> None:
    """Writes what is left, and closes the file."""
    self._writer.close()
