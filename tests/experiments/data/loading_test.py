"""Populations of own data: each example is loaded once, in any order of the rows."""

import json
import random

import numpy as np
import pytest

from experiments.data import population
from experiments.data import problems
from experiments.data import table
from tests.experiments.data import own_data


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
  path = tmp_path_factory.mktemp('plain') / 'data.csv'
  return own_data.write_csv(path)


def _load_split(path, split, **more):
  """Returns the population of a file with some way to hold out and split examples."""
  columns = {} if 'num_clients' in split else {'client_column': 'who'}
  return own_data.load(path, label_column='bought', **columns, **split, **more)


def _load_y(path, **more):
  return own_data.load(path, client_column='who', label_column='y', **more)


NUMBERS = {'feature_columns': ('age', 'height')}


def _values(rows):
  return sorted(
    (np.float32(row['age']), np.float32(row['height']), row['bought']) for row in rows
  )


HELD_OUT = [
  {'test_clients': 0.3},
  {'test_examples': 0.25},
  {'num_clients': 9},
  {'num_clients': 9, 'partition': 'quantity_skew'},
  {'num_clients': 9, 'partition': 'label_skew'},
]


@pytest.mark.parametrize('split', HELD_OUT, ids=str)
def test_every_example_is_loaded_once(split, plain):
  data = _load_split(plain, split, scaling='none', **NUMBERS)
  clients, tested = own_data.everything(data)
  everything = sorted(sum(clients.values(), []) + tested)
  assert everything == _values(own_data.ROWS)
  assert data.facts['examples'] == sum(map(len, clients.values()))
  assert data.num_clients == len(clients)


@pytest.mark.parametrize('split', HELD_OUT, ids=str)
def test_population_does_not_depend_on_row_order(split, tmp_path):
  rows = [{**row, 'colour': f'c{i % 4}'} for i, row in enumerate(own_data.ROWS * 2)]
  rows += rows[:30]  # Some rows occur twice.
  if 'num_clients' in split:
    rows = [{k: v for k, v in row.items() if k != 'who'} for row in rows]
  first = _load_split(own_data.write_csv(tmp_path / 'one.csv', rows), split)
  random.Random(0).shuffle(rows)
  second = _load_split(own_data.write_csv(tmp_path / 'other.csv', rows), split)
  assert own_data.same(first, second)


# If these change, other examples are held out and the order of examples changes.
CHECKSUMS = {
  'test_clients': ('1634435e291c0a5aba603b2b9d8075bf', '20881e8ceab20105'),
  'test_examples': ('8df81108a2da200fc6400b012d27b147', '20881e8ceab20105'),
  'num_clients': ('a22c92afa9a6d75403f62ae96bd59d61', '139f0a01835f998f'),
}


@pytest.mark.parametrize('split', HELD_OUT[:3], ids=str)
def test_held_out_examples_do_not_change(split, plain):
  data = _load_split(plain, split, **NUMBERS)
  tested, everything = CHECKSUMS[next(iter(split))]
  assert data.facts['checksum of those'] == f'sha256:{tested}'
  assert data.facts['checksum of all rows'] == everything
  if 'test_clients' in split:
    names = [own_data.name(data.clients, i) for i in data.clients.ids]
    assert names == [f'client {i}' for i in (2, 5, 0, 6, 3, 1)]


@pytest.mark.parametrize('split', HELD_OUT[:3], ids=str)
def test_another_seed_holds_out_different_examples(split, plain):
  first, second = (_load_split(plain, split, seed=seed) for seed in (1, 2))
  assert first.facts['checksum of those'] != second.facts['checksum of those']


def test_held_out_clients_are_test_data_only(plain):
  data = own_data.load_rows(plain, test_clients=0.3, scaling='none')
  clients, tested = own_data.everything(data)
  held = data.facts['clients held out for testing']
  assert len(clients) == 7 - held and 0 < held < 7  # Each client is drawn by itself.
  held_out = {f'client {i}' for i in range(7)} - clients.keys()
  expected = [row for row in own_data.ROWS if row['who'] in held_out]
  assert tested == _values(expected)


