"""Tests of descent methods, on problems whose minimum is known."""

import math

import numpy as np
import pytest

from tff_dp_aggregators.strategies.numerics import descent

PROGRESS = descent.Progress('test')


def parabolas(centers):
  """Returns a function with errors 1 + |x - c|^2, one for each center c."""

  def errors(point):
    offsets = point - centers
    return 1 + np.square(offsets).sum(axis=1), lambda weights: 2 * weights @ offsets

  return errors


def test_lbfgs_stays_in_the_domain_of_the_loss():
  def loss(x):
    if x[0] <= 0:
      return math.inf, None
    return x[0] + 1 / x[0], np.array([1 - 1 / x[0] ** 2])

  minimum = descent.lbfgs(loss, np.array([1e-3]), 1e-14, lambda value: None)
  assert minimum[0] == pytest.approx(1.0, abs=1e-6)


def test_lbfgs_stops_at_a_zero_gradient():
  steps = []
  start = np.ones(3)
  minimum = descent.lbfgs(lambda x: (1.0, np.zeros(3)), start, 1e-9, steps.append)
  np.testing.assert_array_equal(minimum, start)
  assert len(steps) <= 3


def test_minimize_mean_of_parabolas_finds_their_mean_center():
  centers = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]])
  minimum = descent.minimize_mean(parabolas(centers), np.ones(2), 1e-12, PROGRESS)
  np.testing.assert_allclose(minimum.point, centers.mean(axis=0), atol=1e-6)
  np.testing.assert_allclose(minimum.weights, 1 / 3)


def test_minimize_max_of_parabolas_finds_center_of_smallest_circle():
  # The smallest circle around (0, 0), (4, 0) and (1, 1) has the first two on its rim,
  # so that the third gets no weight.
  centers = np.array([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0]])
  minimum = descent.minimize_max(parabolas(centers), np.ones(2), 1e-7, PROGRESS)
  np.testing.assert_allclose(minimum.point, [2.0, 0.0], atol=1e-3)
  np.testing.assert_allclose(minimum.weights, [0.5, 0.5, 0.0], atol=1e-3)


@pytest.mark.parametrize('lower, end', [(-math.inf, [1.0, 1.0]), (1.5, [1.5, 2.25])])
def test_bounded_descent_keeps_lower_bounds(lower, end):
  def loss(x):
    value = 1 + 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2
    slope = -400 * x[0] * (x[1] - x[0] ** 2) - 2 * (1 - x[0])
    return value, np.array([slope, 200 * (x[1] - x[0] ** 2)])

  descend = descent.bounded(np.array([lower, -math.inf]))
  minimum = descend(loss, np.array([-1.2, 1.0]), 1e-13, lambda value: None)
  np.testing.assert_allclose(minimum, end, atol=1e-6)


def test_bounded_descent_without_minimum_is_an_error():
  def downhill(x):
    return float(2.0 - x[0]) if x[0] < 1 else math.nan, -np.ones(1)

  with pytest.raises(descent.ConvergenceError, match='no strategy with the l'):
    descent.bounded()(downhill, np.zeros(1), 1e-13, lambda value: None)
