"""Loads the user's own data as a federated population.

Rows are read once and kept on disk, then sorted by client; a client's examples are made
on demand. So memory does not grow with the data, except for a few numbers per client.
"""

import dataclasses
import filecmp
import functools
import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from ..options import data as data_options
from . import arrangement
from . import columns
from . import formats
from . import hashing
from . import population
from . import preprocessing
from . import problems
from . import spill
from . import table
from . import texts as texts_lib
from .formats import source

_CHUNK = 2**14
_PANDAS_INDEX = re.compile(r'__index_level_\d+__')  # Columns of Parquet.
# Returns inputs and labels of a slice of the examples in order.
Examples = Callable[[slice], tuple[np.ndarray, np.ndarray]]


class FileClients:
  """Clients by number with their examples on disk, as `learning.train` takes them."""

  def __init__(self, examples: Examples, arranged: arrangement.Arrangement):
    self.ids = range(len(arranged.starts))
    self._examples, self._arranged = examples, arranged

  def examples(self, number: int) -> dict[str, np.ndarray]:
    first, end = self._arranged.starts[number], self._arranged.ends[number]
    return dict(zip('xy', self._examples(slice(int(first), int(end)))))

  def draw_id(self, number: int) -> Any:
    """Returns the hash of a client's id in the data, by which it is sampled."""
    keys = self._arranged.keys
    return number if keys is None else keys[number].tobytes().hex()


# The examples that rows become, their arrangement (several may come from a text), how
# they were preprocessed, and facts on that.
_Prepared = tuple[
  Examples, arrangement.Arrangement, preprocessing.Preprocessing, dict[str, Any]
]


def load(options: data_options.Data) -> population.Population:
  files = options.files
  assert files is not None
  are_inferred = files.feature_columns is None
  opened, stated, files = _opened(files)
  _refuse_training_data_as_test_data(opened, files)
  rows = table.Reader(stated, files.scratch, files).read(opened)
  if files.partition == 'label_skew' and rows.prep.classes is None:
    raise problems.DataError(
      '--partition=label_skew needs labels of which each is one class; give '
      '--label_kind=class if they are names, or another --partition.'
    )
  arrange = (
    arrangement.of_clients if files.partition is None else arrangement.of_made_clients
  )
  arranged = arrange(rows, options)
  prepared = (
    _of_table(rows, arranged, files)
    if rows.texts is None
    else _of_texts(rows.texts, arranged, files, stated)
  )
  examples, arranged, prep, facts = prepared
  overlap_remark = ''
  test_batches: Iterable[Any] = (
    [each[is_test] for each in examples(index)]
    for index, is_test in arranged.parts()
    if is_test.any()
  )
  if files.test_data is not None:
    new_data = prep.read(
      files.test_data,
      files.data_format,
      files.test_split,
      files.scratch,
      may_lack_labels=False,
    )
    overlap_remark = _overlap_remark(new_data.rows.clients, rows.clients)
    test_batches = new_data.examples(is_scaled=True)
  x = spill.Spill(files.scratch, prep.shape.input_dtype, prep.shape.inputs)
  y = spill.Spill(files.scratch, prep.label_dtype, prep.shape.labels)
  for inputs, labels in test_batches:
    x.append(inputs)
    y.append(labels)
  test_examples = x.array, y.array
  return population.Population(
    clients=FileClients(examples, arranged),
    num_clients=len(arranged.starts),
    test_examples=test_examples,
    shape=prep.shape,
    label_scaling=prep.label_scaling,
    facts={
      **_facts(rows, arranged, test_examples, prep.shape),
      **facts,
    },
    not_covered=_not_covered(prep, files, overlap_remark),
    remarks=(*_left_out(opened, prep, are_inferred), *_remarks(rows, files)),
    preprocessing=prep,
  )


def _refuse_training_data_as_test_data(
  training: source.Source, files: data_options.Files
) -> None:
  if files.test_data is None:
    return
  tested = formats.open_data(
    files.test_data, files.data_format, files.test_split, files.separator
  )
  pair = (files.path, files.test_data)
  is_same = os.path.samefile(*pair) or filecmp.cmp(*pair, shallow=False)
  if is_same and tested.split == training.split:
    raise problems.DataError(
      f'test and training data are the same, {files.test_data}; give another '
      'file by --test_data, or another --test_split of a database.'
    )


