"""Formats of data: the same rows give the same population from any file."""

import gzip

import duckdb
import numpy as np
import pytest

from experiments.data import problems
from experiments.data.formats import tables
from tests.experiments.data import own_data


def _write_npz(path, **changes):
  rows = own_data.ROWS
  arrays = {
    'x': np.array([[row['age'], row['height']] for row in rows]),
    'y': np.array([row['bought'] for row in rows]),
    'client_ids': np.array([row['who'] for row in rows]),
    **changes,
  }
  arrays = {name: array for name, array in arrays.items() if array is not None}
  np.savez(path, **arrays)
  return path


@pytest.fixture(scope='module')
def of_csv(tmp_path_factory):
  path = tmp_path_factory.mktemp('csv') / 'data.csv'
  return own_data.load_rows(own_data.write_csv(path))


def test_json_lines_give_the_population_of_the_csv(of_csv, tmp_path):
  path = own_data.write_json(tmp_path / 'data.jsonl')
  assert own_data.same(of_csv, own_data.load_rows(path))


def test_folder_of_client_files_gives_the_population_of_the_csv(of_csv, tmp_path):
  files, folders = tmp_path / 'files', tmp_path / 'folders'
  files.mkdir()
  for number in range(7):
    rows = [
      {name: value for name, value in row.items() if name != 'who'}
      for row in own_data.ROWS
      if row['who'] == f'client {number}'
    ]
    own_data.write_csv(files / f'client {number}.csv', rows)
    (folders / f'client {number}').mkdir(parents=True)
    own_data.write_csv(folders / f'client {number}' / 'a.csv', rows[:4])
    own_data.write_csv(folders / f'client {number}' / 'b.csv', rows[4:])
  (files / '.hidden').write_text('nobody')
  for path in (files, folders):
    assert own_data.same(of_csv, own_data.load(path, label_column='bought'))


def test_npz_has_the_clients_and_values_of_the_csv(of_csv, tmp_path):
  loaded = own_data.load(_write_npz(tmp_path / 'data.npz'))
  assert own_data.everything(loaded) == own_data.everything(of_csv)


def test_client_ids_in_a_folder_of_npz_files_are_no_feature(tmp_path):
  folder = tmp_path / 'data'
  folder.mkdir()
  for number in range(9):
    _write_npz(folder / f'{number}.npz', client_ids=np.full(70, number))
  data = own_data.load(folder)
  assert (len(data.clients.ids), list(data.preprocessing.number_columns)) == (8, ['x'])


def test_client_ids_and_the_index_of_pandas_are_no_features(tmp_path):
  clients = np.array([row['who'] for row in own_data.ROWS])
  npz = _write_npz(tmp_path / 'data.npz', who=clients, client_ids=np.arange(70))
  csv = own_data.write_csv(tmp_path / 'data.csv')
  query = f"SELECT *, age AS __index_level_0__ FROM '{csv}'"
  parquet = _write_parquet(tmp_path / 'data.parquet', query)
  for path, label, name in (
    (npz, 'y', 'client_ids'),
    (parquet, 'bought', '__index_level_0__'),
  ):
    flags = {'client_column': 'who', 'label_column': label, 'scaling': 'none'}
    data = own_data.load(path, **flags)
    assert name not in data.preprocessing.number_columns
    assert data.remarks[0].startswith(f'{name}: an index or ids, and no feature unless')
    data = own_data.load(path, feature_columns=(name,), **flags)
    assert list(data.preprocessing.number_columns) == [name]
    assert not any('no feature' in each for each in data.remarks)


def test_npz_arrays_may_be_in_fortran_order(of_csv, tmp_path):
  x = np.array([[row['age'], row['height']] for row in own_data.ROWS], order='F')
  loaded = own_data.load(_write_npz(tmp_path / 'data.npz', x=x))
  assert own_data.everything(loaded) == own_data.everything(of_csv)


