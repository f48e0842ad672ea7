"""What was written down while training ran, read back with suspicion.

`ledger` is what a run of this package released, line by line. `round_log` is what a
production system says of its rounds, and `log_participation` how often one device can
have taken part in them.
"""

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.records import round_log

__all__ = ['ledger', 'log_participation', 'round_log']


def __dir__() -> list[str]:
  return sorted(__all__)
