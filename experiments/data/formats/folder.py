"""A folder with a file, or a folder of files, for each client."""

import os
from collections.abc import Collection, Iterator, Sequence
from typing import Callable

from .. import problems
from . import lines
from . import source

# Opens one of the files.
Open = Callable[[str], source.Source]


class Folder:
  """A folder of which one file was looked at.

  Attributes:
    split: That is read of its files, if they are databases.
  """

  def __init__(self, path: str, open_file: Open):
    self.path = path
    self._open = open_file
    first = next(self._files(), None)
    if first is None:
      raise problems.DataError(
        f'{path} is empty; it must have a file, or a folder, for each client.'
      )
    self._first = open_file(first[1])
    self.columns = self._first.columns
    self.split = getattr(self._first, 'split', None)

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    """All rows of all files; see `source.Source`."""
    for client, path in self._files():
      opened = self._open(path)
      if type(opened) is not type(self._first):
        raise problems.DataError(
          f'{path} is of another format than {self._first.path}; all must be of one.'
        )
      if set(opened.columns) != set(self.columns):
        raise problems.DataError(
          f'{path} has the columns {problems.listed(opened.columns)}, and '
          f'{self._first.path} has {problems.listed(self.columns)}; all files must '
          'have the same.'
        )
      count = 0
      for batch in opened.batches(wanted, numbers):
        count += batch.num_rows
        yield batch._replace(clients=client)
      if not count:
        raise problems.DataError(
          f'{path}: client {client!r} has no examples; remove it, or fill it in.'
        )

  def _files(self) -> Iterator[tuple[str, str]]:
    """Client and path of each file; names that begin with a dot are nobody's."""
    kinds: dict[str, str] = {}
    for entry in _entries(self.path):
      kind = 'folder' if entry.is_dir() else 'file'
      if kinds and kind not in kinds:
        other = next(iter(kinds.values()))
        raise problems.DataError(
          f'{self.path} has {other} and {entry.name}; there must be a file for each '
          'client, or a folder for each client.'
        )
      kinds[kind] = entry.name
      if kind == 'file':
        _check_file(entry)
        is_packed = entry.name.lower().endswith(lines.PACKED)
        name = entry.name[: -len(lines.PACKED)] if is_packed else entry.name
        yield os.path.splitext(name)[0], entry.path
        continue
      is_empty = True
      for inner in _entries(entry.path):
        if inner.is_dir():
          raise problems.DataError(
            f'{inner.path} is a folder in the folder of client {entry.name!r}; that '
            'must have files.'
          )
        is_empty = False
        _check_file(inner)
        yield entry.name, inner.path
      if is_empty:
        raise problems.DataError(
          f'{entry.path}: client {entry.name!r} has no examples; remove the folder, or '
          'fill it in.'
        )


def _check_file(entry: 'os.DirEntry[str]') -> None:
  """Refuses links that lead nowhere, and pipes, of which nothing would come."""
  if not entry.is_file():
    raise problems.DataError(f'{entry.path} is not a file; remove it.')


def _entries(path: str) -> Iterator['os.DirEntry[str]']:
  with os.scandir(path) as found:
    for entry in found:
      if not entry.name.startswith('.'):
        yield entry
