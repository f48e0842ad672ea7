"""A source gives each round the schedule's clients, and the same data each time."""

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


def test_a_round_is_its_cohort_in_local_order():
  source = _source()
  for this_round in range(_NUM_ROUNDS):
    cohort = source.schedule.cohort(this_round)
    own = draws.keys_of_ids(sorted(_DATA), 5)
    keys = local_order.keys(5, this_round, own[cohort])
    for client, key, dataset in zip(cohort, keys, source.round_data(this_round)):
      batches = list(dataset.as_numpy_iterator())
      labels = np.concatenate([batch['y'][:, 0] for batch in batches])
      size = client % 4 + 1
      orders = [local_order.permutation(key, size, epoch) for epoch in range(2)]
      np.testing.assert_array_equal(labels, np.concatenate(orders))
      assert [len(batch['y']) for batch in batches] == [2] * size
      assert all(np.all(batch['x'] == client) for batch in batches)


def test_an_iterator_goes_through_the_rounds_and_ends():
  source = _source()
  iterator = source.iterator()
  for this_round in range(_NUM_ROUNDS):
    assert iterator.round_num == this_round
    k = None if this_round % 2 else 3
    assert _content(iterator.select(k)) == _content(source.round_data(this_round))
  with pytest.raises(ValueError, match='all 6 rounds of the schedule are over'):
    iterator.select()


def test_another_number_of_clients_is_refused_and_no_round_is_lost():
  iterator = _source().iterator()
  with pytest.raises(ValueError, match='k must be None or 3.*round 0.*Got 4'):
    iterator.select(4)
  assert iterator.round_num == 0


def test_copies_and_saved_iterators_go_on_with_the_same_data():
  source = _source()
  iterator = source.iterator()
  iterator.select()
  others = [
    copy.copy(iterator),
    copy.deepcopy(iterator),
    type(iterator).from_bytes(iterator.to_bytes()),
  ]
  expected = _content(iterator.select())
  for other in others:
    assert other.round_num == 1 and other != iterator
    assert other.schedule is source.schedule
    assert _content(other.select()) == expected
    assert other == iterator


def test_a_saved_iterator_finds_a_source_that_was_made_again_and_no_other():
  saved = _source().iterator().to_bytes()
  gc.collect()
  others = [
    _source(**other)
    for other in (
      {'batch_size': 4},
      {'seed': 6},
      {'schedule': sampling.RandomEligible(_LIMITS, 12, 3, seed=2)},
      {'data': {f'{number}': _DATA['03'] for number in range(12)}},
    )
  ]
  with pytest.raises(ValueError, match='make it first'):
    sources.ClientIterator.from_bytes(saved)
  again = _source()
  assert sources.ClientIterator.from_bytes(saved).schedule is again.schedule
  del others
  assert b'\x00' not in saved  # NumPy would cut it there.


def test_other_bytes_are_refused():
  for buffer in (b'{}', b'\xff'):
    with pytest.raises(ValueError, match='this is not a saved ClientIterator'):
      sources.ClientIterator.from_bytes(buffer)


def test_a_schedule_for_other_clients_is_refused():
  with pytest.raises(ValueError, match='num_clients=11, but there are 12 clients'):
    _source(sampling.RandomEligible(_LIMITS, 11, 3, seed=1))
  with pytest.raises(ValueError, match='batch_size must be at least 1'):
    _source(batch_size=0)


def test_without_a_client_all_others_train_in_the_same_rounds_in_the_same_order():
  scheme = sampling.PoissonSampling(_NUM_ROUNDS, 0.5, num_groups=2)
  rounds = []
  for removed in ('', '00', '07'):
    data = {id_: examples for id_, examples in _DATA.items() if id_ != removed}
    source = _source(sampling.SampledSchedule(scheme, len(data), 1), data)
    ids = source.clients.ids
    for this_round in range(_NUM_ROUNDS):
      names = [ids[client] for client in source.schedule.cohort(this_round)]
      of_all = dict(zip(names, _content(source.round_data(this_round))))
      rounds.append({name: of_all[name] for name in names if name not in ('00', '07')})
  assert any(rounds)
  for start in (_NUM_ROUNDS, 2 * _NUM_ROUNDS):
    assert rounds[start : start + _NUM_ROUNDS] == rounds[:_NUM_ROUNDS]


def test_drop_outs_send_no_data():
  limits = strategies.Participation(1)
  schedule = sampling.RandomEligible(limits, 12, 12, 1, sampling.Dropouts(0.5, 1))
  assert len(_source(schedule).round_data(0)) == len(schedule.cohort(0)) < 12


# In learning processes.


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


def test_the_type_is_that_of_a_learning_process(process):
  parameter = process.next.type_signature.parameter[1]
  source = _source()
  assert parameter.is_assignable_from(source.federated_type)
  assert source.iterator().federated_type == source.federated_type


def test_an_empty_cohort_is_a_round(process):
  scheme = sampling.PoissonSampling(40, 0.05)
  source = _source(sampling.SampledSchedule(scheme, 12, seed=1))
  sizes = [len(source.schedule.cohort(t)) for t in range(40)]
  empty = sizes.index(0)
  output = process.next(process.initialize(), source.round_data(empty))
  # Of noise alone.
  assert output.metrics['aggregator']['dp_query_metrics']['rounds'] == 1
  assert np.all(process.get_model_weights(output.state).trainable[0])


class _Dropped(tff.program.ReleaseManager):
  """Where released models go that nobody wants."""

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
      model_output_manager=_Dropped(),
      evaluation_manager=None,
      evaluation_periodicity=1,
    )

  asyncio.run(run())
  return models


@pytest.fixture(scope='module')
def plain(process):
  """The models after the rounds of a loop that calls the process."""
  source, state, models = _source(), process.initialize(), []
  for this_round in range(3):
    state = process.next(state, source.round_data(this_round)).state
    weights = process.get_model_weights(state).trainable[0]
    models.append(np.asarray(weights).tolist())
  assert len({str(model) for model in models}) == 3
  return models


@pytest.mark.slow
def test_train_model_runs_a_discarded_round_again_on_the_same_data(
  process, plain, tmp_path
):
  twice = _train(process, tmp_path, 3, discard=lambda runs: runs % 2 == 1)
  assert twice[::2] == twice[1::2] == plain


def test_train_model_goes_on_where_it_was_stopped(process, plain, tmp_path):
  before = _train(process, tmp_path, 1)
  assert before + _train(process, tmp_path, 3) == plain
