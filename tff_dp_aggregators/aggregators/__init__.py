"""`tff.aggregators` factories: private means to plug into a federated process."""

from tff_dp_aggregators.base import tff_extra

tff_extra.require(__name__, 'tensorflow', 'tensorflow_federated')

from tff_dp_aggregators.aggregators.builders import adaptive
from tff_dp_aggregators.aggregators.builders import approximate_local_gaussian
from tff_dp_aggregators.aggregators.builders import approximate_local_laplace
from tff_dp_aggregators.aggregators.builders import banded
from tff_dp_aggregators.aggregators.builders import from_strategy
from tff_dp_aggregators.aggregators.builders import gaussian
from tff_dp_aggregators.aggregators.builders import gaussian_shares
from tff_dp_aggregators.aggregators.builders import laplace
from tff_dp_aggregators.aggregators.builders import local_gaussian
from tff_dp_aggregators.aggregators.builders import local_laplace
from tff_dp_aggregators.aggregators.builders import norm_clip
from tff_dp_aggregators.aggregators.builders import tree
from tff_dp_aggregators.aggregators.builders import two_sided_gaussian
from tff_dp_aggregators.aggregators.clientwise import CoordinateBoundsFactory
from tff_dp_aggregators.aggregators.clientwise import ZeroLargeFactory
from tff_dp_aggregators.aggregators.clientwise import ZeroNonfiniteFactory
from tff_dp_aggregators.aggregators.distributed import distributed_discrete_gaussian
from tff_dp_aggregators.aggregators.distributed import distributed_skellam
from tff_dp_aggregators.aggregators.distributed import secure_modular_sum
from tff_dp_aggregators.aggregators.factory import DPMeanFactory
from tff_dp_aggregators.aggregators.factory import DPMeanState
from tff_dp_aggregators.aggregators.factory import ExactSum
from tff_dp_aggregators.aggregators.factory import SignalToNoise
from tff_dp_aggregators.aggregators.factory import secure_sum
from tff_dp_aggregators.aggregators.mechanisms import from_joint_mechanism
from tff_dp_aggregators.aggregators.mechanisms import from_mechanism
from tff_dp_aggregators.aggregators.mechanisms import joint
from tff_dp_aggregators.aggregators.spent_events import SpentEvents
from tff_dp_aggregators.aggregators.spent_events import extract_dp_event
from tff_dp_aggregators.aggregators.statistics import quantile
from tff_dp_aggregators.aggregators.statistics import range_sums

__all__ = [
  'CoordinateBoundsFactory',
  'DPMeanFactory',
  'DPMeanState',
  'ExactSum',
  'SignalToNoise',
  'SpentEvents',
  'ZeroLargeFactory',
  'ZeroNonfiniteFactory',
  'adaptive',
  'approximate_local_gaussian',
  'approximate_local_laplace',
  'banded',
  'distributed_discrete_gaussian',
  'distributed_skellam',
  'extract_dp_event',
  'from_joint_mechanism',
  'from_mechanism',
  'from_strategy',
  'gaussian',
  'gaussian_shares',
  'joint',
  'laplace',
  'local_gaussian',
  'local_laplace',
  'norm_clip',
  'quantile',
  'range_sums',
  'secure_modular_sum',
  'secure_sum',
  'tree',
  'two_sided_gaussian',
]


def __dir__() -> list[str]:
  return sorted(__all__)
