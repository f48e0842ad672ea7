"""Streaming correlated noise as pure functions of an explicit state.

`build(strategy, rows)` returns the `StreamingNoise` of a strategy. `rows` draws its iid
Gaussians, with a secret key or that of a `Seed`. `storage` says where values of earlier
rounds are: in the state, in files, or drawn again.
"""

from tff_dp_aggregators.base import tff_extra

tff_extra.require(__name__, 'tensorflow')

from tff_dp_aggregators.noise.options import Files
from tff_dp_aggregators.noise.options import IndependentOptions
from tff_dp_aggregators.noise.options import Options
from tff_dp_aggregators.noise.options import Seed
from tff_dp_aggregators.noise.options import SeedLike
from tff_dp_aggregators.noise.options import Storage
from tff_dp_aggregators.noise.rows import GaussianRows
from tff_dp_aggregators.noise.rows import sum_specs
from tff_dp_aggregators.noise.streaming import NoiseState
from tff_dp_aggregators.noise.streaming import StreamingNoise
from tff_dp_aggregators.noise.streaming import build

__all__ = [
  'Files',
  'GaussianRows',
  'IndependentOptions',
  'NoiseState',
  'Options',
  'Seed',
  'SeedLike',
  'Storage',
  'StreamingNoise',
  'build',
  'sum_specs',
]


def __dir__() -> list[str]:
  return sorted(__all__)
