"""Tests of `epoch_scaled.optimize`, which finds a scale of columns for each epoch."""

import math

import numpy as np
import pytest

from tff_dp_aggregators.strategies import Banded
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import banded_inverse
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import dense
from tff_dp_aggregators.strategies import epoch_scaled
from tff_dp_aggregators.strategies import registry
from tff_dp_aggregators.strategies import toeplitz

_SMALL = Participation(24, min_separation=6)
_WORKLOADS = {
  'prefix': None,
  'momentum': Workload(24, 0.9),
  'cooldown': Workload.cooldown(24, 0.5),
  'array': np.tril(np.random.default_rng(5).uniform(0.5, 1.0, (24, 24))),
}


def _unscaled(optimize, participation, **options):
  return optimize(participation.num_rounds, participation=participation, **options)


def _optimize(optimize, participation, **options):
  unscaled = _unscaled(optimize, participation, **options)
  shared = {
    name: options[name] for name in options if name in ('objective', 'workload')
  }
  return epoch_scaled.optimize(unscaled, participation=participation, **shared)


@pytest.mark.few(3)
@pytest.mark.parametrize(
  'optimize, options, limits, trial_rmse',
  [
    (banded.optimize, {'num_bands': 16}, (64, 16, 4), 4.4935),
    (banded.optimize, {'num_bands': 32}, (256, 32, 8), 8.3538),
    (banded.optimize, {'num_bands': 100}, (300, 100, 3), 4.5920),
    (toeplitz.optimize, {'num_bands': 400}, (2000, 400, 5), 7.7744),
    (toeplitz.optimize, {'num_bands': 100}, (2000, 100, 20), 19.7501),
    (blt.optimize_windowed, {'num_decays': 2}, (2000, 400, 5), 7.8192),
  ],
)
def test_scaled_error_is_below_that_of_simple_trials(
  optimize, options, limits, trial_rmse
):
  # `trial_rmse` is the error that was found by trying out scales.
  participation = Participation(*limits)
  strategy = _optimize(optimize, participation, **options)
  assert strategy.rmse(participation) < trial_rmse
  assert strategy.sensitivity_kind(participation) == 'exact'
  assert strategy.sensitivity_squared(participation) == pytest.approx(limits[2])
  assert strategy.noise_buffers == options.get('num_bands', 13) - 1
  if isinstance(strategy, Banded):
    scales = np.linalg.norm(strategy.diagonals, axis=0)[list(participation.rounds)]
  else:
    scales = np.array(strategy.epoch_scales)
  assert np.all(np.diff(scales) <= 1e-12) and scales[0] > 1.02 * scales[-1]


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'limits, one_scale_rmses',
  [
    ((100, 16, 7), (6.46818, 6.61762, 6.61771)),
    ((250, 100, 3), (4.28939, 4.43033, 4.43879)),
  ],
)
def test_two_scales_per_epoch_beat_one_if_last_epoch_is_partial(
  limits, one_scale_rmses
):
  # RMSE with one scale for each epoch, from a version that had no second one.
  participation = Participation(*limits)
  optimizers = (
    (banded.optimize, {'num_bands': participation.min_separation}),
    (toeplitz.optimize, {'num_bands': participation.min_separation}),
    (blt.optimize_windowed, {'num_decays': 2}),
  )
  for (optimize, options), one_scale_rmse in zip(optimizers, one_scale_rmses):
    strategy = _optimize(optimize, participation, **options)
    assert strategy.rmse(participation) < 0.987 * one_scale_rmse
    assert strategy.sensitivity_kind(participation) == 'exact'
    squared = strategy.sensitivity_squared(participation)
    assert squared == pytest.approx(limits[2])
    if optimize is banded.optimize:
      gap = epoch_scaled.certify(strategy, participation=participation).gap
      assert math.sqrt(1 + gap) - 1 < 0.0035


@pytest.mark.few(2)
@pytest.mark.parametrize('workload', _WORKLOADS)
@pytest.mark.parametrize('num_bands', [2, 8])
def test_scaled_banded_inverse_is_never_worse_than_unscaled(num_bands, workload):
  # Eight bands are more than the min_separation of 6.
  options = {'num_bands': num_bands, 'workload': _WORKLOADS[workload]}
  unscaled = _unscaled(banded_inverse.optimize, _SMALL, **options)
  strategy = _optimize(banded_inverse.optimize, _SMALL, **options)
  error = strategy.rmse(_SMALL, _WORKLOADS[workload])
  assert error <= unscaled.rmse(_SMALL, _WORKLOADS[workload]) * (1 + 1e-12)


