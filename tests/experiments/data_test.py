"""Every example goes to one client, and label skew is as strong as asked for."""

import numpy as np
import pytest

from experiments import data


def _entropy(labels):
  counts = np.bincount(labels, minlength=10)
  shares = counts[counts > 0] / counts.sum()
  return -np.sum(shares * np.log(shares))


@pytest.mark.parametrize('num_clients', [1, 7, 300, 1438])
def test_every_training_image_goes_to_exactly_one_client(num_clients):
  population = data.digits(num_clients, dirichlet_alpha=0.5, seed=3)
  sizes = [len(labels) for _, labels in population.client_examples]
  images = np.concatenate([inputs for inputs, _ in population.client_examples])
  images = np.concatenate([images, population.test_examples[0]])
  everything = data.digits(1, dirichlet_alpha=1.0, seed=0)
  expected = np.concatenate(
    [everything.client_examples[0][0], everything.test_examples[0]]
  )
  assert len(sizes) == num_clients
  assert max(sizes) - min(sizes) <= 1
  assert np.array_equal(images[np.lexsort(images.T)], expected[np.lexsort(expected.T)])


def test_small_alpha_skews_labels_more_than_large_alpha():
  def mean_entropy(alpha):
    population = data.digits(50, alpha, seed=1)
    return np.mean([_entropy(labels) for _, labels in population.client_examples])

  assert mean_entropy(0.05) < mean_entropy(0.5) < mean_entropy(50.0)
  assert mean_entropy(0.05) < 1.0
  assert mean_entropy(50.0) > 2.0  # log(10) is 2.30.


def test_same_seed_same_split_and_another_seed_another():
  def first_client(seed):
    return data.digits(300, 0.5, seed).client_examples[0][0]

  assert np.array_equal(first_client(1), first_client(1))
  assert not np.array_equal(first_client(1), first_client(2))


def test_labels_stay_with_their_images():
  population = data.digits(1, 0.5, seed=4)
  inputs, labels = population.client_examples[0]
  centroids = np.stack([inputs[labels == c].mean(axis=0) for c in range(10)])
  test_inputs, test_labels = population.test_examples
  distances = np.linalg.norm(test_inputs[:, None] - centroids, axis=2)
  assert np.mean(np.argmin(distances, axis=1) == test_labels) > 0.8


def test_more_clients_than_images_are_refused():
  with pytest.raises(ValueError, match='num_clients must be between 1 and 1438'):
    data.digits(1439, 0.5, seed=1)
  with pytest.raises(ValueError, match='at most 1438'):
    data.check_num_clients('digits', 1439)
  data.check_num_clients('digits', 1438)
