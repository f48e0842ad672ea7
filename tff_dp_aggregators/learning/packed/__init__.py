"""Packed simulation: trains many clients in one computation.

`data.lay_out` writes a population to files, `simulation.PackedFedAvg` trains on them.
"""

from tff_dp_aggregators.learning.packed.canaries import Canaries
from tff_dp_aggregators.learning.packed.data import PackedData
from tff_dp_aggregators.learning.packed.data import lay_out
from tff_dp_aggregators.learning.packed.simulation import PackedFedAvg
from tff_dp_aggregators.learning.packed.training import LocalTraining

__all__ = ['Canaries', 'LocalTraining', 'PackedData', 'PackedFedAvg', 'lay_out']


def __dir__() -> list[str]:
  return sorted(__all__)
