"""Predicts classes, numbers or next tokens from new data, with the model of a run."""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators import learning
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning import keras_losses
from tff_dp_aggregators.learning.runs import evaluation
from tff_dp_aggregators.learning.runs import run_directory
from tff_dp_aggregators.learning.runs import saved_model

from . import metrics
from .data import columns as columns_lib
from .data import population
from .data import preprocessing as preprocessing_lib
from .data import texts as texts_lib
from .models import own

_NUM_SAMPLES = 16  # Random inputs that show whether outputs are probabilities.


class Predictor:
  """The model of a run, with the preprocessing of its inputs."""

  def __init__(self, run_dir: str):
    self.preprocessing = preprocessing_lib.of_run(run_dir)
    with open(os.path.join(run_dir, run_directory.CONFIG), encoding='utf-8') as file:
      flags = json.load(file)['flags']
    self._shape = self.preprocessing.shape
    self._metric = metrics.METRICS[flags['metric']]
    self.model = _model(run_dir, flags['model'], self._shape)
    # A model of the user's own may have its own loss.
    is_known = ':' not in flags['model'] or flags['loss'] == 'cross_entropy'
    self.gives_logits = is_known or not self._gives_probabilities()

  def columns(self, data: preprocessing_lib.NewData) -> Iterator[dict[str, list[Any]]]:
    """Yields columns of clients, predictions and probabilities, where there are any."""
    for chunk in data.chunks():
      outputs = self._outputs(chunk.inputs, chunk.last)
      result = interpreted(outputs, self.preprocessing, self.gives_logits)
      columns: dict[str, list[Any]] = {}
      if chunk.clients is not None:
        columns[str(data.client_column)] = chunk.clients
      for index, label in enumerate(self.preprocessing.several or ['']):
        suffix = f'_{label}' if label else ''
        for name, digits in (('prediction', 9), ('probability', 6)):
          if name in result:
            if name + suffix in columns:
              raise ValueError(
                f'the column of clients is called {name + suffix!r}, like one of the '
                'predictions. Leave it out of the data: predictions are in the order '
                'of the rows.'
              )
            values = result[name].numpy()
            columns[name + suffix] = [
              f'{each:.{digits}g}' if isinstance(each, float) else _text(each)
              for each in (values[:, index] if label else values).tolist()
            ]
      yield columns

  def measure(self, data: preprocessing_lib.NewData) -> tuple[str, float]:
    """Returns name and value of the run's metric on data with labels."""
    name, metric = self._metric.name, self._metric.make(self._shape)
    of_batch, of_all = evaluation.in_batches(name, metric, len(data), are_logits=False)
    parts = []
    for x, y in data.examples():
      predicted = self._outputs(x)
      if self._shape.label_kind == 'number':
        predicted = self.preprocessing.in_units(predicted)
      parts.append(of_batch(y, predicted))
    return name, of_all(parts)

  def _outputs(self, x: np.ndarray, last: Optional[np.ndarray] = None) -> np.ndarray:
    """Returns the model's outputs for a batch; for text, those at the last token."""
    outputs = np.asarray(self.model(x))
    return outputs if last is None else outputs[np.arange(len(x)), last]

  def _gives_probabilities(self) -> bool:
    """Whether outputs are probabilities, which add up to one for any inputs."""
    if self._shape.num_classes is None:
      return False
    shape = (_NUM_SAMPLES, *self._shape.inputs)
    rng = np.random.default_rng(1)
    x: np.ndarray
    if self._shape.input_dtype == 'int32':
      x = rng.integers(self._shape.num_classes, size=shape, dtype=np.int32)
    else:  # An embedding takes the first vector for them.
      x = rng.random(shape, np.float32)
    outputs = self.model(x)
    return keras_losses.why_no_logits(np.asarray(outputs, np.float64)) is not None


def interpreted(
  outputs: Any, preprocessing: preprocessing_lib.Preprocessing, gives_logits: bool
) -> dict[str, tf.Tensor]:
  """Turns a model's outputs into predictions, for classes with probabilities."""
  shape, scaling = preprocessing.shape, preprocessing.label_scaling
  outputs = tf.cast(outputs, tf.float64)
  if shape.num_classes is None:
    outputs = tf.reshape(outputs, [-1, *shape.labels])
    if shape.label_kind == 'tags':
      has_tag = tf.cast(outputs > 0, tf.int64)
      return {'prediction': has_tag, 'probability': tf.sigmoid(outputs)}
    if scaling is not None:
      outputs = outputs * np.array(scaling.scale) + np.array(scaling.mean)
    return {'prediction': outputs}
  # Classes that the loss ignores were not learned.
  is_ignored = np.isin(np.arange(shape.num_classes), shape.ignored_labels)
  if gives_logits:
    outputs = tf.nn.softmax(tf.where(is_ignored, tf.float64.min, outputs))
  else:
    outputs = tf.where(is_ignored, tf.zeros_like(outputs), outputs)
  return {
    'prediction': tf.gather(tf.constant(shape.names), tf.argmax(outputs, axis=1)),
    'probability': tf.reduce_max(outputs, axis=1),
    'probabilities': outputs,
  }


