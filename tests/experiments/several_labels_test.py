"""Several labels of a row: numbers, or tags of 0 or 1; from the flag to metrics."""

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


def _labels(found):
  clients, tested = own_data.everything(found)
  return sorted(row[2:] for row in [*sum(clients.values(), []), *tested])


@pytest.mark.parametrize(
  ('columns', 'label_kind', 'kind'),
  [
    (('warm', 'large'), None, 'tags'),
    (('warm', 'large'), 'number', 'number'),
    (('sum', 'difference'), None, 'number'),
    (('difference', 'warm', 'sum'), 'number', 'number'),
  ],
)
def test_columns_are_labels_in_their_order(columns, label_kind, kind, data):
  found = own_data.load(
    data, label_column=','.join(columns), label_kind=label_kind, **FEATURES
  )
  shape = found.shape
  assert (shape.labels, shape.label_kind) == ((len(columns),), kind)
  assert shape.names == columns and shape.num_classes is None
  labels = np.array(_labels(found))
  expected = sorted(tuple(row[name] for name in columns) for row in ROWS)
  if kind == 'number':
    labels = found.label_scaling.undone(labels)
  np.testing.assert_allclose(labels, expected, rtol=1e-5, atol=1e-6)
  dtype = np.int32 if kind == 'tags' else np.float32
  assert found.clients.examples(0)['y'].dtype == dtype
  said = 'tags' if kind == 'tags' else 'numbers'
  assert found.facts['labels'] == f'{len(columns)} {said}'
  told = found.facts.get('share with a tag for testing')
  if kind == 'tags':
    shares = found.test_examples[1].mean(axis=0)
    assert told == dict(zip(columns, np.round(shares, 4).tolist()))
  else:
    assert told is None


def test_a_list_of_each_row_is_several_labels(tmp_path, data):
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


def test_classes_that_are_written_one_hot_are_taken_for_tags_only_if_asked(tmp_path):
  rows = [{**row, 'cold': 1 - row['warm']} for row in ROWS]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  files = {'label_column': 'warm,cold', **FEATURES}
  with pytest.raises(problems.DataError, match='exactly one of warm, cold. For'):
    own_data.load(path, **files)
  for label_kind, kind in (('class', 'tags'), ('number', 'number')):
    found = own_data.load(path, label_kind=label_kind, **files)
    assert found.shape.label_kind == kind
  # Test data may have one of each row by chance.
  tested = own_data.write_csv(tmp_path / 'tested.csv', [{**rows[0], 'who': 'other'}])
  rows[1] = {**rows[1], 'cold': 1, 'warm': 1}
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  found = own_data.load(path, test_data=str(tested), **files)
  assert found.shape.label_kind == 'tags'


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['warm,sum'], 'only warm are 0 or 1. If all are numbers, give'),
    (
      ['sum,who'],
      "line 2: who is 'c0', which is not a number. Several labels of a row",
    ),
    (['warm,large', '--class_weights=balanced'], 'these are numbers or tags'),
    (['warm,large', '--loss=mean_squared_error'], 'give cross_entropy'),
  ],
)
def test_what_does_not_go_together_is_refused(arguments, message, data):
  first, *rest = arguments
  whose = '--num_clients=5' if first == 'sum,who' else '--client_column=who'
  flags = (f'--data={data}', f'--label_column={first}', whose, *rest)
  assert message in simulations.refusal(*flags)


def test_partition_by_classes_needs_classes(data):
  with pytest.raises(problems.DataError, match='needs labels of which each is one'):
    own_data.load(
      data, num_clients=5, partition='label_skew', label_column='warm,large'
    )


