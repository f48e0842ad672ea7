"""Toeplitz strategies: sensitivity by brute force, errors by dense linear algebra.

Privacy is checked against every participation pattern of small matrices, for every
prefix of rounds, and called a bound where it is not known exactly; errors are checked
against B = A C^-1 computed densely and against peers' figures, which are in
matrix_factorization.json.
"""

import itertools
import json
import math
import pathlib

import numpy as np
import pytest

from tff_dp_aggregators.strategies import BandedToeplitz
from tff_dp_aggregators.strategies import Identity
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import toeplitz

ORACLE = json.loads(
  pathlib.Path(__file__).with_name('matrix_factorization.json').read_text()
)['results']
# Unordered signs and sizes: exact only while the columns of a client do not overlap.
MIXED = (1.0, -0.75, 0.5, 0.0, -2.0)


def figures(strategy):
  return [result for result in ORACLE if result['strategy'] == strategy]


def lower_toeplitz(num_rounds, coefficients):
  """C from its definition, entry by entry."""
  matrix = np.zeros((num_rounds, num_rounds))
  for i, j in itertools.product(range(num_rounds), repeat=2):
    if 0 <= i - j < len(coefficients):
      matrix[i, j] = coefficients[i - j]
  return matrix


def all_patterns(num_rounds, min_separation, max_participations):
  """Every allowed 0/1 vector as a column, found among all 2^n."""
  masks = np.arange(2**num_rounds)
  bits = (masks[None, :] >> np.arange(num_rounds)[:, None]) & 1
  allowed = bits.sum(axis=0) <= max_participations
  for gap in range(1, min(min_separation, num_rounds)):
    allowed &= ~np.any(bits[gap:] & bits[:-gap], axis=0)
  return bits[:, allowed]


def brute_force_by_round(matrix, patterns):
  """Entry t: largest squared norm of the first t + 1 rows of C u."""
  return np.cumsum(np.square(matrix @ patterns), axis=0).max(axis=1)


def test_square_root_coefficients_convolved_with_themselves_are_ones():
  coefficients = toeplitz.square_root_coefficients(500)
  square = np.convolve(coefficients, coefficients)[:500]
  np.testing.assert_allclose(square, np.ones(500), rtol=1e-12)


@pytest.mark.parametrize('num_rounds', range(1, 13))
def test_sensitivity_by_round_equals_brute_force_on_every_pattern(num_rounds):
  for num_bands in range(1, num_rounds + 1):
    strategy = BandedToeplitz.square_root(num_rounds, num_bands)
    matrix = strategy.materialize()
    for min_separation in range(1, num_rounds + 1):
      every = all_patterns(num_rounds, min_separation, num_rounds)
      for max_participations in {1, 2, 3, num_rounds}:
        patterns = every[:, every.sum(axis=0) <= max_participations]
        participation = Participation(num_rounds, min_separation, max_participations)
        expected = brute_force_by_round(matrix, patterns)
        profile = strategy.sensitivity_squared_by_round(participation)
        np.testing.assert_allclose(
          profile, expected, rtol=1e-13, err_msg=f'{participation}, {num_bands}'
        )


@pytest.mark.parametrize('num_rounds', [5, 9, 12])
@pytest.mark.parametrize(
  'coefficients',
  [
    MIXED,
    (0.5, 1.0, 3.0),
    (1.0, -1.0),
    (1.0, 0.0, 0.0, 1.0),
    (2.0, -1.0, -1.0, -1.0),
  ],
)
def test_bands_within_the_separation_are_exact_for_any_signs(num_rounds, coefficients):
  strategy = BandedToeplitz(num_rounds, coefficients)
  matrix = lower_toeplitz(num_rounds, coefficients)
  for min_separation in range(len(coefficients), num_rounds + 1):
    for max_participations in (1, 2, num_rounds):
      schema = num_rounds, min_separation, max_participations
      np.testing.assert_allclose(
        strategy.sensitivity_squared_by_round(Participation(*schema)),
        brute_force_by_round(matrix, all_patterns(*schema)),
        rtol=1e-13,
      )