def test_draw_ids_do_not_depend_on_other_clients(tmp_path):
  rows = [{'who': f'client {i}', 'age': float(i), 'bought': i % 2} for i in range(61)]
  draw_ids = []
  for removed in (None, 0, 30, 60):
    remaining = [row for i, row in enumerate(rows) if i != removed]
    path = own_data.write_csv(tmp_path / f'{removed}.csv', remaining)
    data = own_data.load_rows(path, test_clients=0.3).clients
    draw_ids.append(
      {own_data.name(data, number): data.draw_id(number) for number in data.ids}
    )
  everybody, *without = draw_ids
  assert 20 < len(everybody) < 61 and len(set(everybody.values())) == len(everybody)
  for removed, others in zip((0, 30, 60), without):
    assert others == {
      name: by for name, by in everybody.items() if name != f'client {removed}'
    }


def test_test_examples_holds_out_a_share_of_each_client_but_never_all(tmp_path):
  rows = [
    {'who': f'c{i % 100}' if i < 1000 else f'single {i}', 'x': i, 'y': i % 2}
    for i in range(1050)
  ]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  data = _load_y(path, test_examples=0.25)
  sizes = {
    own_data.name(data.clients, i): len(data.clients.examples(i)['y'])
    for i in data.clients.ids
  }
  assert len(sizes) == 150
  assert any('examples of the same clients' in each for each in data.not_covered)
  assert {size for name, size in sizes.items() if name[0] == 's'} == {1}
  assert {size for name, size in sizes.items() if name[0] == 'c'} == {7, 8}


def test_test_data_are_scaled_and_encoded_like_training_data(plain, tmp_path):
  rows = [
    {'bought': 1, 'height': 2.5, 'age': 54.5, 'z': 3},
    {'bought': '1.0', 'height': 1.845, 'age': 20, 'z': 4},
  ]
  tested = own_data.write_csv(tmp_path / 'test.csv', rows)
  data = own_data.load_rows(plain, test_data=str(tested))
  assert data.num_clients == 7
  assert 'clients held out for testing' not in data.facts
  ages = np.array([row['age'] for row in own_data.ROWS])
  heights = np.array([row['height'] for row in own_data.ROWS])
  x, y = data.test_examples
  expected = [
    [(age - ages.mean()) / ages.std(), (height - heights.mean()) / heights.std()]
    for age, height in ((54.5, 2.5), (20, 1.845))
  ]
  assert np.allclose(x, expected, rtol=1e-5, atol=1e-6)
  assert y.tolist() == [1, 1]


@pytest.mark.parametrize(
  ('row', 'message'),
  [
    ({'age': 1, 'height': 1, 'bought': 2}, "line 2: bought is '2', which the training"),
    ({'age': 'x', 'height': 1, 'bought': 1}, "line 2: age is 'x', which is not a num"),
    ({'age': 1, 'bought': 1}, "no column 'height'; its columns are: age, bought"),
    ({'age': 1, 'height': 1}, "no column 'bought'; its columns are: age, height"),
  ],
)
def test_unfit_test_data_are_refused_with_reason(row, message, plain, tmp_path):
  tested = own_data.write_csv(tmp_path / 'test.csv', [row])
  with pytest.raises(problems.DataError) as error:
    own_data.load_rows(plain, test_data=str(tested))
  assert message in str(error.value)
  assert str(tested) in str(error.value)
  assert 'To predict' not in str(error.value)


@pytest.mark.parametrize(('kind', 'other'), [('class', 'number'), ('number', 'class')])
def test_refused_labels_may_be_of_another_kind_than_stated(kind, other, tmp_path):
  path = own_data.write_csv(
    tmp_path / 'data.csv', [{**own_data.ROWS[0], 'bought': 'inf'}]
  )
  with pytest.raises(
    problems.DataError, match=f'or give --label_kind={other}'
  ) as error:
    own_data.load_rows(path, label_kind=kind)
  assert f'--label_kind={kind}' not in str(error.value)


