"""The version and git commit of the code, so that reports can be traced to it.

In a checkout, git tells the commit; in a built package, a file that setup.py wrote.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, Optional

import tff_dp_aggregators

_NAME = tff_dp_aggregators.__name__
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
# A line of this project's setup.py; a project that has a copy of the package lacks it.
_OWN_SETUP = re.compile(r"""\bname=(['"])tff-dp-aggregators\1""")
_COMMIT = re.compile(r'^# branch\.oid ([0-9a-f]{40}|[0-9a-f]{64})$', re.MULTILINE)
# Variables that configure git for this user, and do not name a repository.
_KEPT_PREFIXES = ('GIT_CONFIG', 'GIT_EXEC_PATH')
# The file with the commit in a built package, relative to the package's folder.
_COMMIT_FILE = pathlib.PurePath('base', 'commit.json')
# Far more than git takes, to allow for slow network file systems.
_TIMEOUT_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Version:
  """Identifies the code of this package, as it is now or was when built."""

  version: str  # Such as '0.1.0'.
  commit: Optional[str] = None  # Full hash of the commit, if it is known.
  modified: Optional[bool] = None  # Whether tracked files differ from that commit.

  def __str__(self) -> str:
    if self.commit is None:
      return self.version
    changes = ', with uncommitted changes' if self.modified else ''
    return f'{self.version} (commit {self.commit}{changes})'

  def to_json(self) -> dict[str, Any]:
    """Returns fields for a record of the software that was used."""
    fields: dict[str, Any] = {_NAME: self.version}
    if self.commit is not None:
      fields.update(commit=self.commit, modified=self.modified)
    return fields


@functools.cache
def current() -> Version:
  """The version of the imported package, as it was at the first call."""
  commit, modified = commit_of(_PACKAGE)
  if commit is None:
    commit, modified = _recorded(_PACKAGE)
  return Version(tff_dp_aggregators.__version__, commit, modified)


@functools.cache
def checksum() -> str:
  """A checksum of the package's modules, which also tells modified checkouts apart."""
  digest = hashlib.sha256()
  for path in sorted(_PACKAGE.rglob('*.py')):
    if path.is_relative_to(_PACKAGE / 'experiments'):
      continue  # In a checkout, this is a link to experiments/.
    digest.update(str(path.relative_to(_PACKAGE)).encode() + b'\0')
    digest.update(hashlib.sha256(path.read_bytes()).digest())
  return digest.hexdigest()[:12]


@contextlib.contextmanager
def recorded(package: pathlib.Path) -> Iterator[None]:
  """Keeps a file with the commit in a checkout's package while setup.py builds it.

  An unpacked sdist already has the file, and is not changed.
  """
  commit, modified = commit_of(package)
  if commit is None:
    yield
    return
  path = package / _COMMIT_FILE
  text = json.dumps({'commit': commit, 'modified': modified}) + '\n'
  path.write_text(text, encoding='utf-8')
  try:
    yield
  finally:
    path.unlink(missing_ok=True)


def _recorded(package: pathlib.Path) -> tuple[Optional[str], Optional[bool]]:
  """Reads the commit file of an installed package; sources may have been changed."""
  if (package.parent / 'setup.py').exists():
    return None, None
  try:
    fields = json.loads((package / _COMMIT_FILE).read_text(encoding='utf-8'))
    return fields['commit'], fields['modified']
  except (OSError, ValueError, LookupError, TypeError):
    return None, None


@functools.cache
def of_libraries() -> dict[str, str]:
  """Versions of the libraries that affect the last digits; imports none of them."""
  versions = {}
  for name in ('tensorflow', 'tensorflow-federated'):
    try:
      versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      versions[name] = 'none'
  return versions


def in_words(software: Mapping[str, Any]) -> dict[str, str]:
  """The fields of a record of software as text; the version includes the commit.

  >>> in_words({'tff_dp_aggregators': '0.1.0', 'commit': 'c0ffee', 'modified': False})
  {'tff_dp_aggregators': '0.1.0 (commit c0ffee)'}
  """
  words = {name: str(value) for name, value in software.items()}
  if _NAME in words:
    commit = words.pop('commit', None)
    words.pop('modified', None)
    modified = software.get('modified') is True
    words[_NAME] = str(Version(words[_NAME], commit, modified))
  return words


def commit_of(package: pathlib.Path) -> tuple[Optional[str], Optional[bool]]:
  """The commit of a package's own checkout, and whether its tracked files differ.

  `(None, None)` if the folder above is not the top of a checkout of this project that
  has the package in it (as that of an environment within some repository is not), if
  nothing is committed yet, or if git is missing or refuses.
  """
  top, name = package.parent, package.name
  if (
    not (top / '.git').exists()
    or not _is_own(top / 'setup.py')
    or _git(top, 'ls-files', '--error-unmatch', '--', f'{name}/__init__.py') is None
  ):
    return None, None
  # One command, so that commit and changes are of the same moment.
  status = _git(
    top,
    *('status', '--porcelain=v2', '--branch', '--untracked-files=no', '--no-renames'),
    *('--ignore-submodules=all', '--', name),
  )
  if status is None:
    return None, None
  match = _COMMIT.search(status)
  if match is None:
    return None, None
  return match[1], any(not line.startswith('#') for line in status.splitlines())


def _is_own(setup: pathlib.Path) -> bool:
  try:
    return _OWN_SETUP.search(setup.read_text(encoding='utf-8')) is not None
  except (OSError, UnicodeDecodeError):
    return False


def _git(top: pathlib.Path, *arguments: str) -> Optional[str]:
  """The output of git for the checkout `top`, or `None` if it fails."""
  # Git hooks set GIT_DIR and similar variables, perhaps for another repository.
  environment = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith('GIT_') or name.startswith(_KEPT_PREFIXES)
  }
  environment['GIT_CEILING_DIRECTORIES'] = str(top.parent)
  # Keep git from refreshing the index and from starting a file system monitor.
  command = ['git', '--no-optional-locks', '-c', 'core.fsmonitor=false', *arguments]
  try:
    result = subprocess.run(
      command,
      cwd=top,
      env=environment,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      timeout=_TIMEOUT_SECONDS,
      check=False,
    )
  except (OSError, subprocess.SubprocessError):
    return None
  if result.returncode != 0:
    return None
  return result.stdout.decode('utf-8', errors='replace')
