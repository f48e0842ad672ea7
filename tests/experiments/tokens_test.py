"""Tokens: texts become the numbers that TFF's baselines make of them."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_federated.python.simulation.baselines import client_spec
from tensorflow_federated.python.simulation.baselines.shakespeare import (
  char_prediction_preprocessing as shakespeare_baseline,
)
from tensorflow_federated.python.simulation.baselines.stackoverflow import (
  word_prediction_preprocessing as stackoverflow_baseline,
)

from experiments.data import tokens
from experiments.tasks import databases

SPEC = client_spec.ClientSpec(num_epochs=1, batch_size=100, shuffle_buffer_size=1)


def _of_baseline(preprocess, key, texts):
  dataset = tf.data.Dataset.from_tensor_slices(collections.OrderedDict({key: texts}))
  batches = list(preprocess(dataset).as_numpy_iterator())
  return [np.concatenate(each) for each in zip(*batches)]


def test_sentences_are_those_of_the_baseline_of_stackoverflow():
  words = ['the', 'of', 'list', '<URL>']
  sentences = ['the list of  lists', 'the', 'a b c d e f', 'of of of of of', '']
  vocabulary = tokens.Vocabulary(words)
  preprocess = stackoverflow_baseline.create_preprocess_fn(SPEC, words, 5)
  x, y = _of_baseline(preprocess, 'tokens', sentences)
  rows = np.stack([vocabulary.sentence(each.split(' '), 5) for each in sentences])
  found = tokens.examples(rows)
  assert np.array_equal(found['x'], x)
  assert np.array_equal(found['y'], y)
  special = stackoverflow_baseline.get_special_tokens(len(words))
  assert (tokens.PADDING, [vocabulary.unknown], vocabulary.begin, vocabulary.end) == (
    special.padding,
    special.out_of_vocab,
    special.beginning_of_sentence,
    special.end_of_sentence,
  )


def test_sequences_are_those_of_the_baseline_of_shakespeare():
  texts = [b'Hark!', b"When? 'Twas 9 of \xc3\xa9 <>\n", b'x' * 85, b'y' * 79]
  preprocess = shakespeare_baseline.create_preprocess_fn(SPEC, 80)
  x, y = _of_baseline(preprocess, 'snippets', texts)
  sequences = [
    databases.CHARACTERS.sequences(each.decode('latin-1'), 80) for each in texts
  ]
  found = tokens.examples(np.concatenate(sequences))
  assert np.array_equal(found['x'], x)
  assert np.array_equal(found['y'], y)
  assert list(databases.CHARACTERS.entries) == shakespeare_baseline.CHAR_VOCAB


def test_names_are_those_of_the_tokens():
  vocabulary = tokens.Vocabulary(['a', 'b'])
  assert len(vocabulary.names) == vocabulary.num_tokens == 6
  assert vocabulary.names[vocabulary.unknown] == '<oov>'
  assert vocabulary.names[vocabulary.end] == '<eos>'


def test_an_entry_that_is_there_twice_is_refused():
  with pytest.raises(ValueError, match='twice'):
    tokens.Vocabulary(['a', 'a'])
