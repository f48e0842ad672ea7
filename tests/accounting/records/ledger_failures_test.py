"""Tests that ledgers lose no round whose result was used if their writer fails."""

import contextlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.accounting.records import ledgers
from tff_dp_aggregators.accounting.records import ledger

ROOT = pathlib.Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def limited_file_size(num_bytes):
  """Limits the size of files; like on a full disk, part of the data is written."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize('room', [0, 1, 100])
def test_full_disk_spends_nothing_and_the_writer_has_to_resume(path, room):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.release(writer, 0)
    before = ledgers.lines_of(path)
    with limited_file_size(len(before[0]) + room), pytest.raises(OSError):
      ledgers.release(writer, 1)
    assert writer.rounds == 1
    if room:
      with pytest.raises(OSError, match='writing its last line failed.* resume it'):
        ledgers.release(writer, 1)
  assert ledger.read(path).cut == room
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    assert ledgers.lines_of(path) == before
    ledgers.release(writer, 1)
  expected = ledgers.write(path + '-2', 0, 1).entries
  assert ledgers.untimed(ledger.read(path).entries) == ledgers.untimed(expected)


def test_line_whose_write_was_interrupted_is_counted_or_refused(path, monkeypatch):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.release(writer, 0)

    def interrupted_fsync(descriptor):
      raise KeyboardInterrupt

    with monkeypatch.context() as context:
      context.setattr(os, 'fsync', interrupted_fsync)
      with pytest.raises(KeyboardInterrupt):
        ledgers.release(writer, 1)
    with pytest.raises(OSError, match='resume it'):
      ledgers.release(writer, 1)
    assert writer.rounds == 1
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    assert writer.rounds == 2


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


def start_writer(*arguments):
  return subprocess.Popen(
    [sys.executable, '-c', _PROGRAM, *arguments],
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def test_sigkill_loses_no_round_whose_result_was_used(path):
  process = start_writer(path)
  used = [next(process.stdout) for _ in range(30)]
  with pytest.raises(BlockingIOError, match='another writer has the ledger open'):
    ledger.LedgerWriter(path, ledgers.DELTA, resume=True)
  process.kill()
  used += list(process.stdout)  # With lines read ahead, which communicate() loses.
  _, errors = process.communicate(timeout=60)
  assert process.returncode == -signal.SIGKILL, errors
  last_used = int(used[-1])
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    assert last_used + 1 <= writer.rounds <= last_used + 2
    ledgers.append(writer, ledgers.Gaussian(100.0), noise_multiplier=100.0)


def test_ledger_of_writer_killed_mid_line_resumes_at_that_round(path):
  process = start_writer(path, '2000')
  used, errors = process.communicate(timeout=60)
  assert process.returncode == -signal.SIGXFSZ, errors
  assert os.path.getsize(path) == 2000
  broken = ledger.read(path)
  assert broken.cut > 0
  assert [entry.round for entry in broken.entries] == [int(n) for n in used.split()]
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    assert os.path.getsize(path) == 2000 - broken.cut
    entry = ledgers.append(writer, ledgers.Gaussian(100.0), noise_multiplier=100.0)
  assert entry.round == len(broken.entries)
  assert ledger.read(path).entries == (*broken.entries, entry)


def test_ledger_refuses_a_second_writer(path):
  first = ledger.LedgerWriter(path, ledgers.DELTA)
  ledgers.release(first, 0)
  before = ledgers.lines_of(path)
  with pytest.raises(BlockingIOError, match='another writer has the ledger open'):
    ledger.LedgerWriter(path, ledgers.DELTA, resume=True)
  assert ledgers.lines_of(path) == before
  ledgers.release(first, 1)  # The failed attempt did not release the lock.
  with pytest.raises(BlockingIOError):
    ledger.LedgerWriter(path, ledgers.DELTA, resume=True)
  first.close()
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as second:
    ledgers.release(second, 2)
  with pytest.raises(ValueError, match='closed file'):
    ledgers.release(first, 2)
  assert len(ledger.read(path).entries) == 3


def test_forked_process_does_not_hold_lock_of_closed_writer(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.release(writer, 0)
    child = os.fork()
    if not child:
      time.sleep(60)
      os._exit(0)
  try:
    ledger.LedgerWriter(path, ledgers.DELTA, resume=True).close()
  finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_append_refuses_changed_moved_or_removed_file(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.release(writer, 0)
    (line,) = ledgers.lines_of(path)
    with open(path, 'ab') as file:
      file.write(line)
    for _ in range(2):
      with pytest.raises(OSError, match='changed, moved or removed'):
        ledgers.release(writer, 1)
    assert ledgers.lines_of(path) == [line, line]
  with ledger.LedgerWriter(f'{path}.1', ledgers.DELTA) as writer:
    ledgers.release(writer, 0)
    os.rename(f'{path}.1', f'{path}.2')
    for _ in range(2):  # Without a file of that name, and with a copy.
      with pytest.raises(OSError, match='changed, moved or removed'):
        ledgers.release(writer, 1)
      shutil.copy(f'{path}.2', f'{path}.1')
    assert len(ledgers.lines_of(f'{path}.2')) == 1
  pathlib.Path(path).write_bytes(line)
  with ledger.LedgerWriter(path, ledgers.DELTA, resume=True) as writer:
    os.remove(path)
    with pytest.raises(OSError, match='changed, moved or removed'):
      ledgers.release(writer, 1)


def test_read_detects_line_changed_while_writer_was_open(path):
  with ledger.LedgerWriter(path, ledgers.DELTA) as writer:
    ledgers.release(writer, 0)
    with open(path, 'r+b') as file:  # The length stays the same.
      data = file.read().replace(b'"cohort_requested": 10', b'"cohort_requested": 99')
      file.seek(0)
      file.write(data)
    ledgers.release(writer, 1)
  with pytest.raises(ValueError, match='line 2: .* a line was changed, removed'):
    ledger.read(path)
