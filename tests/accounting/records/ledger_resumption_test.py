"""Tests of resumed ledgers, and of rounds that are released again."""

import hashlib
import logging
import os
import pathlib
import re

import dp_accounting
import numpy as np
import pytest

from tests.accounting.records import ledgers
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.records import ledger

Gaussian = dp_accounting.GaussianDpEvent


# Truncated files.


@pytest.fixture
def whole(path):
  """A ledger in which round 1 was released twice."""
  return ledgers.write(path, 0, 1, 1)


def test_truncated_ledger_reads_as_its_complete_lines(path, whole):
  data = pathlib.Path(path).read_bytes()
  for length in [*range(0, len(data) + 1, 3), *lengths_at_line_ends(data), len(data)]:
    ledgers.replace_file(path, data[:length])
    # A line that lacks only its line feed counts as well.
    complete = data[: length + 1].count(b'\n')
    truncated = ledger.read(path)
    assert truncated.entries == whole.entries[:complete]
    assert truncated.repeated == whole.repeated[: max(0, complete - 2)]
    size = len(b''.join(split_lines(data)[:complete]))
    assert truncated.cut == max(0, length - size)
    assert truncated.sha256 == hashlib.sha256(data[:length]).hexdigest()


def test_read_counts_whole_last_line_without_newline(path, whole):
  data = pathlib.Path(path).read_bytes()
  ledgers.replace_file(path, data[:-1])
  counted = ledger.read(path, whole.head)
  assert (counted.entries, counted.head, counted.cut) == (whole.entries, whole.head, 0)
  assert counted.sha256 != whole.sha256
  left_out = ledger.read(path, as_resumed=True)
  assert left_out.head.lines == 2 and left_out.cut == len(split_lines(data)[2]) - 1
  # A line that breaks a rule, as another time breaks the hash chain, is not counted.
  lines = split_lines(data)
  forged = lines[0].replace(b'"round": 0', b'"round":  0')
  ledgers.replace_file(path, forged + lines[1][:-1])
  assert ledger.read(path).head.lines == 1
  with pytest.raises(ValueError, match='some were changed or removed'):
    ledger.LedgerWriter(path, ledgers.DELTA, resume=True, expected=whole.head)


def split_lines(data):
  return data.splitlines(keepends=True)


def lengths_at_line_ends(data):
  """Returns the lengths of files cut just before or after a line feed."""
  return {m.start() + offset for m in re.finditer(b'\n', data) for offset in (0, 1)}


def test_truncated_ledger_resumes_to_the_same_entries(path, whole, caplog):
  data = pathlib.Path(path).read_bytes()
  # All lengths would take seconds.
  for length in sorted({*range(0, len(data) + 1, 11), *lengths_at_line_ends(data)}):
    ledgers.replace_file(path, data[:length])
    complete = data[:length].count(b'\n')
    prefix = b''.join(split_lines(data)[:complete])
    caplog.clear()
    with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
      assert pathlib.Path(path).read_bytes() == prefix
      if length > len(prefix):
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert repr(data[len(prefix) : length]) in caplog.text
      else:
        assert not caplog.records
      for number in (0, 1, 1)[complete:]:
        ledgers.release(writer, number)
    resumed = ledger.read(path)
    assert ledgers.untimed(resumed.entries) == ledgers.untimed(whole.entries)
    assert resumed.repeated == (1,) and not resumed.cut


def test_resume_leaves_invalid_ledger_unchanged(path, whole):
  with open(path, 'ab') as file:
    file.write(b'{"round": 2}\nhalf')
  before = ledgers.lines_of(path)
  with pytest.raises(ValueError, match='line 4: not a ledger entry: .*missing'):
    ledger.LedgerWriter(path, ledgers.DELTA, resume=True)
  assert ledgers.lines_of(path) == before
  assert os.listdir(os.path.dirname(path)) == ['ledger.jsonl']


def test_resume_refuses_another_delta(path, whole):
  with pytest.raises(ValueError, match='delta is 1e-06, but .* epsilons at 1e-07'):
    ledger.LedgerWriter(path, 1e-6, resume=True)
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    assert writer.rounds == 2


# Rounds released again.


