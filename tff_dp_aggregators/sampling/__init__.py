"""Who takes part when: what an accountant may assume, and the cohorts that are drawn.

Every scheme is a module, with its parameters, the neighbouring relation and the events
that hold under it, and what it draws. `table` lists them.

| scheme | assumption | relation |
|---|---|---|
| `strategies.Participation` (`limits`) | rounds of a client are `min_separation` \
apart (or a multiple of it: fixed epochs), at most `max_participations` of them; no \
sampling | zero-out, replace-one |
| `PoissonSampling` | in each round every client of a group is drawn independently, \
with the same probability, and nobody learns who was | add-or-remove |
| `FixedSizeSampling` | each round draws a cohort of fixed size, uniformly and without \
replacement, and nobody learns who was | replace-one, add-or-remove |
| `TruncatedPoissonSampling` | Poisson sampling, of which a random subset is kept if \
more clients are drawn than may take part | add-or-remove (without groups), zero-out |
| `BallsInBins` | every client draws one place in a cycle of rounds, which it has in \
every cycle, and nobody learns which | add-or-remove, zero-out |
| `RandomAllocation` | every client draws so many of all rounds, and nobody learns \
which | add-or-remove, zero-out |
| `BMinSepSampling` | every client that was in none of the last rounds is drawn \
independently, with the same probability, and nobody learns who was | add-or-remove, \
zero-out |

Sampling amplifies privacy only where the rounds of a client do not share noise. With
correlated noise that needs a banded strategy and cyclic sampling (arXiv:2306.08153,
section 4), or balls in bins, which bear any strategy; any other combination is refused.

Neighbouring relations are those of dp_accounting; zero-out is its `REPLACE_SPECIAL`,
where all contributions of one client become zeros (arXiv:2103.00039, Definition 1.1).

A schedule has the cohorts of all rounds: `for_mechanism` and `for_scheme` make the one
that keeps a scheme; `Replay` reads cohorts from a file and checks them. Nothing here
needs TensorFlow.
"""

# Before anything that imports dp-accounting.
from tff_dp_aggregators.base import dp_accounting_import  # noqa: F401

# isort: split
from tff_dp_aggregators.sampling.b_min_sep import BMinSepSampling
from tff_dp_aggregators.sampling.balls_in_bins import BallsInBins
from tff_dp_aggregators.sampling.fixed_size import FixedSizeSampling
from tff_dp_aggregators.sampling.limits import Limits
from tff_dp_aggregators.sampling.limits import RandomEligible
from tff_dp_aggregators.sampling.limits import ReportingGoalError
from tff_dp_aggregators.sampling.limits import ShuffledEpochs
from tff_dp_aggregators.sampling.poisson import PoissonSampling
from tff_dp_aggregators.sampling.random_allocation import RandomAllocation
from tff_dp_aggregators.sampling.replay import Replay
from tff_dp_aggregators.sampling.schedule import Attempt
from tff_dp_aggregators.sampling.schedule import Dropouts
from tff_dp_aggregators.sampling.schedule import Header
from tff_dp_aggregators.sampling.schedule import SampledSchedule
from tff_dp_aggregators.sampling.schedule import Schedule
from tff_dp_aggregators.sampling.scheme import ADJACENCIES
from tff_dp_aggregators.sampling.scheme import SCHEMES
from tff_dp_aggregators.sampling.scheme import Schema
from tff_dp_aggregators.sampling.scheme import Scheme
from tff_dp_aggregators.sampling.scheme import adjacency
from tff_dp_aggregators.sampling.scheme import check_relation
from tff_dp_aggregators.sampling.scheme import for_flag
from tff_dp_aggregators.sampling.scheme import from_json
from tff_dp_aggregators.sampling.scheme import is_sampled
from tff_dp_aggregators.sampling.scheme import limits_of
from tff_dp_aggregators.sampling.scheme import of
from tff_dp_aggregators.sampling.scheme import of_report
from tff_dp_aggregators.sampling.scheme import register
from tff_dp_aggregators.sampling.scheme import sensitivity_factor
from tff_dp_aggregators.sampling.scheme import to_json
from tff_dp_aggregators.sampling.table import for_mechanism
from tff_dp_aggregators.sampling.table import for_scheme
from tff_dp_aggregators.sampling.table import schedule_from_json
from tff_dp_aggregators.sampling.table import schedule_names
from tff_dp_aggregators.sampling.truncated_poisson import TruncatedPoissonSampling
from tff_dp_aggregators.sampling.watch import ParticipationWatch
from tff_dp_aggregators.strategies.participation import PopulationTooSmallError

__all__ = [
  'ADJACENCIES',
  'Attempt',
  'BMinSepSampling',
  'BallsInBins',
  'Dropouts',
  'FixedSizeSampling',
  'Header',
  'Limits',
  'ParticipationWatch',
  'PoissonSampling',
  'PopulationTooSmallError',
  'RandomAllocation',
  'RandomEligible',
  'Replay',
  'ReportingGoalError',
  'SampledSchedule',
  'SCHEMES',
  'Schedule',
  'Schema',
  'Scheme',
  'ShuffledEpochs',
  'TruncatedPoissonSampling',
  'adjacency',
  'check_relation',
  'for_flag',
  'for_mechanism',
  'for_scheme',
  'from_json',
  'is_sampled',
  'limits_of',
  'of',
  'of_report',
  'register',
  'schedule_from_json',
  'schedule_names',
  'sensitivity_factor',
  'to_json',
]


def __dir__() -> list[str]:
  return sorted(__all__)
