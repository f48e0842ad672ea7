"""Plans: compares mechanisms, shows the comparison, and chooses separations."""

from tff_dp_aggregators.accounting.planning import comparison
from tff_dp_aggregators.accounting.planning import separations
from tff_dp_aggregators.accounting.planning import views

__all__ = ['comparison', 'separations', 'views']


def __dir__() -> list[str]:
  return sorted(__all__)
