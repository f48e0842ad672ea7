"""Records of training runs, which are verified as they are read.

`ledger` records what a run of this package released. `round_log` reads the round logs
of production systems, and `log_participation` finds how often one device can have taken
part in the rounds of such a log.
"""

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.records import round_log

__all__ = ['ledger', 'log_participation', 'round_log']


def __dir__() -> list[str]:
  return sorted(__all__)
