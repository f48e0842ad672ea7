r"""Compares every mechanism for a task, before anything is trained.

With a privacy target, each mechanism gets the least noise that keeps it; with a noise
level, all get the same, and their epsilons differ:

    python -m tff_dp_aggregators.accounting.plan --num_rounds=2000 \
        --population=3000000 --cohort=6500 --rounds_between=313 \
        --max_participations=6 --model_size=4000000 \
        --target_epsilon=8.5 --target_delta=1e-10

The table shows, for each mechanism, its noise multiplier and epsilon; the root mean
square error (RMSE) and the largest error of prefix sums, which are what a model is
made of, relative to the best; and what the server keeps and how long the noise of a
round takes. A second table has the noise that a round adds to a model of --model_size
parameters: in one of them, and in all as a vector. With --cohort it is relative to the
largest norm that the clients' updates can have together: the ratio of noise to signal
(tff_dp_aggregators.accounting.noise_to_signal).

The advice: of the mechanisms whose RMSE at equal epsilon is within 5% of the least, and
which take at most twice the time of the fastest of these, the one that keeps least from
round to round; of equals, the fastest. Mechanisms that need sampling are advised only
if --sampling says that the server samples so. Their epsilons are quick upper bounds by
Renyi DP unless --sampling or --accountant asks for more.

All of this is of one mechanism for all weights. Where parts of a model are to have
mechanisms of their own (--part of tff-dp-simulate and tff-dp-report), a table for each
part, with its parameters as --model_size, says which is the best for it: at equal
privacy, whose error is less does not depend on the share of the budget. The noise of
all parts together is found by tff-dp-report.

Seconds and bytes are those of noise in float32 on one core inside TFF, estimated from
measurements (tff_dp_aggregators.strategies.noise_cost). Exit codes: 0 fine, 2 wrong
usage. Starts without TensorFlow.
"""

import json
import os
import sys
from typing import Optional

from absl import flags

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.planning import comparison as planning
from tff_dp_aggregators.accounting.planning import offers
from tff_dp_aggregators.accounting.planning import views
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import scheme_flags
from tff_dp_aggregators.accounting.programs import spelling
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.strategies import registry

_REQUIRED = {
  'num_rounds': 'how many rounds will there be?',
  'model_size': 'how many float32 parameters does the model have?',
  'target_delta': 'at which delta is epsilon wanted?',
}


def define(values: flags.FlagValues) -> None:
  """Defines the program's flags."""
  flags.DEFINE_integer('num_rounds', None, 'Rounds in all.', flag_values=values)
  flags_lib.define_limits(values)
  flags.DEFINE_integer(
    'model_size',
    None,
    'Number of float32 parameters that are trained. Size of the noise, and of what is '
    'kept of it, follow.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'population',
    None,
    'Clients there are. With --cohort, the limits on participation are checked against '
    'it; without --min_separation, the largest that it allows is taken.',
    flag_values=values,
  )
  flags.DEFINE_integer('cohort', None, 'Clients of a round.', flag_values=values)
  drawing = flags.EnumFlag(
    'sampling',
    sampling.Limits.flag,
    f'How the server can really draw clients, keeping secret whom: {_drawn()}. '
    'Mechanisms that need this may be advised then, and get their tightest epsilon, '
    'which takes up to a minute each.',
    list(offers.samplings()),
  )
  drawing.parser = _Sampling(list(offers.samplings()))
  flags.DEFINE_flag(drawing, values)
  flags.DEFINE_integer(
    'num_groups',
    None,
    'Groups of clients that take turns, for cyclic Poisson sampling of mechanisms that '
    'have as few bands. Default: about the best power of 2.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'target_epsilon',
    None,
    'Privacy target; or give --noise_multiplier.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'noise_multiplier',
    None,
    'Standard deviation of the noise over the clip norm, of all mechanisms; or give '
    '--target_epsilon.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'target_delta', None, 'Delta of all guarantees.', flag_values=values
  )
  flags.DEFINE_enum(
    'accountant',
    None,
    sorted(accountants.ACCOUNTANTS),
    'Whose epsilon counts, for all mechanisms. Default: the exact one without '
    'sampling; with it, see --sampling.',
    flag_values=values,
  )
  flags.DEFINE_list(
    'mechanisms',
    None,
    f'Of {", ".join(registry.KINDS)}, separated by commas; or all. Default: all '
    f'but those that take more than about {planning.MAX_SECONDS:.0f} s.',
    flag_values=values,
  )
  flags_lib.define_options(values, is_comparison=True)
  flags.DEFINE_enum(
    'format', 'text', ['text', 'json'], 'What to print.', flag_values=values
  )
  flags.DEFINE_string(
    'output',
    None,
    'File to write instead of printing; must not exist.',
    flag_values=values,
  )
  flags.DEFINE_string(
    'plot',
    None,
    f'Draw errors against rounds into this file, one of {", ".join(views.PLOTS)} by '
    'its suffix; must not exist.',
    flag_values=values,
  )