def test_numbers_are_standardized_and_text_is_one_hot_encoded(tmp_path):
  rows = [
    {
      'who': f'c{i % 20}',
      'time': 1_700_000_000 + i,
      'constant': 0.1,
      'colour': ['red', 'blue', 'green'][i % 3],
      'code': [10, 9][i % 2],
      'cost': i + 0.25,
    }
    for i in range(600)
  ]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  data = own_data.load(
    path,
    client_column='who',
    label_column='cost',
    one_hot_columns=('code',),
    label_scaling='none',
  )
  assert data.shape.label_kind == 'number'
  assert data.shape.inputs == (2 + 3 + 2,)
  trained = [data.clients.examples(i) for i in data.clients.ids]
  x = np.concatenate([each['x'] for each in trained])
  assert x.dtype == np.float32
  # Seconds stay distinct, which they would not in float32 before scaling.
  assert len(np.unique(x[:, 0])) == len(x) == 540
  assert np.abs(x[:, 0].mean()) < 1e-6
  assert abs(x[:, 0].std() - 1) < 1e-6
  assert not x[:, 1].any()
  # Values are in sorted order: blue, green, red; 9, 10.
  assert set(map(tuple, x[:, 2:5].tolist())) == {(1, 0, 0), (0, 1, 0), (0, 0, 1)}
  y = np.concatenate([each['y'] for each in trained])
  for inputs, cost in zip(x[:50], y[:50]):
    row = rows[int(cost)]
    assert inputs[2 + ['blue', 'green', 'red'].index(row['colour'])] == 1
    assert inputs[5 + [9, 10].index(row['code'])] == 1
  assert any('mean and standard deviation' in each for each in data.not_covered)


@pytest.mark.parametrize(
  ('values', 'label_kind', 'expected'),
  [
    (range(table.MAX_INT_CLASSES), None, tuple(map(str, range(table.MAX_INT_CLASSES)))),
    (range(table.MAX_INT_CLASSES + 1), None, None),
    ([*range(table.MAX_INT_CLASSES), 0.5], None, None),
    (range(table.MAX_INT_CLASSES), 'number', None),
    (['10', '9', '9.0'], None, ('9', '10')),
    (['b', 'a'], None, ('a', 'b')),
    (['10', '9', 'x'], 'class', ('10', '9', 'x')),
    ([0.5, 1.5], 'class', ('0.5', '1.5')),
  ],
)
def test_label_kind_is_inferred_or_given(values, label_kind, expected, tmp_path):
  rows = [{'who': f'c{i % 9}', 'x': i, 'y': y} for i, y in enumerate([*values] * 9)]
  shape = _load_y(
    own_data.write_csv(tmp_path / 'data.csv', rows), label_kind=label_kind
  ).shape
  kind = 'number' if expected is None else 'class'
  assert (shape.label_kind, shape.names) == (kind, expected)


def test_mostly_distinct_labels_are_refused_unless_label_kind_is_class(tmp_path):
  rows = [{'who': f'c{i % 9}', 'x': i, 'y': f'text {i}'} for i in range(150)]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  with pytest.raises(problems.DataError, match='y has 150 different values in 150'):
    _load_y(path)
  data = _load_y(path, label_kind='class')
  assert data.shape.num_classes == 150


SPELLINGS = [
  ('Zoé', 'Zoe\u0301', ' Zoé'),
  ('7', 7, ' 7'),
  # Pandas writes integers like this beside a missing value, and NumPy always.
  ('7', 7.0, '7.0', '7.', ' +7.00 ', '7.000000e+00', 7),
  ('123456', '1.234560000000000000e+05', 123456.0),
]


@pytest.mark.parametrize('ids', SPELLINGS, ids=repr)
def test_different_spellings_of_a_client_id_are_one_client(ids, tmp_path):
  others = ['a', 'b', 'c', 'd']
  rows = [
    {'who': (*ids, *others)[i % (len(ids) + 4)], 'x': i, 'y': i % 2} for i in range(70)
  ]
  for write, name in ((own_data.write_csv, 'a.csv'), (own_data.write_json, 'a.jsonl')):
    path = write(tmp_path / name, rows)
    data = _load_y(path, test_examples=0.1)
    assert data.num_clients == 5
    assert {own_data.name(data.clients, i) for i in range(5)} == {ids[0], *others}