def _opened(
  files: data_options.Files,
) -> tuple[source.Source, preprocessing.Preprocessing, data_options.Files]:
  """Opens the data, reading only their head, and decides what the columns are for."""
  path = files.path
  file_format = formats.of(path, files.data_format)
  text = files.text_column or file_format.text_column
  opened = formats.open_data(path, files.data_format, files.data_split, files.separator)
  client = files.client_column
  if client is None and opened.client_column in opened.columns:
    client = opened.client_column
  label = None if text else files.label_column or file_format.label_column
  labels: tuple[str, ...] = () if label is None else (label,)
  if label is not None and label not in opened.columns:  # It may have commas.
    labels = data_options.label_columns(label)
  if text is None and not labels:
    raise problems.DataError(
      f'--label_column is missing: which column of {path} is predicted? Its columns '
      f'are: {problems.listed(opened.columns)}. For text give --text_column.'
    )
  features = files.feature_columns
  if features is None:
    # The format's column of clients may have no use, but is no feature, nor is pandas'.
    others = (client, file_format.client_column, *labels)
    features = tuple(
      each
      for each in opened.columns
      if each not in others and not _PANDAS_INDEX.fullmatch(each) and not text
    )
  for flag in ('one_hot_columns', 'embedding_columns'):
    if unknown := sorted(set(getattr(files, flag)).difference(features)):
      raise problems.DataError(
        f'--{flag} names {unknown[0]!r}, which is not a feature; the features are: '
        f'{problems.listed(features)}.'
      )
  # Lines of a text file are never missing values.
  missing_values = () if file_format.text_column else files.missing_values
  reading = columns.Reading(missing_values)
  stated = preprocessing.Preprocessing(
    shape=population.Shape((), 'float32', (), 'number'),  # Until the rows are read.
    client=client,
    labels=labels,
    text=text,
    missing_values=tuple(sorted(reading.missing_texts)),
    decimal=files.decimal,
    thousands=files.thousands,
    separator=files.separator,
    label_kind=files.label_kind,
  )
  return opened, stated, dataclasses.replace(files, feature_columns=tuple(features))


def _of_table(
  rows: table.Rows, arranged: arrangement.Arrangement, files: data_options.Files
) -> _Prepared:
  ordered = rows.in_order(arranged.order, files.scratch)
  ordered = _with_training_values(ordered, arranged, files.scratch)
  prep, shape = ordered.prep, ordered.prep.shape
  is_scaled = files.scaling == 'standard' or (
    files.scaling is None and len(shape.inputs) == 1 and ordered.numbers.shape[1] > 0
  )
  training = arranged.training(ordered.numbers)
  moments = moments_of(training, ordered.numbers.shape[1]) if is_scaled else None
  weights = preprocessing.class_weights(
    files.class_weights, prep.classes, arranged.training(ordered.values)
  )
  prep = dataclasses.replace(
    prep,
    shape=dataclasses.replace(shape, class_weights=weights),
    mean=None if moments is None else tuple(moments.mean.tolist()),
    scale=None if moments is None else tuple(moments.scale.tolist()),
    label_scaling=_label_scaling(ordered, arranged, files),
  )
  examples = functools.partial(prep.examples_of, ordered)
  return examples, arranged, prep, _facts_of_table(prep, moments)


def _not_covered(
  prep: preprocessing.Preprocessing, files: data_options.Files, overlap_remark: str
) -> tuple[str, ...]:
  """Returns sentences on what of the data was used without noise."""
  by_moments = 'by their mean and standard deviation over all training examples.'
  names, embedded = map(problems.listed, (prep.name_columns, prep.embedded_columns))
  return tuple(
    sentence
    for applies, sentence in (
      (prep.mean, f'Features were scaled {by_moments}'),
      (prep.label_scaling, f'Labels were scaled {by_moments}'),
      (prep.classes, 'The names of classes are those found in the data.'),
      (
        files.class_weights == (preprocessing.BALANCED,),
        'The weights of classes follow from how many training examples are of each.',
      ),
      (
        names,
        f'The values of columns with a feature for each value ({names}) are those '
        'found in the data.',
      ),
      (
        embedded,
        f'The values of columns with an embedding for each value ({embedded}) are '
        'those found in the training data.',
      ),
      (
        prep.text and not files.vocabulary,
        f'The vocabulary is of the {prep.text_unit}s that are most frequent in the '
        'training data.',
      ),
      (files.partition, population.MADE_CLIENTS),
      (files.test_examples, population.HELD_OUT_OF_CLIENTS),
      (overlap_remark, overlap_remark),
    )
    if applies
  )


