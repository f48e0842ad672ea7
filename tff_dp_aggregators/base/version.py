"""Which code computes: the version, and the commit, so that reports can be traced.

A checkout is asked; in what is built from one, setup.py leaves a file with the commit.
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
# What setup.py of this project says, and that of a project with a copy of it does not.
_OWN_SETUP = re.compile(r"""\bname=(['"])tff-dp-aggregators\1""")
_COMMIT = re.compile(r'^# branch\.oid ([0-9a-f]{40}|[0-9a-f]{64})$', re.MULTILINE)
# What says how this user runs git, and not for which repository.
_KEPT = ('GIT_CONFIG', 'GIT_EXEC_PATH')
# Where the commit is in what was built, below the folder of the package.
_RECORD = pathlib.PurePath('base', 'commit.json')
# Far more than git takes, for file systems that are far away.
_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Version:
  """What identifies the code of this package, now or when it was built."""

  version: str  # Such as '0.1.0'.
  commit: Optional[str] = None  # Full hash of what is checked out, if git can tell.
  modified: Optional[bool] = (
    None  # Whether tracked files of the package differ from it.
  )

  def __str__(self) -> str:
    if self.commit is None:
      return self.version
    changes = ', with uncommitted changes' if self.modified else ''
    return f'{self.version} (commit {self.commit}{changes})'

  def to_json(self) -> dict[str, Any]:
    """Fields for a record of the software that made something."""
    fields: dict[str, Any] = {_NAME: self.version}
    if self.commit is not None:
      fields.update(commit=self.commit, modified=self.modified)
    return fields


@functools.cache
def current() -> Version:
  """That of the package that is imported; as it was at the first call."""
  commit, modified = commit_of(_PACKAGE)
  if commit is None:
    commit, modified = _recorded(_PACKAGE)
  return Version(tff_dp_aggregators.__version__, commit, modified)


@functools.cache
def checksum() -> str:
  """That of the package's modules: two changed checkouts of a commit have two."""
  digest = hashlib.sha256()
  for path in sorted(_PACKAGE.rglob('*.py')):
    if path.is_relative_to(_PACKAGE / 'experiments'):
      continue  # A link in a checkout.
    digest.update(str(path.relative_to(_PACKAGE)).encode() + b'\0')
    digest.update(hashlib.sha256(path.read_bytes()).digest())
  return digest.hexdigest()[:12]


@contextlib.contextmanager
def recorded(package: pathlib.Path) -> Iterator[None]:
  """Keeps the commit of a checkout's package in it, for what is built meanwhile.

  An unpacked sdist, which has it from the checkout, is not changed.
  """
  commit, modified = commit_of(package)
  if commit is None:
    yield
    return
  path = package / _RECORD
  text = json.dumps({'commit': commit, 'modified': modified}) + '\n'
  path.write_text(text, encoding='utf-8')
  try:
    yield
  finally:
    path.unlink(missing_ok=True)


def _recorded(package: pathlib.Path) -> tuple[Optional[str], Optional[bool]]:
  """What `recorded` left in an installed package; sources may have been changed."""
  if (package.parent / 'setup.py').exists():
    return None, None
  try:
    fields = json.loads((package / _RECORD).read_text(encoding='utf-8'))
    return fields['commit'], fields['modified']
  except (OSError, ValueError, LookupError, TypeError):
    return None, None


@functools.cache
def of_libraries() -> dict[str, str]:
  """Versions of the libraries that decide the last digits; loads none of them."""
  found = {}
  for name in ('tensorflow', 'tensorflow-federated'):
    try:
      found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      found[name] = 'none'
  return found


def in_words(software: Mapping[str, Any]) -> dict[str, str]:
  """The fields of a record of software as text; the commit is said with its version.

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
  # The commit and the changes, of the same moment.
  status = _git(
    top,
    *('status', '--porcelain=v2', '--branch', '--untracked-files=no', '--no-renames'),
    *('--ignore-submodules=all', '--', name),
  )
  if status is None:
    return None, None
  found = _COMMIT.search(status)
  if found is None:
    return None, None
  return found[1], any(not line.startswith('#') for line in status.splitlines())


def _is_own(setup: pathlib.Path) -> bool:
  try:
    return _OWN_SETUP.search(setup.read_text(encoding='utf-8')) is not None
  except (OSError, UnicodeDecodeError):
    return False


def _git(top: pathlib.Path, *arguments: str) -> Optional[str]:
  """The output of git for the checkout `top`, or `None` if it fails."""
  # Hooks of git set GIT_DIR and the like, perhaps for another repository.
  environment = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith('GIT_') or name.startswith(_KEPT)
  }
  environment['GIT_CEILING_DIRECTORIES'] = str(top.parent)
  # Nothing is written or started: no refreshed index, no monitor of the file system.
  command = ['git', '--no-optional-locks', '-c', 'core.fsmonitor=false', *arguments]
  try:
    result = subprocess.run(
      command,
      cwd=top,
      env=environment,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      timeout=_SECONDS,
      check=False,
    )
  except (OSError, subprocess.SubprocessError):
    return None
  if result.returncode != 0:
    return None
  return result.stdout.decode('utf-8', errors='replace')
