"""Simulations by flags, in the process of the tests, and what they leave."""

import csv
import json

from experiments import settings
from experiments import simulate
from tests import executing
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import report as report_program


def settings_of(*arguments):
  """What flags tell a simulation."""
  return settings.from_flags(program.values_of(settings.groups(), arguments))


def run(run_dir, *arguments):
  """What one that goes well prints."""
  result = executing.execute(simulate, *arguments, f'--run_dir={run_dir}')
  assert result.returncode == 0, result.stderr
  return result


def refusal(*arguments):
  """The line by which one is refused before it begins."""
  result = executing.execute(simulate, *arguments)
  assert result.returncode == 2, result.stdout
  # Before it stands at most that the noise is looked for, on a slow machine.
  line = result.stderr.splitlines()[-1]
  assert line.startswith('error: ')
  return line


def read(run_dir, name):
  """What is in a JSON file of a run."""
  return json.loads((run_dir / f'{name}.json').read_text('utf-8'))


def metrics(run_dir):
  """The rows of its table, by column."""
  with open(run_dir / 'metrics.csv', encoding='utf-8', newline='') as file:
    return list(csv.DictReader(file))


def reported(*arguments):
  """The statement that `report` makes of flags or of a run."""
  said = executing.execute(report_program, *arguments, '--format=json')
  assert said.returncode == 0, said.stderr
  return json.loads(said.stdout)


def verifies(path):
  """Whether a report is the one that can be computed again, and what is said of it."""
  said = executing.execute(report_program, f'--verify={path}')
  return said.returncode == 0, said.stdout
