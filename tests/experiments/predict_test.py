"""Predictions for new data, which are prepared as the training data were."""

import csv
import dataclasses
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from experiments import predict
from experiments import predicting
from experiments.data import population
from experiments.data import preprocessing
from experiments.data import problems
from tests import executing
from tests.experiments import simulations
from tff_dp_aggregators import learning
from tff_dp_aggregators.learning.runs import run_directory

COLOURS = ('red', 'green', 'blue, "dark"')
_MODULE = """
import tensorflow as tf

class Mine(tf.keras.layers.Layer):
  def call(self, x):
    return x / 2

def unregistered(shape):
  return tf.keras.Sequential([
    tf.keras.layers.Dense(8, activation='tanh', input_shape=shape.inputs),
    Mine(),
    tf.keras.layers.Dense(shape.num_classes),
  ])

def embedding(shape):
  inputs = tf.keras.Input(shape.inputs)
  number = tf.cast(inputs[:, -1], tf.int32)
  embedded = tf.keras.layers.Embedding(shape.embedded[0] + 1, 2)(number)
  joined = tf.keras.layers.Concatenate()([inputs[:, :-1], embedded])
  return tf.keras.Model(inputs, tf.keras.layers.Dense(shape.num_classes)(joined))
"""


def _rows(count, first, seed):
  """Yields rows with a large number, a name, a number that is a name, noisy labels."""
  rng = np.random.default_rng(seed)
  for number in range(count):
    age = 1e6 + 3 * rng.normal()
    postcode, colour = str(rng.integers(8001, 8004)), COLOURS[rng.integers(3)]
    signal = age - 1e6 + 3 * (colour == 'red') + 2 * (postcode == '8002')
    signal += 3 * rng.normal()
    yield {
      'who': f'client {(first + number) // 6}',
      'the age (yr)': repr(age),
      'postcode': postcode,
      'colour': colour,
      'bought': 'yes' if signal > 1.5 else 'no',
      'worth': str(round(200_000 + 50_000 * signal)),
    }


def _write(path, rows, *without):
  rows = [{k: v for k, v in row.items() if k not in without} for row in rows]
  with open(path, 'w', encoding='utf-8', newline='') as file:
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
  return str(path)


def _predict(run_dir, *arguments):
  return executing.execute(predict, f'--run_dir={run_dir}', *arguments)


def _test_metric(run_dir, metric):
  return float(simulations.metrics(run_dir)[-1][f'test_{metric}'])


class Case:
  """A run with test data, the predictions for them, and the exported model."""

  def __init__(self, folder, *arguments, data, test):
    self.run_dir, self.test = folder / 'run', test
    flags = (f'--data={data}', f'--test_data={test}', *arguments)
    simulations.run(self.run_dir, '--mechanism=none', '--num_rounds=8', *flags)
    output, export = folder / 'predictions.csv', folder / 'served'
    result = _predict(
      self.run_dir, f'--data={test}', f'--output={output}', f'--export={export}'
    )
    assert result.returncode == 0, result.stderr
    self.printed = result.stdout
    self.predictions = simulations.rows(output)
    self.served = tf.saved_model.load(str(export))

  def arrays(self):
    return preprocessing.of_run(self.run_dir).read(self.test).arrays()


def _check_case(case, metric, columns):
  """Checks that the program printed the run's metric, and the export predicts alike.

  Returns the metric and what the export predicts.
  """
  value = _test_metric(case.run_dir, metric)
  assert f'Of {len(case.predictions)} rows: {metric} {value:.4f}.' in case.printed
  served = case.served.predict(columns)
  predicted = [each['prediction'] for each in case.predictions]
  assert [each.decode() for each in served['prediction'].numpy()] == predicted
  np.testing.assert_allclose(
    served['probability'],
    [float(each['probability']) for each in case.predictions],
    rtol=1e-4,
  )
  return value, served


def _columns(rows):
  return {
    'the age (yr)': [float(row['the age (yr)']) for row in rows],
    'postcode': [row['postcode'] for row in rows],
    'colour': [row['colour'] for row in rows],
  }


@pytest.fixture(scope='module')
def tables(tmp_path_factory):
  folder = tmp_path_factory.mktemp('tables')
  train, test = list(_rows(600, 0, 1)), list(_rows(240, 600, 2))
  return {
    (name, label): _write(folder / f'{name}_{label}.csv', rows, other)
    for name, rows in (('train', train), ('test', test))
    for label, other in (('bought', 'worth'), ('worth', 'bought'))
  }


