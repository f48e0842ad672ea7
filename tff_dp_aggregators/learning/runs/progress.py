"""Shows a run's progress: a bar on a terminal, a line now and then elsewhere."""

import os
import sys
import time
from typing import Any, Optional, TextIO

import tqdm

from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.learning.runs import metrics_file

_LINE_SECONDS = 10.0
_NONFINITE = f'{metrics_file.NOT_PRIVATE}nonfinite_count'
_BAR_FORMAT = '{n_fmt}/{total_fmt} {bar}| {remaining} left{postfix}'
# First what people look at most: a narrow line loses what is last.
_FIRST = ('test_loss', 'test_accuracy', 'epsilon', 'simulated_epsilon')
_LAST = {
  'clients_per_second': ('clients/s', '.0f'),
  'noise_to_signal': ('noise/signal', '.3g'),
}


class Progress:
  """Shows the rounds of a run on standard error."""

  def __init__(self, num_rounds: int, done: int = 0):
    self._num_rounds, self._done = num_rounds, done
    self._begun = self._line_time = time.monotonic()
    self._first = done
    self._shown: dict[str, float] = {}
    self._warned = False
    self._is_bar = sys.stderr.isatty()
    self._bar = tqdm.tqdm(
      total=num_rounds,
      initial=done,
      file=sys.stderr,
      mininterval=0.2,
      bar_format=_BAR_FORMAT,
      dynamic_ncols=True,  # The terminal may be resized.
      disable=not self._is_bar,
    )
    self.close = self._bar.close  # The bar stays visible.

  def update(self, row: dict[str, Any]) -> None:
    """Shows the metrics of a round."""
    self._done += 1
    nonfinite = row.get(_NONFINITE)
    if nonfinite and not self._warned:
      self._warned = True
      self._say(
        f'the updates of {nonfinite} of {row[metrics_file.CLIENTS]} clients are not '
        'finite (NaN or infinite) and count as zero, while the round costs what any '
        'other does. Take a smaller learning rate of the clients, or look for extreme '
        'numbers in their data.'
      )
    for name, value in row.items():
      if name in (*_FIRST, *_LAST) or name.startswith('test_'):
        if value is not None:  # A test metric is not measured in every round.
          self._shown[name] = value
    if self._is_bar:
      self._bar.set_postfix_str(in_words(self._shown), refresh=False)
      self._bar.update()
      return
    now = time.monotonic()
    if now - self._line_time > _LINE_SECONDS or self._done == self._num_rounds:
      self._line_time = now
      seconds = (now - self._begun) / (self._done - self._first)
      left = tqdm.tqdm.format_interval(seconds * (self._num_rounds - self._done))
      self._say(f'{in_words(self._shown)}; {left} left')

  def _say(self, text: str) -> None:
    with tqdm.tqdm.external_write_mode(sys.stderr):  # Above the bar.
      say(f'round {self._done} of {self._num_rounds}: {text}', sys.stderr)


def in_words(values: dict[str, float]) -> str:
  """Values with their names on one line, in the order of `_FIRST` and `_LAST`."""
  others = [name for name in values if name not in (*_FIRST, *_LAST)]
  names = [name for name in (*_FIRST, *others, *_LAST) if name in values]
  return ', '.join(_in_words(name, values[name]) for name in names)


def _in_words(name: str, value: float) -> str:
  if name.endswith('epsilon'):
    return f'{name}={rounding.up(value)}'
  short, digits = _LAST.get(name, (name.removeprefix('test_'), '.4f'))
  return f'{short}={value:{digits}}'


def say(text: str, file: Optional[TextIO] = None) -> None:
  """Prints a line; a closed pipe does not end the run."""
  file = file or sys.stdout
  try:
    print(text, file=file, flush=True)
  except BrokenPipeError:
    # Python would fail again at exit, when it flushes what could not be written.
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
