"""Ledgers: what they say was spent is what was spent."""

import dataclasses
import datetime
import hashlib
import json

import dp_accounting
import numpy as np
import pytest

from tests.accounting.records import ledgers
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.records import ledger

Gaussian = dp_accounting.GaussianDpEvent


@pytest.mark.parametrize(
  'strategy, participation', ledgers.MECHANISMS.values(), ids=ledgers.MECHANISMS.keys()
)
def test_epsilon_so_far_is_exact_after_every_round_and_ends_at_the_runs(
  path, strategy, participation
):
  each, so_far = events.round_noise_multipliers(strategy, participation, 3.0)
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for noise_multiplier in each:
      ledgers.append(writer, Gaussian(noise_multiplier))
  entries = ledger.read(path).entries
  assert len(entries) == strategy.num_rounds
  for entry, effective in zip(entries, so_far):
    exact = accountants.epsilon(Gaussian(effective), ledgers.DELTA)
    assert entry.epsilon == pytest.approx(exact, rel=1e-10)
    assert entry.effective_noise_multiplier == pytest.approx(effective, rel=1e-12)
  run = events.run_event(strategy, participation, 3.0)
  assert entries[-1].epsilon == pytest.approx(
    accountants.epsilon(run, ledgers.DELTA), rel=1e-10
  )
  total = ledger.total_event(entries)
  assert total == ledger.read(path).total_event
  assert total.noise_multiplier == pytest.approx(run.noise_multiplier, rel=1e-12)
  assert [e.epsilon for e in entries] == sorted(e.epsilon for e in entries)


def test_entries_read_back_as_they_were_written(path):
  what = {
    'strategy_checksum': strategies.BinaryTree(8).checksum,
    'result_checksum': ledger.checksum_of([np.ones(2)]),
    'noise_generator': 'chacha20',
  }
  numpys = {'cohort_reported': np.int64(7), 'clip_norm': np.float32(0.25)}
  before = datetime.datetime.now(datetime.timezone.utc)
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    written = [
      ledgers.append(writer, **what, **numpys),
      ledgers.append(writer, dp_accounting.NoOpDpEvent(), **what, clip_norm=1),
    ]
  after = datetime.datetime.now(datetime.timezone.utc)
  first, second = entries = ledger.read(path).entries
  assert list(entries) == written
  expected = {**what, **numpys, 'round': 0, 'cohort_requested': 10}
  expected.update(noise_multiplier=2.0, delta=ledgers.DELTA, dp_event=Gaussian(2.0))
  assert {name: getattr(first, name) for name in expected} == expected
  assert (second.round, second.clip_norm, second.epsilon) == (1, 1.0, first.epsilon)
  assert second.dp_event == dp_accounting.NoOpDpEvent()
  for entry in entries:
    stamp = datetime.datetime.fromisoformat(entry.time)
    assert stamp.utcoffset() == datetime.timedelta(0)
    assert before <= stamp <= after


def test_where_clients_make_noise_is_in_each_line_and_stays_the_same(path):
  site = {'name': 'local', 'min_clients': 3, 'server_noise_multiplier': None}
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    assert ledgers.append(writer, noise_site=site).noise_site == site
    for other in (None, {**site, 'min_clients': 2}, {**site, 'name': 'clients'}):
      with pytest.raises(ValueError, match='noise_site'):
        ledgers.append(writer, noise_site=other)
    ledgers.append(writer, noise_site=site)
  assert [entry.noise_site for entry in ledger.read(path).entries] == [site] * 2
  with ledger.LedgerWriter(f'{path}.other', ledgers.DELTA) as writer:
    for wrong in ({'name': 'local'}, {**site, 'server_noise_multiplier': -1.0}):
      with pytest.raises(ValueError, match='noise_site'):
        ledgers.append(writer, noise_site=wrong)


def test_notes_are_in_the_line_and_are_no_part_of_what_was_released(path):
  note, checksum = 'worker a:1 is lost: no answer', ledger.checksum_of([1])
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer, notes=[note], result_checksum=checksum)
    again = ledgers.append(writer, round=0, result_checksum=checksum)
    assert again.notes is None
    for wrong in ([], [''], 'text', [1]):
      with pytest.raises(ValueError, match='notes'):
        ledgers.append(writer, notes=wrong)
  first, second = map(json.loads, ledgers.lines_of(path))
  assert first['notes'] == [note]
  assert 'notes' not in second
  entries = ledger.read(path).entries
  assert entries[0].notes == [note]


def test_infinite_epsilon_is_no_number_and_stays_lost(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer, Gaussian(float('inf')))
    ledgers.append(writer, Gaussian(0.0))
    ledgers.append(writer, Gaussian(5.0))
  free, lost, later = ledger.read(path).entries
  assert free.epsilon == 0.0 and free.effective_noise_multiplier is None
  assert lost.dp_event == dp_accounting.NonPrivateDpEvent()
  assert lost.epsilon is None and lost.effective_noise_multiplier == 0.0
  assert later.epsilon is None
  assert ledger.total_event([free, lost, later]) == dp_accounting.NonPrivateDpEvent()


