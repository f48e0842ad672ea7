"""Handwritten digits by writer: the EMNIST experiment of DP-FTRL (arXiv:2103.00039).

3,383 writers with 341,873 training images of 28 x 28 pixels in 10 classes, and 40,832
test images of the same writers: `only_digits` of `tff.simulation.datasets.emnist`, as
in google-research/federated, dp_ftrl/run_emnist.py. Pixels are as they are, with 1 for
the background; batches of 16, one local epoch.
"""

import numpy as np

from ..data import population
from ..options import data as data_options
from . import cached
from . import task

_FILE = 'emnist_all.sqlite'
_SPLITS = ('digits_only_train', 'digits_only_test')


def check(options: data_options.Data) -> None:
  """Checks that the file is there."""
  cached.database(options, 'emnist', _FILE, _SPLITS)


def _parse(serialized: list[bytes]) -> dict[str, np.ndarray]:
  found = cached.features(
    serialized, pixels=('float32', [28, 28, 1]), label=('int64', [])
  )
  return {'x': found['pixels'], 'y': found['label'].astype(np.int32)}


def load(options: data_options.Data) -> population.Population:
  """Writers and their images; test images are of the same writers."""
  path = cached.database(options, 'emnist', _FILE, _SPLITS)
  clients, test = (cached.Split(path, name, _parse) for name in _SPLITS)
  test_examples = test.first()
  return population.Population(
    clients=clients,
    num_clients=len(clients),
    test_examples=(test_examples['x'], test_examples['y']),
    shape=population.Shape(
      inputs=(28, 28, 1),
      input_dtype='float32',
      labels=(),
      label_kind='class',
      num_classes=10,
    ),
    facts={'clients': len(clients), 'test examples': len(test_examples['y'])},
    not_covered=(population.HELD_OUT_OF_CLIENTS,),
  )


TASK = task.Task(
  name='emnist',
  summary='digits by writer with the convolutional network of DP-FTRL (needs '
  '--cache_dir)',
  check=check,
  load=load,
  defaults=task.Defaults(
    model='cnn',
    metric='accuracy',
    num_rounds=300,
    num_clients=None,
    clients_per_round=100,
    min_separation=30,
    clip_norm=1.0,
    batch_size=16,
    local_epochs=1,
    client_learning_rate=0.02,
    server_learning_rate=1.0,
  ),
)
