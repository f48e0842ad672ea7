"""A report is computed again, and every alteration of it is found.

Claims:

* Reports of every kind are verified as they were written.
* Changing any number, text or truth value in a report, one at a time, is found; only
  versions of the software may differ, and are mentioned.
* So is changing the files that a report was made from.
* A strategy within the report is the one that is verified, and the one of its file.
* Limits on participation follow from the round log, and all parameters from the
  configuration of a run, again.
"""

import copy
import hashlib
import json

import dp_accounting
import pytest

from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.accounting.reports import verification
from tff_dp_aggregators.base import version

LIMITS = strategies.Participation(12, 4)
TREE = accounting.Mechanism('tree', LIMITS, 5.0)


def _with_ledger(folder, num_rounds=7):
  path = str(folder / 'ledger.jsonl')
  multipliers, _ = events.round_noise_multipliers(TREE.strategy, LIMITS, 5.0)
  with ledger.LedgerWriter(path, delta=1e-6) as writer:
    for multiplier in multipliers[:num_rounds]:
      writer.append(
        event=dp_accounting.GaussianDpEvent(float(multiplier)),
        cohort_requested=10,
        cohort_reported=10,
        clip_norm=0.5,
        noise_multiplier=5.0,
        strategy_checksum=TREE.strategy.checksum,
      )
  return statement.build(
    reports.Inputs(
      TREE,
      1e-6,
      ledger=ledger.read(path),
      files=(sources.file_of('ledger', path),),
      clip_norm=0.5,
      enforced_by='a test',
    ),
    with_curves=False,
  )


def _statements(folder):
  tree = statement.build(
    reports.Inputs(TREE, 1e-6, target_epsilon=9.0, command='a command'),
    with_curves=False,
  )
  blt = accounting.Mechanism('blt', LIMITS, 3.0, clipped_count_stddev=4.0)
  epochs = strategies.Participation(12, 4, fixed_epoch=True)
  toeplitz = accounting.Mechanism('toeplitz', epochs, 2.0)
  fixed = schemas.FixedSizeSampling(6, 1000, 10)
  yield tree
  yield statement.build(reports.Inputs(blt, 1e-6), with_curves=False)
  yield statement.build(reports.Inputs(toeplitz, 1e-6))
  yield _with_ledger(folder)
  yield statement.build(
    reports.Inputs(accounting.Mechanism('gaussian', fixed, 2.0), 1e-6),
    with_curves=False,
  )
  yield statement.compose([tree, statement.build(reports.Inputs(blt, 1e-6))])
  yield statement.build_without_privacy()


def _verify(folder, report):
  path = folder / 'report.json'
  path.write_text(json.dumps(report))
  return verification.verify(str(path))


def test_reports_are_verified_as_they_were_written(tmp_path):
  for report in _statements(tmp_path):
    result = _verify(tmp_path, report)
    assert result.ok, result.differences
    assert 'verified: every number was computed again and is the same.' in result.text


def _leaves(value, path=()):
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from _leaves(inner, (*path, key))
  elif isinstance(value, list):
    for index, inner in enumerate(value):
      yield from _leaves(inner, (*path, index))
  else:
    yield path, value


def _altered(value):
  if isinstance(value, bool):
    return not value
  if isinstance(value, int):
    return value + 1
  if isinstance(value, float):
    return value * (1 + 1e-6)
  return 'altered' if value is None else value + ' '


# Free texts, which nothing else in a report could contradict.
FREE = {
  ('verification', 'command'),
  ('participation', 'enforced_by'),
  ('mechanism', 'noise_source'),
  ('mechanism', 'clip_norm'),
  ('target', 'epsilon'),
  ('target', 'found'),
}


def _without_curves(report):
  curves = report['curves'] or {}
  return dict(report, curves={name: points[:1] for name, points in curves.items()})


