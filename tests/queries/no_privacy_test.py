"""Sums and averages without privacy are plain sums and averages, and say so.

Claims:

* Sums and averages are those of NumPy, for every structure, eagerly and in
  `tf.function`; half precision is summed in float32.
* They agree with TensorFlow Privacy's queries of the same names.
* Samples can be merged; averages of merged samples are averages of all.
* Nothing is clipped or hidden: a NaN is in the sum.
* The event is non-private, the state is empty, and there are no metrics.
* Records unlike each other, or unlike the specs, are refused.
"""

import collections

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_dp_aggregators import queries

_SPECS = collections.OrderedDict(
  kernel=tf.TensorSpec([2, 2]),
  others=(tf.TensorSpec([]), tf.TensorSpec([1], tf.float64), tf.TensorSpec([0])),
)
both_modes = pytest.mark.parametrize('traced', [False, True])


def _record(values):
  """A record like `_SPECS` with these six numbers."""
  return collections.OrderedDict(
    kernel=tf.constant(np.reshape(values[:4], [2, 2]), tf.float32),
    others=(
      tf.constant(values[4], tf.float32),
      tf.constant(values[5:], tf.float64),
      tf.zeros([0]),
    ),
  )


def _flat(record):
  return np.concatenate([np.ravel(t).astype(float) for t in tf.nest.flatten(record)])


def _run(query, records, weights=None):
  """One round; each record is its own sample, merged with those before."""
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  sample = query.initial_sample_state(records[0])
  for number, record in enumerate(records):
    weight = () if weights is None else (weights[number],)
    alone = query.initial_sample_state(record)
    alone = query.accumulate_record(params, alone, record, *weight)
    sample = query.merge_sample_states(sample, alone)
  return query.get_noised_result(sample, state)


def _in_mode(function, traced):
  return tf.function(function) if traced else function


@both_modes
@pytest.mark.parametrize('specs', [None, _SPECS])
def test_structures_are_summed_and_averaged_part_by_part(specs, traced):
  values = np.random.default_rng(1).normal(size=[5, 6]) * 1e6
  records = [_record(row) for row in values]
  for query, expected in (
    (queries.NoPrivacySumQuery(specs), values.sum(axis=0)),
    (queries.NoPrivacyAverageQuery(specs), values.mean(axis=0)),
  ):
    result = _in_mode(lambda q=query: _run(q, records)[0], traced)()
    tf.nest.assert_same_structure(result, _SPECS)
    for tensor, spec in zip(tf.nest.flatten(result), tf.nest.flatten(_SPECS)):
      assert (tensor.dtype, tensor.shape) == (spec.dtype, spec.shape)
    np.testing.assert_allclose(_flat(result), expected, rtol=1e-5)


@pytest.mark.parametrize('name', ['NoPrivacySumQuery', 'NoPrivacyAverageQuery'])
def test_results_are_those_of_tensorflow_privacy(name):
  values = np.random.default_rng(2).normal(size=[4, 6])
  # Theirs does not average float64.
  values = values.astype(np.float32)
  records = [{'a': tf.constant(row[:5]), 'b': [tf.constant(row[5])]} for row in values]
  ours = _run(getattr(queries, name)(), records)
  theirs = _run(getattr(tfp, name)(), records)
  np.testing.assert_allclose(_flat(ours[0]), _flat(theirs[0]), rtol=1e-6)
  assert ours[2] == theirs[2] == dp_accounting.NonPrivateDpEvent()


def test_weighted_results_are_those_of_tensorflow_privacy():
  rng = np.random.default_rng(3)
  records = [tf.constant(row, tf.float32) for row in rng.normal(size=[4, 6])]
  weights = rng.uniform(0.5, 2, size=4).astype(np.float32)
  ours, _, _ = _run(queries.NoPrivacyAverageQuery(), records, weights)
  theirs, _, _ = _run(tfp.NoPrivacyAverageQuery(), records, weights)
  np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
  # In half precision 4096 + 1 is 4096 (float16) or even 256 + 1 is 256 (bfloat16).
  records = [tf.constant([4096.0], dtype)] + [tf.constant([1.0], dtype)] * 10
  for specs in (None, tf.TensorSpec([1], dtype)):
    result, _, _ = _run(queries.NoPrivacySumQuery(specs), records)
    assert result.dtype == tf.float32
    np.testing.assert_array_equal(result, [4106.0])


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_the_sum(bad):
  records = [tf.constant([1.0, bad]), tf.constant([2.0, 3.0])]
  for query in (queries.NoPrivacySumQuery(), queries.NoPrivacyAverageQuery()):
    result, _, _ = _run(query, records)
    assert np.isfinite(result[0])
    np.testing.assert_array_equal(result[1], bad)


def test_state_and_metrics_are_empty_and_the_event_is_non_private():
  for query in (queries.NoPrivacySumQuery(), queries.NoPrivacyAverageQuery()):
    state = query.initial_global_state()
    _, after, event = _run(query, [tf.zeros([2])])
    assert not tf.nest.flatten([state, after])
    assert event == dp_accounting.NonPrivateDpEvent()
    assert not query.derive_metrics(state)


@pytest.mark.parametrize(
  ('one', 'other', 'error'),
  [
    ([1.0], (1.0,), TypeError),
    ([1.0], [1.0, 1.0], ValueError),
    ([1.0, 1.0], [1.0], ValueError),
  ],
)
def test_records_of_different_structures_do_not_add_up(one, other, error):
  for query in (
    queries.NoPrivacySumQuery(),
    queries.NoPrivacySumQuery(tf.nest.map_structure(lambda _: tf.TensorSpec([]), one)),
  ):
    sample = query.initial_sample_state(one)
    sample = query.accumulate_record((), sample, one)
    with pytest.raises(error):
      query.accumulate_record((), sample, other)
