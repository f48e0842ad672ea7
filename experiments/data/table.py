"""Reads the rows of a data source once and stores them on disk, column by column."""

import dataclasses
import itertools
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from . import columns
from . import hashing
from . import problems
from . import spill
from .formats import source

_LINE_SECONDS = 10.0  # Between two lines of progress.
MAX_VALUES = 100  # Of a column that is one-hot encoded.
_MAX_EMBEDDED_VALUES = 1_000_000  # Of a column; float32 holds their indices.
# Up to so many different integers are taken for classes; maximum of classes.
MAX_INT_CLASSES, _MAX_CLASSES = 20, 10_000
_FEW_CLASSES = 100  # So many are accepted however few rows each has.
_TOO_MANY_CLASSES = 'Is that a label? If it is a number, give --label_kind=number.'
_MIXED_LABELS = 'If all are names of classes, give --label_kind=class.'
_LEAVE_OUT = 'leave the column out by --feature_columns'
_MIXED = f'If all are names, give --one_hot_columns; or {_LEAVE_OUT}.'
_TOO_MANY = (
  f'Text becomes a feature for each value. Make fewer values of it, {_LEAVE_OUT}, or '
  'give each value an embedding by --embedding_columns.'
)
_NOT_NUMBERS = (
  'Values before are numbers. Correct it; if it says that a value is missing, fill one '
  f'in, or remove the row. Or {_LEAVE_OUT}, or make a feature of each value by '
  '--one_hot_columns.'
)
_NOT_AS_TRAINED = (
  'Those of the training data are numbers. Correct it, or remove the row.'
)
_MULTI_LABELS = 'Several labels of a row are numbers, or tags, each of which is 0 or 1.'


@dataclasses.dataclass(frozen=True)
class Uses:
  """What the columns are used for, and how their values are read."""

  # Column with the client's id; `None` if the format gives the ids, or there are none.
  client: Optional[str] = None
  # Columns to predict; empty for text, and for data without labels.
  labels: tuple[str, ...] = ()
  features: tuple[str, ...] = ()  # Columns to predict from.
  one_hot: frozenset[str] = frozenset()  # Features categorical even if numbers.
  embedded: frozenset[str] = frozenset()  # Features with an embedding by value.
  text: Optional[str] = None  # Column of text; `None` for data with features.
  # `class` (for several labels of a row: tags), `number`, or `None` to infer it.
  label_kind: Optional[str] = None
  reading: columns.Reading = columns.Reading()

  @property
  def named(self) -> tuple[str, ...]:
    named = (self.client, *self.labels, self.text, *self.features)
    return tuple(each for each in named if each is not None)


@dataclasses.dataclass(frozen=True)
class Schema:
  """Columns of the training data, their shapes and values; test data must match it."""

  # Numeric features, with the shape of one entry.
  number_columns: Mapping[str, tuple[int, ...]]
  # Categorical features that are one-hot encoded, with all their values.
  name_columns: Mapping[str, tuple[str, ...]]
  # Names of classes; `None` if labels are not classes, or there are none.
  classes: Optional[tuple[str, ...]]
  # Categorical features with an embedding for each value, with all their values.
  embedded_columns: Mapping[str, tuple[str, ...]] = dataclasses.field(
    default_factory=dict
  )
  # Names of the labels if a row has several; `None` if it has one.
  several: Optional[tuple[str, ...]] = None
  are_tags: bool = False  # Whether each of several labels is 0 or 1.


class Rows(NamedTuple):
  """All rows: arrays with one entry per row, memory-mapped from files."""

  # Keys of clients' ids, uint64 [rows, 2]; `None` without clients.
  clients: Optional[np.ndarray]
  hashes: np.ndarray  # Hash of a row's content without the client, uint64 [rows].
  # Numeric features, float64 [rows, columns]; float32 if an entry has a shape.
  numbers: np.ndarray
  # Codes of categorical features: values are numbered by first occurrence, uint32
  # [rows, columns]. Columns with embeddings come last.
  codes: np.ndarray
  # Labels as read, numbers or codes of classes: float64 [rows], or [rows, labels] if a
  # row has several.
  values: np.ndarray
  texts: Optional['Texts']  # Texts by row; `None` for data with features.
  ids: 'Texts'  # Clients' ids by row; empty without clients.
  # For each categorical column, the index in the schema of each code.
  name_indices: tuple[np.ndarray, ...] = ()
  # Maps labels to indices of classes; `None` if labels are not classes.
  class_indices: Optional[Callable[[np.ndarray], np.ndarray]] = None

  def names_of(self, index: Any) -> np.ndarray:
    """Returns the categorical features as indices of values: uint32 [rows, columns]."""
    codes = np.array(self.codes[index])
    for column, indices in enumerate(self.name_indices):
      codes[:, column] = indices[codes[:, column]]
    return codes

  def labels_of(self, index: Any) -> np.ndarray:
    """Returns labels, or the indices of their classes: float64."""
    values = self.values[index]
    return values if self.class_indices is None else self.class_indices(values)

  def in_order(self, order: np.ndarray, folder: str) -> 'Rows':
    arrays = self.numbers, self.codes, self.values
    spills = [spill.Spill(folder, each.dtype, each.shape[1:]) for each in arrays]
    for index in chunks(order):
      for array, spilled in zip(arrays, spills):
        spilled.append(array[index])
    numbers, codes, values = (each.array for each in spills)
    return self._replace(numbers=numbers, codes=codes, values=values)