def test_repeated_round_adds_a_line_but_counts_once(path):
  once = ledgers.write(path, 0, 1, 2, 3)
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    repeated = [ledgers.release(writer, 2), ledgers.release(writer, 3)]
    assert writer.rounds == 4
    last = ledgers.release(writer, 4)
  twice = ledger.read(path)
  assert len(ledgers.lines_of(path)) == 7
  assert [entry.round for entry in twice.entries] == [0, 1, 2, 3, 4]
  assert twice.entries[:4] == once.entries
  assert twice.repeated == (2, 3)
  assert ledgers.untimed(repeated) == ledgers.untimed(list(once.entries[2:]))
  total = [Gaussian(2.0 + number) for number in range(5)]
  assert last.epsilon == pytest.approx(
    accountants.epsilon(dp_accounting.ComposedDpEvent(total), ledgers.DELTA), rel=1e-12
  )


def test_default_round_follows_the_last_line(path):
  fields = {'result_checksum': ledger.checksum_of([])}
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    rounds = [ledgers.append(writer, **fields).round for _ in range(3)]
    rounds.append(ledgers.append(writer, round=1, **fields).round)
    rounds += [ledgers.append(writer, **fields).round for _ in range(2)]
  assert rounds == [0, 1, 2, 1, 2, 3]
  assert ledger.read(path).repeated == (1, 2)


@pytest.mark.parametrize(
  'changes',
  [
    {'result_checksum': 'sha256:' + 64 * '0'},
    {'cohort_reported': 8},
    {'cohort_requested': 11},
    {'clip_norm': 0.6},
    {'event': Gaussian(2.1)},
    {'strategy_checksum': 'sha256:0'},
    {'noise_generator': 'philox'},
    {'noise_key_tag': '-7'},
  ],
)
def test_repeated_round_with_other_content_is_refused(path, changes):
  fields = {'result_checksum': ledger.checksum_of([np.ones(3)])}
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for _ in range(2):
      ledgers.append(writer, **fields)
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    ledgers.append(writer, **fields)
    before = ledgers.lines_of(path)
    (name,) = changes
    for number in (1, 2):  # Rounds of the run before, and of this one.
      message = rf'round {number} was released already with other content \(.*{name}'
      with pytest.raises(ValueError, match=message):
        ledgers.append(writer, **{**fields, 'round': number, **changes})
    assert ledgers.lines_of(path) == before
    ledgers.append(writer, round=1, **fields)


def test_round_without_checksum_cannot_be_repeated(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer, round=0)
    with pytest.raises(ValueError, match='without a result_checksum nothing shows'):
      ledgers.append(writer, round=0)
  (line,) = ledgers.lines_of(path)
  pathlib.Path(path).write_bytes(line + line)
  with pytest.raises(ValueError, match='line 2: .* without a result_checksum'):
    ledger.read(path)


def test_checksum_depends_on_type_shape_order_and_every_bit():
  ones = np.ones((2, 3), np.float32)
  nearly = ones.copy()
  nearly[1, 2] = np.nextafter(np.float32(1), np.float32(2))
  different = [
    [], [ones], [nearly], [ones, ones], [ones.T], [ones.ravel()], [ones[:1], ones[1:]],
    [ones.astype(np.float64)], [ones.view(np.int32)], [ones, ones[:0]],
    [np.float32(0.0)], [np.float32(-0.0)], [np.arange(2)], [np.arange(2)[::-1]],
  ]  # fmt: skip
  checksums = [ledger.checksum_of(arrays) for arrays in different]
  assert len(set(checksums)) == len(different)
  for checksum in checksums:
    assert re.fullmatch('sha256:[0-9a-f]{64}', checksum)


def test_checksum_is_independent_of_memory_layout():
  array = np.arange(12.0).reshape(3, 4)
  checksum = ledger.checksum_of([array, 7])
  assert ledger.checksum_of(iter([array.copy(order='F'), np.array(7)])) == checksum
  assert ledger.checksum_of([array.astype('>f8'), np.array(7, '>i8')]) == checksum


@pytest.mark.parametrize('arrays', [np.ones(3), [np.array(['a', None])], ['a', {}]])
def test_checksum_refuses_all_but_lists_of_numbers(arrays):
  with pytest.raises(ValueError, match='arrays must'):
    ledger.checksum_of(arrays)
