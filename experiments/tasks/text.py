"""The next character in Python's standard library, by file: two small LSTMs.

The texts are on every installation: the modules of the standard library, without its
tests, each of which is a client; so there are a few more or fewer with another release
of Python. A client has the first 24 sequences of 40 characters of its file; what is no
printable ASCII is out of vocabulary, so nothing of the vocabulary is made of the data.
One file in ten is held out.

Your own texts are given by --data; see docs/own_data.md.
"""

import hashlib
import os
import sysconfig

import numpy as np

from ..data import population
from ..data import texts
from ..options import data as data_options
from . import task

_ROOT = sysconfig.get_path('stdlib')
_LENGTH = 40
_MOST_SEQUENCES = 24
_LEAST_CHARACTERS = 1000
_LEFT_OUT = ('site-packages', 'dist-packages', 'test', 'tests', 'idle_test')
_HELD_OUT = 10  # One in so many.
VOCABULARY = texts.Vocabulary('character', ('\n', *map(chr, range(32, 127))))


def files() -> list[str]:
  found = []
  for folder, folders, names in os.walk(_ROOT):
    folders[:] = [
      each for each in folders if each not in _LEFT_OUT and each.isidentifier()
    ]
    for name in names:
      path = os.path.join(folder, name)
      if name.endswith('.py') and os.path.getsize(path) >= _LEAST_CHARACTERS:
        found.append(os.path.relpath(path, _ROOT))
  if not found:
    raise FileNotFoundError(f'{_ROOT} has no sources of the standard library.')
  return sorted(found)


def _is_held_out(name: str) -> bool:
  digest = hashlib.sha256(name.encode()).digest()
  return int.from_bytes(digest[:8], 'big') % _HELD_OUT == 0


def check(options: data_options.Data) -> None:
  task.refuse_cache_dir('text', options)
  files()


def _examples(name: str) -> dict[str, np.ndarray]:
  with open(os.path.join(_ROOT, name), encoding='utf-8', errors='replace') as file:
    text = file.read(_MOST_SEQUENCES * (_LENGTH + 1) - 1)
  sequences = VOCABULARY.sequences(text, _LENGTH)
  return texts.examples(sequences[:_MOST_SEQUENCES])


def load(options: data_options.Data) -> population.Population:
  del options
  names = files()
  clients = {name: _examples(name) for name in names if not _is_held_out(name)}
  held_out = [_examples(name) for name in names if _is_held_out(name)]
  test = {key: np.concatenate([each[key] for each in held_out]) for key in 'xy'}
  return population.Population(
    clients=clients,
    num_clients=len(clients),
    test_examples=(test['x'], test['y']),
    shape=task.shape_of_tokens(VOCABULARY, _LENGTH),
    facts={'clients': len(clients), 'test clients': len(held_out)},
  )


TASK = task.Task(
  name='text',
  summary="the next character of Python's own sources with two small LSTMs, which "
  'shows what privacy leaves of a recurrent model when clients are few',
  check=check,
  load=load,
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
