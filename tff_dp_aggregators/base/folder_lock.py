"""Folders in which one process at a time works, of one machine or of several.

The kernel takes a lock away from whoever ends, in whatever way. A lock of the folder
itself is seen on one machine only: to an NFS server, clients hand on the locks of
regular files that are open for writing (flock(2), "NFS details"), and no others. So a
file in the folder is locked as well. It stays there: whoever opened it while it was
being removed would hold the lock of a file that nobody else finds. Mounts that keep
locks to one machine (`nolock` or `local_lock=flock` of nfs(5)) do so here as well.
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
except ImportError:  # There is none on Windows, where files are read all the same.
  fcntl = None

FILE = '.lock'
_CANNOT = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def take(descriptor: int) -> None:
  """Locks an open file or folder for this process alone, and does not wait."""
  if fcntl is None:
    raise OSError(
      errno.ENOSYS,
      'this system has no fcntl, so nothing keeps two processes from writing the same '
      'file; write on Linux or macOS, and read anywhere',
    )
  fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def give_back(descriptor: int) -> None:
  """Unlocks what `take` locked; processes forked meanwhile would keep it."""
  if fcntl is not None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


class FolderLock:
  """Holds a folder, until closed."""

  def __init__(self, path: str):
    """Takes it, and does not wait for it."""
    self._folder: Optional[int] = os.open(
      path, os.O_RDONLY | getattr(os, 'O_DIRECTORY', 0)
    )
    self._file: Optional[int] = None
    try:
      take(self._folder)
      self._file = _opened(path)
      if self._file is not None:
        take(self._file)
    except BaseException as e:
      self.close()
      if isinstance(e, OSError) and e.errno in _CANNOT and fcntl is not None:
        raise OSError(
          e.errno,
          'the file system locks no files, and without that two processes could write '
          'there; have it (of NFSv3, rpc.statd on both sides), or take another folder',
          path,
        ) from e
      raise

  def is_of(self, path: str) -> bool:
    """Whether the folder that is held is the one at `path`."""
    assert self._folder is not None
    try:
      return os.path.samestat(os.fstat(self._folder), os.stat(path))
    except FileNotFoundError:
      return False

  def close(self) -> None:
    """Gives it back."""
    for descriptor in (self._file, self._folder):
      if descriptor is not None:
        os.close(descriptor)
    self._file = self._folder = None


def temporary(prefix: str) -> tuple[str, FolderLock]:
  """A new folder below TMPDIR, for this user alone, and held; its name has the prefix.

  Such folders of processes that were killed are removed.
  """
  parent = tempfile.gettempdir()
  for left in glob.glob(os.path.join(glob.escape(parent), glob.escape(prefix) + '*')):
    with contextlib.suppress(OSError):  # In use, or another user's.
      found = os.lstat(left)
      if (found.st_uid, found.st_mode) == (os.geteuid(), stat.S_IFDIR | 0o700):
        lock = FolderLock(left)
        shutil.rmtree(left, ignore_errors=True)
        lock.close()
  # Whoever finds a folder under its final name finds it held, or left.
  making = tempfile.mkdtemp(prefix='.', dir=parent)
  lock = FolderLock(making)
  path = os.path.join(parent, prefix + os.path.basename(making)[1:])
  os.rename(making, path)
  return path, lock


def _opened(path: str) -> Optional[int]:
  """A descriptor of the file; `None` where this process may write nothing."""
  try:
    return os.open(os.path.join(path, FILE), os.O_RDWR | os.O_CREAT, 0o666)
  except OSError as e:
    # Where no file can be made either, there is nothing to be kept from.
    if e.errno in (errno.EROFS, errno.EACCES) and not os.access(path, os.W_OK):
      return None
    raise