def test_npz_images_are_not_scaled(tmp_path):
  rng = np.random.default_rng(1)
  images = rng.integers(0, 256, [70, 4, 5, 1], dtype=np.uint8)
  path = _write_npz(tmp_path / 'data.npz', x=images)
  loaded = own_data.load(path)
  assert loaded.shape.inputs == (4, 5, 1)
  assert loaded.facts['scaling of numbers'] == 'none'
  clients, tested = own_data.everything(loaded)
  read = sorted(sum(clients.values(), []) + tested)
  labels = [row['bought'] for row in own_data.ROWS]
  assert read == own_data.rows_of(images, labels)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'y': np.zeros(3)}, 'y: float64[3], '),
    ({'x': np.array(1.0)}, 'x: float64[]'),
    ({'x': np.full([70, 2], np.nan)}, 'entry 0: x is'),
    ({'x': np.zeros([70, 2], complex)}, 'x: complex128[70, 2]'),
    ({'x': np.array([{}] * 70)}, 'allow_pickle=False'),  # Nothing is unpickled.
    ({'y': np.array(['a'] * 70, object)}, 'texts by .astype(str)'),
    (
      {'client_ids': np.full(70, 2**24, np.float32)},
      'which is a float of 16777216 or more, which stands for several whole numbers',
    ),
    ({'y': None}, "no column 'y'; its columns are: x, client_ids. Name columns by"),
  ],
)
def test_wrong_npz_arrays_are_refused_by_name(changes, message, tmp_path):
  path = _write_npz(tmp_path / 'data.npz', **changes)
  with pytest.raises(problems.DataError) as error:
    own_data.load(path)
  assert message in str(error.value)


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('{"who": "a", "age": 1, "height": 2', 'line 71 is not JSON: '),
    ('{"who": "a", "age": 01, "height": 2, "bought": 0}', 'line 71 is not JSON'),
    ('[1, 2]', 'line 71 is no object with the names of'),
    ('[' * 999, 'line 71 is not JSON: '),
    ('{"who": "a", "age": 1, "height": 2}', 'each once: age, bought'),
    (
      '{"who": "a", "age": 1, "height": 2, "bought": 0, "z": 1}',
      'each once: age, bought',
    ),
    (
      '{"who": "a", "age": 1, "age": 1, "height": 2, "bought": 0}',
      'each once: age, bought',
    ),
    ('{"who": "a", "age": null, "height": 2, "bought": 0}', 'line 71: age is empty'),
    ('{"who": "a", "age": NaN, "height": 2, "bought": 0}', 'age is nan, which says'),
    ('{"who": null, "age": 1, "height": 2, "bought": 0}', 'line 71: who is empty'),
    ('{"who": [1], "age": 1, "height": 2, "bought": 0}', 'who is [1], which is'),
    ('{"who": "a", "age": "x", "height": 2, "bought": 0}', "age is 'x', which is no"),
    (
      '{"who": "a", "age": [1], "height": 2, "bought": 0}',
      'age is [1], which is of another shape',
    ),
    (
      '{"who": "\\ud800", "age": 1, "height": 2, "bought": 0}',
      'line 71 is not JSON: ',
    ),
    (
      '{"who": "a", "age": 1, "height": 2, "bought": 0}\r',
      'line 71 is not JSON: it ends with a carriage return alone',
    ),
  ],
)
def test_wrong_json_is_refused_with_line_number(line, message, tmp_path):
  path = own_data.write_json(tmp_path / 'data.jsonl', own_data.ROWS[:1] * 70)
  good = path.read_text().splitlines()[0]
  with path.open('a') as file:
    file.write(f'{line}{good}\n' if line[-1] == '\r' else f'{line}\n{good}\n')
  with pytest.raises(problems.DataError) as error:
    own_data.load_rows(path)
  assert message in str(error.value)


def test_too_long_json_line_is_refused_with_line_number(tmp_path):
  path = tmp_path / 'data.jsonl'
  path.write_text('{"x": 1, "y": ""}\n' + '{"x": 1, "y": "%s"}\n' % ('a' * 2**25))
  with pytest.raises(problems.DataError, match='maximum_object_size. of'):
    list(tables.JsonLines(str(path)).batches(['x']))


def test_json_texts_may_contain_comma_before_bracket(tmp_path):
  path = tmp_path / 'data.jsonl'
  path.write_text('{"x": "a, ]"}\n\n{"x": ",}"}\n')
  (batch,) = tables.JsonLines(str(path)).batches(['x'])
  assert batch.columns == {'x': ['a, ]', ',}']}


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda folder: None, 'has no files; there must be a file for each client in'),
    (lambda folder: (folder / 'a.csv').write_text('x,bought\n'), "'a' has no examples"),
    (lambda folder: (folder / 'a.csv').write_text(''), 'a.csv is empty'),
    (lambda folder: (folder / 'a.xyz').write_text('x'), 'a.xyz does not end in any of'),
  ],
)
def test_wrong_folder_is_refused_with_reason(make, message, tmp_path):
  folder = tmp_path / 'data'
  folder.mkdir()
  make(folder)
  with pytest.raises(problems.DataError) as error:
    own_data.load(folder, label_column='bought')
  assert message in str(error.value)


@pytest.mark.parametrize(
  ('name', 'text', 'message'),
  [
    ('b.jsonl', '{"x": 1, "bought": 0}\n', 'is of another format than'),
    ('b.csv', 'x,sold\n1,0\n', 'x, sold'),
    ('b/c.csv', 'x,bought\n1,0\n', 'has b, a.csv; there must be a file for each'),
    ('b/c/d.csv', 'x,bought\n1,0\n', 'has b, a.csv; there must be a file for each'),
  ],
)
def test_different_files_in_a_folder_are_refused(name, text, message, tmp_path):
  folder = tmp_path / 'data'
  (folder / name).parent.mkdir(parents=True)
  (folder / 'a.csv').write_text('x,bought\n1,0\n2,1\n')
  (folder / name).write_text(text)
  with pytest.raises(problems.DataError) as error:
    own_data.load(folder, label_column='bought')
  assert message in str(error.value)


