"""A worker goes on when its `worker_binary` dies or hangs, and leaves nothing behind.

Claims:

* A call during which `worker_binary` dies fails at once, and says how; so do calls
  while there is none. Another one is started, with growing pauses if it dies of that.
* One that hangs is `stalled`, killed and replaced, as is one that was left with values.
* SIGTERM and Ctrl-C end both with exit code 0; SIGKILL of the program ends both.
* The program loads neither TensorFlow nor TFF, and starts in about a second.
"""

import asyncio
import json
import shutil
import signal
import sys
import time

import grpc
import psutil
import pytest

from tests.workers import supervised
from tff_dp_aggregators.workers import binary
from tff_dp_aggregators.workers import keeper as keeper_lib
from tff_dp_aggregators.workers import protocol

_GET = protocol.path_of(protocol.GET_EXECUTOR)
# The second field of a request to compute: the value that has no name.
_VALUE = b'\x12\x00'
# An executor of a worker before.
_ANOTHER = b'\n\x05\n\x03old'


def test_a_binary_that_dies_is_replaced_and_whoever_waits_is_told():
  with supervised.Worker() as worker:
    with supervised.Caller(worker.address) as caller:
      old = caller.executor()
      running = worker.binary()
      supervised.stop(running)
      call = caller.of_path(_GET).future(supervised.ONE_CLIENT)
      time.sleep(0.3)
      assert not call.done()
      running.kill()
      killed = time.monotonic()
      assert call.exception(20).code() == grpc.StatusCode.UNAVAILABLE
      assert time.monotonic() - killed < 10
      assert "TFF's worker process was ended by SIGKILL" in call.exception().details()

      supervised.until(lambda: caller.status()['state'] == 'serving')
      status = caller.status()
      assert status['generation'] == 2
      assert status['deaths'] == ["TFF's worker process was ended by SIGKILL"]
      assert worker.said('was ended by SIGKILL; starting another one')
      assert worker.said('(start 2)')
      # Nothing of the first one is known to the second.
      with pytest.raises(grpc.RpcError, match='No executor found') as error:
        caller.call('Compute', old + _VALUE)
      assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
      assert caller.executor()


def test_a_binary_that_hangs_is_stalled_then_killed_and_replaced():
  with supervised.Worker('--stall_seconds=2') as worker:
    with supervised.Caller(worker.address) as caller:
      running = worker.binary()
      supervised.stop(running)
      assert caller.status()['state'] == 'stalled'
      call = caller.of_path(_GET).future(supervised.ONE_CLIENT)
      assert call.exception(20).code() == grpc.StatusCode.UNAVAILABLE
      assert 'gave no answer for ' in call.exception().details()
      supervised.until(lambda: caller.status()['generation'] == 2)
      supervised.until(lambda: caller.status()['state'] == 'serving')
      assert not running.is_running()
      (death,) = caller.status()['deaths']
      assert 'gave no answer for' in death and 'was killed' in death


def test_one_that_hangs_for_less_is_let_be():
  with supervised.Worker('--stall_seconds=6') as worker:
    with supervised.Caller(worker.address) as caller:
      running = worker.binary()
      supervised.stop(running)
      time.sleep(2)
      running.resume()
      time.sleep(5)
      assert caller.status() == {**caller.status(), 'state': 'serving', 'generation': 1}


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_both(number):
  # Whoever started the tests may have had it ignored.
  command = ('env', '--default-signal', sys.executable, '-m')
  worker = supervised.Worker(python=command)
  running = worker.binary()
  with supervised.Caller(worker.address) as caller:
    supervised.stop(running)
    call = caller.of_path(_GET).future(supervised.ONE_CLIENT)
    time.sleep(0.3)
    worker.process.send_signal(number)
    code, lines = worker.finish()
    assert (code, lines[-1]) == (0, f'ended by {number.name}')
    assert call.exception(20).code() == grpc.StatusCode.UNAVAILABLE
    assert 'was ended with its supervisor' in call.exception().details()
  assert not running.is_running()


def test_killed_it_leaves_no_binary():
  worker = supervised.Worker()
  running = worker.binary()
  worker.process.kill()
  assert worker.finish()[0] == -signal.SIGKILL
  psutil.wait_procs([running], timeout=10)
  assert not running.is_running()


@pytest.mark.slow
def test_its_status_is_in_a_file(tmp_path):
  path = tmp_path / 'status.json'
  with supervised.Worker(f'--status_file={path}') as worker:

    def state():
      return json.loads(path.read_text() or '{}').get('state')

    supervised.until(lambda: state() == 'serving')
    assert not (tmp_path / 'status.json.new').exists()
    written = path.stat().st_mtime_ns
    supervised.stop(worker.binary())
    supervised.until(lambda: state() == 'stalled')
    assert path.stat().st_mtime_ns > written
    with supervised.Caller(worker.address) as caller:
      assert caller.status() == json.loads(path.read_text())
    worker.process.send_signal(signal.SIGTERM)
    assert worker.finish()[0] == 0
  assert not list(tmp_path.iterdir())


