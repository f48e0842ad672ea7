"""What a run says while it runs: a bar on a terminal, a line now and then elsewhere."""

import math
import os
import sys
import time
from typing import Any, Optional, TextIO

import tqdm

_LINE_SECONDS = 10.0


class Progress:
  """Shows the rounds of a run on standard error."""

  def __init__(self, num_rounds: int, done: int = 0, file: Optional[TextIO] = None):
    """Initializes it.

    Args:
      num_rounds: Rounds in all.
      done: How many were run before.
      file: Where to; `None` for standard error.
    """
    self._file = file or sys.stderr
    self._num_rounds, self._done = num_rounds, done
    self._begun = self._said = time.monotonic()
    self._first = done
    self._shown: dict[str, str] = {}
    self._bar: Optional[tqdm.tqdm] = None
    if self._file.isatty():
      self._bar = tqdm.tqdm(
        total=num_rounds, initial=done, unit='round', file=self._file, mininterval=0.2
      )

  def update(self, row: dict[str, Any]) -> None:
    """Tells of a round.

    Args:
      row: Its metrics.
    """
    self._done += 1
    for name, value in row.items():
      if value is not None and (name == 'epsilon' or name.startswith('test_')):
        self._shown[name.removeprefix('test_')] = format_number(value)
    self._shown['clients/s'] = f'{row["clients_per_second"]:.0f}'
    if 'noise_to_signal' in row:
      # Always the last: it hardly changes, and a narrow bar has no place for all.
      self._shown.pop('noise/signal', None)
      self._shown['noise/signal'] = f'{row["noise_to_signal"]:.3g}'
    if self._bar is not None:
      self._bar.set_postfix(self._shown, refresh=False)
      self._bar.update()
    elif (
      time.monotonic() - self._said > _LINE_SECONDS or self._done == self._num_rounds
    ):
      self._said = time.monotonic()
      seconds = (self._said - self._begun) / (self._done - self._first)
      left = seconds * (self._num_rounds - self._done)
      shown = ', '.join(f'{name}={value}' for name, value in self._shown.items())
      say(
        f'round {self._done} of {self._num_rounds}: {shown}; {left:.0f} s left',
        self._file,
      )

  def close(self) -> None:
    """Leaves the last state standing."""
    if self._bar is not None:
      self._bar.close()


def format_number(value: Optional[float]) -> str:
  """A number for people; `None` is what JSON has for infinity."""
  if value is None or math.isinf(value):
    return 'infinite'
  return f'{value:.4f}'


def say(text: str, file: Optional[TextIO] = None) -> None:
  """Prints a line; a reader that went away is no reason to lose a run."""
  file = file or sys.stdout
  try:
    print(text, file=file, flush=True)
  except BrokenPipeError:
    # Python would complain again at exit, when it flushes what could not be written.
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
