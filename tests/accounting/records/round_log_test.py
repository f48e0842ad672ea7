"""Tests that round logs are read, and that invalid ones are refused."""

import datetime
import gzip
import itertools
import json
import os
import random

import duckdb
import numpy as np
import pytest

from tests.accounting.records import ledgers
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.records import round_log

UTC = datetime.timezone.utc


def nanoseconds(time):
  """Returns the nanoseconds of an aware `datetime` since 1970."""
  since = time - datetime.datetime(1970, 1, 1, tzinfo=UTC)
  return since // datetime.timedelta(microseconds=1) * 1000


@pytest.fixture
def read(tmp_path):
  def read_text(text, columns=None, name='rounds', population=None):
    path = tmp_path / name
    path.write_text(text, encoding='utf-8')
    return round_log.read(str(path), columns, population)

  return read_text


def contents(log):
  """Returns what is the same in two equal logs."""
  clients = None
  if log.clients is not None:
    clients = sorted(
      log.clients.query(
        'select round, name from contributions join names using (client)'
      )
    )
  arrays = (log.completions, log.starts, log.cohort_sizes)
  return (
    log.num_rounds,
    log.first_number,
    [None if array is None else array.tolist() for array in arrays],
    clients,
  )


def test_times_match_datetime_in_all_time_zones(read):
  rng = random.Random(1)
  zoned, plain = [], []
  for _ in range(300):
    zone = datetime.timezone(datetime.timedelta(minutes=rng.randrange(-900, 900)))
    time = datetime.datetime.fromtimestamp(rng.randrange(86400, 7 * 10**9), zone)
    time = time.replace(microsecond=rng.choice([0, 1, 250_000]))
    zoned.append((nanoseconds(time), time.isoformat(sep=rng.choice('T '))))
    naive = time.replace(tzinfo=None)
    plain.append((nanoseconds(naive.replace(tzinfo=UTC)), naive.isoformat()))
  for times, time_format in ((zoned, 'with a zone'), (plain, 'without a zone')):
    if times is plain:
      times.sort()  # Otherwise a clock may have been set back.
    log = read('\n'.join(['time', *(text for _, text in times)]))
    assert log.completions.tolist() == sorted(time for time, _ in times)
    assert log.time_format == f'ISO 8601 {time_format}'


def parse_times(*texts):
  """Returns nanoseconds of times as logs write them; `None` for an invalid time."""
  entries = '(select unnest($1) as start_time, generate_subscripts($1, 1) as no)'
  query = f'from ({round_log._converted(["start_time"], entries)}) order by no'
  return [time for _, time, *_ in round_log.Database().query(query, texts)]


def test_all_formats_of_one_time_are_equal():
  noon = 1_700_049_600 * 10**9
  texts = (
    '2023-11-15T12:00:00Z',
    '2023-11-15 12:00:00 UTC',
    '2023-11-15T12:00:00,0000000001Z',
    '2023-11-15T14:30:00+02:30',
    '2023-11-15T14:30:00+0230',
    '2023-11-15T04:00:00-08',
    '2023-11-15T12:00:00',
    *('1700049600', '1700049600000', '1700049600000000', '1700049600000000000'),
    '1700049600.',
  )
  assert dict(zip(texts, parse_times(*texts))) == dict.fromkeys(texts, noon)
  fractional = '1700049600.123456789', '2023-11-15T12:00:00.123456789Z'
  assert parse_times(*fractional) == [noon + 123_456_789] * 2
  assert round_log.parse_time('1700049600123.4')[0] == noon + 123_400_000


def test_invalid_times_are_refused():
  texts = (
    *('', '-5', '1.7000496e9', '17000496e2', '1_700_049_600', 'nan', '2023-11-15'),
    '2023-02-29T12:00:00Z',
    *('2023-11-15T24:00:00Z', '2023-11-15T12:00:60Z', '2023-11-15T12:00:00+24:00'),
    *('2023-11-15T12:00:00 CET', '1969-12-31T23:59:59Z', '2200-01-01T00:00:00Z'),
    '٢٠٢٣-11-15T12:00:00Z',
  )
  assert dict(zip(texts, parse_times(*texts))) == dict.fromkeys(texts)
  with pytest.raises(ValueError, match="'2023-11-15' is not a time"):
    round_log.parse_time('2023-11-15')


