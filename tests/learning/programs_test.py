"""In one runtime, processes are called and TFF's programs run.

Claims:

* `tff.learning.programs.train_model` trains our federated averaging, is resumed from
  TFF's state manager, and gives the weights that calling the process gives.
* A computation gives values to plain functions, also inside of an event loop and in
  other threads, and references to coroutines; the loop goes on meanwhile.
* What goes wrong in a computation is raised where it is called or waited for.
"""

import asyncio
import collections
import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import runtime

_SPEC = collections.OrderedDict(
  x=tf.TensorSpec([None, 2], tf.float32), y=tf.TensorSpec([None, 1], tf.float32)
)


@pytest.fixture(scope='module', autouse=True)
def context():
  with runtime.local_runtime() as context:
    yield context


def _client(number):
  rng = np.random.default_rng(number)
  x = rng.normal(size=[8, 2]).astype(np.float32)
  examples = collections.OrderedDict(x=x, y=x @ np.array([[1], [-2]], np.float32))
  return tf.data.Dataset.from_tensor_slices(examples).batch(4)


class _Rounds(tff.program.FederatedDataSourceIterator):
  """Clients that follow from the round, which is all that is kept."""

  def __init__(self, this_round=0):
    self._round = this_round

  federated_type = tff.FederatedType(
    tff.SequenceType(tff.types.tensorflow_to_type(_SPEC)), tff.CLIENTS
  )

  def select(self, k=None):
    self._round += 1
    return [_client(10 * self._round + i) for i in range(k)]

  def to_bytes(self):
    return str(self._round).encode()

  @classmethod
  def from_bytes(cls, data):
    return cls(int(data.decode()))

  def __eq__(self, other):
    return isinstance(other, _Rounds) and self._round == other._round


class _Source(tff.program.FederatedDataSource):
  federated_type = _Rounds.federated_type

  def iterator(self):
    return _Rounds()


@pytest.fixture(scope='module')
def process():
  @tf.function
  def predict(weights, x, training):
    del training
    return x @ weights[0][0]

  @tf.function
  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.square(output - label))

  model = tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([2, 1], np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=_SPEC,
  )
  mechanism = aggregators.gaussian(
    strategies.Participation(8),
    clip_norm=1.0,
    noise_multiplier=0.5,
    clients_per_round=3,
    seed=noise.Seed(1),
  )
  return learning.build_dp_fed_avg(model, mechanism)


def _train_model(process, folder, num_rounds, metrics_manager=None):
  asyncio.run(
    tff.learning.programs.train_model(
      train_process=process,
      train_data_source=_Source(),
      train_per_round_clients=3,
      train_total_rounds=num_rounds,
      program_state_manager=tff.program.FileProgramStateManager(folder),
      model_output_manager=tff.program.LoggingReleaseManager(),
      train_metrics_manager=metrics_manager,
      evaluation_manager=None,
      evaluation_periodicity=10,
    )
  )


def _kept_weights(process, folder, version):
  manager = tff.program.FileProgramStateManager(folder)
  kept = tff.learning.programs.ProgramState(process.initialize(), 0, 0, _Rounds())
  state = asyncio.run(manager.load(version, kept)).state
  return process.get_model_weights(state).trainable[0]


def test_train_model_trains_and_goes_on_where_it_was(process, tmp_path):
  folder = tmp_path / 'states'
  _train_model(process, folder, 2)
  metrics = tff.program.CSVFileReleaseManager(tmp_path / 'metrics.csv')
  _train_model(process, folder, 4, metrics)
  lines = (tmp_path / 'metrics.csv').read_text().splitlines()
  assert len(lines) == 3  # The head, and the rounds that were left.

  state, clients = process.initialize(), _Rounds()
  for _ in range(4):
    output = process.next(state, clients.select(3))
    state = output.state
  weights = process.get_model_weights(state).trainable[0]
  assert np.abs(weights).min() > 0
  np.testing.assert_array_equal(_kept_weights(process, folder, 4), weights)


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


@tff.tensorflow.computation(tff.TensorType(np.int32))
def _refuse(x):
  with tf.control_dependencies([tf.debugging.assert_less(x, 1, 'too large')]):
    return tf.identity(x)


def test_errors_are_raised_where_the_computation_is_called():
  async def program():
    return await tff.program.materialize_value(_refuse(1))

  with pytest.raises(Exception, match='too large'):
    _refuse(1)
  with pytest.raises(Exception, match='too large'):
    asyncio.run(program())
  assert _refuse(0) == 0
