"""Runs TFF processes of aggregators."""

import pytest
import tensorflow_federated as tff

from tff_dp_aggregators.learning import runtime


@pytest.fixture(scope='module', autouse=True)
def local_runtime():
  """Starts TFF's local runtime for all tests of a file that imports this fixture."""
  with runtime.local_runtime():
    yield


@pytest.fixture
def secure_backend():
  """Makes TFF use its test context, the only one that simulates secure sums."""
  context = tff.backends.test.create_sync_test_cpp_execution_context()
  with tff.framework.get_context_stack().install(context):
    yield


def rounds(process, values, num_rounds=1):
  """Returns the outputs of successive rounds with the same clients."""
  outputs = []
  state = process.initialize()
  for _ in range(num_rounds):
    output = process.next(state, values)
    state = output.state
    outputs.append(output)
  return outputs
