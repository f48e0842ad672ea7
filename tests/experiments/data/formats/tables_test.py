"""CSV files: problems are reported by file and physical line; no row is left out."""

import pytest

from experiments.data import columns
from experiments.data import problems
from experiments.data import table
from tests.experiments.data import own_data

HEAD = 'who,age,height,bought\n'
GOOD = ''.join(f'c{i % 3},{i},{i / 2},{i % 2}\n' for i in range(20))


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', 'is empty'),
    (HEAD, 'is empty: it has no rows'),
    ('who,age,age,bought\n' + GOOD, "line 1: column 2 of 4 is called 'age'"),
    (HEAD + GOOD + 'c1,1,2\n', 'line 22: 3 fields, where the 4 columns who, age'),
    (HEAD + GOOD + 'c1,1_0,2,0\n', "line 22: age is '1_0', which is not a number"),
    (HEAD + GOOD + 'c1,,2,0\n', 'line 22: age is empty'),
    (HEAD + 'c1,,2,0\n' + GOOD, 'line 2: age is empty'),
    (HEAD + GOOD + 'c1,1e39,2,0\n', "age is '1e39', which is not finite in float32"),
    (HEAD + GOOD + ',1,2,0\n', 'line 22: who is empty'),
    (HEAD + GOOD + 'c1,1,2,yes\n', "line 22: bought is 'yes', which is not a number"),
    (HEAD + GOOD + '"c1\n\nx",1,2,0\nc1,1,x,0\n', "line 25: height is 'x'"),
    (HEAD + GOOD + '"c1\n,1,2,0\n', 'line 22: unexpected end of data'),
    (HEAD + GOOD + '"c1"x,1,2,0\n', "line 22: ',' expected after '\"'"),
  ],
)
def test_wrong_csv_is_refused_with_line_number(text, message, tmp_path):
  path = tmp_path / 'data.csv'
  path.write_text(text)
  with pytest.raises(problems.DataError) as error:
    own_data.load_rows(path)
  assert message in str(error.value)
  assert str(path) in str(error.value)


def test_physical_line_is_reported_for_every_line_ending(tmp_path):
  path = tmp_path / 'data.csv'
  for end in ('\n', '\r\n', '\r'):
    text = (HEAD + GOOD + 'c1,"1","2\n",0\nc1,1,x,0\n').replace('\n', end)
    path.write_bytes(text.encode())
    with pytest.raises(problems.DataError, match=r"line 24: height is 'x'"):
      own_data.load_rows(path)


def test_invalid_utf8_is_refused_with_line_number(tmp_path):
  path = tmp_path / 'data.csv'
  for number in (3, 3000):
    lines = (HEAD + GOOD * 200).splitlines(keepends=True)
    lines[number - 1] = 'Zo\xeb,1,2,0\n'
    path.write_bytes(''.join(lines).encode('latin-1'))
    with pytest.raises(problems.DataError, match=f'line {number}: .*save .* as UTF-8'):
      own_data.load_rows(path)


@pytest.mark.parametrize('newline', ['\n', '\r\n', '\r'])
def test_line_endings_do_not_change_the_population(newline, tmp_path):
  expected = own_data.load_rows(own_data.write_csv(tmp_path / 'a.csv'))
  actual = own_data.load_rows(own_data.write_csv(tmp_path / 'b.csv', newline=newline))
  assert own_data.same(expected, actual)


def test_byte_order_mark_quotes_and_trailing_lines_change_nothing(tmp_path):
  path = own_data.write_csv(tmp_path / 'data.csv')
  plain = own_data.load_rows(path)
  text = path.read_text()
  lines = text.splitlines()
  quoted = [','.join(f'"{field}"' for field in line.split(',')) for line in lines]
  path.write_text('\n'.join(quoted) + '\n\n\n', encoding='utf-8-sig')
  assert own_data.same(plain, own_data.load_rows(path))


def test_tsv_file_is_read_as_tab_separated(tmp_path):
  path = own_data.write_csv(tmp_path / 'data.csv')
  tabs = tmp_path / 'data.tsv'
  tabs.write_text(path.read_text().replace(',', '\t'))
  assert own_data.same(own_data.load_rows(path), own_data.load_rows(tabs))


def test_empty_lines_are_no_rows(tmp_path):
  path = tmp_path / 'data.csv'
  path.write_text(HEAD + GOOD + '\n\nc1,1,x,0\n')
  with pytest.raises(problems.DataError, match="line 24: height is 'x'"):
    own_data.load_rows(path)


def test_spaces_beside_quotes_do_not_split_a_client(tmp_path):
  path = tmp_path / 'data.csv'
  number = 2 * 8192  # Several batches: a second reader might read the rest.
  rows = ''.join(f'{i % 17}, "u{i % 10}",{i % 2}\n' for i in range(number))
  path.write_text('x,who,bought\n' + rows)
  loaded = own_data.load(path, client_column='who', label_column='bought')
  assert len(loaded.clients.ids) <= 10


