"""Reads the rows of a data source once and stores them on disk, column by column."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

import numpy as np

from . import columns
from . import hashing
from . import problems
from . import spill
from .formats import source

if TYPE_CHECKING:  # It imports this module.
  from . import preprocessing

MAX_VALUES = 100  # Of a column that is one-hot encoded.
_MAX_EMBEDDED_VALUES = 1_000_000  # Of a column; float32 holds their indices.
# Up to so many different integers are taken for classes; maximum of classes.
MAX_INT_CLASSES, _MAX_CLASSES = 20, 10_000
_FEW_CLASSES = 100  # So many are accepted however few rows each has.
_FEATURE = (
  'Correct it, or remove the row; or give --one_hot_columns if all values of the '
  'column are names, --embedding_columns if these are many; or leave the column out by '
  '--feature_columns.'
)
_LABEL = (
  'Correct it, or give --label_kind=class if all labels are names of classes, or '
  '--label_kind=number.'
)
_COLUMNS = (
  'Name columns by --client_column, --label_column, --feature_columns or '
  '--text_column, and what separates them by --separator.'
)
_AS_TRAINED = 'It must be as in the training data.'


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


_NONE = np.zeros(0)  # For data without such columns.


class Rows(NamedTuple):
  """All rows, and what their columns are.

  Arrays have one entry per row, and are memory-mapped from files.
  """

  hashes: np.ndarray  # Hash of a row's content without the client, uint64 [rows].
  ids: 'Texts'  # Clients' ids by row; empty for training data, and without clients.
  # Keys of clients' ids, uint64 [rows, 2]; `None` without clients.
  clients: Optional[np.ndarray] = None
  # Numeric features, float64 [rows, columns]; float32 if an entry has a shape.
  numbers: np.ndarray = _NONE
  # Codes of categorical features: values are numbered by first occurrence, uint32
  # [rows, columns]. Columns with embeddings come last.
  codes: np.ndarray = _NONE
  # Labels as read, numbers or codes of classes: float64 [rows], or [rows, labels] if a
  # row has several.
  values: np.ndarray = _NONE
  texts: Optional['Texts'] = None  # Texts by row; `None` for data with features.
  # Numeric features, with the shape of one entry.
  number_columns: Mapping[str, tuple[int, ...]] = {}
  # Categorical features that are one-hot encoded, with all their values.
  name_columns: Mapping[str, tuple[str, ...]] = {}
  # Categorical features with an embedding for each value, with all their values.
  embedded_columns: Mapping[str, tuple[str, ...]] = {}
  # Names of classes; `None` if labels are not classes, or there are none.
  classes: Optional[tuple[str, ...]] = None
  # Names of the labels if a row has several; `None` if it has one.
  several: Optional[tuple[str, ...]] = None
  are_tags: bool = False  # Whether each of several labels is 0 or 1.
  # For each categorical column, the index among its values of each code.
  name_indices: tuple[np.ndarray, ...] = ()
  # Maps labels to indices of classes; `None` if labels are not classes.
  class_indices: Optional[Callable[[np.ndarray], np.ndarray]] = None
  # Numeric columns that may be names, with the reason.
  may_be_names: Mapping[str, str] = {}

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
  """Reads all rows of a source, and infers what their columns are unless it is known.

  `expected`: What the columns must be; `None` to infer it.
  """

  def __init__(
    self,
    uses: Uses,
    folder: str,
    expected: Optional['preprocessing.Preprocessing'] = None,
  ):
    self._uses, self._folder, self._expected = uses, folder, expected
    self._spills: dict[str, spill.Spill] = {}  # By the name of the field of `Rows`.
    self._ids = Texts(folder)
    self._texts = None if uses.text is None else Texts(folder)
    self._encoders: dict[str, Optional[columns.Encoder]] = {}  # `None` for numbers.
    # Shapes of the entries of numeric columns; without `expected`, those of the first.
    self._shapes = {} if expected is None else dict(expected.number_columns)
    self._classes: Optional[columns.Encoder] = None  # `None` if labels are numbers.
    self._are_several = False  # Whether each row has several labels, as in a list.
    self._label_names: tuple[str, ...] = ()
    # The different labels, while all are integers and few; `None` otherwise.
    self._int_labels: Optional[set[float]] = None
    # Whether each of several labels is 0 or 1; and exactly one in each row is 1.
    self._are_tags, self._are_one_hot = np.array(False), True
    self._may_be_names: dict[str, str] = {}

  def read(self, opened: source.Source) -> Rows:
    for name in self._uses.named:
      if name not in opened.columns:
        raise problems.DataError(
          f'{opened.path} has no column {name!r}; its columns are: '
          f'{problems.listed(opened.columns)}. {self._remedy(_COLUMNS)}'
        )
    batches = self._batches(opened)
    first = next(batches, None)
    if first is None:
      raise problems.DataError(f'{opened.path} is empty: it has no rows.')
    self._infer_columns(first)
    for batch in itertools.chain([first], batches):
      try:
        self._add(batch)
      except problems.ValueOfRowError as e:
        others = problems.others(
          (each.where, row)
          for each in itertools.chain([batch], batches)
          for row, value in enumerate(each.columns.get(e.column, ()))
          if e.is_bad(value)
        )
        is_label = self._expected is not None and e.column in self._uses.labels
        more = ' To predict without labels, leave the column out.' if is_label else ''
        raise problems.DataError(f'{e}{others}{more}') from e
    return self._finish()

  def _batches(self, opened: source.Source) -> Iterator[source.Batch]:
    """Yields batches with numbers as Python reads them, but in the text column.

    A single label may be a list of one, as Keras's data sets have it.
    """
    reading = self._uses.reading
    may_be_single = self._expected is None or self._expected.several is None
    for batch in opened.batches(self._uses.named):
      standard = {
        name: values
        if name == self._uses.text
        else reading.standard(values, name, batch.where)
        for name, values in batch.columns.items()
      }
      if may_be_single and len(self._uses.labels) == 1:
        (name,) = self._uses.labels
        standard[name] = _single(standard[name])
      yield batch._replace(columns=standard)

  def _infer_columns(self, batch: source.Batch) -> None:
    """Infers from the first row which columns are categorical, and the labels."""
    uses, expected = self._uses, self._expected
    known: Mapping[str, tuple[str, ...]] = {}
    if expected is not None:
      known = {**expected.name_columns, **expected.embedded_columns}
    for name in sorted(uses.features, key=uses.embedded.__contains__):
      are_stated = name in uses.embedded or name in uses.one_hot or name in known
      is_inferred = expected is None and not _may_be_number(batch.columns[name][0])
      self._encoders[name] = None
      if are_stated or is_inferred:
        self._encoders[name] = columns.Encoder(
          name,
          _MAX_EMBEDDED_VALUES if name in uses.embedded else MAX_VALUES,
          self._remedy(_FEATURE),
          uses.reading,
          known.get(name),
          allows_numbers=are_stated,
          allows_unknown=name in uses.embedded,
        )
    if uses.labels:
      self._infer_labels(batch.columns[uses.labels[0]][0])
    numeric = [name for name, encoder in self._encoders.items() if encoder is None]
    for name in (*numeric, *(uses.labels if self._classes is None else ())):
      values = batch.columns[name]
      if any(isinstance(each, str) and re.match(r'\s*0\d', each) for each in values):
        self._may_be_names[name] = 'leading zeros'

  def _remedy(self, stated: str) -> str:
    return stated if self._expected is None else _AS_TRAINED

  def _infer_labels(self, first: Any) -> None:
    """Infers from the first label whether labels are several, classes, or numbers."""
    uses, expected, known = self._uses, self._expected, None
    if expected is not None:
      self._are_several, known = expected.several is not None, expected.classes
      self._label_names = expected.several or uses.labels
      self._are_tags, are_classes = np.array(expected.are_tags), known is not None
    else:
      self._are_several = len(uses.labels) > 1 or isinstance(first, (list, np.ndarray))
      self._are_tags = np.array(self._are_several and uses.label_kind != 'number')
      are_classes = uses.label_kind == 'class' and not self._are_several
      if uses.label_kind is None and not self._are_several:
        are_classes = not _may_be_number(first)
        self._int_labels = set()
    if are_classes:
      self._classes = columns.Encoder(
        uses.labels[0],
        _MAX_CLASSES,
        self._remedy(_LABEL),
        uses.reading,
        known,
        allows_numbers=bool(known or uses.label_kind),
      )

  def _append(self, field: str, array: np.ndarray) -> None:
    if field not in self._spills:
      self._spills[field] = spill.Spill(self._folder, array.dtype, array.shape[1:])
    self._spills[field].append(array)

  def _add(self, batch: source.Batch) -> None:
    uses = self._uses
    ids = _ids_of(batch, uses.client, uses.reading)
    if ids is not None:
      encoded = hashing.encoded(ids)
      self._append('clients', hashing.of_ids(encoded))
      if self._expected is not None:
        self._ids.append(encoded)
    if self._texts is not None and uses.text is not None:
      texts = columns.texts(
        batch.columns[uses.text], uses.text, batch.where, uses.reading
      )
      for number, text in enumerate(texts):
        if uses.reading.is_missing(text):
          uses.reading.refuse_missing(text, uses.text, batch.where(number))
      encoded = hashing.encoded(texts)
      self._texts.append(encoded)
      self._append('hashes', hashing.of_texts(encoded)[:, 0])
      return
    parts = self._add_features(batch)
    if uses.labels:
      labels, label_hashes = self._encode_labels(batch)
      self._append('values', labels)
      parts.append(label_hashes)
    self._append('hashes', hashing.of_rows(np.stack(parts, axis=1)))

  def _add_features(self, batch: source.Batch) -> list[np.ndarray]:
    """Appends the features; returns hashes of the rows' numbers and of their codes."""
    numbers = [np.zeros((batch.num_rows, 0))]
    codes = [np.zeros((batch.num_rows, 0), np.uint32)]
    hashes = [np.zeros((batch.num_rows, 0), np.uint64)]
    dtype: Any = np.float64
    for name, encoder in self._encoders.items():
      if encoder is None:
        numbers.append(self._numbers(name, batch, _FEATURE))
        dtype = dtype if len(self._shapes[name]) < 2 else np.float32
      else:
        codes.append(encoder.add(batch.columns[name], batch.where)[:, None])
        hashes.append(encoder.hashes(codes[-1]))
    block = np.concatenate(numbers, axis=1)
    self._append('numbers', block.astype(dtype, copy=False))
    self._append('codes', np.concatenate(codes, axis=1))
    return [hashing.of_rows(each) for each in (block, np.concatenate(hashes, axis=1))]

  def _numbers(self, name: str, batch: source.Batch, remedy: str) -> np.ndarray:
    """Returns a numeric column: float64 [rows, numbers of an entry]."""
    values, reading = batch.columns[name], self._uses.reading
    array = columns.finite(values, name, batch.where, self._remedy(remedy), reading)
    if (np.abs(array) >= columns.EXACT).any():
      self._may_be_names[name] = 'digits that float64 does not hold'
    shape, before = array.shape[1:], self._shapes.setdefault(name, array.shape[1:])
    if shape != before:
      raise problems.DataError(
        f'{batch.where(0)}: {name} is of shape {list(shape)}, not {list(before)} as '
        'before.'
      )
    return array.reshape(batch.num_rows, -1)

  def _encode_labels(self, batch: source.Batch) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels as numbers or codes of classes, and their hashes."""
    uses = self._uses
    if self._classes is not None:
      codes = self._classes.add(batch.columns[uses.labels[0]], batch.where)
      return codes.astype(np.float64), self._classes.hashes(codes)
    block = np.concatenate(
      [self._numbers(name, batch, _LABEL) for name in uses.labels], axis=1
    )
    names: list[str] = []
    for name in uses.labels:
      shape = self._shapes[name]
      if len(shape) > 1:
        raise problems.DataError(
          f'{batch.where(0)}: {name} has {list(shape)} values of a row; labels must be '
          'one, or a list.'
        )
      names += [f'{name}[{i}]' for i in range(math.prod(shape))] if shape else [name]
    self._label_names = self._label_names or tuple(names)
    if self._label_names != tuple(names):
      raise problems.DataError(
        f'{batch.where(0)}: labels are {problems.listed(names)}, and before '
        f'{problems.listed(self._label_names)}.'
      )
    if self._are_several:
      self._check_tags(block, batch)
      return block, hashing.of_rows(block)
    if self._int_labels is not None:
      self._add_int_labels(block[:, 0], batch)
    return block[:, 0], block[:, 0].view(np.uint64)

  def _check_tags(self, block: np.ndarray, batch: source.Batch) -> None:
    is_tag = (block == 0) | (block == 1)
    if self._expected is None and self._uses.label_kind is None:
      self._are_tags = self._are_tags & is_tag.all(axis=0)
      self._are_one_hot &= bool((is_tag.all(axis=1) & (block.sum(axis=1) == 1)).all())
    elif self._are_tags and not is_tag.all():
      row, column = np.argwhere(~is_tag)[0]
      raise problems.DataError(
        f'{batch.where(row)}: {self._label_names[column]} is {block[row, column]:g}. '
        'Each of several labels that are tags is 0 or 1; for numbers give '
        '--label_kind=number.'
      )

  def _labels_are_tags(self) -> bool:
    """Whether all labels are tags; refuses labels of two kinds, and one-hot ones."""
    if not self._are_tags.ndim:  # It was stated, or there are no such labels.
      return bool(self._are_tags)
    tags = [name for name, is_tag in zip(self._label_names, self._are_tags) if is_tag]
    if tags and len(tags) < len(self._label_names):
      raise problems.DataError(
        f'labels are of several kinds: only {problems.listed(tags)} are 0 or 1. If all '
        'are numbers, give --label_kind=number; else train a model for each kind.'
      )
    if tags and self._are_one_hot:
      raise problems.DataError(
        f'each row has exactly one of {problems.listed(tags)}. For classes written '
        'one-hot, give the class in one column; for tags, --label_kind=class.'
      )
    return bool(tags)

  def _add_int_labels(self, labels: np.ndarray, batch: source.Batch) -> None:
    assert self._int_labels is not None
    too_large = np.flatnonzero(np.abs(labels) >= columns.EXACT)
    if too_large.size:
      raise problems.DataError(
        f'{batch.where(int(too_large[0]))}: {self._uses.labels[0]} has numbers of 2^53 '
        'or more, some of which are the same as floats. Give --label_kind=class if '
        'they are names, or --label_kind=number.'
      )
    self._int_labels |= set(np.unique(labels).tolist())
    are_few = len(self._int_labels) <= MAX_INT_CLASSES
    if not are_few or not all(map(float.is_integer, self._int_labels)):
      self._int_labels = None

  def _finish(self) -> Rows:
    indices = []
    by_kind: tuple[dict[str, tuple[str, ...]], ...] = ({}, {})
    for name, encoder in self._encoders.items():
      if encoder is not None:
        values = by_kind[name in self._uses.embedded]
        values[name], index_of_code = encoder.names()
        indices.append(index_of_code)
    classes, class_indices = self._class_encoding()
    numeric = (name for name, encoder in self._encoders.items() if encoder is None)
    return Rows(
      ids=self._ids,
      texts=self._texts,
      number_columns={name: self._shapes[name] for name in numeric},
      name_columns=by_kind[False],
      embedded_columns=by_kind[True],
      classes=classes,
      several=self._label_names if self._are_several else None,
      are_tags=self._labels_are_tags(),
      may_be_names=self._may_be_names,
      name_indices=tuple(indices),
      class_indices=class_indices,
      **{field: spilled.array for field, spilled in self._spills.items()},
    )

  def _class_encoding(
    self,
  ) -> tuple[Optional[tuple[str, ...]], Optional[Callable[[np.ndarray], np.ndarray]]]:
    """Returns names of classes, and the map from labels to indices, or `None`s."""
    if self._classes is not None:
      names, indices = self._classes.names()
      num_rows = len(self._spills['hashes'])
      is_inferred = self._expected is None and not self._uses.label_kind
      # If most labels occur in one row only, nothing can be learned.
      if is_inferred and len(names) > max(_FEW_CLASSES, num_rows / 2):
        raise problems.DataError(
          f'{self._uses.labels[0]} has {len(names)} different values in {num_rows} '
          'rows, as texts and identifiers have; a label must be one of few classes. '
          'Give another --label_column, or --label_kind=class if these are classes.'
        )
      index_of_code = indices.astype(np.float64)
      return names, lambda codes: index_of_code[codes.astype(np.int64)]
    if not self._int_labels:
      return None, None
    values = np.array(sorted(self._int_labels))
    names = tuple(map(columns.number_name, values.tolist()))
    return names, lambda labels: np.searchsorted(values, labels).astype(np.float64)


def _single(values: source.Values) -> source.Values:
  """Returns the values without the lists, if each is a list of one value."""
  if isinstance(values, np.ndarray):
    return values[:, 0] if values.shape[1:] == (1,) else values
  if all(isinstance(each, (list, np.ndarray)) and len(each) == 1 for each in values):
    inner = [each[0] for each in values]
    return values if isinstance(inner[0], (list, np.ndarray)) else inner
  return values


def _may_be_number(value: Any) -> bool:
  """Whether a column with this first value is numeric; the first may be missing."""
  is_empty = value is None or not str(value).strip()
  return is_empty or columns.is_number(value)


def _ids_of(
  batch: source.Batch, name: Optional[str], reading: columns.Reading
) -> Optional[list[str]]:
  """Returns the ids of the rows' clients; `None` if there are no clients.

  `name`: Column with the ids; `None` if the format gives them, or there are none.
  """
  if name is not None:
    return columns.ids(batch.columns[name], name, batch.where, reading)
  if batch.clients is None:
    return None
  ids = batch.clients
  if isinstance(ids, str):
    ids = [ids] * batch.num_rows
  # Ids of the format, such as names of files, are not numbers with a decimal sign.
  as_text = dataclasses.replace(reading, decimal='.', thousands='')
  return columns.ids(ids, 'the id of the client', batch.where, as_text)


def chunks(array: np.ndarray, size: int = 2**14) -> Iterator[np.ndarray]:
  """Yields successive slices of an array."""
  for first in range(0, len(array), size):
    yield array[first : first + size]
