"""Runs simulations by flags in the process of the tests, and reads their files."""

import csv
import json

from experiments import settings
from experiments import simulate
from tests import executing
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import report as report_program


def settings_of(*arguments):
  """Returns the settings of a simulation with these flags."""
  return settings.from_flags(program.values_of(settings.groups(), arguments))


def run(run_dir, *arguments):
  """Runs a simulation that must succeed; returns its output."""
  result = executing.execute(simulate, *arguments, f'--run_dir={run_dir}')
  assert result.returncode == 0, result.stderr
  return result


def refusal(*arguments):
  """Runs a simulation that must be refused; returns the line of the error."""
  result = executing.execute(simulate, *arguments)
  assert result.returncode == 2, result.stdout
  # On a slow machine, a line that noise is calibrated may precede it.
  line = result.stderr.splitlines()[-1]
  assert line.startswith('error: ')
  return line


def read(run_dir, name):
  return json.loads((run_dir / f'{name}.json').read_text('utf-8'))


def rows(path):
  """Returns the rows of a CSV file, by column."""
  with open(path, encoding='utf-8', newline='') as file:
    return list(csv.DictReader(file))


def metrics(run_dir):
  return rows(run_dir / 'metrics.csv')


def reported(*arguments):
  """Returns the statement that `report` prints for flags or a run."""
  result = executing.execute(report_program, *arguments, '--format=json')
  assert result.returncode == 0, result.stderr
  return json.loads(result.stdout)


def verifies(path):
  """Returns whether a report is verified, and the output of the verification."""
  result = executing.execute(report_program, f'--verify={path}')
  return result.returncode == 0, result.stdout