def test_json_times_keep_the_digits_of_the_file(read):
  log = read('{"time": 1700000000.123456789}\n{"time":1700000001.25}\n')
  assert log.completions.tolist() == [
    1_700_000_000_123_456_789,
    1_700_000_001_250 * 10**6,
  ]
  # Numbers in powers of ten may lack digits. Those of an escaped key are not found.
  for entry in ('"time": 1.7001e9', '"\\u0074ime": 1700000000.5', '"time":17e8'):
    with pytest.raises(ValueError, match='line 1: .* is not a time .*powers of ten'):
      read(f'{{{entry}}}\n')
  # A value of the same name elsewhere in the line is not taken for the time.
  with pytest.raises(ValueError, match='line 1: 1700000000.5 is not a time'):
    read('{"other": {"time": 1.5}, "time": 1700000000.5}\n')


ROUNDS = [
  # round, completion, start, cohort, clients
  (0, '2023-11-15T12:00:00Z', '2023-11-15T11:00:00Z', 2, ['a', 'b']),
  (1, '2023-11-15T13:00:00Z', '2023-11-15T12:10:00Z', 3, ['c', 'b', 'd']),
  (2, '2023-11-15T13:30:00Z', '2023-11-15T12:50:00Z', 1, ['a']),
  (3, '2023-11-15T15:00:00Z', '2023-11-15T13:20:00Z', 0, []),
]
NAMES = ('round', 'completion_time', 'start_time', 'cohort_size', 'client_ids')


def to_csv(rounds, names=NAMES):
  rows = [','.join(names)]
  for *values, clients in rounds:
    rows.append(','.join(map(str, [*values, ' '.join(clients) or '[]'])))
  return '\n'.join(rows) + '\n'


def to_json(rounds, names=NAMES):
  return ''.join(json.dumps(dict(zip(names, values))) + '\n' for values in rounds)


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
  """The contents of a log of `ROUNDS`."""
  path = tmp_path_factory.mktemp('expected') / 'rounds'
  path.write_text(to_json(ROUNDS), encoding='utf-8')
  return contents(round_log.read(str(path)))


def test_csv_and_json_lines_read_the_same(read, expected):
  assert expected[0] == 4
  assert expected[2][2] == [2, 3, 1, 0]
  assert expected[3] == [(0, 'a'), (0, 'b'), (1, 'b'), (1, 'c'), (1, 'd'), (2, 'a')]
  assert contents(read(to_csv(ROUNDS))) == expected
  assert contents(read('\ufeff' + to_csv(ROUNDS).replace('\n', '\r\n'))) == expected
  assert contents(read('\n\n' + to_csv(ROUNDS) + '\n\n')) == expected
  assert contents(read(' \n' + to_json(ROUNDS).replace('\n', '\n\n'))) == expected


@pytest.mark.parametrize('write', [to_csv, to_json])
def test_order_and_time_zones_change_nothing(read, expected, write):
  rng = random.Random(4)
  for _ in range(2):
    rounds = [*ROUNDS]
    rng.shuffle(rounds)
    shifted = []
    for number, *times, cohort, clients in rounds:
      zone = datetime.timezone(datetime.timedelta(hours=rng.randrange(-12, 13)))
      times = [datetime.datetime.fromisoformat(t[:-1] + '+00:00') for t in times]
      times = [time.astimezone(zone).isoformat() for time in times]
      shifted.append((number, *times, cohort, clients))
    assert contents(read(write(shifted))) == expected
    with pytest.raises(ValueError, match='line .*the same round as in line .*Keep one'):
      read(write([*shifted, rng.choice(shifted)]))


