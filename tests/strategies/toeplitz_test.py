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
import scipy.optimize
import scipy.signal

from tff_dp_aggregators.strategies import BandedToeplitz
from tff_dp_aggregators.strategies import Identity
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies.numerics import series_problem

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


def test_asymmetric_strategy_is_lower_triangular_and_counts_columns():
  # Rows 1 and 2 have norm 5, columns 0 and 1 as well, column 2 has norm 3.
  strategy = BandedToeplitz(3, (3.0, 4.0))
  np.testing.assert_array_equal(
    strategy.materialize(), [[3, 0, 0], [4, 3, 0], [0, 4, 3]]
  )
  np.testing.assert_array_equal(strategy.sensitivity_squared_by_round(), [9, 25, 25])


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


def test_identity_is_the_gaussian_sum():
  strategy = Identity(50)
  np.testing.assert_array_equal(strategy.materialize(), np.eye(50))
  np.testing.assert_array_equal(strategy.materialize_estimator(), np.tri(50))
  np.testing.assert_array_equal(strategy.noise_matrix(), np.eye(50))
  np.testing.assert_allclose(strategy.per_query_error(), np.arange(1, 51))
  assert strategy.noise_buffers == 0
  assert strategy.rmse() == pytest.approx(math.sqrt(51 / 2))
  assert strategy.max_error() == pytest.approx(math.sqrt(50))
  for k in (1, 3, 7):
    sensitivity = strategy.sensitivity(Participation(50, 2, k))
    assert sensitivity == pytest.approx(math.sqrt(k), rel=1e-15)


def test_other_coefficients_are_no_identity():
  with pytest.raises(ValueError, match='use BandedToeplitz'):
    Identity(5, (1.0, 0.5))
  with pytest.raises(ValueError, match='use BandedToeplitz'):
    Identity(5, (2.0,))


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
  with pytest.raises(TypeError, match='coefficients must be a sequence of numbers'):
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
WORKLOADS = {
  'prefix': None,
  'momentum': Workload(12, 0.9),
  'cooldown': Workload.cooldown(12, cooldown_rounds=8),
  'momentum_and_cooldown': Workload.cooldown(12, momentum=0.9),
  'array': np.tril(np.random.default_rng(0).normal(size=(12, 12))),
}
each_workload = pytest.mark.parametrize('workload', WORKLOADS)


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


def best_of_a_general_optimiser(strategy, measure):
  """Nelder and Mead's simplex from nearby, on coefficients relative to the first."""
  relative = np.array(strategy.coefficients[1:]) / strategy.coefficients[0]
  start = relative * (1 + 0.05 * np.random.default_rng(1).normal(size=len(relative)))

  def function(z):
    return measure(type(strategy)(strategy.num_rounds, (1.0, *z)))

  options = {'xatol': 1e-8, 'fatol': 1e-11, 'maxiter': 2000}
  for _ in range(2):
    found = scipy.optimize.minimize(
      function, start, method='Nelder-Mead', options=options
    )
    start = found.x
  return found.fun


@each_objective
@each_workload
@pytest.mark.parametrize('several', [False, True])
def test_no_better_bands_are_found_without_derivatives(workload, objective, several):
  participation = Participation(12, 5) if several else None
  workload = WORKLOADS[workload]
  strategy = optimize(
    12, num_bands=4, objective=objective, participation=participation, workload=workload
  )
  assert strategy.sensitivity_kind(participation) == 'exact'
  best = best_of_a_general_optimiser(
    strategy, lambda s: error(s, objective, participation, workload)
  )
  # A maximum of rows that are not sorted is approached to this: see MAX_TOLERANCE.
  slack = 1e-6 if objective == 'max' else 1e-9
  assert error(strategy, objective, participation, workload) <= best * (1 + slack)


@each_objective
def test_random_starts_end_in_the_same_minimum(objective):
  rng = np.random.default_rng(0)
  problem = series_problem.check(100, 12, objective, None, None)

  def family(column):
    return series_problem.of_column(column, 100) if column[0] > 0 else None

  ends = []
  for _ in range(5):
    start = 0.7 ** np.arange(12) * rng.normal(size=12)
    start[0] = 1.0
    end = problem.minimize(family, start, lambda _: None).parameters
    ends.append(end / end[0])
  np.testing.assert_allclose(ends, np.broadcast_to(ends[0], (5, 12)), rtol=1e-5)


def test_all_bands_and_the_largest_error_lead_to_the_square_root():
  # Of Toeplitz matrices it is the best for prefix sums (arXiv:2202.11205).
  strategy = optimize(200, num_bands=200, objective='max')
  square_root = BandedToeplitz.square_root(200, 200)
  np.testing.assert_allclose(strategy.coefficients, square_root.coefficients, rtol=1e-9)


def test_more_bands_are_never_worse_for_a_single_participation():
  errors = [optimize(60, num_bands=bands).rmse() for bands in (1, 2, 5, 20, 60)]
  assert np.all(np.diff(errors) < 0)
  assert errors[0] == Identity(60).rmse()
  assert optimize(60, num_bands=None).rmse() == errors[-1]


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


