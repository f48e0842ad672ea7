"""Handwritten digits: logistic regression that trains in some 15 seconds.

The data are scikit-learn's, which ship with the package: 1,797 images of 8 x 8 pixels
in 10 classes.
"""

import numpy as np

from ..data import partition
from ..data import population
from ..options import data as data_options
from . import task

_NUM_CLASSES = 10
_NUM_IMAGES = 1797
_NUM_TEST_IMAGES = 359  # A fifth.
MAX_CLIENTS = _NUM_IMAGES - _NUM_TEST_IMAGES


def check(options: data_options.Data) -> None:
  """Checks that there is data for so many clients, without loading it."""
  task.refuse_cache_dir('digits', options)
  task.check_num_clients(options, MAX_CLIENTS)


def load(options: data_options.Data) -> population.Population:
  """Handwritten digits, split over clients with label skew.

  Raises:
    ValueError: If there are more clients than training images.
  """
  import sklearn.datasets  # Takes a second; flags are checked without it.

  images = sklearn.datasets.load_digits()
  inputs = (images.images[..., np.newaxis] / 16.0).astype(np.float32)
  labels = images.target.astype(np.int32)
  rng = np.random.default_rng([options.seed, 0])
  order = rng.permutation(len(labels))
  test, train = order[:_NUM_TEST_IMAGES], order[_NUM_TEST_IMAGES:]
  assert options.num_clients is not None
  parts = partition.split_with_label_skew(
    labels[train], options.num_clients, options.dirichlet_alpha, rng
  )
  clients = [{'x': inputs[train[part]], 'y': labels[train[part]]} for part in parts]
  return population.Population(
    clients=dict(enumerate(clients)),
    num_clients=len(clients),
    test_examples=(inputs[test], labels[test]),
    shape=population.Shape(
      inputs=inputs.shape[1:],
      input_dtype='float32',
      labels=(),
      label_kind='class',
      num_classes=_NUM_CLASSES,
    ),
    facts={'training examples': len(train), 'test examples': len(test)},
  )


TASK = task.Task(
  name='digits',
  summary='logistic regression on handwritten digits, which shows in some 15 seconds '
  'what privacy costs',
  check=check,
  load=load,
  defaults=task.Defaults(
    model='logistic',
    metric='accuracy',
    num_rounds=100,
    num_clients=300,
    clients_per_round=30,
    min_separation=10,
    clip_norm=1.0,
    batch_size=5,
    local_epochs=1,
    client_learning_rate=0.5,
    server_learning_rate=0.2,
  ),
)
