"""Directories for what is as secret as the noise, here and inside a computation.

A directory belongs to the user that runs the process, who alone may enter it, and to
one process at a time, which holds a lock in it. It is opened once, and everything else
goes through that handle: from Python by `dir_fd`, and from a computation, which a child
process may run, by /proc/<process>/fd/<handle>. So whatever becomes of the path, of a
link in it, or of the name itself, files are written to the directory that was checked,
or not at all.

Files have mode 600, whoever creates them: TensorFlow cannot choose a mode, but the
directory's default access control list does.

Mode and owner are checked each time the directory is asked for, and each time that a
computation opens it. A computation cannot ask for a mode; but the kernel can watch for
changes of it since the check, and /proc tells whether the watch is still there.

What a killed process leaves behind can be told by its lock, which ends with it.
"""

import atexit
import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import logging
import os
import re
import shutil
import stat
import struct
import tempfile
import time
from typing import Optional

_logger = logging.getLogger(__name__)

# The file with the lock, whose time of change is when its last process opened it.
OWNER = 'owner'
# Of all other files: what it is of, the run, the slot and the position.
_FILE = re.compile(r'([0-9a-f]{16}\.[^/]+)\.\d+\.\d+')
_SHARED_MEMORY = '/dev/shm'
_TEMPORARY = 'tff_dp_aggregators-noise-'
# Before it has a lock, a temporary directory has another name.
_MAKING = '.' + _TEMPORARY
_MAKING_SECONDS = 3600  # It takes far less.
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Linux: version 2; the owner may read and write, the group and others nothing.
_FOR_ITS_OWNER = struct.pack('<I', 2) + b''.join(
  struct.pack('<HHI', tag, permissions, 0xFFFFFFFF)
  for tag, permissions in ((0x01, 6), (0x04, 0), (0x20, 0))
)
_IN_ATTRIB, _IN_ONESHOT = 0x4, 0x80000000


@dataclasses.dataclass(frozen=True)
class Watch:
  """Where a computation sees that mode and owner are what they were.

  Attributes:
    path: A file of /proc.
    line: What stands in it as long as they are.
  """

  path: str
  line: str


@dataclasses.dataclass(frozen=True)
class Directory:
  """A directory that this process has opened, checked and locked.

  Attributes:
    name: Its path when it was opened, for messages.
    path: What leads to it, and to no other, from processes of this machine.
    watch: `None` if the kernel does not watch here.
  """

  name: str
  path: str
  watch: Optional[Watch]


@dataclasses.dataclass(frozen=True)
class _Handle:
  """What is held as long as the process lasts: directory and lock."""

  name: str
  directory: int
  lock: int
  watcher: int


# By process, which is another one after a fork, device and inode.
_handles: dict[tuple[int, int, int], _Handle] = {}
# Of a process, and for how many directories each is.
_watchers: dict[int, dict[int, int]] = {}
# A computation reads no more than a page of what there is about a watcher.
_WATCHES = 8
_swept: set[int] = set()  # Processes that have looked for what others left.
# By process and parent; one for all noise, as each keeps two files open.
_temporary: dict[tuple[int, str], _Handle] = {}
_LOCK_SECONDS = 10  # Others hold a directory while they open it.


