"""The losses that `--loss` names, and weights of classes in them.

The loss of a batch is the mean over the labels that count. With weights w of examples,
and m = 0 for the labels that a shape ignores (padding) and 1 for the others,

    loss = sum_i w_i sum_t m_it loss_it / sum_i w_i sum_t m_it

where t runs over an example's labels: one of them for a class or a number, one for each
of several numbers or tags, one per position for tokens. So longer sentences in a batch
count by their number of tokens, and padding does not count. A batch in which no label
counts has loss 0.

With `--class_weights`, an example's loss is multiplied by the weight of its class in
the numerator, not in the denominator, as with Keras's class_weight.
"""

from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from .data import population

# The kinds of labels of each loss.
LOSSES: dict[str, tuple[population.LabelKind, ...]] = {
  'cross_entropy': ('class', 'tokens', 'tags'),
  'mean_squared_error': ('number',),
  'mean_absolute_error': ('number',),
}


def check(given: str) -> None:
  if given not in LOSSES:
    raise ValueError(
      f'--loss={given} is none of {", ".join(LOSSES)}; other losses of Keras are for '
      'Keras models of your own, --model=package.module:function.'
    )


def name_for(shape: population.Shape, given: Optional[str]) -> str:
  """Returns the loss that was asked for, by default the one for this kind of labels."""
  fitting = [name for name, kinds in LOSSES.items() if shape.label_kind in kinds]
  if given is None:
    return fitting[0]
  check(given)
  if given not in fitting:
    raise ValueError(
      f'--loss={given} is not for labels of the kind {shape.label_kind!r}; give '
      f'{" or ".join(fitting)}.'
    )
  return given


def function(shape: population.Shape, name: Optional[str]) -> Callable[..., Any]:
  """Returns the loss of a batch, a function of outputs, labels and sample weights."""
  import tensorflow as tf

  name, kind, rank = name_for(shape, name), shape.label_kind, len(shape.labels)

  def of_labels(outputs: Any, labels: Any) -> Any:
    if kind in ('class', 'tokens'):
      return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
    outputs = tf.reshape(outputs, tf.shape(labels))
    labels = tf.cast(labels, outputs.dtype)
    if kind == 'tags':
      return tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs)
    difference = outputs - labels
    return tf.square(difference) if name == 'mean_squared_error' else tf.abs(difference)

  def batch_loss(outputs: Any, labels: Any, sample_weight: Any = None) -> Any:
    values = of_labels(outputs, labels)
    counts = tf.ones_like(values)
    for ignored in shape.ignored_labels:
      counts *= tf.cast(tf.not_equal(labels, ignored), values.dtype)
    if sample_weight is not None:
      weights = tf.cast(sample_weight, values.dtype)
      counts *= tf.reshape(weights, [-1, *[1] * rank])
    return tf.math.divide_no_nan(tf.reduce_sum(counts * values), tf.reduce_sum(counts))

  return batch_loss


def with_class_weights(model: Any, weights: Sequence[float]) -> Any:
  """Returns a model whose loss counts each example by the weight of its class.

  This works for any loss that is a weighted mean when sample weights are 1 on average,
  whether it divides by their sum, as those here, or by the batch size, as Keras's.
  """
  import tensorflow as tf

  from tff_dp_aggregators.learning import models as models_lib

  def loss(outputs: Any, labels: Any, sample_weight: Any = None) -> Any:
    penalty = getattr(outputs, 'penalty', 0.0)  # Regularization, which has no class.
    outputs = getattr(outputs, 'output', outputs)
    class_weights = tf.gather(tf.constant(weights, tf.float32), labels)
    stated = tf.ones_like(class_weights)
    if sample_weight is not None:
      stated = tf.cast(sample_weight, tf.float32)
    both = class_weights * stated
    total, size = tf.reduce_sum(both), tf.cast(tf.size(both), tf.float32)
    mean = model.loss(outputs, labels, tf.math.divide_no_nan(size * both, total))
    return mean * tf.math.divide_no_nan(total, tf.reduce_sum(stated)) + penalty

  _check_takes_weights(model, len(weights))
  return models_lib.with_loss(model, tf.function(loss))


def _check_takes_weights(model: Any, num_classes: int) -> None:
  """Checks that the loss is that of the first example if only this one has a weight."""
  import tensorflow as tf

  # Two examples with equal outputs, logits or probabilities, and unequal labels.
  rest = 0.1 / max(1, num_classes - 1)
  outputs = tf.constant([[0.9, *[rest] * (num_classes - 1)]] * 2)
  labels = tf.constant([0, min(1, num_classes - 1)])
  try:
    weighted = float(model.loss(outputs, labels, tf.constant([2.0, 0])))
    alone = float(model.loss(outputs[:1], labels[:1]))
  except Exception as e:  # A user's loss may raise anything.
    raise ValueError(
      f'the loss fails with sample_weight: {type(e).__name__}: {e}'
    ) from e
  if not np.allclose(weighted, alone, rtol=1e-3, atol=1e-6):
    raise ValueError(
      'the loss of the model ignores sample_weight: with weights 2 and 0 of two '
      f'examples it is {weighted:g}, and {alone:g} of the first alone.'
    )
