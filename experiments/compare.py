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

import collections
import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning.runs import progress

from . import settings as settings_lib
from .comparing import cells as cells_lib
from .comparing import grid
from .comparing import results as results_lib
from .comparing import running
from .options import run as run_options


@dataclasses.dataclass
class _Flags:
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
    'Number of runs of each point, with seeds 1, 2 and so on.',
    default=3,
    within='[1, inf)',
  )
  tuning_seeds: int = program.flag(
    'With --tune: number of runs of each combination.', default=1, within='[1, inf)'
  )
  jobs: int = program.flag(
    'Number of runs at the same time, each in a process that takes about a gigabyte.',
    default=1,
    within='[1, inf)',
  )
  output: Optional[str] = program.flag(
    'Directory for the results. It does not exist, is empty, or has a comparison with '
    'the same flags, which is resumed; values of --grid and --seeds may be added. '
    'Default: a new directory under runs.',
  )


_FLAGS = program.rows_of(_Flags)
FAILED, INTERRUPTED = 1, 130  # Exit codes.
# Flags of the comparison itself. --scheduler is among them: workers run whole cells.
NAMES = table.names((*_FLAGS, *program.rows_of(run_options.Cluster)))
# Flags that --tune cannot choose, as results by other metrics or on other data do not
# compare.
_METRIC_FLAGS = (
  'metric',
  'test_clients',
  'test_examples',
  'test_data',
  'test_split',
  'split_seed',
)


def check_apart(
  axes: Sequence[grid.Axis], tuned: Sequence[grid.Axis], given: Sequence[str] = ()
) -> None:
  """Refuses flags set in two places, except by what a value of --grid brings along."""
  tuned_flags = [{flag for each in axis.values for flag, _ in each} for axis in tuned]
  extra_flags = {flag for axis in axes for each in axis.values for flag, _ in each[1:]}
  places = (
    ('--grid', {axis.flag for axis in axes}),
    *(('--tune', flags_of_axis) for flags_of_axis in tuned_flags),
    ('the command line', set(given)),
    ('a value of --grid', extra_flags.intersection(itertools.chain(*tuned_flags))),
  )
  for (one, names), (other, more) in itertools.combinations(places, 2):
    for name in sorted(names & more):
      raise ValueError(
        f'--{name} is set by {one} and by {other}; leave it out of one of them.'
      )


def _values_of(axis: grid.Axis) -> tuple[str, ...]:
  return tuple(
    ':'.join([own, *(f'{flag}={value}' for flag, value in extra_flags)])
    for (_, own), *extra_flags in axis.values
  )


