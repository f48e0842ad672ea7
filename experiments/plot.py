r"""Draws runs of experiments.simulate, or the picture of a comparison again.

    python -m experiments.plot runs/digits-tree
    python -m experiments.plot runs/mechanisms/cells/*seed=1 --x=epsilon --output=a.svg
    python -m experiments.plot runs/mechanisms

One run: its metric over rounds, and epsilon beside it. Several: one upon another, named
by the flags in which they differ. The directory of a comparison: its table, as
experiments.compare draws it. --x and --y are any columns of metrics.csv; seconds are
those since the beginning.
"""

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.learning.runs import progress

from . import commands
from .comparing import pictures
from .comparing import record as record_lib
from .plotting import charts
from .plotting import runs as runs_lib

_DEFAULT_OUTPUT = 'plot.png'


def define(values: flags.FlagValues) -> None:
  """Defines the flags."""
  flags.DEFINE_multi_string(
    'run_dir',
    [],
    'Directory of a run, or of a comparison; so is what is given without a flag.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'output',
    None,
    'Picture to write, ending in .png or .svg; one that is there is replaced. Default: '
    f'{_DEFAULT_OUTPUT}; of a comparison, {" and ".join(pictures.NAMES)} in its '
    'directory.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'x',
    runs_lib.ROUND,
    'What is on the horizontal axis: round, epsilon, seconds, or another column.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'y',
    None,
    'What is on the vertical axis. Default: the metric of the runs.',
    flag_values=values,
  )


def main(values: flags.FlagValues) -> int:
  """Draws; returns the exit code."""
  if values.output is not None:
    charts.format_of(values.output)
  directories = values.run_dir
  if not directories:
    raise program.WrongUsage('name the directory of a run, or several.')
  comparisons = [each for each in directories if record_lib.is_any(each)]
  if comparisons:
    written = _draw_comparison(values, directories)
  else:
    written = [values.output or _DEFAULT_OUTPUT]
    runs = [runs_lib.read(each) for each in directories]
    charts.save(runs_lib.picture(runs, values.x, values.y), written[0])
  progress.say(f'Drawn: {", ".join(written)}.')
  return 0


def _draw_comparison(values: flags.FlagValues, directories: list[str]) -> list[str]:
  if len(directories) > 1:
    raise program.WrongUsage(
      f'a comparison is drawn alone; got {", ".join(directories)}. Its runs are in '
      'the directory cells in it.'
    )
  for name in ('x', 'y'):
    if values[name].present:
      raise program.WrongUsage(f'--{name} is for runs; a comparison has its own axes.')
  written = pictures.draw(directories[0], values.output)
  if not written:
    raise program.WrongUsage(f'no run of {directories[0]} is finished yet.')
  return written


PROGRAM = program.Program(
  'tff-dp-plot', commands.in_words(__doc__ or ''), define, main, positional='run_dir'
)
execute, run = PROGRAM.execute, PROGRAM.run


if __name__ == '__main__':
  run()
