r"""Draws runs of experiments.simulate, or the picture of a comparison again.

    tff-dp-plot runs/digits-tree
    tff-dp-plot runs/mechanisms/cells/*seed=1 --x=epsilon --output=a.svg
    tff-dp-plot runs/mechanisms

For one run, draws its metric and epsilon over rounds. For several runs, draws them in
one chart, named by the flags in which they differ. For the directory of a comparison,
draws its table, as tff-dp-compare does. --x and --y take any column of metrics.csv;
seconds are those since the start of the run.
"""

import dataclasses
import io
import itertools
import json
import os
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.base import messages
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning.runs import progress
from tff_dp_aggregators.learning.runs import run_directory

ROUND, EPSILON, SECONDS = 'round', 'epsilon', 'seconds'
_TEST = 'test_'
FORMATS = ('png', 'svg')
GREY = '#555555'
# Styles of horizontal lines, so that several can be told apart.
LEVELS = tuple(
  {'color': color, 'linestyle': style}
  for color in (GREY, '#AAAAAA')
  for style in ('-', '--', ':', '-.')
)
# Okabe and Ito's, for colour-blind people; without yellow, which is pale on white.
_COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
_STYLE = {
  'figure.figsize': (7.2, 4.2),
  'figure.dpi': 120,
  'savefig.bbox': 'tight',  # With the legend, which is beside the axes.
  'axes.titlelocation': 'left',
  'axes.titlesize': 10,
  'axes.grid': True,
  'grid.alpha': 0.3,
  'legend.fontsize': 8.5,
  'legend.frameon': False,
  # The same picture has the same bytes; letters as paths look the same everywhere.
  'svg.hashsalt': 'picture',
  'svg.fonttype': 'path',
}


@dataclasses.dataclass(frozen=True)
class Run:
  directory: str
  flags: dict[str, Any]  # Those that are not private, and a seed that can be guessed.
  delta: Optional[float]  # Delta of the reported epsilon; `None` without privacy.
  # Columns of `metrics.csv` by name, and `seconds` since the beginning; NaN if a round
  # has no number. `round` is the number of completed rounds.
  columns: dict[str, np.ndarray]

  @property
  def spends(self) -> bool:
    """Whether epsilon is known after each round."""
    return EPSILON in self.columns and bool(np.isfinite(self.columns[EPSILON]).all())

  def has(self, name: str) -> bool:
    return name in self.columns and bool(np.isfinite(self.columns[name]).any())

  def points(self, x: str, y: str) -> np.ndarray:
    """Points at which both are finite, of shape [2, points]."""
    points = np.array([self.columns[x], self.columns[y]])
    return points[:, np.isfinite(points).all(axis=0)]


def read_run(directory: str) -> Run:
  path = os.path.join(directory, run_directory.CONFIG)
  metrics_path = os.path.join(directory, run_directory.METRICS)
  try:
    config = run_directory.read_config(directory)
    with open(path, encoding='utf-8') as file:
      shown = dict(json.load(file).get('flags') or {})
    seed = dict(config.get('flags') or {}).get('seed')
    if isinstance(seed, int) and seed < ledger.GUESSABLE:
      shown['seed'] = seed
    delta = dict(config.get('privacy') or {}).get('delta')
    rows = learning_curves.read(metrics_path)
    columns = {
      name: np.array([float(row[name] or 'nan') for row in rows])
      for name in (rows[0] if rows else ())
    }
  except (OSError, AttributeError, TypeError, ValueError) as e:
    raise ValueError(
      f'{directory} cannot be read as a run: {str(e).rstrip(".")}. Name run '
      'directories of tff-dp-simulate.'
    ) from e
  if not rows:
    raise ValueError(f'{metrics_path} has no rounds yet; wait for the first one.')
  if 'round_seconds' in columns:
    columns[SECONDS] = np.cumsum(columns['round_seconds'])
  if ROUND in columns:
    columns[ROUND] += 1
  return Run(directory, shown, delta, columns)


def picture(
  runs: Sequence[Run],
  x: str = ROUND,
  y: Optional[str] = None,
  title: Optional[str] = None,
) -> Any:
  """Draws one or more runs; `x` and `y` are columns. Returns Matplotlib's axes."""
  y = y or _measure_of_all(runs)
  names = [os.path.basename(os.path.abspath(run.directory)) for run in runs]
  title = title or (names[0] if len(runs) == 1 else f'{len(runs)} runs')
  axes = new_axes(title, _in_words(x, runs), _in_words(y, runs))
  levels = itertools.cycle(LEVELS)
  for run, label in zip(runs, labels(runs)):
    for name in (x, y):
      # Runs without privacy have no epsilon, and are drawn as a level.
      if name not in run.columns and not (name == x == EPSILON):
        suggestions = messages.near(name, run.columns) or run.columns
        raise ValueError(
          f'{run.directory} has no column {name!r}; there are {", ".join(suggestions)}.'
        )
    is_level = x == EPSILON and not run.spends
    points = run.points(ROUND if is_level else x, y)
    if not points.size:
      raise ValueError(f'{run.directory} has no numbers in {y!r} over {x!r}.')
    if is_level:
      label = f'{label or run.directory} (no privacy)'
      axes.axhline(points[1, -1], label=label, **next(levels))
    else:
      axes.plot(*points, label=label)
  axes.set_xlim(left=0)
  if x == ROUND:
    axes.locator_params(axis='x', integer=True)
  if len(runs) == 1 and EPSILON not in (x, y) and runs[0].spends:
    right = axes.twinx()
    right.set_ylabel(_in_words(EPSILON, runs), color=_COLORS[1])
    right.step(*runs[0].points(x, EPSILON), where='post', color=_COLORS[1])
    right.set_ylim(bottom=0)
  return axes


