"""Ledgers: what they say was spent is what was spent, and they hold no secrets.

Claims: epsilon so far is exact after every round and ends at the run's; a ledger is
never overwritten, nor read past a line that is no entry; nothing of a seed is in it.
"""

import dataclasses
import datetime
import json

import dp_accounting
import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import ledger

Gaussian = dp_accounting.GaussianDpEvent
DELTA = 1e-7
MECHANISMS = {
  'gaussian': (strategies.Identity(12), strategies.Participation(12, 5)),
  'tree': (strategies.BinaryTree(13), strategies.Participation(13, 4)),
  'banded': (
    strategies.BandedToeplitz.square_root(12, 4),
    strategies.Participation(12, 4),
  ),
}


_EVENT = Gaussian(2.0)


def append(writer, event=_EVENT, **changes):
  arguments = {
    'cohort_requested': 10,
    'cohort_reported': 9,
    'clip_norm': 0.5,
    'noise_multiplier': 2.0,
    'strategy_checksum': None,
    **changes,
  }
  return writer.append(event=event, **arguments)


@pytest.fixture
def path(tmp_path):
  return str(tmp_path / 'ledger.jsonl')


@pytest.mark.parametrize(
  'strategy, participation', MECHANISMS.values(), ids=MECHANISMS.keys()
)
def test_epsilon_so_far_is_exact_after_every_round_and_ends_at_the_runs(
  path, strategy, participation
):
  each, so_far = events.round_noise_multipliers(strategy, participation, 3.0)
  with ledger.LedgerWriter(path, DELTA) as writer:
    for noise_multiplier in each:
      append(writer, Gaussian(noise_multiplier))
  entries = ledger.read(path)
  assert len(entries) == strategy.num_rounds
  for entry, effective in zip(entries, so_far):
    exact = accountants.epsilon(Gaussian(effective), DELTA)
    assert entry.epsilon == pytest.approx(exact, rel=1e-10)
    assert entry.effective_noise_multiplier == pytest.approx(effective, rel=1e-12)
  run = events.run_event(strategy, participation, 3.0)
  assert entries[-1].epsilon == pytest.approx(
    accountants.epsilon(run, DELTA), rel=1e-10
  )
  total = ledger.total_event(entries)
  assert total.noise_multiplier == pytest.approx(run.noise_multiplier, rel=1e-12)
  assert [e.epsilon for e in entries] == sorted(e.epsilon for e in entries)


def test_entries_read_back_as_they_were_written(path):
  strategy = strategies.BinaryTree(8)
  before = datetime.datetime.now(datetime.timezone.utc)
  with ledger.LedgerWriter(path, DELTA) as writer:
    written = [
      append(writer, strategy_checksum=strategy.checksum, cohort_reported=7),
      append(writer, dp_accounting.NoOpDpEvent(), clip_norm=None),
    ]
  after = datetime.datetime.now(datetime.timezone.utc)
  entries = ledger.read(path)
  assert entries == written
  assert [entry.round for entry in entries] == [0, 1]
  first, second = entries
  assert first.cohort_requested == 10 and first.cohort_reported == 7
  assert first.clip_norm == 0.5 and second.clip_norm is None
  assert first.noise_multiplier == 2.0 and first.delta == DELTA
  assert first.strategy_checksum == strategy.checksum
  assert first.dp_event == Gaussian(2.0)
  assert second.dp_event == dp_accounting.NoOpDpEvent()
  assert second.epsilon == first.epsilon
  for entry in entries:
    time = datetime.datetime.fromisoformat(entry.time)
    assert time.utcoffset() == datetime.timedelta(0)
    assert before <= time <= after


def test_a_round_is_on_disk_when_append_returns(path):
  writer = ledger.LedgerWriter(path, DELTA)
  for count in (1, 2, 3):
    append(writer)
    assert len(ledger.read(path)) == count
  writer.close()


