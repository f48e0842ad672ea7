"""SQLite databases that TensorFlow Federated writes are read without TensorFlow."""

import sqlite3

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.data import problems
from tests.experiments import cached_files
from tests.experiments.data import own_data


def _write(path, splits=None):
  ids = sorted({row['who'] for row in own_data.ROWS})

  def of_client(id_):
    rows = [row for row in own_data.ROWS if row['who'] == id_]
    return tf.data.Dataset.from_tensor_slices(
      {
        'person': tf.constant(
          [[row['age'], row['height']] for row in rows], tf.float32
        ),
        'bought': tf.constant([row['bought'] for row in rows], tf.int64),
        'words': tf.constant([f'I am {row["age"]}' for row in rows]),
      }
    )

  tff.simulation.datasets.save_to_sql_client_data(
    ids, of_client, str(path), split_names_by_client_id=splits
  )
  return path


@pytest.fixture(scope='module')
def database(tmp_path_factory):
  return _write(tmp_path_factory.mktemp('sqlite') / 'data.sqlite')


def _load(path, **more):
  return own_data.load(
    path, label_column='bought', feature_columns=('person',), scaling='none', **more
  )


def test_every_example_written_by_tff_is_read_once(database):
  clients, tested = own_data.everything(_load(database))
  written = tff.simulation.datasets.SqlClientData(str(database))
  assert clients.keys() < set(written.client_ids)
  assert len(written.client_ids) - len(clients) == 1
  read = sorted(sum(clients.values(), []) + tested)
  expected = [
    (row['age'], pytest.approx(row['height'], rel=1e-6), row['bought'])
    for row in own_data.ROWS
  ]
  assert read == sorted(expected, key=lambda row: row[0])
  for id_, rows in clients.items():
    assert len(rows) == 10
    assert {row[0] % 7 for row in rows} == {(20 + int(id_[-1])) % 7}


def test_text_feature_is_read(database):
  loaded = own_data.load(database, text_column='words', text_unit='word')
  assert 'am' in loaded.shape.names
  assert loaded.facts['sequences'] == 60


def test_data_split_is_required_if_there_are_several(tmp_path):
  ids = sorted({row['who'] for row in own_data.ROWS})
  splits = {id_: 'test' if id_ > 'client 4' else 'train' for id_ in ids}
  path = _write(tmp_path / 'data.sqlite', splits)
  for split in (None, 'holdout'):
    with pytest.raises(problems.DataError, match='choose one of test, train'):
      _load(path, data_split=split)
  loaded = _load(path, data_split='train')
  clients, tested = own_data.everything(loaded)
  assert sum(map(len, clients.values())) + len(tested) == 50
  both = _load(path, data_split='train', test_data=str(path), test_split='test')
  clients, tested = own_data.everything(both)
  assert (sum(map(len, clients.values())), len(tested)) == (50, 20)
  for split in ('train', 'test'):
    with pytest.raises(problems.DataError, match='test and training data are the same'):
      _load(path, data_split=split, test_data=str(path), test_split=split)


def _edited(database, tmp_path, *statements):
  path = tmp_path / 'data.sqlite'
  path.write_bytes(database.read_bytes())
  connection = sqlite3.connect(path)
  with connection:
    for statement in statements:
      connection.execute(statement)
  connection.close()
  return path


_LONGER = cached_files.example(
  person=np.ones(3, np.float32), bought=1, words=b'I am 1'
).hex()


@pytest.mark.parametrize(
  ('statement', 'message'),
  [
    (
      f"UPDATE examples SET serialized_example_proto = x'{_LONGER}' WHERE rowid = 50",
      'row 50 of table examples: person is [1.0, 1.0, 1.0], which is of another',
    ),
    ('DELETE FROM examples', 'is empty'),
    ('DROP TABLE client_metadata', 'table client_metadata lacks client_id'),
    (
      'UPDATE examples SET serialized_example_proto = 7',
      'row 1 of table examples is not a tf.train.Example',
    ),
    (
      "UPDATE examples SET serialized_example_proto = 'x' WHERE rowid = 33",
      'row 33 of table examples is not a tf.train.Example',
    ),
    (
      "UPDATE examples SET serialized_example_proto = x'' WHERE rowid = 33",
      'row 33 of table examples: person is empty',
    ),
  ],
)
def test_wrong_databases_are_refused_with_reason(
  statement, message, database, tmp_path
):
  path = _edited(database, tmp_path, statement)
  with pytest.raises(problems.DataError) as error:
    _load(path)
  assert message in str(error.value)


def test_an_index_does_not_change_the_row_that_an_error_names(database, tmp_path):
  path = _edited(
    database,
    tmp_path,
    'CREATE INDEX by_client ON examples (client_id DESC, split_name)',
    f"UPDATE examples SET serialized_example_proto = x'{_LONGER}' WHERE rowid = 5",
  )
  with pytest.raises(problems.DataError, match='row 5 of table examples: person is'):
    _load(path)


@pytest.mark.parametrize(
  'statement',
  [
    'CREATE VIEW examples AS SELECT * FROM old',
    'CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto '
    'BLOB, PRIMARY KEY (client_id, serialized_example_proto)) WITHOUT ROWID',
  ],
  ids=('view', 'table'),
)
def test_examples_may_have_no_row_ids(statement, database, tmp_path):
  copy = 'INSERT INTO examples SELECT split_name, client_id, serialized_example_proto'
  statements = ['ALTER TABLE examples RENAME TO old', statement]
  if 'ROWID' in statement:
    statements.append(f'{copy} FROM old')
  path = _edited(database, tmp_path, *statements)
  assert own_data.same(_load(path), _load(database))
  name = 'old' if 'VIEW' in statement else 'examples'
  wrong = f"UPDATE {name} SET serialized_example_proto = x'{_LONGER}' "
  one = f'serialized_example_proto IN (SELECT MAX(serialized_example_proto) FROM {name}'
  where = f"WHERE {one} WHERE client_id = 'client 3')"
  path = _edited(path, path.parent, wrong + where)
  with pytest.raises(
    problems.DataError, match="client 'client 3' of table examples: p"
  ):
    _load(path)


def test_client_ids_may_be_integers(database, tmp_path):
  statements = []
  for name in ('examples', 'client_metadata'):
    statements += [
      f'CREATE TABLE new AS SELECT * FROM {name}',
      f'DROP TABLE {name}',
      f'ALTER TABLE new RENAME TO {name}',
      f'ALTER TABLE {name} ADD COLUMN number INTEGER',
      f'UPDATE {name} SET number = CAST(SUBSTR(client_id, 8) AS INTEGER)',
      f'ALTER TABLE {name} RENAME COLUMN client_id TO old',
      f'ALTER TABLE {name} RENAME COLUMN number TO client_id',
    ]
  clients, _ = own_data.everything(_load(_edited(database, tmp_path, *statements)))
  assert clients.keys() < set('0123456')
  assert len(clients) == 6
