"""The report program, run as a user runs it."""

import json
import os
import pathlib
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GBOARD = (
  '--mechanism=tree',
  '--num_rounds=2000',
  '--max_participations=6',
  '--target_delta=1e-10',
)


def _report(*arguments):
  return subprocess.run(
    [sys.executable, '-m', 'tff_dp_aggregators.accounting.report', *arguments],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    timeout=120,
  )


def _json(*arguments):
  result = _report('--format=json', *arguments)
  assert result.returncode == 0, result.stderr
  return json.loads(result.stdout)


def test_published_gboard_run_by_either_name_of_the_separation():
  between = _json(*GBOARD, '--rounds_between=313', '--noise_multiplier=7')
  difference = _json(*GBOARD, '--min_separation=314', '--noise_multiplier=7')
  assert between == difference
  assert between['guarantee']['epsilon_rdp'] == pytest.approx(8.8986050, rel=1e-8)
  assert between['mechanism']['sensitivity_squared'] == pytest.approx(79, rel=1e-14)


def test_target_gives_the_noise_that_keeps_it():
  report = _json(*GBOARD, '--rounds_between=313', '--target_epsilon=8.526093443452096')
  assert report['mechanism']['noise_multiplier'] == pytest.approx(7, rel=1e-9)
  assert report['guarantee']['epsilon'] <= 8.526093443452096


def test_the_printed_command_gives_the_same_numbers_again():
  report = _json(
    '--mechanism=banded',
    '--num_rounds=90',
    '--min_separation=9',
    '--num_bands=7',
    '--target_epsilon=2',
    '--target_delta=1e-7',
  )
  program, arguments = report['verification']['command'].split('report ', 1)
  assert program == 'python -m tff_dp_aggregators.accounting.'
  assert _json(*shlex.split(arguments)) == report


def test_output_file_is_written_whole_and_never_overwritten(tmp_path):
  path = tmp_path / 'report.md'
  arguments = (*GBOARD, '--noise_multiplier=7', f'--output={path}')
  assert _report(*arguments).returncode == 0
  text = path.read_text()
  assert text.startswith('# Privacy report')
  again = _report(*arguments)
  assert again.returncode == 2
  assert 'exists and is not overwritten' in again.stderr
  assert path.read_text() == text
  assert os.listdir(tmp_path) == ['report.md']


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((), '--mechanism is missing'),
    (('--mechanism=tree', '--num_rounds=5'), '--target_delta is missing'),
    (GBOARD, 'exactly one of --noise_multiplier and --target_epsilon'),
    (
      (*GBOARD, '--noise_multiplier=1', '--target_epsilon=1'),
      'exactly one of --noise_multiplier and --target_epsilon',
    ),
    (
      (*GBOARD, '--noise_multiplier=1', '--min_separation=2', '--rounds_between=1'),
      'min_separation = rounds_between + 1',
    ),
    ((*GBOARD, '--noise_multiplier=1', '--num_bands=2'), 'tree has no bands'),
    ((*GBOARD, '--noise_multiplier=1', '--min_separation=0'), 'must be at least 1'),
    ((*GBOARD, 'more', '--noise_multiplier=1'), "unexpected arguments ['more']"),
    (('--run_dir=/nowhere',), 'is not a run directory'),
    (('--run_dir=.', '--num_rounds=3'), '--num_rounds does not go with --run_dir'),
  ],
)
def test_wrong_flags_are_refused_with_a_reason(arguments, message):
  result = _report(*arguments)
  assert result.returncode == 2
  assert message in result.stderr
  assert 'Traceback' not in result.stderr
  assert result.stdout == ''


def test_run_directory_with_a_foreign_or_unprivate_configuration_is_refused(tmp_path):
  config = tmp_path / 'config.json'
  for text, message in (
    ('{', 'is not the configuration of a run'),
    ('{}', 'is not the configuration of a run'),
    ('{"privacy": null}', 'had no privacy mechanism'),
  ):
    config.write_text(text)
    result = _report(f'--run_dir={tmp_path}')
    assert result.returncode == 2
    assert message in result.stderr


def test_console_script_is_this_program():
  import importlib.metadata

  scripts = importlib.metadata.distribution('tff-dp-aggregators').entry_points
  (script,) = [s for s in scripts if s.name == 'tff-dp-report']
  assert script.value == 'tff_dp_aggregators.accounting.report:run'
