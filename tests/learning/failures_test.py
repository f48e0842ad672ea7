"""Tests of the error messages of computations that fail in TFF's runtime."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import runtime


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with runtime.local_runtime():
    yield


def test_round_beyond_num_rounds_fails_with_short_message():
  process = aggregators.banded(
    strategies.Participation(1, min_separation=1),
    clip_norm=1.0,
    noise_multiplier=1.0,
    clients_per_round=2,
  ).create(tff.TensorType(np.float32))
  output = process.next(process.initialize(), [np.float32(0)] * 2)
  with pytest.raises(runtime.ComputationError) as error:
    process.next(output.state, [np.float32(0)] * 2)
  message = str(error.value)
  assert message.startswith('This query was built for 1 rounds and has served them all')
  assert message.endswith('add up what both spend.')
  assert len(error.value.details) > len(message)


def test_long_message_of_failed_operation_is_truncated():
  @tff.tensorflow.computation(np.str_)
  def fail(text):
    with tf.control_dependencies([tf.debugging.Assert(False, [text])]):
      return tf.identity(text)

  with pytest.raises(runtime.ComputationError) as error:
    fail('x' * 7000)  # Beyond 8192, gRPC may only say that the message is too long.
  assert len(str(error.value)) < 4010 and len(error.value.details) > 7000


def test_error_in_round_names_the_first_clients():
  error = failures.ComputationError('it failed', 'at length')
  ids = [f'user {number}' for number in range(20)]
  assert str(error.in_round(3, np.array([4, 2]), ids)) == (
    "round 3 of clients 'user 4', 'user 2': it failed"
  )
  message = str(error.in_round(3, np.arange(12), None))
  assert message.endswith('9 and 2 more: it failed')
