"""Strategies whose columns get shorter from epoch to epoch.

If clients come back, a client's squared sensitivity is a sum over its rounds, and a
large column in the first rounds may be paid for by smaller ones in the last. Early
noise is in every later prefix sum, so that is worth it: 1 to 3% of the error, for
nothing in memory, and exact in sensitivity under min-separation and fixed epochs. With
one scale for each epoch of `min_separation` rounds:

    rounds, separation, times        banded          Toeplitz        windowed BLT
    64, 16, 4                    4.5852  4.4880   4.7001  4.6165
    256, 32, 8                   8.5536  8.3450
    300, 100, 3                  4.6432  4.5854
    400, 200, 2                  3.8191  3.7895
    2000, 400, 5                                  7.8491  7.7722   7.8940  7.8170
    2000, 100, 20                                20.2067 19.7383

(RMSE without and with scales; as many bands as the separation; two decays.) Scales that
change from round to round gain 0.03 to 0.05% more in the four cases of banded ones, and
0.13 to 0.29% in fixed epochs; with a last epoch that is cut short and that clients can
be in, 1.5% (100 rounds, 16 apart) or 3.4% (250, 100). `benchmarks/round_scales.py`
prints that, and `banded.certify` proves that no norms whatever gain more.

A module for each kind; `EpochScaled` is what the Toeplitz ones share.
"""

from tff_dp_aggregators.strategies.epoch_scaled import banded
from tff_dp_aggregators.strategies.epoch_scaled import banded_inverse
from tff_dp_aggregators.strategies.epoch_scaled import strategy
from tff_dp_aggregators.strategies.epoch_scaled import toeplitz
from tff_dp_aggregators.strategies.epoch_scaled import windowed_blt
from tff_dp_aggregators.strategies.epoch_scaled.banded_inverse import EpochBandedInverse
from tff_dp_aggregators.strategies.epoch_scaled.strategy import EpochScaled
from tff_dp_aggregators.strategies.epoch_scaled.toeplitz import EpochToeplitz
from tff_dp_aggregators.strategies.epoch_scaled.windowed_blt import EpochWindowedBLT

__all__ = [
  'EpochBandedInverse',
  'EpochScaled',
  'EpochToeplitz',
  'EpochWindowedBLT',
  'banded',
  'banded_inverse',
  'strategy',
  'toeplitz',
  'windowed_blt',
]


def __dir__() -> list[str]:
  return sorted(__all__)
