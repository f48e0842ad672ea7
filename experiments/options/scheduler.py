"""On which Dask cluster it is computed, if not in this process alone."""

from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.learning import cluster

NAMES = ('scheduler', 'trusted_network')
# A run may go on with another cluster, or none.
MAY_DIFFER = NAMES


ROWS = (
  program.Flag(
    'scheduler',
    str,
    'Compute on the workers of a Dask cluster, to the same result: local:4 for four '
    'processes of this machine, or what `dask scheduler` prints, tcp://HOST:PORT or '
    "tls://HOST:PORT, with keys and certificates of Dask's configuration "
    '(distributed.comm.tls). Workers need the environment of this program.',
  ),
  program.Flag(
    'trusted_network',
    bool,
    'Reach a --scheduler=tcp://HOST:PORT of another machine. Whoever is on that '
    'network can run code on all of its workers, and read model and data.',
    default=False,
  ),
)


def from_flags(values: flags.FlagValues) -> Optional[str]:
  """The scheduler that the flags say; `None` if there is none."""
  if values.scheduler is not None:
    cluster.check(values.scheduler, values.trusted_network, '--scheduler')
  elif values.trusted_network:
    raise ValueError('--trusted_network is for --scheduler, which is not given.')
  return values.scheduler
