"""Privacy reports: `statement` is what one says, `sources` where it comes from.

`rendering` writes it for people, `schema` describes its JSON for programs,
`verification` computes it again.
"""

from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import schema
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.accounting.reports import verification

__all__ = ['rendering', 'schema', 'sources', 'statement', 'verification']
