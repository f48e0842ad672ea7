"""`--embedding_columns`: columns with an embedding for each value."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.data import population
from experiments.models import kind
from experiments.models import networks
from tests.experiments import simulations
from tests.experiments.data import own_data

NUM_CITIES = 150
_RNG = np.random.default_rng(3)
_LABELS = _RNG.integers(0, 2, NUM_CITIES)
ROWS = [
  {
    'who': f'c{i % 60}',
    'city': f'city {c:03}',
    'colour': ['red', 'blue'][i % 2],
    'zip': 10_000 + c % 7,
    'age': int(age),
    'bought': 'yes' if _LABELS[c] else 'no',
  }
  for i, (c, age) in enumerate(
    zip(_RNG.integers(0, NUM_CITIES, 3000), _RNG.integers(20, 70, 3000))
  )
]
COLUMNS = {'client_column': 'who', 'label_column': 'bought'}
EMBEDDED = {**COLUMNS, 'embedding_columns': ('city', 'zip'), 'scaling': 'none'}


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return own_data.write_csv(tmp_path_factory.mktemp('data') / 'data.csv', ROWS)


def test_inputs_end_with_codes_in_sorted_order_of_values(data):
  loaded = own_data.load(data, **EMBEDDED)
  assert loaded.shape.inputs == (1 + 2 + 2,)
  assert loaded.shape.embedded == (NUM_CITIES, 7)
  clients, test_rows = own_data.everything(loaded)
  expected = sorted(
    (
      row['age'],
      float(row['colour'] == 'blue'),
      float(row['colour'] == 'red'),
      int(row['city'][-3:]),
      row['zip'] - 10_000,
      int(row['bought'] == 'yes'),
    )
    for row in ROWS
  )
  assert sorted([*sum(clients.values(), []), *test_rows]) == expected
  assert loaded.facts['columns with an embedding for each value'] == {
    'city': NUM_CITIES,
    'zip': 7,
  }
  (sentence,) = (each for each in loaded.not_covered if 'with an embedding' in each)
  assert 'city, zip' in sentence


def test_values_of_held_out_clients_only_are_unknown(tmp_path):
  rows = [{**row, 'city': f'home of {row["who"]}'} for row in ROWS]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  loaded = own_data.load(path, **EMBEDDED)
  trained = {f'home of {own_data.name(loaded.clients, i)}' for i in loaded.clients.ids}
  assert len(trained) < 60 and loaded.shape.embedded == (len(trained), 7)
  for code, name in enumerate(sorted(trained)):
    (number,) = (
      i
      for i in loaded.clients.ids
      if f'home of {own_data.name(loaded.clients, i)}' == name
    )
    assert set(loaded.clients.examples(number)['x'][:, -2]) == {code}
  assert set(loaded.test_examples[0][:, -2]) == {len(trained)}


def test_values_of_test_data_not_in_training_are_unknown(data, tmp_path):
  rows = [
    {**ROWS[0], 'who': 'o1', 'city': 'city 007', 'zip': '10003.0'},
    {**ROWS[1], 'who': 'o2', 'city': 'city 007b', 'zip': 'nowhere'},
    {**ROWS[2], 'who': 'o3', 'city': '7', 'zip': '99999'},
  ]
  path = own_data.write_csv(tmp_path / 'tested.csv', rows)
  loaded = own_data.load(data, test_data=str(path), **EMBEDDED)
  codes = loaded.test_examples[0][:, -2:]
  assert codes.tolist() == [[7, 3], [NUM_CITIES, 7], [NUM_CITIES, 7]]


def test_features_look_up_embeddings_and_unknown_values_have_zeros():
  x = tf.constant([[0.5, 2, 1], [1.5, 0, 0], [2.5, 3, 2]])
  tables = [
    np.arange(1, 7, dtype=np.float32).reshape(3, 2),
    np.array([[7, 8], [9, 10]], np.float32),
  ]
  expected = [[0.5, 5, 6, 9, 10], [1.5, 1, 2, 7, 8], [2.5, 0, 0, 0, 0]]
  assert networks.features(x, *tables).numpy().tolist() == expected
  assert networks.features(x).numpy().tolist() == x.numpy().tolist()


@pytest.mark.parametrize('name', ['logistic', 'linear', 'mlp'])
def test_models_have_an_embedding_table_for_each_column(name):
  label_kind = 'number' if name == 'linear' else 'class'
  shape = population.Shape(
    (5,), 'float32', (), label_kind, None if name == 'linear' else 3, embedded=(4, 9)
  )
  model = kind.KINDS[name].build(shape, embedding_size=3)
  first, second, kernel = model.initial_weights[0][:3]
  assert [np.shape(each) for each in (first, second)] == [(4, 3), (9, 3)]
  assert not first.any() and not second.any() and kernel.any()
  assert len(kernel) == 3 + 2 * 3
  # Outputs of linear models start at 0.
  assert name == 'mlp' or not kernel[:3].any()


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--embedding_columns=nothing'], "names 'nothing', which is not a feature"),
    (['--embedding_columns=city,city'], "column 'city' is named twice"),
    (
      ['--embedding_columns=city', '--one_hot_columns=city'],
      "column 'city' is named twice among",
    ),
    (
      ['--feature_columns=age', '--embedding_size=3'],
      'or only with --embedding_columns',
    ),
    ([], '--embedding_columns if these are many'),
  ],
)
def test_wrong_embedding_columns_are_refused(arguments, message, data):
  flags = [f'--{name}={value}' for name, value in COLUMNS.items()]
  assert message in simulations.refusal(f'--data={data}', *flags, *arguments)


@pytest.mark.slow
def test_simulate_learns_from_embedded_column(data, tmp_path):
  result = simulations.run(
    tmp_path,
    f'--data={data}',
    *(f'--{name}={value}' for name, value in COLUMNS.items()),
    '--feature_columns=city,age',
    '--embedding_columns=city',
    '--embedding_size=4',
    '--mechanism=none',
    '--num_rounds=40',
    '--clients_per_round=20',
    '--local_epochs=3',
  )
  assert f'embedding for each value: city ({NUM_CITIES})' in result.stdout
  assert 'with an embedding for each value' in (tmp_path / 'report.md').read_text()
  assert float(simulations.metrics(tmp_path)[-1]['test_accuracy']) > 0.9
