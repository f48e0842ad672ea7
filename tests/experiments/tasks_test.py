"""Tasks: how examples are split over clients, label skew, and default flags."""

import dataclasses

import numpy as np
import pytest

from experiments import metrics
from experiments import tasks
from experiments.models import kind as kind_lib
from experiments.options import data as data_options
from experiments.tasks import installed
from tests.experiments import simulations


def _entropy(labels):
  counts = np.bincount(labels, minlength=10)
  shares = counts[counts > 0] / counts.sum()
  return -np.sum(shares * np.log(shares))


def _load(num_clients, dirichlet_alpha, seed):
  options = data_options.Data(num_clients, dirichlet_alpha, seed)
  installed.DIGITS.check(options)
  return installed.DIGITS.load(options)


def _examples(population):
  return [(each['x'], each['y']) for each in population.clients.values()]


def _pixels(population):
  """Returns all images, of training and test, as vectors."""
  parts = [inputs for inputs, _ in _examples(population)]
  images = np.concatenate([*parts, population.test_examples[0]])
  return images.reshape(len(images), -1)


@pytest.mark.parametrize('num_clients', [1, 7, 300, 1438])
def test_every_training_image_goes_to_exactly_one_client(num_clients):
  population = _load(num_clients, dirichlet_alpha=0.5, seed=3)
  sizes = [len(labels) for _, labels in _examples(population)]
  images = _pixels(population)
  expected = _pixels(_load(1, dirichlet_alpha=1.0, seed=0))
  assert len(sizes) == num_clients
  assert max(sizes) - min(sizes) <= 1
  assert np.array_equal(images[np.lexsort(images.T)], expected[np.lexsort(expected.T)])


def test_small_alpha_skews_labels_more_than_large_alpha():
  def mean_entropy(alpha):
    population = _load(50, alpha, seed=1)
    return np.mean([_entropy(labels) for _, labels in _examples(population)])

  small, middle, large = map(mean_entropy, (0.05, 0.5, 50.0))
  assert small < middle < large
  assert small < 1.0
  assert large > 2.0  # log(10) is 2.30.


OFFLINE = ('breast_cancer', 'digits', 'text')


@pytest.mark.parametrize('task', tasks.TASKS.values(), ids=lambda task: task.name)
def test_default_flags_of_every_task_are_accepted(task, monkeypatch):
  if task.name not in OFFLINE:  # Its data files are not installed.
    without = dataclasses.replace(task, check=lambda options: None)
    monkeypatch.setitem(tasks.TASKS, task.name, without)
  chosen = simulations.settings_of(f'--task={task.name}', '--mechanism=tree')
  for name, value in dataclasses.asdict(task.defaults).items():
    assert chosen.flags[name] == value
  assert chosen.model.kind.name == task.defaults.model


@pytest.mark.parametrize('name', OFFLINE)
def test_default_model_and_metric_of_offline_task_fit_its_data(name):
  task = tasks.TASKS[name]
  options = data_options.Data(task.defaults.num_clients, 0.5, seed=1)
  task.check(options)
  population = task.load(options)
  kind = kind_lib.KINDS[task.defaults.model]
  assert kind.why_not(population.shape) is None
  assert metrics.METRICS[task.defaults.metric].why_not(population.shape) is None
  assert population.num_clients == len(population.clients)
  needed = task.defaults.clients_per_round * task.defaults.min_separation
  assert population.num_clients >= needed
  for inputs, labels in _examples(population):
    assert inputs.shape == (len(labels), *population.shape.inputs)
    assert labels.shape == (len(inputs), *population.shape.labels)
    assert inputs.dtype == population.shape.input_dtype
    assert 0 <= labels.min() <= labels.max() < population.shape.num_classes


def test_breast_cancer_features_are_scaled_and_report_says_so():
  population = tasks.TASKS['breast_cancer'].load(data_options.Data(50, 0.5, seed=2))
  inputs = np.concatenate([each for each, _ in _examples(population)])
  np.testing.assert_allclose(inputs.mean(axis=0), 0, atol=1e-5)
  np.testing.assert_allclose(inputs.std(axis=0), 1, atol=1e-5)
  (sentence,) = population.not_covered
  assert 'mean and standard deviation' in sentence


# Many other tests train on digits and on own data.
@pytest.mark.slow
@pytest.mark.parametrize(
  'name, arguments',
  [
    ('breast_cancer', ['--num_clients=60', '--metric=auc']),
    ('text', ['--hidden_units=3', '--embedding_size=2']),
  ],
)
def test_simulate_trains_on_offline_task(name, arguments, tmp_path):
  simulations.run(
    tmp_path,
    f'--task={name}',
    '--mechanism=gaussian',
    '--num_rounds=2',
    '--min_separation=2',
    *arguments,
  )
  assert len(simulations.metrics(tmp_path)) == 2


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--model=forest'], '--model=forest is not of the form --model=package'),
    (['--hidden_units=9'], '--hidden_units does not go with --model=logistic'),
    (
      ['--model=linear'],
      '--model=linear is not for these data: it is for float32 inputs',
    ),
    (['--loss=mean_squared_error'], "labels of the kind 'class'; give cross_entropy"),
    (['--metric=auc'], 'it is for 2 classes, and there are 10'),
    (['--num_clients=1439'], 'at most 1438'),
    (['--task=text', '--cache_dir=x'], '--cache_dir does not go with --task='),
  ],
)
def test_conflicting_flags_are_refused_in_one_line(arguments, message, tmp_path):
  run_dir = tmp_path / 'run'
  error = simulations.refusal('--mechanism=none', f'--run_dir={run_dir}', *arguments)
  assert message in error
  assert not run_dir.exists() or not list(run_dir.iterdir())


def test_default_width_of_task_is_only_for_its_default_model():
  text = ('--task=text', '--mechanism=none')
  chosen = simulations.settings_of(*text, '--model=word_lstm')
  assert tasks.TASKS['text'].defaults.hidden_units == chosen.model.hidden_units == 32
  chosen = simulations.settings_of(*text, '--model=logistic')
  assert chosen.flags['hidden_units'] is None


def test_default_delta_is_below_half_over_number_of_clients():
  # Numbers of clients in the data of tasks, as their summaries and papers state them.
  known = {
    'emnist': 3383,
    'cifar100': 500,
    'shakespeare': 715,
    'stackoverflow': 342_477,
    'text': 1000,  # More than Python's standard library has modules.
  }
  for name, task in tasks.TASKS.items():
    num_clients = task.defaults.num_clients or known[name]
    assert task.defaults.target_delta * num_clients < 0.5