_TABLE_FLAGS = ('--client_column=who', '--one_hot_columns=postcode')


@pytest.fixture(scope='module')
def classes(tables, tmp_path_factory):
  return Case(
    tmp_path_factory.mktemp('classes'),
    *_TABLE_FLAGS,
    '--label_column=bought',
    data=tables['train', 'bought'],
    test=tables['test', 'bought'],
  )


def test_predictions_and_export_have_the_accuracy_of_the_run(classes):
  rows = simulations.rows(classes.test)
  accuracy, served = _check_case(classes, 'accuracy', _columns(rows))
  assert 0.6 < accuracy < 0.95 and len(rows) == 240
  x, y = classes.arrays()
  model = learning.load(str(classes.run_dir))
  assert np.mean(np.argmax(model(x), axis=1) == y) == accuracy
  # Predictions keep the order of rows, and are of the largest probability.
  assert [each['who'] for each in classes.predictions] == [r['who'] for r in rows]
  right = [p['prediction'] == r['bought'] for p, r in zip(classes.predictions, rows)]
  assert np.mean(right) == accuracy
  probabilities = served['probabilities'].numpy()
  np.testing.assert_allclose(probabilities.sum(axis=1), 1)
  np.testing.assert_allclose(served['probability'], probabilities.max(axis=1))
  names = preprocessing.of_run(classes.run_dir).shape.names
  assert names == ('no', 'yes')
  assert [each['prediction'] for each in classes.predictions] == [
    names[each] for each in probabilities.argmax(axis=1)
  ]


