"""Privacy accounting: events, accountants, calibration, ledgers, reports.

Events describe (`events`), accountants interpret (`accountants`), reports explain
(`report`). Nothing here imports TensorFlow.
"""

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import gaussian
from tff_dp_aggregators.accounting import ledger

__all__ = ['accountants', 'calibration', 'events', 'gaussian', 'ledger']
