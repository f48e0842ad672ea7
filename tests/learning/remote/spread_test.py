"""Packs that workers train come to the bits of those that this process trains.

Claims, with real workers of this machine:

* Rounds have the same states and metrics, bit by bit, with one and with three workers:
  with noise of the server, with noise of clients, and without privacy.
* So they have where workers are sent the data, as they do not see the files.
* A round that is run again is the same to the bit; so is one of a state that is held
  anew, and one without clients.
* What a killed program leaves in memory is found by its name.
* Nothing that is sent has the key of the noise in it, of whoever makes noise.
* A client whose training ends in NaN is counted, and adds nothing.
* What fails on two workers is an error that names what failed.
"""

import contextlib
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning.packed import populations
from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import spread
from tff_dp_aggregators.learning.remote import connection
from tff_dp_aggregators.learning.remote import member
from tff_dp_aggregators.noise import private_directory

_PARTICIPATION = strategies.Participation(8, min_separation=2)
_COHORTS = ([0, 3, 5, 7, 8], [1, 2, 4, 6, 9])
_NUM_PACKS = 4
_NUMBERS = {
  'clip_norm': 0.4,
  'clients_per_round': 5,
  'generator': 'philox',
}


def _local_noise(seed):
  mechanism = accounting.Mechanism(
    'gaussian', _PARTICIPATION, noise_multiplier=30.0, noise_site='local'
  )
  return aggregators.from_mechanism(mechanism, seed=seed, **_NUMBERS)


_AGGREGATORS = {
  'none': lambda seed: None,
  'banded': lambda seed: aggregators.banded(
    _PARTICIPATION, noise_multiplier=0.3, seed=seed, **_NUMBERS
  ),
  'local': _local_noise,
}


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with learning.runtime.local_runtime():
    yield


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  directory = tmp_path_factory.mktemp('spread') / 'data'
  return packed.lay_out(populations.Population(), str(directory))


@contextlib.contextmanager
def _simulation(data, name, workers=None, seed=4, model=None):
  training = packed.LocalTraining(
    model or populations.model(metrics=True),
    tff.learning.optimizers.build_sgdm(0.3, momentum=0.5),
    batch_size=4,
    local_epochs=2,
  )
  seed = None if seed is None else noise.Seed(seed)
  arguments = {
    'server_optimizer': tff.learning.optimizers.build_sgdm(0.7, momentum=0.9),
    'num_packs': _NUM_PACKS,
  }
  made = training, _AGGREGATORS[name](seed), data
  if workers is None:
    yield packed.PackedFedAvg(*made, **arguments)
    return
  simulation = spread.SpreadFedAvg(
    *made, learning.Workers(workers), say=lambda line: None, **arguments
  )
  with contextlib.closing(simulation):
    yield simulation


def _round(this_round):
  clients = np.array(_COHORTS[this_round])
  return clients, local_order.keys(9, this_round, clients)


def _rounds(simulation):
  """States and metrics of two rounds, flat."""
  state, found = simulation.initialize(), []
  for this_round in range(2):
    state, metrics = simulation.next(state, *_round(this_round))
    found += tf.nest.flatten((simulation.release(state), metrics))
  return found


@pytest.mark.optimized_graphs
@pytest.mark.parametrize(
  ('name', 'workers'),
  [
    ('banded', 'local:3'),
    pytest.param('local', 'local:1', marks=pytest.mark.slow),
    pytest.param('banded', 'local:1', marks=pytest.mark.slow),
    pytest.param('banded', 'local:5', marks=pytest.mark.slow),
    pytest.param('none', 'local:2', marks=pytest.mark.slow),
  ],
)
def test_rounds_have_the_same_bits_on_workers(data, name, workers):
  with _simulation(data, name) as here:
    expected = _rounds(here)
  with _simulation(data, name, workers) as there:
    found = _rounds(there)
    assert there.notes() == ()
  assert len(found) == len(expected)
  for one, other in zip(found, expected):
    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_workers_that_do_not_see_the_data_are_sent_them(data, monkeypatch):
  with _simulation(data, 'banded') as here:
    expected = _rounds(here)
  monkeypatch.setattr(member.Session, 'sees_data', lambda self: False)
  with _simulation(data, 'banded', 'local:1') as there:
    found = _rounds(there)
    # A round has 30 examples at least, of 16 bytes each.
    assert there.traffic.sent > 2 * 30 * 16
  for one, other in zip(found, expected):
    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize('sees', [True, False])
def test_a_round_of_nobody_is_the_same(data, monkeypatch, sees):
  clients = np.zeros(0, np.int64)
  keys = local_order.keys(9, 0, clients)

  def released(simulation):
    state, metrics = simulation.next(simulation.initialize(), clients, keys)
    return tf.nest.flatten((simulation.release(state), metrics))

  with _simulation(data, 'banded') as here:
    expected = released(here)
  monkeypatch.setattr(member.Session, 'sees_data', lambda self: sees)
  with _simulation(data, 'banded', 'local:1') as there:
    found = released(there)
  for one, other in zip(found, expected):
    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_workers_are_told_the_state_that_is_held(data):
  with _simulation(data, 'banded', 'local:1') as there:
    state = there.initialize()
    first = there.release(state)
    once = there.next(state, *_round(0))[0]
    expected = there.release(once)
    there.next(once, *_round(1))
    # In the file of one that workers were told of.
    again = there.next(there.hold(first), *_round(0))[0]
    for one, other in zip(*map(tf.nest.flatten, (expected, there.release(again)))):
      np.testing.assert_array_equal(one, other)