def test_unreadable_files_are_refused_with_reason(tmp_path):
  path = tmp_path / 'data.dat'
  path.write_text('x')
  with pytest.raises(problems.DataError, match='data_format, one of csv, jsonl, npz'):
    own_data.load(path, client_column='who', label_column='y')
  for name, message in (
    ('data.npz', 'is not an archive of numpy.savez'),
    ('data.sqlite', 'cannot be read as SQLite'),
  ):
    path = tmp_path / name
    path.write_bytes(b'something else' * 100)
    with pytest.raises(problems.DataError, match=message):
      own_data.load(path, label_column='y')


def _write_parquet(path, query):
  duckdb.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
  return path


def test_parquet_gives_the_population_of_the_csv(of_csv, tmp_path):
  csv = own_data.write_csv(tmp_path / 'data.csv')
  query = f"SELECT who, age, height::DOUBLE AS height, bought FROM '{csv}'"
  path = _write_parquet(tmp_path / 'data.parquet', query)
  assert own_data.same(of_csv, own_data.load_rows(path))


def test_parquet_with_duplicate_column_is_refused(tmp_path):
  path = tmp_path / 'data.parquet'
  for name in ('aaaa', 'AAAA'):
    _write_parquet(path, 'SELECT i AS aaaa, i AS bbbb, i % 2 AS y FROM range(60) t(i)')
    path.write_bytes(path.read_bytes().replace(b'bbbb', name.encode()))
    with pytest.raises(problems.DataError, match='two columns are called .*(?i:aaaa)'):
      own_data.load(path, num_clients=5, label_column='y')


@pytest.mark.parametrize(
  ('who', 'x', 'message'),
  [
    ('16777216::FLOAT', 1, 'row 1: who is .*which stands for several whole numbers'),
    ("'a'", 'if(i = 7, NULL, i)', 'row 8: x is empty'),
    (
      "DATE '2023-01-01'",
      1,
      'row 1: who is .*neither text in UTF-8 nor a finite number',
    ),
  ],
)
def test_wrong_parquet_is_refused_with_row_number(who, x, message, tmp_path):
  query = f'SELECT {who} AS who, {x} AS x, i % 2 AS y FROM range(9) t(i)'
  path = _write_parquet(tmp_path / 'data.parquet', query)
  with pytest.raises(problems.DataError, match=message):
    own_data.load(path, client_column='who', label_column='y')
  path.write_bytes(b'PAR1')
  with pytest.raises(problems.DataError, match='is not a Parquet file'):
    own_data.load(path, client_column='who', label_column='y')


def test_gzipped_files_give_the_population_of_the_csv(of_csv, tmp_path):
  for write, name in (
    (own_data.write_csv, 'data.csv'),
    (own_data.write_json, 'data.jsonl'),
  ):
    content = write(tmp_path / name).read_bytes()
    path = tmp_path / f'{name}.gz'
    path.write_bytes(gzip.compress(content))
    assert own_data.same(of_csv, own_data.load_rows(path))
  packed = bytearray(gzip.compress(content))
  packed[-8] ^= 1  # A bit of the checksum.
  for damaged in (packed, packed[: len(packed) // 2], content):
    path.write_bytes(damaged)
    with pytest.raises(problems.DataError, match='cannot be unpacked'):
      own_data.load_rows(path)


def test_json_lists_of_numbers_are_features(tmp_path):
  rows = [
    {'who': f'c{i % 5}', 'x': [i, 2.0 * i], 'y': i % 2, 'z': i} for i in range(20)
  ]
  path = own_data.write_json(tmp_path / 'data.jsonl', rows)
  loaded = own_data.load(path, client_column='who', label_column='y', scaling='none')
  clients, tested = own_data.everything(loaded)
  expected = sorted((i, 2.0 * i, i, i % 2) for i in range(20))
  assert sorted(sum(clients.values(), []) + tested) == expected


@pytest.mark.parametrize(
  ('array', 'remark'),
  [
    (np.full([70, 5], 7), 'x has whole numbers, which are scaled as quantities'),
    (np.full([70, 2, 2], 7, np.uint8), 'x has whole numbers up to 7, which are not'),
    (np.full([70, 5], 1), None),  # Tags.
    (np.full([70, 5], 7.5), None),
    (np.full([70, 5], -7), None),
    (np.full([70, 2, 2], 7 / 255), None),
    (np.full([70, 2, 2], 256), None),
  ],
)
def test_load_remarks_on_arrays_that_may_be_ids_or_pixels(array, remark, tmp_path):
  path = _write_npz(tmp_path / 'data.npz', x=array)
  remarks = own_data.load(path).remarks
  assert [each[: len(remark or '')] for each in remarks] == [remark] * bool(remark)
  assert own_data.load(path, scaling='none').remarks == ()