@pytest.mark.parametrize(
  ('id_', 'message'),
  [
    (1.5, 'which is a fraction; ids of clients must be whole numbers or text'),
    # The last digits are missing, as Excel and %g write it.
    ('1.23457E+11', 'whose last digits are not written'),
    ('9007199254740993.0', 'which stands for several whole numbers'),
    ('1.#IND', 'which says that a value is missing'),
    # The flags --decimal and --thousands say how to read this.
    ('"12,345"', 'say by --decimal= or --thousands= how it is written'),
  ],
)
def test_wrong_client_ids_are_refused_with_line_number(id_, message, plain, tmp_path):
  rows = [{'who': who, 'age': 1, 'height': 1, 'bought': 0} for who in ('c1', id_)]
  path = own_data.write_csv(tmp_path / 'a.csv', rows)
  for trained, more in ((path, {}), (plain, {'test_data': str(path)})):
    with pytest.raises(problems.DataError) as error:
      own_data.load_rows(trained, **more)
    assert f'{path}, line 3: who is ' in str(error.value)
    assert message in str(error.value)
  ids = np.array(['c1', str(id_).strip('"')])
  np.savez(tmp_path / 'a.npz', x=np.ones((2, 1)), y=[0, 1], client_ids=ids)
  with pytest.raises(problems.DataError, match='entry 1: client_ids is '):
    own_data.load(tmp_path / 'a.npz')


@pytest.mark.parametrize(
  ('column', 'text'),
  [('who', 'NA'), ('colour', 'nan'), ('age', '<NA>'), ('y', 'NA'), ('kind', 'nan')],
)
def test_missing_values_are_refused_in_every_column(column, text, tmp_path):
  rows = [
    {
      'who': f'c{i % 9}',
      'colour': 'rg'[i % 2],
      'age': i,
      'kind': i % 3,
      'y': ['no', 'yes'][i % 2],
    }
    for i in range(30)
  ]
  rows[20] = {**rows[20], column: text}
  names = {'client_column': 'who', 'label_column': 'y', 'one_hot_columns': ('kind',)}
  for path, line in (
    (own_data.write_csv(tmp_path / 'a.csv', rows), 22),
    (own_data.write_json(tmp_path / 'a.jsonl', rows), 21),
  ):
    with pytest.raises(problems.DataError) as error:
      own_data.load(path, **names)
    message = f"{path}, line {line}: {column} is '{text}', which says that a value is"
    assert message in str(error.value)


def test_missing_values_flag_sets_which_values_are_missing(tmp_path):
  rows = [
    {'who': f'c{i % 9}', 'country': ['NA', 'DE'][i % 2], 'age': i, 'y': i % 2}
    for i in range(30)
  ]
  path = own_data.write_csv(tmp_path / 'a.csv', rows)
  for listed in ((), ('null', '-999')):
    data = _load_y(path, missing_values=listed)
    assert data.facts['columns with a feature for each value'] == {'country': 2}
  with pytest.raises(problems.DataError, match="country is 'DE', which says"):
    _load_y(path, missing_values=('DE',))
  # A number that means missing is recognized in any spelling and any row.
  for number, row in ((-999, 0), ('-999.0', 20), ('-9.99e2', 29)):
    some = [
      {**each, 'age': number} if i == row else each for i, each in enumerate(rows)
    ]
    path = own_data.write_csv(tmp_path / 'b.csv', some * 2)
    _load_y(path, missing_values=())
    with pytest.raises(problems.DataError, match=f'line {row + 2}: age is .*missing'):
      _load_y(path, missing_values=('-999',))


def test_text_column_may_allow_missing_value_words(tmp_path):
  rows = [{'who': f'c{i % 9}', 'said': 'None' if i == 20 else 'ok'} for i in range(30)]
  path = own_data.write_csv(tmp_path / 'a.csv', rows)
  names = {'client_column': 'who', 'text_column': 'said'}
  with pytest.raises(problems.DataError, match="line 22: said is 'None', which says"):
    own_data.load(path, **names)
  assert own_data.load(path, missing_values=(), **names).num_clients == 8


