"""Ledgers: what they say was spent is what was spent, whatever happens to the file.

Claims: epsilon so far is exact after every round and ends at the run's. A ledger is
never overwritten. Cut at any byte, it reads as its complete lines, and a resumed
writer keeps what was cut and goes on as if nothing had happened. An append that fails,
is interrupted or killed counts for nothing. A round is released again only with the
same content, and counted once. Two writers cannot interleave. A reader refuses all
that is not so, names the line, and finds every digit that matters. Nothing of a seed
is in a ledger.
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
import resource
import signal
import subprocess
import sys
import time

import dp_accounting
import numpy as np
import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records import ledger

ROOT = pathlib.Path(__file__).resolve().parents[3]
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


def release(writer, number, **changes):
  """Appends a round as a run would that is the same each time it runs."""
  return append(
    writer,
    Gaussian(2.0 + number),
    round=number,
    cohort_reported=90 + number,
    clip_norm=0.5 + number / 7,
    strategy_checksum='sha256:1234567890',
    **{'result_checksum': ledger.checksum_of([np.full(3, number)]), **changes},
  )


def timeless(entries):
  stamp = '2000-01-01T00:00:00+00:00'
  return [dataclasses.replace(entry, time=stamp) for entry in entries]


def lines_of(path):
  return pathlib.Path(path).read_bytes().splitlines(keepends=True)


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
  with ledger.LedgerWriter(path, DELTA) as writer:
    for noise_multiplier in each:
      append(writer, Gaussian(noise_multiplier))
  entries = ledger.read(path).entries
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
  assert total == ledger.read(path).total_event
  assert total.noise_multiplier == pytest.approx(run.noise_multiplier, rel=1e-12)
  assert [e.epsilon for e in entries] == sorted(e.epsilon for e in entries)


def test_entries_read_back_as_they_were_written(path):
  strategy = strategies.BinaryTree(8)
  result = ledger.checksum_of([np.ones(2)])
  before = datetime.datetime.now(datetime.timezone.utc)
  with ledger.LedgerWriter(path, DELTA) as writer:
    written = [
      append(
        writer,
        strategy_checksum=strategy.checksum,
        cohort_reported=np.int64(7),
        clip_norm=np.float32(0.25),
        result_checksum=result,
      ),
      append(
        writer,
        dp_accounting.NoOpDpEvent(),
        strategy_checksum=strategy.checksum,
        clip_norm=None,
      ),
    ]
  after = datetime.datetime.now(datetime.timezone.utc)
  entries = ledger.read(path).entries
  assert list(entries) == written
  assert [entry.round for entry in entries] == [0, 1]
  first, second = entries
  assert first.cohort_requested == 10 and first.cohort_reported == 7
  assert first.clip_norm == 0.25 and second.clip_norm is None
  assert first.noise_multiplier == 2.0 and first.delta == DELTA
  assert first.strategy_checksum == strategy.checksum
  assert first.result_checksum == result and second.result_checksum is None
  assert first.dp_event == Gaussian(2.0)
  assert second.dp_event == dp_accounting.NoOpDpEvent()
  assert second.epsilon == first.epsilon
  for entry in entries:
    stamp = datetime.datetime.fromisoformat(entry.time)
    assert stamp.utcoffset() == datetime.timedelta(0)
    assert before <= stamp <= after


def test_a_round_is_on_disk_when_append_returns(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    for count in (1, 2, 3):
      append(writer)
      assert len(ledger.read(path).entries) == count == writer.rounds


def test_what_the_writer_returns_is_the_line(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    entry = append(writer)
  (line,) = lines_of(path)
  assert json.loads(line) == dataclasses.asdict(entry)


def test_infinite_epsilon_is_no_number_and_stays_lost(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    append(writer, Gaussian(float('inf')))
    append(writer, Gaussian(0.0))
    append(writer, Gaussian(5.0))
  free, lost, later = ledger.read(path).entries
  assert free.epsilon == 0.0 and free.effective_noise_multiplier is None
  assert lost.dp_event == dp_accounting.NonPrivateDpEvent()
  assert lost.epsilon is None and lost.effective_noise_multiplier == 0.0
  assert later.epsilon is None
  assert ledger.total_event([free, lost, later]) == dp_accounting.NonPrivateDpEvent()


def test_a_ledger_is_never_overwritten(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    append(writer)
  before = lines_of(path)
  with pytest.raises(FileExistsError, match='never overwritten'):
    ledger.LedgerWriter(path, DELTA)
  assert lines_of(path) == before


@pytest.mark.parametrize('delta', [0.0, 1.0, 2.0])
def test_a_delta_out_of_range_makes_no_file(tmp_path, delta):
  with pytest.raises(ValueError, match='delta must be between 0 and 1'):
    ledger.LedgerWriter(str(tmp_path / 'ledger.jsonl'), delta)
  assert list(tmp_path.iterdir()) == []


def test_there_must_be_something_to_resume(tmp_path):
  with pytest.raises(FileNotFoundError):
    ledger.LedgerWriter(str(tmp_path / 'ledger.jsonl'), DELTA, resume=True)
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
    ({'round': 2}, ValueError, 'expected round 1, .* found round 2'),
    ({'round': -1}, ValueError, 'round must be at least 0'),
    ({'round': 0.0}, TypeError, 'round must be a whole number'),
  ],
)  # fmt: skip
def test_what_cannot_be_accounted_writes_no_line_and_spends_nothing(
  path, changes, error, message
):
  with ledger.LedgerWriter(path, DELTA) as writer:
    append(writer)
    before = lines_of(path)
    with pytest.raises(error, match=message):
      append(writer, **changes)
    assert lines_of(path) == before
    after = append(writer)
  assert after.round == 1
  assert after == ledger.read(path).entries[-1]
  exact = accountants.epsilon(dp_accounting.SelfComposedDpEvent(Gaussian(2), 2), DELTA)
  assert after.epsilon == pytest.approx(exact, rel=1e-12)


def test_an_entry_has_exactly_the_public_fields_and_no_seed(path):
  # A new field is a decision: whatever is derived from the seed must stay out.
  assert [field.name for field in dataclasses.fields(ledger.LedgerEntry)] == [
      'round', 'cohort_requested', 'cohort_reported', 'clip_norm', 'noise_multiplier',
      'strategy_checksum', 'event', 'effective_noise_multiplier', 'epsilon', 'delta',
      'time', 'result_checksum',
  ]  # fmt: skip
  with ledger.LedgerWriter(path, DELTA) as writer:
    append(writer)
    with pytest.raises(TypeError, match='seed'):
      append(writer, seed=1)
  (line,) = lines_of(path)
  assert not {'seed', 'key', 'noise', 'state'} & set(json.loads(line))


def test_an_empty_ledger_spent_nothing(path):
  ledger.LedgerWriter(path, DELTA).close()
  empty = ledger.read(path)
  assert empty == ledger.Ledger((), (), 0, hashlib.sha256().hexdigest())
  assert empty.total_event == dp_accounting.NoOpDpEvent()


def test_total_event_of_a_part_is_what_that_part_spent(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    for number in range(3):
      release(writer, number)
  entries = ledger.read(path).entries
  for count in (1, 2, 3):
    total = ledger.total_event(entries[:count])
    assert accountants.epsilon(total, DELTA) == pytest.approx(
      entries[count - 1].epsilon, rel=1e-12
    )


def test_the_sha256_is_the_files(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    release(writer, 0)
  with open(path, 'ab') as file:
    file.write(b'{"rou')
  expected = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
  assert ledger.read(path).sha256 == expected


# Cuts.


@pytest.fixture
def whole(path):
  """A ledger with a round released again; its entries."""
  with ledger.LedgerWriter(path, DELTA) as writer:
    for number in (0, 1, 1):
      release(writer, number)
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
    with ledger.LedgerWriter(path, DELTA, resume=True) as writer:
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
        release(writer, number)
    again = ledger.read(path)
    assert timeless(again.entries) == timeless(whole.entries)
    assert again.repeated == (1,) and not again.cut


def test_what_is_cut_is_never_lost(path, whole):
  for number in (1, 2, 3):
    with open(path, 'ab') as file:
      file.write(b'half \xff line \x00' * number)
    with ledger.LedgerWriter(path, DELTA, resume=True) as writer:
      assert writer.recovered == f'{path}.cut-{number}'
  for number in (1, 2, 3):
    kept = pathlib.Path(f'{path}.cut-{number}').read_bytes()
    assert kept == b'half \xff line \x00' * number
  assert ledger.read(path) == whole


def test_a_wrong_ledger_is_not_resumed_and_left_as_it_is(path, whole):
  with open(path, 'ab') as file:
    file.write(b'{"round": 2}\nhalf')
  before = lines_of(path)
  with pytest.raises(ValueError, match='line 4: not a ledger entry: missing'):
    ledger.LedgerWriter(path, DELTA, resume=True)
  assert lines_of(path) == before
  assert os.listdir(os.path.dirname(path)) == ['ledger.jsonl']


def test_a_ledger_is_resumed_at_its_own_delta(path, whole):
  with pytest.raises(ValueError, match='delta is 1e-06, but .* epsilons at 1e-07'):
    ledger.LedgerWriter(path, 1e-6, resume=True)
  with ledger.LedgerWriter(path, DELTA, resume=True) as writer:  # The lock is free.
    assert writer.rounds == 2


def test_parameters_stay_constant_over_a_resumption(path, whole):
  with ledger.LedgerWriter(path, DELTA, resume=True) as writer:
    with pytest.raises(ValueError, match='noise_multiplier is 2.5 .* was 2.0'):
      release(writer, 2, noise_multiplier=2.5)


# Rounds released again.


def test_a_round_released_again_is_a_line_but_counts_once(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    for number in range(4):
      release(writer, number)
  once = ledger.read(path)
  with ledger.LedgerWriter(path, DELTA, resume=True) as writer:
    again = [release(writer, 2), release(writer, 3)]
    assert writer.rounds == 4
    last = release(writer, 4)
  twice = ledger.read(path)
  assert len(lines_of(path)) == 7
  assert [entry.round for entry in twice.entries] == [0, 1, 2, 3, 4]
  assert twice.entries[:4] == once.entries
  assert twice.repeated == (2, 3)
  assert timeless(again) == timeless(list(once.entries[2:]))
  total = [Gaussian(2.0 + number) for number in range(5)]
  assert last.epsilon == pytest.approx(
    accountants.epsilon(dp_accounting.ComposedDpEvent(total), DELTA), rel=1e-12
  )


def test_the_default_round_follows_that_of_the_last_line(path):
  same = {'result_checksum': ledger.checksum_of([])}
  with ledger.LedgerWriter(path, DELTA) as writer:
    rounds = [append(writer, **same).round for _ in range(3)]
    rounds.append(append(writer, round=1, **same).round)
    rounds += [append(writer, **same).round for _ in range(2)]
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
  ],
)
@pytest.mark.parametrize('resume', [False, True], ids=['same-run', 'resumed'])
def test_a_round_with_other_content_is_an_error_before_it_is_used(
  path, resume, changes
):
  same = {'result_checksum': ledger.checksum_of([np.ones(3)])}
  with contextlib.ExitStack() as stack:
    writer = stack.enter_context(ledger.LedgerWriter(path, DELTA))
    for _ in range(3):
      append(writer, **same)
    if resume:
      writer.close()
      writer = stack.enter_context(ledger.LedgerWriter(path, DELTA, resume=True))
    before = lines_of(path)
    (name,) = changes
    message = rf'round 1 was released already with other content \(.*{name}.*\): its '
    with pytest.raises(ValueError, match=message + 'noise would be used for two data'):
      append(writer, **{**same, 'round': 1, **changes})
    assert lines_of(path) == before
    append(writer, round=1, **same)


def test_without_a_checksum_a_round_cannot_be_released_again(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    append(writer, round=0)
    with pytest.raises(ValueError, match='without a result_checksum nothing shows'):
      append(writer, round=0)
  (line,) = lines_of(path)
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


# Failures, interrupts and other writers.


@contextlib.contextmanager
def room_for(num_bytes):
  """Lets no file grow beyond so many bytes; like a full disk, it takes a part."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize('room', [0, 1, 100])
