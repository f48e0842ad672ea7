"""Tests of general banded strategies: diagonals, optima and certified lower bounds.

Recorded errors are a peer's, after convergence (matrix_factorization.json).
"""

import numpy as np
import pytest

from tests.strategies import every_kind
from tff_dp_aggregators.strategies import Banded
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies.numerics import bands

WORKLOADS = {
  'prefix sums': None,
  'momentum': Workload(12, momentum=0.9),
  'cooldown': Workload.cooldown(12, momentum=0.5),
  'array': np.tril(np.random.default_rng(9).uniform(0.1, 1.0, size=(12, 12))),
}


def recorded_error(num_rounds, num_bands, objective, key):
  """Returns the least recorded value for strategies with unit columns."""
  return min(
    result[key]
    for result in every_kind.figures('general_banded_unit_columns')
    if result['objective'] == objective
    and (result['num_rounds'], result['num_bands']) == (num_rounds, num_bands)
  )


def random_banded(num_rounds, num_bands, seed=0, unit_columns=False):
  """Returns bands of any signs, with any column norms unless `unit_columns`."""
  rng = np.random.default_rng(seed)
  diagonals = rng.normal(size=(num_bands, num_rounds))
  diagonals[0] = rng.uniform(0.3, 2.0, num_rounds)
  diagonals = np.where(bands.mask(num_bands, num_rounds), diagonals, 0.0)
  if unit_columns:
    diagonals = diagonals / np.linalg.norm(diagonals, axis=0)
  return Banded(num_rounds, diagonals)


def test_materialize_and_from_matrix_are_inverse():
  strategy = random_banded(6, 3)
  matrix = strategy.materialize()
  assert matrix[4, 2] == strategy.diagonals[2, 2]
  assert not np.any(np.triu(matrix, 1)) and not np.any(np.tril(matrix, -3))
  assert Banded.from_matrix(matrix) == strategy
  assert Banded.from_matrix(matrix, num_bands=5).num_bands == 5
  assert Banded.from_matrix(matrix, 5).rmse() == pytest.approx(strategy.rmse())


@pytest.mark.parametrize(
  'diagonals, error, message',
  [
    (np.ones(3), ValueError, r'\[num_bands, 3\].*got shape \(3,\)'),
    (np.ones((0, 3)), ValueError, '1 to 3 bands'),
    (np.ones((4, 3)), ValueError, '1 to 3 bands'),
    ([[1, 1, 1], [1, np.inf, 0]], ValueError, r'finite, but \[1, 1\] is inf'),
    ([[1, 1, 1], [1, 1, 7]], ValueError, r'past row 2 .* \[1, 2\] is 7'),
    ([[1, -2, 1]], ValueError, r'main diagonal, but \[0, 1\] is -2'),
    (None, TypeError, 'real numbers'),
  ],
)
def test_invalid_diagonals_are_refused(diagonals, error, message):
  with pytest.raises(error, match=message):
    Banded(3, diagonals)


@pytest.mark.few(1)
@pytest.mark.parametrize('size', [(128, 16), (512, 64)])
def test_mean_error_is_within_0_05_percent_of_recorded_error(size):
  strategy = banded.optimize(size[0], num_bands=size[1], cache=False)
  assert strategy.rmse() <= 1.0005 * recorded_error(*size, 'mean', 'rmse')
  # A lower bound that was certified by another optimisation.
  (recorded_bound,) = (
    result['certified_lower_bound_mse']
    for result in every_kind.figures('banded_via_dense_gram_optimisation')
    if (result['num_rounds'], result['num_bands']) == size
  )
  assert strategy.rmse() ** 2 >= recorded_bound
  certificate = banded.certify(strategy)
  assert certificate.error == pytest.approx(strategy.rmse() ** 2, rel=1e-12)
  assert recorded_bound <= certificate.lower_bound <= certificate.error
  assert certificate.gap <= 1e-5


def test_max_error_is_within_0_05_percent_of_recorded_error():
  strategy = banded.optimize(128, num_bands=16, objective='max', max_gap=1e-3)
  assert strategy.max_error() <= 1.0005 * recorded_error(128, 16, 'max', 'max_error')
  certificate = banded.certify(strategy, 'max')
  assert certificate.error == pytest.approx(strategy.max_error() ** 2, rel=1e-12)
  assert 0 <= certificate.gap <= 1e-3


@pytest.mark.few(5)
@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('name', WORKLOADS)
def test_optimum_has_unit_columns_and_a_small_certified_gap(name, objective):
  workload = WORKLOADS[name]
  strategy = banded.optimize(12, num_bands=4, objective=objective, workload=workload)
  assert strategy.num_bands == 4 and strategy.num_rounds == 12
  columns = np.linalg.norm(strategy.materialize(), axis=0)
  np.testing.assert_allclose(columns, 1.0, rtol=1e-12)
  gap = banded.certify(strategy, objective, workload).gap
  assert 0 <= gap <= (1e-5 if objective == 'mean' else 1e-3)


@pytest.mark.few(3)
@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('num_bands', [1, 3, 12])
def test_certificate_is_below_every_strategy_with_unit_columns(num_bands, objective):
  optimum = banded.optimize(12, num_bands=num_bands, objective=objective, cache=False)
  bound = banded.certify(optimum, objective).lower_bound
  for seed in range(50):
    other = random_banded(12, num_bands, seed, unit_columns=True)
    nearby = Banded(12, banded.unit_columns(optimum.diagonals + 1e-3 * other.diagonals))
    for strategy in (other, nearby):
      errors = np.square(np.tri(12) @ np.linalg.inv(strategy.materialize())).sum(axis=1)
      assert bound <= (errors.mean() if objective == 'mean' else errors.max())


def test_unreachable_max_gap_is_an_error_with_the_reached_gap():
  with pytest.raises(ValueError, match='max_gap=1e-15 cannot be reached.*gap stays at'):
    banded.optimize(12, num_bands=3, max_gap=1e-15, cache=False)


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    ({'num_rounds': 0}, ValueError, 'num_rounds must be at least 1'),
    ({'num_bands': 0}, ValueError, 'num_bands must be at least 1'),
    ({'num_bands': 9}, ValueError, 'at most num_rounds=8, got 9'),
    ({'max_gap': 0.0}, ValueError, 'max_gap must be positive'),
    ({'workload': np.ones((8, 8))}, ValueError, 'workload must be lower-tri'),
    ({'workload': Workload(9)}, ValueError, 'same number'),
    ({'participation': Participation(8, 2)}, ValueError, 'more than min_separation'),
  ],
)
def test_optimize_refuses_invalid_arguments(arguments, error, message):
  with pytest.raises(error, match=message):
    banded.optimize(**{'num_rounds': 8, 'num_bands': 3, 'cache': False, **arguments})


def test_cache_is_keyed_by_objective_workload_and_max_gap(tmp_path, monkeypatch):
  monkeypatch.setenv('TFF_DP_AGGREGATORS_CACHE', str(tmp_path))
  first = banded.optimize(8, num_bands=2)
  monkeypatch.setattr(banded, '_optimize', None)
  assert banded.optimize(8, num_bands=2) == first
  assert banded.optimize(8, num_bands=2, participation=Participation(8, 4)) == first
  changes = ({'objective': 'max'}, {'workload': Workload(8, 0.5)}, {'max_gap': 0.1})
  for changed in changes:
    with pytest.raises(TypeError, match='NoneType'):  # Not in the cache.
      banded.optimize(8, num_bands=2, **changed)
