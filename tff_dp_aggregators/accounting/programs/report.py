r"""Prints a privacy report: what a mechanism, or a run of it, guarantees and why.

From flags, which give two of noise, target and number of rounds:

    python -m tff_dp_aggregators.accounting.report --mechanism=tree \
        --num_rounds=2000 --rounds_between=313 --max_participations=6 \
        --noise_multiplier=7 --target_delta=1e-10

from what a run left (several --run_dir are composed), from a ledger or from the round
log of a production system:

    python -m tff_dp_aggregators.accounting.report --run_dir=runs/digits-banded
    python -m tff_dp_aggregators.accounting.report --ledger=ledger.jsonl \
        --mechanism=tree --num_rounds=2000 --min_separation=314 \
        --noise_multiplier=7 --target_delta=1e-10
    python -m tff_dp_aggregators.accounting.report --round_log=rounds.csv \
        --mechanism=tree --noise_multiplier=7 --target_delta=1e-10

and computed again, to find any difference:

    python -m tff_dp_aggregators.accounting.report --verify=report.json

Exit codes: 0 fine, 1 verification failed or target missed, 2 wrong usage. Starts
without TensorFlow.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, Callable

from absl import flags

from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import participation
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import schema as schema_lib
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement as statement_lib
from tff_dp_aggregators.accounting.reports import verification
from tff_dp_aggregators.base import new_files

# Flags that name what is read.
_FILE_FLAGS = ('run_dir', 'ledger', 'round_log', 'strategy_file')


def define(values: flags.FlagValues) -> None:
  """Defines the program's flags."""
  flags_lib.define(values)
  flags.DEFINE_multi_string(
    'run_dir',
    None,
    'Report what the run in this directory spent; given several times, what the runs '
    'spent together, on the same clients',
    flag_values=values,
  )
  flags.DEFINE_string(
    'ledger',
    None,
    "Report what this ledger's rounds spent, of the mechanism in flags.",
    flag_values=values,
  )
  flags.DEFINE_string(
    'round_log',
    None,
    'Take the number of rounds and the limits on participation from this log of a '
    "production system's rounds; see tff_dp_aggregators.accounting.participation.",
    flag_values=values,
  )
  participation.define_wait(values)
  flags.DEFINE_string(
    'verify',
    None,
    'Compute this JSON report again and fail on any difference.',
    flag_values=values,
  )
  flags.DEFINE_bool(
    'schema',
    False,
    'Print the JSON schema of the reports of --format=json.',
    flag_values=values,
  )
  flags.DEFINE_enum(
    'format', 'markdown', rendering.FORMATS, 'What to print.', flag_values=values
  )
  flags.DEFINE_string(
    'output',
    None,
    'File to write instead of printing; must not exist.',
    flag_values=values,
  )


def build(values: flags.FlagValues) -> dict[str, Any]:
  """The statement that the flags ask for.

  Raises:
    OSError: If a file cannot be read.
    ValueError: If flags are missing, contradict each other or are out of range, or a
      file is wrong.
  """
  given = [n for n in ('run_dir', 'ledger', 'round_log') if values[n].value is not None]
  if len(given) > 1:
    raise ValueError(f'give one of {", ".join("--" + name for name in given)}.')
  for name in participation.WAIT_FLAGS:
    if values[name].present and values.round_log is None:
      raise ValueError(f'--{name} is for --round_log.')
  with_curves = values.format in ('json', 'html')
  if values.run_dir is not None:
    return _of_runs(values, with_curves)
  log = None
  if values.round_log is not None:
    log = sources.from_round_log(
      values.round_log, *participation.wait_from_flags(values)
    )
  inputs = sources.from_plan(
    flags_lib.planned(values, None if log is None else log.limits),
    ledger=values.ledger,
    strategy_file=values.strategy_file,
    round_log=log,
    command=sources.command_of(_given_flags(values)),
  )
  return statement_lib.build(inputs, with_curves=with_curves)


