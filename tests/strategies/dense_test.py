"""Tests of dense strategies: column norms, optima and certified lower bounds."""

import math

import numpy as np
import pytest

from tests.strategies import every_kind
from tff_dp_aggregators.strategies import BandedToeplitz
from tff_dp_aggregators.strategies import BinaryTree
from tff_dp_aggregators.strategies import Dense
from tff_dp_aggregators.strategies import Identity
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import dense

SCHEMAS = {
  'single': Participation.single(12),
  'every epoch': Participation(12, 4, fixed_epoch=True),
  'an epoch cut off': Participation(11, 4, fixed_epoch=True),
  'every round': Participation(6, 1, fixed_epoch=True),
  'one epoch': Participation(6, 7, fixed_epoch=True),
}


def random_dense(num_rounds, seed=0):
  rng = np.random.default_rng(seed)
  matrix = np.tril(rng.normal(size=(num_rounds, num_rounds)))
  np.fill_diagonal(matrix, rng.uniform(0.3, 2.0, num_rounds))
  return Dense(num_rounds, matrix)


def test_sensitivity_is_that_of_columns_not_rows():
  # The row-normalised matrix of a published peer: noise that is scaled as if its
  # sensitivity were 1 is too small, here by a factor of 1.9.
  entry = math.sqrt((1.9**2 - 1) / 9)
  matrix = np.diag([1.0] + [math.sqrt(1 - entry**2)] * 9)
  matrix[1:, 0] = entry
  np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1.0)
  strategy = Dense(10, matrix)
  assert strategy.sensitivity() == pytest.approx(1.9)
  assert banded.Banded.from_matrix(matrix).sensitivity() == pytest.approx(1.9)
  every_round = Participation(10, min_separation=1)
  assert strategy.sensitivity(every_round) > 1.9


def test_mean_error_is_between_certified_bound_and_recorded_error():
  (recorded,) = every_kind.figures('dense_optimal')
  strategy = dense.optimize(128, cache=False)
  assert strategy.rmse() <= recorded['rmse']
  assert strategy.rmse() ** 2 >= recorded['certified_lower_bound_mse']
  certificate = dense.certify(strategy)
  assert certificate.error == pytest.approx(strategy.rmse() ** 2)
  assert 0 <= certificate.gap <= 1e-6
  assert certificate.scope.startswith('all strategies of 128 rounds, for Participation')


@pytest.mark.few(4)
@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('name', SCHEMAS)
def test_optimum_has_a_small_certified_gap(name, objective):
  schema = SCHEMAS[name]
  n = schema.num_rounds
  strategy = dense.optimize(n, objective=objective, participation=schema, cache=False)
  assert strategy.sensitivity(schema) == pytest.approx(1.0, rel=1e-9)
  if name == 'single':  # Unit columns, not unit rows.
    matrix = strategy.materialize()
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=0), 1.0, rtol=1e-12)
    assert np.ptp(np.linalg.norm(matrix, axis=1)) > 0.2
  certificate = dense.certify(strategy, objective, schema)
  assert 0 <= certificate.gap <= (1e-6 if objective == 'mean' else 1e-3)
  error = strategy.error(objective, schema)
  assert certificate.error == pytest.approx(error**2)


@pytest.mark.few(4)
@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('name', SCHEMAS)
def test_certificate_is_below_every_strategy(name, objective):
  schema = SCHEMAS[name]
  n = schema.num_rounds
  optimum = dense.optimize(n, objective=objective, participation=schema, cache=False)
  bound = dense.certify(optimum, objective, schema).lower_bound
  candidates = [Identity(n), BinaryTree(n), BandedToeplitz.square_root(n, n)]
  for seed in range(30):
    candidate = random_dense(n, seed)
    candidates += [candidate, Dense(n, optimum.matrix + 1e-3 * candidate.matrix)]
  for candidate in candidates:
    assert bound <= candidate.error(objective, schema) ** 2, candidate


def test_gap_is_below_0_3_for_fewer_participations_than_epochs():
  schema = Participation(12, 4, 2, fixed_epoch=True)
  certificate = dense.certify(
    dense.optimize(12, participation=schema, cache=False), participation=schema
  )
  assert 0 < certificate.gap < 0.3


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    ({'participation': Participation(8, 2)}, ValueError, 'num_bands=2'),
    ({'workload': np.ones((8, 8))}, ValueError, 'workload must be lower-tri'),
    ({'workload': Workload(8, 0.0, (1.0,) * 7 + (0.0,))}, ValueError, 'row 7 is 0'),
  ],
)
def test_optimize_refuses_invalid_arguments(arguments, error, message):
  with pytest.raises(error, match=message):
    dense.optimize(**{'num_rounds': 8, 'cache': False, **arguments})
