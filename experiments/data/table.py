"""Reads the rows of a data source once and stores them on disk, column by column."""

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

import numpy as np

from . import columns
from . import hashing
from . import population
from . import problems
from . import spill
from .formats import source

if TYPE_CHECKING:  # They import this module.
  from ..options import data as data_options
  from . import preprocessing

MAX_VALUES = 100  # Values of a column that is one-hot encoded.
_MAX_EMBEDDED_VALUES = 1_000_000  # float32 holds the indices of a column's values.
# Up to so many different integers are taken for classes; maximum of classes.
MAX_INT_CLASSES, _MAX_CLASSES = 20, 10_000
# In batches with an error, so many rows are parsed alone, which is slow.
_MAX_ROWS_ALONE = 2**14
_FEW_CLASSES = 100  # So many are accepted however few rows each has.
_FEATURE = (
  'Correct it, or remove the row; turn dates into numbers, such as days; or give '
  '--one_hot_columns if all values of the column are names, --embedding_columns if '
  'these are many; or leave the column out by --feature_columns.'
)
_LABEL = {
  'class': '--label_kind=class if all labels are names of classes',
  'number': '--label_kind=number',
}
_COLUMNS = (
  'Name columns by --client_column, --label_column, --feature_columns or '
  '--text_column, and what separates them by --separator.'
)


_NONE = np.zeros(0)  # For data without such columns.


class Rows(NamedTuple):
  """All rows: arrays with one entry per row, memory-mapped from files."""

  prep: 'preprocessing.Preprocessing'  # What the columns are.
  hashes: np.ndarray  # Hash of a row's content without the client, uint64 [rows].
  ids: 'Texts'  # Clients' ids by row; empty for training data, and without clients.
  # Keys of clients' ids, uint64 [rows, 2]; `None` without clients.
  clients: Optional[np.ndarray] = None
  # Numeric features, float64 [rows, columns]; float32 if an entry has a shape.
  numbers: np.ndarray = _NONE
  # Categorical features as indices of values, uint32 [rows, columns]. Columns with
  # embeddings come last.
  codes: np.ndarray = _NONE
  # Labels, numbers or indices of classes: float64 [rows], or [rows, labels] if a row
  # has several.
  values: np.ndarray = _NONE
  texts: Optional['Texts'] = None  # Texts by row; `None` for data with features.
  # Numeric columns that may be names, with the reason.
  may_be_names: Mapping[str, str] = {}

  def in_order(self, order: np.ndarray, folder: str) -> 'Rows':
    stored: dict[str, Any] = {
      field: spill.stored((array[index] for index in chunks(order)), folder)
      for field, array in self._asdict().items()
      if field in ('numbers', 'codes', 'values')
    }
    return self._replace(**stored)


class Texts:
  """Texts on disk, which are read by row."""

  def __init__(self, folder: str):
    self._content = spill.Spill(folder, np.uint8)
    self._ends = spill.Spill(folder, np.int64)

  def append(self, encoded: Sequence[bytes]) -> None:
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    self._ends.append(len(self._content) + np.cumsum(sizes))
    self._content.append(np.frombuffer(b''.join(encoded), np.uint8))

  def __getitem__(self, row: int) -> str:
    ends = self._ends.array
    start = int(ends[row - 1]) if row else 0
    content = self._content.array[start : int(ends[row])].tobytes()
    return content.decode('utf-8', 'surrogatepass')


