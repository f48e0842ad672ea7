"""`DPQuery` implementations: clip, sum, add noise, and say what it cost."""

from tff_dp_aggregators.queries.adaptive_clipping import AdaptiveClippingQuery
from tff_dp_aggregators.queries.adaptive_clipping import AdaptiveGaussianSumQuery
from tff_dp_aggregators.queries.banded import BandedMatrixFactorizationQuery
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
from tff_dp_aggregators.queries.tree import TreeCumulativeSumQuery
from tff_dp_aggregators.queries.tree import TreeResidualSumQuery

__all__ = [
  'AdaptiveClippingQuery',
  'AdaptiveGaussianSumQuery',
  'BandedMatrixFactorizationQuery',
  'DPQuery',
  'GaussianSumQuery',
  'GlobalState',
  'JointSumQuery',
  'LaplaceState',
  'LaplaceSumQuery',
  'MatrixMechanismQuery',
  'NestedSumQuery',
  'NoPrivacyAverageQuery',
  'NoPrivacySumQuery',
  'NormClipSumQuery',
  'NormalizedQuery',
  'SumAggregationDPQuery',
  'TreeCumulativeSumQuery',
  'TreeResidualSumQuery',
]


def __dir__() -> list[str]:
  return sorted(__all__)
