"""Tests of the program that compares mechanisms before training."""

import json

import pytest

from tests import executing
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.planning import comparison as planning
from tff_dp_aggregators.accounting.planning import views as plan_views
from tff_dp_aggregators.accounting.programs import plan as plan_program
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import report as report_program

LIMITS = strategies.Participation(60, min_separation=12, max_participations=4)
FLAGS = (
  '--num_rounds=60',
  '--min_separation=12',
  '--max_participations=4',
  '--model_size=250000',
  '--target_delta=1e-6',
  '--mechanisms=gaussian,toeplitz,tree',
)


def _task(**changes):
  names = ('gaussian', 'toeplitz', 'tree')
  arguments = {'target_epsilon': 3.0, 'mechanisms': names, **changes}
  return planning.Task(LIMITS, 250_000, 1e-6, **arguments)


def _plan(*arguments):
  return executing.execute(plan_program, *arguments)


def test_plan_program_prints_the_table_and_plots(tmp_path):
  picture = tmp_path / 'plan.png'
  result = _plan(*FLAGS, '--target_epsilon=3', f'--plot={picture}')
  assert result.returncode == 0, result.stderr
  assert result.stdout == plan_views.to_text(planning.compare(_task()))
  assert 'a client in at most 4, which are at least 12 apart' in result.stdout
  assert 'computing toeplitz' in result.stderr
  from matplotlib import image

  pixels = image.imread(picture)
  assert pixels.shape[0] > 400 and pixels.shape[1] > 800
  assert pixels[..., :3].std() > 0.05  # Not an empty page.


def test_printed_noise_multiplier_keeps_the_printed_target():
  target = ('--num_rounds=100', '--min_separation=7', '--target_delta=1e-6')
  target += ('--target_epsilon=1.2345678',)
  planned = _plan(*target, '--model_size=1000', '--mechanisms=gaussian').stdout
  text = 'the least noise for epsilon = 1.2345678 at delta = 1e-06'
  assert text in ' '.join(planned.split())
  row = next(line.split() for line in planned.splitlines() if line[:4] == '  ga')
  kept = executing.execute(
    report_program, *target, '--mechanism=gaussian', f'--noise_multiplier={row[1]}'
  )
  assert kept.returncode == 0, kept.stderr


def test_json_has_the_same_numbers_under_stable_keys(tmp_path):
  path = tmp_path / 'plan.json'
  arguments = (*FLAGS, '--noise_multiplier=4', '--format=json', f'--output={path}')
  result = _plan(*arguments)
  assert (result.returncode, result.stdout) == (0, '')
  data = json.loads(path.read_text())
  assert ' '.join(data) == (
    'format version task equal_epsilon rows left_out advised advice'
  )
  comparison = planning.compare(_task(target_epsilon=None, noise_multiplier=4.0))
  assert data == json.loads(json.dumps(plan_views.to_json(comparison)))
  for row, json_row in zip(comparison.rows, data['rows']):
    assert ' '.join(json_row) == (
      'mechanism num_bands num_buffers num_decays restart_every sampling participation '
      'adjacency may_be_advised noise_multiplier sensitivity '
      'effective_noise_multiplier epsilon delta accountant instead rmse max_error '
      'relative_rmse relative_max_error relative_rmse_at_equal_epsilon '
      'noise_per_coordinate noise_norm noise_to_signal storage noise_bytes '
      'seconds_per_round storages'
    )
    assert json_row['rmse'] == row.rmse
    assert json_row['sensitivity'] == row.mechanism.strategy.sensitivity(LIMITS)
  assert data['rows'][data['advised']]['mechanism'] == comparison.advised.mechanism.name
  again = _plan(*arguments)  # The existing file is kept.
  assert again.returncode == 2
  assert 'exists and is not overwritten' in again.stderr
  assert 'computing' not in again.stderr


def test_separation_follows_from_num_clients_and_is_printed(tmp_path):
  flagfile = tmp_path / 'flags.txt'
  flagfile.write_text(
    '--num_rounds=60\n--num_clients=430\n--clients_per_round=40\n--model_size=1000\n'
    '--target_delta=1e-6\n--target_epsilon=3\n--mechanisms=tree\n'
  )
  result = _plan(f'--flagfile={flagfile}')
  assert result.returncode == 0, result.stderr
  assert 'min_separation=10 is the most that 430 clients' in result.stdout
  assert 'at most 6, which are at least 10 apart' in result.stdout
  values = program.values_of(plan_program.groups(), [f'--flagfile={flagfile}'])
  assert plan_program.task_from(values).limits == strategies.Participation(60, 10)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((), '--num_rounds, --model_size, --target_delta must be given'),
    (FLAGS, 'give either a target (--target_epsilon or --target_rho), or noise_mult'),
    (
      (*FLAGS, '--target_epsilon=1', '--target_rho=1'),
      'or target_rho alone; got target_epsilon=1.0',
    ),
  ],
)
def test_wrong_flags_are_refused_with_a_remedy(arguments, message):
  result = _plan(*arguments)
  assert result.returncode == 2
  assert result.stderr.startswith('error: ')
  assert message in result.stderr
  assert 'Traceback' not in result.stderr
  assert result.stdout == ''
