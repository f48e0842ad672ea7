"""Tests of aborted attempts in ledgers."""

import json
import pathlib

import dp_accounting
import pytest

from tests.accounting.records import ledgers
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.records import ledger

# Lines of a run: rounds, or (round, attempt) of aborted attempts.
LINES = (0, (1, 0), (1, 1), 1, 2, (3, 0))
changed = ledgers.changed
_NO_OP = dp_accounting.NoOpDpEvent()


def abort(writer, number, attempt, **changes):
  """Appends an aborted attempt with default fields, except for the changes."""
  fields = {'cohort_requested': 10, 'cohort_reported': 5 + attempt, 'reporting_goal': 8}
  return writer.append_aborted(round=number, attempt=attempt, **{**fields, **changes})


def write(writer, lines=LINES):
  """Appends lines."""
  for line in lines:
    if isinstance(line, tuple):
      abort(writer, *line)
    else:
      ledgers.release(writer, line)


@pytest.fixture
def whole(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    write(writer)
  return ledger.read(path)


def test_aborted_attempts_are_recorded_and_spend_nothing(path, whole, tmp_path):
  assert [(attempt.round, attempt.attempt) for attempt in whole.aborted] == [
    (1, 0),
    (1, 1),
    (3, 0),
  ]
  first = whole.aborted[0]
  assert (first.cohort_requested, first.cohort_reported) == (10, 5)
  assert first.reporting_goal == 8 and first.dp_event == _NO_OP
  assert whole.head.lines == len(LINES) and not whole.repeated
  without_aborted = ledgers.write(str(tmp_path / 'other.jsonl'), 0, 1, 2)
  assert without_aborted.aborted == ()
  assert ledgers.untimed(whole.entries) == ledgers.untimed(without_aborted.entries)
  assert whole.total_event == without_aborted.total_event


def test_ledger_with_only_aborted_attempts_spent_nothing(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    abort(writer, 0, 0)
    abort(writer, 0, 1, reporting_goal=None, cohort_reported=10)  # Another reason.
    assert writer.rounds == 0 and writer.aborted_attempts(0) == 2
  read = ledger.read(path)
  assert read.entries == () and read.total_event == _NO_OP
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    assert ledgers.append(writer).round == 0


@pytest.mark.parametrize(
  ('number', 'attempt', 'changes', 'message'),
  [
    (3, 0, {}, 'expected attempt 1 at round 3, or that round; found attempt 0 at'),
    (4, 0, {}, 'expected attempt 1 at round 3, or that round; found .* at round 4'),
    (2, 0, {}, 'expected attempt 1 at round 3, or that round; found .* at round 2'),
    (3, 1, {'cohort_reported': 8}, 'cohort_reported is 8, which reaches reporting_go'),
    (3, 1, {'cohort_reported': -1}, 'cohort_reported'),
  ],
)
def test_append_aborted_refuses_all_but_the_next_attempt(
  path, whole, number, attempt, changes, message
):
  before = ledgers.lines_of(path)
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    with pytest.raises(ValueError, match=message):
      abort(writer, number, attempt, **changes)
    with pytest.raises(ValueError, match='cohort_requested'):
      abort(writer, 3, 1, cohort_requested=1.5)
    assert ledgers.lines_of(path) == before
    abort(writer, 3, 1)  # The writer still works.
    ledgers.release(writer, 3)
    assert (writer.rounds, writer.aborted_attempts(4)) == (4, 0)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda a, b, c, d: [a, c, d], 'line 2: expected attempt 0 at round 1, or that'),
    (
      lambda a, b, c, d: ledgers.rehashed([a, d, c]),
      'line 3: expected attempt 0 at round 2, or that round; found .* at round 1',
    ),
    (lambda a, b, c, d: [a, changed(b, round=2)], 'line 2: expected attempt 0 at rou'),
    (lambda a, b, c, d: [a, b, d], 'line 3: previous_line_sha256 is'),
    (
      lambda a, b, c, d: [a, changed(b, cohort_reported=4), c, d],
      'line 3: previous_line_sha256 is',
    ),
    (lambda a, b, c, d: [a, changed(b, cohort_reported=9)], 'line 2: .*reaches repor'),
    (lambda a, b, c, d: [a, changed(b, time='now')], 'line 2: .*time must not be'),
    (lambda a, b, c, d: [a, changed(b, epsilon=0)], "line 2: .*unexpected .*'epsilon'"),
    (
      lambda a, b, c, d: [a, changed(b, event=events.to_json(ledgers.SAMPLED))],
      'line 2: .*event must be .*NoOpDpEvent.* what was released is a round',
    ),
  ],
)
def test_read_refuses_invalid_sequence_of_attempts(path, whole, change, message):
  broken = b''.join(change(*ledgers.lines_of(path)[:4]))
  pathlib.Path(path).write_bytes(broken)
  with pytest.raises(ValueError, match=message):
    ledger.read(path)


