r"""Draws runs of experiments.simulate, or the picture of a comparison again.

    tff-dp-plot runs/digits-tree
    tff-dp-plot runs/mechanisms/cells/*seed=1 --x=epsilon --output=a.svg
    tff-dp-plot runs/mechanisms

For one run, draws its metric and epsilon over rounds. For several runs, draws them in
one chart, named by the flags in which they differ. For the directory of a comparison,
draws its table, as tff-dp-compare does. --x and --y take any column of metrics.csv;
seconds are those since the start of the run.
"""

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.learning.runs import progress

from . import plotting
from .comparing import grid
from .comparing import results

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
    f'{_DEFAULT_OUTPUT}; of a comparison, {" and ".join(results.PICTURES)} in its '
    'directory.',
  ),
  program.Flag(
    'x',
    str,
    'Column on the horizontal axis: round, epsilon, seconds, or another one.',
    default=plotting.ROUND,
  ),
  program.Flag(
    'y', str, 'Column on the vertical axis. Default: the metric of the runs.'
  ),
)


def main(values: flags.FlagValues) -> int:
  if values.output is not None:
    plotting.format_of(values.output)
  directories = values.run_dir
  if not directories:
    raise program.WrongUsage('name the directory of a run, or several.')
  if any(map(grid.is_comparison, directories)):
    if len(directories) > 1:
      raise program.WrongUsage(
        f'a comparison is drawn alone; got {", ".join(directories)}. Its runs are in '
        'the directory cells in it.'
      )
    program.refuse(values, ('x', 'y'), 'is for runs; a comparison has its own axes.')
    written = results.draw(directories[0], values.output)
    if not written:
      raise program.WrongUsage(f'no run of {directories[0]} is finished yet.')
  else:
    written = [values.output or _DEFAULT_OUTPUT]
    runs = [plotting.read_run(each) for each in directories]
    plotting.save(plotting.picture(runs, values.x, values.y), written[0])
  progress.say(f'Drawn: {", ".join(written)}.')
  return 0


PROGRAM = program.Program(
  'tff-dp-plot', __doc__ or '', lambda: (('Flags', _FLAGS),), main, positional='run_dir'
)
execute, run = PROGRAM.execute, PROGRAM.run


if __name__ == '__main__':
  run()