def test_long_lines_and_many_columns_are_read(tmp_path):
  rows = [{'who': f'c{i % 9}', 'said': f'text {i}'} for i in range(200)]
  rows[150]['said'] = 'to be ' * 50_000
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  names = {'client_column': 'who', 'text_column': 'said', 'text_unit': 'word'}
  data = own_data.load(path, **names, test_examples=0.1)
  assert data.facts['sequences'] + data.facts['sequences for testing, exact'] > 4_800
  names = [f'c{number}' for number in range(600)]
  rows = [
    {'who': f'client {i}', 'y': i % 2, **dict.fromkeys(names, i)} for i in range(19)
  ]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  data = own_data.load(path, client_column='who', label_column='y')
  assert data.facts['features'] == 600


@pytest.mark.parametrize(
  ('bad', 'column'), [('c1,,2,0', 'age'), ('c1,old,2,0', 'age'), ('c1,1,2,', 'bought')]
)
def test_rows_with_the_same_problem_are_counted(bad, column, tmp_path):
  path = tmp_path / 'data.csv'
  good = GOOD * 500  # More than a batch.
  path.write_text(HEAD + f'{GOOD}{bad}\n{GOOD}{bad}\n' + good + f'{bad}\n' * 7 + GOOD)
  with pytest.raises(problems.DataError) as error:
    own_data.load_rows(path)
  expected = ' 9 rows are like that: line 22, line 43, line 10044, line 10045, ...'
  assert f'line 22: {column} is ' in str(error.value)
  assert str(error.value).endswith(f'{expected}.')


def test_labels_in_lists_with_the_same_problem_are_counted(tmp_path):
  rows = [{**row, 'bought': [row['bought']]} for row in own_data.ROWS]
  rows[20:23] = [{**rows[20], 'bought': [f'bad {i}']} for i in range(3)]
  path = own_data.write_json(tmp_path / 'data.jsonl', rows)
  with pytest.raises(problems.DataError, match='3 rows are like that: line 21, line'):
    own_data.load_rows(path)


def test_few_rows_are_parsed_alone_to_count_a_problem(tmp_path, monkeypatch):
  monkeypatch.setattr(table, '_MAX_ROWS_ALONE', 10)
  path = tmp_path / 'data.csv'
  path.write_text(HEAD + 'c1,1,2,0\n' + 'c1,old,2,0\n' * 11)
  with pytest.raises(problems.DataError, match='At least 9 rows are like that: line'):
    own_data.load_rows(path)


def test_rows_with_too_few_fields_are_counted(tmp_path):
  path = tmp_path / 'data.csv'
  path.write_text(HEAD + GOOD + 'c1,2\n' + GOOD * 500 + 'c1,2,3\n')
  with pytest.raises(problems.DataError) as error:
    own_data.load_rows(path)
  assert str(error.value).endswith(' 2 rows are like that: line 22, line 10023.')


@pytest.mark.parametrize('name', [b'  ', None])
def test_empty_client_ids_are_refused_in_any_type(name):
  reading = columns.Reading()
  with pytest.raises(problems.DataError, match='^is empty'):
    columns.ids([name, b'a'], reading)


def test_lines_that_duckdb_would_skip_are_refused_or_read(tmp_path):
  path = tmp_path / 'data.csv'
  good = HEAD + GOOD * 200
  for text, message in (
    ('c1,1,2,0,\n', 'line 4002: 5 fields'),
    ('c1,1,2,0,""', 'line 4002: 5 fields'),
    ('c1,1,1_0,0\n', "line 4002: height is '1_0', which is not a number"),
  ):
    path.write_text(good + text)
    with pytest.raises(problems.DataError, match=message):
      own_data.load_rows(path)
  for text in (
    *('c1,1,2,0\r', 'c1,1,2,0\n\n', '\nc1,1,2,0\n'),
    *('"c1",1,2,0', ' c1 , 1,2 ,0\n', 'c1,1,2,0'),
  ):
    path.write_bytes((good + text).encode())
    clients, tested = own_data.everything(own_data.load_rows(path))
    assert sum(map(len, clients.values())) + len(tested) == 4001


def test_header_after_an_empty_line_is_no_row(tmp_path):
  path = tmp_path / 'data.csv'
  path.write_text('\nwho,text\n' + ''.join(f'c{i % 9},word {i}\n' for i in range(4000)))
  loaded = own_data.load(path, client_column='who', text_column='text')
  assert loaded.num_clients == 8  # One of nine is held out.


def test_single_column_may_have_empty_lines_only_at_the_end(tmp_path):
  path = tmp_path / 'data.csv'
  path.write_text('said\n' + 'hello\n' * 20 + '\n\n')
  loaded = own_data.load(path, num_clients=2, text_column='said')
  assert loaded.facts['sequences'] == 16
  path.write_text('said\n' + 'hello\n' * 20 + '\n\nx\n')
  with pytest.raises(problems.DataError, match='line 23 is empty'):
    own_data.load(path, num_clients=2, text_column='said')
