"""Tests that verification detects every alteration of a report."""

import collections
import copy
from typing import NamedTuple

import pytest

from tests.accounting.reports import statements
from tff_dp_aggregators.accounting import mechanism
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.reports import verification


def _slow_but(kinds, quick):
  slow = [pytest.mark.slow]
  return [pytest.param(k, marks=[] if k in quick else slow) for k in kinds]


def _altered(value):
  if isinstance(value, bool):
    return not value
  if isinstance(value, int):
    return value + 1
  if isinstance(value, float):
    return value * (1 + 1e-6) or 1e-6
  return 'altered' if value is None else value + ' '


# Texts that people wrote, which nothing else in a report could contradict.
FREE_TEXTS = {
  ('participation', 'enforced_by'),
  ('participation', 'cap_enforced_by'),
  ('mechanism', 'noise_source'),
}


def _shorten(report):
  """Returns a report with the first points of its curves, as all are treated alike."""
  if not isinstance(report, dict) or not report.get('curves'):
    return report
  curves = {
    name: points[:1] if isinstance(points, list) else points
    for name, points in report['curves'].items()
  }
  return dict(report, curves=curves, parts=[_shorten(part) for part in report['parts']])


def _container(report, path):
  """Returns the object or list with the last key of a path."""
  for key in path[:-1]:
    report = report[key]
  return report


def _paths(value, path=()):
  """Yields the paths of all objects, lists and values inside a value."""
  if isinstance(value, dict):
    for key, inner in value.items():
      yield (*path, key)
      yield from _paths(inner, (*path, key))
  elif isinstance(value, list):
    for index, inner in enumerate(value):
      yield (*path, index)
      yield from _paths(inner, (*path, index))


def _is_free_text(report, path):
  """Returns whether people wrote a text that is in neither file nor command."""
  while path[0] == 'parts':
    report, path = report['parts'][path[1]], path[2:]
    if not path:
      return False
  roles = {file['role'] for file in (report['verification'] or {}).get('files', ())}
  by_log = 'round_log' in roles and path[0] == 'participation'
  return path in FREE_TEXTS and 'config' not in roles and not by_log


# Verification reads these: a change may change what other fields are compared with.
READ = ('verification', 'participation', 'simulation', 'noise_source', 'code_version')


class Change(NamedTuple):
  """A change of a report: its kind, the changed path, and its name in messages."""

  kind: str
  path: tuple
  named: str

  def make(self, report):
    container, key = _container(report, self.path), self.path[-1]
    if self.kind == 'altered':
      container[key] = _altered(container[key])
    elif self.kind == 'null':
      container[key] = None
    elif self.kind == 'taken away':
      del container[key]
    else:
      container['added'] = 1


def _change(kind, path):
  named = path if kind != 'added' else (*path[:-1], 'added')
  words = ''.join(f'[{e}]' if isinstance(e, int) else f'.{e}' for e in named)
  return Change(kind, path, words.lstrip('.'))


def _verify_changed(folder, report, changes):
  """Verifies the report with changes; returns `None` if it is refused."""
  changed = copy.deepcopy(report)
  for change in changes:
    change.make(changed)
  try:
    return statements.verify(folder, changed)
  except ValueError:
    assert any(change.path[0] in ('format', 'version') for change in changes)
    return None


def _undetected(folder, report, changes):
  """Returns the undetected changes; independent changes are made at once."""
  groups = collections.defaultdict(list)
  for change in changes:
    # Of paths of the same length, none leads through what another one changes.
    is_alone = change.kind == 'taken away' and isinstance(change.path[-1], int)
    alone = change.path if is_alone or change.path[0] in ('format', 'version') else ()
    is_read = bool(set(READ) & set(change.path))
    groups[change.kind, len(change.path), is_read, alone].append(change)
  return [
    each for group in groups.values() for each in _not_named(folder, report, group)
  ]