@pytest.mark.slow
def test_serving_signature_takes_columns_without_this_package(classes):
  program = """
import sys
import numpy as np, tensorflow as tf
signature = tf.saved_model.load(sys.argv[1]).signatures['serving_default']
found = signature(
  the_age__yr_=tf.constant([1e6, 1e6 + 9.0], tf.float64),
  postcode=tf.constant(['8001', ' 8002.0']),
  colour=tf.constant(['green', 'red']),
)
print(*[each.decode() for each in found['prediction'].numpy()])
assert not any(name.startswith(('experiments', 'tff')) for name in sys.modules)
"""
  folder = classes.run_dir.parent
  result = subprocess.run(
    [sys.executable, '-c', program, str(folder / 'served')],
    cwd=folder,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert result.stdout == 'no yes\n', result.stderr


@pytest.mark.slow
def test_process_that_loads_a_model_ends_silently():
  result = executing.run_python('import tff_dp_aggregators.learning.runs.saved_model')
  assert result.returncode == 0 and 'Exception' not in result.stderr


def test_exported_model_refuses_values_unknown_in_training(classes):
  columns = _columns(simulations.rows(classes.test)[:2])
  for name, values, message in (
    ('colour', ['pink', 'red'], 'colour'),
    ('postcode', ['8001', '9'], 'postcode'),
    ('the age (yr)', [1.0, float('nan')], 'not finite'),
    ('the age (yr)', [1.0, 1e39], 'not finite'),
    ('postcode', ['8001', 'none'], 'postcode'),
  ):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
      classes.served.predict({**columns, name: values})


def _predictor_of_codes(known):
  shape = population.Shape((1,), 'float32', (), 'number', embedded=(4,))
  inputs = tf.keras.Input([1])
  return types.SimpleNamespace(
    preprocessing=preprocessing.Preprocessing(shape, embedded_columns={'x': known}),
    gives_logits=False,
    model=tf.keras.Model(inputs, tf.identity(inputs)),
  )


def test_exported_model_has_its_name_only_once_it_is_whole(tmp_path, monkeypatch):
  folder, save = tmp_path / 'served', tf.saved_model.save

  def checked(*args, **kwargs):
    save(*args, **kwargs)
    assert not folder.exists()

  monkeypatch.setattr(tf.saved_model, 'save', checked)
  predicting.export(_predictor_of_codes(('a', 'b')), f'{folder}/')
  predicted = tf.saved_model.load(str(folder)).predict({'x': ['b', 'c']})
  assert predicted['prediction'].numpy().tolist() == [1, 2]
  assert os.listdir(tmp_path) == ['served']


def test_exported_model_tells_names_apart_as_the_reader_does():
  known, large = ('0012', '12', '9.5', str(2**60)), 2**60 + 1
  served = predicting.Served(_predictor_of_codes(known))
  given = ['0012', ' 12.0', '+12', '9.50', str(2**60), str(large), '012', 'NA', '']
  codes = served.predict({'x': given})['prediction']
  assert codes.numpy().tolist() == [0, 1, 1, 2, 3, 4, 4, 4, 4]


def test_kept_preprocessing_matches_training_data(classes, tables):
  ages = [
    float(row['the age (yr)']) for row in simulations.rows(tables['train', 'bought'])
  ]
  kept = preprocessing.of_run(classes.run_dir)
  np.testing.assert_allclose(kept.mean, [np.mean(ages)], rtol=1e-12)
  np.testing.assert_allclose(kept.scale, [np.std(ages)], rtol=1e-9)
  assert dict(kept.name_columns) == {
    'postcode': ('8001', '8002', '8003'),
    'colour': tuple(sorted(COLOURS)),
  }
  assert preprocessing.Preprocessing.from_json(kept.to_json()) == kept
  assert 'preprocessing.json' not in os.listdir(classes.run_dir / 'share')
  assert (classes.run_dir / 'preprocessing.json').stat().st_mode & 0o077 == 0


def test_data_may_lack_labels_and_have_unused_columns(classes, tmp_path):
  rows = simulations.rows(classes.test)[:3]
  for row in rows:
    del row['bought'], row['who']
    row['note'] = 'x'
  output = tmp_path / 'predictions.csv'
  path = _write(tmp_path / 'new.csv', rows)
  result = _predict(classes.run_dir, f'--data={path}', f'--output={output}')
  assert result.returncode == 0, result.stderr
  assert 'new.csv: 3 rows; not used: note.' in result.stdout
  assert 'no labels to compare' in result.stdout
  predicted = simulations.rows(output)
  assert list(predicted[0]) == ['prediction', 'probability']
  assert predicted == [
    {name: each[name] for name in ('prediction', 'probability')}
    for each in classes.predictions[:3]
  ]
  assert preprocessing.of_run(classes.run_dir).read(path).arrays()[1] is None


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'colour': 'pink'}, r"line 3: colour is 'pink', which the training data do not"),
    ({'the age (yr)': 'old'}, r"line 3: the age \(yr\) is 'old', which is not a num"),
    ({'bought': ''}, 'line 3: bought is empty'),
    ({'colour': None}, "has no column 'colour'"),
  ],
)
def test_unfit_rows_are_refused_with_line_number(classes, change, message, tmp_path):
  rows = simulations.rows(classes.test)[:3]
  without = [name for name, value in change.items() if value is None]
  rows[1].update(change)
  path = _write(tmp_path / 'new.csv', rows, *without)
  with pytest.raises(problems.DataError, match=message):
    preprocessing.of_run(classes.run_dir).read(path)
  output = tmp_path / 'predictions.csv'
  result = _predict(classes.run_dir, f'--data={path}', f'--output={output}')
  assert result.returncode == 2 and 'new.csv' in result.stderr
  assert '--' not in result.stderr  # No flag of another program is named.
  assert not output.exists()


def test_clients_in_column_named_like_predictions_are_refused(classes):
  data = preprocessing.of_run(classes.run_dir).read(classes.test)
  data = dataclasses.replace(data, client_column='probability')
  predictor = predicting.Predictor(str(classes.run_dir))
  with pytest.raises(ValueError, match="called 'probability', like .* Leave it out"):
    next(predictor.columns(data))


def test_existing_files_and_conflicting_flags_are_refused(classes, tmp_path):
  taken = tmp_path / 'there'
  taken.write_text('mine')
  data = f'--data={classes.test}'
  for arguments, message in (
    ([data, f'--output={taken}'], f'--output={taken} exists and is not overwritten'),
    ([f'--export={taken}'], f'--export={taken} exists and is not overwritten'),
    ([f'--export={taken}/'], f'--export={taken} exists and is not overwritten'),
    ([data, '--output=a', '--export=a/'], '--export=a is the path of --output, too'),
    ([data], 'give --output as well'),
    ([], 'give --data and --output'),
    (['--output=a.csv', f'--export={tmp_path / "new"}'], '--output goes with --data'),
    ([f'{data}x', '--output=a.csv'], 'there is no such file'),
    ([data, f'--output={tmp_path / "no" / "a.csv"}'], 'in a folder that exists'),
  ):
    result = _predict(classes.run_dir, *arguments)
    assert (result.returncode, result.stdout) == (2, '')
    assert message in result.stderr
  assert taken.read_text() == 'mine'
  result = _predict(tmp_path, data, '--output=a.csv')
  assert result.returncode == 2 and 'not the directory of a run' in result.stderr