@pytest.mark.parametrize(
  'coefficients',
  [(1.0,), (1.0, 1.0, 1.0), (3.0, 1.0, 1.0, 0.0), (1.0, 0.5, 0.25, 0.125, 0.0625)],
)
def test_overlapping_bands_are_exact_if_non_negative_and_non_increasing(coefficients):
  strategy = BandedToeplitz(11, coefficients)
  matrix = lower_toeplitz(11, coefficients)
  for schema in itertools.product([11], range(1, 12), [1, 2, 3, 11]):
    np.testing.assert_allclose(
      strategy.sensitivity_squared_by_round(Participation(*schema)),
      brute_force_by_round(matrix, all_patterns(*schema)),
      rtol=1e-13,
    )


@pytest.mark.parametrize(
  'coefficients, min_separation, kind',
  [
    (MIXED, 4, 'exact'),
    (MIXED, 1, 'bound'),
    ((1.0, -0.5), 1, 'exact'),  # Overlap cancels for equal signs, adds for opposite.
    ((0.5, 1.0, 3.0), 2, 'exact'),
    ((0.5, 1.0, 3.0), 1, 'exact'),
    ((1.0, 0.0, 0.5), 1, 'bound'),
    ((1.0, 0.5, -1e-300), 2, 'exact'),
  ],
)
def test_other_sensitivities_are_exact_or_bounds_as_they_say(
  coefficients, min_separation, kind
):
  strategy = BandedToeplitz(7, coefficients)
  participation = Participation(7, min_separation)
  assert strategy.sensitivity_kind(participation) == kind
  matrix = lower_toeplitz(7, coefficients)
  contributions = signed_patterns(7, min_separation)
  worst = brute_force_by_round(matrix, contributions)
  profile = strategy.sensitivity_squared_by_round(participation)
  assert np.all(profile >= worst * (1 - 1e-14))
  assert np.all(np.diff(profile) >= 0)
  if kind == 'exact':
    assert profile[-1] == pytest.approx(worst[-1], rel=1e-13)
  assert strategy.sensitivity_squared(participation) == profile[-1]
  assert strategy.sensitivity(participation) == math.sqrt(profile[-1])
  # A single participation has no overlap, and neither have two that cannot happen.
  norm = pytest.approx(np.linalg.norm(coefficients), rel=1e-15)
  assert strategy.sensitivity() == norm
  for exact in (
    None,
    Participation(7, min_separation, 1),
    Participation(7, 7, 5),
  ):
    assert strategy.sensitivity_kind(exact) == 'exact'
    assert strategy.sensitivity(exact) == norm


def signed_patterns(num_rounds, min_separation):
  """Every allowed vector of -1, 0 and 1 as a column."""
  signs = np.array(list(itertools.product([-1, 0, 1], repeat=num_rounds))).T
  allowed = np.ones(signs.shape[1], bool)
  for gap in range(1, min_separation):
    allowed &= ~np.any((signs[gap:] != 0) & (signs[:-gap] != 0), axis=0)
  return signs[:, allowed]


@pytest.mark.parametrize('num_rounds, num_bands', [(10, 3), (30, 30), (17, 1)])
def test_columns_and_not_rows_have_norm_one(num_rounds, num_bands):
  # A client's contribution to round j meets column j. Normalising rows instead makes
  # the first round's noise too small by the factor coefficients[0].
  strategy = BandedToeplitz.square_root(num_rounds, num_bands)
  matrix = strategy.materialize()
  columns = np.linalg.norm(matrix, axis=0)
  full = num_rounds - num_bands + 1
  np.testing.assert_allclose(columns[:full], 1.0, rtol=1e-14)
  assert np.all(columns <= 1 + 1e-14)
  assert strategy.sensitivity() == pytest.approx(columns.max(), rel=1e-14)
  assert matrix[0, 0] == strategy.coefficients[0]
  first_round = strategy.sensitivity_squared_by_round()[0]
  assert first_round == pytest.approx(strategy.coefficients[0] ** 2, rel=1e-14)
  if num_bands > 1:
    assert first_round < 0.9