class Comparison:
  """A comparison to be run, or resumed, in a folder."""

  def __init__(
    self,
    output: str,
    requested: grid.Record,
    tuned: Sequence[grid.Axis],
    workers: Mapping[str, Any],
  ):
    """Checks all settings, before anything is run or written.

    `workers`: Arguments of `cluster.connect`.
    """
    self._saved = grid.saved_record(output)
    requested, self._record = grid.merged(output, self._saved, requested)
    self._output, self._requested, self._tuned = output, requested, tuned
    self._workers, self._client = workers, None
    self._make = cells_lib.Maker(output, requested.given)
    points, num_seeds = self._record.points, requested.tuning_seeds
    self._trials = [*self._make.trials(points, tuned, num_seeds)] if tuned else []
    self._cells = self._make_cells({})
    names = (cell.settings.task.name for cell in (*self._trials, *self._cells))
    tasks = tuple(dict.fromkeys(names))
    self._record = dataclasses.replace(self._record, tasks=tasks)

  def _make_cells(
    self, selections: Mapping[grid.Point, cells_lib.Selected]
  ) -> list[cells_lib.Cell]:
    """Makes the reported cells of all points whose tuned settings are chosen."""
    cells, seeds = [], range(1, self._record.seeds + 1)
    for seed, point in itertools.product(seeds, self._record.points):
      if selected := selections.get(point):
        notes = filter(None, [selected.sentence])
        cells.append(self._make.cell(point, seed, selected.settings, tuple(notes)))
      elif not self._tuned:
        cells.append(self._make.cell(point, seed))
    return cells

  def run(self) -> int:
    """Runs all unfinished cells; returns the exit code."""
    notice = 'Ending after the rounds that are run; press Ctrl-C again to end now.'
    stopping = interrupts.graceful_interrupts(notice)
    with grid.folder(self._output), stopping as stop:
      if grid.saved_record(self._output) != self._saved:
        raise program.WrongUsage(
          f'the comparison in {self._output} was changed meanwhile by another one; '
          'give the same command again.'
        )
      grid.write_record(self._output, self._record)
      self._announce()
      error: Optional[cluster.ClusterError] = None
      try:
        with contextlib.ExitStack() as stack:
          failed = self._run(self._trials, stop, stack, 'tuning ')
          if self._tuned:
            self._cells = self._make_cells(self._selections())
          failed += self._run(self._cells, stop, stack)
      except cluster.ClusterError as e:
        error = e
      except KeyboardInterrupt:
        progress.say('Ending at once.', sys.stderr)
      results = [cells_lib.read(cell) for cell in self._cells]
      selections = self._selections()
      notes = self._notes(results, selections)
      rows = results_lib.write(self._output, self._record, results, selections, notes)
      results_lib.draw(self._output)
      progress.say(results_lib.to_text(self._record, rows))
    progress.say(f'Results are in {self._output}; read {results_lib.MARKDOWN} first.')
    if error is not None:
      progress.say(f'error: {error}', sys.stderr)
      return FAILED
    if stop.requested:
      progress.say('Stopped before its end; the same command goes on.')
      return INTERRUPTED
    if failed:
      progress.say(
        f'{failed} of the runs failed; the same command tries again what failed.'
      )
    return FAILED if failed else 0

  def _run(
    self,
    cells: Sequence[cells_lib.Cell],
    stop: interrupts.StopRequest,
    stack: contextlib.ExitStack,
    kind: str = '',
  ) -> int:
    """Runs those that are asked for and not finished; returns how many failed."""
    todo = [
      cell
      for cell in cells
      if cell.point in self._requested.points
      and (kind or cell.seed <= self._requested.seeds)
      and not cells_lib.read(cell).is_finished
    ]
    if not todo or stop.requested:
      return 0
    if self._client is None:
      try:
        self._client = stack.enter_context(cluster.connect(**self._workers))
      except cluster.ClusterError as e:
        raise program.WrongUsage(str(e)) from e
    failed = 0
    ended = running.run(self._client, todo, stop)
    for number, (cell, error, seconds) in enumerate(ended, 1):
      result = cells_lib.after_run(cell, error, stop.requested)
      failed += result.status == cells_lib.FAILED
      text = _in_words(result, seconds)
      progress.say(f'{kind}{number}/{len(todo)} {cell.name}: {text}')
    return failed

  def _selections(self) -> dict[grid.Point, cells_lib.Selected]:
    by_point = {}
    for point in self._record.points:
      results = [cells_lib.read(cell) for cell in self._trials if cell.point == point]
      selected = cells_lib.choose(results, self._make)
      if selected is not None:
        by_point[point] = selected
    return by_point

  def _announce(self) -> None:
    points, seeds = len(self._requested.points), self._requested.seeds
    trials = len(self._trials) // len(self._record.points)
    runs = points * (seeds + trials)
    text = f'{points} point{_s(points)} with {seeds} seed{_s(seeds)} each'
    if trials:
      text += f', and {trials} tuning run{_s(trials)} before'
    scheduler = self._workers['scheduler']
    jobs = scheduler.removeprefix('local:')
    where = f'one on each Dask worker of {scheduler}'
    where = where if jobs == scheduler else f'{jobs} at a time'
    text += f': {runs} run{_s(runs)}, {where}. Writing to {self._output}.'
    progress.say('\n'.join([text, *self._left_out()]))

  def _left_out(self) -> list[str]:
    """Says which flags of the command line do not apply to which points."""
    return [
      f'{point.name}: without --{", --".join(names)}.'
      for point in self._record.points
      if (names := [each for each in point.left_out if each in self._record.given])
    ]

  def _notes(
    self,
    results: Sequence[cells_lib.Result],
    selections: Mapping[grid.Point, cells_lib.Selected],
  ) -> list[str]:
    notes = list(self._left_out())
    missing = [
      f'{each.cell.name} ({each.error or each.status})'
      for each in results
      if not each.is_finished
    ]
    if missing:
      notes.append(
        f'{len(missing)} of {len(results)} runs are missing: {"; ".join(missing)}.'
      )
    notes.append(
      'Each epsilon is that of one run by itself. All runs are on the same clients: '
      'publishing several of them spends more, and those of one seed have the same '
      'clients and noise, which no composition covers.'
    )
    warnings = collections.Counter(
      each.split('. ')[0].rstrip('.') for result in results for each in result.warnings
    )
    notes += [
      f'Of {count} of {len(results)} runs: {sentence}.'
      for sentence, count in warnings.items()
    ]
    if not self._tuned:
      return notes
    tuned = '; '.join(
      f'{name} among {", ".join(values)}' for name, values in self._record.tuned.items()
    )
    number, first = self._record.tuning_seeds, cells_lib.FIRST_TUNING_SEED
    notes += [
      f'Tuned for each point: {tuned}; the best by the metric on test data, of runs '
      f'({number} each) with seeds from {first} on, none of which is in the table. '
      'They chose by the test data that the table is measured on, which flatters what '
      'was tuned.',
      'epsilon with tuning is that of a run, of the runs among which its settings were '
      'chosen, and of the choice, all composed: what publishing a tuned run really '
      'spends, if the clients are private and the test data are of none of them. '
      f'{cells_lib.TIGHTER}',
    ]
    waiting = [p.name or 'all' for p in self._record.points if p not in selections]
    if waiting:
      notes.append(
        f'Not tuned yet, as not all tuning runs are finished: {"; ".join(waiting)}.'
      )
    return notes


