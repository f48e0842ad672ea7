"""Tests of locks with which one process at a time works in a folder."""

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile

import pytest

from tff_dp_aggregators.base import folder_lock

_HOLDER = """
import sys, time
from tff_dp_aggregators.base import folder_lock
lock = folder_lock.FolderLock(sys.argv[1])
print('held', flush=True)
time.sleep(600)
"""


def test_lock_excludes_other_processes_until_holder_is_killed(tmp_path):
  command = [sys.executable, '-c', _HOLDER, str(tmp_path)]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    try:
      assert process.stdout.readline() == 'held\n'
      for _ in range(2):  # A refused attempt holds no part of the lock.
        with pytest.raises(BlockingIOError):
          folder_lock.FolderLock(str(tmp_path))
    finally:
      process.kill()
    process.wait()
    folder_lock.FolderLock(str(tmp_path)).close()


def test_lock_conflicts_with_flock_of_its_file(tmp_path):
  """Machines that share a folder see only each other's locks of files."""
  path = tmp_path / folder_lock.FILE
  with open(path, 'w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError):
      folder_lock.FolderLock(str(tmp_path))
  with contextlib.closing(folder_lock.FolderLock(str(tmp_path))):
    with open(path, 'r+') as file, pytest.raises(BlockingIOError):
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_lock_file_is_opened_for_writing_as_nfs_requires(tmp_path):
  modes = {}
  with contextlib.closing(folder_lock.FolderLock(str(tmp_path))):
    for descriptor in os.listdir('/proc/self/fd'):
      with contextlib.suppress(OSError):  # The descriptor of the listing is closed.
        path = os.readlink(f'/proc/self/fd/{descriptor}')
        modes[path] = fcntl.fcntl(int(descriptor), fcntl.F_GETFL) & os.O_ACCMODE
  assert modes[str(tmp_path / folder_lock.FILE)] == os.O_RDWR
  assert modes[str(tmp_path)] == os.O_RDONLY


def test_lock_holds_on_this_machine_if_its_file_is_deleted(tmp_path):
  with contextlib.closing(folder_lock.FolderLock(str(tmp_path))):
    (tmp_path / folder_lock.FILE).unlink()
    with pytest.raises(BlockingIOError):
      folder_lock.FolderLock(str(tmp_path))


def test_lock_moves_with_a_renamed_folder(tmp_path):
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


_LOCK_AS_NOBODY = """
import os, sys
from tff_dp_aggregators.base import folder_lock
os.setgid(65534)
os.setuid(65534)
folder_lock.FolderLock(sys.argv[1])
"""


@pytest.mark.skipif(os.getuid() != 0, reason='root alone becomes another user')
def test_folder_without_write_permission_can_be_locked(tmp_path):
  # The other user needs an open descriptor: the folders above are private.
  folder = tmp_path / 'folder'
  folder.mkdir(mode=0o755)
  descriptor = os.open(folder, os.O_RDONLY)
  path = f'/proc/self/fd/{descriptor}'

  def lock_as_nobody():
    return subprocess.run(
      [sys.executable, '-c', _LOCK_AS_NOBODY, path],
      pass_fds=[descriptor],
      capture_output=True,
      text=True,
    )

  try:
    result = lock_as_nobody()
    assert result.returncode == 0, result.stderr
    assert os.listdir(folder) == []
    # In this folder the user may write, but not to somebody else's lock file.
    folder_lock.FolderLock(str(folder)).close()
    os.chmod(folder / folder_lock.FILE, 0o600)
    folder.chmod(0o777)
    result = lock_as_nobody()
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
  path, other_lock = folder_lock.temporary('mine-')
  remaining = {each.name for each in tmp_path.iterdir()}
  assert remaining == {
    os.path.basename(in_use),
    os.path.basename(path),
    'mine-link',
    'theirs',
  }
  assert os.stat(path).st_mode & 0o777 == 0o700
  other_lock.close()
  lock.close()
