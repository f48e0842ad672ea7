"""Data formats by their name in `--data_format`; each is a class of sources.

TensorFlow is imported to read databases only, so that errors are found before it loads.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Optional

from .. import problems
from . import lines
from . import npz
from . import source
from . import sqlite_clients
from . import tables

FORMATS: dict[str, type[source.Source]] = {
  each.name: each
  for each in (
    tables.CsvFile,
    tables.JsonLines,
    npz.NpzFile,
    sqlite_clients.SqliteClients,
    lines.TextFile,
    tables.ParquetFile,
  )
}


def of(path: str, name: Optional[str] = None) -> type[source.Source]:
  """Returns the format of a file, or of the files in a folder."""
  if name is not None:
    return FORMATS[name]
  file = next(_files(path))[1] if os.path.isdir(path) else path
  for each in FORMATS.values():
    plain = file.lower()
    if each in (tables.CsvFile, tables.JsonLines, lines.TextFile):
      plain = plain.removesuffix(lines.PACKED)
    if plain.endswith(each.endings):
      return each
  endings = (ending for each in FORMATS.values() for ending in each.endings)
  raise problems.DataError(
    f'the name of {file} does not end in any of {problems.listed(endings)}; say what '
    f'it is by --data_format, one of {problems.listed(FORMATS)}.'
  )


def open_data(
  path: str,
  name: Optional[str],
  split: Optional[str] = None,
  separator: Optional[str] = None,
) -> source.Source:
  if os.path.isdir(path):
    return Folder(path, name, split, separator)
  return of(path, name)(path, split, separator)


class Folder(source.Source):
  """A folder of files of one format; opening it reads the head of the first file."""

  def __init__(self, path: str, name: Optional[str], *how: Optional[str]):
    self.path = path
    self._name, self._how = name, how
    self._first = self._open(next(_files(path))[1])
    self.columns, self.split = self._first.columns, self._first.split

  def _open(self, file: str) -> Any:
    file_format = of(file, self._name)
    opener: Any = lines.WholeFile if file_format is lines.TextFile else file_format
    return opener(file, *self._how)

  def batches(self, wanted: Sequence[str]) -> Iterator[source.Batch]:
    for client, path in _files(self.path):
      opened = self._open(path)
      is_alike = type(opened) is type(self._first)
      if not is_alike or set(opened.columns) != set(self.columns):
        raise problems.DataError(
          f'{path} is of another format than {self._first.path}, or has other columns, '
          f'{problems.listed(opened.columns)} for {problems.listed(self.columns)}; all '
          'files must be alike.'
        )
      count = 0
      for batch in opened.batches(wanted):
        count += batch.num_rows
        ids = [client] * batch.num_rows
        yield batch._replace(columns={**batch.columns, None: ids})
      if not count:
        raise problems.DataError(
          f'{path}: client {client!r} has no examples; remove it, or fill it in.'
        )


def _files(folder: str) -> Iterator[tuple[str, str]]:
  """Yields client and path of each file; ignores names that begin with a dot."""
  for path, folders, names in os.walk(folder, onerror=_raised, followlinks=True):
    folders[:] = [each for each in folders if each[0] != '.']
    files = [each for each in names if each[0] != '.']
    paths = [os.path.join(path, each) for each in files]
    is_wrong = bool(folders) == bool(files) or (folders and path != folder)
    if is_wrong or not all(map(os.path.isfile, paths)):
      raise problems.DataError(
        f'{path} has {problems.listed([*folders[:1], *files[:1]]) or "no files"}; '
        f'there must be a file for each client in {folder}, or a folder of files for '
        'each, and nothing else.'
      )
    for name, file in zip(files, paths):
      stem = re.sub(rf'{re.escape(lines.PACKED)}$', '', name, flags=re.IGNORECASE)
      yield (
        os.path.splitext(stem)[0] if path == folder else os.path.basename(path),
        file,
      )


def _raised(error: Any) -> NoReturn:
  raise error
