"""Norms of rounds that `benchmarks.round_scales` prints are optimal."""

import numpy as np
import pytest
import scipy.optimize

from benchmarks import _round_norms
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies.numerics import bands

_SCHEMAS = {
  'whole epochs': Participation(8, 2),
  'a part of an epoch': Participation(8, 3),
  'done early': Participation(8, 2, 3),
  'once': Participation(8, 2, 1),
  'fixed epochs': Participation(8, 2, fixed_epoch=True),
  'fixed, a part of an epoch': Participation(8, 3, fixed_epoch=True),
}


def _units(num_rounds, num_bands, seed):
  random = np.random.default_rng(seed)
  diagonals = random.uniform(-0.3, 1.0, (num_bands, num_rounds))
  diagonals[0] = random.uniform(0.5, 1.5, num_rounds)
  diagonals = np.where(bands.mask(num_bands, num_rounds), diagonals, 0.0)
  return banded.unit_columns(diagonals)


def _sums(squares, participation):
  return np.array([squares[list(rounds)].sum() for rounds in participation.patterns()])


@pytest.mark.few(6)
@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('schema', _SCHEMAS)
def test_best_norms_match_numerical_optimum(schema, seed):
  participation = _SCHEMAS[schema]
  units = _units(8, participation.min_separation, seed)
  costs = _round_norms.norm_costs(units)
  actual = _round_norms.BestNorms(participation)(costs)
  sums = _sums(actual.squares, participation)
  assert sums.max() == pytest.approx(1.0, abs=1e-14) and sums.max() <= 1.0 + 1e-14

  # The optimizer varies logarithms of norms, in which the problem is smooth.
  def error(logarithms):
    return np.exp(-logarithms) @ costs @ np.exp(-logarithms)

  expected = scipy.optimize.minimize(
    error,
    np.full(8, -1.0),
    method='SLSQP',
    constraints={
      'type': 'ineq',
      'fun': lambda logarithms: 1.0 - _sums(np.exp(2 * logarithms), participation),
    },
    options={'ftol': 1e-13, 'maxiter': 1000},
  )
  assert expected.success
  assert actual.error == pytest.approx(expected.fun, rel=1e-6)
  assert actual.error == pytest.approx(actual.lower_bound, rel=1e-8)