@pytest.mark.parametrize('number', range(4))
def test_every_alteration_is_found(tmp_path, number):
  report = list(_statements(tmp_path))[number]
  missed = []
  for path, value in _leaves(_without_curves(report)):
    if path[0] == 'software' or path in FREE or path[:2] == ('participation', 'source'):
      continue
    changed = copy.deepcopy(report)
    place = changed
    for key in path[:-1]:
      place = place[key]
    place[path[-1]] = _altered(value)
    try:
      if _verify(tmp_path, changed).ok:
        missed.append(path)
    except ValueError:
      assert path[0] in ('format', 'version')
  assert not missed


def test_an_altered_epsilon_is_named_with_both_values(tmp_path):
  report = statement.build(reports.Inputs(TREE, 1e-6))
  epsilon = report['guarantee']['epsilon']
  report['guarantee']['epsilon'] = 1.0
  result = _verify(tmp_path, report)
  assert result.differences[0] == f'guarantee.epsilon is 1.0, computed {epsilon!r}'
  assert 'NOT verified: 1 difference(s).' in result.text


def test_another_method_agrees(tmp_path):
  assert 'privacy loss distributions, another method, give epsilon' in (
    _verify(tmp_path, statement.build(reports.Inputs(TREE, 1e-6))).text
  )


def test_files_are_found_beside_a_report_that_moved(tmp_path):
  (tmp_path / 'old').mkdir()
  report = _with_ledger(tmp_path / 'old')
  (tmp_path / 'old').rename(tmp_path / 'new')
  assert _verify(tmp_path / 'new', report).ok
  assert not _verify(tmp_path, report).ok


def test_missing_and_additional_fields_are_found(tmp_path):
  report = statement.build(reports.Inputs(TREE, 1e-6))
  del report['guarantee']['gdp_mu']
  report['guarantee']['gdp'] = 1.0
  result = _verify(tmp_path, report)
  assert set(result.differences) == {
    'guarantee.gdp_mu is missing',
    'guarantee.gdp is not computed here',
  }


def test_other_software_is_a_note(tmp_path):
  report = statement.build(reports.Inputs(TREE, 1e-6))
  report['software']['numpy'] = '1.0'
  result = _verify(tmp_path, report)
  assert result.ok
  (note,) = [each for each in result.notes if 'numpy' in each]
  assert note.startswith('the report was made with numpy 1.0, verified with numpy 1.')
  assert f'note: {note}' in result.text


def _software_notes(result):
  return [each for each in result.notes if 'another method' not in each]


def test_another_commit_is_a_note(tmp_path, monkeypatch):
  monkeypatch.setattr(version, 'current', lambda: version.Version('0.1.0', 'a', False))
  report = statement.build(reports.Inputs(TREE, 1e-6))
  assert _software_notes(_verify(tmp_path, report)) == []
  monkeypatch.setattr(version, 'current', lambda: version.Version('0.1.0', 'b', False))
  result = _verify(tmp_path, report)
  assert result.ok
  assert _software_notes(result) == [
    'the report was made with tff_dp_aggregators 0.1.0 (commit a), '
    'verified with tff_dp_aggregators 0.1.0 (commit b)'
  ]
  monkeypatch.setattr(version, 'current', lambda: version.Version('0.1.0'))
  result = _verify(tmp_path, report)
  assert result.ok
  assert _software_notes(result) == [
    'the report was made with tff_dp_aggregators 0.1.0 (commit a), '
    'verified with tff_dp_aggregators 0.1.0'
  ]


def test_changed_files_are_a_note_wherever_it_is_verified(tmp_path, monkeypatch):
  monkeypatch.setattr(version, 'current', lambda: version.Version('0.1.0', 'a', True))
  result = _verify(tmp_path, statement.build(reports.Inputs(TREE, 1e-6)))
  assert result.ok
  assert _software_notes(result) == [
    'files of the package had been changed when the report was made'
  ]


@pytest.mark.parametrize(
  'software, expected',
  [
    (None, 'does not say which software made it'),
    (['numpy'], 'does not say which software made it'),
    ({}, 'without numpy, verified with numpy 1.'),
    ({'numpy': None, 'perl': [5]}, 'made with perl [5], verified without perl'),
  ],
)
def test_software_may_be_anything(tmp_path, software, expected):
  report = statement.build(reports.Inputs(TREE, 1e-6))
  report['software'] = software
  result = _verify(tmp_path, report)
  assert result.ok
  assert any(expected in each for each in result.notes), result.notes


