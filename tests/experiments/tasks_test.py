"""Tasks: every example goes to one client, label skew is as strong as asked for, and
flags follow from what a task says of itself.
"""

import dataclasses

import numpy as np
import pytest
from absl import flags

from experiments import settings
from experiments import simulate
from experiments import tasks
from experiments.options import data as data_options
from experiments.tasks import digits
from tests import executing


def _entropy(labels):
  counts = np.bincount(labels, minlength=10)
  shares = counts[counts > 0] / counts.sum()
  return -np.sum(shares * np.log(shares))


def _load(num_clients, dirichlet_alpha, seed):
  return digits.load(data_options.Data(num_clients, dirichlet_alpha, seed))


def _examples(population):
  return [(each['x'], each['y']) for each in population.clients.values()]


@pytest.mark.parametrize('num_clients', [1, 7, 300, 1438])
def test_every_training_image_goes_to_exactly_one_client(num_clients):
  population = _load(num_clients, dirichlet_alpha=0.5, seed=3)
  sizes = [len(labels) for _, labels in _examples(population)]
  images = np.concatenate([inputs for inputs, _ in _examples(population)])
  images = np.concatenate([images, population.test_examples[0]])
  everything = _load(1, dirichlet_alpha=1.0, seed=0)
  expected = np.concatenate([_examples(everything)[0][0], everything.test_examples[0]])
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


def test_same_seed_same_split_and_another_seed_another():
  def first_client(seed):
    return _examples(_load(300, 0.5, seed))[0][0]

  assert np.array_equal(first_client(1), first_client(1))
  assert not np.array_equal(first_client(1), first_client(2))


def test_labels_stay_with_their_images():
  population = _load(1, 0.5, seed=4)
  inputs, labels = _examples(population)[0]
  centroids = np.stack([inputs[labels == c].mean(axis=0) for c in range(10)])
  test_inputs, test_labels = population.test_examples
  distances = np.linalg.norm(test_inputs[:, None] - centroids, axis=2)
  assert np.mean(np.argmin(distances, axis=1) == test_labels) > 0.8


def test_more_clients_than_images_are_refused():
  with pytest.raises(ValueError, match='num_clients must be between 1 and 1438'):
    _load(1439, 0.5, seed=1)
  with pytest.raises(ValueError, match='at most 1438'):
    digits.TASK.check(data_options.Data(1439, 0.5, seed=1))
  digits.TASK.check(data_options.Data(1438, 0.5, seed=1))


def _at_most_80(options):
  if options.num_clients > 80:
    raise ValueError('num_clients must be at most 80')


def test_what_a_task_says_of_itself_is_in_the_help_and_in_the_flags():
  other = dataclasses.replace(
    digits.TASK,
    name='other',
    summary='something else',
    check=_at_most_80,
    defaults=dataclasses.replace(
      digits.TASK.defaults, num_clients=77, min_separation=2
    ),
  )
  tasks.TASKS['other'] = other
  try:
    shown = ' '.join(executing.execute(simulate, '--help').stdout.split())
    values = flags.FlagValues()
    settings.define(values)
    values(['simulate', '--task=other', '--num_rounds=9', '--mechanism=gaussian'])
    chosen = settings.from_flags(values)
    refused = executing.execute(simulate, '--task=other', '--num_clients=81')
  finally:
    del tasks.TASKS['other']
  assert 'other, something else.' in shown
  assert 'Default: 300 for digits; 77 for other.' in shown
  assert chosen.task is other
  assert chosen.name == 'other-gaussian'
  assert (chosen.data.num_clients, chosen.participation.num_rounds) == (77, 9)
  assert chosen.flags['num_clients'] == 77
  assert chosen.flags['clip_norm'] == 1.0
  assert (refused.returncode, refused.stdout) == (2, '')
  assert 'num_clients must be at most 80' in refused.stderr


def test_every_task_is_there_under_its_name():
  assert [task.name for task in tasks.TASKS.values()] == list(tasks.TASKS)


@pytest.mark.parametrize('task', tasks.TASKS.values(), ids=lambda task: task.name)
def test_the_defaults_of_a_task_go_together(task):
  values = flags.FlagValues()
  settings.define(values)
  values(['simulate', f'--task={task.name}', '--mechanism=tree'])
  chosen = settings.from_flags(values)
  for name, value in dataclasses.asdict(task.defaults).items():
    assert chosen.flags[name] == value
