"""Tasks on data that `tff.simulation.datasets` and Keras store in a `--cache_dir`.

Nothing is downloaded here: an error names missing files before TensorFlow is loaded. A
client's examples are read from the database on demand, so a population needs little
memory; test examples have a split of their own.
"""

import functools
import io
import os
import pathlib
import pickle
import re
import tarfile
import types
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from ..data import population
from ..data import texts
from ..data.formats import sqlite_clients
from ..options import data as data_options
from . import task

_Features = Mapping[str, tuple[str, list[int]]]
_Parse = Callable[..., dict[str, np.ndarray]]
_SERVER = 'https://storage.googleapis.com/tff-datasets-public/'


def path_of(
  options: data_options.Data, task_name: str, names: Sequence[str], source: str
) -> str:
  origin = f'It comes from {source}; nothing is downloaded here.'
  if options.cache_dir is None:
    raise ValueError(
      f'--task={task_name} reads {names[0]} in the folder --cache_dir; give that. '
      f'{origin}'
    )
  paths = [os.path.join(os.path.abspath(options.cache_dir), name) for name in names]
  for path in paths:
    if os.path.exists(path):
      return path
  raise FileNotFoundError(f'--task={task_name} needs {" or ".join(paths)}. {origin}')


def _database(options: data_options.Data, name: str) -> str:
  file = 'emnist_all.sqlite' if name == 'emnist' else f'{name}.sqlite'
  loader = f'tff.simulation.datasets.{name}.load_data(cache_dir=...)'
  source = f'{loader}, which unpacks {_SERVER}{file}.lzma'
  path = path_of(options, name, [file], source)
  with sqlite_clients.connected(path):  # Refuses another database.
    return path