@each_objective
@each_workload
def test_bands_beyond_the_separation_are_tried_or_shown_to_be_useless(
  workload, objective
):
  # What is shown by conditions on derivatives agrees with trying.
  workload = WORKLOADS[workload]
  participation = Participation(12, 4)
  fewer = optimize(
    12, num_bands=4, objective=objective, participation=participation, workload=workload
  )
  more = optimize(
    12, num_bands=8, objective=objective, participation=participation, workload=workload
  )
  assert more.sensitivity_kind(participation) == 'exact'
  best = error(more, objective, participation, workload)
  assert best <= error(fewer, objective, participation, workload) * (1 + 1e-6)
  rng = np.random.default_rng(0)
  coefficients = np.zeros(8)
  coefficients[: more.num_bands] = more.coefficients
  for size in (1e-1, 1e-2, 1e-3) * 10:
    other = np.abs(coefficients + size * rng.normal(size=8))
    other[4:] = np.sort(other[4:])[::-1]
    changed = BandedToeplitz(12, other)
    assert changed.sensitivity_kind(participation) == 'exact'
    changed_error = error(changed, objective, participation, workload)
    assert changed_error >= best * (1 - 2e-6)


@each_objective
def test_overlapping_bands_help_a_client_who_comes_back_once(objective):
  participation = Participation(200, 10, 2)
  errors = []
  for num_bands in (10, 20, 50):
    strategy = optimize(
      200, num_bands=num_bands, objective=objective, participation=participation
    )
    assert strategy.sensitivity_kind(participation) == 'exact'
    assert strategy.num_bands == num_bands
    errors.append(error(strategy, objective, participation))
  assert errors[2] < 0.97 * errors[1] < 0.95 * errors[0]


@each_objective
def test_no_feasible_change_improves_overlapping_bands(objective):
  participation = Participation(60, 6, 3)
  strategy = optimize(
    60, num_bands=30, objective=objective, participation=participation
  )
  best = error(strategy, objective, participation)
  rng = np.random.default_rng(0)
  coefficients = np.array(strategy.coefficients)
  tried = 0
  for size in (1e-1, 1e-2, 1e-3, 1e-4) * 25:
    other = np.abs(coefficients + size * rng.normal(size=30) * coefficients)
    other[6:] = np.sort(other[6:])[::-1]
    changed = BandedToeplitz(60, other)
    tried += changed.sensitivity_kind(participation) == 'exact'
    assert error(changed, objective, participation) >= best * (1 - 1e-8)
  assert tried == 100


def test_truncated_last_columns_are_counted_as_they_are():
  # The third participation has only 2 rows left: cheaper than a factor sqrt(3).
  participation = Participation(12, 5)
  strategy = optimize(12, num_bands=5, participation=participation)
  assert strategy.sensitivity(participation) < math.sqrt(3) * strategy.sensitivity()
  matrix = lower_toeplitz(12, strategy.coefficients)
  worst = brute_force_by_round(matrix, all_patterns(12, 5, 3))[-1]
  assert strategy.sensitivity(participation) ** 2 == pytest.approx(worst, rel=1e-13)


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_errors_of_a_million_rounds_are_those_of_term_by_term_division(momentum):
  n = 10**6
  strategy = BandedToeplitz.square_root(n, 300)
  column = Workload(n, momentum).coefficients()
  quotient = scipy.signal.lfilter([1.0], strategy.coefficients, column)
  np.testing.assert_allclose(
    strategy.per_query_error(Workload(n, momentum)),
    np.cumsum(np.square(quotient)),
    rtol=1e-11,
  )


def test_a_cooldown_makes_the_largest_error_one_of_the_middle():
  # So that it takes more than the last row to minimise it.
  workload = Workload.cooldown(60)
  strategy = optimize(60, num_bands=15, objective='max', workload=workload)
  per_query = strategy.per_query_error(workload)
  assert per_query.argmax() < 59
  assert strategy.max_error(None, workload) < (
    optimize(60, num_bands=15, workload=workload).max_error(None, workload)
  )


def test_what_was_optimised_once_is_read_from_disk(tmp_path, monkeypatch):
  monkeypatch.setenv('TFF_DP_AGGREGATORS_CACHE', str(tmp_path))
  workload = np.tri(20)
  first = toeplitz.optimize(20, num_bands=4, workload=workload)
  with monkeypatch.context() as patch:
    patch.setattr(toeplitz, '_optimize', None)
    assert toeplitz.optimize(20, num_bands=4, workload=np.tri(20)) == first
    with pytest.raises(TypeError):
      toeplitz.optimize(20, num_bands=4, workload=2 * workload)
    with pytest.raises(TypeError):
      toeplitz.optimize(20, num_bands=4, objective='max', workload=workload)


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


def test_optimiser_says_for_how_many_rounds_it_takes_a_changing_learning_rate():
  with pytest.raises(ValueError, match='for at most 4096 rounds, got 5000'):
    toeplitz.optimize(5000, num_bands=2, workload=Workload.cooldown(5000))


def test_sensitivity_of_independent_noise_is_that_of_any_toeplitz_matrix():
  for n, b, k, fixed in [(1, 1, 1, False), (30, 1, 30, False), (31, 7, 4, True)]:
    limits = Participation(n, b, k, fixed_epoch=fixed)
    any_of_it = BandedToeplitz(n, (1.0,))
    for name in ('sensitivity_squared', 'sensitivity_kind'):
      assert getattr(Identity(n), name)(limits) == getattr(any_of_it, name)(limits)
  with pytest.raises(ValueError, match='same number'):
    Identity(5).sensitivity_squared(Participation(6))
