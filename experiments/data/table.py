"""Reads rows of whatever format, once, and keeps them on disk column by column."""

import dataclasses
import itertools
import math
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

# Between two lines on how far reading is.
_LINE_SECONDS = 10.0
# Different values of a column of text that becomes a feature for each.
MOST_VALUES = 100
# Most values of a column with an embedding; their numbers are exact in float32.
_MOST_EMBEDDED = 1_000_000
# Different whole numbers that are taken for classes, and classes that are asked for.
FEW_CLASSES, _MOST_CLASSES = 20, 10_000
_FEW_TEXTS = 100  # Labels may be so many, however few rows each has.
_CLASSES = 'Is that a label? If it is a number, give --label_kind=number.'
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
_SEVERAL = 'Several labels of a row are numbers, or tags, each of which is 0 or 1.'


@dataclasses.dataclass(frozen=True)
class Uses:
  # Column that says whose a row is; `None` if the format does, or nothing.
  client: Optional[str] = None
  # Columns to predict; none for text, and for data that have none.
  labels: tuple[str, ...] = ()
  features: tuple[str, ...] = ()  # Columns to predict from.
  # Those of them that have names even if they are numbers.
  one_hot: frozenset[str] = frozenset()
  # Those of them whose names have an embedding each.
  embedded: frozenset[str] = frozenset()
  text: Optional[str] = None  # Column of text; `None` for features and labels.
  # `class`, which of several labels of a row are tags; `number`; or `None` to find out.
  label_kind: Optional[str] = None
  reading: columns.Reading = columns.Reading()  # How values are read.

  @property
  def named(self) -> tuple[str, ...]:
    named = (self.client, *self.labels, self.text, *self.features)
    return tuple(each for each in named if each is not None)


@dataclasses.dataclass(frozen=True)
class Schema:
  """What was found of the columns, which test data must have as well."""

  # Features that are numbers, with the shape of an entry.
  number_columns: Mapping[str, tuple[int, ...]]
  # Features that are names, with all there are.
  name_columns: Mapping[str, tuple[str, ...]]
  # Names of classes; `None` if labels are numbers, or there are none.
  classes: Optional[tuple[str, ...]]
  # Those whose names have an embedding each, with all there are.
  embedded_columns: Mapping[str, tuple[str, ...]] = dataclasses.field(
    default_factory=dict
  )
  # Names of the labels of a row if there are several; `None` if it has one.
  several: Optional[tuple[str, ...]] = None
  are_tags: bool = False  # Whether each of several labels is 0 or 1.


class Rows(NamedTuple):
  """All rows, each array with an entry for each, mapped from files."""

  # Keys of clients' ids, uint64 [rows, 2]; `None` without clients.
  clients: Optional[np.ndarray]
  hashes: np.ndarray  # Of what is in a row besides, uint64 [rows].
  # Features that are numbers, float64 [rows, columns]; float32 if an entry has a shape.
  numbers: np.ndarray
  # Features that are names, by the order in which these came, uint32 [rows, columns];
  # last those with embeddings.
  codes: np.ndarray
  # Labels as they came: float64 [rows], numbers or codes of classes; [rows, labels] of
  # several.
  values: np.ndarray
  texts: Optional['Texts']  # Texts by row, or `None`.
  ids: 'Texts'  # Clients' ids by row; none without clients.
  name_numbers: tuple[np.ndarray, ...] = ()  # The number of each code, by column.
  # The number of the class of each label; `None` for numbers.
  class_numbers: Optional[Callable[[np.ndarray], np.ndarray]] = None

  def names_of(self, some: Any) -> np.ndarray:
    """Features that are names by number: uint32 [rows, columns]."""
    codes = np.array(self.codes[some])
    for place, numbers in enumerate(self.name_numbers):
      codes[:, place] = numbers[codes[:, place]]
    return codes

  def labels_of(self, some: Any) -> np.ndarray:
    """Labels, or numbers of their classes: float64."""
    values = self.values[some]
    return values if self.class_numbers is None else self.class_numbers(values)

  def in_order(self, order: np.ndarray, folder: str) -> 'Rows':
    arrays = self.numbers, self.codes, self.values
    found = [spill.Spill(folder, each.dtype, each.shape[1:]) for each in arrays]
    for some in chunks(order):
      for array, made in zip(arrays, found):
        made.append(array[some])
    numbers, codes, values = (each.array for each in found)
    return self._replace(numbers=numbers, codes=codes, values=values)


