"""The workflows of the public host: commands, Python versions and permissions."""

import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / '.github' / 'workflows').glob('*.yml'))
PYTHON = '${{ matrix.python }}'

each_workflow = pytest.mark.parametrize('path', WORKFLOWS, ids=lambda p: p.name)


def _load(path):
  return yaml.safe_load(path.read_text(encoding='utf-8'))


def _steps(path):
  """Returns (job, step) for each step of a workflow."""
  return [(job, step) for job in _load(path)['jobs'].values() for step in job['steps']]


def _commands(path):
  return [step['run'].strip() for _, step in _steps(path) if 'run' in step]


def _make_targets():
  makefile = (ROOT / 'Makefile').read_text(encoding='utf-8')
  return set(re.findall(r'^([a-z][a-z-]*):', makefile, re.MULTILINE))


@each_workflow
def test_workflow_commands_are_make_targets(path):
  called = [
    re.fullmatch(r'make ([a-z-]+)(?: PYTHON=python\$\{\{ matrix\.python \}\})?', each)
    for each in _commands(path)
    if not each.startswith('echo ')  # These print a figure on the page of the run.
  ]
  assert called and all(called), _commands(path)
  assert {match.group(1) for match in called} <= _make_targets()


def test_workflows_together_run_every_check():
  called = {command for path in WORKFLOWS for command in _commands(path)}
  everything = {'make lint', 'make coverage', 'make docs'}
  for target in ('test', 'test-core', 'slow-test', 'package'):
    everything.add(f'make {target} PYTHON=python{PYTHON}')
  assert everything <= called


def test_workflow_python_versions_match_setup_py():
  setup = (ROOT / 'setup.py').read_text(encoding='utf-8')
  pythons = re.findall(r"'Programming Language :: Python :: (3\.\d+)'", setup)
  versions = {
    name: job['strategy']['matrix']['python']
    for path in WORKFLOWS
    for name, job in _load(path)['jobs'].items()
    if 'strategy' in job
  }
  assert versions.pop('test-core') == pythons
  assert versions and all(each == ['3.9', '3.10', '3.11'] for each in versions.values())


@each_workflow
def test_workflow_has_only_read_permission(path):
  workflow = _load(path)
  assert workflow['permissions'] == {'contents': 'read'}
  for job in workflow['jobs'].values():
    assert 'permissions' not in job
  for _, step in _steps(path):
    if step.get('uses', '').startswith('actions/checkout@'):
      assert step['with']['persist-credentials'] is False


@each_workflow
def test_workflow_actions_are_official_and_pinned(path):
  for _, step in _steps(path):
    if 'uses' in step:
      assert re.fullmatch(r'actions/[a-z-]+@(v\d+(\.\d+)*|[0-9a-f]{40})', step['uses'])
