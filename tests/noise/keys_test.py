"""Tests of secret keys: they are new in every execution, and shown nowhere."""

import os
import pickle
import subprocess
import sys
import uuid

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.noise import generators

pytestmark = pytest.mark.optimized_graphs
_LIMITS = strategies.Participation(4)
_NUMBERS = {'clip_norm': 1.0, 'noise_multiplier': 2.0, 'clients_per_round': 50}
_VECTOR = tff.TensorType(np.float32, [3])


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with runtime.local_runtime():
    yield


def _all_distinct(drawn):
  words = np.ravel(drawn)
  return len(np.unique(words)) == words.size


def _three_keys():
  return generators.new_key(), generators.new_key(), generators.new_key()


def test_keys_of_one_execution_and_of_the_next_all_differ():
  traced = tf.function(_three_keys, autograph=False)
  in_worker = tff.tensorflow.computation(_three_keys)
  drawn = [np.array(_three_keys()), np.array(traced()), np.array(traced())]
  drawn += [np.array(list(in_worker())) for _ in range(2)]
  assert np.array(drawn).shape == (5, 3, 4)
  assert _all_distinct(drawn)


def test_equal_tff_processes_have_different_keys():
  # These processes are equal, so TFF compiles them once.
  drawn = []
  for _ in range(2):
    process = aggregators.gaussian(**_NUMBERS).create(_VECTOR)
    drawn += [process.initialize().query.noise.key for _ in range(2)]
  with runtime.local_runtime():
    drawn.append(process.initialize().query.noise.key)
  assert np.shape(drawn) == (5, 4)
  assert _all_distinct(drawn)


_FORKS = """
import os, sys, traceback
import numpy as np
import tensorflow as tf
from tff_dp_aggregators.noise import generators

def printed_by_children(run):
  # A child that fails ends at once: an exit would wait for threads that are not there.
  for _ in range(2):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
      try:
        os.write(writing, run().hex().encode() + b'\\n')
      except BaseException:
        traceback.print_exc()
        os._exit(1)
      os._exit(0)
    os.close(writing)
    if os.waitpid(child, 0)[1]:
      sys.exit('A child failed.')
    print(os.read(reading, 1000).decode(), end='')

# Nothing of TensorFlow has run yet but what its import does: after a fork its threads
# are gone. Graphs that were made before serve all.
with tf.Graph().as_default() as graph:
  new = generators.new_key
  key = tf.stack([new(), new()])

def of_one_graph():
  with tf.compat.v1.Session(graph=graph) as session:
    return session.run(key).tobytes()

# Processes that share nothing but the graph in the file, and the import of TensorFlow.
def of_a_file():
  with open(sys.argv[1], 'rb') as file:
    graph_def = tf.compat.v1.GraphDef.FromString(file.read())
  with tf.compat.v1.Session(graph=tf.Graph()) as session:
    with session.graph.as_default():
      tf.import_graph_def(graph_def, name='')
    return b''.join(session.run('key:0').tobytes() for _ in range(2))

printed_by_children(of_one_graph)
printed_by_children(of_a_file)
"""


@pytest.mark.slow
def test_forked_processes_have_different_keys_even_of_one_serialised_graph(tmp_path):
  # All are forks of one process, which has imported TensorFlow.
  with tf.Graph().as_default() as graph:
    tf.identity(generators.new_key(), name='key')
  path = tmp_path / 'graph'
  path.write_bytes(graph.as_graph_def().SerializeToString())
  lines = subprocess.run(
    [sys.executable, '-c', _FORKS, str(path)],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    stdout=subprocess.PIPE,
    text=True,
    check=True,
    timeout=300,
  ).stdout.split()
  drawn = [np.frombuffer(bytes.fromhex(line), np.int64) for line in lines]
  assert [len(words) for words in drawn] == [8] * 4
  assert _all_distinct(drawn)


def test_new_key_is_the_documented_hash(tmp_path, monkeypatch):
  uuids = [uuid.uuid4() for _ in range(3)]
  words = np.frombuffer(b''.join(line.bytes for line in uuids), '>u4').astype(np.uint32)
  more = np.array([5, 6, 7, 8], np.uint32)
  # The cached graph, which other tests use, must not have these lines.
  monkeypatch.setattr(generators, '_traced_key', generators._traced_key.__wrapped__)
  monkeypatch.setattr(
    generators, '_lines', lambda path: tf.constant([str(x) for x in uuids])
  )
  monkeypatch.setattr(generators, '_clock_and_numbers', lambda: tf.constant(more))
  first = generators.blocks(
    tf.constant(words[:8]), tf.constant(words[8]), tf.constant(words[9:]), 1
  )[:8, 0]
  second = generators.blocks(first, tf.constant(more[0]), tf.constant(more[1:]), 1)[
    :8, 0
  ]
  assert generators.new_key().numpy().tobytes() == second.numpy().tobytes()


