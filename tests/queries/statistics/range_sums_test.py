"""`RangeSumsQuery`: histograms fitted to noised trees by least squares."""

import math

import dp_accounting
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_privacy.privacy.dp_query import tree_range_query

from tff_dp_aggregators import aggregators
from tff_dp_aggregators import queries
from tff_dp_aggregators.queries import grid

_LARGE = 1e3  # A clip norm that clips nothing here.
_SHAPES = [(1, 2), (2, 2), (5, 2), (10, 3), (37, 5)]


def _query(num_bins, arity=2, *, clip_norm=_LARGE, noise_multiplier=0.0, **kwargs):
  num_nodes = sum(queries.tree_levels(num_bins, arity))
  nodes = queries.GaussianSumQuery(
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    record_specs=tf.TensorSpec([num_nodes]),
    **kwargs,
  )
  return queries.RangeSumsQuery(
    nodes, record_specs=tf.TensorSpec([num_bins]), arity=arity
  )


def _tree_matrix(num_bins, arity):
  """Matrix with a row per node that sums the bins of the node, leaves first."""
  levels = [np.eye(num_bins)]
  while len(levels[-1]) > 1:
    below = levels[-1]
    groups = range(0, len(below), arity)
    levels.append(np.stack([below[i : i + arity].sum(axis=0) for i in groups]))
  return np.concatenate(levels)


def _step(clip_norm):
  return 1 / float(grid.steps_per_unit(tf.constant(clip_norm), 0.0))


def _encoded(query, record):
  params = query.derive_sample_params(query.initial_global_state())
  return query.preprocess_record(params, tf.constant(record, tf.float32))


def _released(query, sample):
  result, _, event = query.get_noised_result(sample, query.initial_global_state())
  return result.numpy(), event


@pytest.mark.parametrize(('num_bins', 'arity'), _SHAPES)
def test_encoded_nodes_are_sums_of_bins_and_decode_to_histogram(num_bins, arity):
  assert sum(queries.tree_levels(num_bins, arity)) == len(_tree_matrix(num_bins, arity))
  histogram = np.arange(num_bins) - 2.5
  query = _query(num_bins, arity)
  sample = _encoded(query, histogram)
  step = _step(_LARGE)
  sums = sample.numpy() * step
  np.testing.assert_allclose(sums, _tree_matrix(num_bins, arity) @ histogram, atol=1e-5)
  result, _ = _released(query, sample)
  np.testing.assert_allclose(result, histogram, atol=1e-4)


@pytest.mark.parametrize(('num_bins', 'arity'), _SHAPES)
def test_inconsistent_nodes_are_fitted_by_least_squares(num_bins, arity):
  query = _query(num_bins, arity)
  matrix = _tree_matrix(num_bins, arity)
  nodes = np.random.default_rng(num_bins).normal(size=len(matrix)) * 10
  step = _step(_LARGE)
  result, _ = _released(query, tf.constant(np.rint(nodes / step), tf.int64))
  np.testing.assert_allclose(result, np.linalg.pinv(matrix) @ nodes, atol=1e-5)


@pytest.mark.parametrize(('num_bins', 'arity'), [(8, 2), (9, 3)])
def test_range_sums_without_noise_match_tf_privacy(num_bins, arity):
  tfp_query = tree_range_query.TreeRangeSumQuery.build_central_gaussian_query(
    _LARGE, 0.0, arity
  )
  query = _query(num_bins, arity)
  records = np.random.default_rng(0).normal(size=[3, num_bins]).astype(np.float32)
  state, sample = tfp_query.initial_global_state(), None
  params = tfp_query.derive_sample_params(state)
  total = query.initial_sample_state()
  query_params = query.derive_sample_params(query.initial_global_state())
  sample = tfp_query.initial_sample_state(tf.TensorSpec([num_bins]))
  for record in records:
    sample = tfp_query.accumulate_record(params, sample, tf.constant(record))
    total = query.accumulate_record(query_params, total, tf.constant(record))
  tree, _, tfp_event = tfp_query.get_noised_result(sample, state)
  result, event = _released(query, total)
  assert isinstance(tfp_event, dp_accounting.UnsupportedDpEvent)
  assert event == dp_accounting.GaussianDpEvent(0.0)
  # TF Privacy's tree has the root first.
  levels = [np.array(level) for level in tree.to_list()][::-1]
  for level in levels:
    sums = result.reshape([len(level), -1]).sum(axis=1)
    np.testing.assert_allclose(sums, level, atol=1e-4)


