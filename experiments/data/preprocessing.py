"""Preprocessing that turns columns into model inputs, stored with a run for later data.

It is computed from clients' data without noise, so others must not see it; reports say
that the guarantee does not cover it.
"""

import dataclasses
import functools
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import msgspec
import numpy as np

from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.learning.runs import run_directory

from . import columns
from . import formats
from . import population
from . import problems
from . import table
from . import texts as texts_lib

BALANCED = 'balanced'  # Weights of classes.
_CHUNK, _NUM_OUTPUTS = 2**12, 2**24  # Maximum of rows, and of a model's outputs.
# Mappings whose order matters.
_ORDERED_MAPPINGS = ('number_columns', 'name_columns', 'embedded_columns')
_NOT_PRIVATE = (
  "computed from the clients' data without noise: not covered by the guarantee, and "
  'not to be handed on'
)


@dataclasses.dataclass(frozen=True)
class Preprocessing:
  """How the training data were preprocessed, to be repeated on data like them."""

  # Shapes of inputs and labels, and names of classes or tokens.
  shape: population.Shape
  # Column with the client's id; `None` if the format gives the ids, or there are none.
  client: Optional[str] = None
  labels: tuple[str, ...] = ()  # Columns to predict; empty for text.
  # Numeric features, with the shape of an entry; then those that are one-hot encoded,
  # and those with an embedding by value, with all their values. Inputs are in this
  # order.
  number_columns: Mapping[str, tuple[int, ...]] = dataclasses.field(
    default_factory=dict
  )
  name_columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  embedded_columns: Mapping[str, tuple[str, ...]] = dataclasses.field(
    default_factory=dict
  )
  # Names of the labels if a row has several; `None` if it has one.
  several: Optional[tuple[str, ...]] = None
  are_tags: bool = False  # Whether each of several labels is 0 or 1.
  # Subtracted from numeric features, by column; `None` for no scaling.
  mean: Optional[tuple[float, ...]] = None
  scale: Optional[tuple[float, ...]] = None  # By which they are divided afterwards.
  text: Optional[str] = None
  text_unit: Optional[str] = None  # `character` or `word`; `None` without text.
  vocabulary: Optional[tuple[str, ...]] = None  # Known characters or words, by token.
  # Scaling of numeric labels; `None` if none.
  label_scaling: Optional[population.LabelScaling] = None
  # How values are written: the values of the flags with these names.
  missing_values: Optional[tuple[str, ...]] = None
  decimal: Optional[str] = None
  thousands: Optional[str] = None
  separator: Optional[str] = None
  # The flag of this name, which the configuration of a run has.
  label_kind: Optional[str] = dataclasses.field(default=None, compare=False)

  @property
  def reading(self) -> columns.Reading:
    return columns.Reading(self.missing_values, self.decimal, self.thousands)

  @property
  def classes(self) -> Optional[tuple[str, ...]]:
    return self.shape.names if self.shape.label_kind == 'class' else None

  @property
  def label_dtype(self) -> Any:
    return np.float32 if self.shape.label_kind == 'number' else np.int32

  @functools.cached_property
  def tokens(self) -> texts_lib.Vocabulary:
    assert self.text_unit is not None and self.vocabulary is not None
    return texts_lib.Vocabulary(self.text_unit, self.vocabulary)

  def examples_of(
    self, rows: table.Rows, index: slice, is_scaled: bool = True
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and labels of the rows, the latter scaled or in their unit."""
    labels = rows.values[index]
    if is_scaled and self.label_scaling is not None:
      labels = self.label_scaling.done(labels)
    return self.inputs_of(rows, index), labels.astype(self.label_dtype)

  def inputs_of(self, rows: table.Rows, index: slice) -> np.ndarray:
    numbers, names = rows.numbers[index], rows.codes[index]
    if self.mean is not None and self.scale is not None:
      numbers = (numbers - np.array(self.mean)) / np.array(self.scale)
    sizes = tuple(map(len, self.name_columns.values()))
    width = numbers.shape[1]
    num_inputs = width + sum(sizes) + names.shape[1] - len(sizes)
    inputs = np.zeros((len(numbers), num_inputs), np.float32)
    inputs[:, :width] = numbers
    for column, size in enumerate(sizes):
      inputs[np.arange(len(numbers)), width + names[:, column]] = 1
      width += size
    inputs[:, width:] = names[:, len(sizes) :]
    return inputs.reshape(-1, *self.shape.inputs)

  def in_units(self, outputs: np.ndarray) -> np.ndarray:
    """Returns outputs of a model of numbers in the labels' units: float64."""
    result = np.asarray(outputs, np.float64)
    result = result.reshape(len(outputs), *self.shape.labels)
    return result if self.label_scaling is None else self.label_scaling.undone(result)

  def to_json(self) -> dict[str, Any]:
    content = msgspec.json.decode(msgspec.json.encode(self))
    del content['label_kind']
    # JSON objects are unordered.
    in_order = {name: list(content[name].items()) for name in _ORDERED_MAPPINGS}
    return {'about': _NOT_PRIVATE, **content, **in_order}

  @classmethod
  def from_json(cls, content: Mapping[str, Any]) -> 'Preprocessing':
    try:
      mappings = {name: dict(content[name]) for name in _ORDERED_MAPPINGS}
      unknown = set(content) - {'about', *(f.name for f in dataclasses.fields(cls))}
      if unknown:
        raise ValueError(f'there is no {min(unknown)}')
      return strict_json.convert({**content, **mappings}, cls)
    except (KeyError, TypeError, ValueError) as e:
      raise ValueError(f'it has not what a run keeps: {e}.') from e

  def read(
    self,
    path: str,
    data_format: Optional[str] = None,
    split: Optional[str] = None,
    scratch: Optional[str] = None,
    may_lack_labels: bool = True,
  ) -> 'NewData':
    """Reads data like those of the training, with or without labels."""
    scratch = scratch or tempfile.gettempdir()
    opened = formats.open_data(path, data_format, split, self.separator)
    present = frozenset(opened.columns)
    has_labels = not may_lack_labels or present.issuperset(self.labels)
    there = dataclasses.replace(
      self,
      client=self.client if self.client in present else None,
      labels=self.labels if has_labels else (),
    )
    rows = table.Reader(there, scratch, may_lack_labels=may_lack_labels).read(opened)
    features = (*self.number_columns, *self.name_columns, *self.embedded_columns)
    used = (there.client, *there.labels, self.text, *features)
    return NewData(
      self,
      rows,
      unused=tuple(each for each in opened.columns if each not in used),
      client_column=None if rows.clients is None else there.client or 'client',
      has_labels=self.text is not None or bool(there.labels),
    )


class Chunk(NamedTuple):
  # Ids of the rows' clients in the data; `None` if the data have none.
  clients: Optional[list[str]]
  # Inputs of a model by row; for text, the last tokens of each text, padded at the end.
  inputs: np.ndarray
  # Index of the last token of each text; `None` for features.
  last: Optional[np.ndarray]


@dataclasses.dataclass(frozen=True)
class NewData:
  """Data in the order of the file, with the preprocessing that applies to them."""

  _preprocessing: Preprocessing
  rows: table.Rows
  unused: tuple[str, ...]  # Columns that the training data do not have.
  # Name of the column with clients' ids; `None` if the data have no clients.
  client_column: Optional[str]
  has_labels: bool  # Whether there are labels, as there always are in text.

  def __len__(self) -> int:
    return len(self.rows.hashes)

  def _slices(self) -> Iterator[slice]:
    """Yields slices of the rows, with at most `_NUM_OUTPUTS` outputs of a model."""
    shape = self._preprocessing.shape
    num_outputs = math.prod(shape.labels) * (shape.num_classes or 1)
    size = max(1, min(_CHUNK, _NUM_OUTPUTS // num_outputs))
    for first in range(0, len(self), size):
      yield slice(first, min(first + size, len(self)))

  def chunks(self) -> Iterator[Chunk]:
    preprocessing, texts = self._preprocessing, self.rows.texts
    for index in self._slices():
      numbers = range(index.start, index.stop)
      clients = None
      if self.client_column is not None:
        clients = [self.rows.ids[row] for row in numbers]
      if texts is None:
        yield Chunk(clients, preprocessing.inputs_of(self.rows, index), None)
        continue
      (length,) = preprocessing.shape.inputs
      inputs = np.full((len(numbers), length), texts_lib.PADDING, np.int32)
      last = np.zeros(len(numbers), np.int64)
      for place, row in enumerate(numbers):
        # Without the end token, which may be predicted.
        tokens = preprocessing.tokens.tokens(texts[row])[:-1][-length:]
        inputs[place, : len(tokens)] = tokens
        last[place] = len(tokens) - 1
      yield Chunk(clients, inputs, last)

  def examples(
    self, is_scaled: bool = False
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields chunks of inputs and labels, like those that a model is tested on."""
    preprocessing, texts = self._preprocessing, self.rows.texts
    if not self.has_labels:
      raise ValueError(
        f'the data lack labels, {problems.listed(preprocessing.labels)}, which '
        'metrics need; add the columns.'
      )
    for index in self._slices():
      if texts is None:
        yield preprocessing.examples_of(self.rows, index, is_scaled)
        continue
      (length,), rows = preprocessing.shape.inputs, range(index.start, index.stop)
      cut = [preprocessing.tokens.sequences(texts[row], length) for row in rows]
      for part in table.chunks(np.concatenate(cut), len(rows)):
        yield part[:, :-1], part[:, 1:]

  def arrays(self) -> tuple[np.ndarray, Optional[np.ndarray]]:
    """Returns all inputs in one array, and labels if there are any; see `examples`."""
    if not self.has_labels:
      return np.concatenate([chunk.inputs for chunk in self.chunks()]), None
    x, y = zip(*self.examples())
    return np.concatenate(x), np.concatenate(y)


def of_run(run_dir: str) -> Preprocessing:
  """Returns the preprocessing that a run on the user's own data has stored."""
  path = os.path.join(run_dir, run_directory.PREPROCESSING)
  if not os.path.exists(path):
    raise FileNotFoundError(
      f'{path} is not there: {run_dir} is not the directory of a run on --data of your '
      'own. learning.load(run_dir) gives the model of another one.'
    )
  with open(path, encoding='utf-8') as file:
    try:
      preprocessing = Preprocessing.from_json(json.load(file))
    except ValueError as e:
      raise ValueError(f'{path} cannot be read: {e} Put it back.') from e
  with open(os.path.join(run_dir, run_directory.CONFIG), encoding='utf-8') as file:
    flags = json.load(file).get('flags') or {}
  return dataclasses.replace(preprocessing, label_kind=flags.get('label_kind'))


def class_weights(
  stated: Sequence[str],
  classes: Optional[Sequence[str]],
  labels: Iterable[np.ndarray],
) -> Optional[tuple[float, ...]]:
  """Returns the weight of each class in their order; `None` if no weights are stated.

  Balanced weights are those of scikit-learn, n / (k n_c) for a class with n_c of n
  training examples if k classes have any. `labels`: Those for training, in parts.
  """
  if not stated:
    return None
  if classes is None:
    raise problems.DataError(
      '--class_weights is for labels of which each is one class, and these are '
      'numbers or tags. Leave it out, or give --label_kind=class if they are names.'
    )
  if tuple(stated) == (BALANCED,):
    parts = (np.bincount(each.astype(int), minlength=len(classes)) for each in labels)
    counts = np.sum(list(parts), axis=0)
    total, num_present = int(counts.sum()), int(np.count_nonzero(counts))
    return tuple(float(total / (num_present * n)) if n else 1.0 for n in counts)
  weights: dict[str, float] = {}
  for each in stated:
    name, _, number = each.rpartition(':')
    name = columns.canonical(name)
    is_weight = columns.is_number(number) and 0 < float(number) < math.inf
    if name not in classes or name in weights or not is_weight:
      raise problems.DataError(
        f'--class_weights has {each!r}. Give --class_weights={BALANCED}, or '
        'class:weight once for each as in no:1,yes:5, with weights that are positive '
        f'and finite. The classes are: {problems.listed(classes)}.'
      )
    weights[name] = float(number)
  return tuple(weights.get(name, 1.0) for name in classes)