class Texts:
  def __init__(self, folder: str):
    self._content = spill.Spill(folder, np.uint8)
    self._ends = spill.Spill(folder, np.int64)

  def __len__(self) -> int:
    return len(self._ends)

  def append(self, found: source.Values) -> None:
    encoded = ''.join(found).encode('utf-8', 'surrogatepass')
    sizes = np.fromiter(map(len, found), np.int64, len(found))
    if sizes.sum() < len(encoded):  # Of bytes, not characters.
      of_each = (len(text.encode('utf-8', 'surrogatepass')) for text in found)
      sizes = np.fromiter(of_each, np.int64, len(found))
    self._ends.append(len(self._content) + np.cumsum(sizes))
    self._content.append(np.frombuffer(encoded, np.uint8))

  def __getitem__(self, number: int) -> str:
    ends = self._ends.array
    first = int(ends[number - 1]) if number else 0
    content = self._content.array[first : int(ends[number])].tobytes()
    return content.decode('utf-8', 'surrogatepass')


class Reader:
  def __init__(self, uses: Uses, folder: str, like: Optional[Schema] = None):
    # Without `like`, what the data are like is found out.
    self._uses, self._folder, self._like = uses, folder, like
    self._clients = spill.Spill(folder, np.uint64, (2,))
    self._hashes = spill.Spill(folder, np.uint64)
    self._ids = Texts(folder)
    self._texts = None if uses.text is None else Texts(folder)
    self._kinds: dict[str, Optional[columns.Names]] = {}  # `None` for numbers.
    self._shapes: dict[str, tuple[int, ...]] = {}  # Of numbers.
    self._classes: Optional[columns.Names] = None
    self._few: Optional[set[float]] = set()
    self._several: Optional[tuple[str, ...]] = None
    self._are_one_hot = True

  def read(self, opened: source.Source) -> tuple[Rows, Schema]:
    wanted = self._uses.named
    for name in wanted:
      if name not in opened.columns:
        raise problems.missing_column(opened.path, name, opened.columns)
    first = next(opened.batches(wanted), None)
    if first is None:
      raise problems.DataError(f'{opened.path} is empty: it has no rows.')
    numbers = self._decide(self._standard(first))
    said = time.monotonic()
    batches = opened.batches(wanted, numbers)
    for batch in batches:
      try:
        self._add(self._standard(batch))
      except problems.ValueOfRowError as e:
        left = map(self._standard, itertools.chain([batch], batches))
        raise problems.DataError(f'{e}{_others(e, left)}') from e
      if time.monotonic() - said > _LINE_SECONDS:
        said = time.monotonic()
        print(f'{opened.path}: {len(self._hashes)} rows so far.', file=sys.stderr)
    return self._finish()

  def _standard(self, batch: source.Batch) -> source.Batch:
    """With numbers as Python reads them, but for texts that are predicted."""
    numerals = self._uses.reading.numerals
    found = {
      name: values
      if name == self._uses.text
      else numerals.standard(values, name, batch.where)
      for name, values in batch.columns.items()
    }
    return batch._replace(columns=found)

  def _decide(self, batch: source.Batch) -> frozenset[str]:
    """Decides by the first row which columns are names, and of which shape others are.

    Returns the columns of which a format may read numbers.
    """
    first = {name: values[0] for name, values in batch.columns.items()}
    for name in sorted(self._uses.features, key=self._uses.embedded.__contains__):
      self._kinds[name] = self._names_of(name, first[name])
      if self._kinds[name] is None:
        self._shapes[name] = np.shape(first[name])
        if self._like is not None:
          self._shapes[name] = self._like.number_columns[name]
    dtype = np.float64 if all(len(s) < 2 for s in self._shapes.values()) else np.float32
    width = sum(map(math.prod, self._shapes.values()))
    self._numbers = spill.Spill(self._folder, dtype, (width,))
    num_names = len(self._kinds) - len(self._shapes)
    self._names = spill.Spill(self._folder, np.uint32, (num_names,))
    if self._uses.labels:
      self._decide_labels([first[name] for name in self._uses.labels])
    num_labels = () if self._several is None else (len(self._several),)
    self._labels = spill.Spill(self._folder, np.float64, num_labels)
    self._are_tags = np.ones(num_labels, bool)
    if not self._uses.reading.numerals.are_plain:
      return frozenset()
    labels = self._uses.labels if self._classes is None else ()
    return frozenset([*self._shapes, *labels])

  def _names_of(self, name: str, first: Any) -> Optional[columns.Names]:
    """The names that a column has; `None` if it has numbers."""
    uses, like = self._uses, self._like
    if name in uses.embedded:
      known = None if like is None else like.embedded_columns[name]
      too_many = 'Make fewer values of it, or leave the column out.'
      return columns.Names(
        name, _MOST_EMBEDDED, too_many, uses.reading, known, has_others=True
      )
    is_one_hot = name in uses.one_hot
    has_names = is_one_hot or not _may_be_number(first)
    if like is not None:
      has_names = name in like.name_columns
    if not has_names:
      return None
    known = None if like is None else like.name_columns[name]
    mixed = None if known or is_one_hot else _MIXED
    return columns.Names(name, MOST_VALUES, _TOO_MANY, uses.reading, known, mixed)

  def _decide_labels(self, first: list[Any]) -> None:
    """Decides whether labels are several, classes, or numbers; by the first of them."""
    kind, like, (name, *others) = self._uses.label_kind, self._like, self._uses.labels
    is_list = isinstance(first[0], (list, np.ndarray))
    if like is not None and (like.several or others or is_list):
      self._several = like.several or self._uses.labels
    elif others or is_list:
      try:
        sizes = zip(self._uses.labels, map(np.size, first), map(np.ndim, first))
        self._several = tuple(each for found in sizes for each in _label_names(*found))
      except ValueError:  # Lists of several lengths, which are refused with their line.
        self._several = self._uses.labels
    if self._several is not None:
      return
    if like is not None:
      kind = 'number' if like.classes is None else 'class'
    elif kind is None and not _may_be_number(first[0]):
      kind = 'class'
    if kind == 'class':
      known = None if like is None else like.classes
      no_numbers = None if known or self._uses.label_kind else _MIXED_LABELS
      self._classes = columns.Names(
        name, _MOST_CLASSES, _CLASSES, self._uses.reading, known, no_numbers
      )
    if kind == 'number':
      self._few = None

  def _add(self, batch: source.Batch) -> None:
    uses = self._uses
    keys, ids = clients_of(batch, uses.client, uses.reading)
    if keys is not None:
      self._clients.append(keys)
      self._ids.append(ids)
    if uses.text is not None:
      assert self._texts is not None
      found = columns.texts(batch.columns[uses.text], uses.text, batch.where)
      for number, text in enumerate(found):
        if uses.reading.missing.has(text):
          raise uses.reading.missing.error(text, uses.text, batch.where(number))
      self._texts.append(found)
      self._hashes.append(hashing.of_texts(found)[:, 0])
      return
    hashed = self._add_features(batch)
    if uses.labels:
      labels, hashes = self._label(batch)
      self._labels.append(labels)
      hashed.append(hashes)
    self._hashes.append(hashing.of_rows(np.stack(hashed, axis=1)))

  def _add_features(self, batch: source.Batch) -> list[np.ndarray]:
    """Hashes of numbers and of names."""
    none = np.zeros((batch.num_rows, 0), np.uint64)
    numbers, codes, hashes = [none.astype(np.float64)], [none], [none]
    # What the columns are has been decided by the training data, if there are any.
    remedy = _NOT_NUMBERS if self._like is None else _NOT_AS_TRAINED
    for name, kind in self._kinds.items():
      values = batch.columns[name]
      if kind is not None:
        codes.append(kind.add(values, batch.where))
        hashes.append(kind.hashes(codes[-1]))
        continue
      part = columns.finite(values, name, batch.where, remedy, self._uses.reading)
      if part.shape[1:] != self._shapes[name]:
        raise problems.DataError(
          f'{batch.where(0)}: {name} is of shape {list(part.shape[1:])}, not '
          f'{list(self._shapes[name])} as before.'
        )
      numbers.append(part.reshape(batch.num_rows, -1))
    block = np.column_stack(numbers)
    self._numbers.append(block)
    self._names.append(np.column_stack(codes))
    return [hashing.of_rows(block), hashing.of_rows(np.column_stack(hashes))]

  def _label(self, batch: source.Batch) -> tuple[np.ndarray, np.ndarray]:
    """Labels as numbers, or codes of classes; and hashes."""
    if self._several is not None:
      return self._several_labels(batch)
    (name,) = self._uses.labels
    values = batch.columns[name]
    if self._classes is not None:
      codes = self._classes.add(values, batch.where)
      return codes.astype(np.float64), self._classes.hashes(codes)
    remedy = 'Correct it, or give --label_kind=class if labels are names.'
    found = columns.finite(values, name, batch.where, remedy, self._uses.reading)
    if found.ndim > 1:
      raise problems.DataError(
        f'{batch.where(0)}: {name} has {list(found.shape[1:])} values of a row; a '
        'label must be one.'
      )
    if self._few is not None:
      self._few |= set(np.unique(found).tolist())
      if len(self._few) > FEW_CLASSES or any(v != int(v) for v in self._few):
        self._few = None
    return found, found.view(np.uint64)

  def _several_labels(self, batch: source.Batch) -> tuple[np.ndarray, np.ndarray]:
    """Several labels of each row as numbers; and hashes."""
    parts, names = [], list[str]()
    for name in self._uses.labels:
      found = columns.finite(
        batch.columns[name], name, batch.where, _SEVERAL, self._uses.reading
      )
      if found.ndim > 2:
        raise problems.DataError(
          f'{batch.where(0)}: {name} has {list(found.shape[1:])} values of a row; '
          'labels must be one, or a list.'
        )
      parts.append(found.reshape(batch.num_rows, -1))
      names += _label_names(name, parts[-1].shape[1], found.ndim - 1)
    block = np.concatenate(parts, axis=1)
    if self._several != tuple(names):
      raise problems.DataError(
        f'{batch.where(0)}: labels are {problems.listed(names)}, and before '
        f'{problems.listed(self._several or ())}.'
      )
    is_tag = (block == 0) | (block == 1)
    must_be = self._uses.label_kind == 'class'
    if self._like is not None:
      must_be = self._like.are_tags
    if must_be and not is_tag.all():
      row, place = np.argwhere(~is_tag)[0]
      raise problems.DataError(
        f'{batch.where(row)}: {names[place]} is {block[row, place]:g}. Each of several '
        'labels that are tags is 0 or 1; of numbers give --label_kind=number.'
      )
    self._are_tags &= is_tag.all(axis=0)
    self._are_one_hot &= bool((is_tag.all(axis=1) & (block.sum(axis=1) == 1)).all())
    return block, hashing.of_rows(block)

  def _of_tags(self) -> bool:
    """Whether all of several labels are tags, and not numbers."""
    if self._several is None or self._uses.label_kind == 'number':
      return False
    if self._like is not None:
      return self._like.are_tags
    if not self._are_tags.any():
      return False
    tags = [name for name, is_tag in zip(self._several, self._are_tags) if is_tag]
    if len(tags) < len(self._several):
      raise problems.DataError(
        f'labels are of several kinds: only {problems.listed(tags)} are 0 or 1. If all '
        'are numbers, give --label_kind=number; else train a model for each kind.'
      )
    if self._are_one_hot and self._uses.label_kind is None:
      raise problems.DataError(
        f'each row has exactly one of {problems.listed(tags)}. Of classes that are '
        'written one-hot, give the class in one column; of tags, --label_kind=class.'
      )
    return True

  def _finish(self) -> tuple[Rows, Schema]:
    renumbered = []
    name_columns: dict[str, tuple[str, ...]] = {}
    embedded_columns: dict[str, tuple[str, ...]] = {}
    for name, kind in self._kinds.items():
      if kind is not None:
        found = embedded_columns if name in self._uses.embedded else name_columns
        found[name], numbers = kind.names()
        renumbered.append(numbers)
    classes, class_numbers = self._class_numbers()
    rows = Rows(
      clients=self._clients.array if len(self._clients) else None,
      hashes=self._hashes.array,
      numbers=self._numbers.array,
      codes=self._names.array,
      values=self._labels.array,
      texts=self._texts,
      ids=self._ids,
      name_numbers=tuple(renumbered),
      class_numbers=class_numbers,
    )
    are_tags = self._of_tags()
    return rows, Schema(
      self._shapes, name_columns, classes, embedded_columns, self._several, are_tags
    )

  def _class_numbers(
    self,
  ) -> tuple[Optional[tuple[str, ...]], Optional[Callable[[np.ndarray], np.ndarray]]]:
    """Names of classes, and what makes their numbers of labels; `None` for numbers."""
    if self._classes is not None:
      names, numbers = self._classes.names()
      if not self._uses.label_kind and self._like is None:
        self._refuse_identifiers(len(names))
      of_code = numbers.astype(np.float64)
      return names, lambda codes: of_code[codes.astype(np.int64)]
    if not self._few or not self._uses.labels or self._several is not None:
      return None, None
    values = np.array(sorted(self._few))
    names = tuple(map(columns.number_name, values.tolist()))
    return names, lambda labels: np.searchsorted(values, labels).astype(np.float64)

  def _refuse_identifiers(self, num_classes: int) -> None:
    """Refuses labels that mostly are in one row alone: nothing can be learned."""
    num_rows, (name, *_) = len(self._labels), self._uses.labels
    if num_classes > _FEW_TEXTS and 2 * num_classes > num_rows:
      raise problems.DataError(
        f'{name} has {num_classes} different values in {num_rows} rows, as texts and '
        'identifiers have; a label must be one of few classes. Give another '
        '--label_column, or --label_kind=class if these are classes.'
      )


