"""Participation schemas: what is assumed about who takes part when, and its price.

An assumption decides which events describe a mechanism, and under which neighbouring
relation they are right:

| schema | assumption | relation |
|---|---|---|
| `strategies.Participation` | rounds of a client are `min_separation` apart (or a \
multiple of it: fixed epochs), at most `max_participations` of them; no sampling | \
zero-out, replace-one |
| `PoissonSampling` | in each round every client of a group is drawn independently, \
with the same probability, and nobody learns who was | add-or-remove |
| `FixedSizeSampling` | each round draws a cohort of fixed size, uniformly and without \
replacement, and nobody learns who was | replace-one, add-or-remove |
| `BallsInBins` | every client draws one place in a cycle of rounds, which it has in \
every cycle, and nobody learns which | add-or-remove, zero-out |
| `RandomAllocation` | every client draws so many of all rounds, and nobody learns \
which | add-or-remove, zero-out |
| `BMinSepSampling` | every client that was in none of the last rounds is drawn \
independently, with the same probability, and nobody learns who was | add-or-remove, \
zero-out |

Sampling amplifies privacy only where the rounds of a client do not share noise: a
sampled round of independent Gaussian noise is an event of its own. With correlated
noise that needs a banded strategy and cyclic sampling (arXiv:2306.08153, section 4), or
balls in bins, which bear any strategy (`allocation`); any other combination is refused,
because its events would not describe what happens.

Neighbouring relations are those of dp_accounting: `ADD_OR_REMOVE_ONE` client,
`REPLACE_ONE` client by another, and `REPLACE_SPECIAL`, where all contributions of one
client become zeros (arXiv:2103.00039, Definition 1.1), called zero-out here.

Each schema has a module, in which a `base.Kind` says everything about it: events,
words, flags, what a comparison offers with it. `registry` lists them. A new schema is
a module and a line there.
"""

from tff_dp_aggregators.accounting.schemas import base
from tff_dp_aggregators.accounting.schemas import registry
from tff_dp_aggregators.accounting.schemas.b_min_sep import BMinSepSampling
from tff_dp_aggregators.accounting.schemas.balls_in_bins import BallsInBins
from tff_dp_aggregators.accounting.schemas.base import ADJACENCIES
from tff_dp_aggregators.accounting.schemas.base import Schema
from tff_dp_aggregators.accounting.schemas.base import adjacency
from tff_dp_aggregators.accounting.schemas.base import run_noise_multiplier
from tff_dp_aggregators.accounting.schemas.base import sensitivity_factor
from tff_dp_aggregators.accounting.schemas.fixed_size import FixedSizeSampling
from tff_dp_aggregators.accounting.schemas.poisson import PoissonSampling
from tff_dp_aggregators.accounting.schemas.random_allocation import RandomAllocation
from tff_dp_aggregators.accounting.schemas.registry import KINDS
from tff_dp_aggregators.accounting.schemas.registry import LIMITS
from tff_dp_aggregators.accounting.schemas.registry import check
from tff_dp_aggregators.accounting.schemas.registry import check_bands
from tff_dp_aggregators.accounting.schemas.registry import check_relation
from tff_dp_aggregators.accounting.schemas.registry import event
from tff_dp_aggregators.accounting.schemas.registry import flags
from tff_dp_aggregators.accounting.schemas.registry import from_json
from tff_dp_aggregators.accounting.schemas.registry import is_sampled
from tff_dp_aggregators.accounting.schemas.registry import kind_for_flag
from tff_dp_aggregators.accounting.schemas.registry import kind_of
from tff_dp_aggregators.accounting.schemas.registry import limits
from tff_dp_aggregators.accounting.schemas.registry import of_report
from tff_dp_aggregators.accounting.schemas.registry import register
from tff_dp_aggregators.accounting.schemas.registry import relations
from tff_dp_aggregators.accounting.schemas.registry import round_events
from tff_dp_aggregators.accounting.schemas.registry import to_json

__all__ = [
  'ADJACENCIES',
  'BMinSepSampling',
  'BallsInBins',
  'FixedSizeSampling',
  'KINDS',
  'LIMITS',
  'PoissonSampling',
  'RandomAllocation',
  'Schema',
  'adjacency',
  'base',
  'check',
  'check_bands',
  'check_relation',
  'event',
  'flags',
  'from_json',
  'is_sampled',
  'kind_for_flag',
  'kind_of',
  'limits',
  'of_report',
  'register',
  'registry',
  'relations',
  'round_events',
  'run_noise_multiplier',
  'sensitivity_factor',
  'to_json',
]


def __dir__() -> list[str]:
  return sorted(__all__)
