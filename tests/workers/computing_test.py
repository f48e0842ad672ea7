"""TFF computes by way of a worker what it computes here.

Claims:

* A computation of TFF, and a round of federated averaging with our noise, give the same
  bits through the front of a worker, by TFF's own remote executor.
* The service and the messages are those of TFF that is installed.
"""

import contextlib

import grpc
import numpy as np
import pytest
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tests.workers import supervised
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.workers import protocol


@contextlib.contextmanager
def _computing_by(address):
  """Has TFF compute at an address."""
  channel = grpc.insecure_channel(address, protocol.LOCAL_CHANNEL_OPTIONS)
  executor = tff.framework.RemoteExecutor(tff.framework.RemoteExecutorGrpcStub(channel))

  def executor_for(cardinalities):
    executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
    return executor

  context = tff.framework.SyncExecutionContext(
    executor_fn=tff.framework.ResourceManagingExecutorFactory(executor_for),
    compiler_fn=tff.backends.native.desugar_and_transform_to_native,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )
  try:
    with tff.framework.get_context_stack().install(context):
      yield
    executor.close()
  finally:
    channel.close()


@pytest.fixture(scope='module')
def worker():
  with supervised.Worker() as worker:
    yield worker


def test_a_computation_gives_what_it_gives_here(worker):
  add = tff.tensorflow.computation(lambda x: x + 1, tff.TensorType(np.int32))
  with _computing_by(worker.address):
    assert add(1) == 2
  with supervised.Caller(worker.address) as caller:
    assert caller.status()['state'] == 'serving'


def test_a_noised_round_gives_the_same_bits(worker):
  process = aggregators.gaussian(
    strategies.Participation(4),
    clip_norm=1.0,
    noise_multiplier=1.0,
    clients_per_round=2,
    seed=3,
  ).create(tff.TensorType(np.float32, [5]))
  values = [np.arange(5, dtype=np.float32), np.ones(5, np.float32)]

  def result():
    return process.next(process.initialize(), values).result

  with _computing_by(worker.address):
    there = result()
  with runtime.local_runtime():
    here = result()
  assert np.any(there != 0)
  np.testing.assert_array_equal(there, here)


def test_service_and_methods_are_those_of_tff():
  service = executor_pb2.DESCRIPTOR.services_by_name['ExecutorGroup']
  assert service.full_name == protocol.SERVICE
  assert [method.name for method in service.methods] == list(protocol.METHODS)


def test_messages_are_those_of_tff():
  request = executor_pb2.GetExecutorRequest.FromString(supervised.ONE_CLIENT)
  (cardinality,) = request.cardinalities
  assert (cardinality.placement.uri, cardinality.cardinality) == ('clients', 1)
  # A worker counts executors by bytes that both have in common.
  executor = executor_pb2.ExecutorId(id='clients=1/2/3')
  answer = executor_pb2.GetExecutorResponse(executor=executor)
  disposing = executor_pb2.DisposeExecutorRequest(executor=executor)
  assert answer.SerializeToString() == disposing.SerializeToString()
