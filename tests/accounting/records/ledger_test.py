"""Ledgers: what they say was spent is what was spent, whatever happens to the file.

Claims: epsilon so far is exact after every round and ends at the run's. A ledger is
never overwritten. Cut at any byte, it reads as its complete lines, and a resumed
writer keeps what was cut and goes on as if nothing had happened. A round is released
again only with the same content, and counted once. A reader refuses all that is not
so, names the line, and finds every digit that matters, and whoever knows the head finds
every byte. Without a clip norm there is no privacy. Nothing of a seed is in a ledger.
`ledger_failures_test` is about writers that fail, and several of them.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import logging
import os
import pathlib
import re

import dp_accounting
import numpy as np
import pytest

from tests.accounting.records import ledgers
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records import ledger

Gaussian = dp_accounting.GaussianDpEvent
MECHANISMS = {
  'gaussian': (strategies.Identity(12), strategies.Participation(12, 5)),
  'tree': (strategies.BinaryTree(13), strategies.Participation(13, 4)),
  'banded': (
    strategies.BandedToeplitz.square_root(12, 4),
    strategies.Participation(12, 4),
  ),
}


@pytest.fixture
def path(tmp_path):
  return str(tmp_path / 'ledger.jsonl')


# What is written.


@pytest.mark.parametrize(
  'strategy, participation', MECHANISMS.values(), ids=MECHANISMS.keys()
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
  strategy = strategies.BinaryTree(8)
  result = ledger.checksum_of([np.ones(2)])
  before = datetime.datetime.now(datetime.timezone.utc)
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    written = [
      ledgers.append(
        writer,
        strategy_checksum=strategy.checksum,
        cohort_reported=np.int64(7),
        clip_norm=np.float32(0.25),
        result_checksum=result,
        noise_generator='chacha20',
      ),
      ledgers.append(
        writer,
        dp_accounting.NoOpDpEvent(),
        strategy_checksum=strategy.checksum,
        clip_norm=1,
      ),
    ]
  after = datetime.datetime.now(datetime.timezone.utc)
  entries = ledger.read(path).entries
  assert list(entries) == written
  assert [entry.round for entry in entries] == [0, 1]
  first, second = entries
  assert first.cohort_requested == 10 and first.cohort_reported == 7
  assert first.clip_norm == 0.25 and second.clip_norm == 1.0
  assert first.noise_multiplier == 2.0 and first.delta == ledgers.DELTA
  assert first.strategy_checksum == strategy.checksum
  assert first.result_checksum == result and second.result_checksum is None
  assert first.noise_generator == 'chacha20' and second.noise_generator is None
  assert first.dp_event == Gaussian(2.0)
  assert second.dp_event == dp_accounting.NoOpDpEvent()
  assert second.epsilon == first.epsilon
  for entry in entries:
    stamp = datetime.datetime.fromisoformat(entry.time)
    assert stamp.utcoffset() == datetime.timedelta(0)
    assert before <= stamp <= after


def test_a_round_is_on_disk_when_append_returns(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for count in (1, 2, 3):
      ledgers.append(writer)
      assert len(ledger.read(path).entries) == count == writer.rounds


def test_what_the_writer_returns_is_the_line(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    entry = ledgers.append(writer)
  (line,) = ledgers.lines_of(path)
  assert json.loads(line) == dataclasses.asdict(entry)


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


def test_there_must_be_something_to_resume(tmp_path):
  with pytest.raises(FileNotFoundError):
    ledger.LedgerWriter(str(tmp_path / 'ledger.jsonl'), ledgers.DELTA, resume=True)
  assert list(tmp_path.iterdir()) == []


_ONLY_GAUSSIAN = 'cannot be written|adds up Gaussian events only'
_SAMPLED = dp_accounting.PoissonSampledDpEvent(0.1, Gaussian(1.0))


@pytest.mark.parametrize(
  'changes, error, message',
  [
    ({'event': dp_accounting.UnsupportedDpEvent()}, ValueError, _ONLY_GAUSSIAN),
    ({'event': dp_accounting.LaplaceDpEvent(1)}, ValueError, _ONLY_GAUSSIAN),
    ({'event': _SAMPLED}, ValueError, _ONLY_GAUSSIAN),
    ({'event': Gaussian(-1.0)}, ValueError, 'negative or NaN'),
    ({'cohort_reported': 9.5}, TypeError, 'cohort_reported must be a whole number'),
    ({'cohort_requested': -1}, ValueError, 'cohort_requested must be at least 0'),
    ({'clip_norm': -0.5}, ValueError, 'clip_norm must be a finite number'),
    ({'clip_norm': float('nan')}, ValueError, 'clip_norm must be a finite number'),
    ({'noise_multiplier': float('inf')}, ValueError, 'noise_multiplier must be fin'),
    ({'noise_multiplier': 3.0}, ValueError, 'noise_multiplier is 3.0 .* was 2.0'),
    ({'strategy_checksum': 'a'}, ValueError, "strategy_checksum is 'a' .* was None"),
    ({'strategy_checksum': 7}, ValueError, 'strategy_checksum must be a text'),
    ({'result_checksum': 'sha256:0'}, ValueError, 'what checksum_of returns'),
    ({'clip_norm': None}, ValueError, 'clip_norm is null, but the event is Gaussian'),
    (
      {'noise_multiplier': 0.0},
      ValueError,
      'noise_multiplier is 0, but the event is Gaussian',
    ),
    ({'noise_generator': ''}, ValueError, "noise_generator must be a text .* got ''"),
    ({'noise_generator': 7}, ValueError, 'noise_generator must be a text .* got 7'),
    ({'round': 2}, ValueError, 'expected round 1, .* found round 2'),
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
    assert ledgers.lines_of(path) == before
    after = ledgers.append(writer)
  assert after.round == 1
  assert after == ledger.read(path).entries[-1]
  exact = accountants.epsilon(
    dp_accounting.SelfComposedDpEvent(Gaussian(2), 2), ledgers.DELTA
  )
  assert after.epsilon == pytest.approx(exact, rel=1e-12)


def test_an_entry_has_exactly_the_public_fields_and_no_seed(path):
  # A new field is a decision: whatever is derived from the seed must stay out.
  assert [field.name for field in dataclasses.fields(ledger.LedgerEntry)] == [
      'round', 'cohort_requested', 'cohort_reported', 'clip_norm', 'noise_multiplier',
      'strategy_checksum', 'event', 'effective_noise_multiplier', 'epsilon', 'delta',
      'time', 'previous_line_sha256', 'result_checksum', 'noise_generator',
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


def test_total_event_of_a_part_is_what_that_part_spent(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for number in range(3):
      ledgers.release(writer, number)
  entries = ledger.read(path).entries
  for count in (1, 2, 3):
    total = ledger.total_event(entries[:count])
    assert accountants.epsilon(total, ledgers.DELTA) == pytest.approx(
      entries[count - 1].epsilon, rel=1e-12
    )


def test_the_sha256_is_the_files(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.release(writer, 0)
  with open(path, 'ab') as file:
    file.write(b'{"rou')
  expected = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
  assert ledger.read(path).sha256 == expected


# Cuts.


@pytest.fixture
def whole(path):
  """A ledger with a round released again; its entries."""
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for number in (0, 1, 1):
      ledgers.release(writer, number)
  return ledger.read(path)


def test_cut_at_any_byte_it_reads_as_its_complete_lines(path, whole):
  data = pathlib.Path(path).read_bytes()
  for length in range(len(data) + 1):
    pathlib.Path(path).write_bytes(data[:length])
    complete = data[:length].count(b'\n')
    part = ledger.read(path)
    assert part.entries == whole.entries[:complete]
    assert part.repeated == whole.repeated[: max(0, complete - 2)]
    assert part.cut == length - len(b''.join(lines_of_bytes(data)[:complete]))


def lines_of_bytes(data):
  return data.splitlines(keepends=True)


def test_cut_at_any_byte_it_is_resumed_as_if_nothing_had_happened(path, whole, caplog):
  data = pathlib.Path(path).read_bytes()
  for length in range(len(data) + 1):
    pathlib.Path(path).write_bytes(data[:length])
    complete = data[:length].count(b'\n')
    prefix = b''.join(lines_of_bytes(data)[:complete])
    caplog.clear()
    with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
      assert pathlib.Path(path).read_bytes() == prefix
      if length > len(prefix):
        assert writer.recovered == path + '.cut-1'
        assert pathlib.Path(writer.recovered).read_bytes() == data[len(prefix) : length]
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert path + '.cut-1' in caplog.text
        os.remove(writer.recovered)
      else:
        assert writer.recovered is None and not caplog.records
      for number in (0, 1, 1)[complete:]:
        ledgers.release(writer, number)
    again = ledger.read(path)
    assert ledgers.timeless(again.entries) == ledgers.timeless(whole.entries)
    assert again.repeated == (1,) and not again.cut


def test_what_is_cut_is_never_lost(path, whole):
  for number in (1, 2, 3):
    with open(path, 'ab') as file:
      file.write(b'half \xff line \x00' * number)
    with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
      assert writer.recovered == f'{path}.cut-{number}'
  for number in (1, 2, 3):
    kept = pathlib.Path(f'{path}.cut-{number}').read_bytes()
    assert kept == b'half \xff line \x00' * number
  assert ledger.read(path) == whole


def test_a_wrong_ledger_is_not_resumed_and_left_as_it_is(path, whole):
  with open(path, 'ab') as file:
    file.write(b'{"round": 2}\nhalf')
  before = ledgers.lines_of(path)
  with pytest.raises(ValueError, match='line 4: not a ledger entry: missing'):
    ledger.LedgerWriter(path, ledgers.DELTA, resume=True)
  assert ledgers.lines_of(path) == before
  assert os.listdir(os.path.dirname(path)) == ['ledger.jsonl']


def test_a_ledger_is_resumed_at_its_own_delta(path, whole):
  with pytest.raises(ValueError, match='delta is 1e-06, but .* epsilons at 1e-07'):
    ledger.LedgerWriter(path, 1e-6, resume=True)
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    assert writer.rounds == 2


def test_parameters_stay_constant_over_a_resumption(path, whole):
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    with pytest.raises(ValueError, match='noise_multiplier is 2.5 .* was 2.0'):
      ledgers.release(writer, 2, noise_multiplier=2.5)


# Rounds released again.


def test_a_round_released_again_is_a_line_but_counts_once(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for number in range(4):
      ledgers.release(writer, number)
  once = ledger.read(path)
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    again = [ledgers.release(writer, 2), ledgers.release(writer, 3)]
    assert writer.rounds == 4
    last = ledgers.release(writer, 4)
  twice = ledger.read(path)
  assert len(ledgers.lines_of(path)) == 7
  assert [entry.round for entry in twice.entries] == [0, 1, 2, 3, 4]
  assert twice.entries[:4] == once.entries
  assert twice.repeated == (2, 3)
  assert ledgers.timeless(again) == ledgers.timeless(list(once.entries[2:]))
  total = [Gaussian(2.0 + number) for number in range(5)]
  assert last.epsilon == pytest.approx(
    accountants.epsilon(dp_accounting.ComposedDpEvent(total), ledgers.DELTA), rel=1e-12
  )


def test_the_default_round_follows_that_of_the_last_line(path):
  same = {'result_checksum': ledger.checksum_of([])}
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    rounds = [ledgers.append(writer, **same).round for _ in range(3)]
    rounds.append(ledgers.append(writer, round=1, **same).round)
    rounds += [ledgers.append(writer, **same).round for _ in range(2)]
  assert rounds == [0, 1, 2, 1, 2, 3]
  assert ledger.read(path).repeated == (1, 2)


@pytest.mark.parametrize(
  'changes',
  [
    {'result_checksum': 'sha256:' + 64 * '0'},
    {'result_checksum': None},
    {'cohort_reported': 8},
    {'cohort_requested': 11},
    {'clip_norm': 0.6},
    {'event': Gaussian(2.1)},
    {'noise_multiplier': 2.1},
    {'strategy_checksum': 'sha256:0'},
    {'noise_generator': 'philox'},
  ],
)
@pytest.mark.parametrize('resume', [False, True], ids=['same-run', 'resumed'])
def test_a_round_with_other_content_is_an_error_before_it_is_used(
  path, resume, changes
):
  same = {'result_checksum': ledger.checksum_of([np.ones(3)])}
  with contextlib.ExitStack() as stack:
    writer = stack.enter_context(ledger.LedgerWriter(path, ledgers.DELTA))
    for _ in range(3):
      ledgers.append(writer, **same)
    if resume:
      writer.close()
      writer = stack.enter_context(
        ledger.LedgerWriter(path, ledgers.DELTA, resume=True)
      )
    before = ledgers.lines_of(path)
    (name,) = changes
    message = rf'round 1 was released already with other content \(.*{name}.*\): its '
    with pytest.raises(ValueError, match=message + 'noise would be used for two data'):
      ledgers.append(writer, **{**same, 'round': 1, **changes})
    assert ledgers.lines_of(path) == before
    ledgers.append(writer, round=1, **same)


def test_without_a_checksum_a_round_cannot_be_released_again(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.append(writer, round=0)
    with pytest.raises(ValueError, match='without a result_checksum nothing shows'):
      ledgers.append(writer, round=0)
  (line,) = ledgers.lines_of(path)
  pathlib.Path(path).write_bytes(line + line)
  with pytest.raises(ValueError, match='line 2: .* without a result_checksum'):
    ledger.read(path)


def test_checksums_tell_results_apart_in_type_shape_order_and_every_bit():
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


def test_checksums_are_of_values_not_of_their_place_in_memory():
  array = np.arange(12.0).reshape(3, 4)
  checksum = ledger.checksum_of([array, 7])
  assert ledger.checksum_of(iter([array.copy(order='F'), np.array(7)])) == checksum
  assert ledger.checksum_of([array.astype('>f8'), np.array(7, '>i8')]) == checksum


@pytest.mark.parametrize('arrays', [np.ones(3), [np.array(['a', None])], ['a', {}]])
def test_checksums_are_of_lists_of_numbers(arrays):
  with pytest.raises(ValueError, match='arrays must'):
    ledger.checksum_of(arrays)


# What a reader finds.


def changed(line, **changes):
  return json.dumps({**json.loads(line), **changes}).encode() + b'\n'


def without(line, name):
  data = json.loads(line)
  del data[name]
  return json.dumps(data).encode() + b'\n'


_NO_ENTRY = 'not a ledger entry: '


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda a, b, c: [a, b[:40] + b'\n', c], f'line 2: {_NO_ENTRY}'),
    (lambda a, b, c: [a, b[:40], c], f'line 2: {_NO_ENTRY}'),
    (lambda a, b, c: [a, b'\n', b, c], f'line 2: {_NO_ENTRY}'),
    (lambda a, b, c: [a, b, c[:-1] + b' x\n'], f'line 3: {_NO_ENTRY}.*Extra data'),
    (lambda a, b, c: [b'[]\n', b], f'line 1: {_NO_ENTRY}.*as an object'),
    (lambda a, b, c: [a, b'[' * 100000 + b'\n'], f'line 2: {_NO_ENTRY}'),
    (lambda a, b, c: [a, b'{"\xff": 1}\n'], f"line 2: {_NO_ENTRY}.*can't decode"),
    (lambda a, b, c: [b'\xef\xbb\xbf' + a], f'line 1: {_NO_ENTRY}'),
    (lambda a, b, c: [a, b'{"round": 1}\n'], r"line 2: .*missing \['cohort_requested"),
    (lambda a, b, c: [without(a, 'epsilon')], r"line 1: .*missing \['epsilon'\]"),
    (lambda a, b, c: [changed(a, note='x')], r"line 1: .*unknown \['note'\]: another"),
    (lambda a, b, c: [a[:-2] + b', "round": 0}\n'], 'line 1: .*a name stands twice'),
    (lambda a, b, c: [changed(a, epsilon=float('nan'))], 'line 1: .*NaN is not a num'),
    (lambda a, b, c: [changed(a, epsilon=10**400)], f'line 1: {_NO_ENTRY}'),
    (lambda a, b, c: [changed(a, epsilon='1')], "line 1: .*epsilon must be .*'1'"),
    (lambda a, b, c: [changed(a, round=False)], 'line 1: .*round must be .*False'),
    (lambda a, b, c: [changed(a, round=0.0)], 'line 1: .*round must be .*0.0'),
    (lambda a, b, c: [changed(a, cohort_reported=-1)], 'line 1: .*cohort_reported'),
    (lambda a, b, c: [changed(a, delta=1.0)], 'line 1: .*delta must be between'),
    (lambda a, b, c: [changed(a, time='now')], "line 1: .*time must be .*'now'"),
    (lambda a, b, c: [changed(a, time='2024-01-01T00:00:00')], 'line 1: .*in UTC'),
    (lambda a, b, c: [changed(a, time='2024-01-01T00:00:00Z')], 'line 1: .*in UTC'),
    (lambda a, b, c: [changed(a, time=7)], 'line 1: .*time must be'),
    (lambda a, b, c: [changed(a, clip_norm=None)], 'line 1: .*clip_norm is null, but'),
    (
      lambda a, b, c: [changed(a, noise_multiplier=0)],
      'line 1: .*noise_multiplier is 0, but the event is Gaussian',
    ),
    (lambda a, b, c: [changed(a, noise_generator=[])], 'line 1: .*noise_generator mus'),
    (
      lambda a, b, c: [changed(a, previous_line_sha256=None)],
      'line 1: .*previous_line_sha256 must be 64 hexadecimal digits; got None',
    ),
    (
      lambda a, b, c: [changed(a, previous_line_sha256=64 * '0')],
      'line 1: previous_line_sha256 is 0000.*, but nothing comes before',
    ),
    (lambda a, b, c: [a, without(b, 'previous_line_sha256')], 'line 2: .*not chained'),
    (
      lambda a, b, c: [changed(a, cohort_reported=1), b, c],
      'line 2: .* a line was changed, removed or inserted',
    ),
    (lambda a, b, c: [a, b, b, c], 'line 3: .* changed, removed or inserted'),
    (lambda a, b, c: [a, c], 'line 2: expected round 1, .* found round 2'),
    (lambda a, b, c: [b, c], 'line 1: expected round 0, .* found round 1'),
    (lambda a, b, c: [a, c, b], 'line 2: expected round 1, .* found round 2'),
    (lambda a, b, c: [a, changed(b, round=0)], 'line 2: round 0 was released already'),
    (
      lambda a, b, c: [a, b, c, changed(b, cohort_reported=1)],
      r'line 4: round 1 was released already with other content \(cohort_reported\)',
    ),
    (
      lambda a, b, c: [a, b, changed(b, result_checksum='sha256:' + 64 * '1')],
      r'line 3: round 1 was released already with other content \(result_checksum\)',
    ),
    (lambda a, b, c: [a, changed(b, event={})], 'line 2: .*unknown event type'),
    (
      lambda a, b, c: [a, changed(b, event={'type': 'GaussianDpEvent'})],
      'line 2: .*a GaussianDpEvent has the fields',
    ),
    (
      lambda a, b, c: [a, changed(b, event=events.to_json(_SAMPLED))],
      'line 2: a ledger adds up Gaussian events only, got PoissonSampled',
    ),
    (lambda a, b, c: [a, b, changed(c, event=None)], 'line 3: not a ledger entry'),
    (
      lambda a, b, c: [a, changed(b, noise_multiplier=3.0), c],
      'line 2: noise_multiplier is 3.0 in round 1 and was 2.0 in round 0',
    ),
    (
      lambda a, b, c: [a, b, changed(c, strategy_checksum=None)],
      "line 3: strategy_checksum is None in round 2 and was 'sha256:1234567890'",
    ),
    (lambda a, b, c: [a, changed(b, delta=1e-6), c], 'line 2: delta is 1e-06'),
    (lambda a, b, c: [changed(a, delta=1e-6)], 'line 1: epsilon is .* delta 1e-06'),
    (lambda a, b, c: [a, changed(b, epsilon=None)], 'line 2: epsilon is None, but'),
    (lambda a, b, c: [a, changed(b, epsilon=0)], 'line 2: epsilon is 0, but'),
    (lambda a, b, c: [a, changed(b, epsilon=1e308)], 'line 2: epsilon is 1e.308, but'),
    (
      lambda a, b, c: [a, changed(b, effective_noise_multiplier=None)],
      'line 2: effective_noise_multiplier is None, but the events of rounds 0 to 1',
    ),
    (
      lambda a, b, c: [a, changed(b, event={'type': 'NonPrivateDpEvent'})],
      'line 2: effective_noise_multiplier is .* compose to 0.0',
    ),
  ],
)
def test_reading_names_the_line_and_what_is_wrong_with_it(path, change, message):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for number in range(3):
      ledgers.release(writer, number)
  broken = b''.join(change(*ledgers.lines_of(path)))
  pathlib.Path(path).write_bytes(broken)
  with pytest.raises(ValueError, match=message) as error:
    ledger.read(path)
  assert str(error.value).startswith(f'{path}, line ')


def test_lines_without_a_result_checksum_stay_readable(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    written = [ledgers.append(writer), ledgers.append(writer)]
  old = [without(line, 'result_checksum') for line in ledgers.lines_of(path)]
  pathlib.Path(path).write_bytes(b''.join(ledgers.chained(old)))
  read = ledger.read(path).entries
  assert ledgers.timeless(read) == ledgers.timeless(written)


@pytest.mark.parametrize('noise_multiplier', [0.01, 0.5, 1.0, 7.0, 300.0, 1e5, 1e9])
@pytest.mark.parametrize('delta', [0.3, 1e-3, 1e-10, 1e-100])
def test_stated_figures_are_right_to_a_billionth_and_never_understated(
  path, noise_multiplier, delta
):
  with ledger.LedgerWriter(path, delta) as writer:
    entry = ledgers.append(writer, Gaussian(noise_multiplier))
  (line,) = ledgers.lines_of(path)
  stated = {
    'epsilon': entry.epsilon,
    'effective_noise_multiplier': entry.effective_noise_multiplier,
  }

  def accepted(name, factor):
    change = changed(line, **{name: stated[name] * factor})
    pathlib.Path(path).write_bytes(change)
    try:
      ledger.read(path)
    except ValueError as e:
      assert f'line 1: {name} is' in str(e)
      return False
    return True

  effective = 'effective_noise_multiplier'
  assert accepted(effective, 1) and accepted(effective, 1 - 9e-10)
  assert not accepted(effective, 1 - 1.1e-9) and not accepted(effective, 1 + 2e-12)
  assert accepted('epsilon', 1)
  if not entry.epsilon:
    pathlib.Path(path).write_bytes(changed(line, epsilon=1e-9))
    with pytest.raises(ValueError, match='epsilon is 1e-09'):
      ledger.read(path)
    return
  assert accepted('epsilon', 1 + 9e-10) and not accepted('epsilon', 1 + 1.1e-9)
  mu = 1 / noise_multiplier
  least = gaussian.epsilon_of(mu * (1 - 1e-12), delta) / entry.epsilon
  assert least > 1 - 1e-10
  assert not accepted('epsilon', least - 1e-13) and not accepted('epsilon', 1 - 1e-9)


_FREE = {'time', 'cohort_requested', 'cohort_reported', 'clip_norm', 'result_checksum'}


def _write_banded(path):
  strategy, participation = MECHANISMS['banded']
  each, _ = events.round_noise_multipliers(strategy, participation, 3.0)
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for number in (0, 1, 2, 3, 2, 3, 4, 5):
      ledgers.append(
        writer,
        Gaussian(each[number]),
        round=number,
        cohort_reported=90 + number,
        strategy_checksum=strategy.checksum,
        result_checksum=ledger.checksum_of([each[number]]),
        noise_generator='philox',
      )
  return ledger.read(path)


def _digits(lines):
  """Every way to change one digit of one line: its index, and all lines."""
  for index, line in enumerate(lines):
    for match in re.finditer(rb'\d', line):
      for shift in (1, 5):
        digit = b'%d' % ((int(match[0]) + shift) % 10)
        mutant = line[: match.start()] + digit + line[match.end() :]
        yield index, [*lines[:index], mutant, *lines[index + 1 :]]


@pytest.mark.parametrize('knows_the_head', [False, True])
@pytest.mark.parametrize('writes_anew', [False, True])
def test_every_digit_that_matters_is_found_if_it_changes(
  path, writes_anew, knows_the_head
):
  right = _write_banded(path)
  spent = accountants.epsilon(right.total_event, ledgers.DELTA)
  head = right.head if knows_the_head else None
  lines = ledgers.lines_of(path)
  free, passed, found = set(), set(), 0
  for index, mutants in _digits(lines):
    if writes_anew:
      try:
        mutants = ledgers.chained(mutants)
      except ValueError:
        continue  # It is no JSON any more.
    if mutants == lines:
      continue  # A digit of the hash, which was written anew.
    pathlib.Path(path).write_bytes(b''.join(mutants))
    try:
      wrong = ledger.read(path, head)
    except ValueError as e:
      assert path in str(e)
      found += 1
      continue
    passed.add(index)
    # Not found: then nothing that epsilon depends on has changed by 1e-9.
    total = accountants.epsilon(wrong.total_event, ledgers.DELTA)
    assert total == pytest.approx(spent, rel=1e-9)
    assert wrong.repeated == right.repeated
    for old, new in zip(right.entries, wrong.entries):
      for name in ('epsilon', 'effective_noise_multiplier'):
        assert getattr(new, name) == pytest.approx(getattr(old, name), rel=2e-9)
      for name in ('round', 'delta', 'noise_multiplier', 'strategy_checksum'):
        assert getattr(new, name) == getattr(old, name)
      differing = {n for n in _FREE if getattr(old, n) != getattr(new, n)}
      # Of a round released twice, there is the other line to compare with.
      assert differing <= {'time'} or new.round not in (2, 3)
      free |= differing
  assert found > 1000
  if knows_the_head:
    assert not passed
  elif writes_anew:
    assert passed == set(range(len(lines))) and free == _FREE
  else:
    assert passed == {len(lines) - 1} and free == _FREE


def test_every_bit_of_every_line_but_the_last_is_found_without_the_head(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for number in range(3):
      ledgers.release(writer, number)
  data = pathlib.Path(path).read_bytes()
  last = len(data) - len(ledgers.lines_of(path)[-1])
  head, passed = ledger.read(path).head, set()
  for place in range(len(data)):
    for bit in range(8):
      mutant = bytearray(data)
      mutant[place] ^= 1 << bit
      pathlib.Path(path).write_bytes(mutant)
      try:
        ledger.read(path)
        passed.add(place)
      except ValueError:
        continue
      with pytest.raises(ValueError, match='not those that were there once|removed'):
        ledger.read(path, head)
  assert passed and min(passed) >= last
  # The line feed: what is left is a half line.
  assert len(data) - 1 in passed


@pytest.mark.parametrize(
  'change',
  [
    {'time': '2020-01-01T00:00:00+00:00'},
    {'cohort_requested': 7},
    {'cohort_reported': 7},
    {'clip_norm': 7.0},
    {'result_checksum': 'sha256:' + 64 * '7'},
    {'noise_generator': 'xkcd221'},
    {'noise_multiplier': 7.0},
    {'strategy_checksum': 'sha256:7'},
  ],
  ids=lambda change: next(iter(change)),
)
def test_what_may_be_changed_in_the_last_line_is_what_the_module_says(path, change):
  (name,) = change
  of_the_mechanism = name in ('noise_multiplier', 'strategy_checksum')
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.release(writer, 0)
    only = writer.head
    single = ledgers.lines_of(path)
    ledgers.release(writer, 1)
    head = writer.head
  first, last = ledgers.lines_of(path)
  for lines, known, is_found in (
    ([changed(single[0], **change)], only, False),
    ([first, changed(last, **change)], head, of_the_mechanism),
    ([changed(first, **change), last], head, True),
    (ledgers.chained([changed(first, **change), last]), head, of_the_mechanism),
  ):
    pathlib.Path(path).write_bytes(b''.join(lines))
    if is_found:
      with pytest.raises(ValueError, match=f'{path}, line 2'):
        ledger.read(path)
    else:
      ledger.read(path)
      with pytest.raises(ValueError, match='not those that were there once'):
        ledger.read(path, known)


def test_a_changed_order_of_fields_is_found_where_a_line_follows(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.release(writer, 0)
    ledgers.release(writer, 1)
  first, last = ledgers.lines_of(path)
  for lines, message in (
    ([first, json.dumps(json.loads(last), sort_keys=True).encode() + b'\n'], None),
    ([json.dumps(json.loads(first), sort_keys=True).encode() + b'\n', last], 'line 2'),
  ):
    pathlib.Path(path).write_bytes(b''.join(lines))
    if message is None:
      ledger.read(path)
      continue
    with pytest.raises(ValueError, match=message):
      ledger.read(path)


# Heads.


def test_the_head_is_the_number_of_lines_and_the_hash_of_the_last(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    assert writer.head == ledger.Head() == ledger.read(path).head
    for count, number in enumerate((0, 1, 1, 2), start=1):
      entry = ledgers.release(writer, number)
      lines = ledgers.lines_of(path)
      expected = hashlib.sha256(lines[-1]).hexdigest()
      assert writer.head == (count, expected) == ledger.read(path).head
      assert entry.previous_line_sha256 == (
        hashlib.sha256(lines[-2] if count > 1 else b'').hexdigest()
      )


def test_a_ledger_begins_with_the_lines_of_every_head_that_it_had(path):
  heads = [ledger.Head()]
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for number in (0, 1, 1, 2):
      ledgers.release(writer, number)
      heads.append(writer.head)
  for head in heads:
    assert ledger.read(path, head).head == heads[-1]
    with ledger.LedgerWriter(path, ledgers.DELTA, resume=True, expected=head) as writer:
      assert writer.head == heads[-1]


def test_a_removed_end_is_found_by_who_knows_the_head(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    for number in range(4):
      ledgers.release(writer, number)
    head = tuple(writer.head)  # As it comes back from a checkpoint.
  data = pathlib.Path(path).read_bytes()
  for length in range(len(data)):
    pathlib.Path(path).write_bytes(data[:length])
    complete = data[:length].count(b'\n')
    message = f'has {complete} complete lines, but had 4 once: {4 - complete} were'
    with pytest.raises(ValueError, match=message):
      ledger.read(path, head)
    with pytest.raises(ValueError, match=message):
      ledger.LedgerWriter(path, ledgers.DELTA, resume=True, expected=head)
    assert pathlib.Path(path).read_bytes() == data[:length]
  assert os.listdir(os.path.dirname(path)) == ['ledger.jsonl']


def test_another_ledger_is_found_by_who_knows_the_head(path):
  heads = []
  for name in (path, path + '-2'):
    with ledger.LedgerWriter(name, ledgers.DELTA) as writer:
      for number in range(3):
        ledgers.release(writer, number)
      heads.append(writer.head)
  assert heads[0] != heads[1]
  with pytest.raises(ValueError, match='it is another ledger'):
    ledger.LedgerWriter(path, ledgers.DELTA, resume=True, expected=heads[1])


@pytest.mark.parametrize('head', [3, [0, 'a'], ('a', 0), (1,), (True, 'a'), 'ab'])
def test_what_is_no_head_is_refused(path, head):
  ledger.LedgerWriter(path, ledgers.DELTA).close()
  with pytest.raises(TypeError, match='expected must be a ledger.Head'):
    ledger.LedgerWriter(path, ledgers.DELTA, resume=True, expected=head)
  with pytest.raises(TypeError, match='expected must be a ledger.Head'):
    ledger.read(path, head)


def test_a_new_ledger_has_no_head_to_expect(tmp_path):
  with pytest.raises(ValueError, match='expected is for resume=True'):
    ledger.LedgerWriter(str(tmp_path / 'new'), ledgers.DELTA, expected=ledger.Head())
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('lines', [-1, 0, 1])
def test_a_head_with_another_hash_is_found(path, lines):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.release(writer, 0)
  with pytest.raises(ValueError, match='not those that were there once'):
    ledger.read(path, ledger.Head(lines, 64 * '0'))


def test_an_append_that_fails_leaves_the_head(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.release(writer, 0)
    head = writer.head
    with pytest.raises(ValueError):
      ledgers.release(writer, 7)
    assert writer.head == head
    ledgers.release(writer, 1)
  ledger.read(path, head)


# Without a clip norm.


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
      with pytest.raises(ValueError, match='clip_norm is null, but the event is'):
        ledgers.append(writer, event, clip_norm=None)
    with pytest.raises(ValueError):
      ledgers.append(writer, dp_accounting.LaplaceDpEvent(1.0), clip_norm=None)
    assert writer.rounds == 3
  assert [entry.clip_norm for entry in ledger.read(path).entries] == [None] * 3


def test_many_rounds_are_read_and_one_more_appended_without_reading_them_again(path):
  count, every = 100_000, 10
  stamp = datetime.datetime.now(datetime.timezone.utc).isoformat()
  line = b''
  with open(path, 'wb') as file:
    for number in range(count):
      adds = number % every == 0
      if adds:
        mu = (number // every + 1) ** 0.5 / 25
        epsilon = gaussian.epsilon_of(mu, ledgers.DELTA)
      entry = {
        'round': number,
        'cohort_requested': 10,
        'cohort_reported': 9,
        'clip_norm': 0.5,
        'noise_multiplier': 2.0,
        'strategy_checksum': None,
        'event': events.to_json(
          Gaussian(25.0) if adds else dp_accounting.NoOpDpEvent()
        ),
        'effective_noise_multiplier': 1 / mu,
        'epsilon': epsilon,
        'delta': ledgers.DELTA,
        'time': stamp,
        'previous_line_sha256': hashlib.sha256(line).hexdigest(),
      }
      line = json.dumps(entry).encode() + b'\n'
      file.write(line)
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    assert writer.rounds == count
    before = _characters()
    entry = ledgers.append(writer, Gaussian(25.0))
    after = _characters()
  assert entry.round == count
  assert entry.effective_noise_multiplier == pytest.approx(25 / 10_001**0.5, rel=1e-9)
  for name in ('rchar', 'wchar'):
    assert after[name] - before[name] < 10_000


def _characters():
  """What this process has read and written, in bytes."""
  with open('/proc/self/io') as file:
    return {name: int(value) for name, value in (line.split(':') for line in file)}
