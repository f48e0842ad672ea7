"""`tff.aggregators` factories: private means to plug into a federated process."""

from tff_dp_aggregators.aggregators.adaptive import adaptive
from tff_dp_aggregators.aggregators.builders import banded
from tff_dp_aggregators.aggregators.builders import from_mechanism
from tff_dp_aggregators.aggregators.builders import from_strategy
from tff_dp_aggregators.aggregators.builders import gaussian
from tff_dp_aggregators.aggregators.builders import tree
from tff_dp_aggregators.aggregators.coordinate_bounds import CoordinateBoundsFactory
from tff_dp_aggregators.aggregators.exact_sums import ExactSum
from tff_dp_aggregators.aggregators.factory import DPMeanFactory
from tff_dp_aggregators.aggregators.factory import DPMeanState
from tff_dp_aggregators.aggregators.factory import secure_sum
from tff_dp_aggregators.aggregators.joint import joint
from tff_dp_aggregators.aggregators.laplace import laplace
from tff_dp_aggregators.aggregators.nonfinite import ZeroNonfiniteFactory
from tff_dp_aggregators.aggregators.norm_clip import norm_clip
from tff_dp_aggregators.aggregators.signal_to_noise import SignalToNoise
from tff_dp_aggregators.aggregators.spent_events import SpentEvents
from tff_dp_aggregators.aggregators.spent_events import extract_dp_event

__all__ = [
  'CoordinateBoundsFactory',
  'DPMeanFactory',
  'DPMeanState',
  'ExactSum',
  'SignalToNoise',
  'SpentEvents',
  'ZeroNonfiniteFactory',
  'adaptive',
  'banded',
  'extract_dp_event',
  'from_mechanism',
  'from_strategy',
  'gaussian',
  'joint',
  'laplace',
  'norm_clip',
  'secure_sum',
  'tree',
]


def __dir__() -> list[str]:
  return sorted(__all__)