def test_columns_may_have_other_names(read, expected):
  names = ('nr', 'done', 'began', 'n', 'who')
  columns = dict(zip(NAMES, names))
  assert contents(read(to_csv(ROUNDS, names), columns)) == expected
  assert contents(read(to_json(ROUNDS, names), columns)) == expected
  common = (' Round', 'completed_at', 'STARTED', 'Cohort', 'participants')
  assert contents(read(to_csv(ROUNDS, common))) == expected


def test_ledger_is_read_as_round_log(path):
  ledgers.write(path, 0, 1, 2)
  log = round_log.read(path)
  assert log.num_rounds == 3
  assert log.cohort_sizes.tolist() == [90, 91, 92]


def test_rounds_from_one_and_fractional_times_are_read(read):
  log = read('round,time\n1,1700000000\n2,1700000600.5\n')
  assert (log.first_number, log.num_rounds) == (1, 2)
  assert np.diff(log.completions).tolist() == [600_500_000_000]
  assert log.format_time(log.completions[1]) == '2023-11-14T22:23:20.500000Z'
  log = read('{"time": 1700000000.25}\n{"time": 1700000001}\n')
  assert np.diff(log.completions).tolist() == [750_000_000]
  log = read('time\n2023-11-15T12:00:00\n')
  assert log.format_time(log.completions[0]) == '2023-11-15T12:00:00'


Z = '2023-11-15T12:00:00Z'


@pytest.mark.parametrize(
  ('text', 'line', 'message'),
  [
    # Repeated or contradictory rounds.
    (f'time\n{Z}\n2023-11-15T13:00:00Z\n{Z}\n', 4, 'the same round as in line 2'),
    (
      f'time,client_ids\n{Z},a b\n2023-11-15T13:00:00+01:00,b a\n',
      3,
      'the same round as in line 2. Is it one round or two?',
    ),
    (f'round,time,cohort\n0,{Z},5\n0,{Z},6\n', 3, 'the same round as in line 2'),
    (
      f'{{"round": 0, "time": "{Z}", "client_ids": ["a"]}}\n'
      f'{{"round": 0, "time": "{Z}", "client_ids": ["b"]}}\n',
      2,
      'the same round as in line 1',
    ),
    # Missing values.
    (f'round,time\n0,{Z}\n2,{Z}\n', 3, 'round 2 follows on round 0'),
    (f'round,time\n3,{Z}\n2,{Z}\n', 3, 'the first round is number 2'),
    (f'round,time\n0,{Z}\n1,\n', 3, 'there is no completion_time'),
    (f'round,time\n0,{Z}\n,{Z}\n', 3, 'there is no round'),
    (f'round,time\n0,{Z}\n1\n', 3, 'Expected Number of Columns: 2 Found: 1'),
    (f'{{"round": 0, "time": "{Z}"}}\n{{"round": 1}}\n', 2, 'no completion_time'),
    (f'{{"time": "{Z}"}}\n{{"time": "{Z}", "round": 1}}\n', 2, 'round is here but not'),
    (f'{{"time": "{Z}"}}\n{{"time": "2023-11', 2, 'not a JSON object'),
    (f'time,note\n{Z},"half', 2, 'not CSV'),
    # Inconsistent times.
    (f'round,time\n0,{Z}\n1,2023-11-15T11:59:59Z\n', 3, 'before it, in line 2'),
    (f'time,started\n{Z},2023-11-15T12:00:01Z\n', 2, 'starts after its completion'),
    (f'time\n{Z}\n2023-11-15T12:00:00\n', 3, 'but line 2 has ISO 8601 with a zone'),
    ('time\n1700000000\n1700000000000\n', 3, 'is Unix time in ms, but line 2'),
    # Unreadable values.
    ('time\n2023-11-31T12:00:00Z\n', 2, "'2023-11-31T12:00:00Z' is not a time"),
    ('{"time": true}\n', 1, 'True is not a time'),
    (f'time,round\n{Z},1.0\n', 2, 'round must be a whole number'),
    (f'time,cohort\n{Z},many\n', 2, 'cohort_size must be a whole number'),
    (f'{{"time": "{Z}", "round": true}}\n', 1, 'round must be a whole number'),
    ('round,client_ids\n0,a\n1,\n', 3, 'and [] where nobody took part'),
    ('client,round\n,0\nb,0\n', 2, 'there is no client_id'),
    (f'{{"time": "{Z}", "client_ids": [15, null]}}\n', 1, 'client None is neither'),
    ('[{"time": 5}]\n', 1, 'no column of completion times'),
    ('round,client_ids\n0,"a, b"\n', 2, 'client_ids must be a JSON list, or be'),
    # Columns.
    (f'when\n{Z}\n', 1, 'no column of completion times'),
    (f'time,timestamp\n{Z},{Z}\n', 1, 'time and timestamp could both be'),
    (f'time, Time\n{Z},{Z}\n', 1, 'two columns have the same name'),
    (f'time,flRound\n{Z},1\n', 1, 'flRound may be the number of the round'),
    (f'{{"time": "{Z}", "devices": [1]}}\n', 1, 'devices may say which clients took'),
    # Populations.
    (f'time,population\n{Z},es\n{Z},fr\n', 3, "'fr', but line 2 has 'es'"),
    (f'time,population\n{Z},es\n{Z},\n', 3, 'there is no population'),
  ],
)
def test_invalid_log_is_refused_with_line_number(read, text, line, message):
  with pytest.raises(ValueError) as error:
    read(text)
  assert str(error.value).count(f'line {line}: ') == 1
  assert message in str(error.value)