def test_a_ledger_is_never_overwritten(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer)
  before = ledgers.lines_of(path)
  with pytest.raises(FileExistsError, match='never overwritten'):
    ledger.LedgerWriter(path, ledgers.DELTA)
  assert ledgers.lines_of(path) == before


@pytest.mark.parametrize('delta', [0.0, 1.0, 2.0])
def test_a_delta_out_of_range_makes_no_file(tmp_path, delta):
  with pytest.raises(ValueError, match='delta must be between 0 and 1'):
    ledger.LedgerWriter(str(tmp_path / 'ledger.jsonl'), delta)
  assert list(tmp_path.iterdir()) == []


_ONLY_GAUSSIAN = 'cannot be written|are of one mechanism'


@pytest.mark.parametrize(
  'changes, error, message',
  [
    ({'event': dp_accounting.LaplaceDpEvent(1)}, ValueError, _ONLY_GAUSSIAN),
    ({'event': ledgers.SAMPLED}, ValueError, 'before it are Gaussian'),
    ({'event': Gaussian(-1.0)}, ValueError, 'negative or NaN'),
    ({'cohort_requested': -1}, ValueError, 'cohort_requested must be at least 0'),
    ({'clip_norm': float('nan')}, ValueError, 'clip_norm must not be'),
    ({'noise_multiplier': 3.0}, ValueError, 'noise_multiplier is 3.0 .* was 2.0'),
    ({'strategy_checksum': 'a'}, ValueError, "strategy_checksum is 'a' .* was None"),
    ({'strategy_checksum': 7}, ValueError, 'strategy_checksum must not be'),
    ({'result_checksum': 'sha256:0'}, ValueError, 'result_checksum must not be'),
    ({'clip_norm': None}, ValueError, 'clip_norm is None and .* but the event is'),
    (
      {'noise_multiplier': 0.0},
      ValueError,
      'noise_multiplier 0.0, but the event is Gaussian',
    ),
    ({'noise_generator': 7}, ValueError, 'noise_generator must not be 7'),
    ({'round': -1}, ValueError, 'round must be at least 0'),
    ({'round': 0.0}, TypeError, 'round must be a whole number'),
  ],
)  # fmt: skip
def test_what_cannot_be_accounted_writes_no_line_and_spends_nothing(
  path, changes, error, message
):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer)
    before = ledgers.lines_of(path)
    with pytest.raises(error, match=message):
      ledgers.append(writer, **changes)
    assert ledgers.lines_of(path) == before and writer.head.lines == 1
    after = ledgers.append(writer)
  assert after.round == 1
  assert after == ledger.read(path).entries[-1]
  exact = accountants.epsilon(
    dp_accounting.SelfComposedDpEvent(Gaussian(2), 2), ledgers.DELTA
  )
  assert after.epsilon == pytest.approx(exact, rel=1e-12)


def test_an_entry_has_exactly_the_public_fields_and_no_seed(path):
  # A new field is a decision: whatever is derived from the seed must stay out. (Tags
  # are of secret keys, or slow to try.)
  assert [field.name for field in dataclasses.fields(ledger.LedgerEntry)] == [
      'round', 'cohort_requested', 'cohort_reported', 'clip_norm', 'noise_multiplier',
      'strategy_checksum', 'event', 'effective_noise_multiplier', 'epsilon', 'delta',
      'time', 'previous_line_sha256', 'result_checksum', 'noise_generator',
      'noise_key_tag', 'parts', 'noise_site', 'notes', 'noise_source',
      'sampling_source', 'sampling_tag',
  ]  # fmt: skip
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer)
    with pytest.raises(TypeError, match='seed'):
      ledgers.append(writer, seed=1)
  (line,) = ledgers.lines_of(path)
  assert not {'seed', 'key', 'noise', 'state'} & set(json.loads(line))


def test_an_empty_ledger_spent_nothing(path):
  ledger.LedgerWriter(path, ledgers.DELTA).close()
  empty = ledger.read(path)
  nothing = hashlib.sha256().hexdigest()
  assert empty == ledger.Ledger((), (), 0, nothing, ledger.Head(0, nothing))
  assert empty.total_event == dp_accounting.NoOpDpEvent()


def test_without_a_clip_norm_a_round_is_not_private(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for event in (
      dp_accounting.NonPrivateDpEvent(),
      Gaussian(0.0),
      dp_accounting.ComposedDpEvent([Gaussian(1.0), dp_accounting.NonPrivateDpEvent()]),
    ):
      entry = ledgers.append(writer, event, clip_norm=None)
      assert entry.epsilon is None
    for event in (Gaussian(0.01), Gaussian(5.0), dp_accounting.NoOpDpEvent()):
      with pytest.raises(ValueError, match='clip_norm is None and .* but the event is'):
        ledgers.append(writer, event, clip_norm=None)
    with pytest.raises(ValueError):
      ledgers.append(writer, dp_accounting.LaplaceDpEvent(1.0), clip_norm=None)
    assert writer.rounds == 3
  assert [entry.clip_norm for entry in ledger.read(path).entries] == [None] * 3