def test_a_status_file_that_cannot_be_written_is_told(tmp_path):
  path = tmp_path / 'no' / 'status.json'
  with supervised.Worker(f'--status_file={path}') as worker:
    code, (line,) = worker.finish()
  assert code == 2
  assert f'--status_file={path} cannot be written: No such file or directory' in line
  path.parent.mkdir()
  with supervised.Worker(f'--status_file={path}') as worker:
    shutil.rmtree(path.parent)
    supervised.until(lambda: worker.said('warning: --status_file='))
    with supervised.Caller(worker.address) as caller:
      assert caller.status()['state'] == 'serving'


class _Executors(keeper_lib.Keeper):
  """A keeper whose lines are kept."""

  def __init__(self, stall_seconds=30.0):
    self.lines = []
    super().__init__(self.lines.append, stall_seconds)


async def _kept(what, keeper):
  """Does something while a keeper runs, in the thread that kernels look at."""
  started = asyncio.Event()
  running = asyncio.ensure_future(keeper.run(started))
  try:
    return await asyncio.wait_for(what(started), 60)
  finally:
    await keeper.end('was ended by the test')
    running.cancel()


async def _until(condition):
  while not condition():
    await asyncio.sleep(0.02)


@pytest.mark.slow
def test_values_that_a_coordinator_left_are_freed(monkeypatch):
  monkeypatch.setattr(keeper_lib, 'ABANDONED_SECONDS', 1.5)
  keeper = _Executors()

  async def number():
    return (await keeper.status(of_coordinator=False))['generation']

  async def leave(started):
    await started.wait()
    await asyncio.sleep(2)
    assert await number() == 1  # There is nothing in it.
    with keeper.call() as generation:
      executor = await generation.call('GetExecutor', supervised.ONE_CLIENT, 20)
      await asyncio.sleep(2)
    assert await number() == 1  # A call takes long.
    for _ in range(20):
      await asyncio.sleep(0.1)
      assert (await keeper.status(of_coordinator=True))['generation'] == 1
    with keeper.call() as generation:
      await generation.call('DisposeExecutor', executor, 20)
      with pytest.raises(grpc.RpcError):
        await generation.call('GetExecutor', b'', 20)
    await asyncio.sleep(2)
    assert await number() == 1  # It was disposed of.
    with keeper.call() as generation:
      await generation.call('GetExecutor', supervised.ONE_CLIENT, 20)
      await generation.call('DisposeExecutor', _ANOTHER, 20)
    await _until(lambda: keeper._starts == 2)
    return await keeper.status(of_coordinator=False)

  (death,) = asyncio.run(_kept(leave, keeper))['deaths']
  assert 'ended to free its memory, as nobody had called for 1.5 s' in death


def test_one_that_dies_at_once_is_tried_again_with_growing_pauses(
  tmp_path, monkeypatch
):
  broken = tmp_path / 'worker_binary'
  broken.write_text('#!/bin/sh\nexit 3\n')
  broken.chmod(0o755)
  monkeypatch.setattr(binary, 'path', lambda: str(broken))
  keeper = _Executors()

  async def wait(started):
    await _until(lambda: len(keeper.lines) == 4)
    with pytest.raises(keeper_lib.NotServingError, match='exit code 3 .* in 2 s'):
      with keeper.call():
        pass
    assert not started.is_set()
    return await keeper.status(of_coordinator=True)

  status = asyncio.run(_kept(wait, keeper))
  assert (status['state'], status['generation']) == ('starting', 4)
  ends = ['another one', 'another one in 0.5 s', 'another one in 1 s', 'in 2 s']
  for line, end in zip(keeper.lines, ends):
    assert 'did not start: it ended with exit code 3' in line and line.endswith(end)


def test_pauses_grow_to_half_a_minute():
  pauses = [keeper_lib._pause_seconds(quick) for quick in range(12)]
  assert pauses[:5] == [0, 0, 0.5, 1, 2] and pauses == sorted(pauses)
  assert pauses[-1] == 30 == keeper_lib._pause_seconds(10**6)


_LOADED = """
import runpy, signal, sys, threading, time, os

def end():
  time.sleep(1.0)
  heavy = ('tensorflow', 'tensorflow_federated', 'tensorflow_privacy')
  print('loaded', [each for each in heavy if each in sys.modules], flush=True)

threading.Thread(target=end, daemon=True).start()
sys.argv[:] = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
"""


def test_neither_tensorflow_nor_tff_is_loaded():
  with supervised.Worker(python=(sys.executable, '-c', _LOADED)) as worker:
    supervised.until(lambda: worker.said('loaded ['))
    assert worker.said('loaded []')
    memory = worker.process.memory_info().rss
    assert memory < 150e6


def test_nohup_is_heeded():
  with supervised.Worker(python=('nohup', sys.executable, '-m')) as worker:
    worker.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    with supervised.Caller(worker.address) as caller:
      assert caller.status()['state'] == 'serving'
