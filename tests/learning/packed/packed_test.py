"""Tests that packed simulation matches the process it stands for, up to round-off."""

import collections
import concurrent.futures
import dataclasses
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning.packed import populations
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import functions
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import models
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import simulation as packed_lib
from tff_dp_aggregators.learning.packed import training as training_lib

_runtime, data = populations.local_runtime, populations.data
_PARTICIPATION = strategies.Participation(8, min_separation=2)
_COHORTS = ([0, 3, 5, 7, 8], [1, 2, 4, 6, 9], [0, 3, 10, 11, 5])
_CLIENT = tff.learning.optimizers.build_sgdm(0.3, momentum=0.5)
_SERVER = tff.learning.optimizers.build_sgdm(0.7, momentum=0.9)
_BATCH_SIZE, _EPOCHS = 4, 2


def _aggregator(name):
  arguments = {
    'noise_multiplier': 0.3,
    'clients_per_round': 5,
    'seed': noise.Seed(4),
    'generator': 'philox',
  }
  if name == 'adaptive':
    return aggregators.adaptive(participation=_PARTICIPATION, **arguments)
  return getattr(aggregators, name)(_PARTICIPATION, clip_norm=0.4, **arguments)


@pytest.fixture(scope='module')
def banded(data):
  return _packed(data, _aggregator('banded'), populations.model(metrics=True))


@pytest.fixture(scope='module')
def not_private(data):
  return _packed(data, None, timeout_seconds=60)


def _training(model=None):
  return packed.LocalTraining(
    model or populations.model(), _CLIENT, _BATCH_SIZE, _EPOCHS
  )


def _packed(data, aggregator, model=None, **kwargs):
  return packed.PackedFedAvg(
    _training(model), aggregator, data, server_optimizer=_SERVER, **kwargs
  )


def _why_one_by_one(data, model):
  """Returns the reason that `_packed` would find, before it makes graphs."""
  return training_lib.why_one_by_one(_training(model), data)


def _composed_process(aggregator):
  return learning.build_dp_fed_avg(
    populations.model(metrics=True),
    aggregator or tff.aggregators.UnweightedMeanFactory(),
    client_optimizer_fn=_CLIENT,
    server_optimizer_fn=_SERVER,
  )


def _round(this_round):
  clients = np.array(_COHORTS[this_round])
  return clients, local_order.keys(9, this_round, clients)


def _datasets(this_round, population=None):
  population = population or populations.Population()
  return [
    population.dataset(client, key, _BATCH_SIZE, _EPOCHS)
    for client, key in zip(*_round(this_round))
  ]


def _assert_close(actual, expected):
  tf.nest.assert_same_structure(actual, expected)
  for one, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
    if isinstance(other, bytes):
      assert one == other
    else:
      np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def _run_both(simulation, process):
  """Checks that three rounds of both are close; returns the states after each."""
  packed_state, state, states = simulation.initialize(), process.initialize(), []
  for this_round in range(3):
    packed_state, metrics = simulation.next(packed_state, *_round(this_round))
    output = process.next(state, _datasets(this_round))
    state = output.state
    states.append((packed_lib.to_numpy(packed_state), state))
    _assert_close(metrics, output.metrics)
    _assert_close(*states[-1])
  return states


@pytest.mark.optimized_graphs
def test_packed_rounds_match_composed_process_and_continue_from_its_state(banded):
  states = _run_both(banded, _composed_process(_aggregator('banded')))
  # The third round is packed, and continues from the process's state after the second.
  packed_state, _ = banded.next(banded.hold(states[1][1]), *_round(2))
  _assert_close(packed_lib.to_numpy(packed_state), states[2][0])


@pytest.mark.slow
@pytest.mark.optimized_graphs
@pytest.mark.parametrize('name', ['adaptive', 'none'])
def test_packed_rounds_match_composed_process(data, name):
  def aggregator():  # It is made anew, as each use of a seed has noise of its own.
    return None if name == 'none' else _aggregator(name)

  simulation = _packed(data, aggregator(), populations.model(metrics=True))
  assert simulation.one_by_one is None
  _run_both(simulation, _composed_process(aggregator()))


def test_labels_of_lower_rank_than_outputs_are_trained_one_by_one(tmp_path):
  data = packed.lay_out(
    learning.Clients.of({i: (np.ones([5, 2], np.float32), np.ones(5)) for i in 'ab'}),
    str(tmp_path / 'data'),
  )
  spec = (tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.float64))
  model = tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])]),
    tf.keras.losses.BinaryCrossentropy(from_logits=True),
    spec,
  )
  assert 'no weight for each example' in _why_one_by_one(data, model)


