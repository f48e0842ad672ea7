"""Tests that `verify` computes reports again from the files that they list."""

import dataclasses
import hashlib
import os
import pathlib

import pytest

from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import composition
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement


def test_reports_of_every_kind_are_verified(tmp_path, monkeypatch):
  all_reports = list(statements.of_every_kind(tmp_path))
  assert len(all_reports) == len(statements.KINDS)
  for report in all_reports:
    result = statements.verify(tmp_path, report)
    assert result.ok, result.differences
    assert 'verified: every number was computed again and is the same.' in result.text


@pytest.mark.parametrize('delta', [1e-12, 1e-40])
def test_tiny_deltas_are_verified(tmp_path, delta):
  assert statements.verify(tmp_path, statements.build(statements.TREE, delta)).ok


def test_other_software_and_epsilon_by_another_method_are_noted(tmp_path):
  report = statements.build()
  report['software']['numpy'] = '1.0'
  result = statements.verify(tmp_path, report)
  assert result.ok
  (note,) = [each for each in result.notes if 'numpy' in each]
  assert f'note: {note}' in result.text
  assert 'privacy loss distributions, another method, give epsilon' in result.text


# Files.


def test_files_are_found_beside_a_moved_report(tmp_path):
  (tmp_path / 'old').mkdir()
  report = statements.with_ledger(tmp_path / 'old')
  (tmp_path / 'old').rename(tmp_path / 'new')
  assert statements.verify(tmp_path / 'new', report).ok
  assert not statements.verify(tmp_path, report).ok


def test_other_file_of_the_same_name_beside_the_report_is_noted(tmp_path):
  report = statements.with_ledger(tmp_path)
  folder = tmp_path / 'copy'
  folder.mkdir()
  (folder / 'ledger.jsonl').write_text('other')
  result = statements.verify(folder, report)
  assert result.ok
  assert any('was not verified' in each for each in result.notes), result.notes


def test_verify_detects_altered_and_missing_files(tmp_path):
  report = statements.with_ledger(tmp_path)
  path = tmp_path / 'ledger.jsonl'
  content = path.read_text()
  path.write_text(''.join(content.splitlines(keepends=True)[:5]))
  result = statements.verify(tmp_path, report)
  assert any('sha256' in each for each in result.differences)
  assert any('stopped.epsilon_completed' in each for each in result.differences)
  path.write_text(content.replace('"round": 3', '"round": 4'))
  (error,) = statements.verify(tmp_path, report).differences
  assert 'is not the file that the report was made of' in error and 'line 4' in error
  path.unlink()
  (missing,) = statements.verify(tmp_path, report).differences
  assert 'cannot be read; it is looked for from the current directory' in missing


def test_verify_detects_file_of_another_strategy(tmp_path):
  strategies.Identity(12).save(tmp_path / 'strategy.json')
  file = sources.file_of('strategy', str(tmp_path / 'strategy.json'))
  (difference,) = statements.verify(
    tmp_path, statements.build(files=(file,))
  ).differences
  assert 'the strategy in the report is not that of' in difference


# Round logs and runs.


def _forged(runs, monkeypatch):
  """Returns a composition of runs, made without checking that they compose."""
  with monkeypatch.context() as forging:
    forging.setattr(composition, 'check_not_forked', lambda ledgers: None)
    return statements.compose(
      [statement.build(sources.from_run_dir(run)) for run in runs]
    )


def _from_log(folder, limits=None):
  path = statements.write_round_log(folder)
  log = sources.from_round_log(path)
  mechanism = accounting.Mechanism('tree', limits or log.limits, 5.0)
  inputs = reports.Inputs(mechanism, 1e-6, files=(log.file,))
  source = sources.summary_of(log, inputs)
  inputs = dataclasses.replace(inputs, participation_source=source)
  return statement.build(inputs, with_curves=False)


def test_verify_detects_limits_that_differ_from_round_log(tmp_path):
  assert statements.verify(tmp_path, _from_log(tmp_path)).ok
  forged = _from_log(tmp_path, strategies.Participation(80, 50, 1))
  (difference,) = statements.verify(tmp_path, forged).differences
  assert (
    'the round log gives Participation(num_rounds=80, min_separation=' in difference
  )


def test_verify_detects_altered_source_and_source_without_file(tmp_path):
  report = _from_log(tmp_path)
  report['participation']['source']['num_rounds'] = 81
  assert not statements.verify(tmp_path, report).ok
  report = statements.build()
  report['participation']['source'] = {'basis': 'min_wait'}
  assert not statements.verify(tmp_path, report).ok


def test_run_is_verified_from_its_configuration(tmp_path):
  inputs = sources.from_run_dir(statements.run_dir(tmp_path / 'run') + '/')
  report = statement.build(inputs)
  assert statements.verify(tmp_path, report).ok
  for changes in ({'delta': 1e-2}, {'enforced_by': 'nobody'}):
    forged = statement.build(dataclasses.replace(inputs, **changes))
    assert not statements.verify(tmp_path, forged).ok, changes