class _Sampling(flags.EnumParser):
  """Says what plans with a kind of sampling that other programs have."""

  def parse(self, argument: str) -> str:
    for kind in sampling.KINDS.values():
      if argument == kind.flag and kind.flag not in self.enum_values:
        why = f': {offers.NOT_OFFERED[kind]}' if kind in offers.NOT_OFFERED else ''
        known = ', '.join(self.enum_values)
        raise ValueError(f'no comparison has it{why}. Values here are {known}')
    return str(super().parse(argument))


def _drawn() -> str:
  """Every way of drawing clients, with the value of --sampling that says so."""
  allowed = offers.samplings()
  return ', or '.join(
    f'{stated.drawn} ({kind.flag})'
    for kind, stated in scheme_flags.STATED.items()
    if kind.is_sampled and kind.flag in allowed
  )


def task_from(values: flags.FlagValues) -> planning.Task:
  """What the flags ask for.

  Raises:
    ValueError: If flags are missing, contradict each other or are out of range.
  """
  missing = [name for name in _REQUIRED if values[name].value is None]
  if missing:
    questions = ' '.join(f'--{name}: {_REQUIRED[name]}' for name in missing)
    raise ValueError(f'missing are {questions}')
  mechanisms = values.mechanisms
  if mechanisms is not None:
    mechanisms = tuple(registry.KINDS if mechanisms == ['all'] else mechanisms)
  limits = flags_lib.limits_from(values, values.num_rounds, values.max_participations)
  is_derived = _is_derived(values)
  if is_derived:
    separation = strategies.participation.allowed_separation(
      values.population, values.cohort
    )
    limits = strategies.Participation(
      values.num_rounds, separation, values.max_participations, values.fixed_epoch
    )
  return planning.Task(
    limits,
    mechanisms=mechanisms,
    separation_is_derived=is_derived,
    options=flags_lib.options_from(values),
    **{name: values[name].value for name in _TASK_FLAGS},
  )


def _flags(*names: str) -> dict[str, str]:
  """How these arguments, and those of limits and of mechanisms, are spelled."""
  limits = (flag.name for flag in scheme_flags.limits_flags())
  return spelling.of_flags((*names, *limits, *registry.options()))


_TASK_FLAGS = (
  'model_size',
  'target_delta',
  'target_epsilon',
  'noise_multiplier',
  'population',
  'cohort',
  'sampling',
  'num_groups',
  'accountant',
)


def _is_derived(values: flags.FlagValues) -> bool:
  """Whether the separation follows from the population."""
  given = ('min_separation', 'rounds_between')
  both = values.population is not None and values.cohort is not None
  return both and all(values[name].value is None for name in given)


def main(values: flags.FlagValues) -> int:
  """Prints or writes the comparison; returns the exit code."""
  # What is said of an accountant is spelled by `program`.
  of_task = (name for name in _TASK_FLAGS if name != 'accountant')
  with spelling.as_flags(_flags('num_rounds', 'mechanisms', *of_task)):
    task = task_from(values)
  flags_lib.warn_of_large_delta(values)
  _check_new(values.output, values.plot)
  with spelling.as_flags(_flags()):
    comparison = planning.compare(task, _report)
  if values.plot is not None:
    new_files.write_new(values.plot, views.draw(comparison, _suffix(values.plot)))
  text = _render(comparison, values.format)
  if values.output is None:
    sys.stdout.write(text)
  else:
    new_files.write_new(values.output, text)
  return 0


def _render(comparison: planning.Comparison, output_format: str) -> str:
  if output_format == 'json':
    return json.dumps(views.to_json(comparison), indent=2, allow_nan=False) + '\n'
  return views.to_text(comparison)


def _report(message: str) -> None:
  print(f'computing {message}', file=sys.stderr, flush=True)


def _check_new(output: Optional[str], plot: Optional[str]) -> None:
  """Refuses files that cannot be written before anything is computed."""
  if plot is not None and _suffix(plot) not in views.PLOTS:
    raise ValueError(
      f'--plot must end in {", ".join(f".{each}" for each in views.PLOTS)}; got {plot}.'
    )
  for path in (output, plot):
    if path is not None and os.path.lexists(path):
      raise ValueError(f'{path} exists and is not overwritten; choose another name.')


def _suffix(path: str) -> str:
  return os.path.splitext(path)[1][1:].lower()


PROGRAM = program.Program('tff-dp-plan', __doc__ or '', define, main, flags_lib.groups)
execute, run = PROGRAM.execute, PROGRAM.run
