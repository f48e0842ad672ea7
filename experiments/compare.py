r"""Compares settings of a simulation: a grid of runs, in one table and one picture.

    tff-dp-compare --grid mechanism=gaussian,tree,banded,blt,none \
      --grid target_epsilon=2,4,8 --seeds=5 --jobs=2 --output=runs/mechanisms

--grid varies any flag of tff-dp-simulate, and several grids are crossed; all other
flags are passed to every run. Each point of the grid runs with seeds 1 to --seeds.
Options that a mechanism does not have, and privacy flags without a mechanism, are left
out. A value may bring other flags along, as in
--grid mechanism=tree,banded:num_bands=8. With --tune, extra runs choose the best of
some values for each point.

--output gets table.csv and table.md with mean and standard error of each point,
comparison.png and comparison.svg, cells.csv with each run, cells/ with the run
directories, and comparison.json, from which the same command resumes. A run that fails
has the reason in error.txt in its directory, and is tried again.

With --scheduler instead of --jobs, the workers of a Dask cluster do the runs.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning.runs import progress

from . import settings as settings_lib
from .comparing import cells as cells_lib
from .comparing import comparison
from .comparing import grid
from .comparing import running
from .options import run as run_options


@dataclasses.dataclass
class _Own:
  grid: Optional[list[str]] = program.flag(
    r'FLAG=V1,V2: a flag to vary, with its values; a comma in a value is written '
    r'"\,". Give it once for each flag.',
  )
  tune: Optional[list[str]] = program.flag(
    'FLAG=V1,V2: a flag whose best value is chosen for each point of the grid, by the '
    'metric on test data, in extra runs with other seeds. Give it once for each flag; '
    'all combinations are tried.',
  )
  seeds: int = program.flag(
    'Number of runs of each point, with seeds 1, 2 and so on.', default=3, at_least=1
  )
  tuning_seeds: int = program.flag(
    'With --tune: number of runs of each combination.', default=1, at_least=1
  )
  jobs: int = program.flag(
    'Number of runs at the same time, each in a process that takes about a gigabyte.',
    default=1,
    at_least=1,
  )
  output: Optional[str] = program.flag(
    'Directory for the results. It does not exist, is empty, or has a comparison with '
    'the same flags, which is resumed; values of --grid and --seeds may be added.',
    unset='a new directory under runs',
  )


_OWN = program.rows_of(_Own)
# A cluster runs cells, and not packs of theirs.
NAMES = table.names((*_OWN, *program.rows_of(run_options.Cluster)))
# Values that are measured by other metrics, or on other data, are not better or worse.
_WHAT_IS_BEST = (
  'metric',
  'test_clients',
  'test_examples',
  'test_data',
  'test_split',
  'split_seed',
)


def groups() -> tuple[program.Group, ...]:
  return (('Comparison', _OWN), *settings_lib.groups())


def main(values: flags.FlagValues) -> int:
  if values.tuning_seeds > 1 and not values.tune:
    raise program.WrongUsage('--tuning_seeds needs --tune.')
  for name, reason in cells_lib.REFUSED.items():
    if values[name].present:
      raise program.WrongUsage(f'--{name} is not for comparisons: {reason}.')
  refused = {**dict.fromkeys(NAMES, 'it is of the comparison'), **cells_lib.UNVARIED}
  refused |= dict.fromkeys(
    (name for name in values if name not in program.names_of(values)),
    'it is of every program',
  )
  try:
    planned = _planned(values, refused, runner := _runner(values))
  except program.BAD_INPUT as e:
    raise program.WrongUsage(program.said(e, values)) from e
  try:
    with runner:
      return planned.run()
  except (BlockingIOError, cluster.ClusterError) as e:
    raise program.WrongUsage(str(e)) from e
  except OSError as e:  # A disk that is full, say.
    progress.say(
      f'error: {e}. Nothing is lost; the same command resumes the comparison.',
      sys.stderr,
    )
    return comparison.FAILED


def _runner(values: flags.FlagValues) -> running.Cluster:
  scheduler = run_options.scheduler_from(values)
  if scheduler is None:
    scheduler, flag = f'local:{values.jobs}', f'--jobs={values.jobs}, or --scheduler'
    cluster.check(scheduler, name=flag)
    return running.Cluster(scheduler, flag=flag)
  if values['jobs'].present:
    raise program.WrongUsage(
      f'--jobs={values.jobs} is of runs here, and --scheduler={scheduler} of runs on a '
      'Dask cluster; give one of them.'
    )
  return running.Cluster(scheduler, trusted_network=values.trusted_network)


def _planned(
  values: flags.FlagValues, refused: Mapping[str, str], runner: running.Cluster
) -> comparison.Comparison:
  names = [name for name in program.names_of(values) if name not in NAMES]
  given = cells_lib.given(values, names)
  on_all = {name: values[name].value for name in given}
  axes = grid.axes(values.grid or (), values, refused)
  untuned = {**refused, **dict.fromkeys(_WHAT_IS_BEST, 'it says what the best is')}
  tuned = grid.axes(values.tune or (), values, untuned, '--tune')
  comparison.check_apart(axes, tuned, list(given))
  record = grid.Record(
    given=given,
    varied=[axis.flag for axis in axes],
    points=grid.points(axes, {**on_all, 'mechanism': values.mechanism}),
    tasks=(),
    seeds=values.seeds,
    tuned={axis.flag: comparison.values_of(axis) for axis in tuned},
    tuning_seeds=values.tuning_seeds,
  )
  output = values.output or run_options.new_directory('compare')
  return comparison.Comparison(output, record, tuned, runner)


# Errors of the comparison itself are shown with where they happened.
PROGRAM = program.Program(
  'tff-dp-compare',
  __doc__ or '',
  groups,
  main,
  refusals=(program.WrongUsage,),
  basic=(*settings_lib.BASIC, 'grid', 'tune', 'seeds', 'jobs'),
)
execute, run = PROGRAM.execute, PROGRAM.run


if __name__ == '__main__':
  run()