def test_a_full_disk_spends_nothing_and_leaves_no_half_line(path, room):
  with ledger.LedgerWriter(path, DELTA) as writer:
    release(writer, 0)
    before = lines_of(path)
    with room_for(len(before[0]) + room), pytest.raises(OSError):
      release(writer, 1)
    assert lines_of(path) == before and writer.rounds == 1
    release(writer, 1)
    release(writer, 1)
  with ledger.LedgerWriter(path + '-2', DELTA) as writer:
    undisturbed = [release(writer, 0), release(writer, 1)]
  assert timeless(ledger.read(path).entries) == timeless(undisturbed)
  assert ledger.read(path).repeated == (1,)


class _Interrupt(BaseException):
  """Like Ctrl-C, and unlike it nobody else's."""


def test_interrupts_at_any_moment_leave_complete_lines_that_are_counted(path):
  def interrupt(*_):
    raise _Interrupt

  def duration():
    start = time.perf_counter()
    append(writer)
    return time.perf_counter() - start

  before = signal.signal(signal.SIGALRM, interrupt)
  interrupted = 0
  try:
    with ledger.LedgerWriter(path, DELTA) as writer:
      usual = sorted(duration() for _ in range(11))[5]
      for share in np.linspace(0.01, 1.2, 150):
        lines, rounds = len(lines_of(path)), writer.rounds
        try:
          signal.setitimer(signal.ITIMER_REAL, min(share * usual, 0.5))
          append(writer)
          time.sleep(1)  # Here it comes at the latest.
        except _Interrupt:
          interrupted += 1
        append(writer)
        assert len(lines_of(path)) - lines == writer.rounds - rounds
      rounds = writer.rounds
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
  assert interrupted > 100
  read = ledger.read(path)
  assert len(read.entries) == rounds and not read.cut


