"""The locks, the metadata, the Makefile and make_venv.sh."""

import ast
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from unittest import mock

import pytest
import setuptools
from packaging import requirements
from packaging import specifiers
from packaging import utils

import tff_dp_aggregators

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Versions of Python for a plain installation, and those with TFF wheels.
PYTHONS = ('3.9', '3.10', '3.11', '3.12', '3.13', '3.14')
TFF_PYTHONS = PYTHONS[:3]
LOCKS = {'requirements.lock': TFF_PYTHONS, 'requirements/core.lock': PYTHONS}
each_lock = pytest.mark.parametrize('lock', LOCKS)
each_lock_and_python = pytest.mark.parametrize(
  'lock, python',
  [(lock, python) for lock, pythons in LOCKS.items() for python in pythons],
)
# Modules whose distributions have other names.
DISTRIBUTIONS = {'absl': 'absl-py', 'markupsafe': 'jinja2'}


def _metadata():
  """Returns the arguments setup.py passes to setuptools.setup."""
  with mock.patch.object(setuptools, 'setup') as setup:
    runpy.run_path(str(ROOT / 'setup.py'))
  return setup.call_args.kwargs


def _locked(lock):
  """Returns (requirement, number of hashes) for each entry of a lock."""
  entries = []
  text = (ROOT / lock).read_text(encoding='utf-8')
  for entry in re.split(r'\n(?=\S)', text.strip()):
    requirement, *rest = entry.replace('\\\n', ' ').split(' --hash=')
    for item in rest:
      assert re.fullmatch(r'sha256:[0-9a-f]{64}\s*', item), f'{requirement}: {item}'
    entries.append((requirements.Requirement(requirement.strip()), len(rest)))
  return entries


def _locked_for(lock, python):
  """Returns {name: version} of what a lock installs on Linux for one Python."""
  environment = {
    'python_version': python,
    'python_full_version': f'{python}.1',
    'sys_platform': 'linux',
    'platform_system': 'Linux',
    'platform_machine': 'x86_64',
    'platform_python_implementation': 'CPython',
    'implementation_name': 'cpython',
  }
  versions = {}
  for requirement, _ in _locked(lock):
    if requirement.marker is None or requirement.marker.evaluate(environment):
      name = utils.canonicalize_name(requirement.name)
      assert name not in versions, f'{name} is locked twice for Python {python}'
      versions[name] = str(requirement.specifier)[len('==') :]
  return versions


def _make_targets():
  makefile = (ROOT / 'Makefile').read_text(encoding='utf-8')
  return set(re.findall(r'^([a-z][a-z-]*):', makefile, re.MULTILINE))


class TestLock:
  @each_lock
  def test_pins_every_requirement_with_hashes(self, lock):
    for requirement, num_hashes in _locked(lock):
      pins = list(requirement.specifier)
      assert [pin.operator for pin in pins] == ['=='], requirement
      assert '*' not in pins[0].version, requirement
      assert num_hashes >= 1, requirement

  @each_lock
  def test_has_no_url_and_no_path(self, lock):
    text = (ROOT / lock).read_text(encoding='utf-8')
    assert '://' not in text
    assert not re.search(r'^-', text, re.MULTILINE), 'an installer option in the lock'
    assert ' @ ' not in text
    assert not [requirement for requirement, _ in _locked(lock) if requirement.url]

  @each_lock_and_python
  def test_satisfies_setup_py(self, lock, python):
    metadata = _metadata()
    wanted = list(metadata['install_requires'])
    if lock == 'requirements.lock':
      for extra in metadata['extras_require'].values():
        wanted += extra
    else:
      wanted += _lines('core.in')
    versions = _locked_for(lock, python)
    for item in map(requirements.Requirement, wanted):
      name = utils.canonicalize_name(item.name)
      assert name in versions, f'{name} is not locked for Python {python}: make lock'
      assert item.specifier.contains(versions[name]), f'{item}: make lock'

  @pytest.mark.parametrize('python', TFF_PYTHONS)
  @pytest.mark.parametrize('file', ['overrides.txt', 'constraints.txt'])
  def test_obeys_overrides_and_constraints(self, python, file):
    rules = _lines(file)
    assert rules
    versions = _locked_for('requirements.lock', python)
    for rule in map(requirements.Requirement, rules):
      assert rule.specifier.contains(versions[rule.name]), rule

  def test_core_lock_has_nothing_that_only_tensorflow_needs(self):
    extra = map(requirements.Requirement, _metadata()['extras_require']['tff'])
    others_need = {'psutil', 'typing-extensions'}
    with_tff = {utils.canonicalize_name(each.name) for each in extra} - others_need
    assert 'tensorflow-federated' in with_tff
    for python in PYTHONS:
      assert not with_tff & set(_locked_for('requirements/core.lock', python))


def _lines(file):
  """Returns the requirements of a file in requirements/."""
  lines = (ROOT / 'requirements' / file).read_text(encoding='utf-8').splitlines()
  return [line for line in lines if line and not line.startswith('#')]


