"""Writes files so that a crash never leaves half a file, or loses an existing one."""

import os
import tempfile
from typing import Union

# Prefix of temporary files that are still being written.
HALF_WRITTEN = '.writing-'


def write_new(
  path: str, content: Union[str, bytes], *, is_private: bool = False
) -> None:
  """Writes a new file atomically; raises FileExistsError if `path` exists."""
  temporary = _write_beside(path, content, is_private)
  try:
    os.link(temporary, path)  # Unlike a rename, this fails if path exists.
  except FileExistsError as e:
    raise FileExistsError(
      f'{path} exists and is not overwritten; name another file or remove it.'
    ) from e
  finally:
    os.unlink(temporary)


def replace(path: str, content: Union[str, bytes], *, is_private: bool = False) -> None:
  """Writes a file atomically, replacing an existing one; returns once it is on disk."""
  temporary = _write_beside(path, content, is_private)
  try:
    os.replace(temporary, path)
  except BaseException:
    os.unlink(temporary)
    raise
  sync(os.path.dirname(os.path.abspath(path)))


def remove_half_written(folder: str) -> None:
  """Removes temporary files that killed processes left in a folder."""
  for name in os.listdir(folder):
    if name.startswith(HALF_WRITTEN):
      os.unlink(os.path.join(folder, name))


def sync(path: str) -> None:
  """Waits until a file's content, or a folder's entries, are on disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def sync_tree(path: str) -> None:
  """Waits until a folder, everything in it, and its own entry are on disk."""
  for folder, _, names in os.walk(path):
    for name in names:
      sync(os.path.join(folder, name))
    sync(folder)
  sync(os.path.dirname(os.path.abspath(path)))


def _write_beside(
  path: str, content: Union[str, bytes], is_private: bool = False
) -> str:
  """Writes a temporary file into the folder of `path` and returns its path."""
  folder = os.path.dirname(os.path.abspath(path))
  data = content.encode() if isinstance(content, str) else content
  descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=HALF_WRITTEN)
  try:
    with os.fdopen(descriptor, 'wb') as file:
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    if not is_private:  # mkstemp makes private files.
      umask = os.umask(0)
      os.umask(umask)
      os.chmod(temporary, 0o666 & ~umask)
  except BaseException:
    os.unlink(temporary)
    raise
  return temporary
