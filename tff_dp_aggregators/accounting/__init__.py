"""Privacy accounting: events, accountants, calibration, ledgers, reports.

Events describe (`events`), accountants interpret (`accountants`), reports explain
(`statement`, and the program `report`). Nothing here imports TensorFlow.
"""

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import gaussian
from tff_dp_aggregators.accounting import ledger
from tff_dp_aggregators.accounting import mechanism
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting import statement
from tff_dp_aggregators.accounting.mechanism import Mechanism

__all__ = [
  'Mechanism',
  'accountants',
  'calibration',
  'events',
  'gaussian',
  'ledger',
  'mechanism',
  'schemas',
  'statement',
]
