"""What is minimised, by name: what `--loss` takes.

The loss of a batch is the mean over the labels that count. With weights w of examples,
and m = 0 for the labels that a shape ignores (padding) and 1 for the others,

    loss = sum_i w_i sum_t m_it loss_it / sum_i w_i sum_t m_it

where t runs over an example's labels: one of them for a class or a number, one a
position for tokens. So a client with longer sentences in a batch does not count more
for it than by their tokens, and padding counts nowhere. A batch of nothing that counts
has loss 0.
"""

import dataclasses
from typing import Any, Callable, Optional

from .data import population


@dataclasses.dataclass(frozen=True)
class Loss:
  """A loss.

  Attributes:
    name: Value of `--loss`.
    label_kinds: For which labels it is.
    of_labels: Of outputs and labels, the loss at each label.
  """

  name: str
  label_kinds: tuple[population.LabelKind, ...]
  of_labels: Callable[[Any, Any], Any]


def _cross_entropy(outputs: Any, labels: Any) -> Any:
  import tensorflow as tf

  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs)


def _squared(outputs: Any, labels: Any) -> Any:
  import tensorflow as tf

  return tf.square(tf.reshape(outputs, tf.shape(labels)) - labels)


def _absolute(outputs: Any, labels: Any) -> Any:
  import tensorflow as tf

  return tf.abs(tf.reshape(outputs, tf.shape(labels)) - labels)


LOSSES = {
  each.name: each
  for each in (
    Loss('cross_entropy', ('class', 'tokens'), _cross_entropy),
    Loss('mean_squared_error', ('number',), _squared),
    Loss('mean_absolute_error', ('number',), _absolute),
  )
}


def name_for(shape: population.Shape, given: Optional[str]) -> str:
  """The loss that was asked for, or the one that goes with the labels.

  Raises:
    ValueError: If it is no loss here, or not for such labels.
  """
  fitting = [
    each.name for each in LOSSES.values() if shape.label_kind in each.label_kinds
  ]
  if given is None:
    return fitting[0]
  if given not in LOSSES:
    raise ValueError(
      f'--loss={given} is none of {", ".join(LOSSES)}; other losses of Keras are for '
      'Keras models of your own, --model=package.module:function.'
    )
  if given not in fitting:
    raise ValueError(
      f'--loss={given} is not for labels of the kind {shape.label_kind!r}; give '
      f'{" or ".join(fitting)}.'
    )
  return given


def function(shape: population.Shape, name: Optional[str]) -> Callable[..., Any]:
  """The loss of a batch: of outputs, labels and, if given, weights of examples.

  Args:
    shape: What examples are like.
    name: Which loss; `None` for the one that goes with the labels.

  Raises:
    ValueError: As for `name_for`.
  """
  import tensorflow as tf

  of_labels = LOSSES[name_for(shape, name)].of_labels
  rank = len(shape.labels)

  def of_batch(outputs: Any, labels: Any, sample_weight: Any = None) -> Any:
    each = of_labels(outputs, labels)
    counts = tf.ones_like(each)
    for ignored in shape.ignored_labels:
      counts *= tf.cast(tf.not_equal(labels, ignored), each.dtype)
    if sample_weight is not None:
      weights = tf.cast(sample_weight, each.dtype)
      counts *= tf.reshape(weights, [-1, *[1] * rank])
    return tf.math.divide_no_nan(tf.reduce_sum(counts * each), tf.reduce_sum(counts))

  return of_batch
