"""`DPQuery` implementations: clip records, sum them, add noise, return the event."""

from tff_dp_aggregators.base import tff_extra

tff_extra.require(__name__, 'tensorflow', 'tensorflow_privacy')

from tff_dp_aggregators.queries.adaptive_clipping import AdaptiveClippingQuery
from tff_dp_aggregators.queries.adaptive_clipping import AdaptiveGaussianSumQuery
from tff_dp_aggregators.queries.client_noise import ApproximateLocalSumQuery
from tff_dp_aggregators.queries.client_noise import ApproximateSample
from tff_dp_aggregators.queries.client_noise import ClientNoiseState
from tff_dp_aggregators.queries.client_noise import ClientNoiseSumQuery
from tff_dp_aggregators.queries.client_noise import GaussianSharesSumQuery
from tff_dp_aggregators.queries.client_noise import LocalGaussianSumQuery
from tff_dp_aggregators.queries.client_noise import LocalLaplaceSumQuery
from tff_dp_aggregators.queries.distributed import DistributedState
from tff_dp_aggregators.queries.distributed import DistributedSumQuery
from tff_dp_aggregators.queries.distributed import Shares
from tff_dp_aggregators.queries.independent import LaplaceState
from tff_dp_aggregators.queries.independent import LaplaceSumQuery
from tff_dp_aggregators.queries.matrix_mechanism import BandedMatrixFactorizationQuery
from tff_dp_aggregators.queries.matrix_mechanism import DPQuery
from tff_dp_aggregators.queries.matrix_mechanism import GaussianSumQuery
from tff_dp_aggregators.queries.matrix_mechanism import GlobalState
from tff_dp_aggregators.queries.matrix_mechanism import MatrixMechanismQuery
from tff_dp_aggregators.queries.matrix_mechanism import NormalizedQuery
from tff_dp_aggregators.queries.matrix_mechanism import SumAggregationDPQuery
from tff_dp_aggregators.queries.matrix_mechanism import TreeCumulativeSumQuery
from tff_dp_aggregators.queries.matrix_mechanism import TreeResidualSumQuery
from tff_dp_aggregators.queries.nested import JointSumQuery
from tff_dp_aggregators.queries.nested import NestedSumQuery
from tff_dp_aggregators.queries.statistics import QuantileParams
from tff_dp_aggregators.queries.statistics import QuantileQuery
from tff_dp_aggregators.queries.statistics import QuantileState
from tff_dp_aggregators.queries.statistics import RangeSumsQuery
from tff_dp_aggregators.queries.statistics import tree_levels
from tff_dp_aggregators.queries.without_noise import NoPrivacyAverageQuery
from tff_dp_aggregators.queries.without_noise import NoPrivacySumQuery
from tff_dp_aggregators.queries.without_noise import NormClipSumQuery

__all__ = [
  'AdaptiveClippingQuery',
  'AdaptiveGaussianSumQuery',
  'ApproximateLocalSumQuery',
  'ApproximateSample',
  'BandedMatrixFactorizationQuery',
  'ClientNoiseState',
  'ClientNoiseSumQuery',
  'DPQuery',
  'DistributedState',
  'DistributedSumQuery',
  'GaussianSharesSumQuery',
  'GaussianSumQuery',
  'GlobalState',
  'JointSumQuery',
  'LaplaceState',
  'LaplaceSumQuery',
  'LocalGaussianSumQuery',
  'LocalLaplaceSumQuery',
  'MatrixMechanismQuery',
  'NestedSumQuery',
  'NoPrivacyAverageQuery',
  'NoPrivacySumQuery',
  'NormClipSumQuery',
  'NormalizedQuery',
  'QuantileParams',
  'QuantileQuery',
  'QuantileState',
  'RangeSumsQuery',
  'Shares',
  'SumAggregationDPQuery',
  'TreeCumulativeSumQuery',
  'TreeResidualSumQuery',
  'tree_levels',
]


def __dir__() -> list[str]:
  return sorted(__all__)
