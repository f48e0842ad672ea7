"""Tests of the version: commit, uncommitted changes, and checksum of the code."""

import pathlib
import shutil
import subprocess

import pytest

import tff_dp_aggregators
from tff_dp_aggregators.base import version

SETUP = "import setuptools\nsetuptools.setup(name='tff-dp-aggregators')\n"


def git(folder, *arguments):
  command = ['git', '-c', 'user.name=Somebody', '-c', 'user.email=somebody@localhost']
  result = subprocess.run(
    [*command, *arguments], cwd=folder, check=True, capture_output=True, text=True
  )
  return result.stdout.strip()


@pytest.fixture(autouse=True)
def isolated_git(monkeypatch, tmp_path):
  """Hides the settings of the user, and the repository if a git hook runs the tests."""
  for name in ('GIT_DIR', 'GIT_WORK_TREE', 'GIT_INDEX_FILE', 'GIT_PREFIX'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('GIT_CONFIG_GLOBAL', str(tmp_path / 'gitconfig'))
  monkeypatch.setenv('GIT_CONFIG_NOSYSTEM', '1')


def make_package(top, setup=SETUP):
  package = top / 'tff_dp_aggregators'
  package.mkdir(parents=True)
  (package / '__init__.py').write_text("__version__ = '0.1.0'\n")
  (package / 'code.py').write_text('x = 1\n')
  (top / 'README').write_text('Read.\n')
  if setup is not None:
    (top / 'setup.py').write_text(setup)
  return package


def commit_all(top):
  git(top, 'init', '-q')
  git(top, 'add', '.')
  git(top, 'commit', '-q', '-m', 'All')
  return git(top, 'rev-parse', 'HEAD')


@pytest.fixture
def package(tmp_path):
  return make_package(tmp_path / 'checkout')


def test_commit_of_is_the_checked_out_commit(package):
  first = commit_all(package.parent)
  (package / 'code.py').write_text('x = 2\n')
  git(package, 'commit', '-q', '-a', '-m', 'Two')
  assert version.commit_of(package) == (git(package, 'rev-parse', 'HEAD'), False)
  git(package, 'checkout', '-q', first)
  assert version.commit_of(package) == (first, False)


@pytest.mark.parametrize('staged', [False, True])
def test_changed_package_file_counts_as_modified(package, staged):
  commit = commit_all(package.parent)
  (package / 'code.py').write_text('x = 2\n')
  if staged:
    git(package, 'add', 'code.py')
  assert version.commit_of(package) == (commit, True)


def test_files_that_are_not_code_do_not_count_as_modified(package):
  commit = commit_all(package.parent)
  (package.parent / 'README').write_text('Read again.\n')
  (package / 'notes.txt').write_text('Not tracked.\n')
  (package / 'code.py').touch()  # A new modification time, but the same content.
  assert version.commit_of(package) == (commit, False)


@pytest.mark.parametrize(
  ('folder', 'setup'),
  [
    ('.venv/lib/python3.11/site-packages', None),  # A tracked environment.
    ('', None),  # A copy in another project.
    ('', "setup(name='their-product')\n"),
  ],
)
def test_package_in_another_repository_has_no_commit(tmp_path, folder, setup):
  package = make_package(tmp_path / folder, setup)
  if folder:
    (tmp_path / 'setup.py').write_text(SETUP)
  commit_all(tmp_path)
  assert version.commit_of(package) == (None, None)


def test_commit_is_unknown_without_git(package, monkeypatch, tmp_path):
  commit_all(package.parent)
  monkeypatch.setenv('PATH', str(tmp_path))
  assert version.commit_of(package) == (None, None)


@pytest.mark.parametrize(
  'modified, text',
  [
    (None, '0.1.0'),
    (False, '0.1.0 (commit aa)'),
    (True, '0.1.0 (commit aa, with uncommitted changes)'),
  ],
)
def test_in_words_states_commit_and_uncommitted_changes(modified, text):
  described = version.Version('0.1.0', None if modified is None else 'aa', modified)
  assert str(described) == text
  software = {**described.to_json(), 'numpy': '1.25.2'}
  words = {'tff_dp_aggregators': str(described), 'numpy': '1.25.2'}
  assert list(version.in_words(software).items()) == list(words.items())


def test_current_describes_the_imported_package():
  package = pathlib.Path(tff_dp_aggregators.__file__).resolve().parent
  current = version.current()
  assert current.version == tff_dp_aggregators.__version__
  assert (current.commit, current.modified) == version.commit_of(package)


def test_installed_package_starts_no_process(package, monkeypatch):
  monkeypatch.setattr(subprocess, 'run', None)
  assert version.commit_of(package) == (None, None)


def record(package):
  """Records the commit in a package; returns what a copy of it, as installed, tells."""
  target = package.parents[1] / 'site-packages' / 'tff_dp_aggregators'
  (package / 'base').mkdir(exist_ok=True)
  with version.recorded(package):
    shutil.copytree(package, target, dirs_exist_ok=True)
  return version._recorded(target)


def test_build_from_a_checkout_records_its_commit_and_leaves_no_file(package):
  commit = commit_all(package.parent)
  assert record(package) == (commit, False)
  (package / 'code.py').write_text('x = 2\n')
  assert record(package) == (commit, True)
  assert not list((package / 'base').iterdir())


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    ('{"commit": "a", "modified": false}', ('a', False)),
    *((broken, (None, None)) for broken in ('{', '[]', '{"commit": "a"}')),
  ],
)
def test_build_from_an_sdist_keeps_the_record_unless_it_is_broken(
  package, text, expected
):
  (package / 'base').mkdir()
  (package / 'base' / 'commit.json').write_text(text)
  assert record(package) == expected


def test_checksum_depends_on_names_and_contents_of_modules(tmp_path, monkeypatch):
  package = make_package(tmp_path)
  monkeypatch.setattr(version, '_PACKAGE', package)
  checksums = set()
  for content in ('x = 1\n', 'x = 2\n', 'y = 1\n'):
    (package / 'code.py').write_text(content)
    checksums.add(version.checksum.__wrapped__())
  (package / 'code.py').rename(package / 'other.py')
  checksums.add(version.checksum.__wrapped__())
  assert len(checksums) == 4