_PROGRAM = """
import os, resource, signal, sys
import dp_accounting
from tff_dp_aggregators.accounting.records import ledger
writer = ledger.LedgerWriter(sys.argv[1], 1e-7, resume=os.path.exists(sys.argv[1]))
if len(sys.argv) > 2:  # Dies at a write that goes beyond so many bytes.
  signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
  limit = int(sys.argv[2])
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
while True:
  entry = writer.append(
    event=dp_accounting.GaussianDpEvent(100.0),
    cohort_requested=10,
    cohort_reported=9,
    clip_norm=0.5,
    noise_multiplier=100.0,
    strategy_checksum=None,
    result_checksum=ledger.checksum_of([writer.rounds]),
  )
  print(entry.round, flush=True)
"""


def start(*arguments):
  return subprocess.Popen(
    [sys.executable, '-c', _PROGRAM, *arguments],
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def test_kill_9_loses_no_round_whose_result_was_used(path):
  for _ in range(2):
    process = start(path)
    used = [next(process.stdout) for _ in range(30)]
    with pytest.raises(BlockingIOError, match='another writer has the ledger open'):
      ledger.LedgerWriter(path, DELTA, resume=True)
    process.kill()
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    last_used = int((used + rest.splitlines())[-1])
    assert last_used + 1 <= len(ledger.read(path).entries) <= last_used + 2
  with ledger.LedgerWriter(path, DELTA, resume=True) as writer:
    assert writer.rounds >= 60


def test_killed_in_the_middle_of_a_line_it_is_resumed_before_that_round(path):
  process = start(path, '2000')
  used, errors = process.communicate(timeout=60)
  assert process.returncode == -signal.SIGXFSZ, errors
  assert os.path.getsize(path) == 2000
  broken = ledger.read(path)
  assert broken.cut > 0
  assert [entry.round for entry in broken.entries] == [int(n) for n in used.split()]
  with ledger.LedgerWriter(path, DELTA, resume=True) as writer:
    assert os.path.getsize(writer.recovered) == broken.cut
    entry = append(writer, Gaussian(100.0), noise_multiplier=100.0)
  assert entry.round == len(broken.entries)
  assert ledger.read(path).entries == (*broken.entries, entry)


def test_two_writers_cannot_interleave(path):
  first = ledger.LedgerWriter(path, DELTA)
  release(first, 0)
  before = lines_of(path)
  with pytest.raises(BlockingIOError, match='another writer has the ledger open'):
    ledger.LedgerWriter(path, DELTA, resume=True)
  assert lines_of(path) == before
  release(first, 1)  # The attempt did not take its lock away.
  with pytest.raises(BlockingIOError):
    ledger.LedgerWriter(path, DELTA, resume=True)
  first.close()
  with ledger.LedgerWriter(path, DELTA, resume=True) as second:
    release(second, 2)
  with pytest.raises(ValueError, match='closed file'):
    release(first, 2)
  assert len(ledger.read(path).entries) == 3


def test_a_forked_process_does_not_hold_the_lock_of_a_closed_writer(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    release(writer, 0)
    child = os.fork()
    if not child:
      time.sleep(60)
      os._exit(0)
  try:
    ledger.LedgerWriter(path, DELTA, resume=True).close()
  finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_file_that_something_else_changed_or_removed_is_not_written_on(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    release(writer, 0)
    (line,) = lines_of(path)
    with open(path, 'ab') as file:
      file.write(line)
    for _ in range(2):
      with pytest.raises(OSError, match='changed or removed'):
        release(writer, 1)
    assert lines_of(path) == [line, line]
  with ledger.LedgerWriter(path, DELTA, resume=True) as writer:
    os.remove(path)
    with pytest.raises(OSError, match='changed or removed'):
      release(writer, 1)


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
  with ledger.LedgerWriter(path, DELTA) as writer:
    for number in range(3):
      release(writer, number)
  broken = b''.join(change(*lines_of(path)))
  pathlib.Path(path).write_bytes(broken)
  with pytest.raises(ValueError, match=message) as error:
    ledger.read(path)
  assert str(error.value).startswith(f'{path}, line ')


def test_lines_without_a_result_checksum_stay_readable(path):
  with ledger.LedgerWriter(path, DELTA) as writer:
    written = [append(writer), append(writer)]
  old = b''.join(without(line, 'result_checksum') for line in lines_of(path))
  pathlib.Path(path).write_bytes(old)
  assert list(ledger.read(path).entries) == written


@pytest.mark.parametrize('noise_multiplier', [0.01, 0.5, 1.0, 7.0, 300.0, 1e5, 1e9])
@pytest.mark.parametrize('delta', [0.3, 1e-3, 1e-10, 1e-100])
def test_stated_figures_are_right_to_a_billionth_and_never_understated(
  path, noise_multiplier, delta
):
  with ledger.LedgerWriter(path, delta) as writer:
    entry = append(writer, Gaussian(noise_multiplier))
  (line,) = lines_of(path)
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


def test_every_digit_that_matters_is_found_if_it_changes(path):
  strategy, participation = MECHANISMS['banded']
  each, _ = events.round_noise_multipliers(strategy, participation, 3.0)
  with ledger.LedgerWriter(path, DELTA) as writer:
    for number in (0, 1, 2, 3, 2, 3, 4, 5):
      append(
        writer,
        Gaussian(each[number]),
        round=number,
        cohort_reported=90 + number,
        strategy_checksum=strategy.checksum,
        result_checksum=ledger.checksum_of([each[number]]),
      )
  right = ledger.read(path)
  spent = accountants.epsilon(right.total_event, DELTA)
  lines = lines_of(path)
  free = set()
  found = 0
  for index, line in enumerate(lines):
    for match in re.finditer(rb'\d', line):
      for shift in (1, 5):
        digit = b'%d' % ((int(match[0]) + shift) % 10)
        mutant = line[: match.start()] + digit + line[match.end() :]
        data = b''.join([*lines[:index], mutant, *lines[index + 1 :]])
        pathlib.Path(path).write_bytes(data)
        try:
          wrong = ledger.read(path)
        except ValueError as e:
          assert f'{path}, line ' in str(e)
          found += 1
          continue
        # Not found: then nothing that epsilon depends on has changed by 1e-9.
        total = accountants.epsilon(wrong.total_event, DELTA)
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
  assert free == _FREE
  assert found > 1000


def test_many_rounds_are_read_and_one_more_appended_without_reading_them_again(path):
  count, every = 100_000, 10
  stamp = datetime.datetime.now(datetime.timezone.utc).isoformat()
  with open(path, 'w') as file:
    for number in range(count):
      adds = number % every == 0
      if adds:
        mu = (number // every + 1) ** 0.5 / 25
        epsilon = gaussian.epsilon_of(mu, DELTA)
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
        'delta': DELTA,
        'time': stamp,
      }
      file.write(json.dumps(entry) + '\n')
  with ledger.LedgerWriter(path, DELTA, resume=True) as writer:
    assert writer.rounds == count
    before = _characters()
    entry = append(writer, Gaussian(25.0))
    after = _characters()
  assert entry.round == count
  assert entry.effective_noise_multiplier == pytest.approx(25 / 10_001**0.5, rel=1e-9)
  for name in ('rchar', 'wchar'):
    assert after[name] - before[name] < 10_000


def _characters():
  """What this process has read and written, in bytes."""
  with open('/proc/self/io') as file:
    return {name: int(value) for name, value in (line.split(':') for line in file)}
