"""Correlated-noise strategies as plain data: sensitivity, error, serialisation.

A strategy is the matrix `C` of a matrix mechanism `A = B C`; see
`tff_dp_aggregators.strategies.strategy`. Nothing here imports TensorFlow.
"""

from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import banded_inverse
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import cache
from tff_dp_aggregators.strategies import dense
from tff_dp_aggregators.strategies import epoch_scaled
from tff_dp_aggregators.strategies import participation
from tff_dp_aggregators.strategies import recursion
from tff_dp_aggregators.strategies import registry
from tff_dp_aggregators.strategies import restarts
from tff_dp_aggregators.strategies import sensitivity
from tff_dp_aggregators.strategies import strategy
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import tree
from tff_dp_aggregators.strategies import workload
from tff_dp_aggregators.strategies.banded import Banded
from tff_dp_aggregators.strategies.banded_inverse import BandedInverse
from tff_dp_aggregators.strategies.banded_inverse import UnitBandedInverse
from tff_dp_aggregators.strategies.blt import BLT
from tff_dp_aggregators.strategies.blt import TailedBLT
from tff_dp_aggregators.strategies.blt import WindowedBLT
from tff_dp_aggregators.strategies.dense import Dense
from tff_dp_aggregators.strategies.epoch_scaled import EpochBandedInverse
from tff_dp_aggregators.strategies.epoch_scaled import EpochToeplitz
from tff_dp_aggregators.strategies.epoch_scaled import EpochWindowedBLT
from tff_dp_aggregators.strategies.participation import Participation
from tff_dp_aggregators.strategies.strategy import Strategy
from tff_dp_aggregators.strategies.toeplitz import BandedToeplitz
from tff_dp_aggregators.strategies.toeplitz import Identity
from tff_dp_aggregators.strategies.tree import BinaryTree
from tff_dp_aggregators.strategies.workload import Workload

__all__ = [
  'BLT',
  'Banded',
  'BandedInverse',
  'BandedToeplitz',
  'BinaryTree',
  'Dense',
  'EpochBandedInverse',
  'EpochToeplitz',
  'EpochWindowedBLT',
  'Identity',
  'Participation',
  'Strategy',
  'TailedBLT',
  'UnitBandedInverse',
  'WindowedBLT',
  'Workload',
  'banded',
  'banded_inverse',
  'blt',
  'cache',
  'dense',
  'epoch_scaled',
  'participation',
  'recursion',
  'registry',
  'restarts',
  'sensitivity',
  'strategy',
  'toeplitz',
  'tree',
  'workload',
]


def __dir__() -> list[str]:
  return sorted(__all__)
