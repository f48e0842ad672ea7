"""Computes loss and metrics of a model on test data, which belong to no client.

The larger a model's output for an example is, the smaller are the batches: outputs of a
language model are gigabytes for some thousand sentences. Means and metrics of Keras are
computed batch by batch; for other functions all outputs are kept.
"""

import contextlib
import dataclasses
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from keras.src.engine import compile_utils

from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import functions
from tff_dp_aggregators.learning import keras_losses
from tff_dp_aggregators.learning import models

# Usual names of an argument that takes a model's outputs.
_OUTPUTS = re.compile(
  r'o|p|(y_?)?(pred|hat)|(model_?)?(output|logit|prediction|score|prob)\w*|pred\w*'
)
# Keras's default threshold of a probability for the positive class.
_DEFAULT_THRESHOLD = 0.5
_LOSS = 'loss'
# Maximum number of examples in a batch, and of bytes of their outputs.
_MAX_BATCH, _MAX_BATCH_BYTES = 4096, 2**26
# Maximum size of the outputs of all examples, where a metric needs all of them.
_MAX_OUTPUT_BYTES = 2**30


def check_order(name: str, function: Callable[..., Any]) -> None:
  """Refuses a metric that takes outputs first: it would make a wrong number."""
  try:
    parameters = list(inspect.signature(function).parameters)
  except (TypeError, ValueError):  # Some compiled functions have no signature.
    return
  if len(parameters) > 1 and _OUTPUTS.fullmatch(parameters[0].lower()):
    raise ValueError(
      f'{name} calls its first argument {parameters[0]!r}: metrics get labels first, '
      'then outputs, as in scikit-learn and Keras. Exchange them, or rename the '
      f'argument if it stands for labels (it takes {", ".join(parameters[:2])}).'
    )


def check_shape(values: np.ndarray, labels: Any) -> None:
  """Refuses an array without exactly one value for each example, or for each label."""
  shape = np.shape(labels) if isinstance(labels, (np.ndarray, list)) else None
  if not values.ndim or shape is None:
    return
  if values.shape != shape[: values.ndim] and values.shape != (*shape, 1):
    raise ValueError(
      f'it makes an array of shape {values.shape} of labels of shape {shape}; it must '
      'be a number, or one for each example or label. Where outputs have a last axis '
      'of 1, take outputs[:, 0].'
    )


class Sums(NamedTuple):
  """Sums of weighted values, and of weights, of some examples, for a weighted mean."""

  values: float = 0.0
  weights: float = 0.0

  @property
  def mean(self) -> float:
    """The weighted mean; raises ValueError if there is no weight."""
    if not self.weights:
      raise ValueError('the weights of all examples add up to 0.')
    return self.values / self.weights


@dataclasses.dataclass(frozen=True)
class MeanMetric:
  """A mean over examples, or over parts of them such as the words of a sentence.

  `learning.train` computes it batch by batch, where a plain function gets the outputs
  of all test examples at once. Under the name 'loss' it replaces the model's own loss,
  whose batches are weighted by their number of examples: this is right for a mean over
  examples, but not for one over the words of sentences of different lengths.

  Attributes:
    per_example: Maps the labels of a batch and the model's outputs to values: an array
      whose first axis is that of the examples; or to a tuple of values and their
      weights, of the same shape. Values with weight 0 are ignored.

  Example:
    >>> def right_words(words, logits):
    ...   return np.argmax(logits, axis=-1) == words, words != 0
    >>> accuracy = MeanMetric(right_words)
    >>> logits = np.eye(4)[[[1, 2, 0], [3, 1, 3]]]
    >>> accuracy.sums(np.array([[1, 3, 0], [3, 1, 2]]), logits)
    Sums(values=3.0, weights=5.0)
    >>> _.mean
    0.6
  """

  per_example: Callable[[Any, Any], Any]

  def __post_init__(self) -> None:
    if not callable(self.per_example):
      raise TypeError(
        'per_example must be a function of labels and outputs, got '
        f'{self.per_example!r}.'
      )
    check_order('per_example', self.per_example)

  def sums(self, labels: Any, outputs: Any) -> Sums:
    """Returns the sums of a batch."""
    result = self.per_example(labels, outputs)
    values, weights = result if isinstance(result, tuple) else (result, None)
    values = np.asarray(values, np.float64)
    if not values.ndim:
      raise ValueError(
        'per_example must make an array with a value for each example, got the number '
        f'{values}; a function of all examples is a metric by itself.'
      )
    check_shape(values, labels)
    if weights is None:
      return Sums(float(values.sum()), float(values.size))
    weights = np.asarray(weights, np.float64)
    total = float(weights.sum())
    is_valid = weights.shape == values.shape and math.isfinite(total)
    if not is_valid or (weights < 0).any():
      raise ValueError(
        'weights of per_example must be of the shape of the values, '
        f'{values.shape}, finite and not negative; got {weights!r:.200}.'
      )
    weighted = np.where(weights > 0, values, 0.0) * weights
    return Sums(float(weighted.sum()), total)


