"""The kept preprocessing of training data turns new data into the same inputs."""

import json
import os

import numpy as np
import pytest

from experiments.data import preprocessing
from experiments.data import problems
from tests.experiments.data import own_data

_ROWS = [
  {
    'who': f'client {(i * 5) % 7}',
    'age': 1e7 + i / 3,
    'town': ['Ulm', 'Bern', 'Köln, "Süd"'][i % 3],
    'size': [0.1, 2.5, 1e3][i % 2],
    'bought': i % 2,
  }
  for i in range(70)
]
# Other rows of the same kind, in another order.
_NEW = [{**row, 'age': row['age'] + 0.25, 'who': 'new'} for row in _ROWS[:21][::-1]]


def _csv(path, rows):
  lines = [list(rows[0]), *(row.values() for row in rows)]
  quoted = [[f'"{str(v).replace(chr(34), chr(34) * 2)}"' for v in ln] for ln in lines]
  path.write_text(''.join(','.join(line) + '\n' for line in quoted), encoding='utf-8')


def _json(path, rows):
  own_data.write_json(path, rows)


def _npz(path, rows):
  np.savez(path, **{name: np.array([row[name] for row in rows]) for name in rows[0]})


def _folder(path, rows):
  os.makedirs(path)
  for who in dict.fromkeys(row['who'] for row in rows):
    own = [row for row in rows if row['who'] == who]
    _csv(path / f'{who}.csv', [{k: v for k, v in r.items() if k != 'who'} for r in own])


@pytest.mark.parametrize(
  ('write', 'ending'),
  [(_csv, '.csv'), (_json, '.jsonl'), (_npz, '.npz'), (_folder, '')],
)
def test_new_data_are_prepared_like_test_data(write, ending, tmp_path):
  train, new = tmp_path / f'train{ending}', tmp_path / f'new{ending}'
  write(train, _ROWS)
  write(new, _NEW)
  columns = {} if write is _folder else {'client_column': 'who'}
  population = own_data.load(
    train, label_column='bought', test_data=str(new), **columns
  )
  kept = json.loads(json.dumps(population.preprocessing.to_json()))
  restored = preprocessing.Preprocessing.from_json(kept)
  assert restored == population.preprocessing
  data = restored.read(str(new))
  x, y = data.arrays()
  expected = population.test_examples
  np.testing.assert_array_equal(x, expected[0])
  np.testing.assert_array_equal(y, expected[1])
  assert x.dtype == expected[0].dtype and y.dtype == expected[1].dtype
  np.testing.assert_array_equal(y, [row['bought'] for row in _NEW])
  (chunk,) = data.chunks()
  assert chunk.clients == ['new'] * 21
  assert data.client_column == ('client' if write is _folder else 'who')
  assert data.unused == ()
  with pytest.raises(ValueError, match='what a run keeps'):
    preprocessing.Preprocessing.from_json({**kept, 'shape': 'wide'})


@pytest.mark.parametrize('flags', [{}, {'label_kind': 'class'}], ids=str)
def test_booleans_are_read_as_in_training(flags, tmp_path):
  path = tmp_path / 'train.jsonl'
  _json(path, [{**row, 'bought': row['bought'] == 1} for row in _ROWS])
  columns = {'client_column': 'who', 'label_column': 'bought', **flags}
  population = own_data.load(path, **columns)
  names = ('False', 'True') if flags else ('0', '1')
  assert population.shape.names == names
  _, y = population.preprocessing.read(str(path)).arrays()
  np.testing.assert_array_equal(y, [row['bought'] for row in _ROWS])


@pytest.mark.parametrize(
  ('one', 'two'), [('01', '02'), ('1e0', '2e0'), ('١', '٢'), ([[1]], [[2]])], ids=str
)
def test_classes_that_are_numbers_are_read_as_in_training(one, two, tmp_path):
  path = tmp_path / 'train.jsonl'
  _json(path, [{**row, 'bought': (one, two)[row['bought']]} for row in _ROWS])
  kept = own_data.load(path, client_column='who', label_column='bought').preprocessing
  assert kept.shape.names == ('1', '2')
  _, y = kept.read(str(path)).arrays()
  np.testing.assert_array_equal(y, [row['bought'] for row in _ROWS])
  with pytest.raises(problems.DataError, match="bought is '03', which the training"):
    _json(path, [{**_ROWS[0], 'bought': '03'}])
    kept.read(str(path))


