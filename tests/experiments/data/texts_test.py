"""Texts: tokens match TFF's baselines, and no part of a text is lost."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_federated.python.simulation.baselines import client_spec
from tensorflow_federated.python.simulation.baselines.shakespeare import (
  char_prediction_preprocessing as shakespeare,
)
from tensorflow_federated.python.simulation.baselines.stackoverflow import (
  word_prediction_preprocessing as stackoverflow,
)

from experiments.data import problems
from experiments.data import texts
from experiments.tasks import cached
from tests.experiments.data import own_data

COLUMNS = {'client_column': 'who', 'text_column': 'said'}
SPEC = client_spec.ClientSpec(num_epochs=1, batch_size=100, shuffle_buffer_size=1)


def _of_baseline(preprocess, key, values):
  dataset = tf.data.Dataset.from_tensor_slices({key: values})
  batches = list(preprocess(dataset).as_numpy_iterator())
  return [np.concatenate(each) for each in zip(*batches)]


def test_character_sequences_match_shakespeare_baseline():
  text = b"To be? 'Twas 9 of \xc3\xa9 {~}\n" * 9
  snippets = [text[:length] for length in (0, 1, 78, 79, 80, 81, 200)]
  preprocess = shakespeare.create_preprocess_fn(SPEC, 80)
  expected = _of_baseline(preprocess, 'snippets', snippets)
  sequences = [
    cached.CHARACTERS.sequences(each.decode('latin-1'), 80) for each in snippets
  ]
  actual = texts.examples(np.concatenate(sequences))
  assert np.array_equal(actual['x'], expected[0])
  assert np.array_equal(actual['y'], expected[1])
  assert list(cached.CHARACTERS.entries) == shakespeare.CHAR_VOCAB
  assert len(cached.CHARACTERS.names) == len(shakespeare.CHAR_VOCAB) + 4


def test_word_sentences_match_stackoverflow_baseline():
  words = ('the', 'of', 'list', '<URL>')
  sentences = ['the list of  lists', 'the', 'a b c d e f', 'of of of of of', '']
  vocabulary = texts.Vocabulary('word', words)
  preprocess = stackoverflow.create_preprocess_fn(SPEC, list(words), 5)
  x, y = _of_baseline(preprocess, 'tokens', sentences)
  rows = np.stack([vocabulary.sequences(each.split(' '), 5)[0] for each in sentences])
  actual = texts.examples(rows)
  assert np.array_equal(actual['x'], x)
  assert np.array_equal(actual['y'], y)
  # A short text is a single sequence.
  sequence = vocabulary.sequences('the list', 5)
  assert np.array_equal(sequence[0], vocabulary.sequences(['the', 'list'], 5)[0])
  special = stackoverflow.get_special_tokens(len(words))
  assert (texts.PADDING, [vocabulary.unknown], vocabulary.begin, vocabulary.end) == (
    special.padding,
    special.out_of_vocab,
    special.beginning_of_sentence,
    special.end_of_sentence,
  )
  with pytest.raises(ValueError, match='twice'):
    texts.Vocabulary('word', ('a', 'a'))


def test_most_frequent_breaks_ties_by_order():
  vocabulary = texts.most_frequent(['b a c', 'c b', 'd c'], 'word', 3)
  assert vocabulary.entries == ('c', 'b', 'a')
  vocabulary = texts.most_frequent(['hello'], 'character', 2)
  assert vocabulary.entries == ('l', 'e')
  assert vocabulary.names == ('<pad>', 'l', 'e', '<oov>', '<bos>', '<eos>')


def _decode(population, sequences):
  """Returns the texts of sequences that have a whole text each."""
  names = population.shape.names
  x, y = sequences['x'], sequences['y']
  decoded = []
  for inputs, labels in zip(x, y):
    assert np.array_equal(inputs[1:], labels[:-1])
    tokens = [inputs[0], *labels]
    decoded.append(''.join(names[token] for token in tokens).split('<eos>')[0][5:])
  return decoded


def test_every_text_is_loaded_once(tmp_path):
  rows = [{'who': f'c{i % 6}', 'said': f'text {i}'} for i in range(60)]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  loaded = own_data.load(path, **COLUMNS)
  clients = loaded.clients
  read = {
    own_data.name(clients, i): _decode(loaded, clients.examples(i)) for i in clients.ids
  }
  test_texts = _decode(loaded, dict(zip('xy', loaded.test_examples)))
  assert sorted(sum(read.values(), []) + test_texts) == sorted(r['said'] for r in rows)
  for name, decoded in read.items():
    assert sorted(decoded) == sorted(r['said'] for r in rows if r['who'] == name)
  assert loaded.shape.ignored_labels == (0,)
  assert loaded.shape.label_kind == 'tokens'
  assert loaded.shape.inputs == loaded.shape.labels == (80,)
  assert clients.examples(0)['x'].dtype == np.int32


def test_long_file_of_folder_is_split_into_sequences(tmp_path):
  folder = tmp_path / 'data'
  folder.mkdir()
  for number in range(5):
    (folder / f'{number}.txt').write_text(f'{number}' * 500 + '\nend\n')
  loaded = own_data.load(folder, text_unit='character', sequence_length=49)
  assert loaded.num_clients == 4
  for number in loaded.clients.ids:
    examples = loaded.clients.examples(number)
    tokens = np.concatenate([examples['x'][:, :1], examples['y']], axis=1).ravel()
    text = ''.join(loaded.shape.names[token] for token in tokens if token)
    name = own_data.name(loaded.clients, number)
    assert text == f'<bos>{name * 500}\nend\n<eos>'


def test_lines_of_text_file_are_split_over_clients(tmp_path):
  path = tmp_path / 'data.txt'
  path.write_text('\n\n'.join(f'line {i}' for i in range(30)))
  loaded = own_data.load(path, num_clients=6, text_unit='word')
  assert loaded.num_clients == 6
  assert loaded.facts['sequences'] == 24
  assert loaded.facts['sequences for testing, exact'] == 6


def test_vocabulary_of_training_texts_tokenizes_test_texts(tmp_path):
  rows = [{'who': f'c{i % 6}', 'said': f'hello w{i % 3}'} for i in range(60)]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  tested = own_data.write_csv(tmp_path / 'test.csv', [{'said': 'hello stranger'}])
  loaded = own_data.load(path, **COLUMNS, text_unit='word', test_data=str(tested))
  assert loaded.shape.names[1:5] == ('hello', 'w0', 'w1', 'w2')
  assert loaded.test_examples[1][0, :4].tolist() == [1, 5, 7, 0]
  assert any('vocabulary' in sentence for sentence in loaded.not_covered)
  words = tmp_path / 'words'
  words.write_text('hello\n')
  public = own_data.load(path, **COLUMNS, text_unit='word', vocabulary=str(words))
  assert public.not_covered == ()
  assert public.facts['share of unknown tokens'] == 0.25


@pytest.mark.parametrize('text', ['', '  ', 'null'])
def test_empty_text_is_refused_with_line_number(text, tmp_path):
  rows = [{'who': 'a', 'said': None if text == 'null' else text}]
  good = [{'who': 'b', 'said': 'x'}] * 9
  path = own_data.write_json(tmp_path / 'data.jsonl', good + rows)
  with pytest.raises(problems.DataError, match='line 10: said is empty'):
    own_data.load(path, **COLUMNS)
  path = own_data.write_json(tmp_path / 'data.jsonl', [*good, {'who': 'a', 'said': []}])
  with pytest.raises(problems.DataError, match=r'line 10: said is \[\], which is nei'):
    own_data.load(path, **COLUMNS)


def test_vocabulary_file_is_checked_by_line(tmp_path):
  path = tmp_path / 'words'
  for content, message in (
    ('a\nb c\n', "line 2: 'b c' is not a single word"),
    ('a\n\nb\n', "line 2: '' is not a single word"),
    ('a\nb\na\n', "line 3: 'a' is not a single word, or in a line before"),
    ('', 'is empty'),
  ):
    path.write_text(content)
    with pytest.raises(problems.DataError) as error:
      texts.from_file(str(path), 'word')
    assert message in str(error.value)
  path.write_text('to\nbe\n')
  assert texts.from_file(str(path), 'word').entries == ('to', 'be')
  path.write_text('hello')
  assert texts.from_file(str(path), 'character').entries == ('h', 'e', 'l', 'o')
  path.write_bytes(b'a\n\xff\n')
  with pytest.raises(problems.DataError, match='line 2: .*byte 0xff'):
    texts.from_file(str(path), 'character')
