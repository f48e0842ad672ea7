"""Tests of `learning.ClientSource` and its iterators, alone and in TFF's programs."""

import asyncio
import collections
import copy
import gc

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import linear
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import sources
from tff_dp_aggregators.sampling import draws

_NUM_ROUNDS = 6
_LIMITS = strategies.Participation(_NUM_ROUNDS, min_separation=2)


def _examples(number):
  size = number % 4 + 1
  inputs = np.full([size, 2], number, np.float32)
  labels = np.arange(size, dtype=np.float32)[:, None]
  return collections.OrderedDict(x=inputs, y=labels)


_DATA = {f'{number:02}': _examples(number) for number in range(12)}


def _source(schedule=None, data=None, **kwargs):
  if schedule is None:
    schedule = sampling.RandomEligible(_LIMITS, 12, 3, seed=1)
  arguments = {'batch_size': 2, 'local_epochs': 2, 'seed': 5, **kwargs}
  return learning.ClientSource(data or _DATA, schedule, **arguments)


def _content(round_data):
  return [
    [tf.nest.map_structure(np.ndarray.tolist, batch) for batch in each]
    for each in (dataset.as_numpy_iterator() for dataset in round_data)
  ]


def test_round_data_are_cohort_examples_in_local_order():
  source = _source()
  for this_round in range(_NUM_ROUNDS):
    cohort = source.schedule.cohort(this_round)
    client_keys = draws.keys_of_ids(sorted(_DATA), 5)
    keys = local_order.keys(5, this_round, client_keys[cohort])
    for client, key, dataset in zip(cohort, keys, source.round_data(this_round)):
      batches = list(dataset.as_numpy_iterator())
      labels = np.concatenate([batch['y'][:, 0] for batch in batches])
      size = client % 4 + 1
      orders = [local_order.permutation(key, size, epoch) for epoch in range(2)]
      np.testing.assert_array_equal(labels, np.concatenate(orders))
      assert [len(batch['y']) for batch in batches] == [2] * size
      assert all(np.all(batch['x'] == client) for batch in batches)


def test_iterator_selects_each_round_until_schedule_ends():
  source = _source()
  iterator = source.iterator()
  for this_round in range(_NUM_ROUNDS):
    assert iterator.round_num == this_round
    k = None if this_round % 2 else 3
    assert _content(iterator.select(k)) == _content(source.round_data(this_round))
  with pytest.raises(ValueError, match='all 6 rounds of the schedule are over'):
    iterator.select()


def test_select_refuses_wrong_client_count_without_skipping_round():
  iterator = _source().iterator()
  with pytest.raises(ValueError, match='k must be None or 3.*round 0.*Got 4'):
    iterator.select(4)
  assert iterator.round_num == 0


def test_copied_and_saved_iterators_select_the_same_data():
  source = _source()
  iterator = source.iterator()
  iterator.select()
  copies = [
    copy.copy(iterator),
    copy.deepcopy(iterator),
    type(iterator).from_bytes(iterator.to_bytes()),
  ]
  expected = _content(iterator.select())
  for each in copies:
    assert each.round_num == 1 and each != iterator
    assert each.schedule is source.schedule
    assert _content(each.select()) == expected
    assert each == iterator


def test_saved_iterator_loads_only_with_an_identical_source():
  saved = _source().iterator().to_bytes()
  gc.collect()
  other_sources = [
    _source(**changes)
    for changes in (
      {'batch_size': 4},
      {'seed': 6},
      {'schedule': sampling.RandomEligible(_LIMITS, 12, 3, seed=2)},
      {'data': {f'{number}': _DATA['03'] for number in range(12)}},
    )
  ]
  with pytest.raises(ValueError, match='make it first'):
    sources.ClientIterator.from_bytes(saved)
  same_source = _source()
  assert sources.ClientIterator.from_bytes(saved).schedule is same_source.schedule
  del other_sources
  assert b'\x00' not in saved  # NumPy would cut the bytes there.


def test_source_refuses_wrong_client_count_and_batch_size():
  with pytest.raises(ValueError, match='num_clients=11, but there are 12 clients'):
    _source(sampling.RandomEligible(_LIMITS, 11, 3, seed=1))
  with pytest.raises(ValueError, match='batch_size must be at least 1'):
    _source(batch_size=0)


