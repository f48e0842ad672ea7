"""The user's own data: what a task would say of them, found in the data themselves.

Model and metric follow from the labels, and what depends on how many clients there are
from that, so that the same data give the same run. No other file knows these rules.
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

# What is measured for labels of a kind.
_METRICS = {
  'class': 'accuracy',
  'number': 'mean_absolute_error',
  'tags': 'accuracy',
  'tokens': 'token_accuracy',
}
_NUM_ROUNDS = 100
_LARGEST_COHORT = 100
_LARGEST_DELTA = 1e-5
# Populations that are kept: a comparison of mechanisms asks for the same ones again.
_KEPT = 2
# As of --task=text: the noise of as many weights as models for text have in the papers
# drowns what some hundred clients say.
_UNITS_FOR_TEXT = 32
_BY_SIZE = ('clients_per_round', 'min_separation', 'target_delta', 'hidden_units')


def load(options: data_options.Data) -> population_lib.Population:
  """The population of the user's data; read once as long as the files are the same."""
  assert options.files is not None
  files = options.files
  paths = [files.path, files.test_data, files.vocabulary]
  return _load(options, tuple(_state(path) for path in paths if path is not None))


@functools.lru_cache(_KEPT)
def _load(options: data_options.Data, states: Any) -> population_lib.Population:
  del states  # Other files under the same names are other data.
  return loading.load(options)


def _state(path: str) -> tuple[Any, ...]:
  """What changes with a file, or with those in a folder."""
  if not os.path.isdir(path):
    found = os.stat(path)
    return (path, found.st_size, found.st_mtime_ns, found.st_ino)
  whole = 0
  for folder, _, names in os.walk(path):
    for name in names:
      whole ^= hash(_state(os.path.join(folder, name)))
  return (path, whole)


def task_for(values: flags.FlagValues, data: data_options.Data) -> task.Task:
  """A task with the user's data, and with defaults that suit them."""
  assert data.files is not None
  population = load(data)
  shape = population.shape
  num_clients = population.num_clients
  num_rounds = values['num_rounds'].value or _NUM_ROUNDS
  cohort = values['clients_per_round'].value
  if cohort is None:
    cohort = min(_LARGEST_COHORT, max(1, num_clients // 10))
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
      # As those of --task=text, with which recurrent models learn in so few rounds.
      client_learning_rate=1.0 if is_text else 0.1,
      server_learning_rate=0.5 if is_text else 0.2,
      hidden_units=_UNITS_FOR_TEXT if is_text else None,
      target_delta=delta_for(num_clients),
    ),
  )


def delta_for(num_clients: int) -> float:
  """The default of `--target_delta`: a power of ten, at most 1 / (10 num_clients)."""
  power = -math.floor(-math.log10(10 * num_clients) + 1e-12)
  return min(_LARGEST_DELTA, float(f'1e-{power}'))


def chosen(values: flags.FlagValues, num_clients: int) -> str:
  """Says which flags follow from the number of clients."""
  said = ', '.join(
    f'--{name}={values[name].value}'
    for name in _BY_SIZE
    if values[name].using_default_value and values[name].value is not None
  )
  return f'Chosen for {num_clients} clients: {said}.' if said else ''


def _name(path: str) -> str:
  name = os.path.basename(os.path.abspath(path))
  stem = os.path.splitext(re.sub(r'\.gz$', '', name, flags=re.IGNORECASE))[0]
  return re.sub(r'[^\w.-]+', '_', stem).strip('._-') or 'data'


def _model(shape: population_lib.Shape, text_unit: Any) -> str:
  """The first one that is for the data; one is for each kind of labels."""
  of_words = ['word_lstm'] if text_unit == 'word' else []
  names = (*of_words, *kind_lib.KINDS)
  return next(name for name in names if kind_lib.KINDS[name].why_not(shape) is None)
