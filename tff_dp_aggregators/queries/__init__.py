"""`DPQuery` implementations: clip, sum, add noise, and say what it cost."""

from tff_dp_aggregators.base import tff_extra

tff_extra.require(__name__, 'tensorflow', 'tensorflow_privacy')

from tff_dp_aggregators.queries.adaptive_clipping import AdaptiveClippingQuery
from tff_dp_aggregators.queries.adaptive_clipping import AdaptiveGaussianSumQuery
from tff_dp_aggregators.queries.banded import BandedMatrixFactorizationQuery
from tff_dp_aggregators.queries.client_noise.approximate_local import (
  ApproximateLocalSumQuery,
)
from tff_dp_aggregators.queries.client_noise.approximate_local import ApproximateSample
from tff_dp_aggregators.queries.client_noise.base import ClientNoiseState
from tff_dp_aggregators.queries.client_noise.base import ClientNoiseSumQuery
from tff_dp_aggregators.queries.client_noise.local import LocalGaussianSumQuery
from tff_dp_aggregators.queries.client_noise.local import LocalLaplaceSumQuery
from tff_dp_aggregators.queries.client_noise.shares import GaussianSharesSumQuery
from tff_dp_aggregators.queries.distributed import DistributedState
from tff_dp_aggregators.queries.distributed import DistributedSumQuery
from tff_dp_aggregators.queries.distributed import Shares
from tff_dp_aggregators.queries.dp_query import DPQuery
from tff_dp_aggregators.queries.dp_query import NormalizedQuery
from tff_dp_aggregators.queries.dp_query import SumAggregationDPQuery
from tff_dp_aggregators.queries.gaussian import GaussianSumQuery
from tff_dp_aggregators.queries.joint import JointSumQuery
from tff_dp_aggregators.queries.laplace import LaplaceState
from tff_dp_aggregators.queries.laplace import LaplaceSumQuery
from tff_dp_aggregators.queries.matrix_mechanism import GlobalState
from tff_dp_aggregators.queries.matrix_mechanism import MatrixMechanismQuery
from tff_dp_aggregators.queries.nested import NestedSumQuery
from tff_dp_aggregators.queries.no_privacy import NoPrivacyAverageQuery
from tff_dp_aggregators.queries.no_privacy import NoPrivacySumQuery
from tff_dp_aggregators.queries.norm_clip import NormClipSumQuery
from tff_dp_aggregators.queries.statistics.quantile import QuantileParams
from tff_dp_aggregators.queries.statistics.quantile import QuantileQuery
from tff_dp_aggregators.queries.statistics.quantile import QuantileState
from tff_dp_aggregators.queries.statistics.range_sums import RangeSumsQuery
from tff_dp_aggregators.queries.statistics.range_sums import tree_levels
from tff_dp_aggregators.queries.tree import TreeCumulativeSumQuery
from tff_dp_aggregators.queries.tree import TreeResidualSumQuery

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
