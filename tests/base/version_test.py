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
def own_git(monkeypatch, tmp_path):
  """Neither settings of whoever runs the tests, nor the repository of a hook."""
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


def test_the_commit_is_the_one_that_is_checked_out(package):
  first = commit_all(package.parent)
  (package / 'code.py').write_text('x = 2\n')
  git(package, 'commit', '-q', '-a', '-m', 'Two')
  assert version.commit_of(package) != (first, False)
  git(package, 'checkout', '-q', first)
  assert version.commit_of(package) == (first, False)


@pytest.mark.parametrize('staged', [False, True])
def test_a_changed_file_of_the_package_is_seen(package, staged):
  commit = commit_all(package.parent)
  (package / 'code.py').write_text('x = 2\n')
  if staged:
    git(package, 'add', 'code.py')
  assert version.commit_of(package) == (commit, True)


def test_files_that_do_not_compute_are_no_change(package):
  commit = commit_all(package.parent)
  (package.parent / 'README').write_text('Read again.\n')
  (package / 'notes.txt').write_text('Not tracked.\n')
  (package / 'code.py').touch()  # Another time, the same content.
  assert version.commit_of(package) == (commit, False)


class TestNoCommitOfItsOwn:
  def test_installed_in_an_environment_that_a_repository_tracks(self, tmp_path):
    (tmp_path / 'setup.py').write_text(SETUP)
    package = make_package(tmp_path / '.venv/lib/python3.11/site-packages', setup=None)
    commit_all(tmp_path)
    assert version.commit_of(package) == (None, None)

  @pytest.mark.parametrize('setup', [None, "setup(name='their-product')\n"])
  def test_copied_into_another_project(self, tmp_path, setup):
    package = make_package(tmp_path / 'theirs', setup)
    commit_all(tmp_path / 'theirs')
    assert version.commit_of(package) == (None, None)


def test_without_git_no_commit_is_known(package, monkeypatch, tmp_path):
  commit_all(package.parent)
  monkeypatch.setenv('PATH', str(tmp_path))
  assert version.commit_of(package) == (None, None)


@pytest.mark.parametrize(
  'modified, said', [(None, ''), (False, 'commit aa'), (True, 'uncommitted changes')]
)
def test_in_words_it_says_the_commit_and_whether_there_are_changes(modified, said):
  found = version.Version('0.1.0', None if modified is None else 'aa', modified)
  assert str(found).startswith('0.1.0') and said in str(found)
  software = {**found.to_json(), 'numpy': '1.25.2'}
  words = {'tff_dp_aggregators': str(found), 'numpy': '1.25.2'}
  assert list(version.in_words(software).items()) == list(words.items())


def test_current_is_of_the_package_that_is_imported():
  package = pathlib.Path(tff_dp_aggregators.__file__).resolve().parent
  found = version.current()
  assert found.version == tff_dp_aggregators.__version__
  assert (found.commit, found.modified) == version.commit_of(package)


def test_an_installed_package_starts_no_process(package, monkeypatch):
  monkeypatch.setattr(subprocess, 'run', None)
  assert version.commit_of(package) == (None, None)


class TestRecord:
  @pytest.fixture
  def record(self, package, tmp_path):
    """Records the commit in a package and returns a copy of it, as it is installed."""
    (package / 'base').mkdir()

    def build():
      target = tmp_path / 'site-packages' / 'tff_dp_aggregators'
      with version.recorded(package):
        shutil.copytree(package, target, dirs_exist_ok=True)
      return target

    return build

  def test_what_is_built_from_a_checkout_has_its_commit(self, package, record):
    commit = commit_all(package.parent)
    assert version._recorded(record()) == (commit, False)
    (package / 'code.py').write_text('x = 2\n')
    assert version._recorded(record()) == (commit, True)

  def test_nothing_is_left_in_the_sources(self, package, record):
    commit_all(package.parent)
    record()
    assert not list((package / 'base').iterdir())

  def test_what_is_built_from_an_sdist_has_that_of_the_checkout(self, package, record):
    (package / 'base' / 'commit.json').write_text('{"commit": "a", "modified": false}')
    assert version._recorded(record()) == ('a', False)

  @pytest.mark.parametrize('text', ['{', '[]', '{"commit": "a"}'])
  def test_a_broken_one_is_none(self, tmp_path, text):
    (tmp_path / 'package' / 'base').mkdir(parents=True)
    (tmp_path / 'package' / 'base' / 'commit.json').write_text(text)
    assert version._recorded(tmp_path / 'package') == (None, None)


def test_the_checksum_follows_every_module(tmp_path, monkeypatch):
  package = make_package(tmp_path)
  monkeypatch.setattr(version, '_PACKAGE', package)
  found = set()
  for content in ('x = 1\n', 'x = 2\n', 'y = 1\n'):
    (package / 'code.py').write_text(content)
    found.add(version.checksum.__wrapped__())
  (package / 'code.py').rename(package / 'other.py')
  found.add(version.checksum.__wrapped__())
  assert len(found) == 4