def test_number_labels_are_scaled_by_training_labels(tmp_path):
  rows = [
    {'who': f'c{i % 20}', 'x': i % 7, 'y': 250_000.5 + 1000 * i} for i in range(100)
  ]
  path = own_data.write_csv(tmp_path / 'a.csv', rows)
  plain, data = _load_y(path, label_scaling='none'), _load_y(path)
  trained = np.concatenate([plain.clients.examples(i)['y'] for i in plain.clients.ids])
  scaling = data.label_scaling
  assert len(trained) < 100
  assert scaling.mean == pytest.approx(trained.mean(dtype=float), rel=1e-7)
  assert scaling.scale == pytest.approx(trained.std(dtype=float), rel=1e-6)
  scaled = np.concatenate([data.clients.examples(i)['y'] for i in data.clients.ids])
  assert scaled.dtype == np.float32
  assert abs(scaled.mean(dtype=float)) < 1e-6
  assert abs(scaled.std(dtype=float) - 1) < 1e-6
  assert np.allclose(scaling.undone(scaled), trained, rtol=1e-6)
  _, tested = data.test_examples
  assert np.allclose(scaling.undone(tested), plain.test_examples[1], rtol=1e-6)
  assert any(each.startswith('Labels were scaled') for each in data.not_covered)
  # With separate test data, and with labels that are all equal.
  others = [{'x': 1, 'y': 300_000}, {'x': 2, 'y': 100_000}]
  other = own_data.write_csv(tmp_path / 'b.csv', others)
  data = _load_y(path, test_data=str(other))
  undone = data.label_scaling.undone(data.test_examples[1])
  assert np.allclose(undone, [300_000, 100_000], rtol=1e-6)
  path = own_data.write_csv(tmp_path / 'c.csv', [{**row, 'y': 0.1} for row in rows])
  assert _load_y(path).label_scaling == population.LabelScaling(0.1, 1.0)


def _in_dialect(path, rows, separator, decimal, thousands):
  """Writes rows as CSV with these separators of fields, decimals and thousands."""

  def written(value):
    if isinstance(value, str):
      return value
    text = f'{value:,}'.replace(',', '?').replace('.', decimal).replace('?', thousands)
    return f'"{text}"' if separator in text else text

  lines = [separator.join(rows[0])]
  lines += [separator.join(map(written, row.values())) for row in rows]
  path.write_text('\n'.join([*lines, '']), encoding='utf-8')
  return path


DIALECTS = [
  (';', ',', '.'),
  (',', ',', ''),
  ('\t', ',', '\u202f'),
]


@pytest.mark.parametrize('dialect', DIALECTS, ids=str)
def test_numbers_are_read_by_separator_decimal_and_thousands_flags(dialect, tmp_path):
  rows = [
    {
      'who': 100 + i % 20,
      'size': (1 - 2 * (i % 2)) * (i + 0.25) * 1000,
      'colour': 'rgb'[i % 3],
      'cost': 1234.5 + i,
    }
    for i in range(300)
  ]
  names = {'client_column': 'who', 'label_column': 'cost'}
  expected = own_data.load(own_data.write_csv(tmp_path / 'a.csv', rows), **names)
  path = _in_dialect(tmp_path / 'b.csv', rows, *dialect)
  separator, decimal, thousands = dialect
  thousands = thousands.replace('\u202f', ' ')
  data = own_data.load(
    path, separator=separator, decimal=decimal, thousands=thousands, **names
  )
  assert own_data.same(data, expected)
  assert own_data.name(data.clients, 0) == own_data.name(expected.clients, 0)
  names = {**names, 'feature_columns': ('size',)}
  with pytest.raises(problems.DataError) as error:
    own_data.load(path, separator=separator, test_examples=0.2, **names)
  assert 'by --decimal= or --thousands= how it is written' in str(error.value)


