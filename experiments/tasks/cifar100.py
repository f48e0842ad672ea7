"""CIFAR-100 over 500 clients, split by Pachinko allocation (arXiv:2003.00295).

500 clients of 100 training images each, and 10,000 test images of other clients:
`tff.simulation.datasets.cifar100`. Each image is brought to mean 0 and standard
deviation 1 by itself, as in `tff.simulation.baselines.cifar100`; it is not cropped at
random. The papers train ResNet-18 with group normalisation, 11 million weights, which
takes hours a round without an accelerator; here it is a small network by default, and
theirs is for --model=package.module:function.
"""

import numpy as np

from ..data import population
from ..options import data as data_options
from . import cached
from . import task

_FILE = 'cifar100.sqlite'
_SPLITS = ('train', 'test')


def check(options: data_options.Data) -> None:
  """Checks that the file is there."""
  cached.database(options, 'cifar100', _FILE, _SPLITS)


def _parse(serialized: list[bytes]) -> dict[str, np.ndarray]:
  found = cached.features(serialized, image=('int64', [32, 32, 3]), label=('int64', []))
  return {'x': standardized(found['image']), 'y': found['label'].astype(np.int32)}


def standardized(images: np.ndarray) -> np.ndarray:
  """Each image with mean 0 and standard deviation 1, as TensorFlow does it.

  The standard deviation is taken for at least 1 / sqrt(pixels), which keeps images of
  one colour finite.
  """
  images = images.astype(np.float32)
  axes = tuple(range(1, images.ndim))
  mean = images.mean(axis=axes, keepdims=True, dtype=np.float64)
  stddev = images.std(axis=axes, keepdims=True, dtype=np.float64)
  least = 1 / np.sqrt(np.prod(images.shape[1:]))
  return ((images - mean) / np.maximum(stddev, least)).astype(np.float32)


def load(options: data_options.Data) -> population.Population:
  """Clients and their images; test images are of others."""
  path = cached.database(options, 'cifar100', _FILE, _SPLITS)
  clients, test = (cached.Split(path, name, _parse) for name in _SPLITS)
  test_examples = test.first()
  return population.Population(
    clients=clients,
    num_clients=len(clients),
    test_examples=(test_examples['x'], test_examples['y']),
    shape=population.Shape(
      inputs=(32, 32, 3),
      input_dtype='float32',
      labels=(),
      label_kind='class',
      num_classes=100,
    ),
    facts={'clients': len(clients), 'test examples': len(test_examples['y'])},
  )


TASK = task.Task(
  name='cifar100',
  summary='small images in 100 classes over 500 clients: too few for much privacy '
  '(needs --cache_dir)',
  check=check,
  load=load,
  defaults=task.Defaults(
    model='simple_cnn',
    metric='accuracy',
    num_rounds=300,
    num_clients=None,
    clients_per_round=50,
    min_separation=10,
    clip_norm=1.0,
    batch_size=20,
    local_epochs=1,
    client_learning_rate=0.1,
    server_learning_rate=0.5,
  ),
)
