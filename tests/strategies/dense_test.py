"""Dense strategies: columns count, not rows; the optimum, and that it is one."""

import json
import math
import pathlib

import numpy as np
import pytest

from tff_dp_aggregators.strategies import BandedToeplitz
from tff_dp_aggregators.strategies import BinaryTree
from tff_dp_aggregators.strategies import Dense
from tff_dp_aggregators.strategies import Identity
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import dense

ORACLE = json.loads(
  pathlib.Path(__file__).with_name('matrix_factorization.json').read_text()
)['results']
RECORDED = next(r for r in ORACLE if r['strategy'] == 'dense_optimal')
SCHEMAS = {
  'single': None,
  'every epoch': Participation(12, 4, fixed_epoch=True),
  'an epoch cut off': Participation(11, 4, fixed_epoch=True),
  'every round': Participation(6, 1, fixed_epoch=True),
  'one epoch': Participation(6, 7, fixed_epoch=True),
}


def rounds_of(participation):
  return 12 if participation is None else participation.num_rounds


def random_dense(num_rounds, seed=0):
  rng = np.random.default_rng(seed)
  matrix = np.tril(rng.normal(size=(num_rounds, num_rounds)))
  np.fill_diagonal(matrix, rng.uniform(0.3, 2.0, num_rounds))
  return Dense(num_rounds, matrix)


def worst_with_signs(matrix, participation, signs):
  """The worst ||C u||^2 over patterns and the given signs of contributions."""
  return max(
    np.square(matrix[:, list(p)] @ signs[list(p)]).sum(axis=0).max()
    for p in participation.patterns()
  )


# Columns, not rows.


def test_unit_rows_are_not_unit_columns():
  # The row-normalised matrix of a published peer: noise that is scaled as if its
  # sensitivity were 1 is too small, here by the factor 1.9.
  share = math.sqrt((1.9**2 - 1) / 9)
  matrix = np.diag([1.0] + [math.sqrt(1 - share**2)] * 9)
  matrix[1:, 0] = share
  np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1.0)
  strategy = Dense(10, matrix)
  assert strategy.sensitivity() == pytest.approx(1.9)
  assert banded.Banded.from_matrix(matrix).sensitivity() == pytest.approx(1.9)
  every_round = Participation(10, min_separation=1)
  assert strategy.sensitivity(every_round) > 1.9


@pytest.mark.parametrize('objective', ['mean', 'max'])
def test_optimisers_normalise_columns_and_leave_rows_free(objective):
  for strategy in (
    dense.optimize(16, objective=objective, cache=False),
    banded.optimize(16, num_bands=16, objective=objective, cache=False),
    banded.optimize(16, num_bands=4, objective=objective, cache=False),
  ):
    matrix = strategy.materialize()
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=0), 1.0, rtol=1e-12)
    assert np.ptp(np.linalg.norm(matrix, axis=1)) > 0.2
    assert strategy.sensitivity() == pytest.approx(1.0, rel=1e-12)


# Sensitivity.


def test_single_participation_is_the_longest_column_after_every_round():
  strategy = random_dense(7)
  expected = np.cumsum(np.square(strategy.matrix), axis=0).max(axis=1)
  np.testing.assert_allclose(strategy.sensitivity_squared_by_round(), expected)
  assert strategy.sensitivity_kind() == 'exact'


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize(
  'schema',
  [
    Participation(7, 2, 3),
    Participation(7, 1),
    Participation(7, 3, fixed_epoch=True),
    Participation(7, 2, 2, fixed_epoch=True),
  ],
)
def test_sensitivity_is_never_below_what_a_client_can_do(schema, seed):
  strategy = random_dense(7, seed)
  every_sign = 1.0 - 2.0 * ((np.arange(128) >> np.arange(7)[:, None]) & 1)
  worst = worst_with_signs(strategy.matrix, schema, every_sign)
  assert strategy.sensitivity_squared(schema) >= worst * (1 - 1e-12)
  positive = Dense(7, np.abs(strategy.matrix))
  if schema.fixed_epoch and schema.max_participations == 3:
    worst = worst_with_signs(positive.matrix, schema, np.ones((7, 1)))
    assert positive.sensitivity_squared(schema) == pytest.approx(worst, rel=1e-12)
    assert positive.sensitivity_kind(schema) == 'exact'


