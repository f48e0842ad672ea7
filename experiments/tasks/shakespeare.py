"""The next character in Shakespeare's plays, by role (arXiv:1602.05629, 2003.00295).

715 roles with 16,068 training snippets, and 2,356 test snippets of the same roles:
`tff.simulation.datasets.shakespeare`. As in `tff.simulation.baselines.shakespeare`, a
snippet becomes sequences of 80 characters and their successors, the last one padded; 86
characters have tokens, and with those for padding, all others, beginning and end there
are 90. All tokens but padding count in loss and accuracy.
"""

import numpy as np

from ..data import population
from ..data import tokens
from ..options import data as data_options
from . import cached
from . import task

_FILE = 'shakespeare.sqlite'
_SPLITS = ('train', 'test')
_LENGTH = 80
# In the order of tff.simulation.baselines.shakespeare.
VOCABULARY = tokens.Vocabulary(
  'dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#\'/37;?bfjnrvzBFJNRVZ"&*.26:\naeimquyAEIMQUY]!'
  '%)-159\r'
)


def check(options: data_options.Data) -> None:
  """Checks that the file is there."""
  cached.database(options, 'shakespeare', _FILE, _SPLITS)


def _parse(serialized: list[bytes]) -> dict[str, np.ndarray]:
  snippets = cached.features(serialized, snippets=('string', []))['snippets']
  # A character is a byte, as there; those beyond ASCII are out of vocabulary.
  sequences = [
    VOCABULARY.sequences(each.decode('latin-1'), _LENGTH) for each in snippets
  ]
  return tokens.examples(np.concatenate(sequences))


def load(options: data_options.Data) -> population.Population:
  """Roles and what they say; test snippets are of the same roles."""
  path = cached.database(options, 'shakespeare', _FILE, _SPLITS)
  clients, test = (cached.Split(path, name, _parse) for name in _SPLITS)
  test_examples = test.first()
  return population.Population(
    clients=clients,
    num_clients=len(clients),
    test_examples=(test_examples['x'], test_examples['y']),
    shape=population.Shape(
      inputs=(_LENGTH,),
      input_dtype='int32',
      labels=(_LENGTH,),
      label_kind='tokens',
      num_classes=VOCABULARY.num_tokens,
      names=VOCABULARY.names,
      ignored_labels=(tokens.PADDING,),
    ),
    facts={'clients': len(clients), 'test examples': len(test_examples['y'])},
    not_covered=(population.HELD_OUT_OF_CLIENTS,),
  )


TASK = task.Task(
  name='shakespeare',
  summary="the next character of a role's lines with two LSTMs: few clients, so "
  'privacy costs much (needs --cache_dir)',
  check=check,
  load=load,
  defaults=task.Defaults(
    model='char_lstm',
    metric='token_accuracy',
    num_rounds=1200,
    num_clients=None,
    clients_per_round=50,
    min_separation=14,
    clip_norm=1.0,
    batch_size=4,
    local_epochs=1,
    client_learning_rate=1.0,
    server_learning_rate=1.0,
  ),
)