class _Split:
  """The clients of a split, read on demand, as `learning.train` takes them.

  `features`: Dtype and shape of each feature of the serialised `tf.train.Example`s.
  `parse`: Makes inputs and labels of the features.
  """

  def __init__(
    self, path: str, split: str, features: _Features, parse: _Parse, max_examples: int
  ):
    self._path, self._split, self._parse = path, split, parse
    self._features, self._max_examples = features, max_examples
    query = 'SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ?'
    self.ids = tuple(sorted(id_ for (id_,) in self._rows(query, split)))
    if not self.ids:
      raise ValueError(f'{path} has no clients in the split {split!r}.')

  def examples(self, id_: str) -> dict[str, np.ndarray]:
    import tensorflow as tf

    query = (
      'SELECT serialized_example_proto FROM examples '
      'WHERE client_id = ? AND split_name = ? LIMIT ?'
    )
    rows = self._rows(query, id_, self._split, self._max_examples)
    specs = {
      name: tf.io.FixedLenFeature(shape, tf.as_dtype(dtype))
      for name, (dtype, shape) in self._features.items()
    }
    serialized = tf.constant([each for (each,) in rows], tf.string)
    try:
      tensors = tf.io.parse_example(serialized, specs)
    except tf.errors.InvalidArgumentError as e:
      raise ValueError(
        f'{self._path}: examples of client {id_!r} are not those of this task: '
        f'{e.message}'
      ) from e
    return self._parse(*(tensors[name].numpy() for name in self._features))

  def first(self, limit: Optional[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns examples of one client after the other, at most `limit`."""
    parts: list[dict[str, np.ndarray]] = []
    for id_ in self.ids:
      if limit is not None and sum(len(each['x']) for each in parts) >= limit:
        break
      parts.append(self.examples(id_))
    x, y = (np.concatenate([each[key] for each in parts])[:limit] for key in 'xy')
    return x, y

  def _rows(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
    with sqlite_clients.connected(self._path) as connection:
      return connection.execute(query, arguments).fetchall()


def _task(
  name: str, summary: str, defaults: task.Defaults, **of_population: Any
) -> task.Task:
  return task.Task(
    name,
    f'{summary} (needs --cache_dir)',
    functools.partial(_database, name=name),
    functools.partial(_population, name=name, **of_population),
    defaults,
  )


def _population(
  options: data_options.Data,
  name: str,
  features: _Features,
  parse: _Parse,
  splits: Sequence[str] = ('train', 'test'),
  max_examples: int = -1,  # Examples of each client; -1 for all.
  max_test_examples: Optional[int] = None,
  facts: Mapping[str, Any] = types.MappingProxyType({}),
  **fields: Any,
) -> population.Population:
  path = _database(options, name)
  clients, test = (
    _Split(path, split, features, parse, max_examples) for split in splits
  )
  x, y = test.first(max_test_examples)
  return population.Population(
    clients=clients,
    num_clients=len(clients.ids),
    test_examples=(x, y),
    facts={'clients': len(clients.ids), 'test examples': len(y), **facts},
    **fields,
  )


# The EMNIST experiment of DP-FTRL (arXiv:2103.00039): digits of 3,383 writers, and test
# images of the same ones, as in google-research/federated, dp_ftrl/run_emnist.py.
EMNIST = _task(
  'emnist',
  'digits by writer with the convolutional network of DP-FTRL',
  task.Defaults(
    model='cnn',
    num_rounds=300,
    clients_per_round=100,
    min_separation=30,
    batch_size=16,
    client_learning_rate=0.02,
    server_learning_rate=1.0,
  ),
  features={'pixels': ('float32', [28, 28, 1]), 'label': ('int64', [])},
  parse=lambda pixels, label: {'x': pixels, 'y': label.astype(np.int32)},
  splits=('digits_only_train', 'digits_only_test'),
  shape=population.Shape((28, 28, 1), 'float32', (), 'class', 10),
  not_covered=(population.HELD_OUT_OF_CLIENTS,),
)


# CIFAR-100 over 500 clients, split by Pachinko allocation (arXiv:2003.00295), and test
# images of other clients. Each image is standardised by its own mean and standard
# deviation, as in `tff.simulation.baselines.cifar100`, but not cropped at random. The
# papers' network is ResNet-18 with group normalisation.


def _images(image: np.ndarray, label: np.ndarray) -> dict[str, np.ndarray]:
  import tensorflow as tf

  images = tf.image.per_image_standardization(image).numpy()
  return {'x': images, 'y': label.astype(np.int32)}


CIFAR100 = _task(
  'cifar100',
  'small images in 100 classes over 500 clients: too few for much privacy',
  task.Defaults(
    model='simple_cnn',
    num_rounds=300,
    clients_per_round=50,
    min_separation=10,
    batch_size=20,
    client_learning_rate=0.1,
    server_learning_rate=0.5,
  ),
  features={'image': ('int64', [32, 32, 3]), 'label': ('int64', [])},
  parse=_images,
  shape=population.Shape((32, 32, 3), 'float32', (), 'class', 100),
)


# The next character in Shakespeare's plays, by role (arXiv:1602.05629, 2003.00295):
# 715 roles, with test snippets of the same roles. As in
# `tff.simulation.baselines.shakespeare`, whose order of characters this is, a snippet
# becomes sequences of 80 characters and their successors, the last one padded.
CHARACTERS = texts.Vocabulary(
  'character',
  tuple(
    'dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#\'/37;?bfjnrvzBFJNRVZ"&*.26:\naeimquyAEIMQUY]!'
    '%)-159\r'
  ),
)


def _snippets(snippets: np.ndarray) -> dict[str, np.ndarray]:
  # A character is a byte, as in TFF; those beyond ASCII are out of vocabulary.
  sequences = [CHARACTERS.sequences(each.decode('latin-1'), 80) for each in snippets]
  return texts.examples(np.concatenate(sequences))


SHAKESPEARE = _task(
  'shakespeare',
  "the next character of a role's lines with two LSTMs: few clients, so privacy costs "
  'much',
  task.Defaults(
    model='char_lstm',
    metric='token_accuracy',
    num_rounds=1200,
    clients_per_round=50,
    min_separation=14,
    batch_size=4,
    client_learning_rate=1.0,
    server_learning_rate=1.0,
  ),
  features={'snippets': ('string', [])},
  parse=_snippets,
  shape=CHARACTERS.shape(80),
  not_covered=(population.HELD_OUT_OF_CLIENTS,),
)


# The next word in answers on StackOverflow, by user, as in google-research/federated
# (dp_ftrl, dp_matrix_factorization), and so in arXiv:2103.00039, 2202.08312 and
# 2306.08153: the 10,000 most frequent words, 20 tokens a sentence, of which a truncated
# one has no end, and the first 256 sentences of a user. Test sentences are of the same
# users at later dates. `token_accuracy` is `accuracy_no_oov_or_eos` there.
_WORDS = 'stackoverflow.word_count'
_NUM_WORDS = 10_000
_LENGTH = 20
_MAX_SENTENCES = 256
_NUM_TEST_SENTENCES = 10_000


def _check_stackoverflow(options: data_options.Data) -> str:
  _database(options, 'stackoverflow')
  source = 'tff.simulation.datasets.stackoverflow.load_word_counts(cache_dir=...)'
  return path_of(options, 'stackoverflow', [f'datasets/{_WORDS}.tar.bz2'], source)


def _vocabulary(path: str) -> texts.Vocabulary:
  with tarfile.open(path) as archive:
    content = archive.extractfile(_WORDS)
    assert content is not None
    lines = content.read().decode('utf-8').splitlines()[:_NUM_WORDS]
  for number, line in enumerate(lines, start=1):
    if not re.fullmatch(r'\S+\s+\d+', line.strip()):
      raise ValueError(f'{path}, line {number}: {line!r} is not a word and its count.')
  return texts.Vocabulary('word', tuple(line.split()[0] for line in lines))


def _stackoverflow(options: data_options.Data) -> population.Population:
  vocabulary = _vocabulary(_check_stackoverflow(options))
  num_words = len(vocabulary.entries)

  def parse(sentences: np.ndarray) -> dict[str, np.ndarray]:
    words = (each.decode('utf-8', 'replace').split(' ') for each in sentences)
    # The first sequence: a truncated sentence has no end.
    rows = [vocabulary.sequences(each, _LENGTH)[0] for each in words]
    return texts.examples(np.stack(rows))

  unscored = (vocabulary.unknown, vocabulary.begin, vocabulary.end)
  return _population(
    options,
    'stackoverflow',
    {'tokens': ('string', [])},
    parse,
    max_examples=_MAX_SENTENCES,
    max_test_examples=_NUM_TEST_SENTENCES,
    facts={'words in the vocabulary': num_words},
    shape=vocabulary.shape(_LENGTH, unscored_labels=unscored),
    not_covered=(
      f"The vocabulary of {num_words} words was counted over the training clients' "
      'sentences, by those who published the data.',
      'Test metrics are computed from later sentences, many of the same clients.',
    ),
  )


STACKOVERFLOW = task.Task(
  name='stackoverflow',
  summary='the next word with the LSTM of the papers on DP-FTRL and matrix '
  'factorization (needs --cache_dir)',
  check=_check_stackoverflow,
  load=_stackoverflow,
  defaults=task.Defaults(
    model='word_lstm',
    metric='token_accuracy',
    num_rounds=1600,
    clients_per_round=100,
    min_separation=342,
    batch_size=16,
    client_learning_rate=0.5,
    server_learning_rate=0.5,
    target_delta=1e-6,  # 1e-5 is more than one over the clients.
  ),
)


# CIFAR-10, from the files that Keras stores, has no clients: 1,000 are made, each with
# its own label distribution from a Dirichlet distribution (arXiv:1909.06335), as in
# pfl-research's benchmark with alpha 0.1; arXiv:2306.08153 has a client for each image,
# --num_clients=50000. Pixels are scaled to [-1, 1], which needs no statistics of the
# clients, as mean and standard deviation would; images are not flipped or cropped.
_FOLDER = 'cifar-10-batches-py'
_BATCHES = (*(f'data_batch_{number}' for number in range(1, 6)), 'test_batch')
# Keras unpacks to the first; at its source the archive is cifar-10-python.tar.gz.
_NAMES = (
  f'datasets/{_FOLDER}',
  f'datasets/{_FOLDER}.tar.gz',
  _FOLDER,
  f'{_FOLDER}.tar.gz',
  'cifar-10-python.tar.gz',
  'cifar10.npz',
)


def _check_cifar10(options: data_options.Data) -> str:
  source = (
    'https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz, which '
    'tf.keras.datasets.cifar10.load_data() unpacks under ~/.keras; an .npz has '
    'x_train, y_train, x_test and y_test'
  )
  return path_of(options, 'cifar10', _NAMES, source)


class _Unpickler(pickle.Unpickler):
  """Unpickles arrays and plain values; refuses anything that could run code."""

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


def _read(path: str) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns images and labels for training, then those for testing."""
  if path.endswith('.npz'):
    with np.load(path, allow_pickle=False) as arrays:
      names = ('train', 'test')
      return [(arrays[f'x_{each}'], arrays[f'y_{each}'].reshape(-1)) for each in names]
  if os.path.isdir(path):
    contents = [pathlib.Path(path, name).read_bytes() for name in _BATCHES]
  else:
    archive: Any
    with tarfile.open(path) as archive:
      contents = [archive.extractfile(f'{_FOLDER}/{each}').read() for each in _BATCHES]
  batches = [_Unpickler(io.BytesIO(each), encoding='bytes').load() for each in contents]
  images = [
    np.asarray(each[b'data']).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    for each in batches
  ]
  labels = [np.asarray(each[b'labels']) for each in batches]
  train = np.concatenate(images[:-1]), np.concatenate(labels[:-1])
  return [train, (images[-1], labels[-1])]


def _scaled(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  is_valid = images.shape[1:] == (32, 32, 3) and images.dtype == np.uint8
  is_valid &= labels.shape == images.shape[:1] and len(labels) > 0
  if not is_valid or labels.min() < 0 or labels.max() > 9:
    raise ValueError(
      'it must have uint8 images of [images, 32, 32, 3] and as many labels from 0 to '
      f'9; it has {images.dtype} of {list(images.shape)} and labels of '
      f'{list(labels.shape)}'
    )
  return (images / np.float32(127.5) - 1).astype(np.float32), labels.astype(np.int32)


def _read_cifar10(
  options: data_options.Data, rng: np.random.Generator
) -> dict[str, Any]:
  path = _check_cifar10(options)
  try:
    train, test = (_scaled(*each) for each in _read(path))
  except Exception as e:  # Pickles and archives that are not whole raise many types.
    raise ValueError(f'{path} is not CIFAR-10: {e}.') from e
  return {'train': train, 'test': test}


CIFAR10 = task.of_made_clients(
  'cifar10',
  50_000,
  10,
  _check_cifar10,
  _read_cifar10,
  summary='small images dealt out to 1,000 clients with skewed labels, as in '
  "pfl-research's benchmark (needs --cache_dir)",
  defaults=task.Defaults(
    model='simple_cnn',
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