def test_altered_and_missing_files_are_found(tmp_path):
  report = _with_ledger(tmp_path)
  path = tmp_path / 'ledger.jsonl'
  content = path.read_text()
  path.write_text(''.join(content.splitlines(keepends=True)[:5]))
  result = _verify(tmp_path, report)
  assert any('sha256' in each for each in result.differences)
  assert any('guarantee.epsilon' in each for each in result.differences)
  path.unlink()
  assert 'No such file' in _verify(tmp_path, report).differences[0]


def test_the_strategy_in_the_report_is_verified(tmp_path):
  strategy = strategies.BandedToeplitz(12, (0.8, 0.6))
  mechanism = accounting.Mechanism('file', LIMITS, 2.0, strategy=strategy)
  assert _verify(tmp_path, statement.build(reports.Inputs(mechanism, 1e-6))).ok


@pytest.mark.parametrize(
  'content, message',
  [
    ('{', 'is not a JSON report'),
    ('[]', 'is not a privacy report'),
    ('{"format": "tff_dp_aggregators.privacy_report", "version": 1}', 'has version 1'),
  ],
)
def test_what_is_no_report_is_refused(tmp_path, content, message):
  path = tmp_path / 'report.json'
  path.write_text(content)
  with pytest.raises(ValueError, match=message):
    verification.verify(str(path))


def test_checksums_of_files_are_sha256(tmp_path):
  path = tmp_path / 'file'
  path.write_bytes(b'x' * 3_000_000)
  digest = hashlib.sha256(b'x' * 3_000_000).hexdigest()
  assert sources.file_of('role', str(path))['sha256'] == digest


def _round_log(folder):
  path = folder / 'rounds.csv'
  lines = ['round,completion_time']
  for number in range(80):  # A round in three hours.
    day, hour = 1 + number // 8, number % 8 * 3
    lines.append(f'{number},2026-01-{day:02d}T{hour:02d}:00:00Z')
  path.write_text('\n'.join(lines) + '\n')
  return str(path)


def _from_log(folder, limits=None):
  path = _round_log(folder)
  log = sources.from_round_log(path)
  mechanism = accounting.Mechanism('tree', limits or log.limits, 5.0)
  inputs = reports.Inputs(
    mechanism, 1e-6, participation_source=log.summary, files=(log.file,)
  )
  return statement.build(inputs, with_curves=False)


def test_limits_that_are_not_those_of_the_round_log_are_found(tmp_path):
  assert _verify(tmp_path, _from_log(tmp_path)).ok
  forged = _from_log(tmp_path, strategies.Participation(80, 50, 1))
  (difference,) = _verify(tmp_path, forged).differences
  assert (
    'the round log gives Participation(num_rounds=80, min_separation=' in difference
  )


def test_a_source_without_its_file_and_an_altered_source_are_found(tmp_path):
  report = _from_log(tmp_path)
  report['participation']['source']['num_rounds'] = 81
  assert not _verify(tmp_path, report).ok
  report = statement.build(reports.Inputs(TREE, 1e-6))
  report['participation']['source'] = {'basis': 'min_wait'}
  assert not _verify(tmp_path, report).ok


def _run_dir(folder, **changes):
  folder.mkdir()
  privacy = {
    'mechanism': TREE.to_json(),
    'target_epsilon': None,
    'delta': 1e-6,
    'clip_norm': 0.5,
    'enforced_by': 'a test',
    'noise_source': 'a seed',
  }
  (folder / 'config.json').write_text(json.dumps({'privacy': {**privacy, **changes}}))
  TREE.strategy.save(folder / 'strategy.npz')
  _with_ledger(folder)
  return str(folder)


