"""Tests of flags, plans and usage of the report program.

`report_production_test` is about files of runs, `report_composition_test` about several
runs, `report_parts_test` about parts of a model.
"""

import json
import os
import re

import pytest

from tests.accounting.programs import reporting
from tff_dp_aggregators.accounting.reports import schema as schema_lib

GBOARD = (
  '--mechanism=tree',
  '--num_rounds=2000',
  '--max_participations=6',
  '--target_delta=1e-10',
)


def test_schema_flag_prints_the_whole_schema():
  result = reporting.execute('--schema')
  assert result.returncode == 0, result.stderr
  assert json.loads(result.stdout) == schema_lib.load()
  result = reporting.execute('--schema', '--mechanism=tree')
  assert result.returncode == 2
  assert '--mechanism does not go with --schema' in result.stderr


@pytest.mark.parametrize('target', ['2', '3.3'])
def test_printed_noise_multiplier_keeps_the_target(target):
  arguments = ('--mechanism=tree', '--num_rounds=200', '--min_separation=20')
  arguments += (f'--target_epsilon={target}', '--target_delta=1e-6')
  shown = reporting.execute(*arguments, '--format=text').stdout
  (noise,) = re.findall(r'^- \*\*noise multiplier\*\*: (\S+)', shown, re.MULTILINE)
  result = reporting.execute(*arguments, f'--noise_multiplier={noise}')
  assert result.returncode == 0, result.stderr


def test_printed_command_gives_the_same_report():
  report = reporting.json_of(
    '--mechanism=banded',
    '--num_rounds=90',
    '--min_separation=9',
    '--num_bands=7',
    '--target_epsilon=2',
    '--target_delta=1e-7',
    '--adjacency=replace_one',
  )
  assert report['verification']['command'].startswith('tff-dp-report ')
  assert reporting.rerun(report) == report


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


def test_help_of_repeated_flags_has_one_punctuation_mark():
  text = reporting.execute('--helpfull').stdout
  assert 'in\n    flags;\n    repeat this option' in text and '.;' not in text


def test_verify_notes_that_it_does_not_read_the_page_beside(tmp_path):
  report = reporting.json_of(*GBOARD, '--noise_multiplier=7')
  (tmp_path / 'report.md').write_text('epsilon = 0.1')
  verified = reporting.run_verify(tmp_path, report)
  assert verified.returncode == 0
  assert 'note: report.md beside it was not verified' in verified.stdout


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((), '--target_delta is missing'),
    ((*GBOARD[:-1], '--target_epsilon=8'), '--target_delta is missing'),
    *(
      ((*GBOARD, '--target_rho=1', flag), 'or target_rho alone; got')
      for flag in ('--accountant=rdp', '--target_epsilon=1')
    ),
    (
      (*GBOARD, '--target_rho=1', '--other_release=a: epsilon=1, delta=1e-12'),
      '--target_rho',
    ),
    (('--run_dir=/nowhere',), 'is not a run directory'),
    (
      ('--output=/nowhere/x',),
      '--output=/nowhere/x must be a file in a folder that exists',
    ),
    (('--run_dir=.', '--num_rounds=3'), '--num_rounds does not go with --run_dir'),
    (
      (*GBOARD, '--ledger=x', '--ledger=y', '--target_epsilon=3'),
      '--target_epsilon is for one mechanism',
    ),
    (
      ('--mechanism=gaussian', '--num_rounds=9', '--noise_multiplier=1')
      + ('--target_delta=1e-6', '--min_separation=4', '--cap_enforced_by=it'),
      '--cap_enforced_by is for --max_participations below',
    ),
  ],
)
def test_wrong_usage_prints_one_line_and_exits_with_2(arguments, message):
  result = reporting.execute(*arguments)
  assert result.returncode == 2
  assert result.stderr.startswith('error: ')
  assert message in result.stderr
  assert result.stderr.count('\n') == 1
  assert result.stdout == ''


def test_run_directory_with_invalid_or_nonprivate_configuration_is_refused(tmp_path):
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
