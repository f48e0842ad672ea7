"""Files that the loaders of `tff.simulation.datasets` keep in their `cache_dir`.

The loaders download what is missing. Here nothing ever is: what is not there is refused
by name, before TensorFlow is loaded. The databases are read as `SqlClientData` reads
them, a client at a time, so a population needs no memory.
"""

import contextlib
import os
import sqlite3
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from ..options import data as data_options

_SERVER = 'https://storage.googleapis.com/tff-datasets-public/'
_TABLES = {
  'examples': ('client_id', 'split_name', 'serialized_example_proto'),
  'client_metadata': ('client_id', 'split_name'),
}


def path_of(
  options: data_options.Data, task: str, names: Sequence[str], source: str
) -> str:
  """Where a file is."""
  said = f'It comes from {source}; nothing is downloaded here.'
  if options.cache_dir is None:
    raise ValueError(
      f'--task={task} reads {names[0]} in the folder --cache_dir; give that. {said}'
    )
  paths = [os.path.join(os.path.abspath(options.cache_dir), name) for name in names]
  for path in paths:
    if os.path.exists(path):
      return path
  raise FileNotFoundError(f'--task={task} needs {" or ".join(paths)}. {said}')


def database(
  options: data_options.Data, task: str, name: str, splits: Sequence[str]
) -> str:
  """Where a database of clients is, if it is one."""
  loader = f'tff.simulation.datasets.{task}.load_data(cache_dir=...)'
  source = f'{loader}, which unpacks {_SERVER}{name}.lzma'
  path = path_of(options, task, [name], source)
  try:
    with contextlib.closing(_connect(path)) as connection:
      for table, columns in _TABLES.items():
        found = {row[1] for row in connection.execute(f'PRAGMA table_info({table})')}
        missing = sorted(set(columns) - found)
        if missing:
          raise ValueError(
            f'{path} is not the database of {loader}: its table {table!r} has no '
            f'{", ".join(missing)}.'
          )
      for split in splits:
        query = 'SELECT 1 FROM client_metadata WHERE split_name = ? LIMIT 1'
        if connection.execute(query, [split]).fetchone() is None:
          raise ValueError(f'{path} has no clients in the split {split!r}.')
  except sqlite3.Error as e:
    raise ValueError(f'{path} cannot be read as a database of clients: {e}.') from e
  return path


class Split:
  """The clients of a split; what `learning.train` takes, read when it is needed.

  Attributes:
    ids: Of the clients, sorted.
  """

  def __init__(
    self,
    path: str,
    name: str,
    parse: Callable[[list[bytes]], dict[str, np.ndarray]],
    most: Optional[int] = None,
  ):
    """Initializes it.

    `most`: How many of a client's examples are read at most; `None` for all.
    """
    self._path, self._name, self._parse = path, name, parse
    self._most = -1 if most is None else most
    self._local = threading.local()
    query = 'SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ?'
    self.ids = tuple(sorted(row[0] for row in self._rows(query, name)))

  def __len__(self) -> int:
    return len(self.ids)

  def examples(self, id_: str) -> dict[str, np.ndarray]:
    """A client's, in the order of the database."""
    query = (
      'SELECT serialized_example_proto FROM examples '
      'WHERE client_id = ? AND split_name = ? LIMIT ?'
    )
    found = [row[0] for row in self._rows(query, id_, self._name, self._most)]
    return self._parsed(found, f'of client {id_!r}')

  def first(self, most: Optional[int] = None) -> dict[str, np.ndarray]:
    """Examples of all clients, of one after the other.

    `most`: How many at most; `None` for all.
    """
    parts, count = [], 0
    for id_ in self.ids:
      if most is not None and count >= most:
        break
      parts.append(self.examples(id_))
      count += len(parts[-1]['x'])
    return {key: np.concatenate([part[key] for part in parts])[:most] for key in 'xy'}

  def _parsed(self, serialized: list[bytes], whose: str) -> dict[str, np.ndarray]:
    import tensorflow as tf

    try:
      return self._parse(serialized)
    except tf.errors.InvalidArgumentError as e:
      raise ValueError(
        f'{self._path}: examples {whose} are not those of this task: {e.message}'
      ) from e

  def _rows(self, query: str, *arguments: Any) -> Iterator[tuple[Any, ...]]:
    if not hasattr(self._local, 'connection'):
      self._local.connection = _connect(self._path)
    return iter(self._local.connection.execute(query, arguments))


def features(serialized: list[bytes], **wanted: Any) -> Mapping[str, np.ndarray]:
  """Features of serialised `tf.train.Example`s.

  `**wanted`: For each feature its dtype and shape.
  """
  import tensorflow as tf

  specs = {
    name: tf.io.FixedLenFeature(shape, tf.as_dtype(dtype))
    for name, (dtype, shape) in wanted.items()
  }
  found = tf.io.parse_example(tf.constant(serialized, tf.string), specs)
  return {name: tensor.numpy() for name, tensor in found.items()}


def _connect(path: str) -> sqlite3.Connection:
  """Opens a database that is only read."""
  uri = f'file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro&immutable=1'
  return sqlite3.connect(uri, uri=True)