def open_named(path: str) -> Directory:
  """Opens a directory that outlives the process; makes it if it is not there.

  Of the files that are there, those of runs are removed that the last process which
  served rounds here did not serve: they were given up.

  Args:
    path: An absolute path, whose last part is no symbolic link.

  Raises:
    OSError: If it cannot be made or opened.
    PermissionError: If it belongs to another user, or others may enter it.
    RuntimeError: If another process uses it.
  """
  remove_left_behind()
  path = os.path.normpath(path)
  os.makedirs(path, mode=0o700, exist_ok=True)
  try:
    directory = os.open(path, _DIRECTORY_FLAGS)
  except OSError as e:
    if e.errno not in (errno.ELOOP, errno.ENOTDIR):
      raise
    raise NotADirectoryError(
      f'the noise directory {path} is a symbolic link, or no directory; give the path '
      'of a directory.'
    ) from e
  try:
    status = _check(directory, path)
    key = (os.getpid(), status.st_dev, status.st_ino)
    if key in _handles:
      os.close(directory)
      return _checked(_handles[key])
    lock = _lock(directory, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.close(directory)
    raise
  _handles[key] = _Handle(path, directory, lock, _watcher())
  lists_access = _make_private(directory)
  _drop_what_is_not_ours(directory, lists_access)
  _drop_given_up_runs(directory, lock)
  return _checked(_handles[key])


def open_temporary(num_bytes: int) -> Directory:
  """A directory, in memory where there is room, that ends with the process.

  It is made for the first who asks, and the same for all others of the process.

  Args:
    num_bytes: How much is going to be kept there.

  Raises:
    OSError: If it cannot be made.
  """
  remove_left_behind()
  parent = tempfile.gettempdir()
  if os.path.isdir(_SHARED_MEMORY) and os.access(_SHARED_MEMORY, os.W_OK):
    # Half of the room is left to others, among them the next one who asks.
    if num_bytes <= shutil.disk_usage(_SHARED_MEMORY).free // 2:
      parent = _SHARED_MEMORY
  process = os.getpid()
  made = _temporary.get((process, parent))
  if made is not None and _leads_to(made.name, made.directory):
    return _checked(made)
  making = tempfile.mkdtemp(prefix=_MAKING, dir=parent)
  # Who finds a directory under its final name finds a lock, or one who has ended.
  path = os.path.join(parent, os.path.basename(making)[1:])
  directory = os.open(making, _DIRECTORY_FLAGS)
  handle = _Handle(path, directory, _lock(directory, making), _watcher())
  _make_private(directory)
  os.rename(making, path)
  status = os.fstat(directory)
  _handles[process, status.st_dev, status.st_ino] = handle
  _temporary[process, parent] = handle

  def remove() -> None:
    if os.getpid() == process:  # A fork is not the owner.
      _remove(path, directory)

  atexit.register(remove)
  return _checked(handle)


def write(path: str, content: bytes) -> None:
  """Writes a file of this user alone; one that is there is overwritten.

  Args:
    path: In a directory that was opened here.
    content: What is to be in it.

  Raises:
    OSError: If it cannot be written.
  """
  flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
  with os.fdopen(os.open(path, flags, 0o600), 'wb') as file:
    file.write(content)


def _leads_to(path: str, directory: int) -> bool:
  with contextlib.suppress(OSError):
    return os.path.samestat(os.stat(path), os.fstat(directory))
  return False


def remove_left_behind() -> None:
  """Removes temporary directories of this user whose processes have ended.

  Once in a process. One is left alone if somebody holds its lock, if it belongs to
  another user, or if there is anything in it that is not of here.
  """
  if os.getpid() in _swept:
    return
  _swept.add(os.getpid())
  for parent in {_SHARED_MEMORY, tempfile.gettempdir()}:
    try:
      names = os.listdir(parent)
    except OSError:
      continue
    for name in names:
      if name.startswith((_TEMPORARY, _MAKING)):
        _remove_if_left_behind(os.path.join(parent, name))


def _remove_if_left_behind(path: str) -> None:
  with contextlib.ExitStack() as stack:
    try:
      directory = os.open(path, _DIRECTORY_FLAGS)
    except OSError:  # Of another user, a link, or gone.
      return
    stack.callback(os.close, directory)
    status = os.fstat(directory)
    if status.st_uid != os.geteuid():
      return
    is_new = time.time() - status.st_mtime < _MAKING_SECONDS
    if is_new and os.path.basename(path).startswith(_MAKING):
      return
    if any(
      name != OWNER and not _FILE.fullmatch(name) for name in os.listdir(directory)
    ):
      return
    try:
      lock = os.open(OWNER, _FILE_FLAGS, dir_fd=directory)
    except FileNotFoundError:
      pass  # Whoever was removing it has ended before the end.
    except OSError:
      return
    else:
      stack.callback(os.close, lock)
      if not _is_ours(os.fstat(lock)):
        return
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except OSError:
        return
    _remove(path, directory)
    _logger.warning('removed %s, noise that a killed process had left behind.', path)


def _remove(path: str, directory: int) -> None:
  """Removes files and directory; the lock last, as the directory is dead without."""
  with contextlib.suppress(OSError):
    for name in sorted(os.listdir(directory), key=lambda each: each == OWNER):
      with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)
    os.rmdir(path)  # If it is empty, so that nothing else can be lost.


def _checked(handle: _Handle) -> Directory:
  """The directory, with a watch that began before the last look at mode and owner."""
  watch = _watch(handle.directory, handle.watcher)
  _check(handle.directory, handle.name)
  path = f'/proc/{os.getpid()}/fd/{handle.directory}'
  if not os.path.samestat(os.stat(path), os.fstat(handle.directory)):
    raise OSError(
      f'{path} does not lead to the noise directory {handle.name}: /proc is not that '
      "of this process. Keep the noise in the state (storage='state')."
    )
  return Directory(handle.name, path, watch)


def _check(directory: int, name: str) -> os.stat_result:
  status = os.fstat(directory)
  if status.st_uid != os.geteuid():
    raise PermissionError(
      f'the noise directory {name} belongs to user {status.st_uid}, and this process '
      f'to user {os.geteuid()}: what is in it removes the noise. Use one of your own.'
    )
  if stat.S_IMODE(status.st_mode) & 0o077:
    raise PermissionError(
      f'the noise directory {name} can be entered by others than its owner: what is in '
      'it removes the noise. Use one with mode 700.'
    )
  return status


