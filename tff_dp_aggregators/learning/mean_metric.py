"""Measures of a model that are means, and so need no more than a batch at a time."""

import dataclasses
import inspect
import math
import re
from typing import Any, Callable, NamedTuple

import numpy as np

# What functions call outputs that have them first, as they were given once.
_OUTPUTS = re.compile(
  r'o|p|(y_?)?(pred|hat)|(model_?)?(output|logit|prediction|score|prob)\w*|pred\w*'
)


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
  """What some examples add to a weighted mean.

  Attributes:
    values: The sum of values times weights.
    weights: The sum of the weights.
  """

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
    """What a batch adds to the mean.

    Args:
      labels: Labels of the batch.
      outputs: What the model puts out for the batch.

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
