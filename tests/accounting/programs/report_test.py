"""The report program: flags, plans and usage.

`report_production_test` is about the files of runs, `report_composition_test` about
several of them.
"""

import json
import os
import re
import shlex

import pytest

from tests.accounting.programs import reporting
from tff_dp_aggregators.accounting.reports import schema as schema_lib

GBOARD = (
  '--mechanism=tree',
  '--num_rounds=2000',
  '--max_participations=6',
  '--target_delta=1e-10',
)


def test_published_gboard_run_by_either_name_of_the_separation():
  between = reporting.json_of(*GBOARD, '--rounds_between=313', '--noise_multiplier=7')
  difference = reporting.json_of(
    *GBOARD, '--min_separation=314', '--noise_multiplier=7'
  )
  for each in (between, difference):
    del each['verification']['command']
  assert between == difference
  assert between['guarantee']['epsilon'] == pytest.approx(8.526093443, rel=1e-9)
  assert between['guarantee']['epsilon_rdp'] == pytest.approx(8.8986050, rel=1e-8)
  assert between['mechanism']['sensitivity_squared'] == pytest.approx(79, rel=1e-14)


def test_the_schema_is_printed_whole():
  result = reporting.execute('--schema')
  assert result.returncode == 0, result.stderr
  assert json.loads(result.stdout) == schema_lib.load()
  result = reporting.execute('--schema', '--mechanism=tree')
  assert result.returncode == 2
  assert '--mechanism does not go with --schema' in result.stderr


@pytest.mark.parametrize('target', ['2', '1', '3.3'])
def test_the_printed_noise_keeps_the_target(target):
  arguments = ('--mechanism=tree', '--num_rounds=200', '--min_separation=20')
  arguments += (f'--target_epsilon={target}', '--target_delta=1e-6')
  shown = reporting.execute(*arguments, '--format=text').stdout
  (noise,) = re.findall(r'^- \*\*noise multiplier\*\*: (\S+)', shown, re.MULTILINE)
  again = reporting.execute(*arguments, f'--noise_multiplier={noise}')
  assert again.returncode == 0, again.stderr


def test_the_printed_command_gives_the_same_numbers_again():
  report = reporting.json_of(
    '--mechanism=banded',
    '--num_rounds=90',
    '--min_separation=9',
    '--num_bands=7',
    '--target_epsilon=2',
    '--target_delta=1e-7',
    '--adjacency=replace_one',
  )
  program, arguments = report['verification']['command'].split(' ', 1)
  assert program == 'tff-dp-report'
  assert reporting.json_of(*shlex.split(arguments)) == report


def test_output_file_is_written_whole_and_never_overwritten(tmp_path):
  path = tmp_path / 'report.md'
  arguments = (*GBOARD, '--noise_multiplier=7', f'--output={path}')
  assert reporting.execute(*arguments).returncode == 0
  text = path.read_text()
  assert text.startswith('# Privacy report')
  again = reporting.execute(*arguments)
  assert again.returncode == 2
  assert 'exists and is not overwritten' in again.stderr
  assert path.read_text() == text
  assert os.listdir(tmp_path) == ['report.md']


@pytest.mark.parametrize(
  ('arguments', 'code', 'message'),
  [
    ((), 2, '--target_delta is missing'),
    (('--run_dir=/nowhere',), 2, 'a run directory: there is no such directory'),
    (('report.json',), 2, "unexpected arguments ['report.json']; all are flags"),
    (('--output=/nowhere/x',), 2, '--output=/nowhere/x: there is no folder /nowhere'),
    (
      (*GBOARD, '--noise_multiplier=1', f'--ledger={__file__}'),
      2,
      'line 1: not a ledger entry',
    ),
    (
      ('--nbafl', '--target_epsilon=5', '--target_delta=1e-5', '--clip_norm=1')
      + ('--num_rounds=4', '--num_exposures=2', '--num_clients=5', '--min_examples=9'),
      2,
      'epsilon=5 is not below 1, and the constant sqrt(2 ln(1.25 / delta)) holds for '
      "epsilon < 1 only. calibration='exact'",
    ),
    (('--run_dir=.', '--num_rounds=3'), 2, '--num_rounds does not go with --run_dir'),
    (('--report=x', '--accountant=rdp'), 2, 'does not go with a single --report'),
    (('--ledger=x', '--ledger=y', '--round_log=z'), 2, '--ledger is given 2 times and'),
    (
      (*GBOARD, '--ledger=x', '--ledger=y', '--target_epsilon=3'),
      2,
      '--target_epsilon is for one mechanism',
    ),
    (('--verify=x', '--report=y'), 2, '--report does not go with --verify'),
    (
      ('--mechanism=gaussian', '--num_rounds=9', '--noise_multiplier=1')
      + ('--target_delta=1e-6', '--min_separation=4', '--cap_enforced_by=it'),
      2,
      '--cap_enforced_by is for --max_participations below',
    ),
    (
      ('--mechanism=gaussian', '--num_rounds=3', '--noise_multiplier=1')
      + ('--target_delta=1e-6', '--sampling=fixed_size', '--num_clients=99')
      + ('--clients_per_round=9', '--accountant=prv'),
      2,
      'accountant=prv does not read this event; leave it out, or take pld or rdp.\n',
    ),
    (
      (*GBOARD, '--noise_multiplier=1', '--target_epsilon=1'),
      1,
      'the mechanism spends epsilon',
    ),
  ],
)
def test_wrong_usage_is_one_line_and_a_code(arguments, code, message):
  result = reporting.execute(*arguments)
  assert result.returncode == code
  assert result.stderr.startswith('error: ')
  assert message in result.stderr
  assert result.stderr.count('\n') == 1
  assert result.stdout == ''


def test_run_directory_with_a_foreign_or_unprivate_configuration_is_refused(tmp_path):
  config = tmp_path / 'config.json'
  for text, message in (
    ('{', 'is not the configuration of a run'),
    ('{}', 'is not the configuration of a run'),
    ('{"privacy": null}', 'had no privacy mechanism'),
  ):
    config.write_text(text)
    result = reporting.execute(f'--run_dir={tmp_path}')
    assert result.returncode == 2
    assert message in result.stderr