def _name_of(metric: Any) -> str:
  for name in (metric, *(getattr(metric, key, None) for key in ('name', '__name__'))):
    if isinstance(name, str) and name != '<lambda>':
      return name
  raise ValueError(
    f'the metric {metric!r} has no name; give metrics as a mapping of names to metrics.'
  )


def _refuse_logits(metric: tf.keras.metrics.Metric) -> None:
  config = metric.get_config()
  function = getattr(getattr(metric, '_fn', None), '__name__', '')
  from_logits = config.get('from_logits', getattr(metric, '_from_logits', True))
  if (
    from_logits is False
    or (function.endswith('crossentropy') and not metric._fn_kwargs.get('from_logits'))
    or function == 'binary_accuracy'
    or config.get('threshold') == _DEFAULT_THRESHOLD
    or config.get('thresholds', 1) in (None, _DEFAULT_THRESHOLD, [_DEFAULT_THRESHOLD])
  ):
    raise ValueError(
      'it takes probabilities, and the loss of the model says that outputs are logits: '
      'give a metric of tf.keras.metrics with from_logits=True, threshold=0.0 or '
      'thresholds=0.0, whichever it takes; binary_accuracy is BinaryAccuracy'
    )


class Evaluator:
  """Evaluates functional models, Keras ones among them."""

  def __init__(
    self, model: tff.learning.models.FunctionalModel, examples: Any, metrics: Any = None
  ):
    """Checks the data; `metrics` are those of `options.Evaluation`."""
    x, y = clients_lib.inputs_and_labels(examples, 'test data')
    x, y = clients_lib.as_arrays({'x': x, 'y': y}, 'test data').values()
    specs = clients_lib.pair(model.input_spec)
    if isinstance(y, np.ndarray) and isinstance(specs[1], tf.TensorSpec):
      # Labels that are one number per example may have a last axis of size 1, or not.
      spec_shape = (len(y), *specs[1].shape[1:])
      fits = keras_losses.fitted_shape(y.shape, spec_shape) is not None
      y = y.reshape(spec_shape) if fits else y
    given, wanted = clients_lib.example_spec((x, y)), clients_lib.example_spec(specs)
    clients_lib.check_spec(given, wanted, 'test data', dtypes=False)
    self._count = len(tf.nest.flatten(y)[0])
    self.examples = x, y
    # The same in the structure and of the dtypes that the model takes.
    self._arguments = tf.nest.map_structure(
      lambda spec, each: np.asarray(each, spec.dtype.as_numpy_dtype),
      specs,
      tf.nest.pack_sequence_as(specs, tf.nest.flatten((x, y))),
    )
    outputs = []  # Names, if there are several.
    if not isinstance(getattr(model, 'output_spec', None), (tf.TensorSpec, type(None))):
      outputs = keras_losses.names_of_outputs(model.keras_model, model.output_spec)
    given_by_name = _metrics_by_name(model, metrics, outputs)
    # The model's loss, not a metric of that name.
    self.takes_loss = _LOSS not in given_by_name
    self.names = list({_LOSS: None, **given_by_name})  # Names of loss and metrics.
    logits: set[str] = getattr(model, 'logits', set())
    self._metrics = {}
    for name, (metric, output) in given_by_name.items():
      are_logits = output in logits if output else bool(logits)
      of_batch, of_parts = in_batches(
        f'test.metrics[{name!r}]', metric, self._count, are_logits
      )
      if output:
        of_batch = _of_output(of_batch, outputs, output)
      self._metrics[name] = of_batch, of_parts
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
      losses.append(Sums(count * float(loss), count))
      for name, (of_batch, _) in self._metrics.items():
        with _naming(name, _shapes((labels, output))):
          parts[name].append(of_batch(labels, output))
    values = {_LOSS: _mean_of(losses)}
    for name, (_, of_parts) in self._metrics.items():
      with _naming(name, 'of all batches'):
        values[name] = of_parts(parts[name])
    return values

  def _batch(self, weights: Any, batch: slice) -> tuple[Any, Any, Any]:
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
  try:
    yield
  except Exception as e:
    raise ValueError(
      f'test.metrics[{name!r}] must make a number of labels and outputs {arrays}, but '
      f'failed: {type(e).__name__}: {e}'
    ) from e


