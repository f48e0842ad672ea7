"""A report is computed again, and every alteration of it is found.

Claims:

* Reports of every kind are verified as they were written.
* Changing any number, text or truth value in a report, one at a time, taking any field
  away, setting it to null or adding one is found. Only what enforces limits and where
  the noise comes from are free texts, and versions of the software are mentioned.
* The command in a report is done, from the same files, and has to lead to the report.
  It can neither write nor read a flag file.
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
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.accounting.reports import verification
from tff_dp_aggregators.base import version
from tff_dp_aggregators.strategies import registry

LIMITS = strategies.Participation(12, 4)
TREE = accounting.Mechanism('tree', LIMITS, 5.0)
A, B = 40 * 'a', 40 * 'b'  # Commits.


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


def _by_flags(folder, *flags):
  """What the report program writes for flags, and so with a command."""
  path = folder / f'{len(list(folder.iterdir()))}.json'
  arguments = (*flags, '--format=json', f'--output={path}')
  assert report_program.execute(arguments) == 0
  return json.loads(path.read_text())


OF_TREE = ('--mechanism=tree', '--num_rounds=12', '--min_separation=4')
OF_TREE += ('--noise_multiplier=5', '--target_delta=1e-6')


def _statements(folder):
  tree = statement.build(
    reports.Inputs(TREE, 1e-6, target_epsilon=9.0, clip_norm=0.5), with_curves=False
  )
  capped = strategies.Participation(12, 4, max_participations=2)
  blt = accounting.Mechanism('blt', capped, 3.0, clipped_count_stddev=4.0)
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
  # With commands.
  yield _by_flags(
    folder,
    *('--mechanism=tree', '--num_rounds=12', '--rounds_between=3'),
    *('--max_participations=2', '--target_epsilon=3', '--target_delta=1e-6'),
  )
  yield _by_flags(folder, *OF_TREE, f'--ledger={folder}/ledger.jsonl')
  log = _round_log(folder)
  yield _by_flags(
    folder,
    *('--mechanism=gaussian', '--noise_multiplier=5', '--target_delta=1e-6'),
    f'--round_log={log}',
  )
  runs = [_run_dir(folder / name, noise_seed=name) for name in ('one', 'two')]
  yield _by_flags(folder, f'--run_dir={runs[0]}', '--accountant=rdp')
  yield _by_flags(folder, *(f'--run_dir={run}' for run in runs))


KINDS = (
  'tree', 'blt', 'curves', 'ledger', 'sampled', 'composition', 'without_privacy',
  'flags', 'ledger_by_flags', 'round_log', 'run_dir', 'run_dirs',
)  # fmt: skip


def _some_slow(kinds, slow):
  return [pytest.param(k, marks=[pytest.mark.slow] if k in slow else []) for k in kinds]


def _statement(folder, kind):
  found = list(_statements(folder))
  assert len(found) == len(KINDS)
  return found[KINDS.index(kind)]


def _verify(folder, report):
  path = folder / 'report.json'
  path.write_text(json.dumps(report))
  return verification.verify(str(path), report_program.statement_of)


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


# Texts that people wrote, which nothing else in a report could contradict.
FREE = {
  ('participation', 'enforced_by'),
  ('participation', 'cap_enforced_by'),
  ('mechanism', 'noise_source'),
}


def _cut(report):
  """The report without most points of its curves, which are all found alike."""
  if not isinstance(report, dict) or not report.get('curves'):
    return report
  curves = {
    name: points[:1] if isinstance(points, list) else points
    for name, points in report['curves'].items()
  }
  return dict(report, curves=curves, parts=[_cut(part) for part in report['parts']])


def _place(report, path):
  """The innermost object or list that a path leads through."""
  for key in path[:-1]:
    report = report[key]
  return report


def _inner(value, path=()):
  """The paths of all objects, lists and values in a value, but itself."""
  if isinstance(value, dict):
    for key, each in value.items():
      yield (*path, key)
      yield from _inner(each, (*path, key))
  elif isinstance(value, list):
    for index, each in enumerate(value):
      yield (*path, index)
      yield from _inner(each, (*path, index))


def _is_free(report, path):
  """Whether a text is one that people wrote, and neither file nor command has it."""
  while path[0] == 'parts':
    report, path = report['parts'][path[1]], path[2:]
    if not path:
      return False
  roles = {file['role'] for file in report['verification']['files']}
  by_log = 'round_log' in roles and path[0] == 'participation'
  return path in FREE and 'config' not in roles and not by_log


def _missed(folder, report, changes):
  """The names of those changes that are not found."""
  missed = []
  for name, changed in changes:
    try:
      if _verify(folder, changed).ok:
        missed.append(name)
    except ValueError:
      assert name[0] in ('format', 'version')
  return missed


@pytest.mark.parametrize(
  'kind', _some_slow(KINDS, ('composition', 'round_log', 'run_dir', 'run_dirs'))
)
def test_every_alteration_is_found(tmp_path, kind):
  report = _statement(tmp_path, kind)

  def changes():
    for path, value in _leaves(_cut(report)):
      if 'software' in path:
        continue
      changed = copy.deepcopy(report)
      _place(changed, path)[path[-1]] = _altered(value)
      yield path, changed

  missed = _missed(tmp_path, report, changes())
  assert [path for path in missed if not _is_free(report, path)] == []


@pytest.mark.parametrize(
  'kind',
  _some_slow(('blt', 'curves', 'ledger', 'flags', 'run_dirs'), ('curves', 'run_dirs')),
)
def test_what_is_taken_away_set_to_null_or_added_is_found(tmp_path, kind):
  report = _statement(tmp_path, kind)

  def changes():
    for path in _inner(_cut(report)):
      if 'software' in path[:-1]:
        continue
      without, null = copy.deepcopy(report), copy.deepcopy(report)
      place = _place(without, path)
      if path[-1] not in registry.options() or place[path[-1]] is not None:
        # Without an option that is null the same is said as by an earlier release.
        del place[path[-1]]
        yield (*path, 'taken away'), without
      place = _place(null, path)
      if place[path[-1]] is not None:
        place[path[-1]] = None
        yield (*path, 'null'), null
      if isinstance(place, dict):
        added = copy.deepcopy(report)
        _place(added, path)['added'] = 1
        yield (*path, 'added'), added

  missed = _missed(tmp_path, report, changes())
  commands = [path for path in missed if path[-2:] == ('command', 'null')]
  assert [path for path in missed if path not in commands] == []


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
    'guarantee.gdp is in no report',
  }
  assert 'the report is not what its JSON schema says' in result.text


def test_other_software_is_a_note(tmp_path):
  report = statement.build(reports.Inputs(TREE, 1e-6))
  report['software']['numpy'] = '1.0'
  result = _verify(tmp_path, report)
  assert result.ok
  (note,) = [each for each in result.notes if 'numpy' in each]
  assert note.startswith('the report was made with numpy 1.0, verified with numpy 1.')
  assert f'note: {note}' in result.text


def _software_notes(result):
  others = ('another method', 'states no command')
  return [note for note in result.notes if not any(other in note for other in others)]


def test_another_commit_is_a_note(tmp_path, monkeypatch):
  monkeypatch.setattr(version, 'current', lambda: version.Version('0.1.0', A, False))
  report = statement.build(reports.Inputs(TREE, 1e-6))
  assert _software_notes(_verify(tmp_path, report)) == []
  monkeypatch.setattr(version, 'current', lambda: version.Version('0.1.0', B, False))
  result = _verify(tmp_path, report)
  assert result.ok
  assert _software_notes(result) == [
    f'the report was made with tff_dp_aggregators 0.1.0 (commit {A}), '
    f'verified with tff_dp_aggregators 0.1.0 (commit {B})'
  ]
  monkeypatch.setattr(version, 'current', lambda: version.Version('0.1.0'))
  result = _verify(tmp_path, report)
  assert result.ok
  assert _software_notes(result) == [
    f'the report was made with tff_dp_aggregators 0.1.0 (commit {A}), '
    'verified with tff_dp_aggregators 0.1.0'
  ]


def test_changed_files_are_a_note_wherever_it_is_verified(tmp_path, monkeypatch):
  monkeypatch.setattr(version, 'current', lambda: version.Version('0.1.0', A, True))
  result = _verify(tmp_path, statement.build(reports.Inputs(TREE, 1e-6)))
  assert result.ok
  assert _software_notes(result) == [
    'files of the package had been changed when the report was made'
  ]


@pytest.mark.parametrize(
  'software, expected',
  [
    (None, 'software is None, which is no object'),
    (['numpy'], "software is ['numpy'], which is no object"),
    ({'numpy': None, 'perl': [5]}, 'software.perl is [5], which is no string'),
  ],
)
def test_software_that_no_report_says_is_a_difference(tmp_path, software, expected):
  report = statement.build(reports.Inputs(TREE, 1e-6))
  report['software'] = software
  assert expected in _verify(tmp_path, report).differences


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
    verification.verify(str(path), report_program.statement_of)


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
    verification.verify(str(path), report_program.statement_of)


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
  assert "inputs.accountant is 'gdp', not one of ['exact'" in difference


# Commands.


def _by_command(folder, *flags):
  report = statement.build(
    reports.Inputs(TREE, 1e-6, command=sources.command_of(list(flags))),
    with_curves=False,
  )
  return _verify(folder, report)


def test_a_command_that_leads_to_the_report_is_right(tmp_path):
  assert _by_command(tmp_path, *OF_TREE).ok
  same = (*OF_TREE[:2], '--rounds_between=3', *OF_TREE[3:])
  assert _by_command(tmp_path, *same).ok


@pytest.mark.parametrize(
  'change, message',
  [
    (('--min_separation=5',), 'else: participation.min_separation is 4, computed 5'),
    (('--min_separation=3',), 'leads to something else: guarantee.epsilon is '),
    (('--noise_multiplier=6',), 'leads to something else: guarantee.epsilon is '),
    (('--noise_multiplier=5.00001',), 'mechanism.noise_multiplier is 5.0, computed'),
    (('--num_rounds=13',), 'leads to something else: mechanism.num_rounds is 12'),
    (('--target_delta=1e-7',), 'leads to something else: guarantee.delta is 1e-06'),
    (('--accountant=rdp',), 'leads to something else: guarantee.accountant is'),
    (('--adjacency=replace_one',), 'leads to something else: definition.adjacency'),
    (('--mechanism=gaussian',), 'something else: mechanism.name is'),
    (('--target_epsilon=9',), 'leads to something else: target is None, computed'),
    (('--mechanism=oak',), 'does not work: ValueError: flag --mechanism=oak'),
    (('--num_rounds=many',), 'does not work: ValueError: flag --num_rounds=many'),
    (('--min_separation=0',), 'does not work: ValueError: min_separation'),
    (('--num_bands=3',), 'does not work: ValueError: '),
    (('--ledger=/nowhere',), 'does not work: FileNotFoundError'),
    (
      ('--target_epsilon=0.1',),
      'does not work: CheckFailed: noise multiplier 5 spends',
    ),
    (('more',), "does not work: ValueError: 'more' does not decide"),
    (('--format=html',), "ValueError: '--format=html' does not decide"),
    (('--output=o',), "ValueError: '--output=o' does not decide on the numbers"),
    (('--verify=o',), "ValueError: '--verify=o' does not decide on the numbers"),
    (('--flagfile=/etc/passwd',), "ValueError: '--flagfile=/etc/passwd' does not"),
    (('-flagfile=/etc/passwd',), "ValueError: '-flagfile=/etc/passwd' does not"),
    (('--help',), "ValueError: '--help' does not decide on the numbers"),
    (('--num_ro=12',), "ValueError: '--num_ro=12' does not decide on the numbers"),
  ],
)
def test_a_command_that_does_not_lead_to_the_report_is_found(
  tmp_path, monkeypatch, change, message
):
  monkeypatch.chdir(tmp_path)
  name = change[0].split('=')[0]
  kept = [flag for flag in OF_TREE if flag.split('=')[0] != name]
  result = _by_command(tmp_path, *kept, *change)
  found = [each for each in result.differences if message in each]
  assert found and all(
    each.startswith('verification.command ') for each in result.differences
  ), result.differences
  assert [path.name for path in tmp_path.iterdir()] == ['report.json']


@pytest.mark.parametrize(
  'command',
  [
    'a command',
    '',
    'python -m tff_dp_aggregators.accounting.plan --num_rounds=3',
    "python -m tff_dp_aggregators.accounting.report 'open",
    'python -m tff_dp_aggregators.accounting.reports',
    'rm -rf /; python -m tff_dp_aggregators.accounting.report',
  ],
)
def test_what_is_no_command_of_the_report_program_is_found(tmp_path, command):
  report = statement.build(
    reports.Inputs(TREE, 1e-6, command=command), with_curves=False
  )
  (difference,) = _verify(tmp_path, report).differences
  assert 'does not work: WrongCommand' in difference


def test_a_flag_that_stands_twice_in_a_command_is_found(tmp_path):
  (difference,) = _by_command(tmp_path, '--num_rounds=9', *OF_TREE).differences
  assert '--num_rounds is given twice' in difference


def test_whether_a_command_was_tried_is_noted(tmp_path):
  path = tmp_path / 'report.json'
  report = statement.build(reports.Inputs(TREE, 1e-6), with_curves=False)
  path.write_text(json.dumps(report))
  result = verification.verify(str(path), report_program.statement_of)
  assert result.ok and 'states no command' in result.text
  report['verification']['command'] = sources.command_of(list(OF_TREE))
  path.write_text(json.dumps(report))
  result = verification.verify(str(path))
  assert result.ok and 'was not tried' in result.text
  result = verification.verify(str(path), report_program.statement_of)
  assert result.ok and 'command' not in result.text


def test_texts_that_the_command_does_not_have_may_come_from_elsewhere(tmp_path):
  report = statement.build(
    reports.Inputs(
      TREE,
      1e-6,
      enforced_by='a timer',
      noise_source='a die',
      command=sources.command_of(list(OF_TREE)),
    )
  )
  assert _verify(tmp_path, report).ok


def test_commands_work_where_files_moved_beside_the_report(tmp_path):
  (tmp_path / 'old').mkdir()
  found = dict(zip(KINDS, _statements(tmp_path / 'old')))
  (tmp_path / 'old').rename(tmp_path / 'new')
  for kind in ('ledger_by_flags', 'round_log'):
    assert _verify(tmp_path / 'new', found[kind]).ok, kind
  assert _verify(tmp_path / 'new' / 'one', found['run_dir']).ok
  forged = copy.deepcopy(found['run_dir'])
  forged['verification']['command'] = forged['verification']['command'].replace(
    'rdp', 'zcdp'
  )
  assert not _verify(tmp_path / 'new' / 'one', forged).ok


def test_a_strategy_that_another_machine_finds_is_compared_by_its_figures(tmp_path):
  flags = ('--mechanism=toeplitz', '--num_rounds=12', '--min_separation=4')
  flags += ('--noise_multiplier=2', '--target_delta=1e-6')
  report = _by_flags(tmp_path, *flags)
  strategy = accounting.Mechanism('toeplitz', LIMITS, 2.0).strategy
  for change, is_right in ((1e-9, True), (1e-3, False)):
    coefficients = [strategy.coefficients[0], *strategy.coefficients[1:]]
    coefficients[1] *= 1 + change
    almost = strategies.BandedToeplitz(12, tuple(coefficients))
    other = statement.build(
      reports.Inputs(
        accounting.Mechanism('toeplitz', LIMITS, 2.0, strategy=almost),
        1e-6,
        command=report['verification']['command'],
      )
    )
    result = _verify(tmp_path, other)
    assert result.ok == is_right, result.differences
    assert 'not the same to the last bit' in result.text


# The head of a ledger.


def test_a_ledger_whose_end_was_removed_has_another_head(tmp_path):
  report = _with_ledger(tmp_path)
  assert report['run']['ledger_head']['lines'] == 7
  path = tmp_path / 'ledger.jsonl'
  lines = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b''.join(lines[:-1]))
  differences = _verify(tmp_path, report).differences
  assert 'run.ledger_head.lines is 7, computed 6' in differences
  assert any(each.startswith('run.ledger_head.sha256 is') for each in differences)
