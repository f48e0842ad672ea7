r"""Compares every mechanism for a task, before anything is trained.

With a privacy target, each mechanism gets the least noise that keeps it; with a noise
level, all get the same, and their epsilons differ:

    tff-dp-plan --num_rounds=2000 \
        --num_clients=3000000 --clients_per_round=6500 --rounds_between=313 \
        --max_participations=6 --model_size=4000000 \
        --target_epsilon=8.5 --target_delta=1e-10

The first table has the root mean square error (RMSE) and the largest error of prefix
sums, relative to the best, and the memory and time of a round's noise, estimated for
float32 on one core. The second has the noise that a round adds to the model; with
--clients_per_round, as the ratio of noise to signal. With --num_clients as well,
--min_separation is by default the largest that the population allows.

Among the mechanisms whose RMSE at equal epsilon is within 5% of the least, and which
take at most twice the time of the fastest of these, the one with the least memory is
advised; one that needs sampling only if --sampling says that the server samples so.

For parts of a model (--part of tff-dp-report), run this program with each part's number
of parameters as --model_size: which mechanism is best does not depend on the share.

Exit codes: 0 success, 2 wrong usage.
"""

import dataclasses
import json
import os
import sys
from typing import Any

from absl import flags

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.planning import comparison as planning
from tff_dp_aggregators.accounting.planning import views
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.strategies import registry

_REQUIRED = ('num_rounds', 'model_size', 'target_delta')
_TASK_FLAGS = {field.name for field in dataclasses.fields(planning.Task)}


def groups() -> tuple[program.Group, ...]:
  """Returns the program's flags."""
  changed: dict[str, dict[str, Any]] = {
    'sampling': {
      'type': list(planning.samplings()),
      'help': 'Secret sampling that the server can do. Mechanisms that need it may '
      'then be advised, with their tightest epsilon, in up to a minute each. Others '
      'are for tff-dp-report; planning.separations is for b_min_sep.',
    },
    'clients_per_round': {'type': int},
  }
  task = (
    *table.participation(),
    program.Flag('model_size', int, 'Number of trainable float32 parameters.'),
    *(
      dataclasses.replace(row, **changed.get(row.name, {}))
      for row in (*table.sampling(), *table.target())
      if row.name in _TASK_FLAGS
    ),
  )
  compared = (
    program.Flag(
      'mechanisms',
      program.LIST,
      f'Mechanisms, of {", ".join(registry.KINDS)}, separated by commas; or all. '
      f'Default: all but those that take more than about {planning.MAX_SECONDS:.0f} s.',
    ),
    *table.options(),
  )
  printed = (
    *table.printed('text', 'json'),
    program.Flag(
      'plot',
      str,
      'New file for a plot of errors against rounds, with one of the suffixes '
      f'{", ".join(views.PLOTS)}.',
    ),
  )
  return (('Task', task), ('Mechanisms', compared), ('What is printed', printed))


def task_from(values: flags.FlagValues) -> planning.Task:
  """Returns the task that the flags describe."""
  missing = [name for name in _REQUIRED if values[name].value is None]
  if missing:
    raise ValueError(f'--{", --".join(missing)} must be given.')
  flags_lib.target_from(values)  # Refuses two of them.
  if values.mechanisms == []:
    raise ValueError('--mechanisms is empty; name some, or leave it out for all.')
  mechanisms = values.mechanisms and tuple(values.mechanisms)
  if mechanisms == ('all',):
    mechanisms = tuple(registry.KINDS)
  changes = {}
  is_derived = None not in (values.num_clients, values.clients_per_round) and (
    values.min_separation is values.rounds_between is None
  )
  if is_derived:
    changes['min_separation'] = strategies.participation.allowed_separation(
      values.num_clients, values.clients_per_round
    )
  limits = table.limits_from(values, values.num_rounds, **changes)
  given = {name: values[name].value for name in _TASK_FLAGS & {*values}}
  given |= {'mechanisms': mechanisms, 'options': flags_lib.options_from(values)}
  return planning.Task(limits, separation_is_derived=is_derived, **given)


def main(values: flags.FlagValues) -> int:
  """Prints or writes the comparison; returns the exit code."""
  task = task_from(values)
  flags_lib.warn_of_large_delta(values)
  suffix = os.path.splitext(values.plot or '')[1][1:].lower()
  if values.plot is not None and suffix not in views.PLOTS:
    raise ValueError(
      f'--plot must end in {", ".join(f".{each}" for each in views.PLOTS)}; got '
      f'{values.plot}.'
    )
  program.check_new(values, 'output', 'plot')
  comparison = planning.compare(
    task, lambda message: print(f'computing {message}', file=sys.stderr, flush=True)
  )
  if values.plot is not None:
    new_files.write_new(values.plot, views.draw(comparison, suffix))
  text = views.to_text(comparison)
  if values.format == 'json':
    text = json.dumps(views.to_json(comparison), indent=2, allow_nan=False) + '\n'
  program.print_or_write(text, values.output)
  return 0


PROGRAM = program.Program('tff-dp-plan', __doc__ or '', groups, main)
execute, run = PROGRAM.execute, PROGRAM.run
