"""Computations in one runtime, called from functions, coroutines and threads."""

import asyncio
import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.learning import runtime


@pytest.fixture(scope='module', autouse=True)
def context():
  with runtime.local_runtime() as context:
    yield context


_add = tff.tensorflow.computation(lambda x: x + 1, tff.TensorType(np.int32))


def _add_plainly(x):
  return _add(x)


@tff.tensorflow.computation(tff.TensorType(np.float32))
def _wait(seconds):
  end = tf.timestamp() + tf.cast(seconds, tf.float64)
  return tf.while_loop(lambda i: tf.timestamp() < end, lambda i: i + 1, [0])[0]


def test_plain_functions_get_values():
  async def program():
    return _add_plainly(1)  # As a cell of a notebook does, which is in a loop, too.

  assert _add(1) == 2
  assert [_add(i) for i in range(3)] == [1, 2, 3]
  assert asyncio.run(program()) == 2


def test_coroutines_get_references_and_the_loop_goes_on():
  async def program():
    reference = _wait(0.3)
    assert isinstance(reference, tff.program.MaterializableValueReference)
    both = _add(_add(1))  # References are arguments, too.
    turns = 0
    waiting = asyncio.gather(
      tff.program.materialize_value(reference), tff.program.materialize_value(both)
    )
    while not waiting.done():
      await asyncio.sleep(0.01)
      turns += 1
    return (await waiting)[1], turns

  value, turns = asyncio.run(program())
  assert value == 3
  assert turns > 5  # A loop that waits would make one.


def test_other_threads_compute_in_the_same_runtime(context):
  async def program():
    return await asyncio.to_thread(context.bound(_add), 1)

  assert asyncio.run(program()) == 2
  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    found = list(threads.map(context.bound(_add_plainly), range(20)))
  assert found == list(range(1, 21))
  # A thread can have a runtime of its own.
  with concurrent.futures.ThreadPoolExecutor(1) as threads:
    assert threads.submit(_in_own_runtime).result() == 3
  assert _add(1) == 2


def _in_own_runtime():
  with runtime.local_runtime():
    return _add(2)


def test_what_was_tffs_context_before_is_so_again(context):
  stack = tff.framework.get_context_stack()
  with runtime.local_runtime() as inner:
    assert stack.current is inner
    with stack.install(context), runtime.local_runtime() as innermost:
      assert stack.current is innermost
      assert _add(1) == 2
  assert stack.current is context
  assert _add(1) == 2
