"""Privacy accounting: guarantees of mechanisms and runs, which can be verified.

The modules build on each other in this order: `events` (what a mechanism did, as data),
`accountants` (epsilon and delta of events), `noises` (kinds of noise), `run_events`
(the events of a mechanism under a scheme of `sampling`), `calibration` (the noise that
a target needs), `mechanism` (all of that under one name) and `joint_mechanism` (several
mechanisms for parts of a model). The subpackages are `records` (ledgers and logs),
`planning` (comparing mechanisms), `reports` (statements, their rendering and
verification) and `programs` (command-line programs). `vectors`, with exact test
vectors, has to be imported by itself. Nothing here imports TensorFlow.
"""

# Before anything that imports dp-accounting.
from tff_dp_aggregators.base import dp_accounting_import  # noqa: F401

# isort: split
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import adaptive_clipping
from tff_dp_aggregators.accounting import budget
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import canaries
from tff_dp_aggregators.accounting import distributed_noise
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import local
from tff_dp_aggregators.accounting import mechanism
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting import noise_to_signal
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting import planning
from tff_dp_aggregators.accounting import records
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.accounting import spent_by_round
from tff_dp_aggregators.accounting import tree_aggregation_accountant
from tff_dp_aggregators.accounting.budget import Budget
from tff_dp_aggregators.accounting.joint_mechanism import JointMechanism
from tff_dp_aggregators.accounting.joint_mechanism import JointPart
from tff_dp_aggregators.accounting.mechanism import Mechanism
from tff_dp_aggregators.accounting.mechanism import Target

__all__ = [
  'Budget',
  'JointMechanism',
  'JointPart',
  'Mechanism',
  'Target',
  'accountants',
  'adaptive_clipping',
  'budget',
  'calibration',
  'canaries',
  'distributed_noise',
  'events',
  'joint_mechanism',
  'local',
  'mechanism',
  'nbafl',
  'noise_to_signal',
  'noises',
  'planning',
  'records',
  'reports',
  'run_events',
  'spent_by_round',
  'tree_aggregation_accountant',
]


def __dir__() -> list[str]:
  return sorted(__all__)
