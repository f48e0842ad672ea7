"""Privacy reports: `statement` is what one says, `sources` where it comes from.

`rendering` writes it for people, `verification` computes it again.
"""

from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.accounting.reports import verification

__all__ = ['rendering', 'sources', 'statement', 'verification']