def test_numbers_that_contradict_decimal_flags_are_refused(tmp_path):
  rows = [{'who': f'c{i % 9}', 'x': f'{i},5', 'y': i % 2} for i in range(40)]
  mixed = rows[:30] + [{**rows[30], 'x': '1.5'}]
  path = _in_dialect(tmp_path / 'a.csv', mixed, ';', ',', '')
  with pytest.raises(
    problems.DataError, match="32: x is '1.5', which is not a .* has it"
  ):
    _load_y(path, separator=';', decimal=',')
  path = _in_dialect(tmp_path / 'a.csv', rows, ';', ',', '')
  with pytest.raises(
    problems.DataError, match="2: x is '0,5', .* If it is a number, say by --dec"
  ):
    _load_y(path, separator=';', thousands=',', decimal='.')
  # With --one_hot_columns, such values are names.
  names = _load_y(path, separator=';', one_hot_columns=('x',))
  assert names.facts['columns with a feature for each value'] == {'x': 40}


def test_not_covered_says_whose_the_test_data_are(plain, tmp_path):
  row = {'age': 30, 'height': 1.5, 'bought': 1}
  for who, sentence in (
    ({'who': 'client 3'}, population.TEST_DATA_OF_CLIENTS),
    ({}, population.TEST_DATA_OF_UNKNOWN),
    ({'who': 'somebody else'}, None),
  ):
    tested = own_data.write_csv(tmp_path / 'test.csv', [{**who, **row}])
    data = own_data.load_rows(plain, test_data=str(tested))
    sentences = [each for each in data.not_covered if each.startswith('Test metrics')]
    assert sentences == ([] if sentence is None else [sentence])


def test_copy_of_training_data_is_refused_as_test_data(plain, tmp_path):
  copy = tmp_path / 'copy.csv'
  copy.write_bytes(plain.read_bytes())
  with pytest.raises(problems.DataError, match='test and training data are the same'):
    own_data.load_rows(plain, test_data=str(copy))


def test_not_covered_says_that_made_up_clients_are_no_people(plain):
  made_up = own_data.load(plain, label_column='bought', num_clients=9)
  assert population.MADE_CLIENTS in made_up.not_covered
  assert population.MADE_CLIENTS not in own_data.load_rows(plain).not_covered


def test_scratch_folder_is_left_empty(plain, tmp_path):
  data = own_data.load_rows(plain, scratch=str(tmp_path))
  assert data.num_clients == 6
  assert not list(tmp_path.iterdir())


def test_unwritable_scratch_folder_is_reported_with_flag(plain):
  with pytest.raises(OSError, match='more room by --data_scratch'):
    own_data.load_rows(plain, scratch='/proc')


def test_held_out_clients_do_not_depend_on_their_examples(plain, tmp_path):
  more = own_data.ROWS + [{**row, 'age': 1000} for row in own_data.ROWS[:5]]
  path = own_data.write_csv(tmp_path / 'more.csv', more)
  data = [own_data.load_rows(each, test_clients=0.3) for each in (plain, path)]
  names = [{own_data.name(each.clients, i) for i in each.clients.ids} for each in data]
  assert names[0] == names[1]


def test_facts_have_share_of_most_frequent_test_class(tmp_path):
  labels = ['no', 'no', 'no', 'yes']
  rows = [{'who': f'c{i}', 'x': i, 'y': labels[i % 4]} for i in range(40)]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  others = [{**row, 'who': f'other {row["who"]}', 'x': -1 - row['x']} for row in rows]
  tested = own_data.write_csv(tmp_path / 'tested.csv', others)
  data = _load_y(path, test_data=str(tested), test_clients=None)
  assert data.facts['most frequent class for testing'] == 'no, a share of 0.75'


def test_json_texts_are_numbers_with_decimal_and_thousands_flags(tmp_path):
  rows = [
    {'who': i % 9, 'x': f'{i},25', 'z': i, 'y': f'{i}.000,5'} for i in range(1, 40)
  ]
  plain = [{**row, 'x': i + 0.25, 'y': 1000 * i + 0.5} for i, row in enumerate(rows, 1)]
  expected = _load_y(own_data.write_json(tmp_path / 'a.jsonl', plain))
  path = own_data.write_json(tmp_path / 'b.jsonl', rows)
  assert own_data.same(_load_y(path, decimal=',', thousands='.'), expected)
  for column in ('x', 'y'):
    path = own_data.write_json(
      tmp_path / 'c.jsonl',
      [{**row, column: other[column]} for row, other in zip(plain, rows)],
    )
    with pytest.raises(problems.DataError, match=f'line 1: {column} is .*--decimal='):
      _load_y(path)


