"""Metrics as `compile` of Keras takes them: objects, classes and names, by output."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.learning import keras_losses

_SHORT = {'acc': 'accuracy', 'ce': 'crossentropy'}
# What Keras means by these depends on the shapes of labels and outputs.
_BY_SHAPE = ('accuracy', 'crossentropy')
# What Keras takes probabilities for a yes above.
_MIDDLE = 0.5


class KerasMetric:
  """A metric of Keras, of one output of a model."""

  def __init__(
    self,
    metric: Any,
    names: Sequence[str] = (),
    output: Optional[str] = None,
    are_logits: bool = False,
  ):
    """Initializes it.

    `output`: Which of them; `None` for the only one.
    """
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
      labels = keras_losses.parts(labels, self._names)[self._output]
      outputs = keras_losses.parts(outputs, self._names)[self._output]
    elif not isinstance(labels, np.ndarray) or not isinstance(outputs, np.ndarray):
      raise ValueError(
        'it is for one output; give a list of metrics, which are measured of each, or '
        'a function of all labels and outputs'
      )
    labels = fitted(labels, outputs)
    if self._metric is None:
      self._metric = _made(self._given, labels.shape, outputs.shape)
      _refuse_several(self._metric, labels.shape, outputs.shape)
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


def fitted(labels: Any, outputs: Any) -> Any:
  """Labels of the shape of outputs, if only a last axis of 1 is between them."""
  if isinstance(labels, np.ndarray) and isinstance(outputs, np.ndarray):
    shape = keras_losses.fitted_shape(labels.shape, outputs.shape)
    return labels if shape is None else labels.reshape(outputs.shape)
  return labels


def _name_of(metric: Any) -> str:
  for found in (metric, *(getattr(metric, key, None) for key in ('name', '__name__'))):
    if isinstance(found, str) and found != '<lambda>':
      return found
  raise ValueError(
    f'the metric {metric!r} has no name; give metrics as a mapping of names to metrics.'
  )


def _made(
  metric: Any, labels: tuple[int, ...], outputs: tuple[int, ...]
) -> tf.keras.metrics.Metric:
  if isinstance(metric, str):
    metric = _named(metric, labels, outputs)
  if isinstance(metric, type):
    metric = metric()
  if isinstance(metric, tf.keras.metrics.Metric):
    return metric
  return tf.keras.metrics.MeanMetricWrapper(metric, name=metric.__name__)


def _refuse_several(
  metric: tf.keras.metrics.Metric, labels: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
  """Refuses a metric of one number for each label where there are several."""
  kind = type(metric).__name__
  if labels != outputs and {'thresholds', 'num_thresholds'} & set(metric.get_config()):
    raise ValueError(
      f'{kind} takes one number for each label, and the model puts out {outputs[-1]}; '
      'have it put out one, or give a function of labels and outputs, such as one of '
      'tf.sigmoid(outputs[:, 1] - outputs[:, 0]) for two classes'
    )


def _refuse_logits(metric: tf.keras.metrics.Metric) -> None:
  """Refuses a metric that takes probabilities, and would make a number of logits."""
  config = metric.get_config()
  function = getattr(getattr(metric, '_fn', None), '__name__', '')
  from_logits = config.get('from_logits', getattr(metric, '_from_logits', True))
  thresholds = [config.get('threshold'), config.get('thresholds', 1)]
  if (
    from_logits is False
    or (function.endswith('crossentropy') and not metric._fn_kwargs.get('from_logits'))
    or function == 'binary_accuracy'
    or thresholds[0] == _MIDDLE
    or thresholds[1] in (None, _MIDDLE, [_MIDDLE])
  ):
    raise ValueError(
      'it takes probabilities, and the loss of the model says that outputs are logits: '
      'give a metric of tf.keras.metrics with from_logits=True, threshold=0.0 or '
      'thresholds=0.0, whichever it takes; binary_accuracy is BinaryAccuracy'
    )


def _named(name: str, labels: tuple[int, ...], outputs: tuple[int, ...]) -> Any:
  kind = _SHORT.get(name, name)
  if kind in _BY_SHAPE:
    if outputs[-1] == 1:
      kind = f'binary_{kind}'
    elif len(labels) < len(outputs) or labels[-1] == 1:
      kind = f'sparse_categorical_{kind}'
    else:
      kind = f'categorical_{kind}'
  try:
    found = tf.keras.metrics.get(kind)
  except ValueError:
    found = None
  if not callable(found):
    raise ValueError(f'{name!r} is not a metric that tf.keras.metrics.get knows')
  return found
