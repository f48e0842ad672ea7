"""Private federated averaging, client selection, and a runtime that ends."""

from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.learning import sampling
from tff_dp_aggregators.learning.fed_avg import build_dp_fed_avg

__all__ = ['build_dp_fed_avg', 'runtime', 'sampling']
