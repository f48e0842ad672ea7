"""Tests of `learning.Clients`, which reads clients' data from many kinds of sources."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import learning
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import packed

_SPEC = collections.OrderedDict(
  x=tf.TensorSpec([None, 2], tf.float32), y=tf.TensorSpec([None], tf.int32)
)


def _arrays(size, start=0):
  inputs = np.arange(start, start + 2 * size, dtype=np.float32).reshape(size, 2)
  return collections.OrderedDict(x=inputs, y=np.arange(size, dtype=np.int32))


_DATA = {'b': _arrays(3), 'c': _arrays(1500, 50), 'a': _arrays(1, 7)}


class _WithExamples:
  def __init__(self, by_id):
    self.ids, self.examples = tuple(by_id), by_id.__getitem__


class _WithItems:
  def __init__(self, by_id):
    self.ids, self._by_id = tuple(by_id), by_id

  def __getitem__(self, id_):
    return self._by_id[id_]


def _each(make, by_id):
  return {id_: make(each) for id_, each in by_id.items()}


_SOURCES = {
  'mapping': lambda by_id: by_id,
  'dicts': lambda by_id: _each(dict, by_id),
  'datasets': lambda by_id: _each(tf.data.Dataset.from_tensor_slices, by_id),
  'ClientData': tff.simulation.datasets.TestClientData,
  'tensors': lambda by_id: _each(
    lambda each: {name: tf.constant(array) for name, array in each.items()}, by_id
  ),
  'examples': _WithExamples,
  'items': _WithItems,
  'Clients': learning.Clients.of,
}


@pytest.mark.parametrize('source', _SOURCES)
def test_all_sources_give_the_same_examples(source):
  clients = learning.Clients.of(_SOURCES[source](_DATA))
  assert clients.ids == ('a', 'b', 'c') and len(clients) == 3
  for number, id_ in enumerate(clients.ids):
    examples = clients.examples(number)
    assert list(examples) == ['x', 'y']
    for name, array in examples.items():
      np.testing.assert_array_equal(array, _DATA[id_][name])
      assert array.dtype == _DATA[id_][name].dtype
  assert clients.element_spec == collections.OrderedDict(
    x=tf.TensorSpec([2], tf.float32), y=tf.TensorSpec([], tf.int32)
  )


def test_tuple_examples_take_names_of_input_spec_if_it_has_names():
  data = {1: (_DATA['b']['x'], _DATA['b']['y'])}
  assert isinstance(learning.Clients.of(data).examples(0), tuple)
  named = learning.Clients.of(data, _SPEC).examples(0)
  np.testing.assert_array_equal(named['y'], _DATA['b']['y'])
  pair = (_SPEC['x'], _SPEC['y'])
  assert isinstance(learning.Clients.of(data, pair).examples(0), tuple)
  # A mapping is put into the order of the spec by its names.
  other_order = collections.OrderedDict(reversed(_DATA['b'].items()))
  examples = learning.Clients.of({1: other_order}, _SPEC).examples(0)
  assert list(examples) == ['x', 'y']
  assert examples['x'].shape == (3, 2)


def test_integer_ids_are_sorted_and_ranges_are_not_expanded():
  data = {number: np.ones([1, 1]) for number in (10, 9, 2)}
  assert learning.Clients.of(data).ids == (2, 9, 10)

  class Many:
    ids = range(10**9)

    def examples(self, id_):
      return np.full([1, 1], id_, np.int64)

  clients = learning.Clients.of(Many())
  assert len(clients) == 10**9
  assert clients.examples(10**9 - 1).tolist() == [[10**9 - 1]]


@pytest.mark.parametrize(
  'data, error, message',
  [
    ({}, ValueError, 'there are no clients'),
    ({'a': 1, 2: 1}, TypeError, "all texts or all whole numbers.*'a' and 2"),
    ([1, 2], TypeError, 'clients must be a mapping of ids to examples.*got list'),
  ],
)
def test_invalid_clients_are_refused(data, error, message):
  with pytest.raises(error, match=message):
    learning.Clients.of(data)


def test_duplicate_ids_and_numbers_out_of_range_are_refused():
  with pytest.raises(ValueError, match="two clients have the id 'a'"):
    learning.Clients(['a', 'b', 'a'], _DATA.__getitem__)
  for number, error, message in (
    (3, IndexError, 'out of range'),
    (-1, ValueError, 'number must be at least 0, got -1'),
  ):
    with pytest.raises(error, match=message):
      learning.Clients.of(_DATA).examples(number)


@pytest.mark.parametrize(
  'bad, error, message',
  [
    (
      tf.data.Dataset.from_tensor_slices(_arrays(3)).take(0),
      ValueError,
      "'b' has no examples",
    ),
    (
      {**_arrays(3), 'y': np.arange(2, dtype=np.int32)},
      ValueError,
      "'b' has arrays of different length: 3 in x, 2 in y",
    ),
    ({**_arrays(3), 'y': ['u', 'v', 'w']}, ValueError, "y of client 'b' .* numbers"),
    ({**_arrays(3), 'y': [[1], [2, 3], [4]]}, ValueError, "y of client 'b' must be an"),
    ({**_arrays(3), 'y': 3}, ValueError, "y of client 'b' .*of shape .."),
    (
      {**_arrays(3), 'x': np.ones([3, 5], np.float32)},
      ValueError,
      r"client 'b' has .*x': 'float32\[5\]'.* 'a' has .*x': 'float32\[2\]",
    ),
    (
      {'x': _arrays(3)['x']},
      ValueError,
      "'b' has {'x': .*} for each example, and client 'a' has {'x': .*'y': .*}",
    ),
    (
      tf.data.Dataset.from_generator(
        lambda: iter([[1], [1, 2]]), output_signature=tf.TensorSpec([None], tf.int32)
      ),
      ValueError,
      "examples of client 'b' differ in shape",
    ),
  ],
)
def test_inconsistent_examples_are_refused_by_client_id(bad, error, message):
  clients = learning.Clients.of({'a': _arrays(2), 'b': bad})
  clients.examples(0)
  with pytest.raises(error, match=message):
    clients.examples(1)


def test_examples_that_do_not_fit_input_spec_are_refused():
  clients = learning.Clients.of({'a': (np.ones([3, 2]), np.ones(3, np.int32))}, _SPEC)
  with pytest.raises(ValueError, match='the model takes .*float32'):
    clients.examples(0)
  with pytest.raises(TypeError, match='input_spec must be a structure'):
    learning.Clients.of(_DATA, collections.OrderedDict(x=tf.TensorSpec([])))


@pytest.mark.parametrize('ids_drawn_alike', [('a', 'a'), (b'1', "b'1'")])
def test_clients_with_equal_draw_ids_are_refused(ids_drawn_alike):
  class Places:
    ids = (0, 1, 2)

    def examples(self, number):
      return np.full([2, 1], number, np.float32)

    def draw_id(self, number):
      return (ids_drawn_alike[0], 'b', ids_drawn_alike[1])[number]

  with pytest.raises(ValueError, match='draw_id has .* for two clients'):
    _ = learning.Clients.of(Places()).draw_ids
  schedule = sampling.SampledSchedule(sampling.PoissonSampling(4, 0.5), 2, 1)
  with pytest.raises(ValueError, match='ids has .* for two clients'):
    schedule.for_clients(ids_drawn_alike)


def _with_nan(value):
  x, y = _arrays(3).values()
  x = x.copy()
  x[2, 1] = value
  return collections.OrderedDict(x=x, y=y)


@pytest.mark.parametrize(
  ('source', 'value'),
  [('datasets', np.nan), ('examples', np.nan), ('mapping', -np.inf)],
)
def test_nonfinite_values_are_refused_by_client_index_and_row(source, value, tmp_path):
  data = _SOURCES[source]({'a': _arrays(2), 'b': _with_nan(value), 'c': _arrays(1)})
  clients = learning.Clients.of(data)
  message = rf"client 'b': x\[2, 1\] is {value}"
  with pytest.raises(ValueError, match=message):
    packed.lay_out(clients, str(tmp_path / 'data'))
  with pytest.raises(ValueError, match=message):
    packed.data.checksum(clients)


def test_infinite_datasets_are_refused():
  endless = tf.data.Dataset.from_tensor_slices(_arrays(3)).repeat()
  for data in ({'a': endless}, {'a': endless.shuffle(2, seed=1)}):
    with pytest.raises(ValueError, match="client 'a' goes on .*take.*epochs"):
      learning.Clients.of(data).examples(0)


def test_size_of_datasets_is_limited(monkeypatch):
  counting = tf.data.Dataset.from_generator(
    itertools.count, output_signature=tf.TensorSpec([], tf.int64)
  )
  monkeypatch.setattr(clients_lib, 'MAX_EXAMPLES', 2000)
  with pytest.raises(ValueError, match='on after 2048 examples of 16384 bytes'):
    learning.Clients.of({'a': counting}).examples(0)
  long = tf.data.Dataset.range(5000)  # Its number of examples is known.
  assert len(learning.Clients.of({'a': long}).examples(0)) == 5000
  monkeypatch.setattr(clients_lib, 'MAX_BYTES', 10_000)
  with pytest.raises(ValueError, match="client 'a' goes on after 2048 examples of 16"):
    learning.Clients.of({'a': long}).examples(0)


_BASE = tf.data.Dataset.from_tensor_slices(_arrays(5)['x'])
_RANDOM_DATASETS = {
  'shuffle': _BASE.shuffle(9),
  'with a seed, in another order each time': _BASE.shuffle(9, seed=1),
  'within': _BASE.batch(5).flat_map(
    lambda each: tf.data.Dataset.from_tensor_slices(each).shuffle(9)
  ),
  'map': _BASE.map(lambda x: x + tf.random.uniform([2])),
}


@pytest.mark.parametrize('name', _RANDOM_DATASETS)
def test_randomly_drawn_examples_are_refused(name, tmp_path):
  clients = learning.Clients.of({'a': _BASE.take(1), 'b': _RANDOM_DATASETS[name]})
  message = "examples of client 'b' differ .*Leave out shuffle"
  with pytest.raises(ValueError, match=message):
    packed.lay_out(clients, str(tmp_path / 'data'))
  with pytest.raises(ValueError, match=message):
    packed.data.checksum(clients)
  assert not list(tmp_path.iterdir())


def test_client_data_and_objects_that_draw_examples_are_refused():
  data = tff.simulation.datasets.TestClientData({'a': _arrays(9), 'b': _arrays(9)})
  seeded, unseeded = (
    learning.Clients.of(data.preprocess(lambda each, seed=seed: each.shuffle(9, seed)))
    for seed in (1, None)
  )
  clients_lib.check_repeatable(seeded)
  with pytest.raises(ValueError, match="client 'a' differ .*shuffle"):
    clients_lib.check_repeatable(unseeded)
  rng = np.random.default_rng(1)

  class RandomClients:
    ids = range(50)

    def __getitem__(self, id_):
      return rng.normal(size=[1 + id_ % 2, 2])

  limits = strategies.Participation(num_rounds=2, min_separation=1)
  schedule = sampling.RandomEligible(limits, 50, clients_per_round=3, seed=1)
  with pytest.raises(ValueError, match='client 0 differ when .* read again'):
    learning.ClientSource(RandomClients(), schedule, batch_size=2)


@pytest.mark.parametrize(
  'dataset',
  [
    _BASE,
    _BASE.shuffle(9, seed=1, reshuffle_each_iteration=False),
    _BASE.map(lambda x: x + tf.random.stateless_uniform([2], tf.cast(x, tf.int32))),
  ],
)
def test_repeatable_datasets_are_accepted(dataset):
  clients_lib.check_repeatable(learning.Clients.of({'a': dataset}))


@pytest.mark.parametrize(
  'examples, message',
  [
    ((np.ones([2, 1]), np.array([0.0, np.nan])), r'y\[1\] is nan'),
    (
      ((np.array([np.inf, 1.0]), np.ones(2)), np.zeros(2)),
      r'x\.0\[0\] is inf',
    ),
    ({'image': np.full([1, 2, 2], np.nan)}, r'image\[0, 0, 0\]'),
    (
      tf.constant([1.0, np.inf], tf.bfloat16).numpy(),
      r'the array\[1\] is inf',
    ),
  ],
)
def test_nonfinite_value_in_nested_structure_is_named(examples, message):
  with pytest.raises(ValueError, match=f"client 'a': {message}"):
    learning.Clients.of({'a': examples}).examples(0)


def test_clients_are_read_lazily():
  read = []

  class Lazy:
    ids = tuple(range(100))

    def examples(self, id_):
      read.append(id_)
      return np.ones([1, 1])

  clients = learning.Clients.of(Lazy(), tf.TensorSpec([None, 1], tf.float64))
  assert not read
  clients.examples(42)
  assert read == [42]


def test_datasets_of_batches_are_recognised():
  dataset = tf.data.Dataset.from_tensor_slices((np.zeros([6, 2]), np.zeros(6)))
  batches = dataset.batch(2)
  same = lambda x, y: (x, y)  # noqa: E731
  for kept, expected in (
    (dataset, False),
    (dataset.shuffle(6, seed=1).repeat(2), False),
    (batches, True),
    (batches.map(same).prefetch(1).take(2), True),
    (dataset.padded_batch(2).cache(), True),
    (batches.unbatch().map(same), False),
    ((np.zeros([6, 2]), np.zeros(6)), False),
  ):
    assert clients_lib.Clients.of({'a': kept}).are_batched == expected
  wrapped = tff.simulation.datasets.TestClientData({'a': {'x': np.zeros([4, 2])}})
  assert not clients_lib.Clients.of(wrapped).are_batched
  preprocessed = wrapped.preprocess(lambda each: each.batch(2))
  assert clients_lib.Clients.of(preprocessed).are_batched