def test_what_a_killed_program_leaves_is_removed_by_the_next_one(data):
  with _simulation(data, 'banded', 'local:1') as there:
    there.next(there.initialize(), *_round(0))
    folder = there._directory.path
    names = set(os.listdir(folder)) - {private_directory.OWNER}
    assert any('broadcast' in name for name in names)
    # A folder with files of other names would be left as it is.
    assert all(map(private_directory._FILE.fullmatch, names))


@pytest.mark.slow
def test_workers_look_whether_they_see_the_same_data(data, monkeypatch):
  looked, sees_data = [], member.Session.sees_data
  monkeypatch.setattr(
    member.Session, 'sees_data', lambda self: looked.append(sees_data(self))
  )
  for examples in (None, lambda self, numbers: b'others'):
    if examples is not None:
      monkeypatch.setattr(spread.SpreadFedAvg, '_seen', examples)
    with _simulation(data, 'none', 'local:1') as there:
      with contextlib.suppress(Exception):
        there.next(there.initialize(), *_round(0))
  assert looked == [True, False]


@pytest.mark.slow
def test_a_round_that_is_run_again_is_the_same_to_the_bit(data):
  with _simulation(data, 'banded', 'local:2') as there:
    state = there.initialize()
    once = there.release(there.next(state, *_round(0))[0])
    again = there.release(there.next(state, *_round(0))[0])
  for one, other in zip(tf.nest.flatten(once), tf.nest.flatten(again)):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('name', ['banded', 'local'])
def test_no_key_of_noise_is_sent(data, name, monkeypatch):
  sent, ask = [], connection.Connection._ask

  def watch(self, method, request, seconds):
    sent.append(request if isinstance(request, bytes) else request.SerializeToString())
    return ask(self, method, request, seconds)

  monkeypatch.setattr(connection.Connection, '_ask', watch)
  with _simulation(data, name, 'local:1', seed=None) as there:
    state = there.initialize()
    secrets = _keys(there.release(state))
    there.next(state, *_round(0))
  everything = b''.join(sent)
  # The model is sent, so this would find what is.
  weights = populations.model().initial_weights[0][0]
  assert np.asarray(weights).tobytes() in everything
  for key in secrets:
    assert key.tobytes() not in everything
    for word in key.ravel():
      assert word.tobytes() not in everything
  assert bool(secrets) == (name == 'banded')  # Keys of clients are in no state.


def _keys(state):
  """All arrays of a state that are as long as a key, and secret numbers."""
  return [
    np.asarray(leaf)
    for leaf in tf.nest.flatten(state.aggregator)
    if np.asarray(leaf).dtype == np.int64
    and np.asarray(leaf).shape == (4,)
    and (np.abs(np.asarray(leaf)) > 2**16).all()
  ]


class _OneIsBroken(populations.Population):
  def examples(self, number):
    examples = super().examples(number)
    if number == 3:
      examples['x'][0, 0] = np.inf
    return examples


@pytest.mark.slow
def test_a_client_that_ends_in_nan_is_counted_and_adds_nothing(tmp_path):
  broken = packed.lay_out(_OneIsBroken(), str(tmp_path / 'broken'))
  with _simulation(broken, 'banded', 'local:1') as there:
    state, metrics = there.next(there.initialize(), *_round(0))
    released = there.release(state)
  assert metrics['aggregator']['nonfinite_count'] == 1
  for weight in tf.nest.flatten(released.global_model_weights):
    assert np.isfinite(weight).all()


class _OneIsLarge(populations.Population):
  def examples(self, number):
    examples = super().examples(number)
    if number == 5:  # None of those whose step is tried before a training begins.
      examples['x'] += np.float32(1e6)
    return examples


def test_what_fails_on_every_worker_is_an_error_with_its_reason(tmp_path):
  large = packed.lay_out(_OneIsLarge(), str(tmp_path / 'large'))
  model = populations.model()

  @tf.function
  def predict(weights, x, training):
    checked = tf.debugging.assert_less(x, 1e5, 'this model takes nothing large')
    with tf.control_dependencies([checked]):
      return model.predict_on_batch(weights, tf.identity(x), training)

  failing = tff.learning.models.FunctionalModel(
    initial_weights=model.initial_weights,
    predict_on_batch_fn=predict,
    loss_fn=model.loss,
    input_spec=model.input_spec,
  )
  with _simulation(large, 'none', 'local:1', model=failing) as there:
    with pytest.raises(failures.ComputationError, match='takes nothing large'):
      there.next(there.initialize(), *_round(0))
