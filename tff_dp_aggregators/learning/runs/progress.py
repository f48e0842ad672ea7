"""Shows a run's progress: a bar on a terminal, a line now and then elsewhere."""

import os
import sys
import time
from typing import Any, Optional, TextIO

import numpy as np
import tqdm

from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.learning.runs import metrics_file

_LINE_SECONDS = 10.0
_NONFINITE = f'{metrics_file.NOT_PRIVATE}nonfinite_count'
_TRAIN = f'{metrics_file.NOT_PRIVATE}train_'
_BAR_FORMAT = '{n_fmt}/{total_fmt} {bar}| {remaining} left{postfix}'
# First what people look at most: a narrow line loses what is last.
_FIRST = ('loss', 'accuracy', 'epsilon', 'simulated_epsilon', 'clients/s')
_NOISE = 'noise/signal'  # Comes last, as it hardly changes.
_FORMATS = {'clients/s': '.0f', _NOISE: '.3g'}
_EPSILONS = ('epsilon', 'simulated_epsilon')


class Progress:
  """Shows the rounds of a run on standard error."""

  def __init__(self, num_rounds: int, done: int = 0):
    self._num_rounds, self._done = num_rounds, done
    self._begun = self._line_time = time.monotonic()
    self._first = done
    self._shown: dict[str, float] = {}
    self._not_finite: set[str] = set()  # Columns that were warned of.
    self._bar: Optional[tqdm.tqdm] = None
    if sys.stderr.isatty():
      self._bar = tqdm.tqdm(
        total=num_rounds,
        initial=done,
        file=sys.stderr,
        mininterval=0.2,
        bar_format=_BAR_FORMAT,
        dynamic_ncols=True,  # The terminal may be resized.
      )

  def update(self, row: dict[str, Any]) -> None:
    """Shows the metrics of a round."""
    self._done += 1
    self._warn(row)
    for name, value in row.items():
      if value is not None and (name in _EPSILONS or name.startswith('test_')):
        self._shown[name.removeprefix('test_')] = value
    self._shown['clients/s'] = row['clients_per_second']
    if 'noise_to_signal' in row:
      self._shown[_NOISE] = row['noise_to_signal']
    if self._bar is not None:
      self._bar.set_postfix_str(in_words(self._shown), refresh=False)
      self._bar.update()
    elif (
      time.monotonic() - self._line_time > _LINE_SECONDS
      or self._done == self._num_rounds
    ):
      self._line_time = time.monotonic()
      seconds = (self._line_time - self._begun) / (self._done - self._first)
      left = seconds * (self._num_rounds - self._done)
      say(
        f'round {self._done} of {self._num_rounds}: {in_words(self._shown)}; '
        f'{tqdm.tqdm.format_interval(left)} left',
        sys.stderr,
      )

  def _warn(self, row: dict[str, Any]) -> None:
    """Warns once for each column if updates or losses are not finite."""
    clients, nonfinite = row.get(metrics_file.CLIENTS, 0), row.get(_NONFINITE) or 0
    warnings = {}
    if nonfinite:
      warnings[_NONFINITE] = (
        f'the updates of {nonfinite} of {clients} clients are not finite (NaN or '
        'infinite) and count as zero, while the round costs what any other does'
      )
    for name, value in row.items():
      is_loss = name == 'test_loss' or (name.startswith(_TRAIN) and clients > nonfinite)
      if is_loss and value is not None:
        if not np.isfinite(np.asarray(value, np.float64)).all():
          warnings[name] = f'{name} is {value}: the training diverged'
    for name in warnings.keys() - self._not_finite:
      self._not_finite.add(name)
      text = (
        f'round {self._done} of {self._num_rounds}: {warnings[name]}. Take a smaller '
        'learning rate of the clients, or look for extreme numbers in their data.'
      )
      if self._bar is None:
        say(text, sys.stderr)
      else:
        self._bar.write(text, file=sys.stderr)  # Above the bar.

  def close(self) -> None:
    """Closes the bar, which stays visible."""
    if self._bar is not None:
      self._bar.close()


def in_words(values: dict[str, float]) -> str:
  """Values with their names on one line, in the order of `_FIRST`."""
  order = {name: index for index, name in enumerate(_FIRST)}
  names = sorted(values, key=lambda name: (name == _NOISE, order.get(name, len(order))))
  return ', '.join(f'{name}={_number(name, values[name])}' for name in names)


def _number(name: str, value: float) -> str:
  if name in _EPSILONS:
    return rounding.up(value)
  return f'{value:{_FORMATS.get(name, ".4f")}}'


def say(text: str, file: Optional[TextIO] = None) -> None:
  """Prints a line; a closed pipe does not end the run."""
  file = file or sys.stdout
  try:
    print(text, file=file, flush=True)
  except BrokenPipeError:
    # Python would fail again at exit, when it flushes what could not be written.
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
