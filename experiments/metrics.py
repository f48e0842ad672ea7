"""What is measured on test data, by name: what `--metric` takes."""

import dataclasses
from typing import Any, Callable, Optional

import numpy as np

from .data import population

# What each label adds, and how much it weighs.
_Parts = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Metric:
  name: str  # Of its column (after `test_`), its picture and in sentences.
  label_kinds: tuple[population.LabelKind, ...]  # For which labels it is.
  # Gives what `learning.train` takes among its `test_metrics`, for examples of a shape.
  make: Callable[[population.Shape], Any]
  # Least and largest value, for pictures; `None` where there is none.
  limits: tuple[Optional[float], Optional[float]]
  higher_is_better: bool  # Whether it is.
  # For how many classes it is: the least and the largest number.
  num_classes: tuple[int, Optional[int]] = (0, None)
  needs_all_classes: bool = False  # Whether it is of no test data that lack a class.
  # From labels: the one answer that is best for all rows, and what each of them
  # then adds to this mean; `None` if it is no mean over labels.
  best_constant: Optional[Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = None

  def why_not(self, shape: population.Shape) -> Optional[str]:
    if shape.label_kind not in self.label_kinds:
      fitting = [
        each.name for each in METRICS.values() if shape.label_kind in each.label_kinds
      ]
      return (
        f'their labels are of the kind {shape.label_kind!r}; give '
        f'{" or ".join(fitting)}'
      )
    if shape.label_kind != 'class':
      return None
    least, most = self.num_classes
    count = shape.num_classes or 0
    if count < least or (most is not None and count > most):
      said = f'{least}' if least == most else f'{least} or more'
      return f'it is for {said} classes, and there are {count}'
    return None

  def why_not_measured(self, found: population.Population) -> Optional[str]:
    if not self.needs_all_classes or found.test_examples is None:
      return None
    labels = found.test_examples[1]
    if found.shape.label_kind == 'tags':
      assert found.shape.names is not None
      columns = zip(found.shape.names, labels.T)
      lacking = [name for name, column in columns if np.ptp(column) == 0]
      lacks = 'all test examples have the same value of the tag'
    else:
      names = found.shape.names or tuple(map(str, range(found.shape.num_classes or 0)))
      present = np.unique(labels)
      lacking = [name for number, name in enumerate(names) if number not in present]
      lacks = 'the test data have no example of the class'
    if not lacking:
      return None
    return (
      f'{lacks} {", ".join(lacking)}. Hold out others, by a larger --test_clients or '
      '--test_examples or another --split_seed; or give another metric'
    )


def _mean(parts: Callable[[np.ndarray, np.ndarray], _Parts]) -> Any:
  """The weighted mean over all labels, which needs a batch at a time."""
  from tff_dp_aggregators import learning  # Flags are checked without TensorFlow.

  return learning.MeanMetric(parts)


def token_loss(shape: population.Shape) -> Any:
  """Cross entropy over all tokens that count, however many a batch has."""

  def parts(labels: np.ndarray, outputs: np.ndarray) -> _Parts:
    shifted = outputs - outputs.max(axis=-1, keepdims=True)
    total = np.log(np.sum(np.exp(shifted), axis=-1, dtype=np.float64))
    chosen = np.take_along_axis(shifted, labels[..., np.newaxis], axis=-1)[..., 0]
    return total - chosen, ~np.isin(labels, shape.ignored_labels)

  return _mean(parts)


def _evenly(values: np.ndarray) -> _Parts:
  values = np.asarray(values, np.float64)
  return values, np.ones_like(values)


def _accuracy(shape: population.Shape) -> Any:
  """The share of labels that are right; of tags, where a logit above 0 says yes."""
  if shape.label_kind == 'tags':
    return _mean(
      lambda labels, outputs: _evenly((_like(outputs, labels) > 0) == labels)
    )
  return _mean(lambda labels, outputs: _evenly(np.argmax(outputs, axis=-1) == labels))


def _top_5_accuracy(shape: population.Shape) -> Any:
  del shape

  def parts(labels: np.ndarray, outputs: np.ndarray) -> _Parts:
    best = np.argpartition(outputs, -5, axis=-1)[..., -5:]
    return _evenly(np.any(best == labels[..., np.newaxis], axis=-1))

  return _mean(parts)


def _token_accuracy(shape: population.Shape) -> Any:
  """Accuracy over the tokens that count: neither ignored nor unscored, see `Shape`.

  A prediction may be any token; to predict one that does not count is wrong. That is
  the masked accuracy of TFF's baselines, and what the papers on StackOverflow report,
  who leave out padding, words out of vocabulary and ends of sentences.
  """
  left_out = np.array([*shape.ignored_labels, *shape.unscored_labels], np.int64)

  def parts(labels: np.ndarray, outputs: np.ndarray) -> _Parts:
    right = np.argmax(outputs, axis=-1) == labels
    return right.astype(np.float64), ~np.isin(labels, left_out)

  return _mean(parts)


def _like(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
  return np.reshape(outputs, np.shape(labels))


def _of_error(name: str, measured: Callable[..., Any], center: Any) -> Metric:
  """The mean of a function of differences, which is least for a center as constant."""

  def make(shape: population.Shape) -> Any:
    del shape

    def parts(labels: np.ndarray, outputs: np.ndarray) -> _Parts:
      difference = _like(outputs, labels) - labels
      return _evenly(measured(difference.astype(np.float64)))

    return _mean(parts)

  def best_constant(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    best = center(labels, axis=0)
    return best, measured(labels - best)

  return Metric(name, ('number',), make, (0, None), False, best_constant=best_constant)


def _most_frequent(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  if labels.ndim > 1:  # Tags, each of which has an answer of its own.
    best = (labels.mean(axis=0) > 0.5).astype(np.float64)
  else:
    best = np.asarray(np.argmax(np.bincount(labels.astype(np.int64))))
  return best, (labels == best).astype(np.float64)


def _auc(shape: population.Shape) -> Any:
  """Area under the receiver operating characteristic: of tags, the mean of theirs."""

  def measure(labels: np.ndarray, outputs: np.ndarray) -> float:
    if shape.label_kind == 'tags':
      columns = zip(_like(outputs, labels).T.astype(np.float64), labels.T)
      return float(np.mean([_area(*each) for each in columns]))
    return _area(outputs[:, 1].astype(np.float64) - outputs[:, 0], labels)

  return measure


def _area(scores: np.ndarray, labels: np.ndarray) -> float:
  """The area for labels 0 and 1: ties count half."""
  _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
  ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
  positives = int(np.sum(labels == 1))
  negatives = len(labels) - positives
  if not positives or not negatives:
    raise ValueError(
      'auc needs test examples of both classes, and of tags, of both of each.'
    )
  above = np.sum(ranks[labels == 1]) - positives * (positives + 1) / 2
  return float(above / (positives * negatives))


METRICS = {
  each.name: each
  for each in (
    Metric(
      'accuracy',
      ('class', 'tags'),
      _accuracy,
      (0, 1),
      True,
      best_constant=_most_frequent,
    ),
    Metric('top_5_accuracy', ('class',), _top_5_accuracy, (0, 1), True, (6, None)),
    Metric(
      'auc',
      ('class', 'tags'),
      _auc,
      (0, 1),
      True,
      (2, 2),
      needs_all_classes=True,
    ),
    Metric('token_accuracy', ('tokens',), _token_accuracy, (0, 1), True),
    _of_error('mean_squared_error', np.square, np.mean),
    _of_error('mean_absolute_error', np.abs, np.median),
  )
}