def _s(number: int) -> str:
  return '' if number == 1 else 's'


def _in_words(result: cells_lib.Result, seconds: float) -> str:
  if result.status == cells_lib.FAILED:
    return f'failed: {result.error}; all of it is in {result.cell.error_path}'
  if not result.is_finished:
    return 'stopped, and can go on'
  name = result.cell.settings.model.metric.name
  spent = rounding.up(result.epsilon)
  return f'{name} {result.metric:.4f}, epsilon {spent} ({seconds:.0f} s)'


def groups() -> tuple[program.Group, ...]:
  return (('Comparison', _FLAGS), *settings_lib.groups())


def main(values: flags.FlagValues) -> int:
  if values.tuning_seeds > 1 and not values.tune:
    raise program.WrongUsage('--tuning_seeds needs --tune.')
  for name, reason in cells_lib.REFUSED.items():
    if values[name].present:
      raise program.WrongUsage(f'--{name} is not for comparisons: {reason}.')
  refused = {**dict.fromkeys(NAMES, 'it is for the comparison'), **cells_lib.UNVARIED}
  try:
    planned = _planned(values, refused)
  except program.BAD_INPUT as e:
    raise program.WrongUsage(program.error_message(e)) from e
  try:
    return planned.run()
  except BlockingIOError as e:
    raise program.WrongUsage(str(e)) from e
  except OSError as e:  # Such as a full disk.
    progress.say(
      f'error: {e}. Nothing is lost; the same command resumes the comparison.',
      sys.stderr,
    )
    return FAILED


def _planned(values: flags.FlagValues, refused: Mapping[str, str]) -> Comparison:
  run_options.check_scheduler(values)
  scheduler, flag = values.scheduler, '--scheduler'
  if scheduler is None:
    scheduler, flag = f'local:{values.jobs}', f'--jobs={values.jobs}, or --scheduler'
    cluster.check(scheduler, name=flag)
  elif values['jobs'].present:
    raise program.WrongUsage(
      f'--jobs={values.jobs} is for runs here, and --scheduler={scheduler} for runs on '
      'a Dask cluster; give one of them.'
    )
  names = [name for name in values if name not in NAMES]
  given = cells_lib.given(values, names)
  on_all = {name: values[name].value for name in given}
  axes = grid.axes(values.grid or (), values, refused)
  untuned = {**refused, **dict.fromkeys(_METRIC_FLAGS, 'it decides what is best')}
  tuned = grid.axes(values.tune or (), values, untuned, '--tune')
  check_apart(axes, tuned, list(given))
  record = grid.Record(
    given=given,
    varied=[axis.flag for axis in axes],
    points=grid.points(axes, {**on_all, 'mechanism': values.mechanism}),
    tasks=(),
    seeds=values.seeds,
    tuned={axis.flag: _values_of(axis) for axis in tuned},
    tuning_seeds=values.tuning_seeds,
  )
  output = values.output or run_options.new_directory('compare')
  trusted = {'trusted_network': values.trusted_network}
  workers = {'scheduler': scheduler, 'name': flag, **trusted}
  return Comparison(output, record, tuned, workers)


# Other errors of the comparison are shown with a traceback.
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
