"""Flags for a run's seed, directory and checkpoints, and for the Dask cluster."""

import dataclasses
import os
import time
from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning.runs import run_directory

# In a resumed run, files and directories may have been moved (the strategy itself is
# compared), the machine may be slower, and the cluster another one. Packing must not
# differ, as sums of packed clients are rounded differently.
MAY_DIFFER = (
  'run_dir',
  'strategy_file',
  'checkpoint_seconds',
  'timeout_seconds',
  'scheduler',
  'trusted_network',
)


@dataclasses.dataclass(frozen=True)
class Cluster:
  scheduler: Optional[str] = program.flag(
    'Compute on a Dask cluster, to the same result: local:4 for four processes here, '
    "or what `dask scheduler` prints, tcp://HOST:PORT or tls://HOST:PORT, with Dask's "
    'configuration (distributed.comm.tls). Workers need this environment.'
  )
  trusted_network: bool = program.flag(
    'Allow an unencrypted --scheduler on another machine. Whoever is on that network '
    'can run code on all of its workers, and read model and data.',
    default=False,
  )


@dataclasses.dataclass(frozen=True)
class Run(Cluster):
  seed: int = program.flag(
    'Seed of model, selection of clients, and noise: the same seed gives the same '
    'result, and noise that protects nobody; see --secret_noise.',
    default=1,
    within='[0, inf)',
  )
  secret_noise: bool = program.flag(
    'Draw the noise from a secret key instead of --seed. Integer noise always is.',
    default=False,
  )
  evaluate_every: int = program.flag(
    'Rounds between two evaluations on test data; the last is always evaluated.',
    default=1,
    within='[1, inf)',
  )
  packed_simulation: Optional[bool] = program.flag(
    'Train many clients in one computation, not each by itself as TensorFlow Federated '
    'does. Default: if mechanism and --inner_aggregator allow it.'
  )
  checkpoint_seconds: float = program.flag(
    'Least seconds between two checkpoints, from which a killed run resumes.',
    default=30.0,
    within='[0, inf]',
  )
  timeout_seconds: float = program.flag(
    'Time limit of a round, after which the program ends and can be resumed.',
    default=3600.0,
    within='(0, inf]',
  )
  audit_canaries: Optional[int] = program.flag(
    'Insert this many made-up clients, each with probability 1/2, and report what an '
    'attacker reaches with them: lower bounds of epsilon. They count as clients. For '
    'fixed clipping and Gaussian noise of the server.',
    within='[1, inf)',
  )
  audit_confidence: Optional[float] = program.flag(
    'Confidence of the lower bounds of --audit_canaries. Default: 0.95.',
    within='[0.5, 1)',
  )
  run_dir: Optional[str] = program.flag(
    'Directory for the results: new, empty, or of a run with the same flags, which is '
    'resumed. Default: a new directory under runs.'
  )


def from_flags(values: flags.FlagValues) -> Run:
  if values.run_dir is not None:
    run_directory.check_usable(values.run_dir)
  if values.audit_canaries is None:
    why = 'is for --audit_canaries; leave it out, or give that as well.'
    program.refuse(values, ['audit_confidence'], why)
  cluster.check(values.scheduler, values.trusted_network, '--scheduler')
  return Run(**program.read(Run, values))


def make_directory(path: str, flag: str) -> None:
  try:
    os.makedirs(path, exist_ok=True)
  except OSError as e:
    raise program.WrongUsage(
      f'--{flag}={path} cannot be made: {e.strerror}. Give another directory.'
    ) from e


def new_directory(name: str) -> str:
  """Returns the path of a directory under `runs`, named after the time."""
  return os.path.join('runs', f'{name}-{time.strftime("%Y%m%d-%H%M%S")}')