def test_verify_compares_run_fields_with_configuration(tmp_path):
  run = pathlib.Path(statements.run_dir(tmp_path / 'run'))
  (run / 'ledger.jsonl').unlink()
  statements.write_ledger(statements.TREE, run / 'ledger.jsonl', aborted=2)
  with statements.edited_config(run) as config:
    config['training'] = {
      'schedule': {'reporting_goal': 20},
      'simulation': 'packed',
      'aggregation': {'zeroing_norm': 9.0, 'coordinate_bound': None},
    }
  report = statements.by_flags(tmp_path, f'--run_dir={run}')
  assert report['run']['aborted_attempts'] == {'count': 2, 'rounds': [0], 'epsilon': 0}
  assert report['run']['simulation'] == 'packed'
  result = statements.verify(tmp_path, report)
  assert result.ok, result.text
  for field, wrong in (
    ('aborted_attempts', {'count': 1, 'rounds': [0], 'epsilon': 0}),
    ('simulation', 'one_by_one'),
    ('before_clipping', {'zeroing_norm': 8.0, 'coordinate_bound': None}),
    ('reporting', {**report['run']['reporting'], 'reporting_goal': 7}),
  ):
    altered = {**report, 'run': {**report['run'], field: wrong}}
    assert f'run.{field}' in statements.verify(tmp_path, altered).text
  with statements.edited_config(run) as config:
    config['training']['schedule']['reporting_goal'] = 9
  assert 'but in round 0 of the ledger' in statements.verify(tmp_path, report).text


def test_verify_detects_composed_runs_that_share_noise(tmp_path, monkeypatch):
  runs = [
    statements.run_dir(tmp_path / name, noise_seed=seed)
    for name, seed in (('a', 1), ('b', 2))
  ]
  report = statements.compose(
    [statement.build(sources.from_run_dir(run)) for run in runs]
  )
  assert statements.verify(tmp_path, report).ok
  runs.append(statements.run_dir(tmp_path / 'c', noise_seed=1))
  forged = _forged(runs, monkeypatch)
  (difference,) = statements.verify(tmp_path, forged).differences
  assert 'have their noise from the same seed' in difference


@pytest.mark.parametrize('role', ['ledger', 'strategy'])
def test_verify_detects_listed_file_of_another_run(tmp_path, role):
  (tmp_path / 'other').write_text('')
  report = statements.of_kind(tmp_path, 'run_dir')
  report['verification']['command'] = None
  for file in report['verification']['files']:
    if file['role'] == role:
      file['path'] = str(tmp_path / 'other')
  differences = statements.verify(tmp_path, report).differences
  assert 'is not the file that the report was made of' in differences[0]


@pytest.mark.parametrize('role', ['configuration', 'ledger'])
def test_renamed_file_roles_do_not_hide_shared_noise(tmp_path, monkeypatch, role):
  runs = [statements.run_dir(tmp_path / name, noise_seed=1) for name in ('a', 'b')]
  forged = _forged(runs, monkeypatch)
  for each in (forged, *forged['parts']):
    for file in each['verification']['files']:
      if file['role'] == 'config':
        file['role'] = role
  (difference,) = statements.verify(tmp_path, forged).differences
  assert 'at most one file of each role' in difference


def test_ledger_hash_is_of_the_content_that_was_read(tmp_path, monkeypatch):
  statements.with_ledger(tmp_path)
  path, read = tmp_path / 'ledger.jsonl', ledger.read
  digest = hashlib.sha256(path.read_bytes()).hexdigest()

  def read_and_append(*args):
    content = read(*args)
    path.write_bytes(path.read_bytes() + b'{}')
    return content

  monkeypatch.setattr(ledger, 'read', read_and_append)
  plan = reports.Inputs(statements.TREE, 1e-6)
  (file,) = sources.from_plan(plan, ledger=str(path)).files
  assert file == {'role': 'ledger', 'path': str(path), 'sha256': digest}


def test_sources_refuse_pipes(tmp_path):
  os.mkfifo(tmp_path / 'pipe')
  plan, path = reports.Inputs(statements.TREE, 1e-6), str(tmp_path / 'pipe')
  for make in (
    lambda: sources.from_plan(plan, ledger=path),
    lambda: sources.from_plan(plan, strategy_file=path),
    lambda: sources.from_round_log(path),
  ):
    with pytest.raises(ValueError, match='pipe is no regular file.* Give a file'):
      make()


@pytest.mark.parametrize('role', ['ledger', 'config'])
def test_verify_does_not_read_pipes_or_devices(tmp_path, role):
  os.mkfifo(tmp_path / 'pipe')
  report = statements.build()
  for path in (str(tmp_path / 'pipe'), '/dev/zero'):
    file = {'role': role, 'path': path, 'sha256': 64 * '0'}
    report['verification']['files'] = [file]
    (difference,) = statements.verify(tmp_path, report).differences
    assert 'is no regular file' in difference


def test_verify_escapes_texts_of_the_report_in_its_result(tmp_path):
  report = statements.build()
  report['software']['numpy'] = '1.25\nverified: all\x1b[8m'
  text = statements.verify(tmp_path, report).text
  assert '\nverified: all' not in text and '\x1b' not in text
  report['\nverified: all'] = 1
  assert '\nverified: all' not in statements.verify(tmp_path, report).text