def test_empty_logs_and_unknown_columns_are_refused(read, tmp_path):
  for text in ('', '\n \n', 'time\n'):
    with pytest.raises(ValueError, match='has no rounds'):
      read(text)
  with pytest.raises(ValueError, match='names no client'):
    read('client_ids,round\n[],0\n')
  with pytest.raises(ValueError, match="'when' is not a column of a round log"):
    read('time\n5\n', {'when': 'time'})
  with pytest.raises(ValueError, match="there is no column 'done'"):
    read('time\n5\n', {'completion_time': 'done'})
  with pytest.raises(ValueError, match='one client in every line.*round=NAME,clien'):
    read('who\na\nb\na\n', {'client_ids': 'who'})
  with pytest.raises(FileNotFoundError):
    round_log.read(str(tmp_path / 'nothing'))


def test_times_that_go_back_without_zone_are_refused(read):
  text = 'time\n2026-10-25 02:50\n2026-10-25 02:15\n'
  with pytest.raises(ValueError, match='daylight saving. Write times with their zone'):
    read(text)
  text = 'time,round\n2026-10-25 02:50,1\n2026-10-25 03:15,2\n'
  assert read(text).num_rounds == 2


def test_read_refuses_pipes_devices_and_folders(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  for path in (str(tmp_path / 'pipe'), '/dev/zero', str(tmp_path)):
    with pytest.raises(ValueError, match='is not a regular file'):
      round_log.read(path)


def to_tsv(rounds, names=NAMES):
  return to_csv(rounds, names).replace(',', '\t')


@pytest.mark.parametrize('write', [to_csv, to_tsv, to_json])
def test_gzipped_and_tab_separated_logs_read_the_same(read, tmp_path, expected, write):
  assert contents(read(write(ROUNDS))) == expected
  path = tmp_path / 'packed'  # Gzip is detected by content, not by name.
  text = write(ROUNDS).encode()
  path.write_bytes(gzip.compress(text[:50]) + gzip.compress(text[50:]))
  assert contents(round_log.read(str(path))) == expected


@pytest.fixture
def write_parquet(tmp_path):
  def write(values):
    path = str(tmp_path / 'rounds[1].parquet')  # This is no glob pattern.
    duckdb.execute(f"copy ({values}) to '{path}' (format parquet)")
    return path

  return write


def test_parquet_reads_the_same(write_parquet, expected):
  rows = ', '.join(str((*values, list(map(str, ids)))) for *values, ids in ROUNDS)
  table = f'(values {rows}) as t({", ".join(NAMES)})'
  numbers = 'epoch_us(completion_time::timestamptz)::double / 1e6 as completion_time'
  for columns in (
    '*',
    '* replace (completion_time::timestamptz as completion_time, '
    'start_time::timestamptz as start_time)',
    '* replace (completion_time::timestamp_ns as completion_time, '
    'start_time::timestamp_ns as start_time, round::utinyint as round)',
    f'* replace ({numbers}, epoch_ms(start_time::timestamptz)::double / 1e3 as '
    'start_time)',
    "* replace (coalesce(nullif(array_to_string(client_ids, ' '), ''), '[]') as "
    'client_ids)',
  ):
    log = round_log.read(write_parquet(f'select {columns} from {table}'))
    assert contents(log) == expected, columns


def test_invalid_parquet_is_refused_with_row_number(write_parquet):
  for values, message in (
    ('select 0 as round, 5 as "time" union all select 1, null', 'row 2: there is no'),
    ('select 1.5::float as client_id, 0 as round', 'values of the type FLOAT'),
    ('select unnest([1.0, 1.5]) as client_id, 0 as round', "client '1.5' is a frac"),
    ('select 5 as when', 'no column of completion times'),
    # Lists in which one client counts as several, or several as one.
    ('select 0 as round, map{7: 0.5} as client_ids', r'type MAP\(INTEGER, DEC'),
    ('select 0 as round, [[7]] as client_ids', 'client_ids has .* type INTEGER'),
    ('select 0 as round, [7.5::double] as client_ids', 'client 7.5 is a fraction'),
    ('select 0 as round, [7, 8] as client_id', 'client_id has values of the type INT'),
  ):
    with pytest.raises(ValueError, match=message):
      round_log.read(write_parquet(values))
  path = write_parquet('select range as "time" from range(1000)')
  with open(path, 'r+b') as file:
    file.truncate(500)
  with pytest.raises(ValueError, match='is not Parquet that can be read'):
    round_log.read(path)


def test_csv_values_are_text_without_guessed_types(read):
  # Other readers guess numbers, missing values, quotes and separators.
  text = 'round,client_id\n0,007\n0,7\n1,"a""b"\n1,a b\n1,1_0\n1,1e5\n1, "c"\n'
  names = {'007', '7', 'a"b', 'a b', '1_0', '1e5', 'c'}
  assert {name for _, name in contents(read(text))[3]} == names
  for value in ('0x1', '1_0', '+1', '1e0', '１'):
    with pytest.raises(ValueError, match='line 2: round must be a whole number'):
      read(f'round,time\n{value},5\n')


@pytest.mark.skipif(duckdb.__version__ < '2', reason='reading CSV takes 256 MB there')
def test_log_larger_than_memory_is_read(tmp_path, monkeypatch):
  path = tmp_path / 'log.csv'
  with open(path, 'w') as file:
    file.write('client,round\n')
    for r in range(40):
      file.writelines(f'a-client-with-a-long-name-{c:09d},{r}\n' for c in range(10_000))
  summaries = []
  for memory in ('2GB', '45MB'):
    monkeypatch.setattr(round_log, 'MEMORY', memory)
    log = round_log.read(str(path))
    summaries.append(log_participation.summarize(log).to_json())
  assert summaries[0] == summaries[1]
  assert summaries[0]['max_participations'] == 40


def test_damaged_gzip_is_refused(tmp_path):
  rng = random.Random(5)
  lines = ['time', *(str(rng.randrange(10**9, 2 * 10**9)) for _ in range(3000))]
  whole = gzip.compress('\n'.join(lines).encode(), mtime=0)
  path = tmp_path / 'rounds.csv.gz'
  damaged = [whole[:size] for size in range(10, len(whole), len(whole) // 4)]
  for index in range(20, len(whole), len(whole) // 4):
    damaged.append(whole[:index] + bytes([whole[index] ^ 255]) + whole[index + 1 :])
  for packed in damaged:
    path.write_bytes(packed)
    with pytest.raises(ValueError, match='rounds.csv.gz is a gzipped file'):
      round_log.read(str(path))


def test_invalid_utf_8_is_refused_with_line_number(tmp_path):
  lines = [b'time', *(b'%d' % (10**9 + i) for i in range(25_000))]
  lines[23_456] += b'\xff'
  for pack in (bytes, gzip.compress):
    path = tmp_path / 'rounds'
    path.write_bytes(pack(b'\n'.join(lines)))
    with pytest.raises(ValueError, match='line 23457: this is not CSV in UTF-8: '):
      round_log.read(str(path))
  path.write_text('time\n1700000000\n', encoding='utf-16')
  with pytest.raises(ValueError, match='is not text in UTF-8, but UTF-16 .* as UTF-8'):
    round_log.read(str(path))
  path.write_bytes(b'\x89PNG\r\n')
  with pytest.raises(ValueError, match='line 1: no column of completion times'):
    round_log.read(str(path))


@pytest.mark.parametrize('write', [to_csv, to_json])
def test_population_filter_ignores_other_populations(read, expected, write):
  names = ('population', *NAMES)
  selected = [('es', *values) for values in ROUNDS]
  others = [(name, 0, 'no time', 'nor this', -1, []) for name in ('fr', 'it')]
  rounds = [*selected, *others]
  random.Random(6).shuffle(rounds)
  log = read(write(rounds, names), population='es')
  assert contents(log) == expected
  assert any("2 lines of others were left out: 'fr', 'it'" in n for n in log.notes)
  assert contents(read(write(selected, names))) == expected
  with pytest.raises(ValueError, match="no rounds of the population 'de'; it has"):
    read(write(selected, names), population='de')
  with pytest.raises(ValueError, match='line 1: no column of populations among'):
    read(write(ROUNDS), population='es')


def test_client_ids_in_csv_may_be_a_json_list(read):
  expected = contents(read('round,client_ids\n0,a b\n1,7;b\n'))
  assert expected[3] == [(0, 'a'), (0, 'b'), (1, '7'), (1, 'b')]
  quoted = 'round,client_ids\n0,"[""a"", ""b""]"\n1,"[7, ""b""]"\n'
  assert contents(read(quoted)) == expected
  assert contents(read('round\tclient_ids\n0\t["a", "b"]\n1\t[7,"b"]\n')) == expected


def test_log_with_clients_needs_no_times(read):
  log = read('client_ids\na b\n\nb;c\n')
  assert log.completions is None
  assert contents(log)[3] == [(0, 'a'), (0, 'b'), (1, 'b'), (1, 'c')]


def test_one_line_per_participation_is_read_as_rounds(tmp_path):
  # The usual export of a data warehouse.
  lines = [
    f'device {d},{r},2024-03-01T{r:02d}:0{d % 6}:00Z'
    for r in range(20)
    for d in range(30)
    if (d + r) % 5 == 0
  ]
  random.Random(1).shuffle(lines)
  for header in ('device,round,time', 'who,round,time'):
    path = tmp_path / 'log.csv'
    path.write_text('\n'.join([header, *lines]) + '\n')
    columns = {'client_id': 'who'} if header.startswith('who') else {}
    log = round_log.read(str(path), columns)
    assert (log.num_rounds, log.first_number, log.completions) == (20, 0, None)
    assert log.clients.query('select count(*) from names') == [(30,)]
    counts = log.clients.query(
      'select distinct count(*) from contributions group by round'
    )
    assert counts == [(6,)]
    summary = log_participation.summarize(log)
    assert (summary.min_separation, summary.max_participations) == (5, 4)
    # A lost partition could hide that a client took part too soon.
    kept = [line for line in lines if line.split(',')[1] not in ('11', '12')]
    path.write_text('\n'.join([header, *kept]) + '\n')
    with pytest.raises(ValueError, match='line .*round 13 follows on round 10'):
      round_log.read(str(path), columns)
  # A name for the column of times is refused, not ignored, if times are not read.
  path.write_text('\n'.join(['device,round,time', *lines]) + '\n')
  with pytest.raises(ValueError, match='Leave completion_time out of --columns'):
    round_log.read(str(path), {'completion_time': 'time'})


@pytest.mark.parametrize('seed', range(0, 20, 4))
def test_sensitivity_squared_matches_brute_force(read, seed, monkeypatch):
  # Clients are also processed in several parts.
  monkeypatch.setattr(log_participation, '_AT_ONCE', 2**seed)
  rng = np.random.default_rng(seed)
  num_rounds, clients = 12, 5
  lines = [
    f'c{c},{r}'
    for r in range(num_rounds)
    for c in range(clients)
    if rng.random() < 0.4 or c == 0
  ]
  log = read('\n'.join(['client,round', *lines, '']))
  summary = log_participation.summarize(log)
  matrix = np.tril(rng.normal(size=(num_rounds, num_rounds)))
  np.fill_diagonal(matrix, 1.0)
  for strategy, is_exact in (
    (strategies.Dense(num_rounds, np.abs(matrix)), True),
    (strategies.Dense(num_rounds, matrix), False),
    (strategies.BinaryTree(num_rounds), True),
  ):
    largest = 0.0
    for client in range(clients):
      rounds = [int(e.split(',')[1]) for e in lines if e.startswith(f'c{client},')]
      columns = strategy.materialize()[:, rounds]
      for signs in itertools.product((1, -1), repeat=min(len(rounds), 6)):
        u = np.append(signs, np.ones(len(rounds) - len(signs)))
        largest = max(largest, float(np.sum((columns @ u) ** 2)))
    actual = summary.sensitivity_squared(strategy)
    assert actual >= largest * (1 - 1e-12)
    if is_exact:
      assert actual == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize(
  'other', ['DEV1', '{dev1}', 'dev1\u200b', 'ｄev1', '"\'dev1\'"']
)
def test_ids_that_look_alike_are_different_clients_with_a_note(read, other):
  lines = ['round,client_id', '0,dev1', '0,dev2', f'1,{other}', '1,dev2']
  log = read('\n'.join([*lines, '']))
  assert log.clients.query('select count(*) from names') == [(3,)]
  (note,) = (note for note in log.notes if 'write them alike' in note)
  assert '(1, in line 2 for example)' in note
  assert 'dev' not in note  # Notes are in reports, which name no client.
  without = read('\n'.join([*lines[:3], '1,dev1', '1,dev2', '']))
  assert not any('write them alike' in note for note in without.notes)


_SEVEN = ('7', '7.0', '7e0')


@pytest.mark.parametrize(
  'lines',
  [
    ['round,client_id', '0,a', '0,b', '1,a ', '1,b\t', '2,a', '2,"b "'],
    [f'{{"round": {r}, "client_id": "{c}"}}' for r in range(3) for c in ('a ', ' b')],
    [f'{{"round": {r}, "client_ids": ["a{" " * r}", "b"]}}' for r in range(3)],
    ['round,client_ids', *(f'{r},"[""a{" " * r}"", ""b""]"' for r in range(3))],
    # pandas writes integers as floats if the column has a missing value, NumPy always.
    ['round,client_id', '0,7', '0,8', '1,7.0', '1,8.0', '2,7.000000e+00', '2,8.'],
    ['round,client_ids', '0,7 8', '1,7.0 8.0', '2,8.00e+00;7'],
    [f'{{"round": {r}, "client_ids": [{w}, 8]}}' for r, w in enumerate(_SEVEN)],
  ],
)
def test_spellings_of_one_client_id_are_one_client(read, lines):
  summary = log_participation.summarize(read('\n'.join([*lines, ''])))
  assert (summary.observed.num_clients, summary.max_participations) == (2, 3)


@pytest.mark.parametrize(
  'lines, reason',
  [
    # One client could count as two, or a round could be read in two ways.
    (['{"round": 0, "client_id": 1.5}'], 'client 1.5 is a fraction'),
    (['{"round": 0, "client_ids": [true]}'], 'neither a text nor a whole number'),
    (['round,client_id', '0,1', '1,0.5'], "line 3: the client '0.5' is a fraction"),
    (['round,client_id', '0,1e+16'], 'whose last digits are not written'),
    (['round,client_id', '0,9007199254740993.0'], 'stands for several whole numbers'),
    (['round,client_id', '0,a', '1,nan'], "the client 'nan' reads as a missing id"),
    (['round,client_ids', '0,a NA'], "the client 'NA' reads as a missing id"),
    (['{"round": 0, "client_ids": ["a"], "client_ids": ["b"]}'], 'a name is repeated'),
    (['round,client_id', '0,a', '1, '], 'there is no client_id'),
    # The cohort size says that a client is missing.
    (['round,cohort_size,client_ids', '0,3,a b c', '1,3,d'], '3: cohort_size is 3'),
  ],
)
def test_ambiguous_client_ids_are_refused(read, lines, reason):
  with pytest.raises(ValueError, match=reason):
    read('\n'.join([*lines, '']))


@pytest.mark.parametrize('several', ['7|8', '{7;8}', '"[7, 8]"', '[7 8]', '(a b)'])
def test_several_clients_in_one_value_are_refused(read, several):
  with pytest.raises(ValueError, match='line 3: .*Name the column client_ids .*or wr'):
    read(f'round,client_id\n0,a\n1,{several}\n1,b\n')
  if several[0] not in '7"[':
    with pytest.raises(ValueError, match='line 2: client_ids must be'):
      read(f'round,client_ids\n0,{several}\n')


def test_client_ids_that_resemble_lists_are_accepted(read):
  guid = '{6B29FC40-CA47-1067-B31D-00DD010662DA}'
  names = {guid, 'hospital/7', 'ward-7', 'a:b', 'a b', 'a (Bonn)', '(a) b (c)', '{7}'}
  text = ''.join(f'0,{name}\n' for name in names)
  assert {name for _, name in contents(read(f'round,client_id\n{text}'))[3]} == names
  both = read(f'round,client_ids\n0,{guid};{{7}} hospital/7\n')
  assert {name for _, name in contents(both)[3]} == {guid, '{7}', 'hospital/7'}


def test_last_line_without_newline_is_noted(read):
  for end, is_noted in (('', True), ('\n', False)):
    log = read(f'round,client_id\n0,10\n1,1{end}', {'client_id': 'client_id'})
    assert any('was not cut off' in note for note in log.notes) == is_noted


def test_names_in_later_json_lines_are_treated_like_those_of_the_first(read):
  first = f'{{"round": 0, "time": "{Z}", "mood": 1}}\n'
  later = [f'{{"round": 1, "time": "{Z}", "{name}": 1}}\n' for name in ('hue', 'nodes')]
  log = read(first + later[0])
  assert log.num_rounds == 2
  assert log.notes == ('columns left alone: mood, hue.',)
  with pytest.raises(ValueError, match='line 2: nodes may say which clients took part'):
    read(first + later[1])
  assert read(first + later[1], {'client_ids': ''}).num_rounds == 2


def test_participations_are_not_taken_for_repeated_rounds(read):
  # Lines of a round differ only in a column that is not read. When they counted as
  # repetitions, epsilon was 0.84 for a log with 2.18.
  lines = [f'{x},{r},2024-03-01T{r:02d}:00:00Z' for r in range(9) for x in 'ab']
  text = '\n'.join(['handset,round,time', *lines, ''])
  with pytest.raises(ValueError, match='same round .*--columns=client_id=NAME'):
    read(text)
  log = read(text, {'client_id': 'handset'})
  assert log_participation.summarize(log).max_participations == 9


def test_possible_client_column_must_be_named(read):
  text = 'user,time\nann,2024-03-01T00:00:00Z\nbob,2024-03-01T01:00:00Z\n'
  with pytest.raises(ValueError, match='no column has the number of its round'):
    read(text)
  assert read(text, {'client_id': ''}).num_rounds == 2
  lines = [f'{r % 2},{r},2024-03-01T{r:02d}:00:00Z' for r in range(9)]
  text = '\n'.join(['user,round,time', *lines, ''])
  with pytest.raises(ValueError, match='--columns=client_id=user or --columns'):
    read(text)
  assert read(text, {'client_id': ''}).clients is None
  named = read(text, {'client_id': 'user'})
  assert log_participation.summarize(named).min_separation == 2