@pytest.mark.parametrize(
  'strategy',
  [
    Identity(9),
    BandedToeplitz.square_root(12, 1),
    BandedToeplitz.square_root(40, 7),
    BandedToeplitz.square_root(33, 33),
    BandedToeplitz(20, MIXED[:3]),
    BandedToeplitz(1, (2.5,)),
  ],
  ids=lambda s: f'{s.kind}-{s.num_rounds}-{s.num_bands}',
)
def test_estimator_and_errors_equal_dense_linear_algebra(strategy):
  n = strategy.num_rounds
  matrix = lower_toeplitz(n, strategy.coefficients)
  np.testing.assert_array_equal(strategy.materialize(), matrix)
  estimator = np.tri(n) @ np.linalg.inv(matrix)
  np.testing.assert_allclose(strategy.materialize_estimator(), estimator, atol=1e-12)
  np.testing.assert_allclose(strategy.noise_matrix(), np.linalg.inv(matrix), atol=1e-12)
  error = np.square(estimator).sum(axis=1)
  np.testing.assert_allclose(strategy.per_query_error(), error, rtol=1e-11)
  participation = Participation(n, max(1, strategy.num_bands))
  sensitivity = math.sqrt(
    brute_force_by_round(
      matrix, np.eye(n)[:, list(participation.rounds)].sum(axis=1)[:, None]
    )[-1]
  )
  assert strategy.rmse(participation) == pytest.approx(
    sensitivity * np.linalg.norm(estimator) / math.sqrt(n), rel=1e-11
  )
  assert strategy.max_error(participation) == pytest.approx(
    sensitivity * np.linalg.norm(estimator, axis=1).max(), rel=1e-11
  )


@pytest.mark.parametrize('result', figures('full_toeplitz_square_root'), ids=str)
def test_full_square_root_has_the_published_error(result):
  n = result['num_rounds']
  strategy = BandedToeplitz.square_root(n, n)
  assert strategy.sensitivity() == pytest.approx(1.0, rel=1e-12)
  assert strategy.rmse() == pytest.approx(result['rmse'], rel=1e-12)
  assert strategy.max_error() == pytest.approx(result['max_error'], rel=1e-12)


@pytest.mark.parametrize(
  'coefficients, message',
  [
    ((), 'coefficients must be 1 to num_rounds=3 numbers, got 0'),
    ((1.0,) * 4, 'coefficients must be 1 to num_rounds=3 numbers, got 4'),
    ((0.0, 1.0), r'coefficients\[0\] must be positive, got 0.0'),
    ((-1.0,), r'coefficients\[0\] must be positive, got -1.0'),
    ((1.0, math.nan), 'coefficients must be finite'),
    ((math.inf,), 'coefficients must be finite'),
  ],
)
def test_coefficients_out_of_range_are_refused(coefficients, message):
  with pytest.raises(ValueError, match=message):
    BandedToeplitz(3, coefficients)


@pytest.mark.parametrize('coefficients', [1.0, None, ('a', 'b'), [[1.0, 2.0]]])
def test_coefficients_that_are_no_numbers_are_refused(coefficients):
  with pytest.raises(TypeError, match='coefficients must be'):
    BandedToeplitz(3, coefficients)


@pytest.mark.parametrize('num_rounds, num_bands, error, name', [
    (0, 1, ValueError, 'num_rounds'),
    (5, 0, ValueError, 'num_bands'),
    (5, 6, ValueError, 'num_bands must be at most num_rounds=5, got 6'),
    (5.0, 2, TypeError, 'num_rounds'),
    (5, 2.0, TypeError, 'num_bands'),
])  # fmt: skip
def test_square_root_refuses_wrong_sizes_by_name(num_rounds, num_bands, error, name):
  with pytest.raises(error, match=name):
    BandedToeplitz.square_root(num_rounds, num_bands)


def error(strategy, objective, participation=None, workload=None):
  measure = strategy.rmse if objective == 'mean' else strategy.max_error
  return measure(participation, workload)


each_objective = pytest.mark.parametrize('objective', ['mean', 'max'])


@pytest.mark.few(3)
@pytest.mark.parametrize('result', figures('banded_toeplitz'), ids=str)
def test_optimised_bands_have_the_peers_converged_error(result):
  objective = result['objective']
  strategy = optimize(
    result['num_rounds'], num_bands=result['num_bands'], objective=objective
  )
  peer = result['rmse'] if objective == 'mean' else result['max_error']
  assert error(strategy, objective) == pytest.approx(peer, rel=1e-12)
  assert strategy.sensitivity() == pytest.approx(1.0, rel=1e-14)
  assert strategy.num_bands == result['num_bands']


def optimize(*args, **kwargs):
  return toeplitz.optimize(*args, **kwargs, cache=False)