def labels(runs: Sequence[Run]) -> list[str]:
  """Returns how runs differ: by flags, or else by directory."""
  if len(runs) == 1:
    return ['']
  names = dict.fromkeys(name for run in runs for name in run.flags)
  differing = [
    name for name in names if len({json.dumps(run.flags.get(name)) for run in runs}) > 1
  ]
  # Values that are not given are left out, such as a target without a mechanism.
  texts = [
    ', '.join(
      f'{name}={value:g}' if isinstance(value, float) else f'{name}={value}'
      for name in differing
      if (value := run.flags.get(name)) is not None
    )
    for run in runs
  ]
  if len(set(texts)) == len(runs) and all(texts):
    return texts
  # Some runs have the same flags, for example at different commits.
  return [f'{each} ({run.directory})'.lstrip() for each, run in zip(texts, runs)]


def _measure_of_all(runs: Sequence[Run]) -> str:
  shared = [
    name
    for name in runs[0].columns
    if name.startswith(_TEST) and all(name in run.columns for run in runs)
  ]
  if not shared:
    raise ValueError(
      'there is no measure that all runs have. Draw those of one task, or name a '
      'column that all have with --y.'
    )
  chosen = {f'{_TEST}{run.flags.get("metric")}' for run in runs}
  return next((name for name in shared if {name} == chosen), shared[-1])


def _in_words(name: str, runs: Sequence[Run]) -> str:
  if name != EPSILON:
    return name.replace('_', ' ')
  deltas = {run.delta for run in runs} - {None}
  at_delta = f' at delta = {deltas.pop():g}' if len(deltas) == 1 else ''
  return f'epsilon spent{at_delta}'


def new_axes(title: str, x_label: str, y_label: str) -> Any:
  """Returns the axes of a new picture, in which each line has a colour of its own."""
  import matplotlib.figure  # Loading it is slower than checking flags.

  with matplotlib.rc_context(_STYLE):
    axes = matplotlib.figure.Figure().add_subplot(xlabel=x_label, ylabel=y_label)
    axes.set_title(title)
  lines = itertools.product(('-', '--', ':'), _COLORS)
  axes.set_prop_cycle(**dict(zip(('linestyle', 'color'), zip(*lines))))
  return axes


def save(axes: Any, path: str) -> None:
  """Writes a picture, with a legend if a line has a label."""
  import matplotlib

  file, kind = io.BytesIO(), path[-3:].lower()
  with matplotlib.rc_context(_STYLE):
    if any(axes.get_legend_handles_labels()):
      axes.legend(loc='upper left', bbox_to_anchor=(1.01, 1.0))
    metadata = {'Date': None} if kind == 'svg' else None
    axes.figure.savefig(file, format=kind, metadata=metadata)
  new_files.replace(path, file.getvalue())


def check_format(path: str) -> None:
  """Refuses other endings than those that `save` takes."""
  if not path.lower().endswith(tuple(f'.{each}' for each in FORMATS)):
    raise ValueError(f'the picture {path!r} must end in .png or .svg.')


_DEFAULT_OUTPUT = 'plot.png'


_FLAGS = (
  program.Flag(
    'run_dir',
    program.MANY,
    'Directory of a run, or of a comparison. The flag may be left out: arguments are '
    'directories too.',
    default=[],
  ),
  program.Flag(
    'output',
    str,
    'Picture to write, ending in .png or .svg. An existing file is replaced. Default: '
    f'{_DEFAULT_OUTPUT}; of a comparison, comparison.png and comparison.svg in its '
    'directory.',
  ),
  program.Flag(
    'x',
    str,
    'Column on the horizontal axis: round, epsilon, seconds, or another one.',
    default=ROUND,
  ),
  program.Flag(
    'y', str, 'Column on the vertical axis. Default: the metric of the runs.'
  ),
)


def main(values: flags.FlagValues) -> int:
  from .comparing import grid
  from .comparing import results  # It draws with this module.

  output, directories = values.output, values.run_dir
  if output is not None:
    check_format(output)
  if not directories:
    raise program.WrongUsage('name the directory of a run, or several.')
  if any(os.path.exists(os.path.join(each, grid.FILE)) for each in directories):
    if len(directories) > 1:
      raise program.WrongUsage(
        f'a comparison is drawn alone; got {", ".join(directories)}. Its runs are in '
        'the directory cells in it.'
      )
    program.refuse(values, ('x', 'y'), 'is for runs; a comparison has its own axes.')
    written = results.draw(directories[0], output)
    if not written:
      raise program.WrongUsage(f'no run of {directories[0]} is finished yet.')
  else:
    written = [output or _DEFAULT_OUTPUT]
    runs = [read_run(each) for each in directories]
    save(picture(runs, values.x, values.y), written[0])
  progress.say(f'Drawn: {", ".join(written)}.')
  return 0


PROGRAM = program.Program(
  'tff-dp-plot', __doc__ or '', lambda: (('Flags', _FLAGS),), main, positional='run_dir'
)
execute, run = PROGRAM.execute, PROGRAM.run


if __name__ == '__main__':
  run()
