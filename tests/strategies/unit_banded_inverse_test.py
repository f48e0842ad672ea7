"""Tests of banded inverses with unit columns, C = T diag(1 / |t_j|).

`sensitivity_test` compares their sensitivity with brute force.
"""

import itertools
import math

import numpy as np
import pytest

from tests.strategies import every_kind
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import UnitBandedInverse
from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies import banded_inverse
from tff_dp_aggregators.strategies.numerics import toeplitz_sensitivity

SIGNED = (1.0, -0.5, 0.3, -0.4)


def dense_noise(num_rounds, coefficients):
  """Returns C^-1 from its definition: rows of T^-1 times the norms of T's columns."""
  inverse = every_kind.lower_toeplitz(coefficients, num_rounds)
  return np.linalg.norm(np.linalg.inv(inverse), axis=0)[:, np.newaxis] * inverse


@pytest.mark.parametrize('num_rounds', [1, 2, 9])
@pytest.mark.parametrize('coefficients', [(1.0,), (1.0, -0.9), (2.0, 0.5), SIGNED])
def test_matrices_and_noise_equal_dense_linear_algebra(num_rounds, coefficients):
  coefficients = coefficients[:num_rounds]
  strategy = UnitBandedInverse(num_rounds, coefficients)
  noise = dense_noise(num_rounds, coefficients)
  matrix = np.linalg.inv(noise)
  np.testing.assert_allclose(np.linalg.norm(matrix, axis=0), 1.0, rtol=1e-12)
  np.testing.assert_allclose(strategy.materialize(), matrix, atol=1e-13)
  np.testing.assert_allclose(strategy.noise_matrix(), noise, atol=1e-13)


@pytest.mark.parametrize('fixed_epoch', [False, True])
@pytest.mark.parametrize('last', [0.3, 0.99, 0.9999])
def test_sensitivity_of_two_bands_matches_published_closed_form(last, fixed_epoch):
  # k + 2 sum over pairs of last^(distance) |t_j| / |t_i|, as opaque computes it
  # (JetBrains-Research/opaque, lambda_cgd_normalized_sensitivity_squared, which cites
  # lemma 8 of arXiv:2601.22334).
  for n, separation, times in (
    (100, 10, 3),
    (100, 10, 10),
    (301, 7, 43),
    (60, 1, 60),
  ):
    participation = Participation(n, separation, times, fixed_epoch)
    rounds = separation * np.arange(times)
    norms = np.sqrt([math.fsum(last ** (2 * s) for s in range(n - r)) for r in rounds])
    expected = float(times)
    for i, j in itertools.combinations(range(times), 2):
      distance = int(rounds[j] - rounds[i])
      expected += 2.0 * last**distance * norms[j] / norms[i]
    strategy = UnitBandedInverse(n, (1.0, -last))
    assert strategy.sensitivity_squared(participation) == pytest.approx(
      expected, rel=1e-11
    )
    assert strategy.sensitivity_kind(participation) == 'exact'


@pytest.mark.parametrize('workload', [None, Workload(150, 0.9)], ids=repr)
@pytest.mark.parametrize('exponent', [0.3, 0.9])
def test_sensitivity_of_roots_is_exact(exponent, workload):
  for num_bands in (2, 16):
    strategy = UnitBandedInverse.root(
      150, num_bands, exponent=exponent, workload=workload
    )
    for separation, times in ((30, 5), (10, 15), (75, 2)):
      participation = Participation(150, separation, times)
      assert strategy.sensitivity_kind(participation) == 'exact'
      response = strategy.materialize()[:, list(participation.rounds)].sum(axis=1)
      assert strategy.sensitivity(participation) == pytest.approx(
        np.linalg.norm(response), rel=1e-12
      )


@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('workload', [None, Workload(100, 0.9)], ids=repr)
def test_best_root_is_at_least_as_good_as_any_exponent(objective, workload):
  participation = Participation(100, 20)
  arguments = {
    'objective': objective,
    'participation': participation,
    'workload': workload,
    'unit_columns': True,
  }
  for num_bands in (2, 5):
    best = banded_inverse.best_root(100, num_bands=num_bands, **arguments)
    best_error = best.error(objective, participation, workload)
    for exponent in np.linspace(0, 1, 11):
      root = UnitBandedInverse.root(
        100, num_bands, exponent=exponent, workload=workload
      )
      assert best_error <= root.error(objective, participation, workload) * (1 + 1e-6)


def test_sensitivity_is_a_bound_if_pairs_exceed_the_maximum(monkeypatch):
  monkeypatch.setattr(toeplitz_sensitivity, '_MAX_PAIRS', 100)
  strategy = UnitBandedInverse(300, (1.0, -0.9))
  participation = Participation(300, 100)
  assert strategy.sensitivity_squared(participation) == pytest.approx(9.0)
  assert strategy.sensitivity_kind(participation) == 'bound'
