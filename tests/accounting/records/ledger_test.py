"""Tests that ledgers record rounds and state the privacy that was spent."""

import dataclasses
import datetime
import hashlib
import json
import os

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
def test_ledger_epsilon_is_exact_after_every_round(path, strategy, participation):
  by_round, cumulative = events.round_noise_multipliers(strategy, participation, 3.0)
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for noise_multiplier in by_round:
      ledgers.append(writer, Gaussian(noise_multiplier))
  entries = ledger.read(path).entries
  assert len(entries) == strategy.num_rounds
  for entry, effective in zip(entries, cumulative):
    expected = accountants.epsilon(Gaussian(effective), ledgers.DELTA)
    assert entry.epsilon == pytest.approx(expected, rel=1e-10)
    assert entry.effective_noise_multiplier == pytest.approx(effective, rel=1e-12)
  run = events.run_event(strategy, participation, 3.0)
  assert entries[-1].epsilon == pytest.approx(
    accountants.epsilon(run, ledgers.DELTA), rel=1e-10
  )
  total = ledger.total_event(entries)
  assert total == ledger.read(path).total_event
  assert total.noise_multiplier == pytest.approx(run.noise_multiplier, rel=1e-12)
  assert [e.epsilon for e in entries] == sorted(e.epsilon for e in entries)


def test_ledger_entries_read_back_as_written(path):
  fields = {
    'strategy_checksum': strategies.BinaryTree(8).checksum,
    'result_checksum': ledger.checksum_of([np.ones(2)]),
    'noise_generator': 'chacha20',
  }
  numpy_fields = {'cohort_reported': np.int64(7), 'clip_norm': np.float32(0.25)}
  before = datetime.datetime.now(datetime.timezone.utc)
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    written = [
      ledgers.append(writer, **fields, **numpy_fields),
      ledgers.append(writer, dp_accounting.NoOpDpEvent(), **fields, clip_norm=1),
    ]
  after = datetime.datetime.now(datetime.timezone.utc)
  first, second = entries = ledger.read(path).entries
  assert list(entries) == written
  expected = {**fields, **numpy_fields, 'round': 0, 'cohort_requested': 10}
  expected.update(noise_multiplier=2.0, delta=ledgers.DELTA, dp_event=Gaussian(2.0))
  assert {name: getattr(first, name) for name in expected} == expected
  assert (second.round, second.clip_norm, second.epsilon) == (1, 1.0, first.epsilon)
  assert second.dp_event == dp_accounting.NoOpDpEvent()
  for entry in entries:
    timestamp = datetime.datetime.fromisoformat(entry.time)
    assert timestamp.utcoffset() == datetime.timedelta(0)
    assert before <= timestamp <= after


def test_noise_site_is_recorded_and_must_stay_the_same(path):
  site = {'name': 'local', 'min_clients': 3, 'server_noise_multiplier': None}
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    assert ledgers.append(writer, noise_site=site).noise_site == site
    for changed in (None, {**site, 'min_clients': 2}, {**site, 'name': 'clients'}):
      with pytest.raises(ValueError, match='noise_site'):
        ledgers.append(writer, noise_site=changed)
    ledgers.append(writer, noise_site=site)
  assert [entry.noise_site for entry in ledger.read(path).entries] == [site] * 2
  with ledger.LedgerWriter(f'{path}.other', ledgers.DELTA) as writer:
    for invalid in ({'name': 'local'}, {**site, 'server_noise_multiplier': -1.0}):
      with pytest.raises(ValueError, match='noise_site'):
        ledgers.append(writer, noise_site=invalid)


def test_notes_are_recorded_and_may_differ_in_a_repeated_round(path):
  note, checksum = 'worker a:1 is lost: no answer', ledger.checksum_of([1])
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer, notes=[note], result_checksum=checksum)
    repeated = ledgers.append(writer, round=0, result_checksum=checksum)
    assert repeated.notes is None
    for invalid in ([], [''], 'text', [1]):
      with pytest.raises(ValueError, match='notes'):
        ledgers.append(writer, notes=invalid)
  first, second = map(json.loads, ledgers.lines_of(path))
  assert first['notes'] == [note]
  assert 'notes' not in second
  entries = ledger.read(path).entries
  assert entries[0].notes == [note]