def test_orthogonal_columns_have_an_exact_sensitivity():
  schema = Participation(12, 4, 2, fixed_epoch=True)
  strategy = dense.optimize(12, participation=schema, cache=False)
  assert strategy.sensitivity_kind(schema) == 'exact'
  assert strategy.sensitivity(schema) == pytest.approx(math.sqrt(2), rel=1e-9)
  others = Participation(12, 3, 3, fixed_epoch=True)
  assert random_dense(12).sensitivity_kind(others) == 'bound'


# Errors.


# The optimum.


def test_mean_error_is_at_most_the_recorded_one_and_above_its_certificate():
  strategy = dense.optimize(128, cache=False)
  assert strategy.rmse() <= RECORDED['rmse']
  assert strategy.rmse() ** 2 >= RECORDED['certified_lower_bound_mse']
  certificate = dense.certify(strategy)
  assert certificate.error == pytest.approx(strategy.rmse() ** 2)
  assert 0 <= certificate.gap <= 1e-6
  assert certificate.scope.startswith('all strategies of 128 rounds, for Participation')


@pytest.mark.few(4)
@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('name', SCHEMAS)
def test_optimum_is_certified(name, objective):
  schema = SCHEMAS[name]
  n = rounds_of(schema)
  strategy = dense.optimize(n, objective=objective, participation=schema, cache=False)
  assert strategy.sensitivity(schema) == pytest.approx(1.0, rel=1e-9)
  certificate = dense.certify(strategy, objective, schema)
  assert 0 <= certificate.gap <= (1e-6 if objective == 'mean' else 1e-3)
  total = strategy.rmse(schema) if objective == 'mean' else strategy.max_error(schema)
  assert certificate.error == pytest.approx(total**2)


@pytest.mark.few(4)
@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('name', SCHEMAS)
def test_certificate_is_below_every_strategy(name, objective):
  schema = SCHEMAS[name]
  n = rounds_of(schema)
  optimum = dense.optimize(n, objective=objective, participation=schema, cache=False)
  bound = dense.certify(optimum, objective, schema).lower_bound
  others = [Identity(n), BinaryTree(n), BandedToeplitz.square_root(n, n)]
  for seed in range(100):
    other = random_dense(n, seed)
    others += [other, Dense(n, optimum.matrix + 1e-3 * other.matrix)]
  for other in others:
    error = other.rmse(schema) if objective == 'mean' else other.max_error(schema)
    assert bound <= error**2, other


def test_what_is_not_known_for_fewer_epochs_is_bounded():
  schema = Participation(12, 4, 2, fixed_epoch=True)
  certificate = dense.certify(
    dense.optimize(12, participation=schema, cache=False), participation=schema
  )
  assert 0 < certificate.gap < 0.3


def test_min_separation_is_certified_by_the_fixed_epochs_within_it():
  schema = Participation(12, 4)
  strategy = banded.optimize(12, num_bands=4, cache=False)
  certificate = dense.certify(strategy, participation=schema)
  assert certificate.error == pytest.approx(strategy.rmse(schema) ** 2)
  assert 0 < certificate.gap < 1


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    ({'num_rounds': 0}, ValueError, 'num_rounds must be at least 1'),
    ({'objective': 'median'}, ValueError, 'objective'),
    ({'participation': Participation(9)}, ValueError, 'same number'),
    (
      {'participation': Participation(8, 2)},
      ValueError,
      r'banded.optimize.*num_bands=2',
    ),
    ({'workload': np.ones((8, 8))}, ValueError, 'workload'),
    ({'workload': Workload(8, 0.0, (1.0,) * 7 + (0.0,))}, ValueError, 'row 7 is 0'),
  ],
)
def test_bad_arguments_are_refused(arguments, error, message):
  with pytest.raises(error, match=message):
    dense.optimize(**{'num_rounds': 8, 'cache': False, **arguments})


# The matrix, and files.
