"""Runs the report program for tests, and writes files of runs for it."""

import gzip
import json
import shlex

from tests import executing
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.records import ledger

TREE_OF_20 = accounting.Mechanism('tree', strategies.Participation(20, 5), 4.0)
TREE_OF_20_FLAGS = ('--mechanism=tree', '--num_rounds=20', '--min_separation=5')
TREE_OF_20_FLAGS += ('--noise_multiplier=4', '--target_delta=1e-6')


def execute(*arguments):
  """Executes the report program; returns its output and exit code."""
  return executing.execute(report_program, *arguments)


def json_of(*arguments):
  """Returns the report that the program prints as JSON."""
  result = execute('--format=json', *arguments)
  assert result.returncode == 0, result.stderr
  return json.loads(result.stdout)


def run_verify(folder, report):
  """Runs --verify on a report, written to a file in the folder."""
  path = folder / 'report.json'
  path.write_text(json.dumps(report))
  return execute(f'--verify={path}')


def rerun(report):
  """Runs the command that is in a report; returns its report."""
  return json_of(*shlex.split(report['verification']['command'])[1:])


def seeded(seed):
  """Returns the ledger's fields for seeded noise; {} without a seed."""
  if seed is None:
    return {}
  return {
    'noise_source': ledger.SEED,
    'noise_key_tag': ledger.tag_of_seed('n', seed),
  }


def write_ledger(path, mechanism, num_rounds, **changes):
  """Writes the ledger of the first rounds of a run, at delta 1e-6."""
  statements.write_ledger(mechanism, path, num_rounds=num_rounds, clients=10, **changes)


def write_production(folder, rounds=11, hours=4, cohort=10, first=1):
  """Writes a ledger and a gzipped log with other column names; returns their flags."""
  write_ledger(folder / 'ledger.jsonl', TREE_OF_20, 11)
  lines = ['nr\tdone\tn\tlang']
  for number in range(rounds):
    size = cohort(number) if callable(cohort) else cohort
    lines.append(f'{number + first}\t{1.7e9 + 3600 * hours * number}\t{size}\tes')
    lines.append(f'{number + first}\t{1.7e9 + 60 * number}\t7\tfr')
  log = folder / 'rounds.tsv.gz'
  log.write_bytes(gzip.compress('\n'.join(lines).encode()))
  return (
    f'--ledger={folder}/ledger.jsonl',
    f'--round_log={log}',
    '--columns=round=nr,completion_time=done,cohort_size=n,population=lang',
    '--population_name=es',
  )
