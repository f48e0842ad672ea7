"""The metrics on test data that `--metric` names."""

import dataclasses
import functools
from typing import Any, Callable, Optional

import numpy as np

from .data import population


@dataclasses.dataclass(frozen=True)
class Metric:
  name: str  # In messages, its column (after `test_`) and its picture's file name.
  label_kinds: tuple[population.LabelKind, ...]  # Kinds of labels that it measures.
  # Takes the examples' shape, labels and outputs. Returns the value of each label, or
  # also its weight; of a metric that is no mean, the value of all of them.
  measure: Callable[[population.Shape, np.ndarray, np.ndarray], Any]
  # Minimum and maximum, for pictures; `None` if there is none.
  limits: tuple[Optional[float], Optional[float]]
  higher_is_better: bool
  num_classes: tuple[float, float] = (0, np.inf)  # Minimum and maximum number.
  # Whether it is a mean over labels, computed batch by batch; if not, it needs test
  # examples of all classes.
  is_mean: bool = True
  # Takes labels; returns the constant answer that is best, and the value of each label
  # with it. `None` if the metric is no mean over labels.
  best_constant: Optional[Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = None

  def make(self, shape: population.Shape) -> Any:
    """Makes a metric of `learning.Evaluation` for examples of a shape."""
    measure = functools.partial(self.measure, shape)
    if not self.is_mean:
      return measure
    from tff_dp_aggregators import learning  # Flags are checked without TensorFlow.

    return learning.MeanMetric(measure)

  def why_not(self, shape: population.Shape) -> Optional[str]:
    """Returns why it cannot measure examples of this shape; `None` if it can."""
    if shape.label_kind not in self.label_kinds:
      fitting = [
        name for name, each in METRICS.items() if shape.label_kind in each.label_kinds
      ]
      return (
        f'their labels are of the kind {shape.label_kind!r}; give '
        f'{" or ".join(fitting)}'
      )
    lower, upper = self.num_classes
    count = shape.num_classes or 0
    if shape.label_kind != 'class' or lower <= count <= upper:
      return None
    needed = f'{lower}' if lower == upper else f'{lower} or more'
    return f'it is for {needed} classes, and there are {count}'

  def why_not_measured(self, data: population.Population) -> Optional[str]:
    if self.is_mean or data.test_examples is None:
      return None
    labels = data.test_examples[1]
    if data.shape.label_kind == 'tags':
      has_all = np.ptp(labels, axis=0).all()
    else:
      has_all = len(np.unique(labels)) == data.shape.num_classes
    if has_all:
      return None
    return (
      'the test data do not have examples of all classes, or with and without each '
      'tag. Hold out others, by a larger --test_clients or --test_examples or another '
      '--split_seed; or give another metric'
    )


def _token_loss(
  shape: population.Shape, labels: np.ndarray, outputs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Cross entropy of all tokens that are not ignored, in whatever batches."""
  shifted = outputs - outputs.max(axis=-1, keepdims=True)
  total = np.log(np.sum(np.exp(shifted), axis=-1, dtype=np.float64))
  chosen = np.take_along_axis(shifted, labels[..., np.newaxis], axis=-1)[..., 0]
  return total - chosen, ~np.isin(labels, shape.ignored_labels)


def _accuracy(
  shape: population.Shape, labels: np.ndarray, outputs: np.ndarray
) -> np.ndarray:
  """Whether labels are predicted correctly; a logit above 0 predicts a tag."""
  if shape.label_kind == 'tags':
    return (outputs.reshape(labels.shape) > 0) == labels
  return np.argmax(outputs, axis=-1) == labels


def _top_5_accuracy(
  shape: population.Shape, labels: np.ndarray, outputs: np.ndarray
) -> np.ndarray:
  del shape
  best = np.argpartition(outputs, -5, axis=-1)[..., -5:]
  return np.any(best == labels[..., np.newaxis], axis=-1)


def _token_accuracy(
  shape: population.Shape, labels: np.ndarray, outputs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Accuracy over the tokens that count: neither ignored nor unscored, see `Shape`.

  Any token may be predicted; one that does not count is wrong. This is the masked
  accuracy of TFF's baselines, which the papers on StackOverflow report: they leave out
  padding, words out of vocabulary and ends of sentences.
  """
  left_out = np.array([*shape.ignored_labels, *shape.unscored_labels], np.int64)
  return np.argmax(outputs, axis=-1) == labels, ~np.isin(labels, left_out)


def _error_metric(name: str, error_function: Callable[..., Any], center: Any) -> Metric:
  """The mean of a function of errors, which the labels' `center` minimises."""

  def measure(
    shape: population.Shape, labels: np.ndarray, outputs: np.ndarray
  ) -> np.ndarray:
    del shape
    difference = outputs.reshape(labels.shape) - labels
    return error_function(difference.astype(np.float64))

  def best_constant(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    best = center(labels, axis=0)
    return best, error_function(labels - best)

  return Metric(
    name, ('number',), measure, (0, None), False, best_constant=best_constant
  )


def _most_frequent(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  if labels.ndim > 1:  # Each tag has its own most frequent value.
    best = (labels.mean(axis=0) > 0.5).astype(np.float64)
  else:
    best = np.asarray(np.argmax(np.bincount(labels.astype(np.int64))))
  return best, (labels == best).astype(np.float64)


def _auc(shape: population.Shape, labels: np.ndarray, outputs: np.ndarray) -> float:
  """Area under the receiver operating characteristic, for tags the mean over them."""
  from sklearn import metrics  # Slow to load.

  if not np.ptp(labels, axis=0).all():
    raise ValueError(
      'auc needs test examples of both classes, and of tags, of both of each.'
    )
  if shape.label_kind == 'tags':
    scores = outputs.reshape(labels.shape)
  else:
    scores = outputs[:, 1].astype(np.float64) - outputs[:, 0]
  if np.isnan(scores).any():
    return float('nan')
  return float(metrics.roc_auc_score(labels, np.nan_to_num(scores)))


_CLASSES: tuple[population.LabelKind, ...] = ('class', 'tags')
METRICS = {
  each.name: each
  for each in (
    Metric('accuracy', _CLASSES, _accuracy, (0, 1), True, best_constant=_most_frequent),
    Metric('top_5_accuracy', ('class',), _top_5_accuracy, (0, 1), True, (6, np.inf)),
    Metric('auc', _CLASSES, _auc, (0, 1), True, (2, 2), is_mean=False),
    Metric('token_accuracy', ('tokens',), _token_accuracy, (0, 1), True),
    _error_metric('mean_squared_error', np.square, np.mean),
    _error_metric('mean_absolute_error', np.abs, np.median),
  )
}
TOKEN_LOSS = Metric('loss', ('tokens',), _token_loss, (0, None), False)