@pytest.mark.parametrize('column', ['x', 'y'])
def test_column_of_text_and_numbers_is_refused(column, tmp_path):
  rows = [{'who': f'c{i % 9}', 'x': 'a', 'y': 'b'} for i in range(30)]
  rows[20][column] = '9'
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  with pytest.raises(problems.DataError, match=f"line 22: {column} is '9', and values"):
    _load_y(path)


def test_column_of_dates_is_refused_with_remedy(tmp_path):
  twice = enumerate(own_data.ROWS * 2)
  rows = [{**row, 'day': f'{1900 + i}-05-17'} for i, row in twice]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  with pytest.raises(problems.DataError, match='turn dates into numbers, such as days'):
    own_data.load_rows(path)


@pytest.mark.parametrize('value', ['1,000', '-1,179'])
def test_number_with_comma_in_first_row_is_read_as_text(value, tmp_path):
  path = tmp_path / 'data.csv'
  path.write_text(f'who,x,y\na,"{value}",0\nb,"{value}",1\n')
  with pytest.raises(problems.DataError) as error:
    _load_y(path)
  message = f"line 2: x is '{value}', and values are read as text. If it is a number,"
  assert message in str(error.value)


@pytest.mark.parametrize(
  ('column', 'values', 'flags'),
  [
    ('y', ['no', ' no', 'yes'], {}),
    ('x', ['phone', 'phone\t', 'tablet'], {}),
    ('x', ['phone', ' phone', 'tablet'], {'embedding_columns': ('x',)}),
    ('x', ['a b', 'a\u00a0b', 'tablet'], {}),
    ('y', ['caf\u00e9', 'cafe\u0301', 'tea'], {}),
    ('x', ['a', 'a\u200b', 'tablet'], {'one_hot_columns': ('x',)}),
  ],
)
def test_load_refuses_values_that_look_the_same(column, values, flags, tmp_path):
  rows = [{'who': f'c{i // 3}', 'x': i, 'y': i % 2} for i in range(90)]
  changed = [{**row, column: values[i % 3]} for i, row in enumerate(rows)]
  path = own_data.write_csv(tmp_path / 'data.csv', changed)
  with pytest.raises(problems.DataError) as error:
    _load_y(path, **flags)
  assert f'{column} has the values {values[0]!a} and {values[1]!a}, which are the' in (
    str(error.value)
  )
  # One of them alone is a value, and the other is refused in test data as well.
  good = [{**row, column: values[i % 2 * 2]} for i, row in enumerate(rows)]
  path = own_data.write_csv(tmp_path / 'data.csv', good)
  _load_y(path, **flags)
  tested = own_data.write_csv(tmp_path / 'test.csv', changed[:2])
  with pytest.raises(problems.DataError, match=column):
    _load_y(path, test_data=str(tested), **flags)


def test_numbers_that_are_names_may_have_white_space(tmp_path):
  rows = [
    {'who': f'c{i % 9}', 'x': (' 7', '7.0')[i % 2], 'y': i % 2} for i in range(30)
  ]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  data = _load_y(path, one_hot_columns=('x',))
  assert data.facts['columns with a feature for each value'] == {'x': 1}


_LARGE = 2**60


