r"""Prints a privacy report, from flags or from a run directory.

    python -m tff_dp_aggregators.accounting.report --mechanism=tree \
        --num_rounds=2000 --rounds_between=313 --max_participations=6 \
        --noise_multiplier=7 --target_delta=1e-10

Starts without TensorFlow.
"""

import json
import os
import shlex
import sys
from typing import Any

from absl import app
from absl import flags

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import ledger as ledger_lib
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import statement as statement_lib
from tff_dp_aggregators.strategies import files

_FORMATS = ('markdown', 'json')
_PLAN_FLAGS = (
  'mechanism',
  'num_rounds',
  'min_separation',
  'rounds_between',
  'max_participations',
  'num_bands',
  'noise_multiplier',
  'target_epsilon',
  'target_delta',
)


def define_flags() -> None:
  """Defines the program's flags; called once, by `run`."""
  flags.DEFINE_string(
    'run_dir',
    None,
    'Report what the run in this directory spent; no other flag '
    'but --format and --output goes with it.',
  )
  flags.DEFINE_enum('mechanism', None, mechanism_lib.NAMES, 'Mechanism to account for.')
  flags.DEFINE_integer('num_rounds', None, 'Rounds in all.')
  flags.DEFINE_integer(
    'min_separation', None, 'Smallest difference of two rounds of one client.'
  )
  flags.DEFINE_integer(
    'rounds_between',
    None,
    'Smallest number of rounds strictly between two rounds '
    'of one client, as the DP-FTRL literature counts: --min_separation less one.',
  )
  flags.DEFINE_integer(
    'max_participations',
    None,
    'Most rounds of one client. Default: as many as the separation leaves possible.',
  )
  flags.DEFINE_integer(
    'num_bands', None, 'Bands of the banded mechanism. Default: the separation.'
  )
  flags.DEFINE_float(
    'noise_multiplier', None, 'Standard deviation of the noise over the clip norm.'
  )
  flags.DEFINE_float(
    'target_epsilon',
    None,
    'Privacy target from which the noise follows, instead of --noise_multiplier.',
  )
  flags.DEFINE_float('target_delta', None, 'Delta of the guarantee.')
  flags.DEFINE_enum('format', 'markdown', _FORMATS, 'What to print.')
  flags.DEFINE_string(
    'output', None, 'File to write instead of printing; must not exist.'
  )


def from_flags() -> dict[str, Any]:
  """The statement of a planned mechanism, from flags.

  Raises:
    ValueError: If flags are missing, contradict each other or are out of range.
  """
  values = flags.FLAGS
  for name in ('mechanism', 'num_rounds', 'target_delta'):
    if values[name].value is None:
      raise ValueError(f'--{name} is missing (or give --run_dir).')
  if values.min_separation is not None and values.rounds_between is not None:
    raise ValueError(
      '--min_separation and --rounds_between say the same; give one of them '
      '(min_separation = rounds_between + 1).'
    )
  if (values.noise_multiplier is None) == (values.target_epsilon is None):
    raise ValueError('give exactly one of --noise_multiplier and --target_epsilon.')
  if values.rounds_between is not None:
    participation = strategies.Participation.from_rounds_between(
      values.num_rounds, values.rounds_between, values.max_participations
    )
  else:
    min_separation = 1 if values.min_separation is None else values.min_separation
    participation = strategies.Participation(
      values.num_rounds, min_separation, values.max_participations
    )
  if values.target_epsilon is not None:
    mechanism = mechanism_lib.Mechanism.for_target(
      values.mechanism,
      participation,
      values.target_epsilon,
      values.target_delta,
      values.num_bands,
    )
  else:
    mechanism = mechanism_lib.Mechanism(
      values.mechanism, participation, values.noise_multiplier, values.num_bands
    )
  return statement_lib.build(
    mechanism, values.target_delta, command=command_for(mechanism, values.target_delta)
  )


def from_run_dir(run_dir: str) -> dict[str, Any]:
  """The statement of what a simulation run spent.

  Args:
    run_dir: A run directory, with `config.json` and `ledger.jsonl`.

  Raises:
    ValueError: If the directory has no private run, or its files contradict each
      other.
  """
  config_path = os.path.join(run_dir, 'config.json')
  try:
    with open(config_path, encoding='utf-8') as file:
      config = json.load(file)
    privacy = config['privacy']
  except FileNotFoundError as e:
    raise ValueError(f'{run_dir} is not a run directory: no config.json.') from e
  except (json.JSONDecodeError, KeyError, TypeError) as e:
    raise ValueError(f'{config_path} is not the configuration of a run: {e}') from e
  if privacy is None:
    raise ValueError(f'the run in {run_dir} had no privacy mechanism.')
  return statement_lib.build(
    mechanism_lib.Mechanism.from_json(privacy['mechanism']),
    privacy['delta'],
    clip_norm=privacy['clip_norm'],
    entries=ledger_lib.read(os.path.join(run_dir, 'ledger.jsonl')),
    enforced_by=privacy['enforced_by'],
    noise_source=privacy['noise_source'],
    command=_command(f'--run_dir={run_dir}'),
  )


def command_for(mechanism: mechanism_lib.Mechanism, delta: float) -> str:
  """The command line of this program for a mechanism."""
  participation = mechanism.participation
  arguments = [
    f'--mechanism={mechanism.name}',
    f'--num_rounds={participation.num_rounds}',
    f'--min_separation={participation.min_separation}',
    f'--max_participations={participation.max_participations}',
    f'--noise_multiplier={mechanism.noise_multiplier!r}',
    f'--target_delta={delta!r}',
  ]
  if mechanism.num_bands is not None:
    arguments.append(f'--num_bands={mechanism.num_bands}')
  return _command(*arguments)


def _command(*arguments: str) -> str:
  return 'python -m tff_dp_aggregators.accounting.report ' + shlex.join(arguments)


def render(statement: dict[str, Any], output_format: str) -> str:
  """A statement as `markdown` or `json` text."""
  if output_format == 'json':
    return json.dumps(statement, indent=2, allow_nan=False) + '\n'
  return statement_lib.to_markdown(statement)


def main(argv: list[str]) -> int:
  """Prints or writes the report; returns the exit code."""
  values = flags.FLAGS
  try:
    if len(argv) > 1:
      raise ValueError(f'unexpected arguments {argv[1:]}; all are flags.')
    if values.run_dir is not None:
      for name in _PLAN_FLAGS:
        if values[name].present:
          raise ValueError(f'--{name} does not go with --run_dir, which has it all.')
      statement = from_run_dir(values.run_dir)
    else:
      statement = from_flags()
    text = render(statement, values.format)
    if values.output is None:
      sys.stdout.write(text)
    else:
      files.write_new(values.output, text)
  except (ValueError, FileExistsError) as e:
    print(f'error: {e}', file=sys.stderr)
    return 2
  return 0


def run() -> None:
  """Entry point of `python -m` and of the console script."""
  define_flags()
  app.run(main)


if __name__ == '__main__':
  run()
