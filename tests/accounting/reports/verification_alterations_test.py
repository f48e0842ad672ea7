"""Tests that verification detects every alteration of a report."""

import copy
import json
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


# What a report is computed again from; of other fields a change changes nothing else.
READ = {'format', 'version', 'verification', 'participation', 'simulation', 'stopped'}
READ |= {'noise_source', 'code_version', 'software', 'other_releases'}


class Change(NamedTuple):
  """A change of a report: its kind, and the changed path."""

  kind: str
  path: tuple

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


def _undetected(folder, report, changes):
  """Returns the undetected changes, each made alone."""
  again = json.loads(json.dumps(verification._build_again(report)))

  def is_detected(change):
    changed = copy.deepcopy(report)
    change.make(changed)
    if not READ & set(change.path):
      return any(verification._differences(changed, again))
    try:
      return not statements.verify(folder, changed).ok
    except ValueError:
      return change.path[0] in ('format', 'version')

  return [change for change in changes if not is_detected(change)]


@pytest.mark.parametrize('kind', _slow_but(statements.KINDS, ('tree', 'larger_cohort')))
def test_verify_detects_every_altered_value(tmp_path, kind):
  report = statements.of_kind(tmp_path, kind)

  changes = [
    Change('altered', path)
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
        yield Change('taken away', path)
      if container[path[-1]] is not None:
        yield Change('null', path)
    objects = {path[:-1]: path for path in _paths(_shorten(report))}
    for path in objects.values():
      if 'software' not in path[:-1] and isinstance(_container(report, path), dict):
        yield Change('added', path)

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
  differences = statements.verify(tmp_path, report).differences
  assert any(each.startswith(name) for each in differences)


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
  with pytest.raises(ValueError, match='is a folder; give the report.json in it'):
    verification.verify(str(tmp_path), report_program.statement_of)
