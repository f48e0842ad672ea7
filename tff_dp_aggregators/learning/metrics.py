"""Metrics of a model: means over examples, and metrics as Keras's `compile` takes."""

import dataclasses
import inspect
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from keras.src.engine import compile_utils

from tff_dp_aggregators.learning import keras_losses

# Usual names of an argument that takes a model's outputs.
_OUTPUTS = re.compile(
  r'o|p|(y_?)?(pred|hat)|(model_?)?(output|logit|prediction|score|prob)\w*|pred\w*'
)
# Keras's default threshold of a probability for the positive class.
_DEFAULT_THRESHOLD = 0.5


def check_order(name: str, function: Callable[..., Any]) -> None:
  """Refuses a metric that takes outputs first, according to its argument's name.

  With labels in their place it would compute a wrong number without an error.
  """
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

  def plus(self, other: 'Sums') -> 'Sums':
    """Returns the sums of these examples and others."""
    return Sums(self.values + other.values, self.weights + other.weights)

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


class KerasMetric:
  """A Keras metric of a model's only output, or of the output named `output`."""

  def __init__(
    self,
    metric: Any,
    names: Sequence[str] = (),
    output: Optional[str] = None,
    are_logits: bool = False,
  ):
    self._given, self._names, self._output = metric, names, output
    self._are_logits = are_logits
    self._metric: Optional[tf.keras.metrics.Metric] = None

  def reset(self) -> None:
    """Resets the metric's state."""
    if self._metric is not None:
      self._metric.reset_state()

  def update(self, labels: Any, outputs: Any) -> None:
    """Adds a batch."""
    if self._output is not None:
      labels, outputs = (
        keras_losses.by_output(kind, given, self._names)[self._output]
        for kind, given in (('labels', labels), ('outputs', outputs))
      )
    elif not isinstance(labels, np.ndarray) or not isinstance(outputs, np.ndarray):
      raise ValueError(
        'it is for one output; give a list of metrics, which are measured of each, or '
        'a function of all labels and outputs'
      )
    if keras_losses.fitted_shape(labels.shape, outputs.shape) is not None:
      labels = labels.reshape(outputs.shape)
    if self._metric is None:
      metric = self._given() if isinstance(self._given, type) else self._given
      # The meaning of some names, such as 'accuracy', depends on the shapes.
      self._metric = compile_utils.MetricsContainer()._get_metric_object(
        metric, tf.TensorSpec(labels.shape), tf.TensorSpec(outputs.shape)
      )
      # Keras keeps an unknown name as a string, and a loss as an object.
      is_made = isinstance(metric, tf.keras.metrics.Metric)
      if not is_made and not hasattr(getattr(self._metric, '_fn', len), '__name__'):
        self._metric = None
        raise ValueError(f'{metric!r} is not a metric that tf.keras.metrics.get knows')
      if self._are_logits:
        _refuse_logits(self._metric)
      self._metric.reset_state()
    self._metric.update_state(labels, outputs)

  def result(self) -> float:
    """The metric's value over all batches since the last reset."""
    assert self._metric is not None
    value = np.asarray(self._metric.result())
    if value.size != 1:
      raise ValueError(f'it makes {value.size} numbers')
    return float(value.reshape(()))


def by_name(
  given: Any, names: Sequence[str], of_logits: Collection[str] = ()
) -> dict[str, Any]:
  """Maps names, as Keras's `compile` makes them, to the metrics given in its form."""
  by_output = {'': given}
  if names:
    by_output = dict.fromkeys(names, given)
    if isinstance(given, Mapping):
      by_output = dict(given)
    elif any(isinstance(each, (list, tuple)) for each in given):
      by_output = dict(zip(names, given))
  result: dict[str, Any] = {}
  for output, metrics in by_output.items():
    for each in metrics if isinstance(metrics, (list, tuple)) else [metrics]:
      name = f'{output}_{_name_of(each)}' if output else _name_of(each)
      if name in result:
        raise ValueError(f'two metrics are called {name!r}; give one another name.')
      result[name] = each
      if output:
        # A single object would mix the values of all outputs.
        copied = each
        if isinstance(each, tf.keras.metrics.Metric):
          copied = type(each).from_config(each.get_config())
        result[name] = KerasMetric(copied, names, output, output in of_logits)
  return result


def _name_of(metric: Any) -> str:
  for name in (metric, *(getattr(metric, key, None) for key in ('name', '__name__'))):
    if isinstance(name, str) and name != '<lambda>':
      return name
  raise ValueError(
    f'the metric {metric!r} has no name; give metrics as a mapping of names to metrics.'
  )


def _refuse_logits(metric: tf.keras.metrics.Metric) -> None:
  """Refuses a metric that takes probabilities, which would be wrong with logits."""
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
