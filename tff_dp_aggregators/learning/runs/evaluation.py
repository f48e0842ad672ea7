"""Computes loss and metrics of a model on test data, which belong to no client.

The larger a model's output for an example is, the smaller are the batches: outputs of a
language model are gigabytes for some thousand sentences. Means are computed batch by
batch (`metrics`); for other functions all outputs are kept.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import functions
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
    """Checks the data; `metrics` are those of `options.Evaluation`."""
    x, y = map(_arrays, clients_lib.inputs_and_labels(examples, 'test data'))
    specs = clients_lib.pair(model.input_spec)
    if isinstance(y, np.ndarray) and isinstance(specs[1], tf.TensorSpec):
      # Labels that are one number per example may have a last axis of size 1, or not.
      spec_shape = (len(y), *specs[1].shape[1:])
      fits = keras_losses.fitted_shape(y.shape, spec_shape) is not None
      y = y.reshape(spec_shape) if fits else y
    given, wanted = clients_lib.example_spec((x, y)), clients_lib.example_spec(specs)
    clients_lib.check_spec(given, wanted, 'test data', dtypes=False)
    lengths = [
      (name, len(each))
      for name, part in (('x', x), ('y', y))
      for each in tf.nest.flatten(part)
    ]
    clients_lib.check_lengths(lengths, 'test data')
    self._count = lengths[0][1]
    if not self._count:
      raise ValueError('the test data have no examples; give at least one, or None.')
    self.examples = x, y
    # The same in the structure and of the dtypes that the model takes.
    self._arguments = tf.nest.map_structure(
      lambda spec, each: np.asarray(each, spec.dtype.as_numpy_dtype),
      specs,
      tf.nest.pack_sequence_as(specs, tf.nest.flatten((x, y))),
    )
    by_name = _metrics_by_name(model, metrics)
    self.takes_loss = _LOSS not in by_name  # Of the model, not a metric of that name.
    self.names = list({_LOSS: None, **by_name})  # Names of loss and metrics.
    are_logits = bool(getattr(model, 'logits', None))
    self._metrics = {
      name: _in_batches(f'test.metrics[{name!r}]', metric, self._count, are_logits)
      for name, metric in by_name.items()
    }
    self._structure = model.initial_weights

    def compute(weights: Any, x: Any, y: Any) -> tuple[Any, Any]:
      output = model.predict_on_batch(weights, x, training=False)
      loss = model.loss(output, y) if self.takes_loss else tf.constant(0.0)
      is_penalised = isinstance(output, keras_losses.Penalised)
      return output.output if is_penalised else output, loss

    # It gives the same bits in every process.
    weight_specs = functions.specs_of(self._structure)
    self._compute = functions.Traced.of(compute, weight_specs, *specs)

  def measure(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
    """Returns loss and metrics of the model with these weights, by name."""
    flat = tf.nest.flatten((weights.trainable, weights.non_trainable))
    packed = tf.nest.pack_sequence_as(self._structure, flat)
    output, *_ = self._batch(packed, slice(0, 1))
    num_bytes = sum(each.nbytes for each in tf.nest.flatten(output))
    size = max(1, min(_MAX_BATCH, _MAX_BATCH_BYTES // max(1, num_bytes)))
    parts: dict[str, list[Any]] = {name: [] for name in self._metrics}
    losses = []
    for first in range(0, self._count, size):
      output, labels, loss = self._batch(packed, slice(first, first + size))
      count = len(tf.nest.flatten(labels)[0])
      losses.append(metrics_lib.Sums(count * float(loss), count))
      for name, (of_batch, _) in self._metrics.items():
        with _naming(name, _shapes((labels, output))):
          parts[name].append(of_batch(labels, output))
    values = {_LOSS: _mean_of(losses)}
    for name, (_, of_parts) in self._metrics.items():
      with _naming(name, 'of all batches'):
        values[name] = of_parts(parts[name])
    return values

  def _batch(self, weights: Any, batch: slice) -> tuple[Any, Any, Any]:
    """Returns output, labels and loss of some examples."""
    x, y = tf.nest.map_structure(lambda each: each[batch], self._arguments)
    output, loss = self._compute(*tf.nest.map_structure(tf.constant, (weights, x, y)))
    labels = tf.nest.map_structure(lambda each: each[batch], self.examples[1])
    return tf.nest.map_structure(np.asarray, output), labels, loss

  def check(self, weights: Any) -> None:
    """Evaluates once before a training, so that errors do not come after a round."""
    try:
      self.measure(tff.learning.models.ModelWeights(*weights))
    except (tf.errors.OpError, TypeError) as e:
      raise ValueError(
        f'the model fails on test data {_shapes(self.examples)}: '
        f'{failures.sentence(str(e))}'
      ) from e


@contextlib.contextmanager
def _naming(name: str, arrays: str) -> Iterator[None]:
  """Names the metric in the error if it fails."""
  try:
    yield
  except Exception as e:
    raise ValueError(
      f'test.metrics[{name!r}] must make a number of labels and outputs {arrays}, but '
      f'failed: {type(e).__name__}: {e}'
    ) from e


def _mean_of(sums: Sequence[metrics_lib.Sums]) -> float:
  return metrics_lib.Sums(*map(sum, zip(*sums))).mean


def _in_batches(
  name: str, metric: Any, count: int, are_logits: bool
) -> tuple[Callable[[Any, Any], Any], Callable[[list[Any]], float]]:
  """A metric as a function of each batch, and one of what the first made of all."""
  if isinstance(metric, metrics_lib.MeanMetric):
    return metric.sums, _mean_of
  if isinstance(metric, (str, type, tf.keras.metrics.Metric)) or (
    getattr(metric, '__module__', '').startswith('keras.')
  ):
    metric = metrics_lib.KerasMetric(metric, are_logits=are_logits)
  if isinstance(metric, metrics_lib.KerasMetric):

    def result(unused: list[None]) -> float:
      value = metric.result()
      metric.reset()
      return float(value)

    return metric.update, result
  if not callable(metric):
    raise TypeError(
      f'{name} must be a function of labels and outputs, a learning.MeanMetric, or a '
      f'metric of Keras or its name; got {metric!r}.'
    )
  metrics_lib.check_order(name, metric)

  def keep(labels: Any, outputs: Any) -> tuple[Any, Any]:
    flat = tf.nest.flatten(outputs)
    num_bytes = count * sum(each.nbytes for each in flat) // len(flat[0])
    if num_bytes > _MAX_OUTPUT_BYTES:
      raise ValueError(
        f'it is a function of the outputs of all {count} test examples, {num_bytes} '
        f'bytes; at most {_MAX_OUTPUT_BYTES} are kept. Give learning.MeanMetric('
        'per_example), which takes a batch at a time, or fewer test examples.'
      )
    return labels, outputs

  def of_all(batches: list[Any]) -> float:
    whole = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches)
    return _evaluate(metric, *whole)

  return keep, of_all


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
