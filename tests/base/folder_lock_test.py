"""One process at a time works in a folder, also after one was killed."""

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile

import pytest

from tff_dp_aggregators.base import folder_lock

_HOLDS = """
import sys, time
from tff_dp_aggregators.base import folder_lock
lock = folder_lock.FolderLock(sys.argv[1])
print('held', flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def _held_by_another(path):
  process = subprocess.Popen(
    [sys.executable, '-c', _HOLDS, str(path)], stdout=subprocess.PIPE, text=True
  )
  try:
    assert process.stdout.readline() == 'held\n'
    yield process
  finally:
    process.kill()
    process.wait()
    process.stdout.close()


def test_who_holds_it_keeps_others_out_until_killed(tmp_path):
  with _held_by_another(tmp_path) as process:
    for _ in range(2):  # Who is refused holds nothing of it.
      with pytest.raises(BlockingIOError):
        folder_lock.FolderLock(str(tmp_path))
    process.kill()
    process.wait()
    folder_lock.FolderLock(str(tmp_path)).close()


def test_a_lock_of_the_file_alone_keeps_out(tmp_path):
  """As that of another machine is seen here, and as this one's is seen there."""
  path = tmp_path / folder_lock.FILE
  with open(path, 'w') as theirs:
    fcntl.flock(theirs, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError):
      folder_lock.FolderLock(str(tmp_path))
  with contextlib.closing(folder_lock.FolderLock(str(tmp_path))):
    with open(path, 'r+') as theirs, pytest.raises(BlockingIOError):
      fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_file_is_opened_for_writing_as_nfs_wants_it(tmp_path):
  modes = {}
  with contextlib.closing(folder_lock.FolderLock(str(tmp_path))):
    for each in os.listdir('/proc/self/fd'):
      with contextlib.suppress(OSError):  # That of the list itself is closed.
        opened = os.readlink(f'/proc/self/fd/{each}')
        modes[opened] = fcntl.fcntl(int(each), fcntl.F_GETFL) & os.O_ACCMODE
  assert modes[str(tmp_path / folder_lock.FILE)] == os.O_RDWR
  assert modes[str(tmp_path)] == os.O_RDONLY


def test_a_file_that_is_gone_lets_nobody_in_on_this_machine(tmp_path):
  with contextlib.closing(folder_lock.FolderLock(str(tmp_path))):
    (tmp_path / folder_lock.FILE).unlink()
    with pytest.raises(BlockingIOError):
      folder_lock.FolderLock(str(tmp_path))


def test_it_moves_with_the_folder(tmp_path):
  old, new = tmp_path / 'old', tmp_path / 'new'
  old.mkdir()
  with contextlib.closing(folder_lock.FolderLock(str(old))) as lock:
    assert lock.is_of(str(old))
    old.rename(new)
    assert lock.is_of(str(new)) and not lock.is_of(str(old))
    old.mkdir()
    assert not lock.is_of(str(old))
    folder_lock.FolderLock(str(old)).close()
    with pytest.raises(BlockingIOError):
      folder_lock.FolderLock(str(new))


_TAKES = """
import os, sys
from tff_dp_aggregators.base import folder_lock
os.setgid(65534)
os.setuid(65534)
folder_lock.FolderLock(sys.argv[1])
"""


@pytest.mark.skipif(os.getuid() != 0, reason='root alone becomes another user')
def test_a_folder_in_which_nothing_can_be_written_is_taken(tmp_path):
  # Another user reaches it by what is open: folders above are for this user alone.
  folder = tmp_path / 'folder'
  folder.mkdir(mode=0o755)
  descriptor = os.open(folder, os.O_RDONLY)
  path = f'/proc/self/fd/{descriptor}'

  def take():
    return subprocess.run(
      [sys.executable, '-c', _TAKES, path],
      pass_fds=[descriptor],
      capture_output=True,
      text=True,
    )

  try:
    result = take()
    assert result.returncode == 0, result.stderr
    assert os.listdir(folder) == []
    # One in which this user may write, and not to the lock of somebody else.
    folder_lock.FolderLock(str(folder)).close()
    os.chmod(folder / folder_lock.FILE, 0o600)
    folder.chmod(0o777)
    result = take()
    assert result.returncode == 1
    assert 'PermissionError' in result.stderr and folder_lock.FILE in result.stderr
  finally:
    os.close(descriptor)


def test_temporary_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  in_use, lock = folder_lock.temporary('mine-')
  (tmp_path / 'mine-left').mkdir(0o700)
  (tmp_path / 'mine-left' / 'content').write_text('')
  (tmp_path / 'mine-link').symlink_to(tmp_path / 'theirs')
  (tmp_path / 'theirs').mkdir()
  path, other = folder_lock.temporary('mine-')
  left = {each.name for each in tmp_path.iterdir()}
  assert left == {
    os.path.basename(in_use),
    os.path.basename(path),
    'mine-link',
    'theirs',
  }
  assert os.stat(path).st_mode & 0o777 == 0o700
  other.close()
  lock.close()