def _not_named(folder, report, changes):
  """Returns those changes of a group that are not named even if made alone."""
  result = _verify_changed(folder, report, changes)
  if len(changes) == 1:
    return changes if result is not None and result.ok else []
  is_read, names = bool(set(READ) & set(changes[0].path)), set()
  if result is not None and not is_read:
    names = {each.split(' ')[0] for each in result.differences}
  left = [change for change in changes if change.named not in names]
  parts = [left] if left else []
  if is_read and len(left) == len(changes):
    parts = [[change] for change in left]
  elif len(left) == len(changes):  # One may keep verification from naming the others.
    parts = [left[: len(left) // 2], left[len(left) // 2 :]]
  return [each for part in parts for each in _not_named(folder, report, part)]


@pytest.mark.parametrize('kind', _slow_but(statements.KINDS, ('tree', 'larger_cohort')))
def test_verify_detects_every_altered_value(tmp_path, kind):
  report = statements.of_kind(tmp_path, kind)

  changes = [
    _change('altered', path)
    for path in _paths(_shorten(report))
    if 'software' not in path
    and not isinstance(_container(report, path)[path[-1]], (dict, list))
  ]
  missed = _undetected(tmp_path, report, changes)
  assert [each.path for each in missed if not _is_free_text(report, each.path)] == []


@pytest.mark.parametrize(
  'kind',
  _slow_but(
    ('blt', 'curves', 'ledger', 'flags', 'run_dirs', 'larger_cohort', 'local', 'nbafl')
    + ('run_without_privacy', 'joint_ledger'),
    ('larger_cohort', 'run_without_privacy'),
  ),
)
def test_verify_detects_removed_null_and_added_fields(tmp_path, kind):
  report = statements.of_kind(tmp_path, kind)

  def changes():
    optional = {
      *mechanism.options(),
      'server_noise_multiplier',
      'nbafl',
      'warnings',
      'other_releases',
    }
    for path in _paths(_shorten(report)):
      if 'software' in path[:-1]:
        continue
      container = _container(report, path)
      if path[-1] not in optional or container[path[-1]]:
        # Without null fields, it is a report of an earlier release.
        yield _change('taken away', path)
      if container[path[-1]] is not None:
        yield _change('null', path)
    objects = {path[:-1]: path for path in _paths(_shorten(report))}
    for path in objects.values():
      if 'software' not in path[:-1] and isinstance(_container(report, path), dict):
        yield _change('added', path)

  undetected = _undetected(tmp_path, report, changes())
  commands = [
    each for each in undetected if each.kind == 'null' and each.path[-1] == 'command'
  ]
  assert [each for each in undetected if each not in commands] == []


def test_altered_epsilon_is_listed_with_both_values(tmp_path):
  report = statements.build()
  epsilon = report['guarantee']['epsilon']
  report['guarantee']['epsilon'] = 1.0
  result = statements.verify(tmp_path, report)
  assert result.differences[0] == f'guarantee.epsilon is 1.0, computed {epsilon!r}'
  assert 'NOT verified: 1 difference(s).' in result.text


@pytest.mark.parametrize(
  'name, value',
  [('software', None), ('software', {'perl': [5]}), ('parts', None), ('parts', 0)],
)
def test_invalid_software_and_parts_are_differences(tmp_path, name, value):
  report = statements.build()
  report[name] = value
  (difference,) = statements.verify(tmp_path, report).differences
  assert difference.startswith('it cannot be computed again')


@pytest.mark.parametrize(
  'content, message',
  [
    ('{', 'is not a JSON report'),
    ('# Privacy report', 'Give the JSON: report.json of a run, which is beside its'),
    ('[]', 'is not a privacy report'),
    ('[' * 200_000, 'is not a JSON report .it is nested too deeply.'),
    ('{"guarantee": {"epsilon": 0.01}, "guarantee": {}}', 'a name is repeated'),
    ('{"format": "tff_dp_aggregators.privacy_report", "version": 1}', 'but in 1'),
  ],
)
def test_verify_refuses_files_that_are_no_report(tmp_path, content, message):
  path = tmp_path / 'report.json'
  path.write_text(content)
  with pytest.raises(ValueError, match=message):
    verification.verify(str(path), report_program.statement_of)