@pytest.mark.slow
def test_models_agree_within_4_ulp_for_any_number_of_packs(data):
  released = []
  for num_packs in (1, 3):
    simulation = _packed(data, _aggregator('gaussian'), num_packs=num_packs)
    state, _ = simulation.next(simulation.initialize(), *_round(0))
    released.append(packed_lib.to_numpy(state))
  tf.nest.assert_same_structure(*released)
  for one, other in zip(*map(tf.nest.flatten, released)):
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype == np.float32:
      # Some processors multiply matrices differently if more of them come at once.
      np.testing.assert_array_max_ulp(one, other, maxulp=4)
    else:  # These are keys, counts and what was spent.
      np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_update_with_nan_is_counted_and_adds_nothing(tmp_path):
  data = packed.lay_out(populations.NonFinite(), str(tmp_path / 'broken'))
  simulation = _packed(data, _aggregator('gaussian'), populations.model(metrics=True))
  process = _composed_process(_aggregator('gaussian'))
  packed_state, metrics = simulation.next(simulation.initialize(), *_round(0))
  assert metrics['aggregator']['nonfinite_count'] == 1
  output = process.next(process.initialize(), _datasets(0, populations.NonFinite()))
  _assert_close(metrics, output.metrics)
  _assert_close(packed_lib.to_numpy(packed_state), output.state)


@pytest.mark.slow
def test_large_models_have_the_same_bits_for_any_number_of_packs(tmp_path):
  data = packed.lay_out(populations.NonFinite(7), str(tmp_path / 'data'))
  states, metrics = [], []
  for num_packs in (2, 7):  # Packs of 3 and 4 clients, and packs of 1.
    simulation = _packed(
      data,
      _aggregator('adaptive'),
      populations.model(units=22000),
      num_packs=num_packs,
    )
    assert simulation.one_by_one is not None
    state = simulation.initialize()
    for this_round in range(2):
      keys = local_order.keys(9, this_round, np.arange(7))
      state, measured = simulation.next(state, np.arange(7), keys)
    states.append(packed_lib.to_numpy(state))
    metrics.append(measured)
    assert measured['aggregator']['nonfinite_count'] == 1
  for one, two in zip(*map(tf.nest.flatten, states)):
    np.testing.assert_array_equal(one, two)
  _assert_close(*metrics)


class _FirstTensorQuery(queries.GaussianSumQuery):
  """Sums the first tensor alone."""

  def encode_record(self, params, record):
    first, *others = record
    return super().encode_record(params, (first, *map(tf.zeros_like, others)))


@pytest.mark.slow
def test_updates_are_added_as_encoded_by_a_custom_query(data):
  aggregator = factory.from_query(
    _FirstTensorQuery,
    clip_norm=0.4,
    noise_multiplier=0.0,
    clients_per_round=5,
    record_aggregation_factory=None,
  )
  model = populations.model(units=22000)
  simulation = _packed(data, aggregator, model)
  assert simulation.one_by_one is not None
  state, _ = simulation.next(simulation.initialize(), *_round(0))
  weights = zip(state.global_model_weights.trainable, model.initial_weights[0])
  changed = [np.any(np.asarray(after) != before) for after, before in weights]
  assert changed == [True, False, False]


def test_cohort_rows_have_clients_with_most_examples_first(data, not_private):
  clients = np.array([7, 2, 0, 9, 11, 4, 5])
  sizes = [len(populations.Population().examples(each)['y']) for each in clients]
  keys = dict(zip(clients, local_order.keys(1, 0, clients)))
  starts = dict(enumerate(data.starts(np.arange(len(data)))))
  expected = [
    [starts[client], size, int(keys[client].view(np.int64))]
    for size, client in sorted(zip(sizes, clients), key=lambda each: -each[0])
  ]
  packs = not_private.packs(clients, local_order.keys(1, 0, clients))
  assert [len(rows) for rows in packs] == [3, 4]
  assert np.concatenate(packs).tolist() == expected


def test_hold_refuses_state_of_another_process(banded, not_private):
  with pytest.raises(ValueError, match='of another process'):
    not_private.hold(packed_lib.to_numpy(banded.initialize()))


def test_round_without_clients_releases_noise_alone(banded):
  nobody = np.zeros(0, np.int64)
  state, metrics = banded.next(banded.initialize(), nobody, nobody.view(np.uint64))
  assert metrics['aggregator']['dp_query_metrics']['rounds'] == 1
  before, after = populations.model().initial_weights[0][0], packed_lib.to_numpy(state)
  assert np.any(after.global_model_weights.trainable[0] != before)


class _LabelsOutOfRange(populations.Population):
  def examples(self, number):
    examples = super().examples(number)
    examples['y'] += populations.NUM_CLASSES
    return examples


def test_labels_out_of_range_are_refused(tmp_path):
  data = packed.lay_out(_LabelsOutOfRange(), str(tmp_path / 'data'))
  with pytest.raises(failures.ComputationError, match='Received a label value'):
    _why_one_by_one(data, populations.model())