_ONE_UUID = str(uuid.UUID(int=1, version=4))


@pytest.mark.parametrize('content', [f'{_ONE_UUID}\n', 'no entropy\n', '', None])
def test_new_key_refuses_missing_files_and_those_without_entropy(content, tmp_path):
  path = tmp_path / 'uuid'
  message = 'this machine has no'
  if content is not None:
    path.write_text(content)
    message = 'key|End of seq|empty'
  traced = tf.function(lambda: generators.new_key(str(path)))
  for draw in (lambda: generators.new_key(str(path)), traced):
    with pytest.raises(tf.errors.OpError, match=message) as error:
      draw()
    assert _ONE_UUID not in str(error.value)


def test_tags_of_keys_differ_and_use_a_reserved_vector():
  key = tf.constant([1, 2, 3, 4], tf.int64)
  tags = [
    int(generators.tag_of(tf.constant(k, tf.int64))) for k in np.eye(4, dtype=np.int64)
  ]
  assert len(set(tags)) == 4
  assert int(generators.tag_of(key)) == int(generators.tag_of(key))
  last = np.frombuffer(b'\xff' * 4, np.uint32)[0]
  assert generators._TAG_VECTOR == last


def _serialised(computation):
  proto = tff.framework.serialize_computation(computation)
  return proto.SerializeToString(deterministic=True)


def _contains(content, key):
  """Returns whether `content` has any half of a word of the key, or its digits."""
  for word in key.tolist():
    number = word.to_bytes(8, 'little', signed=True)
    spellings = [number, number[::-1], number[:4], number[4:], str(word).encode()]
    if any(spelling in content for spelling in spellings):
      return True
  return False


def test_serialised_initialize_does_not_contain_the_key():
  initialize = aggregators.tree(_LIMITS, **_NUMBERS).create(_VECTOR).initialize
  content = _serialised(initialize)
  for state in [initialize() for _ in range(2)]:
    assert not _contains(content, state.query.noise.key)
  # It has nothing random: for another factory it differs at most in names that
  # TensorFlow numbers, and hardly in size.
  other = aggregators.tree(_LIMITS, **_NUMBERS).create(_VECTOR).initialize
  assert abs(len(_serialised(other)) - len(content)) < 200
  # `_contains` finds the key where it is: with a known seed.
  seeded = aggregators.tree(_LIMITS, seed=noise.Seed(5), **_NUMBERS).create(_VECTOR)
  assert _contains(_serialised(seeded.initialize), noise.Seed(5).key())


def test_states_and_outputs_of_a_process_do_not_show_the_key():
  process = aggregators.tree(_LIMITS, storage='state', **_NUMBERS).create(_VECTOR)
  value = [np.array([0.1, 0.2, 0.3], np.float32)] * 2
  initial = process.initialize()
  output = process.next(initial, value)
  noise_state = output.state.query.noise
  secrets = {str(word) for word in noise_state.key.tolist()}
  for buffer in noise_state.buffers:
    assert np.any(buffer)
    secrets |= {str(entry) for entry in np.ravel(buffer) if entry}
  for shown in (initial, output, output.state, noise_state):
    for text in (repr(shown), str(shown), f'{shown}'):
      assert 'key=<secret int64, shape (4,)>' in text
      assert not any(secret in text for secret in secrets)
  # TFF's error about a state of another mechanism does not show it either.
  other = aggregators.gaussian(**{**_NUMBERS, 'noise_multiplier': 3.0}).create(_VECTOR)
  with pytest.raises(Exception, match='Cannot serialize a struct') as error:
    other.next(output.state, value)
  assert not any(secret in str(error.value) for secret in secrets)
  # A saved state has the key: it is hidden only where the state is shown.
  restored = pickle.loads(pickle.dumps(noise_state))
  np.testing.assert_array_equal(restored.key, noise_state.key)


def test_states_of_queries_do_not_show_the_key():
  specs = tf.TensorSpec([3])
  numbers = {'clip_norm': 1.0, 'noise_multiplier': 2.0, 'record_specs': specs}
  for query in (
    queries.LaplaceSumQuery(**numbers),
    queries.GaussianSumQuery(**numbers),
    queries.TreeResidualSumQuery(_LIMITS, storage='state', **numbers),
  ):
    state = query.initial_global_state()
    key = state.key if hasattr(state, 'key') else state.noise.key
    for text in (repr(state), str(state), repr({'state': [state]})):
      assert 'key=<secret int64, shape (4,)>' in text
      assert not any(str(word) in text for word in key.numpy().tolist())
    assert 'round=' in repr(state) and 'clip_norm=' in repr(state)