@pytest.fixture(scope='module')
def numbers(tables, tmp_path_factory):
  return Case(
    tmp_path_factory.mktemp('numbers'),
    *_TABLE_FLAGS,
    '--label_column=worth',
    '--metric=mean_squared_error',
    '--loss=mean_squared_error',
    data=tables['train', 'worth'],
    test=tables['test', 'worth'],
  )


@pytest.mark.slow
def test_predicted_numbers_are_in_units_of_labels(numbers):
  rows = simulations.rows(numbers.test)
  labels = np.array([float(row['worth']) for row in rows])
  predicted = [float(each['prediction']) for each in numbers.predictions]
  expected = _test_metric(numbers.run_dir, 'mean_squared_error')
  assert np.mean(np.square(predicted - labels)) == pytest.approx(expected, rel=1e-5)
  served = numbers.served.predict(_columns(rows))['prediction'].numpy()
  np.testing.assert_allclose(served, predicted, rtol=1e-5)
  kept = preprocessing.of_run(numbers.run_dir)
  x, y = numbers.arrays()
  by_hand = kept.in_units(learning.load(str(numbers.run_dir))(x))
  np.testing.assert_allclose(by_hand, predicted, rtol=1e-5)
  np.testing.assert_array_equal(y, labels)


@pytest.mark.slow
def test_metrics_use_label_units_and_loss_scaled_units(numbers):
  config = run_directory.read_config(str(numbers.run_dir))
  _, scale = config['data_facts']['mean and standard deviation of labels']
  for line in simulations.metrics(numbers.run_dir):
    error = float(line['test_mean_squared_error'])
    assert error == pytest.approx(scale**2 * float(line['test_loss']), rel=1e-4)
  assert any('Labels were scaled' in each for each in config['not_covered'])


@pytest.mark.slow
def test_next_token_of_texts_is_predicted(tmp_path):
  rng = np.random.default_rng(3)
  for name, first in (('train', 0), ('test', 30)):
    with open(tmp_path / f'{name}.csv', 'w', newline='') as file:
      writer = csv.writer(file)
      writer.writerow(['who', 'said'])
      for number in range(90):
        count = rng.integers(1, 9)
        words = ' '.join(
          ['ab', 'cd\u00a0e', 'é f'][i] for i in rng.integers(3, size=count)
        )
        writer.writerow([f'client {first + number // 3}', words])
  case = Case(
    tmp_path,
    '--client_column=who',
    '--text_column=said',
    '--text_unit=word',
    '--sequence_length=7',
    data=str(tmp_path / 'train.csv'),
    test=str(tmp_path / 'test.csv'),
  )
  texts = [row['said'] for row in simulations.rows(case.test)]
  accuracy, _ = _check_case(case, 'token_accuracy', {'said': texts})
  # Computed from the last tokens of each text, without its end token.
  kept = preprocessing.of_run(case.run_dir)
  model = learning.load(str(case.run_dir))
  assert len(texts) == 90
  for text, prediction in zip(texts[:20], case.predictions):
    tokens = kept.tokens.tokens(text)[:-1][-7:]
    padded = np.zeros([1, 7], np.int32)
    padded[0, : len(tokens)] = tokens
    logits = np.asarray(model(padded))[0, len(tokens) - 1]
    token = kept.shape.names[1 + np.argmax(logits[1:])]
    assert prediction['prediction'] == token
  x, y = case.arrays()
  right = np.argmax(model(x), axis=-1) == y
  assert np.sum(right & (y != 0)) / np.sum(y != 0) == pytest.approx(accuracy, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('model', 'flags'),
  [('unregistered', ()), ('embedding', ('--embedding_columns=colour',))],
)
def test_own_model_predicts_and_is_exported(
  model, flags, tables, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'own_model_of_predict_test.py').write_text(_MODULE)
  case = Case(
    tmp_path,
    *_TABLE_FLAGS,
    *flags,
    '--label_column=bought',
    f'--model=own_model_of_predict_test:{model}',
    data=tables['train', 'bought'],
    test=tables['test', 'bought'],
  )
  accuracy, _ = _check_case(case, 'accuracy', _columns(simulations.rows(case.test)))
  _, y = case.arrays()
  right = [
    each['prediction'] == ('no', 'yes')[k] for each, k in zip(case.predictions, y)
  ]
  assert np.mean(right) == accuracy
