"""Measures of a model: means over examples, and metrics as Keras's `compile` has."""

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

# What functions call outputs that have them first, as they were given once.
_OUTPUTS = re.compile(
  r'o|p|(y_?)?(pred|hat)|(model_?)?(output|logit|prediction|score|prob)\w*|pred\w*'
)
# What Keras takes probabilities for a yes above.
_MIDDLE = 0.5


def check_order(name: str, function: Callable[..., Any]) -> None:
  """Refuses a metric that takes outputs first, by what it calls them.

  With labels in their place it would make a number, and a wrong one.
  """
  try:
    parameters = list(inspect.signature(function).parameters)
  except (TypeError, ValueError):  # Some that are compiled do not say.
    return
  if len(parameters) > 1 and _OUTPUTS.fullmatch(parameters[0].lower()):
    raise ValueError(
      f'{name} calls its first argument {parameters[0]!r}: metrics get labels first, '
      'then outputs, as in scikit-learn and Keras. Exchange them, or rename the '
      f'argument if it stands for labels (it takes {", ".join(parameters[:2])}).'
    )


def check_shape(values: np.ndarray, labels: Any) -> None:
  """Refuses values that are not one for each example, or for each label."""
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
  """What some examples add to a weighted mean: sums of weighted values, and weights."""

  values: float = 0.0
  weights: float = 0.0

  def plus(self, other: 'Sums') -> 'Sums':
    """With those of other examples."""
    return Sums(self.values + other.values, self.weights + other.weights)

  @property
  def mean(self) -> float:
    """The weighted mean."""
    if not self.weights:
      raise ValueError('the weights of all examples add up to 0.')
    return self.values / self.weights


@dataclasses.dataclass(frozen=True)
class MeanMetric:
  """A mean over examples, or over parts of them such as the words of a sentence.

  `learning.train` computes it batch by batch, where a plain function gets the outputs
  of all test examples at once. Under the name 'loss' it stands for the model's own
  loss, whose batches are weighted by their examples: right for a mean over examples,
  and not for one over the words of sentences of different lengths.

  Attributes:
    per_example: From the labels of a batch and the model's outputs to values: an array
      whose first axis is that of the examples; or to a tuple of values and their
      weights, of one shape. Values without weight are not looked at.

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
    """What labels and outputs of a batch add to the mean.

    Args:
      labels: Of the batch.
      outputs: Of the batch.

    Raises:
      ValueError: If values and weights are not of one shape, or a weight is negative or
        not finite.
    """
    made = self.per_example(labels, outputs)
    values, weights = made if isinstance(made, tuple) else (made, None)
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
    is_right = weights.shape == values.shape and math.isfinite(total)
    if not is_right or (weights < 0).any():
      raise ValueError(
        'weights of per_example must be of the shape of the values, '
        f'{values.shape}, finite and not negative; got {weights!r:.200}.'
      )
    weighted = np.where(weights > 0, values, 0.0) * weights
    return Sums(float(weighted.sum()), total)


class KerasMetric:
  """A metric of Keras, of the only output of a model, or of one of several by name."""

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
    """Forgets all batches."""
    if self._metric is not None:
      self._metric.reset_state()

  def update(self, labels: Any, outputs: Any) -> None:
    """Takes a batch."""
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
      # What some names mean depends on the shapes of labels and outputs.
      self._metric = compile_utils.MetricsContainer()._get_metric_object(
        metric, tf.TensorSpec(labels.shape), tf.TensorSpec(outputs.shape)
      )
      # That of a name which Keras does not know is a text, and a loss is an object.
      is_made = isinstance(metric, tf.keras.metrics.Metric)
      if not is_made and not hasattr(getattr(self._metric, '_fn', len), '__name__'):
        self._metric = None
        raise ValueError(f'{metric!r} is not a metric that tf.keras.metrics.get knows')
      several = {'thresholds', 'num_thresholds'} & set(self._metric.get_config())
      if labels.shape != outputs.shape and several:
        raise ValueError(
          f'{type(self._metric).__name__} takes one number for each label, and the '
          f'model puts out {outputs.shape[-1]}; have it put out one, or give a '
          'function of labels and outputs, such as one of tf.sigmoid(outputs[:, 1] - '
          'outputs[:, 0]) for two classes'
        )
      if self._are_logits:
        _refuse_logits(self._metric)
      self._metric.reset_state()
    self._metric.update_state(labels, outputs)

  def result(self) -> float:
    """What it comes to, of the batches since it was reset."""
    assert self._metric is not None
    found = np.asarray(self._metric.result())
    if found.size != 1:
      raise ValueError(f'it makes {found.size} numbers')
    return float(found.reshape(()))


def by_name(
  given: Any, names: Sequence[str], of_logits: Collection[str] = ()
) -> dict[str, Any]:
  """Metrics as `compile` takes them, by the names that it gives them."""
  of_each = {'': given}
  if names:
    of_each = dict.fromkeys(names, given)
    if isinstance(given, Mapping):
      of_each = dict(given)
    elif any(isinstance(each, (list, tuple)) for each in given):
      of_each = dict(zip(names, given))
  found: dict[str, Any] = {}
  for output, metrics in of_each.items():
    for each in metrics if isinstance(metrics, (list, tuple)) else [metrics]:
      name = f'{output}_{_name_of(each)}' if output else _name_of(each)
      if name in found:
        raise ValueError(f'two metrics are called {name!r}; give one another name.')
      found[name] = each
      if output:
        # One object would add up what it sees of all outputs.
        own = each
        if isinstance(each, tf.keras.metrics.Metric):
          own = type(each).from_config(each.get_config())
        found[name] = KerasMetric(own, names, output, output in of_logits)
  return found


def _name_of(metric: Any) -> str:
  for found in (metric, *(getattr(metric, key, None) for key in ('name', '__name__'))):
    if isinstance(found, str) and found != '<lambda>':
      return found
  raise ValueError(
    f'the metric {metric!r} has no name; give metrics as a mapping of names to metrics.'
  )


def _refuse_logits(metric: tf.keras.metrics.Metric) -> None:
  """Refuses a metric that takes probabilities, and would make a number of logits."""
  config = metric.get_config()
  function = getattr(getattr(metric, '_fn', None), '__name__', '')
  from_logits = config.get('from_logits', getattr(metric, '_from_logits', True))
  if (
    from_logits is False
    or (function.endswith('crossentropy') and not metric._fn_kwargs.get('from_logits'))
    or function == 'binary_accuracy'
    or config.get('threshold') == _MIDDLE
    or config.get('thresholds', 1) in (None, _MIDDLE, [_MIDDLE])
  ):
    raise ValueError(
      'it takes probabilities, and the loss of the model says that outputs are logits: '
      'give a metric of tf.keras.metrics with from_logits=True, threshold=0.0 or '
      'thresholds=0.0, whichever it takes; binary_accuracy is BinaryAccuracy'
    )
