"""A task for the user's own data, whose defaults are derived from the data.

Model and metric depend on the labels, and other defaults on the number of clients, so
the same data give the same run. No other file has these rules.
"""

import functools
import math
import os
import re
from typing import Any

from absl import flags

from ..data import loading
from ..data import population as population_lib
from ..models import kind as kind_lib
from ..options import data as data_options
from . import task

# Metric by kind of labels.
_METRICS = {
  'class': 'accuracy',
  'number': 'mean_absolute_error',
  'tags': 'accuracy',
  'tokens': 'token_accuracy',
}
_NUM_ROUNDS = 100
_MAX_COHORT = 100
_MAX_DELTA = 1e-5
# Populations in the cache: a comparison of mechanisms asks for the same ones again.
_CACHE_SIZE = 2
# As for --task=text: with as many weights as the papers' text models have, noise would
# drown the updates of some hundred clients.
_TEXT_UNITS = 32
_SIZE_FLAGS = ('clients_per_round', 'min_separation', 'target_delta', 'hidden_units')


def load(options: data_options.Data) -> population_lib.Population:
  """Returns the population of the user's data; cached while the files are the same."""
  assert options.files is not None
  files = options.files
  paths = [each for each in (files.path, files.test_data, files.vocabulary) if each]
  for path in tuple(paths):
    for folder, _, names in os.walk(path):
      paths += [os.path.join(folder, name) for name in sorted(names)]
  states = [os.stat(each) for each in paths]
  return _load(
    options, tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in states)
  )


@functools.lru_cache(_CACHE_SIZE)
def _load(options: data_options.Data, states: Any) -> population_lib.Population:
  del states  # Only a key of the cache: changed files are other data.
  return loading.load(options)


def task_for(values: flags.FlagValues, data: data_options.Data) -> task.Task:
  """Returns a task with the user's data, and defaults that suit them."""
  assert data.files is not None
  population = load(data)
  shape = population.shape
  num_clients = population.num_clients
  num_rounds = values['num_rounds'].value or _NUM_ROUNDS
  cohort = values['clients_per_round'].value
  if cohort is None:
    cohort = min(_MAX_COHORT, max(1, num_clients // 10))
  is_text = shape.label_kind == 'tokens'
  return task.Task(
    name=_name(data.files.path),
    summary='your own data',
    check=lambda options: None,
    load=load,
    defaults=task.Defaults(
      model=_model(shape, data.files.text_unit),
      metric=_METRICS[shape.label_kind],
      num_rounds=_NUM_ROUNDS,
      num_clients=num_clients,
      clients_per_round=cohort,
      min_separation=max(1, min(num_clients // max(1, cohort), num_rounds)),
      batch_size=16,
      # As for --task=text, where recurrent models learn in so few rounds.
      client_learning_rate=1.0 if is_text else 0.1,
      server_learning_rate=0.5 if is_text else 0.2,
      hidden_units=_TEXT_UNITS if is_text else None,
      target_delta=delta_for(num_clients),
    ),
  )


def delta_for(num_clients: int) -> float:
  """Returns the default of `--target_delta`: a power of 10, <= 1 / (10 num_clients)."""
  power = -math.floor(-math.log10(10 * num_clients) + 1e-12)
  return min(_MAX_DELTA, float(f'1e-{power}'))


def chosen(values: flags.FlagValues, num_clients: int) -> tuple[str, ...]:
  """Returns a sentence on the flags that depend on the number of clients, if any."""
  flag_values = ', '.join(
    f'--{name}={values[name].value}'
    for name in _SIZE_FLAGS
    if values[name].using_default_value and values[name].value is not None
  )
  return (f'Chosen for {num_clients} clients: {flag_values}.',) if flag_values else ()


def _name(path: str) -> str:
  name = os.path.basename(os.path.abspath(path))
  stem = os.path.splitext(re.sub(r'\.gz$', '', name, flags=re.IGNORECASE))[0]
  return re.sub(r'[^\w.-]+', '_', stem).strip('._-') or 'data'


def _model(shape: population_lib.Shape, text_unit: Any) -> str:
  """Returns the first model that can take the data; each kind of labels has one."""
  word_models = ['word_lstm'] if text_unit == 'word' else []
  names = (*word_models, *kind_lib.KINDS)
  return next(name for name in names if kind_lib.KINDS[name].why_not(shape) is None)
