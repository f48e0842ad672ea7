"""Reads TensorFlow Federated's `SqlClientData` from SQLite."""

import contextlib
import pathlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np

from .. import problems
from . import source

_BATCH_ROWS = 2**10
_EXAMPLE = 'client_id, CAST(serialized_example_proto AS BLOB)'
# `serialized_example_proto` is a `tf.train.Example`.
_TABLES = {
  'examples': ('split_name', 'client_id', 'serialized_example_proto'),
  'client_metadata': ('client_id', 'split_name', 'num_examples'),
}


class SqliteClients(source.Source):
  """A database of clients' examples; opening it reads one example of the split."""

  name, endings = 'sqlite', ('.sqlite', '.sqlite3', '.db')
  summary = "SQLite as TensorFlow Federated's clients have it"

  def __init__(self, path: str, split: Optional[str] = None, separator: Any = None):
    super().__init__(path, split, separator)
    with connected(path) as connection:
      self.split = self._chosen_split(connection, split)
      self._check_metadata(connection)
      self._has_row_ids = False
      with contextlib.suppress(sqlite3.OperationalError):  # Or they are null in a view.
        ids = connection.execute('SELECT rowid FROM examples LIMIT 1').fetchall()
        self._has_row_ids = ids != [(None,)]
      ((proto,),) = self._rows(connection, 'serialized_example_proto', 'LIMIT 1')
      self._first = self._values(0, proto)
      self.columns = tuple(sorted(self._first))

  def read(self, wanted: Sequence[str]) -> Iterator[source.Columns]:
    import tensorflow as tf

    kinds = {'f': tf.float32, 'i': tf.int64, 'S': tf.string, 'U': tf.string}
    specs = {
      name: tf.io.FixedLenFeature(np.shape(first), kinds[np.array(first).dtype.kind])
      for name, first in self._first.items()
      if name in wanted
    }
    num_read = 0
    with connected(self.path) as connection:
      rows = self._rows(connection, _EXAMPLE)
      while batch := rows.fetchmany(_BATCH_ROWS):
        clients, protos = zip(*batch)
        try:
          parsed = tf.io.parse_example(protos, specs)
          columns = {name: _decoded(parsed[name].numpy()) for name in wanted}
        except tf.errors.InvalidArgumentError:  # Not all have such values.
          parsed = [self._values(*each) for each in enumerate(protos, num_read)]
          columns = {name: [each.get(name) for each in parsed] for name in wanted}
        yield {**columns, None: clients}
        num_read += len(batch)

  def place(self, row: int) -> str:
    values = 'rowid' if self._has_row_ids else _EXAMPLE  # So read in the same order.
    with connected(self.path) as connection:
      ((found, *_),) = self._rows(connection, values, f'LIMIT 1 OFFSET {row}')
    where = f'row {found}' if self._has_row_ids else f'an example of client {found!r}'
    return f'{self.path}, {where} of table examples'

  def _values(self, row: int, proto: Any) -> dict[str, Any]:
    """Returns the values of an example by name, lists if there are not one."""
    import tensorflow as tf
    from google.protobuf import message

    try:
      example = tf.train.Example.FromString(proto)
    except (message.DecodeError, TypeError) as e:
      raise problems.DataError(
        f'{self.place(row)} is not a tf.train.Example: {e}.'
      ) from e
    values: dict[str, Any] = {}
    for name, feature in example.features.feature.items():
      if kind := feature.WhichOneof('kind'):
        found = _decoded(getattr(feature, kind).value)
        values[name] = found[0] if len(found) == 1 else found
    return values

  def _check_metadata(self, connection: sqlite3.Connection) -> None:
    """Checks that clients have as many examples as their metadata say, at least 1."""
    wrong = connection.execute(
      'SELECT m.client_id, m.num_examples, COALESCE(e.found, 0) '
      'FROM client_metadata m LEFT JOIN (SELECT client_id, COUNT(*) found '
      'FROM examples WHERE split_name = ?1 GROUP BY client_id) e USING (client_id) '
      'WHERE m.split_name = ?1 AND (COALESCE(e.found, 0) != m.num_examples '
      'OR m.num_examples < 1) LIMIT 1',
      (self.split,),
    ).fetchone()
    if wrong is not None:
      client, stated, found = wrong
      raise problems.DataError(
        f'{self.path}: client {client!r} has {found} examples, and {stated} according '
        'to table client_metadata; both must be the same, and at least 1.'
      )

  def _rows(
    self, connection: sqlite3.Connection, values: str, clause: str = ''
  ) -> sqlite3.Cursor:
    # In the same order for all values, whatever indices the database has.
    order = 'ORDER BY rowid' if self._has_row_ids else ''
    query = f'SELECT {values} FROM examples WHERE split_name = ? {order} {clause}'
    return connection.execute(query, (self.split,))

  def _chosen_split(self, connection: sqlite3.Connection, split: Optional[str]) -> str:
    query = 'SELECT DISTINCT split_name FROM examples'
    splits = [row[0] for row in connection.execute(query)]
    if split is None and len(splits) == 1:
      return str(splits[0])
    if split is None or split not in splits:
      raise problems.DataError(
        f'{self.path} has no split {split or "that is the only one"!r}, or is empty; '
        f'choose one of {problems.listed(sorted(map(str, splits)))} by --data_split.'
      )
    return split


def _decoded(values: Any) -> Any:
  """Returns bytes as text, if they are UTF-8; numbers as they are."""
  if isinstance(values, np.ndarray) and values.dtype != object:
    return values
  with contextlib.suppress(UnicodeDecodeError):
    return [each.decode() if isinstance(each, bytes) else each for each in values]
  return list(values)


def connect(path: str) -> sqlite3.Connection:
  uri = f'{pathlib.Path(path).absolute().as_uri()}?mode=ro'
  return sqlite3.connect(uri, uri=True)


@contextlib.contextmanager
def connected(path: str) -> Iterator[sqlite3.Connection]:
  connection = connect(path)
  try:
    for table, required in _TABLES.items():
      columns = [row[1] for row in connection.execute(f'PRAGMA table_info({table})')]
      missing = sorted(set(required) - set(columns))
      if missing:
        raise problems.DataError(
          f'{path} is not a database of clients as TensorFlow Federated has them: '
          f'table {table} lacks {problems.listed(missing)}.'
        )
    yield connection
  except sqlite3.Error as e:
    raise problems.DataError(f'{path} cannot be read as SQLite: {e}.') from e
  finally:
    connection.close()
