"""Reads TensorFlow Federated's `SqlClientData` from SQLite."""

import contextlib
import pathlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from .. import problems
from . import source

_BATCH_ROWS = 2**10
# `serialized_example_proto` is a `tf.train.Example`.
_TABLES = {
  'examples': ('split_name', 'client_id', 'serialized_example_proto'),
  'client_metadata': ('client_id', 'split_name', 'num_examples'),
}


class SqliteClients:
  """A database of clients' examples; opening it reads one example of the split."""

  def __init__(self, path: str, wanted: source.Wanted):
    self.path = path
    with connected(path) as connection:
      self.split = self._chosen_split(connection, wanted.split)
      self._check_metadata(connection)
      (first,) = self._rows(connection, 'serialized_example_proto', 'LIMIT 1')
      self._features = self._features_of(*first)
      self.columns = tuple(sorted(self._features))

  def batches(self, wanted: Sequence[str]) -> Iterator[source.Batch]:
    with connected(self.path) as connection:
      rows = self._rows(
        connection, 'rowid, client_id, CAST(serialized_example_proto AS BLOB)'
      )
      while batch := rows.fetchmany(_BATCH_ROWS):
        numbers, clients, protos = zip(*batch)
        columns = self._parsed(wanted, numbers, protos)
        yield source.Batch(len(batch), {**columns, None: clients}, self._where(numbers))

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

  def _parsed(
    self, wanted: Sequence[str], numbers: Sequence[int], protos: Sequence[bytes]
  ) -> dict[str, source.Values]:
    import tensorflow as tf

    features = {name: self._features[name] for name in wanted}
    try:
      parsed = tf.io.parse_example(protos, features)
      return {name: _values(parsed[name].numpy()) for name in wanted}
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as e:
      if len(protos) > 1:  # Finds the row.
        for number, proto in zip(numbers, protos):
          self._parsed(wanted, [number], [proto])
      reason = str(getattr(e, 'message', e)).rpartition('}} ')[2]
      raise problems.DataError(
        f'{self._where(numbers)(0)}: {reason} It must be a tf.train.Example with one '
        'text in UTF-8, or as many numbers as the first, under each name.'
      ) from e

  def _rows(
    self, connection: sqlite3.Connection, values: str, clause: str = ''
  ) -> sqlite3.Cursor:
    query = f'SELECT {values} FROM examples WHERE split_name = ? {clause}'
    return connection.execute(query, (self.split,))

  def _where(self, numbers: Sequence[int]) -> Any:
    return lambda number: f'{self.path}, row {numbers[number]} of table examples'

  def _features_of(self, proto: Any) -> dict[str, Any]:
    """Returns dtypes and shapes of an example's features, for `tf.io.parse_example`."""
    import tensorflow as tf
    from google.protobuf import message

    try:
      example = tf.train.Example.FromString(proto)
    except (message.DecodeError, TypeError) as e:
      raise problems.DataError(
        f'{self.path}: the first row of split {self.split!r} in table examples is not '
        f'a tf.train.Example: {e}.'
      ) from e
    dtypes = {
      'bytes_list': tf.string,
      'float_list': tf.float32,
      'int64_list': tf.int64,
    }
    features: dict[str, Any] = {}
    for name, feature in example.features.feature.items():
      kind = feature.WhichOneof('kind')
      if kind is not None:
        count = len(getattr(feature, kind).value)
        is_single = count == 1 or kind == 'bytes_list'
        shape = [] if is_single else [count]
        features[name] = tf.io.FixedLenFeature(shape, dtypes[kind])
    return features

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


def _values(array: Any) -> Any:
  """Returns numbers as they are, and texts decoded."""
  return [str(each, 'utf-8') for each in array] if array.dtype == object else array


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


FORMAT = source.Format(
  'sqlite',
  ('.sqlite', '.sqlite3', '.db'),
  "SQLite as TensorFlow Federated's clients have it",
  SqliteClients,
  has_clients=lambda path: True,
)