def _lock(directory: int, name: str) -> int:
  _lock_directory(directory, name)
  try:
    lock = _open_owner(directory, name)
  finally:
    with contextlib.suppress(OSError):
      fcntl.flock(directory, fcntl.LOCK_UN)
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as e:
    os.close(lock)
    raise RuntimeError(
      f'the noise directory {name} is in use by another process. Give each process a '
      'directory of its own.'
    ) from e
  return lock


def _lock_directory(directory: int, name: str) -> None:
  """Waits for others who open it, where a directory can be locked."""
  end = time.monotonic() + _LOCK_SECONDS
  while True:
    try:
      fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      if time.monotonic() > end:
        raise RuntimeError(
          f'another program holds a lock of the noise directory {name} (flock) and did '
          f'not give it up for {_LOCK_SECONDS} seconds. Give each process a directory '
          'of its own, and lock something else.'
        ) from None
      time.sleep(0.05)
    except OSError:
      return
    else:
      return


def _open_owner(directory: int, name: str) -> int:
  """Opens the file with the lock; by one process at a time, as it may replace it."""
  for _ in range(2):
    try:
      lock = os.open(OWNER, _FILE_FLAGS | os.O_CREAT, 0o600, dir_fd=directory)
    except OSError as e:
      if e.errno != errno.ELOOP:
        raise
    else:
      if _is_ours(os.fstat(lock)):
        return lock
      os.close(lock)
    # A link, or of another user: from a time when others could enter.
    os.unlink(OWNER, dir_fd=directory)
  raise PermissionError(f'the noise directory {name} has a file {OWNER} of others.')


def _is_ours(status: os.stat_result) -> bool:
  """Whether it is a file of this user with no other name."""
  is_file = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
  return is_file and status.st_uid == os.geteuid()


def _make_private(directory: int) -> bool:
  """Whether files that are created from now on have mode 600, whoever creates them."""
  try:
    os.setxattr(directory, 'system.posix_acl_default', _FOR_ITS_OWNER)
  except OSError as e:
    _logger.warning(
      'files of noise may get another mode than 600, as their file system has no '
      'access control lists (%s); their directory has mode 700.',
      e,
    )
    return False
  return True


def _files(directory: int) -> dict[str, os.stat_result]:
  """The files with names of ours, and their status, not that of what they link to."""
  found = {}
  with os.scandir(directory) as entries:
    for entry in entries:
      if _FILE.fullmatch(entry.name):
        found[entry.name] = entry.stat(follow_symlinks=False)
  return found


def _drop_what_is_not_ours(directory: int, lists_access: bool) -> None:
  """Removes links, files of others, and those that others could have opened."""
  for name, status in _files(directory).items():
    is_open = stat.S_IMODE(status.st_mode) & 0o077
    if not _is_ours(status) or (is_open and lists_access):
      os.unlink(name, dir_fd=directory)
    elif is_open:
      # Left by a process that could not do better, in a directory that was closed.
      os.chmod(name, 0o600, dir_fd=directory)


def _drop_given_up_runs(directory: int, lock: int) -> None:
  opened = os.fstat(lock)
  last: dict[str, int] = {}  # When each run was last served.
  for name, status in _files(directory).items():
    run = name.rsplit('.', 2)[0]
    last[run] = max(last.get(run, 0), status.st_mtime_ns)
  has_served = any(served >= opened.st_mtime_ns for served in last.values())
  if opened.st_size and not has_served:
    return  # The last process did nothing; what was before it still counts.
  if opened.st_size:
    given_up = {run for run, served in last.items() if served < opened.st_mtime_ns}
    for name in _files(directory):
      if name.rsplit('.', 2)[0] in given_up:
        os.unlink(name, dir_fd=directory)
  os.ftruncate(lock, 0)
  os.pwrite(lock, f'{os.getpid()}\n'.encode(), 0)


def _watcher() -> int:
  """A file to watch with, or -1 if there are no more."""
  watchers = _watchers.setdefault(os.getpid(), {})
  for watcher, watches in watchers.items():
    if watches < _WATCHES:
      watchers[watcher] += 1
      return watcher
  watcher = _libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
  if watcher >= 0:
    watchers[watcher] = 1
  return watcher


def _watch(directory: int, watcher: int) -> Optional[Watch]:
  """Watches for the next change of mode or owner."""
  number = _libc().inotify_add_watch(
    watcher, f'/proc/self/fd/{directory}'.encode(), _IN_ATTRIB | _IN_ONESHOT
  )
  path = f'/proc/{os.getpid()}/fdinfo/{watcher}'
  if number >= 0:
    with open(path, encoding='ascii') as file:
      lines = re.findall(rf'inotify wd:{number:x} (ino:\w+ sdev:\w+) ', file.read())
    if lines:
      return Watch(path, lines[0])
  _logger.warning(
    'the kernel does not watch for changes of the mode of the noise directory (%s); it '
    'is checked when the noise is built, and not in each round.',
    os.strerror(ctypes.get_errno()),
  )
  return None


def _libc() -> ctypes.CDLL:
  return ctypes.CDLL(None, use_errno=True)
