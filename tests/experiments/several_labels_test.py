"""Rows with several labels, numbers or tags of 0 or 1, from the flag to metrics."""

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from experiments import losses
from experiments import metrics
from experiments.data import population
from experiments.data import problems
from tests.experiments import simulations
from tests.experiments.data import own_data

TAGS = population.Shape((2,), 'float32', (3,), 'tags')
NUMBERS = population.Shape((2,), 'float32', (2,), 'number')
_RNG = np.random.default_rng(1)
ROWS = [
  {
    'who': f'c{i % 40}',
    'x': round(float(x), 3),
    'z': round(float(z), 3),
    'warm': int(x > 0),
    'large': int(z > 0.5),
    'sum': round(float(x + z), 3),
    'difference': round(float(x - z), 3),
  }
  for i, (x, z) in enumerate(_RNG.normal(size=(1200, 2)))
]
FEATURES = {'client_column': 'who', 'feature_columns': ('x', 'z')}


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return own_data.write_csv(tmp_path_factory.mktemp('data') / 'data.csv', ROWS)


def _labels(loaded):
  clients, test_rows = own_data.everything(loaded)
  return sorted(row[2:] for row in [*sum(clients.values(), []), *test_rows])


@pytest.mark.parametrize(
  ('columns', 'label_kind', 'kind'),
  [
    (('warm', 'large'), None, 'tags'),
    (('warm', 'large'), 'number', 'number'),
    (('sum', 'difference'), None, 'number'),
    (('difference', 'warm', 'sum'), 'number', 'number'),
  ],
)
def test_label_columns_are_loaded_in_order(columns, label_kind, kind, data):
  loaded = own_data.load(
    data, label_column=','.join(columns), label_kind=label_kind, **FEATURES
  )
  shape = loaded.shape
  assert (shape.labels, shape.label_kind) == ((len(columns),), kind)
  assert shape.names == columns and shape.num_classes is None
  labels = np.array(_labels(loaded))
  expected = sorted(tuple(row[name] for name in columns) for row in ROWS)
  if kind == 'number':
    labels = loaded.label_scaling.undone(labels)
  np.testing.assert_allclose(labels, expected, rtol=1e-5, atol=1e-6)
  dtype = np.int32 if kind == 'tags' else np.float32
  assert loaded.clients.examples(0)['y'].dtype == dtype
  word = 'tags' if kind == 'tags' else 'numbers'
  assert loaded.facts['labels'] == f'{len(columns)} {word}'
  shares_in_facts = loaded.facts.get('share with a tag for testing')
  if kind == 'tags':
    shares = loaded.test_examples[1].mean(axis=0)
    assert shares_in_facts == dict(zip(columns, np.round(shares, 4).tolist()))
  else:
    assert shares_in_facts is None


def test_list_values_are_several_labels(tmp_path, data):
  rows = [{**row, 'y': [row['warm'], row['large']]} for row in ROWS]
  path = own_data.write_json(tmp_path / 'data.jsonl', rows)
  listed = own_data.load(path, label_column='y', **FEATURES)
  assert listed.shape.names == ('y[0]', 'y[1]')
  columns = own_data.load(data, label_column='warm,large', **FEATURES)
  assert _labels(listed) == _labels(columns)
  path = own_data.write_json(
    tmp_path / 'broken.jsonl', [*rows[:5], {**rows[5], 'y': [1, 0, 1]}, *rows[6:]]
  )
  with pytest.raises(problems.DataError, match='line 6: y is'):
    own_data.load(path, label_column='y', **FEATURES)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['warm,sum'], 'only warm are 0 or 1. If all are numbers, give'),
    (
      ['sum,who'],
      "line 2: who is 'c0', which is not a number. Correct it, or give",
    ),
    (['warm,large', '--class_weights=balanced'], 'these are numbers or tags'),
    (['warm,large', '--loss=mean_squared_error'], 'give cross_entropy'),
    (['warm,large', '--partition=label_skew'], 'needs labels of which each is one'),
  ],
)
def test_conflicting_flags_are_refused(arguments, message, data):
  label_columns, *rest = arguments
  is_split = label_columns == 'sum,who' or '--partition=label_skew' in rest
  client = '--num_clients=5' if is_split else '--client_column=who'
  flags = (f'--data={data}', f'--label_column={label_columns}', client, *rest)
  assert message in simulations.refusal(*flags)


