"""Locks that let one process at a time use a folder, also across machines (NFS).

The kernel releases a lock when its process ends, however it ends. A lock on the folder
itself is visible on one machine only: NFS clients forward locks to the server only for
regular files that are open for writing (flock(2), "NFS details"). So a file in the
folder is locked as well. This file is never removed: a process that opened it during
its removal would hold the lock of a file that no other process can find. Mounts that
keep locks local (`nolock`, `local_lock=flock` of nfs(5)) do not exclude other machines.
"""

import contextlib
import errno
import glob
import os
import shutil
import stat
import tempfile
from typing import Any, Optional

fcntl: Any
try:
  import fcntl
except ImportError:  # Windows has no fcntl; reading files works without it.
  fcntl = None

FILE = '.lock'
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def take(descriptor: int) -> None:
  """Locks an open file or folder exclusively, or raises BlockingIOError at once."""
  if fcntl is None:
    raise OSError(
      errno.ENOSYS,
      'this system has no fcntl, so nothing keeps two processes from writing the same '
      'file; write on Linux or macOS, and read anywhere',
    )
  fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def give_back(descriptor: int) -> None:
  """Unlocks what `take` locked; closing it does not, if a process was forked."""
  if fcntl is not None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


class FolderLock:
  """An exclusive lock on a folder, held until `close`."""

  def __init__(self, path: str):
    """Locks the folder at `path`; raises BlockingIOError if another process has it."""
    self._folder = os.open(path, os.O_RDONLY | getattr(os, 'O_DIRECTORY', 0))
    self._opened = contextlib.ExitStack()
    self._opened.callback(os.close, self._folder)
    try:
      take(self._folder)
      file = _open_lock_file(path)
      if file is not None:
        self._opened.callback(os.close, file)
        take(file)
    except BaseException as e:
      self.close()
      if isinstance(e, OSError) and e.errno in _UNSUPPORTED and fcntl is not None:
        raise OSError(
          e.errno,
          'the file system does not lock files, so two processes could write there at '
          'once; enable locks (NFSv3: rpc.statd on both sides), or use another folder',
          path,
        ) from e
      raise

  def is_of(self, path: str) -> bool:
    """Whether the locked folder is still the one at `path`."""
    try:
      return os.path.samestat(os.fstat(self._folder), os.stat(path))
    except FileNotFoundError:
      return False

  def close(self) -> None:
    """Releases the lock."""
    self._opened.close()


def temporary(prefix: str) -> tuple[str, FolderLock]:
  """Creates a private folder below TMPDIR, and returns its path and its lock.

  Its name begins with `prefix`. Removes such folders of processes that were killed.
  """
  parent = tempfile.gettempdir()
  for old in glob.glob(os.path.join(glob.escape(parent), glob.escape(prefix) + '*')):
    with contextlib.suppress(OSError):  # It is in use, or belongs to another user.
      status = os.lstat(old)
      if (status.st_uid, status.st_mode) == (os.geteuid(), stat.S_IFDIR | 0o700):
        lock = FolderLock(old)
        shutil.rmtree(old, ignore_errors=True)
        lock.close()
  # Locked before it gets its final name: an unlocked folder of that name is old.
  unnamed = tempfile.mkdtemp(prefix='.', dir=parent)
  lock = FolderLock(unnamed)
  path = os.path.join(parent, prefix + os.path.basename(unnamed)[1:])
  os.rename(unnamed, path)
  return path, lock


def _open_lock_file(path: str) -> Optional[int]:
  """Opens the lock file; returns `None` if this process cannot write to the folder."""
  try:
    return os.open(os.path.join(path, FILE), os.O_RDWR | os.O_CREAT, 0o666)
  except OSError as e:
    # Where this process cannot create files, it does not need the lock.
    if e.errno in (errno.EROFS, errno.EACCES) and not os.access(path, os.W_OK):
      return None
    raise
