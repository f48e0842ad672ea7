"""Tests of searched scales and column norms: the sensitivity that they keep."""

import numpy as np
import pytest

from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies.numerics import series_problem

_LIMITS = [
  (24, 6, 4),
  (22, 6, 4),
  (22, 6, 2),
  (23, 11, 3),
  (13, 12, 2),
  (9, 1, 9),
  (300, 2, 139),
]


def _by_round(norms, limits, searched):
  return np.repeat(norms(searched), np.diff([*norms.starts, limits.num_rounds]))


@pytest.mark.parametrize('limits', _LIMITS, ids=str)
def test_column_norms_bound_every_pattern_and_densest_attains_it(limits):
  limits = Participation(*limits)
  times = limits.possible_participations
  norms = series_problem.ColumnNorms(limits)
  rng = np.random.default_rng(1)
  for searched in [norms.start, *rng.normal(size=(20, len(norms.start)))]:
    squares = np.square(_by_round(norms, limits, searched))
    worst = float(participation_lib.worst_sum(squares, limits))
    assert worst <= times * (1 + 1e-12)
    # With more, several epochs share a norm, and the worst patterns begin later.
    if times < 100:
      assert squares[list(limits.rounds)].sum() == pytest.approx(times, rel=1e-12)
    assert np.all(squares > 0)


@pytest.mark.parametrize('limits', _LIMITS, ids=str)
def test_scales_have_the_stated_squared_sensitivity(limits):
  limits = Participation(*limits)
  rng = np.random.default_rng(4)
  column = np.append(1.0, rng.uniform(0.1, 0.5, size=limits.min_separation - 1))
  lengths = np.minimum(limits.num_rounds - np.arange(limits.num_rounds), len(column))
  squares = np.cumsum(np.square(column))[lengths - 1]
  for kind in (series_problem.DisjointScales, series_problem.FallingScales):
    scales = kind(limits)
    searched = scales.start + rng.normal(scale=0.3, size=len(scales.start))
    scaled = scales(searched, column)
    by_round = np.repeat(scaled.scales, np.diff([*scales.starts, limits.num_rounds]))
    worst = float(participation_lib.worst_sum(squares * np.square(by_round), limits))
    assert worst <= scaled.squared_sensitivity * (1 + 1e-12)
    if limits.possible_participations < 100:
      assert worst == pytest.approx(scaled.squared_sensitivity, rel=1e-12)


def test_falling_scales_decrease_and_have_mean_square_one():
  limits = Participation(300, 2, 139)
  scales = series_problem.FallingScales(limits)
  # 139 rounds of a client are in blocks of five; the last block has four.
  assert scales.starts == list(range(0, 280, 10))
  searched = np.random.default_rng(2).normal(scale=0.2, size=27)
  scale_values = scales(searched, np.ones(2)).scales
  assert np.all(np.diff(scale_values) <= 0)
  assert np.square(np.repeat(scale_values, [5] * 27 + [4])).mean() == pytest.approx(1.0)