def _text(value: Any) -> Any:
  return value.decode('utf-8') if isinstance(value, bytes) else value


def _model(run_dir: str, name: str, shape: population.Shape) -> Any:
  """Loads the model of a run; makes a user's own again if it could not be saved."""
  try:
    return learning.load(run_dir)
  except saved_model.NotKeptError:
    if ':' not in name:
      raise
    own.kind(name)  # Finds the module, also in the current directory.
    return learning.load(run_dir, model=own.make(name, shape))


# White space as in Python's `str.split`.
_WHITE_SPACE = r'[\s\pZ\x{0b}\x{1c}-\x{1f}\x{85}]+'


class Served(tf.Module):
  """Computes predictions in a SavedModel, from `columns` (specs by name)."""

  def __init__(self, predictor: Predictor):
    super().__init__()
    self._preprocessing = predictor.preprocessing
    self._gives_logits = predictor.gives_logits
    self._model = predictor.model
    self._weights = None
    if not isinstance(self._model, tf.keras.Model):
      self._weights = tf.nest.map_structure(tf.Variable, self._model.initial_weights)
    if self._preprocessing.text is not None:
      vocabulary = self._preprocessing.tokens
      is_text = vocabulary.unit == 'word'
      keys = vocabulary.entries if is_text else [*map(ord, vocabulary.entries)]
      dtype = tf.string if is_text else tf.int64
      self._table = _hash_table(tf.constant(keys, dtype), 1, vocabulary.unknown)
    self._values = self._known()
    self.columns = self._columns()
    self.predict = tf.function(self._predict, input_signature=[self.columns])

  def _columns(self) -> dict[str, tf.TensorSpec]:
    preprocessing = self._preprocessing
    if preprocessing.text is not None:
      return {preprocessing.text: tf.TensorSpec([None], tf.string)}
    # As data are read; for images and the like, float64 would take twice the memory.
    is_large = any(len(shape) > 1 for shape in preprocessing.number_columns.values())
    dtype = tf.float32 if is_large else tf.float64
    numbers = {
      name: tf.TensorSpec([None, *shape], dtype)
      for name, shape in preprocessing.number_columns.items()
    }
    named = (*preprocessing.name_columns, *preprocessing.embedded_columns)
    names = {name: tf.TensorSpec([None], tf.string) for name in named}
    return {**numbers, **names}

  def _predict(self, given: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    if self._preprocessing.text is not None:
      tokens, last = self._tokens(given[self._preprocessing.text])
      outputs = tf.gather(self._outputs(tokens), last, axis=1, batch_dims=1)
    else:
      outputs = self._outputs(self._inputs(given))
    return interpreted(outputs, self._preprocessing, self._gives_logits)

  def _outputs(self, x: tf.Tensor) -> tf.Tensor:
    if self._weights is None:
      return self._model(x, training=False)
    return self._model.predict_on_batch(self._weights, x, training=False)

  def _inputs(self, given: Mapping[str, tf.Tensor]) -> tf.Tensor:
    preprocessing = self._preprocessing
    numbers, parts = [], []
    for name, shape in preprocessing.number_columns.items():
      numbers.append(tf.reshape(given[name], [-1, int(np.prod(shape))]))
      is_finite = tf.abs(numbers[-1]) <= tf.constant(tf.float32.max, numbers[-1].dtype)
      _check(is_finite, name, 'number that is not finite in float32')
    if numbers:
      joined = tf.concat(numbers, axis=1)
      if preprocessing.mean is not None:
        joined = (joined - np.array(preprocessing.mean)) / np.array(preprocessing.scale)
      parts.append(tf.cast(joined, tf.float32))
    for name, names in preprocessing.name_columns.items():
      code = self._codes(name, given[name])
      _check(code < len(names), name, 'value that the training data do not have')
      parts.append(tf.one_hot(code, len(names)))
    for name in preprocessing.embedded_columns:
      code = self._codes(name, given[name])
      parts.append(tf.cast(code, tf.float32)[:, tf.newaxis])
    return tf.reshape(tf.concat(parts, axis=1), [-1, *preprocessing.shape.inputs])

  def _known(self) -> dict[str, tuple[Any, ...]]:
    """By column: a table of its values, their number, those that are numbers, codes."""
    preprocessing, known = self._preprocessing, {}
    columns = {**preprocessing.name_columns, **preprocessing.embedded_columns}
    for name, names in columns.items():
      are_numbers = [bool(re.fullmatch(columns_lib.NUMBER, each)) for each in names]
      codes = np.flatnonzero(are_numbers)
      keys = np.array(names)[codes].astype(np.float64)
      order = np.argsort(keys)
      table = _hash_table(tf.constant(names), 0, len(names))
      known[name] = table, len(names), keys[order], codes[order]
    return known

  def _codes(self, name: str, values: tf.Tensor) -> tf.Tensor:
    """Indices of names; unknown values get the index after the last one.

    Numbers that are written otherwise than the known ones are compared as floats.
    """
    table, unknown, known, code_of = self._values[name]
    codes = table[values]
    if not len(known):
      return codes
    texts = tf.strings.strip(values)
    is_number = tf.strings.regex_full_match(texts, columns_lib.NUMBER)
    numbers = tf.strings.to_number(tf.where(is_number, texts, '0'), tf.float64)
    position = tf.minimum(tf.searchsorted(known, numbers), len(known) - 1)
    is_same = is_number & tf.equal(tf.gather(known, position), numbers)
    is_same &= tf.abs(numbers) < columns_lib.EXACT
    return tf.where((codes == unknown) & is_same, tf.gather(code_of, position), codes)

  def _tokens(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The last tokens of each text, padded at the end, and the index of the last."""
    vocabulary, (length,) = self._preprocessing.tokens, self._preprocessing.shape.inputs
    if vocabulary.unit == 'character':
      units = tf.cast(tf.strings.unicode_decode(text, 'UTF-8'), tf.int64)
    else:
      units = tf.strings.split(tf.strings.regex_replace(text, _WHITE_SPACE, ' '))
    begin = tf.fill([tf.size(text), 1], tf.constant(vocabulary.unknown + 1, tf.int64))
    tokens = tf.concat([begin, self._table[units]], axis=1)[:, -length:]
    padded = tokens.to_tensor(texts_lib.PADDING, shape=[None, length])
    return tf.cast(padded, tf.int32), tokens.row_lengths() - 1


def export(predictor: Predictor, folder: str) -> dict[str, tf.TensorSpec]:
  """Saves a SavedModel that predicts from columns; returns their specs by name.

  Its function `predict` takes a dictionary of columns, and the signature
  `serving_default` takes them as arguments, with underscores for characters that their
  names may not have.
  """
  if os.path.lexists(folder):
    raise FileExistsError(
      f'{folder} exists and is not overwritten; name another folder, or remove it.'
    )
  served = Served(predictor)
  specs: dict[str, tf.TensorSpec] = {}
  used: set[str] = set()
  for column, spec in served.columns.items():
    name = re.sub(r'\W', '_', column, flags=re.ASCII)
    if not re.match('[A-Za-z]', name):
      name = f'column_{name}'
    while name.lower() in used:
      name += '_'
    used.add(name.lower())  # TensorFlow ignores upper and lower case.
    specs[column] = tf.TensorSpec(spec.shape, spec.dtype, name=name)

  @tf.function
  def of_arguments(**given: tf.Tensor) -> dict[str, tf.Tensor]:
    return served.predict({column: given[specs[column].name] for column in specs})

  signature = of_arguments.get_concrete_function(
    **{spec.name: spec for spec in specs.values()}
  )
  beside, prefix = os.path.dirname(os.path.abspath(folder)), run_directory.LAYING_OUT
  with tempfile.TemporaryDirectory(prefix=prefix, dir=beside) as temporary:
    path = os.path.join(temporary, 'model')
    tf.saved_model.save(served, path, signatures={'serving_default': signature})
    new_files.sync_tree(path)
    os.rename(path, folder)
  return specs


def _hash_table(keys: tf.Tensor, first: int, unknown: int) -> tf.lookup.StaticHashTable:
  numbers = tf.range(first, first + len(keys), dtype=tf.int64)
  initializer = tf.lookup.KeyValueTensorInitializer(keys, numbers)
  return tf.lookup.StaticHashTable(initializer, unknown)


def _check(condition: tf.Tensor, name: str, problem: str) -> None:
  message = f'column {name!r} has a {problem}.'
  tf.debugging.Assert(tf.reduce_all(condition), [message])