class Reader:
  """Reads all rows of a source, whose columns have the uses that `prep` says.

  `files`: The flags of training data, whose other columns and kinds of values are found
  out; `None` for data like those of training.
  `may_lack_labels`: Whether data like those of training may do without them.
  """

  def __init__(
    self,
    prep: 'preprocessing.Preprocessing',
    folder: str,
    files: Optional['data_options.Files'] = None,
    may_lack_labels: bool = False,
  ):
    self._may_lack_labels = may_lack_labels
    self._prep, self._folder, self._files = prep, folder, files
    self._reading = prep.reading
    known = {**prep.number_columns, **prep.name_columns, **prep.embedded_columns}
    self._known: Mapping[str, Any] = known  # Shapes of numbers, or values.
    self._feature_names, self._embedded = tuple(known), tuple(prep.embedded_columns)
    self._one_hot, self._label_kind = tuple(prep.name_columns), None
    if files is not None:
      self._feature_names = files.feature_columns or ()
      self._embedded, self._one_hot = files.embedding_columns, files.one_hot_columns
      self._label_kind = files.label_kind
    self._spills: dict[str, spill.Spill] = {}  # By the name of the field of `Rows`.
    self._ids, self._texts = Texts(folder), Texts(folder)
    self._features: dict[str, columns.Column] = {}
    self._labels: dict[str, columns.Column] = {}
    # How the values of each column are parsed; that of `None` has the format's ids.
    self._parse: dict[Optional[str], Callable[[source.Values], Any]] = {}

  def read(self, opened: source.Source) -> Rows:
    prep = self._prep
    stated = (prep.client, *prep.labels, prep.text, *self._feature_names)
    named = [name for name in stated if name is not None]
    for name in named:
      if name not in opened.columns:
        raise problems.DataError(
          f'{opened.path} has no column {name!r}; its columns are: '
          f'{problems.listed(opened.columns)}. {self._remedy(_COLUMNS)}'
        )
    self._batches = opened.batches(named)
    for batch in self._batches:
      if not self._parse:
        self._infer_columns(batch.columns)
      self._add(batch)
    if not self._parse:
      raise problems.DataError(f'{opened.path} is empty: it has no rows.')
    return self._finish()

  def _remedy(self, stated: str) -> str:
    return stated if self._files else 'It must be as in the training data.'

  def _infer_columns(self, first: Mapping[Any, source.Values]) -> None:
    prep, reading = self._prep, self._reading
    if prep.client is not None:
      self._parse[prep.client] = functools.partial(columns.ids, reading=reading)
    elif None in first:
      # Names of files, for instance, are not numbers with a decimal sign.
      as_text = dataclasses.replace(reading, decimal='.', thousands='')
      self._parse[None] = functools.partial(columns.ids, reading=as_text)
    if prep.text is not None:
      self._parse[prep.text] = functools.partial(columns.texts, reading=reading)
    remedy = self._remedy(_FEATURE)
    for name in sorted(self._feature_names, key=self._embedded.__contains__):
      known, is_embedded = self._known.get(name), name in self._embedded
      is_stated = is_embedded or name in self._one_hot
      if is_stated or self._files and not self._may_be_number(first[name]):
        limit = _MAX_EMBEDDED_VALUES if is_embedded else MAX_VALUES
        self._features[name] = columns.Names(
          reading, remedy, limit, known, is_stated, is_embedded
        )
      else:
        self._features[name] = columns.Numbers(reading, remedy, known)
    for name in prep.labels:
      self._labels[name] = self._label(first[name])
    for name, column in self._features.items():
      self._parse[name] = column.add
    for name, column in self._labels.items():
      # A label may be a list of one, as Keras's data sets have it.
      self._parse[name] = functools.partial(_added_singles, column)

  def _may_be_number(self, values: source.Values) -> bool:
    """Whether a column that begins with these values is numeric.

    The first may be missing.
    """
    with contextlib.suppress(problems.DataError):
      value = self._reading.standard(values[:1])[0]
      is_empty = value is None or not str(value).strip()
      return is_empty or columns.is_number(value)
    return True

  def _label(self, values: source.Values) -> columns.Column:
    """Returns a column of labels that begins with these values."""
    other_kinds = (text for kind, text in _LABEL.items() if kind != self._label_kind)
    remedy = self._remedy(f'Correct it, or give {", or ".join(other_kinds)}.')
    prep, shape = self._prep, None
    classes, are_tags, is_inferred = prep.classes, prep.are_tags, False
    is_class = classes is not None
    if self._files is None:
      is_list = len(prep.labels) < len(prep.several or prep.labels)
      shape = (len(prep.several or ()),) if is_list else ()
    else:
      is_list = isinstance(values[0], (list, np.ndarray)) and len(values[0]) > 1
      are_several, is_stated = (
        is_list or len(prep.labels) > 1,
        self._label_kind == 'class',
      )
      is_class, are_tags = is_stated and not are_several, is_stated and are_several
      if self._label_kind is None and not are_several:
        is_inferred, is_class = True, not self._may_be_number(values)
    if is_class:
      known = classes or ()
      return columns.Names(
        self._reading,
        remedy,
        _MAX_CLASSES,
        classes,
        allows_numbers=not is_inferred,
        were_numbers=prep.label_kind is None
        and all(map(columns.WHOLE.fullmatch, known)),
      )
    refused = columns.NO_TAG if are_tags else columns.INEXACT if is_inferred else None
    return columns.Numbers(self._reading, remedy, shape, refused=refused)

  def _append(self, field: str, array: np.ndarray) -> None:
    if field not in self._spills:
      self._spills[field] = spill.Spill(self._folder, array.dtype, array.shape[1:])
    self._spills[field].append(array)

  def _parsed(self, name: Optional[str], batch: source.Batch) -> Any:
    try:
      return self._parse[name](batch.columns[name])
    except problems.DataError as e:
      raise self._problem(name, batch, e) from e

  def _problem(
    self, name: Optional[str], batch: source.Batch, error: problems.DataError
  ) -> problems.DataError:
    """Returns the error for a column, with its first row and the number of others."""
    rows = (
      (each.where, row, each.columns[name][row : row + 1])
      for each in itertools.chain([batch], self._batches)
      if self._problem_of(name, each.columns[name])
      for row in range(each.num_rows)
    )
    found = (
      (where, row, why, _without(why, value))
      for where, row, value in itertools.islice(rows, _MAX_ROWS_ALONE)
      if (why := self._problem_of(name, value))
    )
    first = next(found, (batch.where, 0, str(error), ''))
    where, row, words, kind = first
    alike = (each for each in itertools.chain([first], found) if each[3] == kind)
    more = ''
    if self._may_lack_labels and name in self._prep.labels:
      more = ' To predict without labels, leave the column out.'
    return problems.DataError(
      f'{where(row)}: {name or "the id of the client"} {words}'
      f'{problems.others((each[:2] for each in alike), rows)}{more}'
    )

  def _problem_of(self, name: Optional[str], values: source.Values) -> str:
    """Returns words on why the values cannot be parsed; '' if they can."""
    try:
      self._parse[name](values)
    except problems.DataError as e:
      return str(e)
    return ''

  def _add(self, batch: source.Batch) -> None:
    prep = self._prep
    if prep.client in self._parse:
      encoded = hashing.encoded(self._parsed(prep.client, batch))
      self._append('clients', hashing.of_ids(encoded))
      if self._files is None:
        self._ids.append(encoded)
    if prep.text is not None:
      encoded = hashing.encoded(self._parsed(prep.text, batch))
      self._texts.append(encoded)
      self._append('hashes', hashing.of_texts(encoded)[:, 0])
      return
    numbers, codes, hashes = self._blocks(self._features, batch)
    shapes = (getattr(each, 'shape', ()) for each in self._features.values())
    is_large = any(len(shape) > 1 for shape in shapes)
    self._append('numbers', numbers.astype(np.float32) if is_large else numbers)
    self._append('codes', codes)
    parts = [hashing.of_rows(numbers), hashing.of_rows(hashes)]
    if prep.labels:
      numbers, codes, hashes = self._blocks(self._labels, batch)
      labels = np.concatenate([numbers, codes], axis=1)
      are_several = labels.shape[1] > 1
      self._append('values', labels if are_several else labels[:, 0])
      if are_several:
        parts.append(hashing.of_rows(labels))
      else:
        parts.append(np.concatenate([numbers.view(np.uint64), hashes], axis=1)[:, 0])
    self._append('hashes', hashing.of_rows(np.stack(parts, axis=1)))

  def _blocks(
    self, group: Mapping[str, columns.Column], batch: source.Batch
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the numbers, codes, and hashes of the values with codes, by row."""
    count = batch.num_rows
    numbers = [np.zeros((count, 0))]
    codes, hashes = [np.zeros((count, 0), np.uint32)], [np.zeros((count, 0), np.uint64)]
    for name, column in group.items():
      parsed = self._parsed(name, batch).reshape(count, -1)
      if isinstance(column, columns.Names):
        codes.append(parsed)
        hashes.append(column.hashes(parsed))
      else:
        numbers.append(parsed)
    return (
      np.concatenate(numbers, axis=1),
      np.concatenate(codes, axis=1),
      np.concatenate(hashes, axis=1),
    )

  def _finish(self) -> Rows:
    by_kind: tuple[dict[str, tuple[str, ...]], ...] = ({}, {})
    index_of_code, shapes = [], {}
    for name, column in self._features.items():
      if isinstance(column, columns.Names):
        names = by_kind[name in self._embedded]
        names[name], indices = _names_of(name, column)
        index_of_code.append(indices)
      else:
        shapes[name] = column.shape or ()
    arrays: dict[str, Any] = {
      field: spilled.array for field, spilled in self._spills.items()
    }
    if index_of_code:
      arrays['codes'] = replaced(arrays['codes'], index_of_code, self._folder)
    prep = self._prep
    if self._labels:
      kind, label_names, values = self._kind_of_labels(arrays['values'])
      arrays['values'] = values
      if self._files is not None:
        name_columns, embedded_columns = by_kind
        prep = dataclasses.replace(
          prep,
          shape=population.Shape(
            inputs=_input_shape(shapes, name_columns, embedded_columns),
            input_dtype='float32',
            labels=values.shape[1:],
            label_kind=kind,
            num_classes=len(label_names or ()) if kind == 'class' else None,
            names=label_names,
            embedded=tuple(map(len, embedded_columns.values())),
          ),
          number_columns=shapes,
          name_columns=name_columns,
          embedded_columns=embedded_columns,
          several=label_names if values.ndim > 1 else None,
          are_tags=kind == 'tags',
        )
    return Rows(
      prep,
      ids=self._ids,
      texts=None if prep.text is None else self._texts,
      may_be_names={
        name: column.may_be_names
        for name, column in (*self._features.items(), *self._labels.items())
        if isinstance(column, columns.Numbers) and column.may_be_names
      },
      **arrays,
    )

  def _kind_of_labels(
    self, values: np.ndarray
  ) -> tuple[population.LabelKind, Optional[tuple[str, ...]], np.ndarray]:
    """Returns the kind of labels, their names if they have any, and the labels.

    Labels that are classes become indices.
    """
    is_inferred = self._files is not None and self._label_kind is None
    names: list[str] = []
    for name, column in self._labels.items():
      if isinstance(column, columns.Names):
        classes, indices = _names_of(name, column)
        # If most labels occur in one row only, nothing can be learned.
        if is_inferred and len(classes) > max(_FEW_CLASSES, len(values) / 2):
          raise problems.DataError(
            f'{name} has {len(classes)} different values in {len(values)} rows, as '
            'texts and identifiers have; a label must be one of few classes. Give '
            'another --label_column, or --label_kind=class if these are classes.'
          )
        found = (indices[codes.astype(np.int64)] for codes in chunks(values))
        return 'class', classes, self._as_floats(found)
      shape = column.shape or ()
      if len(shape) > 1:
        raise problems.DataError(
          f'{name} has {list(shape)} values of a row; labels must be one, or a list.'
        )
      names += [f'{name}[{i}]' for i in range(*shape)] if shape else [name]
    if values.ndim > 1:
      are_tags = self._label_kind == 'class'
      if is_inferred:
        are_tags = _are_tags(values, names)
      return 'tags' if are_tags else 'number', tuple(names), values
    numbers = _few_integers(values) if is_inferred else None
    if not numbers:
      return 'number', None, values
    found = (np.searchsorted(numbers, labels) for labels in chunks(values))
    return 'class', tuple(map(columns.number_name, numbers)), self._as_floats(found)

  def _as_floats(self, parts: Iterator[np.ndarray]) -> np.ndarray:
    return spill.stored((each.astype(np.float64) for each in parts), self._folder)


def _without(words: str, value: source.Values) -> str:
  """Returns words without the one value, which may be shown without its list."""
  for each in (value[0], columns.singles(value)[0]):
    words = words.replace(problems.shown(each), '')
  return words


def _added_singles(column: columns.Column, values: source.Values) -> np.ndarray:
  return column.add(columns.singles(values))


def _input_shape(
  number_columns: Mapping[str, tuple[int, ...]],
  name_columns: Mapping[str, tuple[str, ...]],
  embedded_columns: Mapping[str, tuple[str, ...]],
) -> tuple[int, ...]:
  """Returns the shape of one example's inputs: an image's, or one vector."""
  shapes = list(number_columns.values())
  if len(shapes) == 1 and len(shapes[0]) > 1:
    if not name_columns and not embedded_columns:
      return shapes[0]
  size = sum(map(math.prod, shapes)) + len(embedded_columns)
  size += sum(map(len, name_columns.values()))
  if not size:
    raise problems.DataError('the data have no features; name --feature_columns.')
  return (size,)


def _names_of(name: str, column: columns.Names) -> tuple[tuple[str, ...], np.ndarray]:
  try:
    return column.names()
  except problems.DataError as e:
    raise problems.DataError(f'{name} {e}') from e


def replaced(
  codes: np.ndarray, index_of_code: Sequence[np.ndarray], folder: str
) -> np.ndarray:
  """Returns the codes of columns with others in their place, on disk."""
  parts = (
    np.column_stack([each[codes] for each, codes in zip(index_of_code, chunk.T)])
    for chunk in chunks(codes)
  )
  return spill.stored((each.astype(np.uint32) for each in parts), folder)


def _few_integers(values: np.ndarray) -> Optional[list[float]]:
  """Returns the different values if they are few and whole; otherwise `None`."""
  found: set[float] = set()
  for chunk in chunks(values):
    found.update(np.unique(chunk).tolist())
    if len(found) > MAX_INT_CLASSES or not all(map(float.is_integer, found)):
      return None
  return sorted(found)


def _are_tags(values: np.ndarray, names: Sequence[str]) -> bool:
  """Whether all labels are 0 or 1; refuses labels of two kinds, and one-hot ones."""
  is_tag, is_one_hot = np.ones(len(names), bool), True
  for chunk in chunks(values):
    is_tag &= ((chunk == 0) | (chunk == 1)).all(axis=0)
    is_one_hot &= bool((chunk.sum(axis=1) == 1).all())
  tags = [name for name, each in zip(names, is_tag) if each]
  if tags and len(tags) < len(names):
    raise problems.DataError(
      f'labels are of several kinds: only {problems.listed(tags)} are 0 or 1. If all '
      'are numbers, give --label_kind=number; else train a model for each kind.'
    )
  if tags and is_one_hot:
    raise problems.DataError(
      f'each row has exactly one of {problems.listed(tags)}. For classes written '
      'one-hot, give the class in one column; for tags, --label_kind=class.'
    )
  return bool(tags)


def chunks(array: np.ndarray, size: int = 2**14) -> Iterator[np.ndarray]:
  """Yields successive slices of an array."""
  for first in range(0, len(array), size):
    yield array[first : first + size]