def test_removing_a_client_does_not_change_data_of_the_others():
  scheme = sampling.PoissonSampling(_NUM_ROUNDS, 0.5, num_groups=2)
  rounds = []
  for removed in ('', '00', '07'):
    data = {id_: examples for id_, examples in _DATA.items() if id_ != removed}
    source = _source(sampling.SampledSchedule(scheme, len(data), 1), data)
    ids = source.clients.ids
    for this_round in range(_NUM_ROUNDS):
      names = [ids[client] for client in source.schedule.cohort(this_round)]
      data_of = dict(zip(names, _content(source.round_data(this_round))))
      rounds.append({name: data_of[name] for name in names if name not in ('00', '07')})
  assert any(rounds)
  for start in (_NUM_ROUNDS, 2 * _NUM_ROUNDS):
    assert rounds[start : start + _NUM_ROUNDS] == rounds[:_NUM_ROUNDS]


def test_round_data_omit_clients_that_drop_out():
  limits = strategies.Participation(1)
  schedule = sampling.RandomEligible(limits, 12, 12, 1, sampling.Dropouts(0.5, 1))
  assert len(_source(schedule).round_data(0)) == len(schedule.cohort(0)) < 12


# Sources in learning processes.


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with learning.runtime.local_runtime():
    yield


@pytest.fixture(scope='module')
def process():
  return learning.build_dp_fed_avg(
    linear.functional_model(),
    aggregators.gaussian(
      strategies.Participation(_NUM_ROUNDS),
      clip_norm=1.0,
      noise_multiplier=0.5,
      clients_per_round=3,
      seed=noise.Seed(1),
    ),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.001),
  )


def test_federated_type_fits_learning_process(process):
  parameter = process.next.type_signature.parameter[1]
  source = _source()
  assert parameter.is_assignable_from(source.federated_type)
  assert source.iterator().federated_type == source.federated_type


def test_round_with_empty_cohort_releases_noise(process):
  scheme = sampling.PoissonSampling(40, 0.05)
  source = _source(sampling.SampledSchedule(scheme, 12, seed=1))
  sizes = [len(source.schedule.cohort(t)) for t in range(40)]
  empty = sizes.index(0)
  output = process.next(process.initialize(), source.round_data(empty))
  # The model consists of noise alone.
  assert output.metrics['aggregator']['dp_query_metrics']['rounds'] == 1
  assert np.all(process.get_model_weights(output.state).trainable[0])


class _DiscardingReleaseManager(tff.program.ReleaseManager):
  """Discards the models that are released to it."""

  async def release(self, value, key):
    del value, key


def _train(process, directory, total_rounds, discard=None):
  """Runs TFF's own program; returns the model after each of its rounds."""
  models = []

  def should_discard_round(output):
    weights = output.state.global_model_weights.trainable[0]
    models.append(np.asarray(weights).tolist())
    return discard is not None and discard(len(models))

  async def run():
    await tff.learning.programs.train_model(
      train_process=process,
      train_data_source=_source(),
      train_per_round_clients=3,
      train_total_rounds=total_rounds,
      should_discard_round=should_discard_round,
      program_state_manager=tff.program.FileProgramStateManager(str(directory)),
      model_output_manager=_DiscardingReleaseManager(),
      evaluation_manager=None,
      evaluation_periodicity=1,
    )

  asyncio.run(run())
  return models


@pytest.fixture(scope='module')
def expected_models(process):
  """Returns the model after each round of a loop that calls the process."""
  source, state, models = _source(), process.initialize(), []
  for this_round in range(3):
    state = process.next(state, source.round_data(this_round)).state
    weights = process.get_model_weights(state).trainable[0]
    models.append(np.asarray(weights).tolist())
  assert len({str(model) for model in models}) == 3
  return models


@pytest.mark.slow
def test_train_model_repeats_discarded_round_on_the_same_data(
  process, expected_models, tmp_path
):
  models = _train(process, tmp_path, 3, discard=lambda runs: runs % 2 == 1)
  assert models[::2] == models[1::2] == expected_models


def test_train_model_resumes_where_it_stopped(process, expected_models, tmp_path):
  first_models = _train(process, tmp_path, 1)
  assert first_models + _train(process, tmp_path, 3) == expected_models
