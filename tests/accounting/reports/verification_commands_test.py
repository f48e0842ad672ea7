"""Tests that verification runs the command in a report again."""

import copy
import dataclasses
import os

import pytest

from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.programs import report as program
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import verification


def _by_command(folder, *flags):
  report = statements.build(command=sources.command_of(list(flags)))
  return statements.verify(folder, report)


def test_command_with_equivalent_flags_is_verified(tmp_path):
  flags = (*statements.TREE_FLAGS[:2], '--rounds_between=3', *statements.TREE_FLAGS[3:])
  assert _by_command(tmp_path, *flags).ok


@pytest.mark.parametrize(
  'change, message',
  [
    (('--min_separation=5',), 'else: participation.min_separation is 4, computed 5'),
    (('--noise_multiplier=5.00001',), 'mechanism.noise_multiplier is 5.0, computed'),
    (('--target_delta=1e-7',), 'leads to something else: guarantee.delta is 1e-06'),
    (('--adjacency=replace_one',), 'leads to something else: definition.adjacency'),
    (('--target_epsilon=9',), 'leads to something else: target is None, computed'),
    (('--mechanism=oak',), 'does not work: WrongUsage: flag --mechanism=oak'),
    (('--ledger=/nowhere',), 'does not work: FileNotFoundError'),
    (
      ('--target_epsilon=0.1',),
      'does not work: CheckFailed: the mechanism spends',
    ),
    (('more',), "does not work: ValueError: 'more' does not decide"),
    (('--output=o',), "ValueError: '--output=o' does not decide on the numbers"),
    (('--flagfile=/etc/passwd',), "ValueError: '--flagfile=/etc/passwd' does not"),
    (('--num_ro=12',), "ValueError: '--num_ro=12' does not decide on the numbers"),
    (('--num_rounds=12', '--num_rounds=12'), '--num_rounds is given twice'),
  ],
)
def test_verify_detects_command_of_another_report(
  tmp_path, monkeypatch, change, message
):
  monkeypatch.chdir(tmp_path)
  name = change[0].split('=')[0]
  kept = [flag for flag in statements.TREE_FLAGS if flag.split('=')[0] != name]
  result = _by_command(tmp_path, *kept, *change)
  matching = [each for each in result.differences if message in each]
  assert matching and all(
    each.startswith('verification.command ') for each in result.differences
  ), result.differences
  assert [path.name for path in tmp_path.iterdir()] == ['report.json']


@pytest.mark.parametrize(
  'command',
  [
    'tff-dp-reports',
    'tff-dp-plan --num_rounds=3',
    "tff-dp-report 'open",
    'rm -rf /; tff-dp-report',
  ],
)
def test_verify_detects_command_of_another_program(tmp_path, command):
  report = statements.build(command=command)
  (difference,) = statements.verify(tmp_path, report).differences
  assert 'does not work: ValueError' in difference


def test_command_with_former_flag_names_is_verified(tmp_path):
  report = statements.by_flags(
    tmp_path,
    *('--mechanism=gaussian', '--noise_multiplier=5', '--target_delta=1e-6'),
    *('--num_rounds=10', '--sampling=poisson'),
    *('--num_clients=1000', '--clients_per_round=10', '--accountant=rdp'),
  )
  stated = report['verification']
  command = stated['command']
  assert '--num_clients=' in command and '--clients_per_round=' in command
  for old, new in (
    ('python -m tff_dp_aggregators.accounting.report ', 'tff-dp-report '),
    ('--population=', '--num_clients='),
    ('--cohort=', '--clients_per_round='),
  ):
    stated['command'] = stated['command'].replace(new, old)
  result = statements.verify(tmp_path, report)
  assert result.ok, result.text
  located = verification.statement_of_report(str(tmp_path / 'report.json'))
  assert located['verification']['command'] == command


@pytest.mark.parametrize('flag', ['ledger', 'report'])
def test_command_that_names_pipe_or_device_is_not_run(tmp_path, flag):
  os.mkfifo(tmp_path / 'pipe')
  for path in (str(tmp_path / 'pipe'), '/dev/zero'):
    result = _by_command(tmp_path, *statements.TREE_FLAGS, f'--{flag}={path}')
    assert any('is no regular file' in each for each in result.differences)


def test_verify_detects_command_that_reads_its_own_report(tmp_path):
  os.symlink(tmp_path / 'report.json', tmp_path / 'other.json')
  (difference,) = _by_command(tmp_path, f'--report={tmp_path}/other.json').differences
  assert 'leads back to that report' in difference
  assert _by_command(tmp_path, *statements.TREE_FLAGS).ok


def test_verify_notes_whether_the_command_was_run(tmp_path):
  result = statements.verify(tmp_path, statements.build())
  assert result.ok and 'states no command' in result.text
  command = sources.command_of(list(statements.TREE_FLAGS))
  result = statements.verify(tmp_path, statements.build(command=command))
  assert result.ok and 'command' not in result.text
  result = verification.verify(str(tmp_path / 'report.json'))
  assert result.ok and 'was not tried' in result.text


def test_commands_work_after_files_moved_beside_the_report(tmp_path):
  (tmp_path / 'old').mkdir()
  kinds = ('ledger_by_flags', 'round_log', 'run_dir')
  built = {kind: statements.of_kind(tmp_path / 'old', kind) for kind in kinds}
  (tmp_path / 'old').rename(tmp_path / 'new')
  for kind in ('ledger_by_flags', 'round_log'):
    assert statements.verify(tmp_path / 'new', built[kind]).ok, kind
  assert statements.verify(tmp_path / 'new' / 'one', built['run_dir']).ok
  forged = copy.deepcopy(built['run_dir'])
  forged['verification']['command'] = forged['verification']['command'].replace(
    'rdp', 'zcdp'
  )
  assert not statements.verify(tmp_path / 'new' / 'one', forged).ok


def test_reports_of_a_moved_runs_report_verify(tmp_path):
  run = statements.run_dir(tmp_path / 'run', noise_seed='one')
  other = statements.run_dir(tmp_path / 'run2', noise_seed='two')
  output = ('--format=json', f'--output={run}/report.json')
  assert program.execute((f'--run_dir={run}', *output)) == 0
  (tmp_path / 'run').rename(tmp_path / 'elsewhere')
  moved = f'--report={tmp_path}/elsewhere/report.json'
  for number, more in enumerate([(), (f'--run_dir={other}',)]):
    path = str(tmp_path / f'{number}.json')
    assert program.execute((moved, *more, '--format=json', f'--output={path}')) == 0
    result = verification.verify(path, program.statement_of)
    assert result.ok and 'states no command' not in result.text, result.text


def test_strategy_of_another_machine_is_compared_by_its_figures(tmp_path):
  flags = ('--mechanism=toeplitz', '--num_rounds=12', '--min_separation=4')
  flags += ('--noise_multiplier=2', '--target_delta=1e-6')
  report = statements.by_flags(tmp_path, *flags)
  original = accounting.Mechanism('toeplitz', statements.LIMITS, 2.0)
  for change, is_right in ((1e-9, True), (1e-3, False)):
    first, second, *rest = original.strategy.coefficients
    similar = strategies.BandedToeplitz(12, (first, second * (1 + change), *rest))
    mechanism = dataclasses.replace(original, strategy=similar)
    altered = statements.build(mechanism, command=report['verification']['command'])
    result = statements.verify(tmp_path, altered)
    assert result.ok == is_right, result.differences
    assert 'not the same to the last bit' in result.text
