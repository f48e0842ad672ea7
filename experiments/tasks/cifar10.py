"""CIFAR-10 dealt out to clients with label skew, as published experiments do.

50,000 training and 10,000 test images in 10 classes, from the files that Keras keeps.
They have no clients: each of 1,000 that are made gets 50, with a label distribution of
its own from a Dirichlet (arXiv:1909.06335), as in pfl-research's benchmark with alpha
0.1; arXiv:2306.08153 has a client for each image, --num_clients=50000. Pixels are
brought to [-1, 1], which needs no statistics of the clients; pfl-research takes mean
and standard deviation of the training images instead. Images are not flipped or cropped
at random.
"""

import io
import os
import pickle
import tarfile
from typing import Any

import numpy as np

from ..data import population
from ..options import data as data_options
from . import databases
from . import task

_FOLDER = 'cifar-10-batches-py'
_TRAIN = tuple(f'data_batch_{number}' for number in range(1, 6))
_TEST = 'test_batch'
# Keras unpacks to the first; the archive has the second's name where it comes from.
_NAMES = (
  f'datasets/{_FOLDER}',
  f'datasets/{_FOLDER}.tar.gz',
  _FOLDER,
  f'{_FOLDER}.tar.gz',
  'cifar-10-python.tar.gz',
  'cifar10.npz',
)
MAX_CLIENTS = 50_000


def check(options: data_options.Data) -> None:
  path = _path(options)
  task.check_num_clients(options, MAX_CLIENTS)
  if os.path.isdir(path):
    for name in (*_TRAIN, _TEST):
      if not os.path.isfile(os.path.join(path, name)):
        raise FileNotFoundError(f'--task=cifar10 needs {os.path.join(path, name)}.')


def _path(options: data_options.Data) -> str:
  source = (
    'https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz, which '
    'tf.keras.datasets.cifar10.load_data() unpacks under ~/.keras; an .npz has '
    'x_train, y_train, x_test and y_test'
  )
  return databases.path_of(options, 'cifar10', _NAMES, source)


class _Unpickler(pickle.Unpickler):
  """Loads arrays and plain values; nothing that could run anything."""

  _ALLOWED = {
    ('numpy', 'dtype'),
    ('numpy', 'ndarray'),
    ('numpy.core.multiarray', '_reconstruct'),
    ('numpy._core.multiarray', '_reconstruct'),
    ('_codecs', 'encode'),
  }

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) not in self._ALLOWED:
      raise pickle.UnpicklingError(f'it has a {module}.{name}, which no image has')
    return super().find_class(module, name)


def _batch(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
  try:
    batch = _Unpickler(io.BytesIO(content), encoding='bytes').load()
    images, labels = np.asarray(batch[b'data']), np.asarray(batch[b'labels'])
    return images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels
  except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as e:
    raise ValueError(f'{where} is not a batch of CIFAR-10: {e}.') from e


def _read(path: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  contents = {}
  try:
    if path.endswith('.npz'):
      with np.load(path, allow_pickle=False) as arrays:
        return {
          split: (arrays[f'x_{split}'], arrays[f'y_{split}'].reshape(-1))
          for split in ('train', 'test')
        }
    if os.path.isdir(path):
      for name in (*_TRAIN, _TEST):
        with open(os.path.join(path, name), 'rb') as file:
          contents[name] = file.read()
    else:
      with tarfile.open(path) as archive:
        for name in (*_TRAIN, _TEST):
          member = archive.extractfile(f'{_FOLDER}/{name}')
          assert member is not None
          contents[name] = member.read()
  except (tarfile.TarError, KeyError, EOFError, OSError, ValueError) as e:
    raise ValueError(f'{path} is not CIFAR-10: {e}.') from e
  batches = {
    name: _batch(content, f'{path}: {name}') for name, content in contents.items()
  }
  train = [batches[name] for name in _TRAIN]
  images, labels = (np.concatenate(each) for each in zip(*train))
  return {'train': (images, labels), 'test': batches[_TEST]}


def _scaled(path: str, images: np.ndarray, labels: np.ndarray) -> Any:
  is_right = images.shape[1:] == (32, 32, 3) and images.dtype == np.uint8
  is_right &= labels.shape == images.shape[:1] and len(labels) > 0
  if not is_right or labels.min() < 0 or labels.max() > 9:
    raise ValueError(
      f'{path} must have uint8 images of [images, 32, 32, 3] and as many labels from 0 '
      f'to 9; it has {images.dtype} of {list(images.shape)} and labels of '
      f'{list(labels.shape)}.'
    )
  return (images / np.float32(127.5) - 1).astype(np.float32), labels.astype(np.int32)


def load(options: data_options.Data) -> population.Population:
  path = _path(options)
  data = _read(path)
  rng = np.random.default_rng([options.seed, 0])
  return task.dealt_out(
    _scaled(path, *data['train']),
    _scaled(path, *data['test']),
    options,
    rng,
    num_classes=10,
  )


TASK = task.Task(
  name='cifar10',
  summary='small images dealt out to 1,000 clients with skewed labels, as in '
  "pfl-research's benchmark (needs --cache_dir)",
  check=check,
  load=load,
  defaults=task.Defaults(
    model='simple_cnn',
    metric='accuracy',
    num_rounds=1500,
    num_clients=1000,
    clients_per_round=50,
    min_separation=20,
    clip_norm=0.4,
    batch_size=10,
    client_learning_rate=0.1,
    server_learning_rate=1.0,
  ),
)
