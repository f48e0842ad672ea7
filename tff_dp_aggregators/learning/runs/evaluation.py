"""Computes loss and metrics of a model on test data, which belong to no client.

The larger a model's output for an example is, the smaller are the batches: outputs of a
language model are gigabytes for some thousand sentences. Means are computed batch by
batch (`metrics`); for other functions all outputs are kept.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import keras_losses
from tff_dp_aggregators.learning import metrics as metrics_lib
from tff_dp_aggregators.learning import models

_LOSS = 'loss'
# Maximum number of examples in a batch, and of bytes of their outputs.
_MAX_BATCH, _MAX_BATCH_BYTES = 4096, 2**26
# Maximum size of the outputs of all examples, where a metric needs all of them.
_MAX_OUTPUT_BYTES = 2**30


class Evaluator:
  """Evaluates functional models, Keras ones among them."""

  def __init__(
    self, model: tff.learning.models.FunctionalModel, examples: Any, metrics: Any = None
  ):
    """Builds the graph; `metrics` are those of `options.Evaluation`."""
    if isinstance(examples, tf.data.Dataset):
      raise TypeError(
        'test data are a dataset; give inputs and labels as arrays, (x, y).'
      )
    x, y = map(_arrays, clients_lib.inputs_and_labels(examples, 'test data'))
    x_spec, y_spec = clients_lib.pair(model.input_spec)
    if isinstance(y, np.ndarray) and isinstance(y_spec, tf.TensorSpec):
      # Labels that are one number per example may have a last axis of size 1, or not.
      spec_shape = (len(y), *y_spec.shape[1:])
      fits = keras_losses.fitted_shape(y.shape, spec_shape) is not None
      y = y.reshape(spec_shape) if fits else y
    clients_lib.check_spec(
      _example_spec((x, y)), _example_spec((x_spec, y_spec)), 'test data', dtypes=False
    )
    lengths = [
      (name, len(each))
      for name, part in (('x', x), ('y', y))
      for each in tf.nest.flatten(part)
    ]
    clients_lib.check_lengths(lengths, 'test data')
    self.examples = x, y
    self._inputs = tf.nest.flatten(x)
    self._labels = y
    if not len(self._inputs[0]):
      raise ValueError('the test data have no examples; give at least one, or None.')
    by_name = _metrics_by_name(model, metrics)
    self._graph = tf.Graph()
    with self._graph.as_default():
      self._x = _placeholders(x_spec)
      self._y = _placeholders(y_spec)
      self._weights = _placeholders(model.initial_weights)
      output = model.predict_on_batch(self._weights, self._x, training=False)
      self.takes_loss = _LOSS not in by_name  # Of the model, not a metric of that name.
      self._loss = model.loss(output, self._y) if self.takes_loss else None
    is_penalised = isinstance(output, keras_losses.Penalised)
    self._output = output.output if is_penalised else output
    self._output_bytes: Optional[int] = None
    self._session = tf.compat.v1.Session(graph=self._graph)
    self.names = list(dict.fromkeys([_LOSS, *by_name]))  # Names of loss and metrics.
    # Functions of all outputs, means, and metrics of Keras.
    self._functions: dict[str, Callable[[Any, Any], Any]] = {}
    self._means: dict[str, metrics_lib.MeanMetric] = {}
    self._keras: dict[str, metrics_lib.KerasMetric] = {}
    are_logits = bool(getattr(model, 'logits', None))
    for name, metric in by_name.items():
      if isinstance(metric, metrics_lib.MeanMetric):
        self._means[name] = metric
      elif isinstance(metric, metrics_lib.KerasMetric):
        self._keras[name] = metric
      elif isinstance(metric, (str, type, tf.keras.metrics.Metric)) or (
        getattr(metric, '__module__', '').startswith('keras.')
      ):
        self._keras[name] = metrics_lib.KerasMetric(metric, are_logits=are_logits)
      elif callable(metric):
        metrics_lib.check_order(f'test.metrics[{name!r}]', metric)
        self._functions[name] = metric
      else:
        raise TypeError(
          f'test.metrics[{name!r}] must be a function of labels and outputs, a '
          f'learning.MeanMetric, or a metric of Keras or its name; got {metric!r}.'
        )

  def measure(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
    """Returns loss and metrics of the model with these weights, by name."""
    feeds = dict(
      zip(
        tf.nest.flatten(self._weights),
        tf.nest.flatten((weights.trainable, weights.non_trainable)),
      )
    )
    losses = metrics_lib.Sums()
    sums = dict.fromkeys(self._means, metrics_lib.Sums())
    kept = []
    for each in self._keras.values():
      each.reset()
    for size, output, labels, loss in self._batches(feeds):
      if loss is not None:
        losses = losses.plus(metrics_lib.Sums(size * float(loss), size))
      for name, metric in self._means.items():
        added = self._try(name, metric.sums, labels, output)
        sums[name] = sums[name].plus(added)
      for name, keras_metric in self._keras.items():
        self._try(name, keras_metric.update, labels, output)
      if self._functions:
        kept.append(output)
    values = {} if self._loss is None else {_LOSS: losses.mean}
    for name, total in sums.items():
      values[name] = self._try(name, lambda total=total: total.mean)
    for name, keras_metric in self._keras.items():
      values[name] = self._try(name, keras_metric.result)
    if self._functions:
      outputs = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *kept)
      for name, function in self._functions.items():
        evaluate = functools.partial(_evaluate, function)
        values[name] = self._try(name, evaluate, self._labels, outputs)
    return {name: values[name] for name in self.names}

  def _batches(self, feeds: dict[Any, Any]) -> Iterator[tuple[int, Any, Any, Any]]:
    """Yields number of examples, output, labels and loss of each batch."""
    count, batch_size = len(self._inputs[0]), self._batch_size(feeds)
    for first in range(0, count, batch_size):
      batch = slice(first, first + batch_size)
      labels = self._feed(feeds, batch)
      fetched = [] if self._loss is None else [self._loss]
      output, *loss = self._session.run((self._output, *fetched), feeds)
      size = len(tf.nest.flatten(labels)[0])
      yield size, output, labels, loss[0] if loss else None

  def _feed(self, feeds: dict[Any, Any], batch: slice) -> Any:
    """Puts a batch into `feeds`; returns its labels."""
    feeds.update(zip(tf.nest.flatten(self._x), [each[batch] for each in self._inputs]))
    labels = [each[batch] for each in tf.nest.flatten(self._labels)]
    feeds.update(zip(tf.nest.flatten(self._y), labels))
    return tf.nest.pack_sequence_as(self._labels, labels)

  def _batch_size(self, feeds: dict[Any, Any]) -> int:
    """Number of examples whose outputs are computed at once."""
    if self._output_bytes is None:
      self._feed(feeds, slice(0, 1))
      output = tf.nest.flatten(self._session.run(self._output, feeds))
      self._output_bytes = sum(np.asarray(each).nbytes for each in output)
    count = len(self._inputs[0])
    if self._functions and count * self._output_bytes > _MAX_OUTPUT_BYTES:
      raise ValueError(
        f'test.metrics {", ".join(map(repr, self._functions))} are functions of the '
        f'outputs of all {count} test examples, {count * self._output_bytes} bytes; '
        f'at most {_MAX_OUTPUT_BYTES} are kept. Give learning.MeanMetric(per_example), '
        'which takes a batch at a time, or fewer test examples.'
      )
    return max(1, min(_MAX_BATCH, _MAX_BATCH_BYTES // max(1, self._output_bytes)))

  def _try(self, name: str, function: Callable[..., Any], *arrays: Any) -> Any:
    """Calls a metric; names it in the error if it fails."""
    try:
      return function(*arrays)
    except Exception as e:
      of = ' and outputs '.join(map(_shapes, arrays)) or 'of all batches'
      raise ValueError(
        f'test.metrics[{name!r}] must make a number of labels {of}, but failed: '
        f'{type(e).__name__}: {e}'
      ) from e

  def check(self, weights: Any) -> None:
    """Evaluates once before a training, so that errors do not come after a round."""
    try:
      self.measure(tff.learning.models.ModelWeights(*weights))
    except (tf.errors.OpError, TypeError) as e:
      raise ValueError(
        f'the model fails on test data {_shapes((self._inputs, self._labels))}: '
        f'{failures.sentence(str(e))}'
      ) from e


def _evaluate(function: Callable[[Any, Any], Any], labels: Any, outputs: Any) -> float:
  """Calls a function of all outputs; refuses one in which NumPy broadcasts an axis."""
  value = _mean(function(labels, outputs), labels)
  if not isinstance(outputs, np.ndarray) or not isinstance(labels, np.ndarray):
    return value
  if outputs.shape == (*labels.shape, 1):
    try:
      other = _mean(function(labels, outputs[..., 0]), labels)
    except Exception:  # It needs the outputs as they are.
      return value
    if not np.isclose(value, other, rtol=1e-6, atol=1e-12, equal_nan=True):
      raise ValueError(
        f'it makes {value:.6g} of outputs of shape {outputs.shape}, and {other:.6g} '
        f'of the same of shape {labels.shape}, that of labels: NumPy repeats one '
        'along the other. Take outputs[:, 0].'
      )
  return value


def _mean(value: Any, labels: Any) -> float:
  """Mean of a number, or of one for each example, as Keras functions return."""
  array = np.asarray(value, np.float64)
  metrics_lib.check_shape(array, labels)
  return float(array.mean())


def _metrics_by_name(
  model: tff.learning.models.FunctionalModel, metrics: Any
) -> dict[str, Any]:
  """Metrics by name; by default those that a Keras model was compiled with."""
  is_keras = isinstance(model, models.KerasFunctionalModel)
  is_compiled = metrics is None and is_keras
  if is_compiled:
    metrics = model.compiled_metrics
  if metrics is None:
    return {}
  if isinstance(metrics, Mapping) and not is_compiled:
    if not any(isinstance(each, (list, tuple)) for each in metrics.values()):
      return dict(metrics)
  names = []
  if is_keras and not isinstance(model.output_spec, tf.TensorSpec):
    names = keras_losses.names_of_outputs(model.keras_model, model.output_spec)
  return metrics_lib.by_name(metrics, names, getattr(model, 'logits', ()))


def _shapes(arrays: Any) -> str:
  flat = tf.nest.flatten(arrays)
  return ' and '.join(f'of shape {np.shape(each)}' for each in flat)


def _arrays(part: Any) -> Any:
  if isinstance(part, list):  # A list becomes one array, as with clients.
    return np.asarray(part)
  return tf.nest.map_structure(np.asarray, part)


def _example_spec(batch: Any) -> Any:
  return tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape[1:]), batch)


def _placeholders(spec: Any) -> Any:
  return tf.nest.map_structure(
    lambda each: tf.compat.v1.placeholder(each.dtype, each.shape), spec
  )
