"""Privacy reports: what they are made of, what they say, and whether that is so.

`inputs` is what a statement is made of, `sources` reads it from files, `provenance`
says which of it nothing but somebody's word stands for, `statement`
assembles it, `composition` puts several together, `schema` describes the result,
`rendering` writes it for people, with what `learning_curves` found beside it;
`verification` computes it again.
"""

from tff_dp_aggregators.accounting.reports import composition
from tff_dp_aggregators.accounting.reports import inputs
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import provenance
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import schema
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.accounting.reports import verification
from tff_dp_aggregators.accounting.reports.inputs import Inputs
from tff_dp_aggregators.accounting.reports.inputs import Tuning

__all__ = [
  'Inputs',
  'Tuning',
  'composition',
  'inputs',
  'learning_curves',
  'provenance',
  'rendering',
  'schema',
  'sources',
  'statement',
  'verification',
]


def __dir__() -> list[str]:
  return sorted(__all__)