def _may_be_number(value: Any) -> bool:
  """Whether a column that begins so has numbers, of which the first may be missing."""
  return columns.is_number(value) or columns.is_empty(value)


def _label_names(name: str, width: int, ndim: int) -> list[str]:
  """What the labels of a column are called, of which a row has one, or a list."""
  return [f'{name}[{i}]' for i in range(width)] if ndim else [name]


def clients_of(
  batch: source.Batch, name: Optional[str], reading: columns.Reading
) -> tuple[Optional[np.ndarray], source.Values]:
  """Whose the rows of a batch are: keys of ids, uint64 [rows, 2], and the ids.

  `name`: Column that says it; `None` if the format does, or nothing; then there are no
  keys.
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
  # Names of files are not written by who writes numbers.
  as_text = dataclasses.replace(reading, numerals=columns.Numerals('.', ''))
  if isinstance(batch.clients, str):
    ids = columns.ids(
      [batch.clients], 'the name of the client', lambda _: batch.where(0), as_text
    )
    return hashing.of_ids(ids).repeat(batch.num_rows, axis=0), ids * batch.num_rows
  ids = columns.ids(batch.clients, 'the id of the client', batch.where, as_text)
  return hashing.of_ids(ids), ids


def _others(error: problems.ValueOfRowError, batches: Iterator[source.Batch]) -> str:
  """In how many rows a column has what cannot be used, as far as all can be read."""
  values = ((batch.columns.get(error.column, ()), batch.where) for batch in batches)
  return problems.others(
    ([i for i, v in enumerate(some) if error.is_bad(v)], where)
    for some, where in values
  )


def chunks(array: np.ndarray, size: int = 2**14) -> Iterator[np.ndarray]:
  """An array some entries at a time."""
  for first in range(0, len(array), size):
    yield array[first : first + size]
