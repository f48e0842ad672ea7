"""Loss and metrics of a model on data of no client."""

from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.learning import examples as examples_lib

# From what a model puts out for all examples, and their labels, to a number.
Metric = Callable[[np.ndarray, np.ndarray], float]
_BATCH = 4096


class Evaluation:
  """Evaluates functional models, Keras ones among them.

  What it measures of a model that was released costs no privacy if the data are of
  nobody whose privacy is to be kept.
  """

  def __init__(
    self,
    model: tff.learning.models.FunctionalModel,
    examples: Any,
    metrics: Optional[Mapping[str, Metric]] = None,
  ):
    """Makes the graph.

    Args:
      model: Which one.
      examples: Inputs and labels, a structure of arrays like the model's `input_spec`,
        or a tuple of both.
      metrics: Further measures by name.

    Raises:
      ValueError: If the examples are not what the model takes.
    """
    spec = model.input_spec
    named = hasattr(spec, 'keys')
    x, y = map(_arrays, examples_lib.inputs_and_labels(examples, 'test_data'))
    x_spec, y_spec = (spec['x'], spec['y']) if named else spec
    examples_lib.check(
      _of_one((x, y)), _of_one((x_spec, y_spec)), 'test_data', dtypes=False
    )
    self._inputs = tf.nest.flatten(x)
    self._labels = y
    self._metrics = dict(metrics or {})
    if not len(self._inputs[0]):
      raise ValueError('test_data has no examples; give at least one, or None.')
    self._graph = tf.Graph()
    with self._graph.as_default():
      self._x = _placeholders(x_spec)
      self._y = _placeholders(y_spec)
      self._weights = tf.nest.map_structure(
        lambda each: tf.compat.v1.placeholder(each.dtype, each.shape),
        model.initial_weights,
      )
      self._output = model.predict_on_batch(self._weights, self._x, training=False)
      self._loss = model.loss(self._output, self._y)
    self._session = tf.compat.v1.Session(graph=self._graph)

  @property
  def names(self) -> list[str]:
    """What is measured."""
    return ['loss', *self._metrics]

  def measure(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
    """`loss`, and the further metrics, of a model.

    Args:
      weights: The model's.

    Raises:
      ValueError: If a metric fails, or is no number.
    """
    fed = dict(
      zip(
        tf.nest.flatten(self._weights),
        tf.nest.flatten((weights.trainable, weights.non_trainable)),
      )
    )
    count = len(self._inputs[0])
    outputs, losses, sizes = [], [], []
    for first in range(0, count, _BATCH):
      batch = slice(first, first + _BATCH)
      fed.update(zip(tf.nest.flatten(self._x), [each[batch] for each in self._inputs]))
      labels = [each[batch] for each in tf.nest.flatten(self._labels)]
      fed.update(zip(tf.nest.flatten(self._y), labels))
      output, loss = self._session.run((self._output, self._loss), fed)
      outputs.append(output)
      losses.append(loss)
      sizes.append(len(labels[0]))
    measured = {'loss': float(np.average(losses, weights=sizes))}
    if self._metrics:
      whole = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *outputs)
      for name, metric in self._metrics.items():
        try:
          measured[name] = float(metric(whole, self._labels))
        except Exception as e:
          raise ValueError(
            f'test_metrics[{name!r}] must make a number of outputs {_shapes(whole)} '
            f'and labels {_shapes(self._labels)}, but failed: {type(e).__name__}: {e}'
          ) from e
    return measured

  def check(self, weights: Any) -> None:
    """Evaluates once, to find before a training what would fail after a round.

    Args:
      weights: Trainable and other weights, such as a model's initial ones.

    Raises:
      ValueError: If a metric fails, or the model on these examples.
    """
    try:
      self.measure(tff.learning.models.ModelWeights(*weights))
    except (tf.errors.OpError, TypeError) as e:
      raise ValueError(
        f'the model fails on test_data of {_shapes((self._inputs, self._labels))}: {e}'
      ) from e


def _shapes(arrays: Any) -> str:
  flat = tf.nest.flatten(arrays)
  return ' and '.join(f'of shape {np.shape(each)}' for each in flat)


def _arrays(part: Any) -> Any:
  if isinstance(part, list):  # A list is an array, as with clients.
    return np.asarray(part)
  return tf.nest.map_structure(np.asarray, part)


def _of_one(batch: Any) -> Any:
  return tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape[1:]), batch)


def _placeholders(spec: Any) -> Any:
  return tf.nest.map_structure(
    lambda each: tf.compat.v1.placeholder(each.dtype, each.shape), spec
  )
