"""Reads TensorFlow Federated's `SqlClientData` from SQLite without TensorFlow."""

import contextlib
import functools
import pathlib
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Optional

import numpy as np

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
      example = connection.execute(
        'SELECT rowid, serialized_example_proto FROM examples WHERE split_name = ? '
        'LIMIT 1',
        (self.split,),
      ).fetchone()
      if example is None:
        raise problems.DataError(
          f'{path} is empty: there are no examples of split {self.split!r}.'
        )
      self.columns = tuple(sorted(_parsed(example[1], self._where([example[0]])(0))))
      self._check_metadata(connection)

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    with connected(self.path) as connection:
      rows = connection.execute(
        'SELECT rowid, client_id, serialized_example_proto FROM examples '
        'WHERE split_name = ?',
        (self.split,),
      )
      while batch := rows.fetchmany(_BATCH_ROWS):
        numbers, clients, protos = zip(*batch)
        where = self._where(numbers)
        parsed = [_parsed(proto, where(i)) for i, proto in enumerate(protos)]
        columns = {name: self._column(name, parsed, where) for name in wanted}
        yield source.Batch(len(batch), columns, clients, where)

  def _where(self, numbers: Sequence[int]) -> Any:
    return lambda number: f'{self.path}, row {numbers[number]} of table examples'

  def _column(self, name: str, parsed: list[dict[str, Any]], where: Any) -> Any:
    """Returns a feature of all examples: numbers of one shape, or texts."""
    first = parsed[0].get(name, ())
    is_number = isinstance(first, np.ndarray)
    for number, example in enumerate(parsed):
      value = example.get(name, ())
      has_same_kind = isinstance(value, np.ndarray) == is_number
      if not has_same_kind or len(value) != (len(first) if is_number else 1):
        raise problems.DataError(
          f'{where(number)}: {name} has {len(value)} values; it must have one text, or '
          'as many numbers as the examples before.'
        )
    values = [example[name] for example in parsed]
    if is_number:
      array = np.stack(values)
      return array[:, 0] if len(first) == 1 else array
    try:
      return [str(value, 'utf-8') for (value,) in values]
    except UnicodeDecodeError as e:
      message = f'{where(0)}, or after: {name} is not text in UTF-8: {e}.'
      raise problems.DataError(message) from e

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


def _parsed(proto: Any, where: str) -> dict[str, Any]:
  """Returns features of an example: arrays of numbers, or lists of bytes."""
  from google.protobuf import message

  try:
    example = _example_class().FromString(proto)
  except (message.DecodeError, TypeError) as e:
    raise problems.DataError(f'{where} is not a tf.train.Example: {e}.') from e
  features: dict[str, Any] = {}
  for entry in example.features.feature:
    kind = entry.value.WhichOneof('kind')
    if kind == 'bytes_list':
      features[entry.key] = list(entry.value.bytes_list.value)
    elif kind is not None:
      dtype = np.float32 if kind == 'float_list' else np.int64
      features[entry.key] = np.array(getattr(entry.value, kind).value, dtype)
  return features


# `tf.train.Example`, defined here so that TensorFlow is not needed. On the wire, a map
# is a list of entries with key and value.
_EXAMPLE = """
name: "example.proto" package: "own" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList"
  field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List"
  field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: ".own.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".own.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".own.Int64List" oneof_index: 0 } }
message_type { name: "Entry"
  field { name: "key" number: 1 type: TYPE_STRING }
  field { name: "value" number: 2 type_name: ".own.Feature" } }
message_type { name: "Features"
  field { name: "feature" number: 1 type_name: ".own.Entry" label: LABEL_REPEATED } }
message_type { name: "Example"
  field { name: "features" number: 1 type_name: ".own.Features" } }
"""


@functools.cache
def _example_class() -> Any:
  from google.protobuf import descriptor_pb2
  from google.protobuf import descriptor_pool
  from google.protobuf import message_factory
  from google.protobuf import text_format

  pool = descriptor_pool.DescriptorPool()
  pool.Add(text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto()))
  descriptor = pool.FindMessageTypeByName('own.Example')
  if hasattr(message_factory, 'GetMessageClass'):
    return message_factory.GetMessageClass(descriptor)
  return message_factory.MessageFactory(pool).GetPrototype(descriptor)


FORMAT = source.Format(
  'sqlite',
  ('.sqlite', '.sqlite3', '.db'),
  "SQLite as TensorFlow Federated's clients have it",
  SqliteClients,
  has_clients=lambda path: True,
)
