"""A run's model that takes columns as they are, as a TensorFlow SavedModel.

It has the preprocessing in it, so whoever serves it needs TensorFlow and nothing else.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from . import predicting
from .data import columns
from .data import texts as texts_lib

# What Python's `str.split` takes for white space.
_WHITE_SPACE = r'[\s\pZ\x{0b}\x{1c}-\x{1f}\x{85}]+'


class Served(tf.Module):
  """Predictions of `columns`, specs by name: what a signature computes."""

  def __init__(self, predictor: predicting.Predictor):
    super().__init__()
    self._preprocessing = predictor.preprocessing
    self._gives_logits = predictor.gives_logits
    model = predictor.model
    self._model = model
    self._weights = None
    if not isinstance(model, tf.keras.Model):
      self._weights = tf.nest.map_structure(tf.Variable, model.initial_weights)
    if self._preprocessing.text is not None:
      self._table = self._table_of_tokens()
    self._values = self._known()
    self.columns = self._columns()
    self.predict = tf.function(self._predict, input_signature=[self.columns])

  def _columns(self) -> dict[str, tf.TensorSpec]:
    kept = self._preprocessing
    if kept.text is not None:
      return {kept.text: tf.TensorSpec([None], tf.string)}
    # As data are read: of images and the like, float64 would be twice as much.
    is_large = any(len(shape) > 1 for shape in kept.number_columns.values())
    dtype = tf.float32 if is_large else tf.float64
    numbers = {
      name: tf.TensorSpec([None, *shape], dtype)
      for name, shape in kept.number_columns.items()
    }
    named = (*kept.name_columns, *kept.embedded_columns)
    names = {name: tf.TensorSpec([None], tf.string) for name in named}
    return {**numbers, **names}

  def _predict(self, given: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    if self._preprocessing.text is not None:
      tokens, last = self._tokens(given[self._preprocessing.text])
      outputs = tf.gather(self._outputs(tokens), last, axis=1, batch_dims=1)
    else:
      outputs = self._outputs(self._inputs(given))
    return predicting.said_of(outputs, self._preprocessing, self._gives_logits)

  def _outputs(self, x: tf.Tensor) -> tf.Tensor:
    if self._weights is None:
      return self._model(x, training=False)
    return self._model.predict_on_batch(self._weights, x, training=False)

  def _inputs(self, given: Mapping[str, tf.Tensor]) -> tf.Tensor:
    kept = self._preprocessing
    numbers, parts = [], []
    for name, shape in kept.number_columns.items():
      numbers.append(tf.reshape(given[name], [-1, int(np.prod(shape))]))
      is_finite = tf.math.is_finite(numbers[-1])
      _check(is_finite, f'column {name!r} has a number that is not finite')
    if numbers:
      joined = tf.concat(numbers, axis=1)
      if kept.mean is not None:
        joined = (joined - np.array(kept.mean)) / np.array(kept.scale)
      parts.append(tf.cast(joined, tf.float32))
    for name, names in kept.name_columns.items():
      code = self._codes(name, given[name])
      _check(
        code < len(names),
        f'column {name!r} has a value that the training data do not have',
      )
      parts.append(tf.one_hot(code, len(names)))
    for name in kept.embedded_columns:
      code = self._codes(name, given[name])
      parts.append(tf.cast(code, tf.float32)[:, tf.newaxis])
    return tf.reshape(tf.concat(parts, axis=1), [-1, *kept.shape.inputs])

  def _known(self) -> dict[str, Any]:
    """The values of columns that are names: numbers, or a table of texts."""
    kept, found = self._preprocessing, {}
    for name, names in {**kept.name_columns, **kept.embedded_columns}.items():
      if all(map(columns.is_number, names)):  # However they are written.
        found[name] = np.array(names, np.float64)
      else:
        codes = tf.range(len(names), dtype=tf.int64)
        initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(names), codes)
        found[name] = tf.lookup.StaticHashTable(initializer, len(names))
    return found

  def _codes(self, name: str, values: tf.Tensor) -> tf.Tensor:
    """Numbers of names, and that after the last one of values that are none."""
    known = self._values[name]
    if not isinstance(known, np.ndarray):
      return known[values]
    numbers, order = tf.strings.to_number(values, tf.float64), np.argsort(known)
    place = tf.minimum(tf.searchsorted(known[order], numbers), len(known) - 1)
    is_known = tf.equal(tf.gather(known[order], place), numbers)
    return tf.where(is_known, tf.gather(order, place), len(known))

  def _table_of_tokens(self) -> Any:
    vocabulary = self._preprocessing.tokens
    keys: Any = list(vocabulary.entries)
    dtype = tf.string
    if vocabulary.unit == 'character':
      keys, dtype = list(map(ord, keys)), tf.int64
    initializer = tf.lookup.KeyValueTensorInitializer(
      tf.constant(keys, dtype), tf.range(1, len(keys) + 1, dtype=tf.int64)
    )
    return tf.lookup.StaticHashTable(initializer, vocabulary.unknown)

  def _tokens(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The last tokens of each text, padded behind, and the place of the last one."""
    vocabulary, (length,) = self._preprocessing.tokens, self._preprocessing.shape.inputs
    if vocabulary.unit == 'character':
      units = tf.cast(tf.strings.unicode_decode(text, 'UTF-8'), tf.int64)
    else:
      words = tf.strings.regex_replace(text, _WHITE_SPACE, ' ')
      units = tf.strings.split(tf.strings.strip(words), ' ')
      units = tf.ragged.boolean_mask(units, tf.strings.length(units) > 0)
    begin = tf.fill([tf.size(text), 1], tf.constant(vocabulary.unknown + 1, tf.int64))
    tokens = tf.concat([begin, self._table[units]], axis=1)[:, -length:]
    padded = tokens.to_tensor(texts_lib.PADDING, shape=[None, length])
    return tf.cast(padded, tf.int32), tokens.row_lengths() - 1


