"""Breast cancer: two classes of 569 tumours, from 30 numbers each.

The data are scikit-learn's (`load_breast_cancer`), which ship with the package. A fifth
is held out. Numbers are brought to mean 0 and standard deviation 1 over the training
examples, which is computed without noise, so reports say that no privacy covers it.
"""

import numpy as np

from ..data import partition
from ..data import population
from ..options import data as data_options
from . import task

_NUM_EXAMPLES = 569
_NUM_TEST_EXAMPLES = 114  # A fifth.
MAX_CLIENTS = _NUM_EXAMPLES - _NUM_TEST_EXAMPLES


def check(options: data_options.Data) -> None:
  """Checks that there is data for so many clients, without loading it."""
  task.refuse_cache_dir('breast_cancer', options)
  task.check_num_clients(options, MAX_CLIENTS)


def load(options: data_options.Data) -> population.Population:
  """Tumours, split over clients with label skew.

  Raises:
    ValueError: If there are more clients than training examples.
  """
  import sklearn.datasets  # Takes a second; flags are checked without it.

  data = sklearn.datasets.load_breast_cancer()
  labels = data.target.astype(np.int32)
  rng = np.random.default_rng([options.seed, 0])
  order = rng.permutation(len(labels))
  test, train = order[:_NUM_TEST_EXAMPLES], order[_NUM_TEST_EXAMPLES:]
  mean, stddev = data.data[train].mean(axis=0), data.data[train].std(axis=0)
  inputs = ((data.data - mean) / stddev).astype(np.float32)
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
      num_classes=2,
      names=tuple(str(name) for name in data.target_names),
    ),
    facts={'training examples': len(train), 'test examples': len(test)},
    not_covered=(
      "Features were scaled by the mean and standard deviation of all clients' "
      'training examples.',
    ),
  )


TASK = task.Task(
  name='breast_cancer',
  summary='logistic regression on a small table, where few clients have to hide behind '
  'much noise',
  check=check,
  load=load,
  defaults=task.Defaults(
    model='logistic',
    metric='accuracy',
    num_rounds=60,
    num_clients=150,
    clients_per_round=30,
    min_separation=5,
    clip_norm=1.0,
    batch_size=4,
    local_epochs=1,
    client_learning_rate=0.5,
    server_learning_rate=0.05,
  ),
)