def _left_out(
  opened: source.Source, prep: preprocessing.Preprocessing, are_inferred: bool
) -> Iterator[str]:
  """Yields a sentence on columns that are not taken for features, if any."""
  used = {prep.client, *prep.labels, *prep.number_columns, *prep.name_columns}
  used.update(prep.embedded_columns)
  names = [each for each in opened.columns if each not in used]
  if names and are_inferred and prep.text is None:
    yield (
      f'{problems.listed(names)}: an index or ids, and no feature unless '
      '--feature_columns names it.'
    )


def _remarks(rows: table.Rows, files: data_options.Files) -> Iterator[str]:
  """Yields sentences on data that may not be meant to be what they are read as."""
  prep, classes = rows.prep, rows.prep.classes or ()
  for name, why in rows.may_be_names.items():
    remedy = '--one_hot_columns or --embedding_columns'
    if name not in prep.number_columns:
      remedy = '--label_kind=class'
    yield (
      f'{name} has numbers with {why}, which are read as numbers; if they are names, '
      f'give {remedy}.'
    )
  for name, values in prep.name_columns.items():
    if name not in files.one_hot_columns and len(values) > max(
      10, len(rows.hashes) / 2
    ):
      yield (
        f'{name} has {len(values)} different values in {len(rows.hashes)} rows, each '
        'of which is a feature; if they are numbers with a unit, or times, write them '
        'as numbers.'
      )
  for values in (
    *prep.name_columns.values(),
    *prep.embedded_columns.values(),
    classes,
  ):
    first_of: dict[str, str] = {}
    for value in values:
      if (other := first_of.setdefault(value.casefold(), value)) != value:
        yield (
          f'{other} and {value} differ in upper and lower case alone, and are two '
          'values; if they are one, write them alike.'
        )
        break
  if len(classes) == 1:
    yield (f'All labels are the same class, {classes[0]}; there is nothing to learn.')
  if files.scaling is not None:
    return
  end, is_scaled = 0, len(prep.shape.inputs) == 1
  for name, shape in prep.number_columns.items():
    first, end = end, end + math.prod(shape)
    largest = _largest_if_whole(rows.numbers[:, first:end]) if shape else 0.0
    if is_scaled and len(shape) == 1 and largest > 1:
      yield (
        f'{name} has whole numbers, which are scaled as quantities; if they are ids of '
        'tokens or names, give --scaling=none.'
      )
    elif not is_scaled and 1 < largest <= 255:
      yield (
        f'{name} has whole numbers up to {largest:g}, which are not scaled; if they '
        'are pixels, divide them by 255, or give --scaling=standard.'
      )


def _largest_if_whole(numbers: np.ndarray) -> float:
  """Returns the largest number if all are whole ones from 0; else 0."""
  largest = 0.0
  for chunk in table.chunks(numbers):
    if (chunk < 0).any() or (chunk % 1).any():
      return 0.0
    largest = max(largest, float(chunk.max(initial=0)))
  return largest


class Moments(NamedTuple):
  mean: np.ndarray
  scale: np.ndarray  # The standard deviation; 1 for constant columns.
  is_constant: np.ndarray


def moments_of(chunks: Iterable[np.ndarray], num_columns: int) -> Moments:
  """Returns mean and standard deviation of columns, updated chunk by chunk.

  The algorithm is that of Chan, Golub and LeVeque, "Updating formulae and a pairwise
  algorithm for computing sample variances", 1979, for differences from the first row.
  """
  count = 0
  first, mean, squares = np.zeros((3, num_columns))
  for chunk in filter(len, chunks):
    if not count:
      first = np.array(chunk[0], np.float64)
    chunk = chunk - first
    total = count + len(chunk)
    chunk_mean = chunk.mean(axis=0)
    difference = chunk_mean - mean
    squares += np.square(chunk - chunk_mean).sum(axis=0)
    squares += np.square(difference) * (count * len(chunk) / total)
    mean += difference * (len(chunk) / total)
    count = total
  scale = np.sqrt(squares / max(1, count))
  return Moments(first + mean, np.where(scale == 0, 1.0, scale), scale == 0)