def read_without_times(path):
  lines = [json.loads(line) for line in ledgers.lines_of(path)]
  time_fields = ('time', 'previous_line_sha256')
  return [{k: v for k, v in line.items() if k not in time_fields} for line in lines]


def test_truncated_ledger_resumes_to_the_same_lines(path, whole):
  data, expected = pathlib.Path(path).read_bytes(), read_without_times(path)
  for length in range(0, len(data) + 1, 29):  # Every byte would take seconds.
    pathlib.Path(path).write_bytes(data[:length])
    complete = data[:length].count(b'\n')
    read = ledger.read(path)
    assert len(read.entries) + len(read.aborted) == read.head.lines == complete
    with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
      write(writer, LINES[complete:])
    assert read_without_times(path) == expected


def test_head_detects_removed_aborted_attempt(path, whole):
  lines = ledgers.lines_of(path)
  pathlib.Path(path).write_bytes(b''.join(ledgers.rehashed(lines[:2] + lines[3:])))
  ledger.read(path)  # A forger who writes all lines anew can remove one,
  with pytest.raises(ValueError, match='changed or removed'):
    ledger.read(path, expected=whole.head)  # but not hide it from the head.


def test_confirm_aborted_accepts_only_recorded_attempts(path, whole):
  what = {'cohort_requested': 10, 'reporting_goal': 8}
  before = ledgers.lines_of(path)
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    assert [writer.aborted_attempts(n) for n in range(5)] == [0, 2, 0, 1, 0]
    for number, attempt in ((1, 0), (1, 1), (3, 0)):
      confirmed = writer.confirm_aborted(
        round=number, attempt=attempt, cohort_reported=5 + attempt, **what
      )
      assert confirmed in whole.aborted
    with pytest.raises(ValueError, match=r"'cohort_reported': \(6, 7\)"):
      writer.confirm_aborted(round=1, attempt=1, cohort_reported=7, **what)
    for number, attempt in ((0, 0), (1, 2), (3, 1), (9, 0)):
      with pytest.raises(ValueError, match=f'attempt {attempt} at round {number} has '):
        writer.confirm_aborted(round=number, attempt=attempt, cohort_reported=5, **what)
  assert ledgers.lines_of(path) == before


# Checks against the reporting goal of a schedule.


def test_check_schedule_refuses_another_or_missed_reporting_goal(whole, path):
  ledger.check_schedule(whole, {'reporting_goal': 8})
  for goal in (7, None):
    with pytest.raises(ValueError, match=f'schedule is {goal}, but in round 1 '):
      ledger.check_schedule(whole, {'reporting_goal': goal})
  with ledger.LedgerWriter(f'{path}.missed', ledgers.DELTA) as writer:
    ledgers.append(writer, cohort_reported=7)
  with pytest.raises(ValueError, match='schedule is 8, but in round 0'):
    ledger.check_schedule(ledger.read(f'{path}.missed'), {'reporting_goal': 8})


def test_aborted_attempts_of_next_round_survive_a_repeated_round(path, whole):
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    ledgers.release(writer, 1)
    abort(writer, 3, 1)
    fields = {'strategy_checksum': 'sha256:1234567890', 'cohort_reported': 3}
    assert ledgers.append(writer, **fields).round == 3
  read = ledger.read(path)
  assert read.repeated == (1,) and len(read.aborted) == 4
