"""Tests of computations in the local runtime: callers, timeouts and dying workers."""

import asyncio
import concurrent.futures
import contextlib
import signal
import threading
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import runtime


@pytest.fixture(scope='module', autouse=True)
def context():
  with runtime.local_runtime() as context:
    yield context


_add = tff.tensorflow.computation(lambda x: x + 1, tff.TensorType(np.int32))


def _add_in_function(x):
  return _add(x)


@tff.tensorflow.computation(tff.TensorType(np.float32))
def _wait(seconds):
  end = tf.timestamp() + tf.cast(seconds, tf.float64)
  return tf.while_loop(lambda i: tf.timestamp() < end, lambda i: i + 1, [0])[0]


def test_synchronous_functions_get_values():
  async def program():
    return _add_in_function(1)  # Like a notebook's cell, which is in an event loop.

  assert _add(1) == 2
  assert [_add(i) for i in range(3)] == [1, 2, 3]
  assert asyncio.run(program()) == 2


def test_coroutines_get_references_without_blocking_the_loop():
  async def program():
    reference = _wait(0.3)
    assert isinstance(reference, tff.program.MaterializableValueReference)
    both = _add(_add(1))  # References are arguments, too.
    loop_iterations = 0
    waiting = asyncio.gather(
      tff.program.materialize_value(reference), tff.program.materialize_value(both)
    )
    while not waiting.done():
      await asyncio.sleep(0.01)
      loop_iterations += 1
    return (await waiting)[1], loop_iterations

  value, loop_iterations = asyncio.run(program())
  assert value == 3
  assert loop_iterations > 5  # A blocked loop would iterate once.


def test_bound_functions_compute_in_other_threads(context):
  async def program():
    return await asyncio.to_thread(context.bound(_add), 1)

  assert asyncio.run(program()) == 2
  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    results = list(threads.map(context.bound(_add_in_function), range(20)))
  assert results == list(range(1, 21))
  # A thread can have a runtime of its own.
  with concurrent.futures.ThreadPoolExecutor(1) as threads:
    assert threads.submit(_in_own_runtime).result() == 3
  assert _add(1) == 2


def _in_own_runtime():
  with runtime.local_runtime():
    return _add(2)


def test_local_runtime_restores_previous_tff_context(context):
  stack = tff.framework.get_context_stack()
  with runtime.local_runtime() as inner:
    assert stack.current is inner
    with stack.install(context), runtime.local_runtime() as innermost:
      assert stack.current is innermost
      assert _add(1) == 2
  assert stack.current is context
  assert _add(1) == 2


def _workers():
  for child in psutil.Process().children():
    with contextlib.suppress(psutil.NoSuchProcess):
      if child.name() == 'worker_binary' and child.status() != psutil.STATUS_ZOMBIE:
        yield child


@pytest.fixture
def workers_before():
  """Yields workers left by other tests, and checks that this test leaves none."""
  workers_before = set(_workers())
  yield workers_before
  assert set(_workers()) == workers_before


def _new_worker(workers_before):
  (worker,) = set(_workers()) - workers_before
  return worker


def test_hanging_worker_raises_round_timeout_error(workers_before):
  with (
    runtime.local_runtime(timeout_seconds=0.5) as context,
    concurrent.futures.ThreadPoolExecutor(1) as thread,
  ):
    assert _add(1) == 2
    _new_worker(workers_before).send_signal(signal.SIGSTOP)
    other_call = thread.submit(context.bound(_add), 1)
    started = time.monotonic()
    with pytest.raises(runtime.RoundTimeoutError) as error:
      _add(1)
    assert 0.4 < time.monotonic() - started < 10
    for each in ('timeout_seconds=0.5', 'larger timeout_seconds', 'last state'):
      assert each in str(error.value)
    assert isinstance(other_call.exception(10), TimeoutError)
    assert set(_workers()) == workers_before
    with pytest.raises(RuntimeError, match='has ended: a round took longer than'):
      _add(1)
  with runtime.local_runtime(timeout_seconds=60):
    assert _add(1) == 2


def test_timeout_is_per_computation_and_must_be_positive():
  with runtime.local_runtime(timeout_seconds=2.0):
    for _ in range(3):
      assert _wait(0.8) > 0
  with pytest.raises(ValueError, match='timeout_seconds must be positive'):
    with runtime.local_runtime(timeout_seconds=float('nan')):
      pass


def test_dead_worker_is_an_error_and_next_runtime_repeats_the_noise(workers_before):
  participation = strategies.Participation(4)
  process = aggregators.gaussian(
    participation, clip_norm=1.0, noise_multiplier=1.0, clients_per_round=2
  ).create(tff.TensorType(np.float32, [3]))
  values = [np.ones(3, np.float32)] * 2
  with runtime.local_runtime():
    state = process.initialize()
    first = process.next(state, values).result
    _new_worker(workers_before).kill()
    with pytest.raises(runtime.WorkerError, match='was ended by SIGKILL.* memory ran'):
      process.next(state, values)
  with runtime.local_runtime():
    threading.Timer(0.3, _new_worker(workers_before).kill).start()
    with pytest.raises(runtime.WorkerError, match='was ended by SIGKILL'):
      _wait(60.0)
  with runtime.local_runtime():
    np.testing.assert_array_equal(process.next(state, values).result, first)
