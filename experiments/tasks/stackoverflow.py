"""The next word in answers on StackOverflow, by user: the experiment of DP-FTRL.

342,477 users with 135.8 million training sentences: `tff.simulation.datasets
.stackoverflow`. As in google-research/federated (dp_ftrl, dp_matrix_factorization), and
so in arXiv:2103.00039, 2202.08312 and 2306.08153: the 10,000 most frequent words, 20
tokens a sentence, at most 256 sentences of a user (the first of them), batches of 16,
one local epoch; a sentence that is cut has no end. After each round the model is
measured on 10,000 sentences of the test split, which is of the same users at later
dates. `token_accuracy` leaves out padding, words out of vocabulary and ends of
sentences (`accuracy_no_oov_or_eos` there).

The words are those of `tff.simulation.datasets.stackoverflow.load_word_counts`: counted
over the training users, without noise.
"""

import os
import tarfile

import numpy as np

from ..data import population
from ..data import tokens
from ..options import data as data_options
from . import cached
from . import task

_FILE = 'stackoverflow.sqlite'
_SPLITS = ('train', 'test')
_WORDS = 'stackoverflow.word_count'
_NUM_WORDS = 10_000
_LENGTH = 20
_MOST_SENTENCES = 256
_NUM_TEST_SENTENCES = 10_000


def check(options: data_options.Data) -> None:
  """Checks that the files are there."""
  cached.database(options, 'stackoverflow', _FILE, _SPLITS)
  _path_of_words(options)


def _path_of_words(options: data_options.Data) -> str:
  # Keras, which TFF has fetch it, keeps it in a folder of its own.
  names = [
    os.path.join(folder, _WORDS + ending)
    for folder in ('datasets', '')
    for ending in ('.tar.bz2', '')
  ]
  source = 'tff.simulation.datasets.stackoverflow.load_word_counts(cache_dir=...)'
  return cached.path_of(options, 'stackoverflow', names, source)


def _vocabulary(path: str) -> tokens.Vocabulary:
  """The most frequent words, in the order of the file."""
  try:
    if path.endswith('.tar.bz2'):
      with tarfile.open(path) as archive:
        content = archive.extractfile(_WORDS)
        assert content is not None
        text = content.read().decode('utf-8')
    else:
      with open(path, encoding='utf-8') as file:
        text = file.read()
  except (tarfile.TarError, KeyError, EOFError, UnicodeDecodeError) as e:
    raise ValueError(f'{path} cannot be read: {e}') from e
  words = []
  for number, line in enumerate(text.splitlines()[:_NUM_WORDS], start=1):
    parts = line.split()
    if len(parts) != 2 or not parts[1].isdigit():
      raise ValueError(f'{path}, line {number}: {line!r} is not a word and its count.')
    words.append(parts[0])
  if not words:
    raise ValueError(f'{path} has no words.')
  return tokens.Vocabulary(words)


def load(options: data_options.Data) -> population.Population:
  """Users and their sentences; test sentences are of later dates."""
  path = cached.database(options, 'stackoverflow', _FILE, _SPLITS)
  vocabulary = _vocabulary(_path_of_words(options))

  def parse(serialized: list[bytes]) -> dict[str, np.ndarray]:
    found = cached.features(serialized, tokens=('string', []))['tokens']
    sentences = (each.decode('utf-8', 'replace').split(' ') for each in found)
    rows = [vocabulary.sentence(words, _LENGTH) for words in sentences]
    return tokens.examples(np.stack(rows))

  clients = cached.Split(path, 'train', parse, _MOST_SENTENCES)
  test = cached.Split(path, 'test', parse, _MOST_SENTENCES)
  test_examples = test.first(_NUM_TEST_SENTENCES)
  return population.Population(
    clients=clients,
    num_clients=len(clients),
    test_examples=(test_examples['x'], test_examples['y']),
    shape=population.Shape(
      inputs=(_LENGTH,),
      input_dtype='int32',
      labels=(_LENGTH,),
      label_kind='tokens',
      num_classes=vocabulary.num_tokens,
      names=vocabulary.names,
      ignored_labels=(tokens.PADDING,),
      unscored_labels=(vocabulary.unknown, vocabulary.begin, vocabulary.end),
    ),
    facts={
      'clients': len(clients),
      'test examples': len(test_examples['y']),
      'words in the vocabulary': len(vocabulary.entries),
    },
    not_covered=(
      f'The vocabulary of {len(vocabulary.entries)} words was counted over the '
      "training clients' sentences, by those who published the data.",
      'Test metrics are computed from later sentences, many of the same clients.',
    ),
  )


TASK = task.Task(
  name='stackoverflow',
  summary='the next word with the LSTM of the papers on DP-FTRL and matrix '
  'factorization (needs --cache_dir)',
  check=check,
  load=load,
  defaults=task.Defaults(
    model='word_lstm',
    metric='token_accuracy',
    num_rounds=1600,
    num_clients=None,
    clients_per_round=100,
    min_separation=342,
    clip_norm=1.0,
    batch_size=16,
    local_epochs=1,
    client_learning_rate=0.5,
    server_learning_rate=0.5,
    target_delta=1e-6,  # 1e-5 is more than one over the clients.
  ),
)