class TestMetadata:
  def test_version_matches_package(self):
    assert _metadata()['version'] == tff_dp_aggregators.__version__

  def test_citation_matches_version(self):
    citation = (ROOT / 'CITATION.cff').read_text(encoding='utf-8')
    (version,) = re.findall(r'^version: (.*)$', citation, re.MULTILINE)
    assert version == tff_dp_aggregators.__version__

  def test_setup_py_needs_no_dependency(self):
    # -S leaves out site-packages, which have setuptools.
    code = (
      'import runpy, sys, types, unittest.mock\n'
      'sys.modules["setuptools"] = unittest.mock.MagicMock()\n'
      'runpy.run_path("setup.py")\n'
    )
    subprocess.run([sys.executable, '-S', '-c', code], cwd=ROOT, check=True)

  def test_packages_are_the_layers(self):
    packages = set(_metadata()['packages'])
    layers = (ROOT / 'tff_dp_aggregators').glob('*/__init__.py')
    assert {f'tff_dp_aggregators.{path.parent.name}' for path in layers} <= packages
    assert {name.split('.')[0] for name in packages} == {'tff_dp_aggregators'}

  def test_classifiers_match_tested_python_versions(self):
    metadata = _metadata()
    prefix = 'Programming Language :: Python :: 3.'
    named = [c for c in metadata['classifiers'] if c.startswith(prefix)]
    assert [name[len(prefix) - 2 :] for name in named] == list(PYTHONS)
    allowed = specifiers.SpecifierSet(metadata['python_requires'])
    assert '3.8.20' not in allowed
    assert all(f'{python}.1' in allowed for python in PYTHONS)

  @pytest.mark.skipif(sys.version_info < (3, 10), reason='lists no standard modules')
  def test_light_layers_import_exactly_install_requires(self):
    package = ROOT / 'tff_dp_aggregators'
    imported = set()
    for layer in ('base', 'strategies', 'sampling', 'accounting'):
      for path in (package / layer).rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
          if isinstance(node, ast.Import):
            imported |= {alias.name.partition('.')[0] for alias in node.names}
          elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition('.')[0])
    others = imported - {package.name, *sys.stdlib_module_names}
    brought = map(requirements.Requirement, _metadata()['install_requires'])
    assert {DISTRIBUTIONS.get(name, name.replace('_', '-')) for name in others} == {
      each.name for each in brought
    }

  @pytest.mark.slow
  def test_wheel_has_code_data_and_license(self, tmp_path):
    source = _copy_of_the_source(tmp_path / 'source')
    # A folder with only data is no package; the wheel must have its files as well.
    templates = source / 'tff_dp_aggregators' / 'accounting' / 'templates_of_a_test'
    templates.mkdir()
    (templates / 'probe.j2').write_text('{}', encoding='utf-8')
    published = source / 'experiments' / 'published'
    for name in ('probe.flags', 'probe.json'):
      (published / name).write_text('{}', encoding='utf-8')
    expected = {
      path.relative_to(source).as_posix()
      for suffix in ('py', 'typed', 'j2', 'json')
      for path in (source / 'tff_dp_aggregators').rglob(f'*.{suffix}')
    }
    expected |= {
      f'tff_dp_aggregators/{path.relative_to(source).as_posix()}'
      for pattern in ('*.py', '*.md', '*.json', 'published/*')
      for path in (source / 'experiments').rglob(pattern)
    }
    with zipfile.ZipFile(_wheel_of(source, tmp_path)) as archive:
      names = set(archive.namelist())
    code = {name for name in names if '.dist-info/' not in name}
    assert code == expected
    assert [name for name in names if name.endswith('/LICENSE')]

  @pytest.mark.slow
  def test_clone_named_like_package_does_not_shadow_it(self, tmp_path):
    clone = _copy_of_the_source(tmp_path / 'tff_dp_aggregators')
    build = "from setuptools import build_meta; build_meta.build_editable('..')"
    subprocess.run([sys.executable, '-c', build], cwd=clone, check=True)
    (wheel,) = tmp_path.glob('*.whl')
    with zipfile.ZipFile(wheel) as archive:
      archive.extractall(tmp_path / 'site-packages')
    use = (
      'import site; site.addsitedir("site-packages"); '
      'import tff_dp_aggregators; print(tff_dp_aggregators.__version__)'
    )
    # Runs beside the clone, without the packages of the tests' environment.
    result = subprocess.run(
      [sys.executable, '-S', '-c', use],
      cwd=tmp_path,
      env={'PATH': os.environ['PATH']},
      check=True,
      stdout=subprocess.PIPE,
      text=True,
    )
    assert result.stdout.strip() == tff_dp_aggregators.__version__


