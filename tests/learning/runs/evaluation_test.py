"""Tests of evaluation: loss and metrics in batches whose outputs fit into memory."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import training_runs
from tff_dp_aggregators import learning
from tff_dp_aggregators.learning.runs import evaluation

_WORDS, _VOCABULARY = 20, 5000  # 0.4 MB of outputs for a sentence.


def _language_model():
  """Returns a model with an output for each word; its loss skips the padding."""

  @tf.function
  def predict(weights, x, training):
    del training
    (table,), _ = weights
    return tf.gather(table, x)

  @tf.function
  def loss(output, label, sample_weight=None):
    del sample_weight
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(label, output)
    mask = tf.cast(tf.not_equal(label, 0), tf.float32)
    return tf.reduce_sum(each * mask) / tf.reduce_sum(mask)

  table = np.random.default_rng(1).normal(size=[30, _VOCABULARY]).astype(np.float32)
  spec = tf.TensorSpec([None, _WORDS], tf.int32)
  return tff.learning.models.FunctionalModel(
    initial_weights=((table,), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=(spec, spec),
  )


def _sentences(number):
  """Returns inputs and labels; later sentences are longer, and the padding is 0."""
  rng = np.random.default_rng(2)
  x, y = rng.integers(1, 30, size=[2, number, _WORDS]).astype(np.int32)
  lengths = np.linspace(1, _WORDS, number).astype(int)
  return x, np.where(np.arange(_WORDS) < lengths[:, None], y, 0).astype(np.int32)


def _cross_entropy(labels, outputs):
  shifted = outputs - outputs.max(axis=-1, keepdims=True)
  normal = np.log(np.exp(shifted).sum(axis=-1))
  right = np.take_along_axis(shifted, labels[..., None], axis=-1)[..., 0]
  return np.where(labels != 0, normal - right, np.nan), labels != 0


def _measure(model, examples, metrics):
  evaluator = evaluation.Evaluator(model, examples, metrics)
  weights = tff.learning.models.ModelWeights(*model.initial_weights)
  measured = evaluator.measure(weights)
  assert list(measured) == evaluator.names
  return measured


@pytest.fixture(name='measured', scope='module')
def _measured():
  examples, sizes = _sentences(400), []

  def recording_metric(labels, outputs):
    assert len(outputs) == len(labels)
    sizes.append(outputs.nbytes)
    return labels[:, 0] == outputs[:, 0].argmax(axis=-1)

  metrics = {
    'first': learning.MeanMetric(recording_metric),
    'of_words': learning.MeanMetric(_cross_entropy),
    'loss': learning.MeanMetric(_cross_entropy),
  }
  return examples, _measure(_language_model(), examples, metrics), sizes


def _expected(examples):
  (table,), _ = _language_model().initial_weights
  x, y = examples
  return np.concatenate(
    [_cross_entropy(y[i : i + 50], table[x[i : i + 50]])[0] for i in range(0, 400, 50)]
  )


def test_batches_do_not_exceed_the_limit_in_bytes(measured):
  _, _, sizes = measured
  assert len(sizes) == 3 and max(sizes) <= 2**26
  assert sum(sizes) == 400 * _WORDS * _VOCABULARY * 4


def test_mean_metric_over_words_is_mean_of_all_words(measured):
  examples, actual, _ = measured
  expected = np.nanmean(_expected(examples))
  assert actual['of_words'] == pytest.approx(expected, rel=1e-5)
  assert actual['loss'] == actual['of_words']


def test_function_metrics_match_mean_metrics():
  model = training_runs.model()
  examples = training_runs.clients(1)['client 0']
  squares = lambda labels, outputs: np.square(outputs - labels)[:, 0]  # noqa: E731
  actual = _measure(
    model,
    examples,
    {
      'whole': lambda labels, outputs: squares(labels, outputs).mean(),
      'mean': learning.MeanMetric(squares),
      'weighted': learning.MeanMetric(
        lambda labels, outputs: (squares(labels, outputs), np.abs(labels[:, 0]))
      ),
    },
  )
  x, y = examples
  assert actual['mean'] == pytest.approx(actual['whole'], rel=1e-6)
  assert actual['loss'] == pytest.approx(actual['whole'], rel=1e-6)
  weighted = np.average(y[:, 0] ** 2, weights=np.abs(y[:, 0]))
  assert actual['weighted'] == pytest.approx(weighted, rel=1e-6)


def test_function_metric_of_too_many_outputs_is_refused():
  with pytest.raises(ValueError, match=r'accuracy.*bytes.*learning.MeanMetric'):
    _measure(_language_model(), _sentences(3000), {'accuracy': lambda *_: 0.0})


@pytest.mark.parametrize(
  ('per_example', 'message'),
  [
    (
      lambda labels, outputs: outputs.mean(),
      'a value for each example, got the number',
    ),
    (lambda labels, outputs: (outputs, outputs[:, 0]), 'must be of the shape'),
    (lambda labels, outputs: (outputs, outputs - 1), 'finite and not negative; got'),
    (lambda labels, outputs: (outputs, 0 * outputs), 'all examples add up to 0'),
  ],
)
def test_invalid_mean_metric_is_refused_by_name(per_example, message):
  examples = training_runs.clients(1)['client 0']
  with pytest.raises(ValueError, match=rf"(?s)metrics\['odd'\].*{message}"):
    _measure(training_runs.model(), examples, {'odd': learning.MeanMetric(per_example)})


def test_model_loss_is_mean_over_batches_weighted_by_examples():
  examples = _sentences(400)
  actual = _measure(_language_model(), examples, {})['loss']
  batches = np.split(_expected(examples), [167, 334])
  means = [np.nanmean(batch) for batch in batches]
  expected = np.average(means, weights=[len(batch) for batch in batches])
  assert actual == pytest.approx(expected, rel=1e-5)