class Texts:
  """Texts on disk, which are read by row."""

  def __init__(self, folder: str):
    self._content = spill.Spill(folder, np.uint8)
    self._ends = spill.Spill(folder, np.int64)

  def __len__(self) -> int:
    return len(self._ends)

  def append(self, texts: source.Values) -> None:
    encoded = ''.join(texts).encode('utf-8', 'surrogatepass')
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    if sizes.sum() < len(encoded):  # The sizes are in characters, not bytes.
      byte_sizes = (len(text.encode('utf-8', 'surrogatepass')) for text in texts)
      sizes = np.fromiter(byte_sizes, np.int64, len(texts))
    self._ends.append(len(self._content) + np.cumsum(sizes))
    self._content.append(np.frombuffer(encoded, np.uint8))

  def __getitem__(self, row: int) -> str:
    ends = self._ends.array
    start = int(ends[row - 1]) if row else 0
    content = self._content.array[start : int(ends[row])].tobytes()
    return content.decode('utf-8', 'surrogatepass')


class Reader:
  """Reads all rows of a source, and infers the schema unless it is known."""

  def __init__(self, uses: Uses, folder: str, expected: Optional[Schema] = None):
    # `expected`: Schema that the data must have; `None` to infer it.
    self._uses, self._folder, self._expected = uses, folder, expected
    self._clients = spill.Spill(folder, np.uint64, (2,))
    self._hashes = spill.Spill(folder, np.uint64)
    self._ids = Texts(folder)
    self._texts = None if uses.text is None else Texts(folder)
    self._encoders: dict[str, Optional[columns.Encoder]] = {}  # `None` for numbers.
    self._shapes: dict[str, tuple[int, ...]] = {}  # Shapes of numeric columns.
    self._classes: Optional[columns.Encoder] = None
    # The different labels, while all are integers and few; `None` otherwise.
    self._int_labels: Optional[set[float]] = set()
    self._label_names: Optional[tuple[str, ...]] = None
    self._are_one_hot = True
    # Numeric columns with a number such as 0012 among the first rows.
    self.leading_zeros: list[str] = []

  def read(self, opened: source.Source) -> tuple[Rows, Schema]:
    wanted = self._uses.named
    for name in wanted:
      if name not in opened.columns:
        raise problems.missing_column(opened.path, name, opened.columns)
    first = next(opened.batches(wanted), None)
    if first is None:
      raise problems.DataError(f'{opened.path} is empty: it has no rows.')
    numbers = self._infer_columns(self._with_plain_numbers(first))
    last_report = time.monotonic()
    batches = opened.batches(wanted, numbers)
    for batch in batches:
      try:
        self._add(self._with_plain_numbers(batch))
      except problems.ValueOfRowError as e:
        remaining = map(self._with_plain_numbers, itertools.chain([batch], batches))
        raise problems.DataError(f'{e}{_similar_rows(e, remaining)}') from e
      if time.monotonic() - last_report > _LINE_SECONDS:
        last_report = time.monotonic()
        print(f'{opened.path}: {len(self._hashes)} rows so far.', file=sys.stderr)
    return self._finish()

  def _with_plain_numbers(self, batch: source.Batch) -> source.Batch:
    """Returns the batch with numbers as Python reads them; leaves the text column."""
    numerals = self._uses.reading.numerals
    standard = {
      name: values
      if name == self._uses.text
      else numerals.standard(values, name, batch.where)
      for name, values in batch.columns.items()
    }
    return batch._replace(columns=standard)

  def _infer_columns(self, batch: source.Batch) -> frozenset[str]:
    """Infers from the first row which columns are categorical, and the others' shapes.

    Returns the columns that the format may parse as numbers.
    """
    first = {name: values[0] for name, values in batch.columns.items()}
    for name in sorted(self._uses.features, key=self._uses.embedded.__contains__):
      self._encoders[name] = self._encoder_of(name, first[name])
      if self._encoders[name] is None:
        self._shapes[name] = np.shape(first[name])
        some = (value for value in batch.columns[name] if isinstance(value, str))
        if any(re.match(r'\s*0\d', text) for text in some):
          self.leading_zeros.append(name)
        if self._expected is not None:
          self._shapes[name] = self._expected.number_columns[name]
    dtype = np.float64 if all(len(s) < 2 for s in self._shapes.values()) else np.float32
    width = sum(map(math.prod, self._shapes.values()))
    self._numbers = spill.Spill(self._folder, dtype, (width,))
    num_names = len(self._encoders) - len(self._shapes)
    self._names = spill.Spill(self._folder, np.uint32, (num_names,))
    if self._uses.labels:
      self._infer_labels([first[name] for name in self._uses.labels])
    num_labels = () if self._label_names is None else (len(self._label_names),)
    self._labels = spill.Spill(self._folder, np.float64, num_labels)
    self._are_tags = np.ones(num_labels, bool)
    if not self._uses.reading.numerals.are_plain:
      return frozenset()
    labels = self._uses.labels if self._classes is None else ()
    return frozenset([*self._shapes, *labels])

  def _encoder_of(self, name: str, first: Any) -> Optional[columns.Encoder]:
    """Returns the encoder of a categorical column; `None` for a numeric column."""
    uses, expected = self._uses, self._expected
    if name in uses.embedded:
      known = None if expected is None else expected.embedded_columns[name]
      too_many = 'Make fewer values of it, or leave the column out.'
      return columns.Encoder(
        name, _MAX_EMBEDDED_VALUES, too_many, uses.reading, known, allows_unknown=True
      )
    is_one_hot = name in uses.one_hot
    has_names = is_one_hot or not _may_be_number(first)
    if expected is not None:
      has_names = name in expected.name_columns
    if not has_names:
      return None
    known = None if expected is None else expected.name_columns[name]
    no_numbers = None if known or is_one_hot else _MIXED
    return columns.Encoder(name, MAX_VALUES, _TOO_MANY, uses.reading, known, no_numbers)

  def _infer_labels(self, first: list[Any]) -> None:
    """Infers from the first row whether labels are several, classes, or numbers."""
    kind, expected, (name, *others) = (
      self._uses.label_kind,
      self._expected,
      self._uses.labels,
    )
    is_list = isinstance(first[0], (list, np.ndarray))
    if expected is not None and (expected.several or others or is_list):
      self._label_names = expected.several or self._uses.labels
    elif others or is_list:
      try:
        sizes = zip(self._uses.labels, map(np.size, first), map(np.ndim, first))
        self._label_names = tuple(
          each for found in sizes for each in _name_labels(*found)
        )
      except ValueError:  # Lists of different lengths are refused later, by line.
        self._label_names = self._uses.labels
    if self._label_names is not None:
      return
    if expected is not None:
      kind = 'number' if expected.classes is None else 'class'
    elif kind is None and not _may_be_number(first[0]):
      kind = 'class'
    if kind == 'class':
      known = None if expected is None else expected.classes
      no_numbers = None if known or self._uses.label_kind else _MIXED_LABELS
      self._classes = columns.Encoder(
        name, _MAX_CLASSES, _TOO_MANY_CLASSES, self._uses.reading, known, no_numbers
      )
    if kind == 'number':
      self._int_labels = None

  def _add(self, batch: source.Batch) -> None:
    uses = self._uses
    keys, ids = clients_of(batch, uses.client, uses.reading)
    if keys is not None:
      self._clients.append(keys)
      self._ids.append(ids)
    if uses.text is not None:
      assert self._texts is not None
      texts = columns.texts(batch.columns[uses.text], uses.text, batch.where)
      for number, text in enumerate(texts):
        if uses.reading.missing.has(text):
          raise uses.reading.missing.error(text, uses.text, batch.where(number))
      self._texts.append(texts)
      self._hashes.append(hashing.of_texts(texts)[:, 0])
      return
    parts = self._add_features(batch)
    if uses.labels:
      labels, label_hashes = self._encode_labels(batch)
      self._labels.append(labels)
      parts.append(label_hashes)
    self._hashes.append(hashing.of_rows(np.stack(parts, axis=1)))

  def _add_features(self, batch: source.Batch) -> list[np.ndarray]:
    """Appends the features; returns hashes of the rows' numbers and of their codes."""
    none = np.zeros((batch.num_rows, 0), np.uint64)
    numbers, codes, hashes = [none.astype(np.float64)], [none], [none]
    # The expected schema says which columns are numeric, if there is one.
    remedy = _NOT_NUMBERS if self._expected is None else _NOT_AS_TRAINED
    for name, encoder in self._encoders.items():
      values = batch.columns[name]
      if encoder is not None:
        codes.append(encoder.add(values, batch.where))
        hashes.append(encoder.hashes(codes[-1]))
        continue
      array = columns.finite(values, name, batch.where, remedy, self._uses.reading)
      if array.shape[1:] != self._shapes[name]:
        raise problems.DataError(
          f'{batch.where(0)}: {name} is of shape {list(array.shape[1:])}, not '
          f'{list(self._shapes[name])} as before.'
        )
      numbers.append(array.reshape(batch.num_rows, -1))
    block = np.column_stack(numbers)
    self._numbers.append(block)
    self._names.append(np.column_stack(codes))
    return [hashing.of_rows(block), hashing.of_rows(np.column_stack(hashes))]

  def _encode_labels(self, batch: source.Batch) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels as numbers or codes of classes, and their hashes."""
    if self._label_names is not None:
      return self._multi_labels(batch)
    (name,) = self._uses.labels
    values = batch.columns[name]
    if self._classes is not None:
      codes = self._classes.add(values, batch.where)
      return codes.astype(np.float64), self._classes.hashes(codes)
    remedy = 'Correct it, or give --label_kind=class if labels are names.'
    labels = columns.finite(values, name, batch.where, remedy, self._uses.reading)
    if labels.ndim > 1:
      raise problems.DataError(
        f'{batch.where(0)}: {name} has {list(labels.shape[1:])} values of a row; a '
        'label must be one.'
      )
    if self._int_labels is not None:
      self._int_labels |= set(np.unique(labels).tolist())
      if len(self._int_labels) > MAX_INT_CLASSES or any(
        v != int(v) for v in self._int_labels
      ):
        self._int_labels = None
    return labels, labels.view(np.uint64)

  def _multi_labels(self, batch: source.Batch) -> tuple[np.ndarray, np.ndarray]:
    """Returns the several labels of each row as numbers, and the rows' hashes."""
    parts, names = [], list[str]()
    for name in self._uses.labels:
      array = columns.finite(
        batch.columns[name], name, batch.where, _MULTI_LABELS, self._uses.reading
      )
      if array.ndim > 2:
        raise problems.DataError(
          f'{batch.where(0)}: {name} has {list(array.shape[1:])} values of a row; '
          'labels must be one, or a list.'
        )
      parts.append(array.reshape(batch.num_rows, -1))
      names += _name_labels(name, parts[-1].shape[1], array.ndim - 1)
    block = np.concatenate(parts, axis=1)
    if self._label_names != tuple(names):
      raise problems.DataError(
        f'{batch.where(0)}: labels are {problems.listed(names)}, and before '
        f'{problems.listed(self._label_names or ())}.'
      )
    is_tag = (block == 0) | (block == 1)
    is_required = self._uses.label_kind == 'class'
    if self._expected is not None:
      is_required = self._expected.are_tags
    if is_required and not is_tag.all():
      row, column = np.argwhere(~is_tag)[0]
      raise problems.DataError(
        f'{batch.where(row)}: {names[column]} is {block[row, column]:g}. Each of '
        'several labels that are tags is 0 or 1; for numbers give --label_kind=number.'
      )
    self._are_tags &= is_tag.all(axis=0)
    self._are_one_hot &= bool((is_tag.all(axis=1) & (block.sum(axis=1) == 1)).all())
    return block, hashing.of_rows(block)

  def _labels_are_tags(self) -> bool:
    """Whether each row has several labels and all are tags, not numbers."""
    if self._label_names is None or self._uses.label_kind == 'number':
      return False
    if self._expected is not None:
      return self._expected.are_tags
    if not self._are_tags.any():
      return False
    tags = [name for name, is_tag in zip(self._label_names, self._are_tags) if is_tag]
    if len(tags) < len(self._label_names):
      raise problems.DataError(
        f'labels are of several kinds: only {problems.listed(tags)} are 0 or 1. If all '
        'are numbers, give --label_kind=number; else train a model for each kind.'
      )
    if self._are_one_hot and self._uses.label_kind is None:
      raise problems.DataError(
        f'each row has exactly one of {problems.listed(tags)}. For classes '
        'written one-hot, give the class in one column; for tags, --label_kind=class.'
      )
    return True

  def _finish(self) -> tuple[Rows, Schema]:
    name_indices = []
    name_columns: dict[str, tuple[str, ...]] = {}
    embedded_columns: dict[str, tuple[str, ...]] = {}
    for name, encoder in self._encoders.items():
      if encoder is not None:
        target = embedded_columns if name in self._uses.embedded else name_columns
        target[name], indices = encoder.names()
        name_indices.append(indices)
    classes, class_indices = self._class_encoding()
    rows = Rows(
      clients=self._clients.array if len(self._clients) else None,
      hashes=self._hashes.array,
      numbers=self._numbers.array,
      codes=self._names.array,
      values=self._labels.array,
      texts=self._texts,
      ids=self._ids,
      name_indices=tuple(name_indices),
      class_indices=class_indices,
    )
    are_tags = self._labels_are_tags()
    return rows, Schema(
      self._shapes, name_columns, classes, embedded_columns, self._label_names, are_tags
    )

  def _class_encoding(
    self,
  ) -> tuple[Optional[tuple[str, ...]], Optional[Callable[[np.ndarray], np.ndarray]]]:
    """Returns names of classes, and the map from labels to indices, or `None`s."""
    if self._classes is not None:
      names, indices = self._classes.names()
      if not self._uses.label_kind and self._expected is None:
        self._refuse_identifiers(len(names))
      index_of_code = indices.astype(np.float64)
      return names, lambda codes: index_of_code[codes.astype(np.int64)]
    if not self._int_labels or not self._uses.labels or self._label_names is not None:
      return None, None
    values = np.array(sorted(self._int_labels))
    names = tuple(map(columns.number_name, values.tolist()))
    return names, lambda labels: np.searchsorted(values, labels).astype(np.float64)

  def _refuse_identifiers(self, num_classes: int) -> None:
    """Refuses labels most of which occur in one row only: nothing can be learned."""
    num_rows, (name, *_) = len(self._labels), self._uses.labels
    if num_classes > _FEW_CLASSES and 2 * num_classes > num_rows:
      raise problems.DataError(
        f'{name} has {num_classes} different values in {num_rows} rows, as texts and '
        'identifiers have; a label must be one of few classes. Give another '
        '--label_column, or --label_kind=class if these are classes.'
      )