def _label_scaling(
  ordered: table.Rows, arranged: arrangement.Arrangement, files: data_options.Files
) -> Optional[population.LabelScaling]:
  if ordered.prep.shape.label_kind != 'number':
    if files.label_scaling == 'standard':
      raise problems.DataError(
        '--label_scaling=standard is for labels that are numbers, and these are '
        'classes or tags; leave it out, or give --label_kind=number.'
      )
    return None
  if files.label_scaling == 'none':
    return None
  labels = ordered.values.reshape(len(ordered.values), -1)
  mean, scale, _ = moments_of(arranged.training(labels), labels.shape[1])
  if ordered.values.ndim > 1:
    return population.LabelScaling(tuple(mean.tolist()), tuple(scale.tolist()))
  return population.LabelScaling(float(mean[0]), float(scale[0]))


def _overlap_remark(
  test_clients: Optional[np.ndarray], training: Optional[np.ndarray]
) -> str:
  """Returns the remark if test data are or may be of training clients, by keys."""
  if training is None:
    return ''
  if test_clients is None:
    return population.TEST_DATA_OF_UNKNOWN
  # The first 64 bits of a key suffice: two clients do not share them by chance.
  test_keys = np.unique(test_clients[:, 0])
  if any(np.isin(keys[:, 0], test_keys).any() for keys in table.chunks(training)):
    return population.TEST_DATA_OF_CLIENTS
  return ''


def _with_training_values(
  ordered: table.Rows, arranged: arrangement.Arrangement, folder: str
) -> table.Rows:
  """Restricts embedded columns to values of training examples; others are unknown."""
  prep = ordered.prep
  index_of_code = [np.arange(len(each)) for each in prep.name_columns.values()]
  known = {}
  for name, values in prep.embedded_columns.items():
    is_trained = np.zeros(len(values), bool)
    for codes in arranged.training(ordered.codes):
      is_trained[codes[:, len(index_of_code)]] = True
    known[name] = tuple(np.array(values, object)[is_trained])
    indices = np.where(is_trained, np.cumsum(is_trained) - 1, len(known[name]))
    index_of_code.append(indices)
  if not known:
    return ordered
  codes = table.replaced(ordered.codes, index_of_code, folder)
  shape = dataclasses.replace(prep.shape, embedded=tuple(map(len, known.values())))
  prep = dataclasses.replace(prep, embedded_columns=known, shape=shape)
  return ordered._replace(codes=codes, prep=prep)


def _of_texts(
  texts: table.Texts,
  arranged: arrangement.Arrangement,
  files: data_options.Files,
  stated: preprocessing.Preprocessing,
) -> _Prepared:
  assert files.text_unit is not None
  unit = files.text_unit
  length = files.sequence_length or texts_lib.SEQUENCE_LENGTHS[unit]
  if files.vocabulary is not None:
    vocabulary = texts_lib.from_file(files.vocabulary, unit)
  else:
    size = files.vocabulary_size or texts_lib.VOCABULARY_SIZES[unit]
    training = (text for text, is_test in _texts(texts, arranged) if not is_test)
    vocabulary = texts_lib.most_frequent(training, unit, size)
  prep = dataclasses.replace(
    stated,
    shape=vocabulary.shape(length),
    text_unit=unit,
    vocabulary=vocabulary.entries,
  )
  sequences = spill.Spill(files.scratch, np.int32, (length + 1,))
  ends = spill.Spill(files.scratch, np.int64)
  ends.append([0])
  tokens = unknown = 0
  for text, _ in _texts(texts, arranged):
    cut = vocabulary.sequences(text, length)
    sequences.append(cut)
    ends.append([len(sequences)])
    tokens += np.count_nonzero(cut)
    unknown += np.count_nonzero(cut == vocabulary.unknown)
  facts = {
    'sequence length': length,
    'text unit': unit,
    'vocabulary size': len(vocabulary.entries),
    'share of unknown tokens': round(unknown / max(1, tokens), 6),
  }
  return (
    lambda index: (sequences.array[index, :-1], sequences.array[index, 1:]),
    # Positions of texts become those of their sequences.
    arranged._replace(
      starts=ends.array[arranged.starts],
      ends=ends.array[arranged.ends],
      num_positions=len(sequences),
    ),
    prep,
    facts,
  )


