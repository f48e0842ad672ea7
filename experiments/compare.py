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
from collections.abc import Iterable, Mapping, Sequence
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


def check_apart(axes: grid.Axes, tuned: grid.Axes, given: Iterable[str] = ()) -> None:
  """Refuses flags set in two places, except by what a value of --grid brings along."""
  in_tune = [{flag for each in values for flag, _ in each} for values in tuned.values()]
  places = [('--grid', {*axes}), ('the command line', {*given})]
  places += [('--tune', names) for names in in_tune]
  extra = {flag for values in axes.values() for each in values for flag, _ in each[1:]}
  places.append(('a value of --grid', extra & set().union(*in_tune)))
  for (one, names), (other, more) in itertools.combinations(places, 2):
    for name in sorted(names & more):
      raise ValueError(
        f'--{name} is set by {one} and by {other}; leave it out of one of them.'
      )


class Comparison:
  """A comparison to be run, or resumed, in a folder."""

  def __init__(
    self,
    output: str,
    requested: grid.Record,
    tuned: grid.Axes,
    workers: Mapping[str, Any],
  ):
    """Checks all settings, before anything is run or written.

    `workers`: Arguments of `cluster.connect`.
    """
    self._saved = grid.saved_record(output)
    self._record = grid.merged(output, self._saved, requested)
    self._output, self._requested = output, requested
    self._workers, self._client = workers, None
    self._make = cells_lib.Maker(output, requested.given)
    points, num_seeds = self._record.points, requested.tuning_seeds
    self._trials = [*self._make.trials(points, tuned, num_seeds)] if tuned else []
    self._cells = [] if tuned else self._make_cells({})
    names = (cell.settings.task.name for cell in (*self._trials, *self._cells))
    tasks = tuple(dict.fromkeys(names))
    self._record = dataclasses.replace(self._record, tasks=tasks)

  def _selections(self) -> dict[grid.Point, cells_lib.Selected]:
    results = [cells_lib.read(cell) for cell in self._trials]
    selections = {
      point: cells_lib.choose([each for each in results if each.cell.point == point])
      for point in self._record.points
    }
    return {point: each for point, each in selections.items() if each is not None}

  def _make_cells(
    self, selections: Mapping[grid.Point, cells_lib.Selected]
  ) -> list[cells_lib.Cell]:
    """Makes the reported cells of all points whose tuned settings are chosen."""
    cells, seeds = [], range(1, self._record.seeds + 1)
    for seed, point in itertools.product(seeds, self._record.points):
      if selected := selections.get(point):
        notes = (selected.sentence,) if selected.sentence else ()
        cells.append(self._make.cell(point, seed, selected.settings, notes))
      elif not self._trials:
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
      runs = len(self._trials) + len(self._record.points) * self._record.seeds
      where = f'{self._workers["scheduler"]}. Writing to {self._output}.'
      progress.say('\n'.join([f'{runs} runs on {where}', *self._left_out()]))
      failed, error = 0, None
      try:
        with contextlib.ExitStack() as stack:
          failed += self._run(self._trials, stop, stack, 'tuning ')
          if self._trials:
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
    failed, ended = 0, cells_lib.run(self._client, todo, stop)
    for number, (cell, error, seconds) in enumerate(ended, 1):
      result = cells_lib.after_run(cell, error, stop.requested)
      failed += result.status == cells_lib.FAILED
      text = _in_words(result, seconds)
      progress.say(f'{kind}{number}/{len(todo)} {cell.name}: {text}')
    return failed

  def _left_out(self) -> list[str]:
    """Says which flags of the command line do not apply to which points."""
    return [
      f'{point.name} runs without --{", --".join(names)}.'
      for point in self._record.points
      if (names := [each for each in point.left_out if each in self._record.given])
    ]

  def _notes(
    self,
    results: Sequence[cells_lib.Result],
    selections: Mapping[grid.Point, cells_lib.Selected],
  ) -> list[str]:
    missing = [
      f'{each.cell.name} ({each.error or each.status})'
      for each in results
      if not each.is_finished
    ]
    warnings = collections.Counter(
      each.split('. ')[0].rstrip('.') for result in results for each in result.warnings
    )
    notes = [
      *self._left_out(),
      f'{len(missing)} of {len(results)} runs are missing: {"; ".join(missing)}.'
      if missing
      else '',
      'Each epsilon is that of one run by itself. All runs are on the same clients: '
      'publishing several of them spends more, and those of one seed have the same '
      'clients and noise, which no composition covers.',
      *(f'Of {n} of {len(results)} runs: {each}.' for each, n in warnings.items()),
    ]
    if not self._trials:
      return notes
    tuned = '; '.join(
      f'{name} among {", ".join(values)}' for name, values in self._record.tuned.items()
    )
    number, first = self._record.tuning_seeds, cells_lib.FIRST_TUNING_SEED
    waiting = [p.name or 'all' for p in self._record.points if p not in selections]
    return [
      *notes,
      f'Tuned for each point: {tuned}; the best by the metric on test data, of runs '
      f'({number} each) with seeds from {first} on, none of which is in the table. '
      'They chose by the test data that the table is measured on, which flatters what '
      'was tuned.',
      'epsilon with tuning is that of a run, of the runs among which its settings were '
      'chosen, and of the choice, all composed: what publishing a tuned run really '
      'spends, if the clients are private and the test data are of none of them. '
      f'{cells_lib.TIGHTER}',
      f'Not tuned yet, as not all tuning runs are finished: {"; ".join(waiting)}.'
      if waiting
      else '',
    ]