def test_what_the_writer_returns_is_the_line(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    entry = append(writer)
  with open(path, encoding='utf-8') as file:
    assert json.loads(file.read()) == dataclasses.asdict(entry)


def test_infinite_epsilon_is_no_number_and_stays_lost(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    append(writer, Gaussian(float('inf')))
    append(writer, Gaussian(0.0))
    append(writer, Gaussian(5.0))
  free, lost, later = ledger.read(path)
  assert free.epsilon == 0.0 and free.effective_noise_multiplier is None
  assert lost.dp_event == dp_accounting.NonPrivateDpEvent()
  assert lost.epsilon is None and lost.effective_noise_multiplier == 0.0
  assert later.epsilon is None
  assert ledger.total_event([free, lost, later]) == dp_accounting.NonPrivateDpEvent()


def test_a_ledger_is_never_overwritten(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    append(writer)
  with open(path, encoding='utf-8') as file:
    before = file.read()
  with pytest.raises(FileExistsError):
    ledger.LedgerWriter(path, DELTA)
  with open(path, encoding='utf-8') as file:
    assert file.read() == before


@pytest.mark.parametrize('delta', [0.0, 1.0, 2.0])
def test_a_delta_out_of_range_makes_no_file(tmp_path, delta):
  with pytest.raises(ValueError, match='delta must be between 0 and 1'):
    ledger.LedgerWriter(str(tmp_path / 'ledger.jsonl'), delta)
  assert list(tmp_path.iterdir()) == []


def test_an_event_that_cannot_be_accounted_writes_no_line(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    append(writer)
    for event in (dp_accounting.UnsupportedDpEvent(), dp_accounting.LaplaceDpEvent(1)):
      with pytest.raises(dp_accounting.UnsupportedEventError):
        append(writer, event)
    after = append(writer)
  assert after.round == 1
  assert after == ledger.read(path)[-1]
  exact = accountants.epsilon(dp_accounting.SelfComposedDpEvent(Gaussian(2), 2), DELTA)
  assert after.epsilon == pytest.approx(exact, rel=1e-12)


def lines_of_three_rounds(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    for _ in range(3):
      append(writer)
  with open(path, encoding='utf-8') as file:
    return file.read().splitlines()


def changed(line, **changes):
  return json.dumps({**json.loads(line), **changes})


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda a, b, c: [a, b[:40], c], 'line 2: not a ledger entry'),
    (lambda a, b, c: [a, b, c[: len(c) // 2]], 'line 3: not a ledger entry'),
    (lambda a, b, c: [a, '', b, c], 'line 2: not a ledger entry'),
    (lambda a, b, c: ['[]', b], 'line 1: not a ledger entry'),
    (lambda a, b, c: [a, '{"round": 1}'], 'line 2: not a ledger entry: .*missing'),
    (lambda a, b, c: [changed(a, note='x')], 'line 1: .*unexpected .*note'),
    (lambda a, b, c: [a, c], 'line 2: expected round 1, found 2'),
    (lambda a, b, c: [b, c], 'line 1: expected round 0, found 1'),
    (lambda a, b, c: [a, b, b], 'line 3: expected round 2, found 1'),
    (lambda a, b, c: [a, changed(b, event={})], 'line 2: .*unknown event type'),
    (
      lambda a, b, c: [a, changed(b, event={'type': 'GaussianDpEvent'})],
      'line 2: .*needs a number',
    ),
    (lambda a, b, c: [a, b, changed(c, event=None)], 'line 3: not a ledger entry'),
  ],
)
def test_reading_names_the_line_that_is_no_entry(path, tmp_path, change, message):
  lines = lines_of_three_rounds(path)
  broken = tmp_path / 'broken.jsonl'
  broken.write_text('\n'.join(change(*lines)) + '\n', encoding='utf-8')
  with pytest.raises(ValueError, match=message) as error:
    ledger.read(str(broken))
  assert str(broken) in str(error.value)


def test_an_empty_ledger_spent_nothing(path):
  ledger.LedgerWriter(path, DELTA).close()
  assert ledger.read(path) == []
  assert ledger.total_event([]) == dp_accounting.NoOpDpEvent()


def test_an_entry_has_exactly_the_public_fields_and_no_seed(path):
  # A new field is a decision: whatever is derived from the seed must stay out.
  assert [field.name for field in dataclasses.fields(ledger.LedgerEntry)] == [
      'round', 'cohort_requested', 'cohort_reported', 'clip_norm', 'noise_multiplier',
      'strategy_checksum', 'event', 'effective_noise_multiplier', 'epsilon', 'delta',
      'time',
  ]  # fmt: skip
  for line in lines_of_three_rounds(path):
    assert not {'seed', 'key', 'noise', 'state'} & set(json.loads(line))
  with pytest.raises(TypeError, match='seed'):
    append(ledger.LedgerWriter(path + '2', DELTA), seed=1)


def test_total_event_of_a_part_is_what_that_part_spent(path):
  lines_of_three_rounds(path)
  entries = ledger.read(path)
  for count in (1, 2, 3):
    total = ledger.total_event(entries[:count])
    assert accountants.epsilon(total, DELTA) == pytest.approx(
      entries[count - 1].epsilon, rel=1e-12
    )