def _mean_of(sums: Sequence[Sums]) -> float:
  return Sums(*map(sum, zip(*sums))).mean


def in_batches(
  name: str, metric: Any, count: int, are_logits: bool
) -> tuple[Callable[[Any, Any], Any], Callable[[list[Any]], float]]:
  """A metric as a function of each batch, and one of what the first made of all."""
  if isinstance(metric, MeanMetric):
    return metric.sums, _mean_of
  if isinstance(metric, (str, type, tf.keras.metrics.Metric)) or (
    getattr(metric, '__module__', '').startswith('keras.')
  ):
    return _of_keras(metric, are_logits)
  if not callable(metric):
    raise TypeError(
      f'{name} must be a function of labels and outputs, a learning.MeanMetric, or a '
      f'metric of Keras or its name; got {metric!r}.'
    )
  check_order(name, metric)

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


def _of_output(
  of_batch: Callable[[Any, Any], Any], names: Sequence[str], output: str
) -> Callable[[Any, Any], Any]:
  def of_output(labels: Any, outputs: Any) -> Any:
    pair = (('labels', labels), ('outputs', outputs))
    return of_batch(*(keras_losses.by_output(*each, names)[output] for each in pair))

  return of_output


def _of_keras(
  given: Any, are_logits: bool
) -> tuple[Callable[[Any, Any], None], Callable[[list[Any]], float]]:
  made: list[tf.keras.metrics.Metric] = []  # By the first batch.

  def update(labels: Any, outputs: Any) -> None:
    if not isinstance(labels, np.ndarray) or not isinstance(outputs, np.ndarray):
      raise ValueError(
        'it is for one output; give a list of metrics, which are measured of each, or '
        'a function of all labels and outputs'
      )
    if keras_losses.fitted_shape(labels.shape, outputs.shape) is not None:
      labels = labels.reshape(outputs.shape)
    if not made:
      own = given() if isinstance(given, type) else given
      # The meaning of some names, such as 'accuracy', depends on the shapes.
      metric = compile_utils.MetricsContainer()._get_metric_object(
        own, tf.TensorSpec(labels.shape), tf.TensorSpec(outputs.shape)
      )
      # Keras keeps an unknown name as a string, and a loss as an object.
      is_made = isinstance(own, tf.keras.metrics.Metric)
      if not is_made and not hasattr(getattr(metric, '_fn', len), '__name__'):
        raise ValueError(f'{own!r} is not a metric that tf.keras.metrics.get knows')
      if are_logits:
        _refuse_logits(metric)
      metric.reset_state()
      made.append(metric)
    made[0].update_state(labels, outputs)

  def result(unused: list[None]) -> float:
    value = np.asarray(made[0].result())
    made[0].reset_state()
    if value.size != 1:
      raise ValueError(f'it makes {value.size} numbers')
    return float(value.reshape(()))

  return update, result


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
  check_shape(array, labels)
  return float(array.mean())


def _metrics_by_name(
  model: tff.learning.models.FunctionalModel, metrics: Any, outputs: Sequence[str]
) -> dict[str, tuple[Any, str]]:
  """Metrics by name, with their outputs; by default those of a compiled model."""
  is_compiled = metrics is None and isinstance(model, models.KerasFunctionalModel)
  if is_compiled:
    metrics = model.compiled_metrics
  if metrics is None:
    return {}
  if isinstance(metrics, Mapping) and not is_compiled:
    if not any(isinstance(each, (list, tuple)) for each in metrics.values()):
      return {name: (metric, '') for name, metric in metrics.items()}
  by_output = dict.fromkeys(outputs or [''], metrics)
  if outputs and isinstance(metrics, Mapping):
    by_output = dict(metrics)
  elif outputs and any(isinstance(each, (list, tuple)) for each in metrics):
    by_output = dict(zip(outputs, metrics))
  result: dict[str, tuple[Any, str]] = {}
  for output, listed in by_output.items():
    for each in listed if isinstance(listed, (list, tuple)) else [listed]:
      name = f'{output}_{_name_of(each)}' if output else _name_of(each)
      if name in result:
        raise ValueError(f'two metrics are called {name!r}; give one another name.')
      # A single object would mix the values of all outputs.
      is_shared = output and isinstance(each, tf.keras.metrics.Metric)
      copied = type(each).from_config(each.get_config()) if is_shared else each
      result[name] = copied, output
  return result


def _shapes(arrays: Any) -> str:
  flat = tf.nest.flatten(arrays)
  return ' and '.join(f'of shape {np.shape(each)}' for each in flat)
