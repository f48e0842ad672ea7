"""What a run is repeated by, where it is left, and which Dask cluster computes it."""

import dataclasses
import itertools
import os
import time
from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning.runs import run_directory

Flag = program.Flag
# Between a run and its continuation: files and directories may be moved (the strategy
# itself is compared), a machine be slower, the cluster be another one. Packed clients'
# sums are rounded otherwise, so that packing may not.
MAY_DIFFER = (
  'run_dir',
  'strategy_file',
  'checkpoint_seconds',
  'timeout_seconds',
  'scheduler',
  'trusted_network',
)


@dataclasses.dataclass(frozen=True)
class Run:
  """Seeds and files; attributes are the flags of the same names."""

  seed: int
  secret_noise: bool
  evaluate_every: int
  packed_simulation: Optional[bool]
  checkpoint_seconds: float
  timeout_seconds: float
  run_dir: Optional[str]


ROWS = (
  Flag(
    'seed',
    int,
    'Seed of the model, the selection of clients and their order, and the noise: same '
    'seed, same result. Noise from a known seed protects nobody, which is right for a '
    'simulation; see --secret_noise.',
    default=1,
    is_basic=True,
  ),
  Flag(
    'secret_noise',
    bool,
    'Draw the noise from a secret key instead of --seed. The run can then not be '
    'repeated exactly. Integer noise, which clients draw, is secret in any case.',
    default=False,
  ),
  Flag(
    'evaluate_every',
    int,
    'Rounds between two measurements on test data; after the last round there is one.',
    default=1,
  ),
  Flag(
    'packed_simulation',
    bool,
    'Train many clients in one computation, or each by itself, as TensorFlow Federated '
    'does.',
    unset='packed, where mechanism and --inner_aggregator allow it',
  ),
  Flag(
    'checkpoint_seconds',
    float,
    'Least time between two checkpoints, after which a run that was killed goes on.',
    default=30.0,
  ),
  Flag(
    'timeout_seconds',
    float,
    'How long a round may take; one that takes longer ends the program with an error, '
    'and the same command goes on.',
    default=3600.0,
  ),
  Flag(
    'run_dir',
    str,
    'Where to leave the results: a directory that does not exist or is empty, or one '
    'of a run with the same flags, which goes on.',
    unset='a new directory under runs',
    is_basic=True,
  ),
)


CLUSTER_ROWS = (
  Flag(
    'scheduler',
    str,
    'Compute on the workers of a Dask cluster, to the same result: local:4 for four '
    'processes of this machine, or what `dask scheduler` prints, tcp://HOST:PORT or '
    "tls://HOST:PORT, with keys and certificates of Dask's configuration "
    '(distributed.comm.tls). Workers need the environment of this program.',
  ),
  Flag(
    'trusted_network',
    bool,
    'Reach a --scheduler=tcp://HOST:PORT of another machine. Whoever is on that '
    'network can run code on all of its workers, and read model and data.',
    default=False,
  ),
)


def from_flags(values: flags.FlagValues) -> Run:
  """What the flags say."""
  if values.seed < 0:
    raise ValueError(f'--seed must not be negative; got {values.seed}.')
  checks.check_positive_int('evaluate_every', values.evaluate_every)
  if not values.checkpoint_seconds >= 0:
    raise ValueError(
      f'--checkpoint_seconds must not be negative; got {values.checkpoint_seconds}.'
    )
  if not values.timeout_seconds > 0:
    raise ValueError(
      f'--timeout_seconds must be positive; got {values.timeout_seconds}.'
    )
  if values.run_dir is not None:
    run_directory.check_usable(values.run_dir)
  names = (field.name for field in dataclasses.fields(Run))
  return Run(**{name: values[name].value for name in names})


def scheduler_from(values: flags.FlagValues) -> Optional[str]:
  """The scheduler that the flags say; `None` if there is none."""
  if values.scheduler is not None:
    cluster.check(values.scheduler, values.trusted_network, '--scheduler')
  elif values.trusted_network:
    raise ValueError('--trusted_network is for --scheduler, which is not given.')
  return values.scheduler


def new_directory(name: str) -> str:
  """A directory under `runs` that is not there yet."""
  path = os.path.join('runs', f'{name}-{time.strftime("%Y%m%d-%H%M%S")}')
  numbered = (f'{path}-{number}' for number in itertools.count(2))
  return next(
    each for each in itertools.chain([path], numbered) if not os.path.exists(each)
  )