def test_classes_that_are_names_may_have_zeros_in_front(tmp_path):
  path = tmp_path / 'train.csv'
  _csv(path, [{**row, 'bought': ('1', '01')[row['bought']]} for row in _ROWS])
  columns = {'client_column': 'who', 'label_column': 'bought', 'label_kind': 'class'}
  kept = own_data.load(path, **columns).preprocessing
  assert kept.shape.names == ('01', '1')
  assert kept.read(str(path)).arrays()[1].tolist() == [1, 0] * 35
  _csv(path, [{**row, 'bought': row['bought'] + 1} for row in _ROWS])
  kept = own_data.load(path, **columns).preprocessing
  (tmp_path / 'preprocessing.json').write_text(json.dumps(kept.to_json()))
  config = {'flags': {'label_kind': 'class'}}
  (tmp_path / 'config.json').write_text(json.dumps(config))
  _csv(path, [{**_ROWS[0], 'bought': '01'}])
  for each in (kept, preprocessing.of_run(str(tmp_path))):
    with pytest.raises(problems.DataError, match="bought is '01', which the training"):
      each.read(str(path))


def test_new_rows_may_lack_clients_and_labels(tmp_path):
  train, new = tmp_path / 'train.csv', tmp_path / 'new.csv'
  _csv(train, _ROWS)
  _csv(new, [{**{k: r[k] for k in ('size', 'town', 'age')}, 'more': 1} for r in _NEW])
  population = own_data.load(train, client_column='who', label_column='bought')
  data = population.preprocessing.read(str(new))
  x, y = data.arrays()
  assert y is None and not data.has_labels and data.client_column is None
  assert data.unused == ('more',)
  _csv(new, _NEW)
  np.testing.assert_array_equal(x, population.preprocessing.read(str(new)).arrays()[0])
  with pytest.raises(problems.DataError, match="no column 'town'"):
    _csv(new, [{'age': 1, 'size': 2}])
    population.preprocessing.read(str(new))


def test_new_texts_are_read_from_folder_and_file(tmp_path):
  for name, count in (('train', 12), ('new', 3)):
    os.makedirs(tmp_path / name)
    for number in range(count):
      text = 'to be or not ' * (1 + number) + 'é'
      (tmp_path / name / f'{number}.txt').write_text(text, encoding='utf-8')
  new = tmp_path / 'new'
  population = own_data.load(
    tmp_path / 'train', text_unit='character', sequence_length=9, test_data=str(new)
  )
  data = population.preprocessing.read(str(new))
  x, y = data.arrays()
  np.testing.assert_array_equal(x, population.test_examples[0])
  np.testing.assert_array_equal(y, population.test_examples[1])
  (chunk,) = data.chunks()
  assert sorted(chunk.clients) == ['0', '1', '2']
  names = population.shape.names
  for tokens, last in zip(chunk.inputs, chunk.last):
    assert ''.join(names[token] for token in tokens) == 'e or not é'[-9:]
    assert last == 8
  (tmp_path / 'new.txt').write_text('to\n\nbe or not to be\n')
  (chunk,) = population.preprocessing.read(str(tmp_path / 'new.txt')).chunks()
  assert chunk.clients is None
  assert [names[token] for token in chunk.inputs[0][:4]] == ['<bos>', 't', 'o', '<pad>']
  assert chunk.last.tolist() == [2, 8]


def test_of_run_refuses_missing_or_broken_preprocessing(tmp_path):
  (tmp_path / 'config.json').write_text('{}')
  with pytest.raises(FileNotFoundError, match='of a run on --data of your own'):
    preprocessing.of_run(str(tmp_path))
  for text in ('{', '[]', '{"shape": {}}', '{"shap": 1}'):
    (tmp_path / 'preprocessing.json').write_text(text)
    with pytest.raises(ValueError, match=r'preprocessing.json cannot be read: .* back'):
      preprocessing.of_run(str(tmp_path))