@pytest.mark.parametrize(
  ('trained', 'change', 'message'),
  [
    ('warm,large', {'large': 2}, 'large is 2. Each of several labels that are tags'),
    ('warm,large', {}, None),
    # Test data may have 0 and 1 alone of what is a number.
    ('sum,difference', {'sum': 1, 'difference': 0.5}, None),
  ],
)
def test_test_data_have_the_same_labels(trained, change, message, data, tmp_path):
  others = [{**row, 'who': f'o{i}', **change} for i, row in enumerate(ROWS[:30])]
  tested = own_data.write_csv(tmp_path / 'tested.csv', others)
  files = {'label_column': trained, 'test_data': str(tested), **FEATURES}
  if message is not None:
    with pytest.raises(problems.DataError, match=message):
      own_data.load(data, **files)
    return
  found = own_data.load(data, **files)
  names = trained.split(',')
  expected = [[row[name] for name in names] for row in others]
  labels = found.test_examples[1]
  if found.label_scaling is not None:
    labels = found.label_scaling.undone(labels)
  np.testing.assert_allclose(labels, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('is_list', [False, True])
def test_test_data_with_another_number_of_labels_are_refused(is_list, tmp_path):
  def write(name, label):
    rows = [{'who': row['who'], 'x': row['x'], 'y': label(row)} for row in ROWS]
    return own_data.write_json(tmp_path / name, rows)

  one = write('one.jsonl', lambda row: row['sum'])
  several = write('several.jsonl', lambda row: [row['sum'], row['x']])
  trained, tested = (one, several) if is_list else (several, one)
  with pytest.raises(problems.DataError, match='labels are y.*, and before y'):
    own_data.load(trained, client_column='who', label_column='y', test_data=str(tested))


@pytest.mark.parametrize('ragged', ['x', 'y'])
def test_lists_of_several_lengths_are_refused_with_their_line(ragged, tmp_path):
  value = [[1], [0, 1]]
  rows = [{'who': f'c{i % 3}', 'x': [1, 2], 'y': [1, 0]} for i in range(9)]
  path = own_data.write_json(tmp_path / 'd.jsonl', [{**r, ragged: value} for r in rows])
  with pytest.raises(problems.DataError, match=f'd.jsonl, line 1: {ragged} is '):
    own_data.load(path, client_column='who', label_column='y', label_kind='class')


@pytest.mark.parametrize('weights', [None, [1.5, 1.5, 0.0]])
def test_the_loss_of_tags_is_the_mean_over_examples_and_tags(weights):
  logits = _RNG.normal(size=(3, 3)).astype(np.float32)
  labels = np.array([[0, 1, 1], [1, 0, 0], [1, 1, 1]], np.int32)
  exact = logits.astype(np.float64)
  each = np.where(labels == 1, np.log1p(np.exp(-exact)), np.log1p(np.exp(exact)))
  expected = each.mean() if weights is None else each[:2].mean()
  given = None if weights is None else np.array(weights, np.float32)
  for outputs in (logits, logits[..., np.newaxis]):
    loss = losses.function(TAGS, None)(outputs, labels, given)
    assert float(loss) == pytest.approx(expected, rel=1e-6)


def test_the_loss_of_several_numbers_is_the_mean_over_all():
  outputs = np.array([[1, 2], [3, 4]], np.float32)
  labels = np.array([[0, 2], [3, 7]], np.float32)
  assert float(losses.function(NUMBERS, None)(outputs, labels)) == 10 / 4
  absolute = losses.function(NUMBERS, 'mean_absolute_error')
  assert float(absolute(outputs, labels)) == 1.0
  assert float(absolute(outputs, labels, np.array([2.0, 0.0]))) == 0.5
  for name, expected in (('mean_squared_error', 2.5), ('mean_absolute_error', 1.0)):
    measure = metrics.METRICS[name].make(NUMBERS)
    assert measure.sums(outputs, labels).mean == expected


def test_metrics_of_tags_are_means_over_them():
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
  ('columns', 'metric', 'within', 'most'),
  [
    ('warm,large', 'accuracy', (0.85, 1.0), 0.35),
    ('sum,difference', 'mean_absolute_error', (0.0, 0.3), 0.1),
  ],
)
def test_the_program_learns_several_labels(
  columns, metric, within, most, data, tmp_path
):
  flags = (f'--data={data}', '--client_column=who', '--feature_columns=x,z')
  flags = (*flags, f'--label_column={columns}', '--mechanism=none', '--num_rounds=30')
  simulations.run(tmp_path, *flags, '--clients_per_round=12', '--batch_size=8')
  last = simulations.metrics(tmp_path)[-1]
  assert within[0] < float(last[f'test_{metric}']) <= within[1]
  assert float(last['test_loss']) < most