def export(predictor: predicting.Predictor, folder: str) -> dict[str, tf.TensorSpec]:
  """Saves what predicts from columns.

  What is loaded has `predict`, which takes a dictionary of columns by their names, with
  a value for each row: float64 for numbers (float32 if some have a shape, as images
  do), and strings for names and texts. It gives a dictionary: `prediction` are strings,
  or float64 in the units of the labels; with strings there are `probability`, and
  `probabilities` of all names in their order; of tags both are of each. The signature
  `serving_default` does the same with arguments; characters that an argument may not
  have are underscores.
  """
  if os.path.lexists(folder):
    raise FileExistsError(
      f'{folder} exists and is not overwritten; name another folder, or remove it.'
    )
  served = Served(predictor)
  specs: dict[str, tf.TensorSpec] = {}
  taken: set[str] = set()
  for column, spec in served.columns.items():
    name = _argument(column, taken)
    taken.add(name.lower())  # Which TensorFlow does not tell apart.
    specs[column] = tf.TensorSpec(spec.shape, spec.dtype, name=name)

  @tf.function
  def of_arguments(**given: tf.Tensor) -> dict[str, tf.Tensor]:
    return served.predict({column: given[specs[column].name] for column in specs})

  signature = of_arguments.get_concrete_function(
    **{spec.name: spec for spec in specs.values()}
  )
  tf.saved_model.save(served, folder, signatures={'serving_default': signature})
  return specs


def _argument(column: str, taken: set[str]) -> str:
  """The name of a column as that of an argument, other than those that are taken."""
  name = re.sub(r'\W', '_', column, flags=re.ASCII)
  if not re.match('[A-Za-z]', name):
    name = f'column_{name}'
  while name.lower() in taken:
    name += '_'
  return name


def _check(is_so: tf.Tensor, otherwise: str) -> None:
  tf.debugging.Assert(tf.reduce_all(is_so), [f'{otherwise}.'])