@pytest.mark.parametrize(
  ('values', 'expected'),
  [
    (('0012', '12', '12.0', ' 12'), ('0012', '12')),
    (('1E10', '10000000000', '1e+10'), ('10000000000', '1E10')),
    ((_LARGE, _LARGE + 1, _LARGE + 2), tuple(str(_LARGE + i) for i in range(3))),
    (('10', '9', '-1.5'), ('-1.5', '9', '10')),
  ],
)
def test_names_that_are_numbers_keep_all_digits(values, expected, tmp_path):
  rows = [
    {'who': f'c{i % 9}', 'x': values[i % len(values)], 'y': values[i % len(values)]}
    for i in range(60)
  ]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  for flags in ({'one_hot_columns': ('x',)}, {'embedding_columns': ('x',)}):
    data = _load_y(path, label_kind='class', scaling='none', **flags)
    assert data.shape.names == expected
    columns = data.preprocessing.name_columns or data.preprocessing.embedded_columns
    assert columns['x'] == expected


def test_labels_with_more_digits_than_floats_hold_are_refused(tmp_path):
  rows = [{'who': f'c{i % 9}', 'x': _LARGE + i, 'y': _LARGE + i % 2} for i in range(60)]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  with pytest.raises(
    problems.DataError, match=r"line 2: y is '[0-9]{19}', a number of 2\^53"
  ):
    _load_y(path)
  assert _load_y(path, label_kind='class').shape.num_classes == 2


def test_single_label_may_be_a_list_of_one(tmp_path):
  path, counts = tmp_path / 'data.npz', np.arange(60)
  ids = np.array([f'c{i % 9}' for i in counts])
  x = np.random.default_rng(1).normal(size=(60, 2))
  for shape in ((60,), (60, 1)):
    y = (counts % 10).astype(np.uint8).reshape(shape)
    np.savez(path, x=x, y=y, client_ids=ids)
    shape = own_data.load(path).shape
    assert (shape.label_kind, shape.num_classes, shape.labels) == ('class', 10, ())
  lines = [json.dumps({'who': f'c{i % 9}', 'x': i, 'y': [i / 7]}) for i in range(60)]
  path = tmp_path / 'data.jsonl'
  path.write_text('\n'.join(lines))
  assert _load_y(path).shape.labels == ()
  path.write_text('\n'.join([*lines, '{"who": "c1", "x": 1, "y": [1, 2]}']))
  with pytest.raises(problems.DataError, match='y is of shape|y is .*shape'):
    _load_y(path)
  rows = [{'who': f'c{i % 9}', 'x': i, 'y': [['no', 'yes'][i % 2]]} for i in range(60)]
  data = _load_y(own_data.write_json(path, rows))
  assert data.shape.names == ('no', 'yes')
  _, labels = data.preprocessing.read(str(path)).arrays()
  assert labels.tolist() == [0, 1] * 30


@pytest.mark.parametrize('name', ['x', 'y'])
def test_empty_lists_are_refused(name, tmp_path):
  rows = [{'who': f'c{i % 9}', 'x': i, 'y': i % 2, name: []} for i in range(40)]
  path = own_data.write_json(tmp_path / 'data.jsonl', rows)
  with pytest.raises(
    problems.DataError, match=rf'line 1: {name} is \[\], which is a list without.* 40 r'
  ):
    _load_y(path)


def test_load_remarks_on_leading_zeros_and_a_single_class(tmp_path):
  rows = [
    {'who': f'c{i % 9}', 'zip': f'{i:02}', 'share': f'0.{i}', 'y': 1} for i in range(30)
  ]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  zeros, single = _load_y(path).remarks
  assert zeros.startswith('zip has numbers with leading zeros, which are read as')
  assert single == 'All labels are the same class, 1; there is nothing to learn.'
  assert _load_y(path, one_hot_columns=('zip',)).remarks == (single,)
  own_data.write_csv(path, [{**rows[-1], 'who': f'c{i % 9}'} for i in range(10_000)])
  with path.open('a') as file:
    file.write('c1,01,0.1,1\n')
  assert _load_y(path).remarks == (zeros, single)


def test_load_remarks_on_values_that_may_be_one_or_numbers(tmp_path):
  rows = [
    {'who': f'c{i % 9}', 'x': f'{i} kg', 'y': ('Yes', 'yes', 'no')[i % 3]}
    for i in range(60)
  ]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  many, case = _load_y(path).remarks
  assert many.startswith('x has 60 different values in 60 rows, each of which is a')
  assert case.startswith('Yes and yes differ in upper and lower case alone')