@each_objective
@pytest.mark.parametrize(
  'schema, known',
  [((2000, 400, 5), 7.8492), ((2000, 100, 20), 20.2067)],
)
def test_as_many_bands_as_the_separation_are_the_best_of_all(schema, known, objective):
  participation = Participation(*schema)
  strategy = optimize(
    schema[0], num_bands=None, objective=objective, participation=participation
  )
  assert strategy.num_bands == schema[1]
  assert strategy.sensitivity_kind(participation) == 'exact'
  assert strategy == optimize(
    schema[0], num_bands=schema[1], objective=objective, participation=participation
  )
  fewer = optimize(
    schema[0], num_bands=schema[1] - 1, objective=objective, participation=participation
  )
  best = error(strategy, objective, participation)
  assert best < error(fewer, objective, participation)
  if objective == 'mean':
    assert best <= known


def test_truncated_last_columns_are_counted_as_they_are():
  # The third participation has only 2 rows left: cheaper than a factor sqrt(3).
  participation = Participation(12, 5)
  strategy = optimize(12, num_bands=5, participation=participation)
  assert strategy.sensitivity(participation) < math.sqrt(3) * strategy.sensitivity()
  matrix = lower_toeplitz(12, strategy.coefficients)
  worst = brute_force_by_round(matrix, all_patterns(12, 5, 3))[-1]
  assert strategy.sensitivity(participation) ** 2 == pytest.approx(worst, rel=1e-13)


@pytest.mark.parametrize('arguments, error_type, message', [
    ({'num_rounds': 0}, ValueError, 'num_rounds must be at least 1'),
    ({'num_bands': 0}, ValueError, 'num_bands must be at least 1'),
    ({'num_bands': 6}, ValueError, 'num_bands must be at most num_rounds=5'),
    ({'num_rounds': 10**5, 'num_bands': 5000}, ValueError, 'at most 4096 to be opt'),
    ({'num_rounds': 5.0}, TypeError, 'num_rounds'),
    ({'num_bands': 2.0}, TypeError, 'num_bands'),
    ({'num_bands': True}, TypeError, 'num_bands'),
    ({'objective': 'rmse'}, ValueError, "objective must be 'mean' or 'max'"),
    ({'participation': Participation(6, 2)}, ValueError, 'num_rounds is 6'),
])  # fmt: skip
def test_optimiser_refuses_what_makes_no_sense(arguments, error_type, message):
  with pytest.raises(error_type, match=message):
    toeplitz.optimize(**{'num_rounds': 5, 'num_bands': 2, **arguments})


def test_sensitivity_of_independent_noise_is_that_of_any_toeplitz_matrix():
  for n, b, k, fixed in [(1, 1, 1, False), (30, 1, 30, False), (31, 7, 4, True)]:
    limits = Participation(n, b, k, fixed_epoch=fixed)
    any_of_it = BandedToeplitz(n, (1.0,))
    for name in ('sensitivity_squared', 'sensitivity_kind'):
      assert getattr(Identity(n), name)(limits) == getattr(any_of_it, name)(limits)
  with pytest.raises(ValueError, match='same number'):
    Identity(5).sensitivity_squared(Participation(6))


def test_square_root_coefficients_are_central_binomials():
  expected = [math.comb(2 * i, i) / 4**i for i in range(200)]
  np.testing.assert_allclose(
    toeplitz.square_root_coefficients(200), expected, rtol=1e-13
  )


@pytest.mark.parametrize('result', figures('banded_inverse_square_root'), ids=str)
def test_banded_inverse_square_root_has_the_published_error(result):
  # C^-1 holds the first coefficients of (1 - x)^(1/2); C itself is full.
  n, bands = result['num_rounds'], result['num_bands']
  inverse = [1.0]
  for i in range(1, bands):
    inverse.append(inverse[-1] * (2 * i - 3) / (2 * i))
  first_column = np.zeros(n)
  first_column[0] = 1.0
  for t in range(1, n):
    reach = min(t, bands - 1)
    first_column[t] = -np.dot(inverse[1 : reach + 1], first_column[t - reach : t][::-1])
  strategy = BandedToeplitz(n, first_column)
  assert strategy.rmse() == pytest.approx(result['rmse'], rel=1e-11)
  assert strategy.max_error() == pytest.approx(result['max_error'], rel=1e-11)