@pytest.mark.few(2)
@pytest.mark.parametrize('workload', _WORKLOADS)
@pytest.mark.parametrize('objective', ['mean', 'max'])
def test_scaled_banded_beats_unit_columns_with_small_certified_gap(workload, objective):
  workload = _WORKLOADS[workload]
  options = {'num_bands': 6, 'workload': workload, 'objective': objective}
  strategy = _optimize(banded.optimize, _SMALL, **options)
  unscaled = _unscaled(banded.optimize, _SMALL, **options)
  certificate = epoch_scaled.certify(strategy, objective, _SMALL, workload)
  unscaled_certificate = epoch_scaled.certify(unscaled, objective, _SMALL, workload)
  assert math.sqrt(certificate.error) == pytest.approx(
    strategy.error(objective, _SMALL, workload)
  )
  assert certificate.error < unscaled_certificate.error
  assert 0 <= certificate.gap < 0.04 and unscaled_certificate.gap > certificate.gap


def test_epochs_beyond_max_participations_share_one_scale():
  participation = Participation(100, 10, 8)
  strategy = _optimize(toeplitz.optimize, participation, num_bands=10)
  assert strategy.epoch_starts == tuple(range(0, 80, 10))
  banded_norms = np.linalg.norm(
    _optimize(banded.optimize, participation, num_bands=10).diagonals, axis=0
  )
  np.testing.assert_allclose(banded_norms[70:], banded_norms[70], rtol=1e-12)


@pytest.mark.few(6)
@pytest.mark.slow
@pytest.mark.parametrize('fixed_epoch', [False, True])
@pytest.mark.parametrize('objective', ['mean', 'max'])
@pytest.mark.parametrize('limits', [(24, 6, None), (24, 6, 2), (22, 6, 3), (24, 24, 1)])
def test_certificate_is_below_every_banded_strategy(limits, objective, fixed_epoch):
  participation = Participation(*limits, fixed_epoch=fixed_epoch)
  start = banded.optimize(24 if limits[0] == 24 else 22, num_bands=4)
  bound = epoch_scaled.certify(start, objective, participation).lower_bound
  optima = [start]
  if participation.possible_participations > 1:
    optima.append(
      _optimize(banded.optimize, participation, num_bands=4, objective=objective)
    )
    bound = max(
      bound, epoch_scaled.certify(optima[1], objective, participation).lower_bound
    )
  if participation.possible_participations == 1 or fixed_epoch:
    # `dense` bounds the error of all strategies, which include the banded ones.
    assert dense.certify(start, objective, participation).lower_bound <= bound * 1.0001
  rng = np.random.default_rng(3)
  for optimum in optima:
    for size in (0.01, 0.1, 0.5):
      for _ in range(20):
        noise = rng.normal(scale=size, size=optimum.diagonals.shape)
        norms = np.exp(rng.normal(scale=size, size=optimum.num_rounds))
        diagonals = optimum.diagonals * (1 + noise) * norms
        diagonals[0] = np.abs(diagonals[0])
        perturbed = Banded(optimum.num_rounds, diagonals)
        assert perturbed.error(objective, participation) ** 2 >= bound


def test_optimize_refuses_single_participation():
  with pytest.raises(ValueError, match='of no use if a client takes part only once'):
    _optimize(toeplitz.optimize, Participation.single(24), num_bands=4)


def test_more_bands_than_min_separation_are_refused():
  unscaled = blt.WindowedBLT(24, 7, (0.3,), (0.9,))
  for build in (
    lambda: registry.kind('epoch_banded').build(_SMALL, num_bands=7),
    lambda: registry.kind('epoch_toeplitz').build(_SMALL, num_bands=7),
    lambda: epoch_scaled.optimize(unscaled, participation=_SMALL),
  ):
    with pytest.raises(ValueError, match='num_bands=7 is more than min_separation=6'):
      build()


def test_optimize_refuses_other_kinds_and_cooldown_of_too_many_rounds():
  with pytest.raises(TypeError, match='unscaled must be a Banded, .* got BLT'):
    epoch_scaled.optimize(blt.BLT(24, (0.5,), (0.8,)), participation=_SMALL)
  unscaled = toeplitz.BandedToeplitz(5000, (1.0, 0.5))
  limits, workload = Participation(5000, 10), Workload.cooldown(5000)
  with pytest.raises(ValueError, match='for at most 4096 rounds, got 5000'):
    epoch_scaled.optimize(unscaled, workload=workload, participation=limits)
