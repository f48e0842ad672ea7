"""Tests of windowed BLTs (banded Toeplitz strategies of few decays) and tailed ones."""

import itertools
import math

import numpy as np
import pytest

from tests.strategies import every_kind
from tff_dp_aggregators.strategies import BLT
from tff_dp_aggregators.strategies import BandedToeplitz
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import TailedBLT
from tff_dp_aggregators.strategies import WindowedBLT
from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import recursion
from tff_dp_aggregators.strategies.numerics import blt_search

SCALES, DECAYS = every_kind.SCALES, every_kind.DECAYS


def test_coefficients_are_those_of_blt_in_window_plus_tail():
  coefficients = WindowedBLT(10, 4, SCALES, DECAYS).matrix_coefficients()
  uncut = BLT(10, SCALES, DECAYS).matrix_coefficients()
  np.testing.assert_array_equal(coefficients, [*uncut[:4], *[0.0] * 6])
  tailed = TailedBLT(10, 4, SCALES, DECAYS, 0.125, 0.5).matrix_coefficients()
  tail = [0.0, *(0.125 * 0.5**i for i in range(9))]
  np.testing.assert_allclose(tailed, coefficients + tail)


@pytest.mark.parametrize('window', [1, 4, 15])
@pytest.mark.parametrize('decay', [None, 0.0, 1.0])
def test_inverse_coefficients_match_dense_inverse(window, decay):
  strategy = WindowedBLT(15, window, SCALES, DECAYS)
  if decay is not None:
    strategy = TailedBLT(**strategy.parameters(), tail_scale=0.05, tail_decay=decay)
  dense = np.linalg.inv(strategy.materialize())
  np.testing.assert_allclose(strategy.inverse_coefficients(), dense[:, 0], atol=1e-14)


@pytest.mark.parametrize('num_rounds', [1, 9, 60])
def test_noise_buffers_never_exceed_those_of_banded_toeplitz(num_rounds):
  kinds = set()
  for window, num_decays in itertools.product(range(1, num_rounds + 1), range(4)):
    scales, decays = (0.1,) * num_decays, tuple(np.linspace(0.5, 0.9, num_decays))
    strategy = WindowedBLT(num_rounds, window, scales, decays)
    bands = BandedToeplitz(num_rounds, tuple(strategy.matrix_coefficients()[:window]))
    assert strategy.noise_buffers <= bands.noise_buffers
    assert strategy.noise_buffers <= strategy.num_copies * num_decays
    kinds.add(type(strategy.recursion()))
  assert num_rounds < 40 or kinds == {recursion.LastRounds, recursion.DecayingSums}
  assert WindowedBLT(4000, 40, SCALES, DECAYS).noise_buffers == 39


@pytest.mark.few(2)
@pytest.mark.parametrize(
  'b, k, objective, error_bound',
  [
    # BLTs without a window have 8.147 and 26.93 at best.
    (400, 5, 'mean', 7.85144),  # The best banded Toeplitz: 7.849.
    (100, 20, 'max', 25.76535),
  ],
)
def test_optimized_error_is_near_that_of_banded_toeplitz(b, k, objective, error_bound):
  participation = Participation(2000, b, k)
  strategy = blt.optimize_windowed(
    2000, num_decays=3, objective=objective, participation=participation
  )
  error = strategy.error(objective, participation)
  assert strategy.sensitivity_kind(participation) == 'exact'
  assert error <= error_bound


