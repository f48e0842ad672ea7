"""What was written down while training ran, read back with suspicion.

`ledger` is what a run of this package released, line by line (`ledger_line`): that of a
round (`ledger_entry`) or of an attempt that was aborted (`aborted_attempt`), which keep
rules together (`ledger_rules`). `round_log` is what a production system says of its
rounds and `times` when they were, `log_participation` how often one device can have
taken part in them, `agreement` whether a ledger and a log are of the same run,
`attempts` whether a ledger's attempts are those of a schedule.
"""

from tff_dp_aggregators.accounting.records import aborted_attempt
from tff_dp_aggregators.accounting.records import agreement
from tff_dp_aggregators.accounting.records import attempts
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.records import ledger_entry
from tff_dp_aggregators.accounting.records import ledger_line
from tff_dp_aggregators.accounting.records import ledger_rules
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.records import round_log
from tff_dp_aggregators.accounting.records import strict_json
from tff_dp_aggregators.accounting.records import times

__all__ = [
  'aborted_attempt',
  'agreement',
  'attempts',
  'ledger',
  'ledger_entry',
  'ledger_line',
  'ledger_rules',
  'log_participation',
  'round_log',
  'strict_json',
  'times',
]


def __dir__() -> list[str]:
  return sorted(__all__)