def _in_words(result: cells_lib.Result, seconds: float) -> str:
  if result.status == cells_lib.FAILED:
    return f'failed: {result.error}; all of it is in {result.cell.error_path}'
  if not result.is_finished:
    return 'stopped, and can go on'
  name, spent = result.cell.settings.model.metric.name, rounding.up(result.epsilon)
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
  except OSError as e:  # Such as a full disk.
    progress.say(
      f'error: {e}. Nothing is lost; the same command resumes the comparison.',
      sys.stderr,
    )
    return FAILED


def _planned(values: flags.FlagValues, refused: Mapping[str, str]) -> Comparison:
  scheduler, flag = values.scheduler, '--scheduler'
  cluster.check(scheduler, values.trusted_network, flag)
  if scheduler is None:
    scheduler, flag = f'local:{values.jobs}', f'--jobs={values.jobs}, or --scheduler'
    cluster.check(scheduler, name=flag)
  else:
    program.refuse(values, ['jobs'], 'is for runs here; leave out it or --scheduler.')
  names = [each for each in values if each not in NAMES and values[each].present]
  given = {name: tuple(program.given(values, [name])) for name in names}
  on_all = {name: values[name].value for name in given}
  axes = grid.axes(values.grid or (), values, refused)
  untuned = {**refused, **dict.fromkeys(_METRIC_FLAGS, 'it decides what is best')}
  tuned = grid.axes(values.tune or (), values, untuned, '--tune')
  check_apart(axes, tuned, given)
  output = values.output or run_options.new_directory('compare')
  points = grid.points(axes, {**on_all, 'mechanism': values.mechanism})
  if saved := grid.saved_record(output):
    points = grid.as_saved(points, saved.points, values)
  record = grid.Record(
    given=given,
    varied=[*axes],
    points=points,
    tasks=(),
    seeds=values.seeds,
    tuned={
      name: [
        ':'.join([own, *(f'{flag}={value}' for flag, value in extra)])
        for (_, own), *extra in listed
      ]
      for name, listed in tuned.items()
    },
    tuning_seeds=values.tuning_seeds,
  )
  trusted = {'trusted_network': values.trusted_network}
  return Comparison(
    output, record, tuned, {'scheduler': scheduler, 'name': flag, **trusted}
  )


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