def test_a_run_is_verified_from_its_configuration(tmp_path):
  run_dir = _run_dir(tmp_path / 'run')
  report = statement.build(sources.from_run_dir(run_dir + '/'))
  assert _verify(tmp_path, report).ok
  for name, value in (('delta', 1e-2), ('enforced_by', 'nobody'), ('clip_norm', 9.0)):
    forged = statement.build(
      reports.Inputs(
        TREE,
        value if name == 'delta' else 1e-6,
        clip_norm=value if name == 'clip_norm' else 0.5,
        enforced_by=value if name == 'enforced_by' else 'a test',
        noise_source='a seed',
        files=tuple(report['verification']['files']),
        command=report['verification']['command'],
      )
    )
    assert not _verify(tmp_path, forged).ok, name


def test_a_run_that_moved_is_verified_beside_its_report(tmp_path):
  report = statement.build(sources.from_run_dir(_run_dir(tmp_path / 'old')))
  (tmp_path / 'old').rename(tmp_path / 'new')
  assert _verify(tmp_path / 'new', report).ok


def test_a_composition_of_other_software_is_verified(tmp_path):
  parts = [
    statement.build(reports.Inputs(TREE, 1e-6)),
    statement.build(reports.Inputs(TREE, 1e-6)),
  ]
  report = copy.deepcopy(statement.compose(parts))
  report['parts'][0]['software']['python'] = '3.10.1'
  assert _verify(tmp_path, report).ok


def test_the_strategy_file_is_that_of_the_report(tmp_path):
  strategies.Identity(12).save(tmp_path / 'strategy.json')
  file = sources.file_of('strategy', str(tmp_path / 'strategy.json'))
  (difference,) = _verify(
    tmp_path, statement.build(reports.Inputs(TREE, 1e-6, files=(file,)))
  ).differences
  assert 'the strategy in the report is not that of' in difference


def test_a_name_that_stands_twice_is_refused(tmp_path):
  text = json.dumps(statement.build(reports.Inputs(TREE, 1e-6)))
  path = tmp_path / 'report.json'
  path.write_text('{"guarantee": {"epsilon": 0.01}, ' + text[1:])
  with pytest.raises(ValueError, match='a name stands twice'):
    verification.verify(str(path))


@pytest.mark.parametrize('delta', [1e-12, 1e-15, 1e-20, 1e-40])
def test_tiny_deltas_are_verified(tmp_path, delta):
  assert _verify(
    tmp_path, statement.build(reports.Inputs(TREE, delta), with_curves=False)
  ).ok


def test_a_composition_of_runs_that_share_their_noise_is_found(tmp_path):
  runs = [
    _run_dir(tmp_path / name, noise_seed=seed) for name, seed in (('a', 1), ('b', 2))
  ]
  report = statement.compose(
    [statement.build(sources.from_run_dir(run)) for run in runs]
  )
  assert _verify(tmp_path, report).ok
  runs.append(_run_dir(tmp_path / 'c', noise_seed=1))
  forged = statement.compose(
    [statement.build(sources.from_run_dir(run)) for run in runs]
  )
  (difference,) = _verify(tmp_path, forged).differences
  assert 'have their noise from the same seed' in difference


@pytest.mark.parametrize('role', ['configuration', 'ledger'])
def test_shared_noise_is_not_hidden_by_what_files_are_called(tmp_path, role):
  runs = [_run_dir(tmp_path / name, noise_seed=1) for name in ('a', 'b')]
  forged = statement.compose(
    [statement.build(sources.from_run_dir(run)) for run in runs]
  )
  for each in (forged, *forged['parts']):
    for file in each['verification']['files']:
      if file['role'] == 'config':
        file['role'] = role
  (difference,) = _verify(tmp_path, forged).differences
  assert 'at most one file of each role' in difference


@pytest.mark.parametrize('parts', [None, 0])
def test_parts_that_are_no_list_are_a_difference(tmp_path, parts):
  report = statement.build(reports.Inputs(TREE, 1e-6))
  report['parts'] = parts
  assert not _verify(tmp_path, report).ok


def test_a_report_of_an_accountant_that_is_gone_is_refused(tmp_path):
  report = statement.build(reports.Inputs(TREE, 1e-6, accountant='exact'))
  report['verification']['inputs']['accountant'] = 'gdp'
  (difference,) = _verify(tmp_path, report).differences
  assert "unknown accountant 'gdp'; known: ['exact'" in difference
