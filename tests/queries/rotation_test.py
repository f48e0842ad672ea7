"""Random rotations preserve norms, are invertible, and spread any vector."""

import math

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from tff_dp_aggregators.queries import distributed

_KEY = tf.constant([1, 2, 3, 4], tf.int64)


@pytest.mark.parametrize('dimension', [1, 2, 64, 512, 2048])
def test_hadamard_transform_matches_matrix_and_is_its_own_inverse(dimension):
  vector = np.random.default_rng(1).normal(size=dimension)
  rotated = distributed.hadamard(tf.constant(vector)).numpy()
  matrix = scipy.linalg.hadamard(dimension) / math.sqrt(dimension)
  np.testing.assert_allclose(rotated, matrix @ vector, atol=1e-12)
  assert np.linalg.norm(rotated) == pytest.approx(np.linalg.norm(vector))
  again = distributed.hadamard(tf.constant(rotated)).numpy()
  np.testing.assert_allclose(again, vector, atol=1e-12)


@pytest.mark.parametrize('dimension', [1, 5, 64, 4096])
def test_random_signs_are_balanced_and_differ_between_rounds(dimension):
  first, second, again = (
    distributed.signs(_KEY, tf.constant(index, tf.int64), dimension).numpy()
    for index in (0, 1, 0)
  )
  assert first.shape == (dimension,) and set(first) <= {-1.0, 1.0}
  assert (first == again).all()
  if dimension == 4096:
    assert abs(first.sum()) < 6 * 64
    assert abs((first * second).sum()) < 6 * 64


@pytest.mark.parametrize('kind', ['one entry', 'all equal', 'alternating'])
def test_rotation_bounds_entries_of_worst_case_vectors(kind):
  dimension = 1024
  vector = {
    'one entry': np.eye(1, dimension)[0] * 32.0,
    'all equal': np.ones(dimension),
    'alternating': np.resize([1.0, -1.0], dimension),
  }[kind]
  # Some entry exceeds t = 6.7 with probability 2 d exp(-t^2 / 2), below 1e-6 a round.
  for index in range(20):
    signs = distributed.signs(_KEY, tf.constant(index, tf.int64), dimension)
    rotated = distributed.hadamard(tf.constant(vector) * signs)
    assert float(tf.reduce_max(tf.abs(rotated))) < 6.7
