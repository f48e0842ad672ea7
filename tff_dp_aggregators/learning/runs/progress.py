"""What a run says while it runs: a bar on a terminal, a line now and then elsewhere."""

import os
import sys
import time
from typing import Any, Optional, TextIO

import tqdm

from tff_dp_aggregators.base import rounding

_LINE_SECONDS = 10.0
# What is left of a line goes to the bar, which `_MIN_BAR` columns are enough for.
_BAR_FORMAT = '{n_fmt}/{total_fmt} {bar}| {remaining} left{postfix}'
_MIN_BAR = 1
_LONGEST_TIME = len('00:00:00')
_COLUMNS = 80  # Of a terminal that does not say.
# The order in which people look, and in which a narrow line loses what is last.
_FIRST = ('loss', 'accuracy', 'epsilon', 'simulated_epsilon', 'clients/s')
_NOISE = 'noise/signal'  # It hardly changes, and comes last.
_SHORT_NAMES = {'accuracy': 'acc', 'epsilon': 'eps', 'simulated_epsilon': 'sim_eps'}
_EPSILONS = ('epsilon', 'simulated_epsilon')


class Progress:
  """Shows the rounds of a run on standard error."""

  def __init__(self, num_rounds: int, done: int = 0, file: Optional[TextIO] = None):
    """Initializes it.

    `file`: Where to; `None` for standard error.
    """
    self._file = file or sys.stderr
    self._num_rounds, self._done = num_rounds, done
    self._begun = self._said = time.monotonic()
    self._first = done
    self._shown: dict[str, float] = {}
    self._bar: Optional[tqdm.tqdm] = None
    if self._file.isatty():
      self._bar = tqdm.tqdm(
        total=num_rounds,
        initial=done,
        file=self._file,
        mininterval=0.2,
        bar_format=_BAR_FORMAT,
        ncols=_columns(self._file),
      )

  def update(self, row: dict[str, Any]) -> None:
    """Tells of a round."""
    self._done += 1
    for name, value in row.items():
      if value is not None and (name in _EPSILONS or name.startswith('test_')):
        self._shown[name.removeprefix('test_')] = value
    self._shown['clients/s'] = row['clients_per_second']
    if 'noise_to_signal' in row:
      self._shown[_NOISE] = row['noise_to_signal']
    if self._bar is not None:
      self._bar.ncols = columns = _columns(self._file)  # It may have been resized.
      taken = len(f'{self._num_rounds}/{self._num_rounds} |  left, ')
      width = columns - taken - _MIN_BAR - _LONGEST_TIME
      self._bar.set_postfix_str(in_words(self._shown, width), refresh=False)
      self._bar.update()
    elif (
      time.monotonic() - self._said > _LINE_SECONDS or self._done == self._num_rounds
    ):
      self._said = time.monotonic()
      seconds = (self._said - self._begun) / (self._done - self._first)
      left = seconds * (self._num_rounds - self._done)
      say(
        f'round {self._done} of {self._num_rounds}: {in_words(self._shown)}; '
        f'{tqdm.tqdm.format_interval(left)} left',
        self._file,
      )

  def say(self, text: str) -> None:
    """Prints a line, above the bar if there is one."""
    if self._bar is None:
      say(text, self._file)
    else:
      self._bar.write(text, file=self._file)

  def close(self) -> None:
    """Ends the bar, which stays as it was last."""
    if self._bar is not None:
      self._bar.close()


def in_words(values: dict[str, float], columns: Optional[int] = None) -> str:
  """Values with their names on one line, those that people look for first.

  `columns`: How long the line may be; `None` for any length. Names are shortened first,
  then measures are left out that are none of the usual.

  Example:
    >>> values = {
    ...   'epsilon': 7.91001,
    ...   'clients/s': 8412.3,
    ...   'loss': 0.31832,
    ...   'accuracy': 0.9,
    ... }
    >>> in_words(values)
    'loss=0.3183, accuracy=0.9000, epsilon=7.9101, clients/s=8412'
    >>> in_words(values, columns=52)
    'loss=0.318, acc=0.900, eps=7.911, clients/s=8.41k'
  """
  names = [name for name in _FIRST if name in values]
  names += [name for name in values if name not in (*_FIRST, _NOISE)]
  names += [_NOISE] if _NOISE in values else []
  line = ', '.join(_in_words(name, values[name]) for name in names)
  if columns is None or len(line) <= columns:
    return line
  while True:
    line = ', '.join(_in_words(name, values[name], short=True) for name in names)
    if len(line) <= columns or names[-1] in _FIRST:
      return line
    names.pop()


def _in_words(name: str, value: float, short: bool = False) -> str:
  if name == 'clients/s':
    number = tqdm.tqdm.format_sizeof(value) if short else f'{value:.0f}'
  elif name == _NOISE:
    number = f'{value:.3g}'
  elif name in _EPSILONS:
    number = rounding.up(value, (3 if value < 1e3 else 0) if short else 4)
  elif not short:
    number = f'{value:.4f}'
  else:
    number = f'{value:.3f}' if 1e-3 <= abs(value) < 1e3 else f'{value:.2g}'
  return f'{_SHORT_NAMES.get(name, name) if short else name}={number}'


def _columns(file: TextIO) -> int:
  """How wide the terminal is; some, such as those of other programs, do not say."""
  try:
    return os.get_terminal_size(file.fileno()).columns or _COLUMNS
  except OSError:
    return _COLUMNS


def say(text: str, file: Optional[TextIO] = None) -> None:
  """Prints a line; a reader that went away is no reason to lose a run."""
  file = file or sys.stdout
  try:
    print(text, file=file, flush=True)
  except BrokenPipeError:
    # Python would complain again at exit, when it flushes what could not be written.
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