@pytest.mark.parametrize(
  ('label_column', 'change', 'message'),
  [
    ('warm,large', {'large': 2}, "large is '2'. Each of several labels that are tags"),
    ('warm,large', {}, None),
    # Labels that are numbers may happen to be only 0 and 1 in test data.
    ('sum,difference', {'sum': 1, 'difference': 0.5}, None),
  ],
)
def test_test_data_labels_are_checked_and_loaded(
  label_column, change, message, data, tmp_path
):
  test_rows = [{**row, 'who': f'o{i}', **change} for i, row in enumerate(ROWS[:30])]
  test = own_data.write_csv(tmp_path / 'tested.csv', test_rows)
  files = {'label_column': label_column, 'test_data': str(test), **FEATURES}
  if message is not None:
    with pytest.raises(problems.DataError, match=message):
      own_data.load(data, **files)
    return
  loaded = own_data.load(data, **files)
  names = label_column.split(',')
  expected = [[row[name] for name in names] for row in test_rows]
  labels = loaded.test_examples[1]
  if loaded.label_scaling is not None:
    labels = loaded.label_scaling.undone(labels)
  np.testing.assert_allclose(labels, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('is_list', [False, True])
def test_test_data_with_different_number_of_labels_are_refused(is_list, tmp_path):
  def write(name, label):
    rows = [{'who': row['who'], 'x': row['x'], 'y': label(row)} for row in ROWS]
    return own_data.write_json(tmp_path / name, rows)

  one = write('one.jsonl', lambda row: row['sum'])
  several = write('several.jsonl', lambda row: [row['sum'], row['x']])
  train, test = (one, several) if is_list else (several, one)
  with pytest.raises(problems.DataError, match='line 1: y is .* of another shape than'):
    own_data.load(train, client_column='who', label_column='y', test_data=str(test))


@pytest.mark.parametrize('ragged', ['x', 'y'])
def test_ragged_lists_are_refused_with_line_number(ragged, tmp_path):
  value = [[1], [0, 1]]
  rows = [{'who': f'c{i % 3}', 'x': [1, 2], 'y': [1, 0]} for i in range(9)]
  path = own_data.write_json(tmp_path / 'd.jsonl', [{**r, ragged: value} for r in rows])
  with pytest.raises(problems.DataError, match=f'd.jsonl, line 1: {ragged} is '):
    own_data.load(path, client_column='who', label_column='y', label_kind='class')


@pytest.mark.parametrize('weights', [None, [1.5, 1.5, 0.0]])
def test_loss_of_tags_is_mean_over_examples_and_tags(weights):
  logits = _RNG.normal(size=(3, 3)).astype(np.float32)
  labels = np.array([[0, 1, 1], [1, 0, 0], [1, 1, 1]], np.int32)
  exact = logits.astype(np.float64)
  each = np.where(labels == 1, np.log1p(np.exp(-exact)), np.log1p(np.exp(exact)))
  expected = each.mean() if weights is None else each[:2].mean()
  weights_array = None if weights is None else np.array(weights, np.float32)
  for outputs in (logits, logits[..., np.newaxis]):
    loss = losses.function(TAGS, None)(outputs, labels, weights_array)
    assert float(loss) == pytest.approx(expected, rel=1e-6)


def test_loss_of_several_numbers_is_mean_over_examples_and_numbers():
  outputs = np.array([[1, 2], [3, 4]], np.float32)
  labels = np.array([[0, 2], [3, 7]], np.float32)
  assert float(losses.function(NUMBERS, None)(outputs, labels)) == 10 / 4
  absolute = losses.function(NUMBERS, 'mean_absolute_error')
  assert float(absolute(outputs, labels)) == 1.0
  assert float(absolute(outputs, labels, np.array([2.0, 0.0]))) == 0.5
  for name, expected in (('mean_squared_error', 2.5), ('mean_absolute_error', 1.0)):
    measure = metrics.METRICS[name].make(NUMBERS)
    assert measure.sums(outputs, labels).mean == expected


def test_metrics_of_tags_are_means_over_tags():
  scores = _RNG.normal(size=(50, 3)).astype(np.float32)
  labels = _RNG.integers(0, 2, (50, 3)).astype(np.int32)
  accuracy = metrics.METRICS['accuracy'].make(TAGS)
  expected = np.mean((scores > 0) == (labels == 1))
  assert accuracy.sums(labels, scores).mean == pytest.approx(expected)
  auc = metrics.METRICS['auc'].make(TAGS)(labels, scores)
  expected = sklearn_metrics.roc_auc_score(labels, scores, average='macro')
  assert auc == pytest.approx(expected)
  with pytest.raises(ValueError, match='auc needs test examples'):
    metrics.METRICS['auc'].make(TAGS)(np.zeros_like(labels), scores)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('columns', 'metric', 'bounds', 'max_loss'),
  [
    ('warm,large', 'accuracy', (0.85, 1.0), 0.35),
    ('sum,difference', 'mean_absolute_error', (0.0, 0.3), 0.1),
  ],
)
def test_simulate_learns_several_labels(
  columns, metric, bounds, max_loss, data, tmp_path
):
  flags = (f'--data={data}', '--client_column=who', '--feature_columns=x,z')
  flags = (*flags, f'--label_column={columns}', '--mechanism=none', '--num_rounds=30')
  simulations.run(tmp_path, *flags, '--clients_per_round=12', '--batch_size=8')
  last = simulations.metrics(tmp_path)[-1]
  assert bounds[0] < float(last[f'test_{metric}']) <= bounds[1]
  assert float(last['test_loss']) < max_loss


def test_one_hot_labels_are_refused_unless_label_kind_is_given(tmp_path):
  rows = [{**row, 'cold': 1 - row['warm']} for row in ROWS]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  files = {'label_column': 'warm,cold', **FEATURES}
  with pytest.raises(problems.DataError, match='exactly one of warm, cold. For'):
    own_data.load(path, **files)
  for label_kind, kind in (('class', 'tags'), ('number', 'number')):
    loaded = own_data.load(path, label_kind=label_kind, **files)
    assert loaded.shape.label_kind == kind
  # In test data, every row may have exactly one tag by chance.
  test = own_data.write_csv(tmp_path / 'tested.csv', [{**rows[0], 'who': 'other'}])
  rows[1] = {**rows[1], 'cold': 1, 'warm': 1}
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  loaded = own_data.load(path, test_data=str(test), **files)
  assert loaded.shape.label_kind == 'tags'