@pytest.mark.parametrize(('num_bins', 'arity'), [(512, 2), (405, 3)])
def test_noise_of_histogram_has_covariance_of_least_squares(num_bins, arity):
  query = _query(num_bins, arity, noise_multiplier=2.0, clip_norm=0.5)
  result, event = _released(query, query.initial_sample_state())
  assert event == dp_accounting.GaussianDpEvent(2.0)
  matrix = _tree_matrix(num_bins, arity)
  information = matrix.T @ matrix
  whitened = np.linalg.cholesky(information).T @ result
  assert scipy.stats.kstest(whitened, 'norm').pvalue > 1e-8
  # The sum of half the bins has less noise than with noise on bins of the same privacy
  # cost. Without a tree a client adds to one entry, and here to one of each level.
  half = np.arange(num_bins) < num_bins // 2
  variance = half @ np.linalg.solve(information, half.astype(float))
  levels = len(queries.tree_levels(num_bins, arity))
  assert levels * variance < 0.2 * half.sum()


def test_client_changes_nodes_by_at_most_clip_norm():
  clip_norm = 0.75
  query = _query(10, 3, clip_norm=clip_norm)
  step = _step(clip_norm)
  largest = np.finfo(np.float32).max
  for record in (
    np.full(10, largest),
    np.full(10, -largest),
    np.arange(10) - 4.5,
    np.full(10, 1e-42),
    [1e38, -1e38] * 5,
  ):
    sample = _encoded(query, record).numpy()
    squared = sum(int(each) ** 2 for each in sample)
    assert squared * step**2 <= clip_norm**2
  for non_finite in (math.nan, math.inf):
    params = query.derive_sample_params(query.initial_global_state())
    sample, finite = query.encode_record(params, tf.constant([non_finite] + [1.0] * 9))
    assert not finite and not np.any(sample)


def test_range_sums_refuses_invalid_arguments():
  nodes = queries.GaussianSumQuery(
    clip_norm=1.0, noise_multiplier=1.0, record_specs=tf.TensorSpec([7])
  )
  make = queries.RangeSumsQuery
  with pytest.raises(ValueError, match=r'a record must be one vector.*\(2, 2\)'):
    make(nodes, record_specs=tf.TensorSpec([2, 2]))
  with pytest.raises(ValueError, match='node_query must be for records'):
    make(nodes, record_specs=tf.TensorSpec([5]))
  with pytest.raises(ValueError, match='arity must be at least 2, got 1'):
    make(nodes, record_specs=tf.TensorSpec([4]), arity=1)
  with pytest.raises(TypeError, match='node_query must be a query'):
    make(queries.NoPrivacySumQuery(), record_specs=tf.TensorSpec([4]))
  numbers = {'clip_norm': 1.0, 'noise_multiplier': 1.0, 'clients_per_round': 2}
  secure = aggregators.gaussian(
    **numbers, record_aggregation_factory=aggregators.secure_sum()
  )
  with pytest.raises(ValueError, match='give record_aggregation_factory to range_sums'):
    aggregators.range_sums(secure)
  with pytest.raises(TypeError, match='nodes must be a factory of private means'):
    aggregators.range_sums(tff.aggregators.SumFactory())
  plain = aggregators.range_sums(aggregators.gaussian(**numbers))
  with pytest.raises(ValueError, match='a record must be one vector'):
    plain.create(tff.to_type([(np.float32, [2]), (np.float32, [2])]))