def _copy_of_the_source(folder):
  for name in ('tff_dp_aggregators', 'experiments'):
    shutil.copytree(
      ROOT / name,
      folder / name,
      symlinks=True,
      ignore=shutil.ignore_patterns('__pycache__', 'commit.json'),
    )
  for name in ('LICENSE', 'README.md', 'pyproject.toml', 'setup.py'):
    shutil.copy(ROOT / name, folder)
  return folder


def _wheel_of(source, folder):
  command = [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-index']
  command += ['--no-deps', '--no-build-isolation', '-w', str(folder), str(source)]
  subprocess.run(command, check=True)
  (wheel,) = folder.glob('tff_dp_aggregators-*.whl')
  return wheel


class TestMake:
  def test_help_lists_every_target(self):
    shown = subprocess.run(
      ['make', 'help'], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    listed = set(re.findall(r'^  ([a-z-]+) ', shown, re.MULTILINE))
    assert listed == _make_targets()
    assert {'venv', 'simulate', 'test', 'lint'} <= listed

  def test_documents_name_only_existing_targets(self):
    # Only commands count: `apt-get install make git` names no target.
    command = r'(?:^|[`;&|]) *(?:\$ )?make (?:[A-Z]+=\S+ )*([a-z][a-z-]*)'
    everywhere = set()
    for document in ROOT.glob('*.md'):
      text = document.read_text(encoding='utf-8')
      code = re.findall(r'^```.*?^```|^ {4}.*?$|`[^`\n]+`', text, re.M | re.S)
      named = {each for piece in code for each in re.findall(command, piece, re.M)}
      assert named <= _make_targets(), document
      everywhere |= named
    assert {'venv', 'simulate', 'test'} <= everywhere


def test_ci_names_only_existing_tests():
  text = (ROOT / '.ci' / 'run').read_text(encoding='utf-8')
  named = re.findall(r'\btests/[/\w]+\.py\b', text)
  assert len(named) > 5
  assert [name for name in named if not (ROOT / name).is_file()] == []


class TestSetUp:
  @pytest.fixture
  def make_venv(self, tmp_path):
    """Runs make_venv.sh in a scratch checkout that finds only the programs in bin/."""
    checkout = tmp_path / 'checkout'
    (checkout / 'tools' / 'python').mkdir(parents=True)
    shutil.copy(ROOT / 'tools/python/make_venv.sh', checkout / 'tools/python')
    programs = tmp_path / 'bin'
    programs.mkdir()
    for name in ('cat', 'dirname', 'rm'):
      (programs / name).symlink_to(shutil.which(name))

    def run(name, script, **environment):
      (programs / name).write_text(f'#!/bin/sh\n{script}\n', encoding='utf-8')
      (programs / name).chmod(0o755)
      return subprocess.run(
        ['/bin/sh', 'tools/python/make_venv.sh'],
        cwd=checkout,
        env={'PATH': str(programs), **environment},
        capture_output=True,
        text=True,
      )

    return run

  def test_python_that_does_not_run_is_skipped(self, make_venv, tmp_path):
    result = make_venv('python3.9', 'exit 127')
    assert result.returncode == 1
    assert 'no Python 3.9, 3.10 or 3.11 found' in result.stderr
    assert not (tmp_path / 'checkout' / '.venv').exists()

  @pytest.mark.parametrize('python', ['../bin/python3.11', '.venv/bin/python'])
  def test_remakes_venv_with_base_python_but_not_with_its_own(
    self, make_venv, tmp_path, python
  ):
    environment = tmp_path / 'checkout' / '.venv' / 'bin'
    environment.mkdir(parents=True)
    (environment / 'python').symlink_to(tmp_path / 'bin' / 'python3.11')
    result = make_venv('python3.11', 'exit 0', PYTHON=python)
    assert result.returncode != 0  # The checkout has nothing to install.
    itself = '.venv/bin/python is the environment to be made' in result.stderr
    assert itself == (python == '.venv/bin/python')
    assert ('Making .venv' in result.stdout) != itself


def test_conftest_kills_tff_workers_after_the_tests(tmp_path):
  shutil.copy(ROOT / 'conftest.py', tmp_path)
  # A stand-in of the worker's name waits for ever and holds standard output.
  worker = tmp_path / 'worker_binary'
  shutil.copy('/bin/sh', worker)
  os.mkfifo(tmp_path / 'fifo')
  (tmp_path / 'starts_a_worker_test.py').write_text(
    'import subprocess\n\n'
    'def test_start():\n'
    f'  subprocess.Popen([{str(worker)!r}, "-c", "read line <fifo"])\n',
    encoding='utf-8',
  )
  command = [sys.executable, '-m', 'pytest', '-s', '-c', os.devnull]
  command += [f'--rootdir={tmp_path}', 'starts_a_worker_test.py']
  # This returns at the end of standard output, so only when the worker is gone.
  result = subprocess.run(
    command, cwd=tmp_path, capture_output=True, text=True, timeout=60
  )
  assert result.returncode == 0, result.stdout
  assert '1 passed' in result.stdout.splitlines()[-1]