def _may_be_number(value: Any) -> bool:
  """Whether a column with this first value is numeric; the first may be missing."""
  return columns.is_number(value) or columns.is_empty(value)


def _name_labels(name: str, width: int, ndim: int) -> list[str]:
  """Returns names for the labels of a column, which has one or a list in each row."""
  return [f'{name}[{i}]' for i in range(width)] if ndim else [name]


def clients_of(
  batch: source.Batch, name: Optional[str], reading: columns.Reading
) -> tuple[Optional[np.ndarray], source.Values]:
  """Returns the clients of a batch's rows: keys of ids, uint64 [rows, 2], and the ids.

  `name`: Column with the ids; `None` if the format gives them, or there are none. Then
    there are no keys.
  """
  if name is not None:
    values = batch.columns[name]
    keys = hashing.of_short_ids(values)
    if keys is not None:
      if not np.isin(keys[:, 0], reading.missing.keys[:, 0]).any():
        return keys, values
    ids = columns.ids(values, name, batch.where, reading)
    return hashing.of_ids(ids), ids
  if batch.clients is None:
    return None, ()
  # Ids of the format, such as names of files, are not numbers with a decimal sign.
  as_text = dataclasses.replace(reading, numerals=columns.Numerals('.', ''))
  if isinstance(batch.clients, str):
    ids = columns.ids(
      [batch.clients], 'the name of the client', lambda _: batch.where(0), as_text
    )
    return hashing.of_ids(ids).repeat(batch.num_rows, axis=0), ids * batch.num_rows
  ids = columns.ids(batch.clients, 'the id of the client', batch.where, as_text)
  return hashing.of_ids(ids), ids


def _similar_rows(
  error: problems.ValueOfRowError, batches: Iterator[source.Batch]
) -> str:
  """Says how many rows have a bad value in this column, as far as all can be read."""
  values = ((batch.columns.get(error.column, ()), batch.where) for batch in batches)
  return problems.others(
    ([i for i, v in enumerate(column) if error.is_bad(v)], where)
    for column, where in values
  )


def chunks(array: np.ndarray, size: int = 2**14) -> Iterator[np.ndarray]:
  """Yields successive slices of an array."""
  for first in range(0, len(array), size):
    yield array[first : first + size]