def _texts(
  texts: table.Texts, arranged: arrangement.Arrangement
) -> Iterator[tuple[str, bool]]:
  for index, are_tests in arranged.parts():
    for row, is_test in zip(arranged.order[index].tolist(), are_tests.tolist()):
      yield texts[row], is_test


def _facts(
  rows: table.Rows,
  arranged: arrangement.Arrangement,
  test_examples: Any,
  shape: population.Shape,
) -> dict[str, Any]:
  sizes = arranged.ends - arranged.starts
  unit = 'examples' if rows.texts is None else 'sequences'
  facts: dict[str, Any] = {
    'clients': len(sizes),
    unit: int(sizes.sum()),
    f'{unit} of a client (least, median, most)': [
      int(sizes.min()),
      float(np.median(sizes)),
      int(sizes.max()),
    ],
  }
  if arranged.num_test_clients:
    facts['clients held out for testing'] = arranged.num_test_clients
  facts[f'{unit} for testing, exact'] = len(test_examples[1])
  # A resumed run must have the same checksums.
  digest, total = hashlib.sha256(), np.uint64(0)
  for array in test_examples:
    digest.update(f'{array.dtype.str}{array.shape}'.encode())
    for chunk in table.chunks(array):
      digest.update(chunk.data)
  for index in range(0, len(rows.hashes), _CHUNK):
    hashes = rows.hashes[index : index + _CHUNK]
    if rows.clients is not None:
      hashes = hashes ^ hashing.of_rows(rows.clients[index : index + _CHUNK])
    total = np.add.reduce(hashing.mixed(hashes), initial=total, dtype=np.uint64)
  facts['checksum of those'] = f'sha256:{digest.hexdigest()[:32]}'
  facts['checksum of all rows'] = f'{int(total):016x}'  # Whatever the order of rows.
  _, labels = test_examples
  if shape.label_kind == 'tags':
    shares = labels.mean(axis=0).round(4).tolist()
    facts['share with a tag for testing'] = dict(zip(shape.names or (), shares[:20]))
  elif shape.label_kind == 'class':  # The accuracy of always predicting one class.
    names, counts = np.unique(labels, return_counts=True)
    name = (shape.names or ())[names[np.argmax(counts)]]
    share = round(float(counts.max() / counts.sum()), 4)
    facts['most frequent class for testing'] = f'{name}, a share of {share:g}'
  return facts


def _facts_of_table(
  prep: preprocessing.Preprocessing, moments: Optional[Moments]
) -> dict[str, Any]:
  shape, scaling, weights = prep.shape, prep.label_scaling, prep.shape.class_weights
  inputs = list(shape.inputs)
  facts: dict[str, Any] = {
    'features': inputs[0] if len(inputs) == 1 else inputs,
    'columns of numbers': list(prep.number_columns),
  }
  for encoding, found in (
    ('a feature', prep.name_columns),
    ('an embedding', prep.embedded_columns),
  ):
    if found:
      num_values = {name: len(values) for name, values in found.items()}
      facts[f'columns with {encoding} for each value'] = num_values
  facts['scaling of numbers'] = 'none' if moments is None else 'standard'
  if moments is not None and moments.is_constant.any():
    facts['columns that are constant'] = int(moments.is_constant.sum())
  names = list(shape.names or ())
  if shape.label_kind == 'class':
    facts |= {'labels': f'{len(names)} classes', 'classes': names[:20]}
    if weights is not None:
      rounded = (round(weight, 6) for weight in weights)
      facts['weights of classes'] = dict(zip(names[:20], rounded))
    return facts
  kind = 'tags' if prep.are_tags else 'numbers'
  facts['labels'] = kind
  if names:
    facts['labels'] = f'{len(names)} {kind}'
    facts[f'{kind} that are labels'] = names[:20]
  if not prep.are_tags:
    facts['scaling of labels'] = 'none' if scaling is None else 'standard'
  if scaling is not None:
    facts['mean and standard deviation of labels'] = [scaling.mean, scaling.scale]
  return facts