@pytest.mark.few(2)
@pytest.mark.parametrize('n', [3, 3000, 100])
@pytest.mark.parametrize('objective', ['max', 'mean'])
def test_optimize_windowed_converges_without_useless_decays(n, objective):
  for b in sorted({1, max(1, n // 7), n - 1}):
    participation = Participation(n, b)
    strategy = blt.optimize_windowed(
      n, num_decays=4, objective=objective, participation=participation
    )
    error = strategy.error(objective, participation)
    assert strategy.sensitivity_kind(participation) == 'exact'
    assert error <= BLT(n, (), ()).error(objective, participation) * (1 + 1e-12)
    # Correlated noise does not help if a client may take part in every round.
    assert bool(strategy.buffer_decays) == (b > 1)
    for j in range(len(strategy.buffer_decays)):
      scales, decays = list(strategy.output_scales), list(strategy.buffer_decays)
      del scales[j], decays[j]
      fewer = WindowedBLT(n, strategy.window, scales, decays)
      assert fewer.error(objective, participation) > error * (1 + 5e-5)


def test_window_above_min_separation_has_exact_sensitivity():
  participation = Participation(100, 5, 2)
  strategy = blt.optimize_windowed(
    100, num_decays=2, participation=participation, window=40
  )
  assert every_kind.check_sensitivity(strategy, participation)
  # Clients take part early only, and the later rounds need more than 5 bands.
  short = blt.optimize_windowed(100, num_decays=2, participation=participation)
  assert strategy.rmse(participation) < 0.97 * short.rmse(participation)


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    ((0, SCALES, 0.0, 0.0), ValueError, 'window must be at least 1'),
    ((11, SCALES, 0.0, 0.0), ValueError, 'window must be at most num_rounds=10'),
    ((2.5, SCALES, 0.0, 0.0), TypeError, 'window must be a whole number'),
    ((5, (0.1,), 0.0, 0.0), ValueError, 'output_scales must be as many'),
    ((5, SCALES, -0.1, 0.9), ValueError, 'tail_scale must be finite'),
    ((5, SCALES, 0.1, 1.1), ValueError, 'tail_decay must be'),
    ((5, SCALES, 'x', 0.9), TypeError, 'tail_scale must be a number'),
  ],
)
def test_invalid_windows_and_tails_are_refused(arguments, error, message):
  window, scales, *tail = arguments
  with pytest.raises(error, match=message):
    TailedBLT(10, window, scales, DECAYS, *tail)


@pytest.mark.parametrize(
  'kwargs, error, message',
  [
    ({'num_decays': 0}, ValueError, 'num_decays must be at least 1'),
    ({'participation': None}, ValueError, 'use blt.optimize'),
    ({'participation': Participation(100, 100)}, ValueError, 'use blt.optimize'),
    ({'window': 101}, ValueError, 'window must be at most num_rounds=100'),
    ({'workload': Workload.cooldown(100)}, ValueError, 'learning rates'),
  ],
)
def test_optimize_windowed_refuses_invalid_arguments(kwargs, error, message):
  arguments = {
    'num_rounds': 100,
    'num_decays': 1,
    'participation': Participation(100, 20),
    **kwargs,
  }
  with pytest.raises(error, match=message):
    blt.optimize_windowed(**arguments)


@pytest.mark.parametrize(
  'num_rounds, window, num_decays, buffers, kind',
  [
    (2000, 50, 2, 50, recursion.LastRounds),
    (2000, 700, 2, 9, recursion.DecayingSums),  # Three copies.
    (2000, 2000, 2, 3, recursion.DecayingSums),
    (2000, 50, 0, 1, recursion.DecayingSums),
    (2000, 1, 2, 1, recursion.DecayingSums),
  ],
)
def test_recursion_with_fewer_buffers_is_chosen(
  num_rounds, window, num_decays, buffers, kind
):
  scales, decays = SCALES[:num_decays], DECAYS[:num_decays]
  strategy = TailedBLT(num_rounds, window, scales, decays, 0.05, 0.999)
  assert strategy.noise_buffers == buffers
  assert type(strategy.recursion()) is kind


@pytest.mark.few(8)
@pytest.mark.parametrize('momentum', [0.0, 0.9])
@pytest.mark.parametrize('objective', ['max', 'mean'])
@pytest.mark.parametrize(
  'n, b, k, window',
  [(50, 20, 3, 20), (50, 20, 2, 30), (41, 10, 5, 10), (41, 10, 2, 5), (9, 1, 4, 2)],
)
@pytest.mark.parametrize('has_tail', [True, False])
def test_search_errors_and_derivatives_match_the_strategy(
  n, b, k, window, objective, momentum, has_tail
):
  participation = Participation(n, b, k)
  workload = Workload(n, momentum)
  problem = blt_search.WindowProblem(
    participation, objective, workload, window=window, has_tail=has_tail
  )
  point = np.log([0.05, 0.5, 0.2, 0.4, 0.01, 0.03])
  strategy = TailedBLT(n, window, (0.2, 0.4), (0.95, 0.5), 0.03, 0.99)
  if not has_tail:
    point, strategy = point[:4], WindowedBLT(n, window, (0.2, 0.4), (0.95, 0.5))
  errors = problem.errors(problem.series)
  values, pull_back = errors(point)
  error = strategy.error(objective, participation, workload)
  squared_error = values.mean() if objective == 'mean' else values.max()
  assert math.sqrt(squared_error) == pytest.approx(error, rel=1e-12)
  weights = np.random.default_rng(1).dirichlet(np.ones(n))
  slope = pull_back(weights) / (weights @ values)
  for i, move in enumerate(1e-5 * np.eye(len(point))):
    ahead, behind = errors(point + move)[0], errors(point - move)[0]
    difference = math.log(weights @ ahead) - math.log(weights @ behind)
    assert difference / 2e-5 == pytest.approx(slope[i], abs=1e-7)


@pytest.mark.few(2)
@pytest.mark.parametrize('objective', ['max', 'mean'])
@pytest.mark.parametrize(
  'limits', [(3, 1, 2), (10, 1, 5), (10, 1), (100, 14, 2), (1000, 142, 5), (10, 9)]
)
def test_optimize_with_tail_is_never_worse_than_window_alone(limits, objective):
  participation = Participation(*limits)
  options = {'num_decays': 2, 'objective': objective, 'participation': participation}
  strategy = blt.optimize_windowed(limits[0], tail=True, **options)
  assert strategy.sensitivity_kind(participation) == 'exact'
  windowed = blt.optimize_windowed(limits[0], **options).error(objective, participation)
  # A tail is kept only if it lowers the error by the default min_gain, 1e-4.
  error_bound = windowed * (1 - 1e-4 if strategy.tail_scale else 1 + 1e-12)
  assert strategy.error(objective, participation) <= error_bound


def test_no_tail_if_clients_take_part_until_the_end():
  participation = Participation(60, 6)
  strategy = blt.optimize_windowed(60, tail=True, participation=participation)
  assert (strategy.tail_scale, strategy.noise_buffers) == (0.0, 5)