def test_infinite_epsilon_is_null_in_all_later_rounds(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer, Gaussian(float('inf')))
    ledgers.append(writer, Gaussian(0.0))
    ledgers.append(writer, Gaussian(5.0))
  first, second, later = ledger.read(path).entries
  assert first.epsilon == 0.0 and first.effective_noise_multiplier is None
  assert second.dp_event == dp_accounting.NonPrivateDpEvent()
  assert second.epsilon is None and second.effective_noise_multiplier == 0.0
  assert later.epsilon is None
  assert ledger.total_event([first, second, later]) == dp_accounting.NonPrivateDpEvent()


def test_new_writer_refuses_to_overwrite_a_ledger(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer)
  before = ledgers.lines_of(path)
  with pytest.raises(FileExistsError):
    ledger.LedgerWriter(path, ledgers.DELTA)
  assert ledgers.lines_of(path) == before


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    *(({'delta': d}, ValueError, 'between 0 and 1') for d in (0.0, 1.0, 2.0)),
    ({'expected': ledger.Head()}, ValueError, 'expected is for resume=True'),
    ({'resume': True}, FileNotFoundError, 'No such file'),
  ],
)
def test_writer_with_wrong_arguments_makes_no_file(path, arguments, error, message):
  with pytest.raises(error, match=message):
    ledger.LedgerWriter(path, **{'delta': ledgers.DELTA, **arguments})
  assert os.listdir(os.path.dirname(path)) == []


_WITH_LAPLACE = dp_accounting.ComposedDpEvent(
  [Gaussian(2.0), dp_accounting.LaplaceDpEvent(9.0)]
)
_ONLY_GAUSSIAN = 'cannot be written|are of one mechanism'


@pytest.mark.parametrize(
  'changes, error, message',
  [
    ({'event': dp_accounting.LaplaceDpEvent(1)}, ValueError, _ONLY_GAUSSIAN),
    ({'event': _WITH_LAPLACE}, ValueError, _ONLY_GAUSSIAN),
    ({'event': ledgers.SAMPLED}, ValueError, 'before it are Gaussian'),
    ({'event': Gaussian(-1.0)}, ValueError, 'negative or NaN'),
    ({'cohort_requested': -1}, ValueError, 'cohort_requested must not be -1'),
    ({'clip_norm': float('nan')}, ValueError, 'clip_norm must not be'),
    ({'noise_multiplier': 3.0}, ValueError, 'noise_multiplier is 3.0 .* was 2.0'),
    ({'strategy_checksum': 'a'}, ValueError, "strategy_checksum is 'a' .* was None"),
    ({'strategy_checksum': 7}, ValueError, 'strategy_checksum must not be'),
    ({'result_checksum': 'sha256:0'}, ValueError, 'result_checksum must not be'),
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
def test_append_refuses_invalid_round_and_spends_nothing(path, changes, error, message):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer)
    before = ledgers.lines_of(path)
    with pytest.raises(error, match=message):
      ledgers.append(writer, **changes)
    assert ledgers.lines_of(path) == before and writer.head.lines == 1
    entry = ledgers.append(writer)
  assert entry.round == 1
  assert entry == ledger.read(path).entries[-1]
  expected = accountants.epsilon(
    dp_accounting.SelfComposedDpEvent(Gaussian(2), 2), ledgers.DELTA
  )
  assert entry.epsilon == pytest.approx(expected, rel=1e-12)


def test_ledger_entry_has_exactly_the_public_fields_and_no_seed(path):
  # A new field must be added here on purpose: nothing derived from the seed may be in a
  # ledger. (Tags are those of secret keys, or slow to compute from guessed seeds.)
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


def test_empty_ledger_spent_nothing(path):
  ledger.LedgerWriter(path, ledgers.DELTA).close()
  empty = ledger.read(path)
  sha256 = hashlib.sha256().hexdigest()
  assert empty == ledger.Ledger((), (), 0, sha256, ledger.Head(0, sha256))
  assert empty.total_event == dp_accounting.NoOpDpEvent()


def test_round_without_clip_norm_is_not_private(path):
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
    with pytest.raises(ValueError, match='are of one mechanism'):
      ledgers.append(writer, dp_accounting.LaplaceDpEvent(1.0), clip_norm=None)
    assert writer.rounds == 3
  assert [entry.clip_norm for entry in ledger.read(path).entries] == [None] * 3
