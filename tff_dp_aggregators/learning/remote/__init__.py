"""Packs of clients trained by workers, on this machine or on others.

`connection` calls one worker, `member` keeps it in use and notices when it is lost,
`crew` hands out packs and takes what comes back, `job` is what workers compute,
`seats` where they are, and `local` starts those of this machine.
"""

from tff_dp_aggregators.learning.remote.crew import Crew
from tff_dp_aggregators.learning.remote.crew import NoWorkersError
from tff_dp_aggregators.workers.group import Workers

__all__ = ['Crew', 'NoWorkersError', 'Workers']


def __dir__() -> list[str]:
  return sorted(__all__)