def _of_runs(values: flags.FlagValues, with_curves: bool) -> dict[str, Any]:
  for name in flags_lib.all_names():
    if values[name].present and name != 'accountant':
      raise ValueError(f'--{name} does not go with --run_dir, which has it all.')
  sources.check_independent(values.run_dir)
  parts = [
    statement_lib.build(
      sources.from_run_dir(path, values.accountant), with_curves=with_curves
    )
    for path in values.run_dir
  ]
  if len(parts) == 1:
    return parts[0]
  command = sources.command_of(_given_flags(values))
  return statement_lib.compose(parts, accountant=values.accountant, command=command)


def statement_of(
  arguments: Sequence[str], locate: Callable[[str, bool], str]
) -> dict[str, Any]:
  """The statement that flags of this program ask for, which must be those it prints.

  Args:
    arguments: Flags that decide on the numbers, as --name=value.
    locate: Where a file or a run directory is that a flag names; the second argument
      is whether it is a directory.

  Raises:
    OSError: If a file cannot be read.
    ValueError: If the program would refuse these flags, or they do something else.
  """
  values = flags.FlagValues()
  define(values)
  deciding, given = _deciding_flags(), set()
  for argument in arguments:
    # No abbreviation, and no flag file: absl would read that before anything else.
    name = argument[2:].split('=', 1)[0] if argument.startswith('--') else ''
    if name not in deciding and name.startswith('no'):
      name = name[2:]  # As in --nofixed_epoch.
    if name not in deciding:
      raise ValueError(f'{argument!r} does not decide on the numbers of a report.')
    if name in given and not isinstance(values[name], flags.MultiFlag):
      raise ValueError(f'--{name} is given twice.')
    given.add(name)
  try:
    values(['report', *arguments])
  except flags.Error as e:
    raise ValueError(' '.join(str(e).split())) from e
  for name in _FILE_FLAGS:
    value, is_run_dir = values[name].value, name == 'run_dir'
    if isinstance(value, list):
      values[name].value = [locate(each, is_run_dir) for each in value]
    elif value is not None:
      values[name].value = locate(value, is_run_dir)
  return build(values)


def _deciding_flags() -> tuple[str, ...]:
  """Flags that decide on the numbers."""
  sources_flags = ('run_dir', 'ledger', 'round_log', *participation.WAIT_FLAGS)
  return (*flags_lib.all_names(), *sources_flags)


def _given_flags(values: flags.FlagValues) -> list[str]:
  """The flags of this call that decide on the numbers."""
  arguments = []
  for name in _deciding_flags():
    if values[name].present:
      arguments.extend(values[name].serialize().split('\n'))
  return arguments


def main(values: flags.FlagValues) -> int:
  """Prints or writes the report; returns the exit code."""
  if values.verify is not None:
    return _verify(values)
  if values.schema:
    _check_alone(values, 'schema')
    text = json.dumps(schema_lib.load(), indent=2) + '\n'
  else:
    text = rendering.render(build(values), values.format)
  if values.output is None:
    sys.stdout.write(text)
  else:
    new_files.write_new(values.output, text)
  return 0


def _check_alone(values: flags.FlagValues, alone: str, *more: str) -> None:
  """Refuses flags that say what to report, and `more`, beside one that needs none."""
  others = ('run_dir', 'ledger', 'round_log', 'format', *participation.WAIT_FLAGS)
  for name in (*flags_lib.all_names(), *others, *more):
    if values[name].present:
      raise ValueError(
        f'--{name} does not go with --{alone}, which needs no other flag.'
      )


def _verify(values: flags.FlagValues) -> int:
  _check_alone(values, 'verify', 'output', 'schema')
  result = verification.verify(values.verify, statement_of)
  sys.stdout.write(result.text)
  return 0 if result.ok else program.CHECK_FAILED


PROGRAM = program.Program(
  'tff-dp-report', __doc__ or '', define, main, flags_lib.groups
)
execute, run = PROGRAM.execute, PROGRAM.run
