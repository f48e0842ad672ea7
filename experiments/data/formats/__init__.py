"""Formats of data by name: what `--data_format` takes, each a module with its `FORMAT`.

Knows nothing of TensorFlow, so that what is wrong is found before it is loaded.
"""

import os
from typing import Optional

from .. import problems
from . import folder
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
  """The format of a file, or of the files in a folder."""
  if name is not None:
    return FORMATS[name]
  file = _some_file(path)
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
  """Opens a file or a folder."""
  if not os.path.isdir(path):
    return of(path, name).open(path, wanted)

  def open_file(file: str) -> source.Source:
    file_format = of(file, name)
    if file_format is lines.TEXT:
      return lines.WholeFile(file, wanted)
    return file_format.open(file, wanted)

  return folder.Folder(path, open_file)


def _some_file(path: str) -> str:
  """The file itself, or one in the folder, or in a folder there."""
  while os.path.isdir(path):
    with os.scandir(path) as entries:
      found = next((each for each in entries if not each.name.startswith('.')), None)
    if found is None:
      raise problems.DataError(
        f'{path} is empty; it must have a file, or a folder, for each client.'
      )
    path = found.path
  return path
