"""Tests of `Workload`: its matrix, fast products, banded inverse and refused values."""

import numpy as np
import pytest

from tff_dp_aggregators.strategies import BLT
from tff_dp_aggregators.strategies import BandedInverse
from tff_dp_aggregators.strategies import BandedToeplitz
from tff_dp_aggregators.strategies import Dense
from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies import recursion
from tff_dp_aggregators.strategies import workload as workload_lib

WORKLOADS = {
  'prefix': Workload(7),
  'one_round': Workload(1, momentum=0.5),
  'momentum': Workload(8, momentum=0.9),
  'rates': Workload(4, learning_rates=(2.0, 1.0, 0.5, 0.25)),
  'both': Workload.cooldown(9, momentum=0.8, cooldown_rounds=4),
  'decay_and_momentum': Workload(8, momentum=0.9, weight_decay=0.1),
  'all': Workload(4, 0.5, (2.0, 1.0, 0.5, 0.25), weight_decay=0.3),
}
each_workload = pytest.mark.parametrize(
  'workload', WORKLOADS.values(), ids=WORKLOADS.keys()
)


def simulated_server(workload, updates):
  """Returns the model after each round, by the update rule of a server optimizer."""
  rates = workload.learning_rates or [1.0] * workload.num_rounds
  model = velocity = np.zeros(updates.shape[1])
  models = []
  for rate, update in zip(rates, updates):
    velocity = workload.momentum * velocity + update
    model = (1 - workload.weight_decay) * model + rate * velocity
    models.append(model)
  return np.array(models)


@each_workload
def test_materialize_matches_simulated_server_optimizer(workload):
  updates = np.random.default_rng(1).normal(size=(workload.num_rounds, 3))
  models = simulated_server(workload, updates)
  np.testing.assert_allclose(workload.materialize() @ updates, models, rtol=1e-12)


@each_workload
def test_apply_matches_product_with_dense_matrix(workload):
  dense = workload.materialize()
  matrix = np.random.default_rng(2).normal(size=(workload.num_rounds, 5))
  np.testing.assert_allclose(workload.apply(matrix), dense @ matrix, rtol=1e-11)
  np.testing.assert_allclose(
    workload.apply_transposed(matrix), dense.T @ matrix, rtol=1e-11
  )


@each_workload
def test_inverse_diagonals_are_those_of_dense_inverse(workload):
  n = workload.num_rounds
  diagonals = workload.inverse_diagonals()
  assert len(diagonals) == (3 if workload.momentum else 2)
  inverse = np.zeros((n, n))
  for i, diagonal in enumerate(diagonals):
    assert not np.any(diagonal[max(0, n - i) :])
    if i < n:
      inverse += np.diag(diagonal[: n - i], -i)
  np.testing.assert_allclose(inverse @ workload.materialize(), np.eye(n), atol=1e-12)


@each_workload
def test_is_toeplitz_if_dense_diagonals_are_constant(workload):
  dense = workload.materialize()
  constant = all(
    np.allclose(np.diagonal(dense, -i), dense[i, 0], rtol=1e-12)
    for i in range(len(dense))
  )
  assert workload.is_toeplitz == constant
  if constant:
    np.testing.assert_allclose(workload.coefficients(), dense[:, 0])
  else:
    with pytest.raises(ValueError, match='has no Toeplitz coefficients'):
      workload.coefficients()


def test_prefix_sums_are_the_default():
  np.testing.assert_array_equal(Workload(5).materialize(), np.tri(5))
  assert workload_lib.check(5, None) == Workload(5)


def test_cooldown_decreases_over_last_quarter_to_five_percent():
  rates = np.array(Workload.cooldown(8).learning_rates)
  np.testing.assert_allclose(rates, [1, 1, 1, 1, 1, 1, 0.525, 0.05])
  assert not Workload.cooldown(8).is_toeplitz


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'momentum': 1.0}, 'momentum must be at least 0 and below 1, got 1.0'),
    ({'weight_decay': 1.0}, 'weight_decay must be at least 0 and below 1, got 1.0'),
    ({'learning_rates': (1.0, 1.0)}, 'learning_rates must be num_rounds=3 finite'),
    ({'learning_rates': (1.0, -1.0, 1.0)}, 'learning_rates.* none negative'),
    ({'learning_rates': (1.0, 1.0, float('nan'))}, 'learning_rates.* finite'),
    ({'learning_rates': (0.0, 0.0, 0.0)}, 'learning_rates.* not all 0'),
  ],
)
def test_invalid_arguments_are_refused_by_name(arguments, message):
  with pytest.raises(ValueError, match=message):
    Workload(**{'num_rounds': 3, **arguments})


@pytest.mark.parametrize(
  'workload, message',
  [
    (np.ones((3, 3)), 'lower-triangular of shape'),
    (np.diag([1.0, np.inf, 1.0]), 'workload must be finite'),
    (np.zeros((3, 3)), 'not all its entries 0'),
    (Workload(4), 'the workload is for 4 rounds, but num_rounds is 3'),
  ],
)
def test_check_refuses_invalid_or_mismatched_workloads(workload, message):
  with pytest.raises(ValueError, match=message):
    workload_lib.check(3, workload)


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize(
  'make',
  [
    lambda number: Workload(3, momentum=number),
    lambda number: Workload(3, learning_rates=(1.0, number, 1.0)),
    lambda number: BandedToeplitz(3, np.array([1.0, number])),
    lambda number: BandedInverse(3, np.array([1.0, number])),
    lambda number: BLT(3, np.array([number]), (0.5,)),
    lambda number: Dense(2, np.array([[1.0, 0.0], [number, 1.0]])),
    lambda number: recursion.LastRounds(np.array([[1.0, number]]), 'row'),
  ],
)
def test_complex_numbers_are_refused_by_workloads_and_strategies(make):
  with pytest.raises(TypeError, match='real numbers'):
    make(0.5 + 0j)
  make(0.5)
