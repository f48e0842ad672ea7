"""Comparing mechanisms before any training: the comparison, and its views."""

from tff_dp_aggregators.accounting.planning import comparison
from tff_dp_aggregators.accounting.planning import views

__all__ = ['comparison', 'views']


def __dir__() -> list[str]:
  return sorted(__all__)
