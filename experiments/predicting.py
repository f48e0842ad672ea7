"""What the model of a run says of new data: classes, numbers, or next tokens.

`experiments.predict` is the program. In Python, with inputs made as those of the
training:

    model = learning.load(run_dir)
    x, y = preprocessing.of_run(run_dir).read('new.csv').arrays()
    outputs = model(x)
"""

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators import learning
from tff_dp_aggregators.learning import keras_losses
from tff_dp_aggregators.learning import metrics as learning_metrics
from tff_dp_aggregators.learning.runs import run_directory
from tff_dp_aggregators.learning.runs import saved_model

from . import metrics
from .data import population
from .data import preprocessing as preprocessing_lib
from .models import own

# Bytes of what a model puts out at once.
_BATCH_BYTES = 2**26
_CROSS_ENTROPY = 'cross_entropy'
# Inputs by which is seen whether outputs are probabilities.
_NUM_TRIED = 16


class Predictions(NamedTuple):
  # Whose they are, as the data have it; `None` if they do not say.
  clients: Optional[list[str]]
  # Names of classes or of next tokens, or numbers in the units of the labels; whether
  # they are there of tags. Of several labels, [rows, labels].
  values: np.ndarray
  # Probability of each name, or of each tag being there; `None` for numbers.
  probabilities: Optional[np.ndarray]


class Predictor:
  """The model of a run, with what makes its inputs and reads its outputs."""

  def __init__(self, run_dir: str):
    self.preprocessing = preprocessing_lib.of_run(run_dir)
    with open(os.path.join(run_dir, run_directory.CONFIG), encoding='utf-8') as file:
      flags = json.load(file)['flags']
    self._shape = self.preprocessing.shape
    self._metric = metrics.METRICS[flags['metric']]
    self.model = _model(run_dir, flags['model'], self._shape)
    # An own model may have a loss of its own.
    is_known = ':' not in flags['model'] or flags['loss'] == _CROSS_ENTROPY
    self.gives_logits = is_known or not self._gives_probabilities()

  def predictions(self, data: preprocessing_lib.NewData) -> Iterator[Predictions]:
    for chunk in data.chunks():
      outputs = self._outputs(chunk.inputs, chunk.last)
      said = said_of(outputs, self.preprocessing, self.gives_logits)
      found = said['prediction'].numpy()
      if found.dtype == object:
        found = np.array([name.decode('utf-8') for name in found], object)
      likely = said.get('probability')
      yield Predictions(
        chunk.clients, found, None if likely is None else likely.numpy()
      )

  def measure(self, data: preprocessing_lib.NewData) -> tuple[str, float]:
    """The metric of the run on data with labels: its name, and what it comes to."""
    metric = self._metric.make(self._shape)
    is_mean = isinstance(metric, learning.MeanMetric)
    sums, outputs, labels = learning_metrics.Sums(), [], []
    for x, y in data.examples():
      for some in self._batches(len(x)):
        found = self._outputs(x[some])
        if self._shape.label_kind == 'number':
          found = self.preprocessing.in_units(found)
        if is_mean:
          sums = sums.plus(metric.sums(y[some], found))
        else:
          outputs.append(found)
          labels.append(y[some])
    if is_mean:
      return self._metric.name, sums.mean
    value = metric(np.concatenate(labels), np.concatenate(outputs))
    return self._metric.name, float(value)

  def _outputs(self, x: np.ndarray, last: Optional[np.ndarray] = None) -> np.ndarray:
    """What the model puts out for a batch; of text, at the place of the last token."""
    if last is None:
      return np.asarray(self.model(x))
    found = []
    for some in self._batches(len(x)):
      outputs = np.asarray(self.model(x[some]))
      found.append(outputs[np.arange(len(outputs)), last[some]])
    return np.concatenate(found)

  def _batches(self, count: int) -> Iterator[slice]:
    size = 4 * (self._shape.num_classes or 1) * int(np.prod(self._shape.labels))
    batch = max(1, _BATCH_BYTES // size)
    for first in range(0, count, batch):
      yield slice(first, first + batch)

  def _gives_probabilities(self) -> bool:
    """Whether outputs are such that add up to one, for whatever inputs."""
    if self._shape.num_classes is None:
      return False
    shape = (_NUM_TRIED, *self._shape.inputs)
    rng = np.random.default_rng(1)
    if self._shape.input_dtype == 'int32':
      x = rng.integers(self._shape.num_classes, size=shape, dtype=np.int32)
    else:
      x = rng.normal(size=shape).astype(np.float32)
    outputs = np.asarray(self.model(x), np.float64)
    return keras_losses.why_no_logits(outputs) is not None


def said_of(
  outputs: Any, preprocessing: preprocessing_lib.Preprocessing, gives_logits: bool
) -> dict[str, tf.Tensor]:
  """What a model's outputs say: of classes with the probability of each."""
  shape, scaling = preprocessing.shape, preprocessing.label_scaling
  outputs = tf.cast(outputs, tf.float64)
  if shape.num_classes is None:
    outputs = tf.reshape(outputs, [-1, *shape.labels])
    if shape.label_kind == 'tags':
      is_there = tf.cast(outputs > 0, tf.int64)
      return {'prediction': is_there, 'probability': tf.sigmoid(outputs)}
    if scaling is not None:
      outputs = outputs * np.array(scaling.scale) + np.array(scaling.mean)
    return {'prediction': outputs}
  # What counts in no loss was not learned.
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


def _model(run_dir: str, name: str, shape: population.Shape) -> Any:
  """The model of a run; one of the user's own is made again if it could not be kept."""
  try:
    return learning.load(run_dir)
  except saved_model.NotKeptError:
    if ':' not in name:
      raise
    own.kind(name)  # Finds the module, also in the current directory.
    return learning.load(run_dir, model=own.make(name, shape))
