"""Tests of strategies whose columns are scaled by epoch: their sensitivity."""

import numpy as np
import pytest

from tests.strategies import every_kind
from tff_dp_aggregators.strategies import BandedInverse
from tff_dp_aggregators.strategies import BandedToeplitz
from tff_dp_aggregators.strategies import EpochBandedInverse
from tff_dp_aggregators.strategies import EpochToeplitz
from tff_dp_aggregators.strategies import EpochWindowedBLT
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import WindowedBLT

_FALLING, _RISING = (1.3, 1.1, 0.8, 0.5), (0.5, 0.9, 0.7, 1.4)
_UNSCALED = {
  'falling': lambda n: BandedToeplitz(n, (1.0, 0.6, 0.4)),
  'late_rise': lambda n: BandedToeplitz(n, (1.0, 0.1, 0.3, 0.6)),
  'signed': lambda n: BandedToeplitz(n, (1.0, -0.7, 0.4, -0.1)),
  'windowed': lambda n: WindowedBLT(n, 4, (0.3, 0.2), (0.95, 0.5)),
  'inverse': lambda n: BandedInverse(n, (1.0, -0.5, -0.2)),
  'inverse_signed': lambda n: BandedInverse(n, (1.0, -0.5, 0.3)),
}
_KINDS = {
  BandedToeplitz: EpochToeplitz,
  WindowedBLT: EpochWindowedBLT,
  BandedInverse: EpochBandedInverse,
}
_DECREASING = ('falling', 'windowed', 'inverse')


def _scaled(name, num_rounds, starts, scales):
  unscaled = _UNSCALED[name](num_rounds)
  return _KINDS[type(unscaled)].of(unscaled, starts, scales[: len(starts)])


@pytest.mark.parametrize('scales', [_FALLING, _RISING], ids=['falling', 'rising'])
@pytest.mark.parametrize('starts', [(0, 4, 8), (0, 3, 4, 7)])
@pytest.mark.parametrize('name', _UNSCALED)
def test_sensitivity_matches_brute_force(name, starts, scales):
  num_rounds = 11
  strategy = _scaled(name, num_rounds, starts, scales)
  for separation, times, fixed in (
    (2, 3, False),  # Below num_bands, and below an epoch.
    (3, None, False),
    (3, 2, True),
    (4, None, False),
    (4, 2, False),
    (4, None, True),
    (5, None, False),  # Scales change in other rounds than a client returns in.
    (1, 1, False),
  ):
    participation = Participation(num_rounds, separation, times, fixed)
    is_exact = every_kind.check_sensitivity(strategy, participation)
    disjoint = strategy.num_bands <= separation or times == 1
    decreasing = name in _DECREASING and scales is _FALLING
    assert is_exact or not (disjoint or decreasing), participation
    if decreasing:
      by_round = strategy.sensitivity_squared_by_round(participation)
      worst = every_kind.worst_by_round(strategy.materialize(), participation)
      np.testing.assert_allclose(by_round, worst, rtol=1e-12)


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    ((4, (0, 4), (1.0, 1.0)), ValueError, 'must be less than num_rounds=4, got 4'),
    ((4, (0, 2, 1), (1.0,) * 3), ValueError, 'in rising order from 0, got'),
    ((4, (0, 2.0), (1.0,) * 2), TypeError, r'epoch_starts\[1\] must be a whole number'),
    ((4, (0, 2), (1.0,)), ValueError, r'one for each of 2 epoch_starts.*\(1.0,\)'),
    ((4, (0, 2), (1.0, -1.0)), ValueError, r'must be positive.*got \(1.0, -1.0\)'),
    ((4, (0,), ('x',)), TypeError, 'epoch_scales'),
  ],
)
def test_invalid_epochs_are_refused(arguments, error, message):
  with pytest.raises(error, match=message):
    EpochToeplitz(*arguments, (1.0,))
