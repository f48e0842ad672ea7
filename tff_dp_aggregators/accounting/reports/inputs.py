"""What a statement is made of, as one value.

Whoever has something to report produces `Inputs` (flags, `sources` from files,
`verification` from a report), and `statement.build` alone makes a statement of them.
"""

import dataclasses
from typing import Any, Optional

from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.records import ledger as ledger_lib

# What is said of limits if it is not stated what enforces them.
NOT_STATED = 'not stated; whoever runs the training must see to it'
# How clients may be simulated, as reports call it: many in one computation, or each in
# one of its own.
SIMULATIONS = ('packed', 'one_by_one')


@dataclasses.dataclass(frozen=True)
class Inputs:
  """A mechanism, and what is to be said of it or of a run of it.

  Attributes:
    mechanism: What was planned, with what was found from a target.
    delta: At which delta the guarantee is stated.
    target_epsilon: What was asked for, if anything was.
    found: What was found from the target: 'noise_multiplier', 'num_rounds' or
      'max_participations'; `None` if everything was given.
    accountant: Whose epsilon the guarantee states; `None` for the tightest.
    clip_norm: L2 bound of a client's contribution; it does not change the guarantee. A
      ledger must have the same in all rounds.
    ledger: What the run's ledger says. With it the guarantee is of the rounds that ran;
      without it, of all rounds planned.
    enforced_by: What keeps rounds of a client as far apart as they are assumed to be,
      or draws clients as they are assumed to be drawn.
    cap_enforced_by: What keeps a client within `max_participations`, where fewer are
      assumed than the separation leaves possible; `None` if that is not stated.
    noise_source: Where the randomness comes from.
    code_version: Of the code that trained.
    participation_source: Where the participation limits come from, such as the summary
      of a round log.
    simulation: A key of `SIMULATIONS`, if it is known how clients were simulated.
    reporting: Which clients that were asked reported, as `sources.reporting_of` tells
      it of a run; `None` if all did, or nothing is known.
    command: A command that prints the same numbers again.
    files: Files that the statement is made from, each with `role`, `path` and `sha256`.
  """

  mechanism: mechanism_lib.Mechanism
  delta: float
  target_epsilon: Optional[float] = None
  found: Optional[str] = None
  accountant: Optional[str] = None
  clip_norm: Optional[float] = None
  ledger: Optional[ledger_lib.Ledger] = None
  enforced_by: str = NOT_STATED
  cap_enforced_by: Optional[str] = None
  noise_source: str = 'not stated'
  code_version: Optional[str] = None
  participation_source: Optional[dict[str, Any]] = None
  simulation: Optional[str] = None
  reporting: Optional[dict[str, Any]] = None
  command: Optional[str] = None
  files: tuple[dict[str, Any], ...] = ()

  @property
  def epsilon_planned(self) -> float:
    """Epsilon of all rounds planned, by `accountant`."""
    return self.mechanism.epsilon(self.delta, accountant=self.accountant)
