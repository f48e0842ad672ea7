"""Privacy accounting: events, accountants, calibration, ledgers, reports.

Mechanisms and participation schemas become events (`mechanism`, `schemas`, `events`),
accountants interpret them (`accountants`), reports explain (`statement`). The programs
are `report`, `plan` and `participation`. Nothing here imports TensorFlow.
"""

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import gaussian
from tff_dp_aggregators.accounting import ledger
from tff_dp_aggregators.accounting import mechanism
from tff_dp_aggregators.accounting import round_log
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting import statement
from tff_dp_aggregators.accounting import tree_aggregation_accountant
from tff_dp_aggregators.accounting.mechanism import Mechanism

__all__ = [
  'Mechanism',
  'accountants',
  'calibration',
  'events',
  'gaussian',
  'ledger',
  'mechanism',
  'round_log',
  'schemas',
  'statement',
  'tree_aggregation_accountant',
]
