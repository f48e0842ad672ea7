"""Data formats by their name in `--data_format`; each is a module with a `FORMAT`.

TensorFlow is imported to read databases only, so that errors are found before it loads.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Optional

from .. import problems
from . import lines
from . import npz
from . import source
from . import sqlite_clients
from . import tables

FORMATS = {
  each.name: each
  for each in (
    tables.CSV,
    tables.JSON,
    npz.FORMAT,
    sqlite_clients.FORMAT,
    lines.TEXT,
    tables.PARQUET,
  )
}


def of(path: str, name: Optional[str] = None) -> source.Format:
  """Returns the format of a file, or of the files in a folder."""
  if name is not None:
    return FORMATS[name]
  file = next(_files(path))[1] if os.path.isdir(path) else path
  for each in FORMATS.values():
    plain = file.lower()
    if each in (tables.CSV, tables.JSON, lines.TEXT):
      plain = plain.removesuffix(lines.PACKED)
    if plain.endswith(each.endings):
      return each
  endings = (ending for each in FORMATS.values() for ending in each.endings)
  raise problems.DataError(
    f'the name of {file} does not end in any of {problems.listed(endings)}; say what '
    f'it is by --data_format, one of {problems.listed(FORMATS)}.'
  )


def open_data(path: str, name: Optional[str], wanted: source.Wanted) -> source.Source:
  if os.path.isdir(path):
    return Folder(path, name, wanted)
  return of(path, name).open(path, wanted)


class Folder:
  """A folder of files of one format; opening it reads the head of the first file."""

  def __init__(self, path: str, name: Optional[str], wanted: source.Wanted):
    self.path = path
    self._name, self._wanted = name, wanted
    self._first = self._open(next(_files(path))[1])
    self.columns = self._first.columns
    self.split = getattr(self._first, 'split', None)

  def _open(self, file: str) -> source.Source:
    file_format = of(file, self._name)
    opener = lines.WholeFile if file_format is lines.TEXT else file_format.open
    return opener(file, self._wanted)

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
  kinds: dict[bool, str] = {}
  for entry in _entries(folder):
    kinds[entry.is_dir()] = entry.name
    if len(kinds) > 1:
      raise problems.DataError(
        f'{folder} has {kinds[False]} and {kinds[True]}; there must be a file for each '
        'client, or a folder for each client.'
      )
    if not entry.is_dir():
      name = re.sub(rf'{re.escape(lines.PACKED)}$', '', entry.name, flags=re.IGNORECASE)
      yield os.path.splitext(name)[0], _file(entry)
      continue
    inner = [_file(each) for each in _entries(entry.path)]
    if not inner:
      raise problems.DataError(
        f'{entry.path}: client {entry.name!r} has no examples; remove the folder, or '
        'fill it in.'
      )
    for path in inner:
      yield entry.name, path
  if not kinds:
    raise problems.DataError(
      f'{folder} is empty; it must have a file, or a folder, for each client.'
    )


def _file(entry: 'os.DirEntry[str]') -> str:
  """Returns the path of a file; refuses folders, dangling links, and pipes."""
  if not entry.is_file():
    raise problems.DataError(
      f'{entry.path} is not a file, of which a client may have several; remove it.'
    )
  return entry.path


def _entries(path: str) -> Iterator['os.DirEntry[str]']:
  with os.scandir(path) as found:
    for entry in found:
      if not entry.name.startswith('.'):
        yield entry
