"""Small data that ship with scikit-learn, of which a fifth is held out.

Digits: 1,797 images of 8 x 8 pixels in 10 classes. Breast cancer: two classes of 569
tumours, from 30 numbers each; these are brought to mean 0 and standard deviation 1 over
the training examples, which is computed without noise, so reports say that no privacy
covers it.
"""

from typing import Any, Optional

import numpy as np

from ..data import population
from ..options import data as data_options
from . import task


def _task(name: str, num_examples: int, **said: Any) -> task.Task:
  num_test = round(num_examples / 5)

  def check(options: data_options.Data) -> None:
    task.refuse_cache_dir(name, options)
    task.check_num_clients(options, num_examples - num_test)

  def load(options: data_options.Data) -> population.Population:
    import sklearn.datasets  # Takes a second; flags are checked without it.

    found = getattr(sklearn.datasets, f'load_{name}')()
    labels = found.target.astype(np.int32)
    rng = np.random.default_rng([options.seed, 0])
    order = rng.permutation(len(labels))
    test, train = order[:num_test], order[num_test:]
    names: Optional[tuple[str, ...]] = None
    not_covered: tuple[str, ...] = ()
    if name == 'digits':
      inputs = (found.images[..., np.newaxis] / 16.0).astype(np.float32)
    else:
      mean, stddev = found.data[train].mean(axis=0), found.data[train].std(axis=0)
      inputs = ((found.data - mean) / stddev).astype(np.float32)
      names = tuple(str(each) for each in found.target_names)
      not_covered = (
        "Features were scaled by the mean and standard deviation of all clients' "
        'training examples.',
      )
    return task.dealt_out(
      (inputs[train], labels[train]),
      (inputs[test], labels[test]),
      options,
      rng,
      num_classes=len(found.target_names),
      names=names,
      not_covered=not_covered,
    )

  return task.Task(name=name, check=check, load=load, **said)


DIGITS = _task(
  'digits',
  1797,
  summary='logistic regression on handwritten digits, which shows in some 15 seconds '
  'what privacy costs',
  defaults=task.Defaults(
    model='logistic',
    metric='accuracy',
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
  summary='logistic regression on a small table, where few clients have to hide behind '
  'much noise',
  defaults=task.Defaults(
    model='logistic',
    metric='accuracy',
    num_rounds=60,
    num_clients=150,
    clients_per_round=30,
    min_separation=5,
    batch_size=4,
    client_learning_rate=0.5,
    server_learning_rate=0.05,
  ),
)