def test_pack_functions_read_the_data_of_their_checksum(tmp_path):
  path, rows = str(tmp_path / 'x.bin'), np.zeros([2, 3], np.int64)

  def compute(broadcast, rows):
    values = tf.raw_ops.ImmutableConst(
      dtype=tf.float32, shape=[4], memory_region_name=path
    )
    return [broadcast[0] * tf.reduce_sum(values) + tf.cast(tf.size(rows), tf.float32)]

  np.full(4, 1, np.float32).tofile(path)
  traced = functions.Traced.of(
    compute, [tf.TensorSpec([], tf.float32)], tf.TensorSpec([None, 3], tf.int64)
  )
  first, second = (
    functions.PackFunction(dataclasses.replace(traced), str(tmp_path), checksum, 2)
    for checksum in 'ab'
  )
  assert first([np.float32(1)], rows) == [10]
  (tmp_path / 'x.bin').unlink()
  np.full(4, 9, np.float32).tofile(path)
  assert second([np.float32(1)], rows) == [42]


def _keras(*layers):
  return models.functional(
    lambda: tf.keras.Sequential(list(layers)),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    tf.nest.map_structure(
      lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), populations.SPEC
    ),
  )


@pytest.mark.parametrize(
  'regularizer, reason',
  [
    ({}, None),
    ({'kernel_regularizer': 'l2'}, None),
    (
      {'activity_regularizer': 'l2'},
      'batches have to be padded, and the model adds a loss of its inputs',
    ),
  ],
)
def test_only_activity_regularizers_prevent_padding(data, regularizer, reason):
  layer = tf.keras.layers.Dense(
    populations.NUM_CLASSES, input_shape=[populations.NUM_FEATURES], **regularizer
  )
  assert training_lib.is_padded(_training(), data)
  assert _why_one_by_one(data, _keras(layer)) == reason


def test_model_that_draws_random_numbers_is_trained_one_by_one(data):
  model = _keras(
    tf.keras.layers.Dropout(0.5, input_shape=[populations.NUM_FEATURES]),
    tf.keras.layers.Dense(populations.NUM_CLASSES),
  )
  assert 'random numbers: ' in _why_one_by_one(data, model)


@pytest.mark.slow
def test_model_that_cannot_be_vectorised_is_trained_one_by_one(tmp_path):
  examples = (np.ones([4, 6, 6, 1], np.float32), np.arange(4))
  clients = learning.Clients.of(dict.fromkeys(range(12), examples))
  data = packed.lay_out(clients, str(tmp_path / 'data'))
  layers = tf.keras.layers
  model = tff.learning.models.functional_model_from_keras(
    lambda: tf.keras.Sequential(
      [
        layers.Conv2D(2, 3, input_shape=[6, 6, 1]),
        layers.Flatten(),
        layers.Dense(4),
      ]
    ),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    (tf.TensorSpec([None, 6, 6, 1]), tf.TensorSpec([None], tf.int64)),
  )
  simulation = _packed(data, None, model)
  assert 'TensorFlow cannot vectorise the model' in simulation.one_by_one
  _, metrics = simulation.next(simulation.initialize(), *_round(0))
  assert metrics['aggregator']['nonfinite_count'] == 0


@pytest.mark.parametrize(
  ('clients', 'num_keys', 'error', 'match'),
  [
    ([0] * 10, 10, ValueError, 'client 0 twice'),
    ([12], 1, ValueError, 'client 12'),
    ([0.0], 1, TypeError, 'client numbers'),
    ([0, 1, 2], 2, ValueError, 'keys must be as many as clients, 3; got'),
  ],
)
def test_next_refuses_wrong_clients_and_keys(banded, clients, num_keys, error, match):
  keys = np.zeros(num_keys, np.uint64)
  with pytest.raises(error, match=match):
    banded.next(banded.initialize(), np.array(clients), keys)


def test_model_for_other_examples_is_refused(data):
  model = populations.model()
  model._input_spec = collections.OrderedDict(
    x=tf.TensorSpec([None, 5], tf.float32), y=tf.TensorSpec([None], tf.int32)
  )
  with pytest.raises(ValueError, match='the model takes examples of'):
    _packed(data, None, model)


def test_aggregator_that_draws_a_key_in_each_client_is_refused(data):
  aggregator = aggregators.distributed_skellam(
    clip_norm=1.0, noise_multiplier=1.0, clients_per_round=4, bits=18
  )
  with pytest.raises(ValueError, match='draws a key in each client'):
    _packed(data, aggregator)


def test_slow_round_raises_round_timeout_error(not_private, monkeypatch):
  monkeypatch.setattr(not_private, '_timeout_seconds', 1e-6)
  with pytest.raises(failures.RoundTimeoutError, match='timeout_seconds=1e-06'):
    not_private.next(not_private.initialize(), *_round(0))


def test_round_does_not_wait_for_an_interrupted_round(not_private, monkeypatch):
  stuck, state, traced_round = (
    threading.Event(),
    not_private.initialize(),
    not_private._traced_round,
  )
  monkeypatch.setattr(not_private, '_traced_round', lambda *unused: stuck.wait())

  def interrupted(*unused):
    raise KeyboardInterrupt

  try:
    with monkeypatch.context() as patch:
      patch.setattr(concurrent.futures, 'wait', interrupted)
      with pytest.raises(KeyboardInterrupt):
        not_private.next(state, *_round(0))
    monkeypatch.setattr(not_private, '_traced_round', traced_round)
    not_private.next(state, *_round(0))
  finally:
    stuck.set()
