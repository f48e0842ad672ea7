"""Who takes part in which round: one object for the run and for the accountant.

The accountant reads a schedule's `schema`; the run draws its cohorts from it. So they
cannot disagree. A cohort is a function of seed and round alone: whoever makes the same
schedule again, after a crash for instance, gets the same clients.

| kind | schema | clients of a round |
|---|---|---|
| `RandomEligible` | `strategies.Participation` | at random among those that may take \
part: what production systems do |
| `ShuffledEpochs` | `strategies.Participation(fixed_epoch=True)` | in one shuffled \
order, the same in each epoch |
| `FixedSize` | `accounting.schemas.FixedSizeSampling` | so many, uniformly without \
replacement |
| `Poisson` | `accounting.schemas.PoissonSampling` | each of the round's group by \
itself |
| `BallsInBins` | `accounting.schemas.BallsInBins` | all who drew its place in the \
cycle, each by itself |
| `RandomAllocation` | `accounting.schemas.RandomAllocation` | all who drew it among \
their rounds, each by itself |
| `BMinSep` | `accounting.schemas.BMinSepSampling` | each free one by itself, \
which then has a break |
| `Replay` | what its file states | those of a file, which is checked |

Each kind is a module and a line in `registry`. Nothing here needs TensorFlow.
"""

from tff_dp_aggregators.learning.schedules import base
from tff_dp_aggregators.learning.schedules import registry
from tff_dp_aggregators.learning.schedules.b_min_sep import BMinSep
from tff_dp_aggregators.learning.schedules.balls_in_bins import BallsInBins
from tff_dp_aggregators.learning.schedules.base import Attempt
from tff_dp_aggregators.learning.schedules.base import Schedule
from tff_dp_aggregators.learning.schedules.checking import ParticipationWatch
from tff_dp_aggregators.learning.schedules.dropouts import Dropouts
from tff_dp_aggregators.learning.schedules.dropouts import ReportingGoalError
from tff_dp_aggregators.learning.schedules.files import Header
from tff_dp_aggregators.learning.schedules.fixed_size import FixedSize
from tff_dp_aggregators.learning.schedules.poisson import Poisson
from tff_dp_aggregators.learning.schedules.random_allocation import RandomAllocation
from tff_dp_aggregators.learning.schedules.random_eligible import RandomEligible
from tff_dp_aggregators.learning.schedules.registry import KINDS
from tff_dp_aggregators.learning.schedules.registry import for_mechanism
from tff_dp_aggregators.learning.schedules.registry import for_schema
from tff_dp_aggregators.learning.schedules.registry import from_json
from tff_dp_aggregators.learning.schedules.registry import register
from tff_dp_aggregators.learning.schedules.replay import Replay
from tff_dp_aggregators.learning.schedules.shuffled_epochs import ShuffledEpochs
from tff_dp_aggregators.strategies.participation import PopulationTooSmallError

__all__ = [
  'Attempt',
  'BMinSep',
  'BallsInBins',
  'Dropouts',
  'FixedSize',
  'Header',
  'KINDS',
  'ParticipationWatch',
  'Poisson',
  'PopulationTooSmallError',
  'RandomAllocation',
  'RandomEligible',
  'Replay',
  'ReportingGoalError',
  'Schedule',
  'ShuffledEpochs',
  'base',
  'for_mechanism',
  'for_schema',
  'from_json',
  'register',
  'registry',
]


def __dir__() -> list[str]:
  return sorted(__all__)
