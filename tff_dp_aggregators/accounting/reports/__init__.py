"""Privacy reports: their inputs, statements, rendering and verification."""

from tff_dp_aggregators.accounting.reports import composition
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import schema
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.accounting.reports import verification
from tff_dp_aggregators.accounting.reports.model import Tuning
from tff_dp_aggregators.accounting.reports.sources import Inputs

__all__ = [
  'Inputs',
  'Tuning',
  'composition',
  'learning_curves',
  'rendering',
  'schema',
  'sources',
  'statement',
  'verification',
]


def __dir__() -> list[str]:
  return sorted(__all__)
