"""Tasks on installed data: small data sets of scikit-learn, and Python's sources.

A fifth of scikit-learn's data is held out. The numbers of `breast_cancer` are scaled by
training examples without noise, so reports say that no privacy covers it.
"""

import functools
import hashlib
import os
import sysconfig
from typing import Any

import numpy as np

from ..data import population
from ..data import texts
from ..options import data as data_options
from . import task


def _refuse_cache_dir(options: data_options.Data, name: str) -> None:
  if options.cache_dir is not None:
    raise ValueError(
      f'--cache_dir does not go with --task={name}, whose data are installed with '
      'Python or scikit-learn.'
    )


def _task(name: str, num_examples: int, num_classes: int, **fields: Any) -> task.Task:
  num_test = round(num_examples / 5)

  def read(options: data_options.Data, rng: np.random.Generator) -> dict[str, Any]:
    import sklearn.datasets  # Takes a second; flags are checked without it.

    data = getattr(sklearn.datasets, f'load_{name}')()
    labels, inputs = data.target.astype(np.int32), data.data
    test, train = np.split(rng.permutation(len(labels)), [num_test])
    more: dict[str, Any] = {}
    if name == 'digits':
      inputs = data.images[..., np.newaxis] / 16.0
    else:
      inputs = (inputs - inputs[train].mean(axis=0)) / inputs[train].std(axis=0)
      more['names'] = tuple(str(each) for each in data.target_names)
      more['not_covered'] = (
        "Features were scaled by the mean and standard deviation of all clients' "
        'training examples.',
      )
    inputs = inputs.astype(np.float32)
    parts = {'train': train, 'test': test}
    return {key: (inputs[part], labels[part]) for key, part in parts.items()} | more

  return task.of_made_clients(
    name,
    num_examples - num_test,
    num_classes,
    functools.partial(_refuse_cache_dir, name=name),
    read,
    **fields,
  )


DIGITS = _task(
  'digits',
  1797,
  10,
  summary='logistic regression on handwritten digits, which shows in some 15 seconds '
  'what privacy costs',
  defaults=task.Defaults(
    model='logistic',
    num_rounds=100,
    num_clients=300,
    clients_per_round=30,
    min_separation=10,
    batch_size=5,
    client_learning_rate=0.5,
    server_learning_rate=0.2,
  ),
)
BREAST_CANCER = _task(
  'breast_cancer',
  569,
  2,
  summary='logistic regression on a small table, where few clients have to hide behind '
  'much noise',
  defaults=task.Defaults(
    model='logistic',
    num_rounds=60,
    num_clients=150,
    clients_per_round=30,
    min_separation=5,
    batch_size=4,
    client_learning_rate=0.5,
    server_learning_rate=0.05,
  ),
)


# The next character in Python's standard library. A module is a client with the
# first 24 sequences of 40 characters of its file; one file in ten is held out. The
# vocabulary, printable ASCII, does not depend on the data.
_ROOT = sysconfig.get_path('stdlib')
_LENGTH = 40
_MAX_SEQUENCES = 24
_MIN_BYTES = 1000
_EXCLUDED_FOLDERS = ('site-packages', 'dist-packages', 'test', 'tests', 'idle_test')
_HELD_OUT_ONE_IN = 10
VOCABULARY = texts.Vocabulary('character', ('\n', *map(chr, range(32, 127))))


def files() -> list[str]:
  paths = []
  for folder, folders, names in os.walk(_ROOT):
    folders[:] = [
      each for each in folders if each not in _EXCLUDED_FOLDERS and each.isidentifier()
    ]
    for name in names:
      path = os.path.join(folder, name)
      if name.endswith('.py') and os.path.getsize(path) >= _MIN_BYTES:
        paths.append(os.path.relpath(path, _ROOT))
  return sorted(paths)


def _is_held_out(name: str) -> bool:
  digest = hashlib.sha256(name.encode()).digest()
  return int.from_bytes(digest[:8], 'big') % _HELD_OUT_ONE_IN == 0


def _examples(name: str) -> dict[str, np.ndarray]:
  with open(os.path.join(_ROOT, name), encoding='utf-8', errors='replace') as file:
    text = file.read(_MAX_SEQUENCES * (_LENGTH + 1) - 1)
  sequences = VOCABULARY.sequences(text, _LENGTH)
  return texts.examples(sequences[:_MAX_SEQUENCES])


def _load_text(options: data_options.Data) -> population.Population:
  del options
  names = files()
  clients = {name: _examples(name) for name in names if not _is_held_out(name)}
  held_out = [_examples(name) for name in names if _is_held_out(name)]
  test = {key: np.concatenate([each[key] for each in held_out]) for key in 'xy'}
  return population.Population(
    clients=clients,
    num_clients=len(clients),
    test_examples=(test['x'], test['y']),
    shape=VOCABULARY.shape(_LENGTH),
    facts={'clients': len(clients), 'test clients': len(held_out)},
  )


TEXT = task.Task(
  name='text',
  summary="the next character of Python's own sources with two small LSTMs, which "
  'shows what privacy leaves of a recurrent model when clients are few',
  check=functools.partial(_refuse_cache_dir, name='text'),
  load=_load_text,
  defaults=task.Defaults(
    model='char_lstm',
    metric='token_accuracy',
    num_rounds=100,
    clients_per_round=50,
    min_separation=10,
    batch_size=8,
    client_learning_rate=1.0,
    server_learning_rate=0.5,
    hidden_units=32,
  ),
)
