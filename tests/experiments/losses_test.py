"""Losses and metrics agree with plain NumPy."""

import numpy as np
import pytest

from experiments import losses
from experiments import metrics
from experiments.data import population
from tff_dp_aggregators.learning.runs import evaluation

TOKENS = population.Shape(
  (4,), 'int32', (4,), 'tokens', 6, ignored_labels=(0,), unscored_labels=(4, 5)
)
CLASSES = population.Shape((3,), 'float32', (), 'class', 6)
NUMBERS = population.Shape((3,), 'float32', (), 'number')
LABELS = np.array([[1, 2, 5, 0], [3, 4, 1, 2], [1, 0, 0, 0]], np.int32)


def _logits(*shape):
  return np.random.default_rng(2).normal(size=shape).astype(np.float32)


def _cross_entropy(logits, label):
  return np.log(np.sum(np.exp(logits.astype(np.float64)))) - logits[label]


@pytest.mark.parametrize('weights', [None, [1.0, 1.0, 1.0], [1.5, 1.5, 0.0], [0, 0, 2]])
def test_token_loss_is_weighted_mean_over_tokens_not_ignored(weights):
  logits = _logits(3, 4, 6)
  total = weight = 0.0
  for i, labels in enumerate(LABELS):
    for t, label in enumerate(labels):
      if label != 0:
        w = 1.0 if weights is None else weights[i]
        total += w * _cross_entropy(logits[i, t], label)
        weight += w
  sample_weight = None if weights is None else np.array(weights, np.float32)
  loss = losses.function(TOKENS, None)(logits, LABELS, sample_weight)
  assert float(loss) == pytest.approx(total / weight, rel=1e-5)


def test_padding_examples_have_no_weight_in_any_loss():
  for shape, labels in (
    (CLASSES, np.array([1, 5, 0])),
    (NUMBERS, np.array([1.0, 5, 0])),
  ):
    labels = labels.astype(np.float32 if shape is NUMBERS else np.int32)
    outputs = _logits(3, 6) if shape is CLASSES else _logits(3, 1)
    for name in losses.LOSSES:
      if shape.label_kind not in losses.LOSSES[name]:
        continue
      loss = losses.function(shape, name)
      padded = loss(outputs, labels, np.array([1.5, 1.5, 0.0], np.float32))
      assert float(padded) == pytest.approx(float(loss(outputs[:2], labels[:2])))


def test_token_loss_metric_does_not_depend_on_batches():
  logits = _logits(3, 4, 6)
  expected = float(losses.function(TOKENS, None)(logits, LABELS))
  measure = metrics.TOKEN_LOSS.make(TOKENS)
  sums = [measure.sums(LABELS[part], logits[part]) for part in (slice(2), slice(2, 3))]
  assert evaluation.Sums(*np.sum(sums, axis=0)).mean == pytest.approx(
    expected, rel=1e-5
  )


def test_batch_of_only_padding_has_zero_loss():
  loss = losses.function(TOKENS, 'cross_entropy')
  assert float(loss(_logits(2, 4, 6), np.zeros([2, 4], np.int32))) == 0.0


def test_losses_of_numbers_are_squared_or_absolute_errors():
  outputs, labels = (
    np.array([[1.0], [5.0]], np.float32),
    np.array([2.0, 2.0], np.float32),
  )
  assert float(losses.function(NUMBERS, None)(outputs, labels)) == 5.0
  assert float(losses.function(NUMBERS, 'mean_absolute_error')(outputs, labels)) == 2.0
  for name, expected in (('mean_squared_error', 5.0), ('mean_absolute_error', 2.0)):
    assert _measured(name, NUMBERS, outputs, labels) == expected


def test_name_for_refuses_loss_of_other_label_kind():
  with pytest.raises(ValueError, match=r'--loss=cross_entropy .* give mean_squared'):
    losses.name_for(NUMBERS, 'cross_entropy')
  with pytest.raises(ValueError, match='--loss=hinge is none of cross_entropy, '):
    losses.name_for(CLASSES, 'hinge')


def _measured(name, shape, outputs, labels):
  """Returns a metric, summed over two batches if it has sums."""
  metric = metrics.METRICS[name].make(shape)
  if callable(metric):
    return metric(labels, outputs)
  halves = [
    metric.sums(labels[part], outputs[part]) for part in (slice(1), slice(1, None))
  ]
  return evaluation.Sums(*np.sum(halves, axis=0)).mean


def test_token_accuracy_ignores_padding_unknown_words_and_ends():
  logits = _logits(3, 4, 6)
  right = [
    np.argmax(logits[i, t]) == label
    for i, labels in enumerate(LABELS)
    for t, label in enumerate(labels)
    if label not in (0, 4, 5)
  ]
  assert len(right) == 6
  # At least one scored label and one ignored label are predicted right.
  logits[0, 0] = np.eye(6)[1] * 9
  logits[0, 2] = np.eye(6)[5] * 9
  right[0] = True
  assert _measured('token_accuracy', TOKENS, logits, LABELS) == pytest.approx(
    np.mean(right)
  )


def test_accuracy_counts_best_class_and_top_5_the_best_five():
  outputs = np.array([[6, 5, 4, 3, 2, 1], [6, 5, 4, 3, 2, 1.0]])
  labels = np.array([0, 5], np.int32)
  assert _measured('accuracy', CLASSES, outputs, labels) == 0.5
  assert _measured('top_5_accuracy', CLASSES, outputs, labels) == 0.5
  assert _measured('top_5_accuracy', CLASSES, outputs, np.array([4, 0])) == 1.0


def test_auc_is_probability_that_positive_ranks_above_negative():
  rng = np.random.default_rng(3)
  outputs = rng.integers(0, 4, (60, 2)).astype(np.float32)  # With ties.
  labels = rng.integers(0, 2, 60)
  scores = outputs[:, 1] - outputs[:, 0]
  pairs = [
    1.0 if positive > negative else 0.5 if positive == negative else 0.0
    for positive in scores[labels == 1]
    for negative in scores[labels == 0]
  ]
  two = population.Shape((3,), 'float32', (), 'class', 2)
  assert _measured('auc', two, outputs, labels) == pytest.approx(np.mean(pairs))


def test_why_not_explains_unfit_metric():
  assert 'give token_accuracy' in metrics.METRICS['accuracy'].why_not(TOKENS)
  assert 'for 2 classes, and there are 6' in metrics.METRICS['auc'].why_not(CLASSES)
  assert metrics.METRICS['accuracy'].why_not(CLASSES) is None
