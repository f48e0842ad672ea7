"""Queries count non-finite records as zero and refuse those unlike `record_specs`."""

import collections
import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.queries import records as records_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies

_LIMITS = strategies.Participation(8, min_separation=4)
# All are without noise, so that the result shows what a record adds, and run round 0,
# so that a cumulative sum is the sum of the round.
_NUMBERS = {'clip_norm': 0.5, 'noise_multiplier': 0.0}
_QUERIES = {
  'gaussian': functools.partial(queries.GaussianSumQuery, **_NUMBERS),
  'prefix_sums': functools.partial(
    queries.MatrixMechanismQuery,
    strategies.BandedToeplitz.square_root(8, 3),
    _LIMITS,
    workload=strategies.Workload(8),
    **_NUMBERS,
  ),
  'tree_cumulative': functools.partial(
    queries.TreeCumulativeSumQuery, _LIMITS, **_NUMBERS
  ),
  'laplace': functools.partial(queries.LaplaceSumQuery, **_NUMBERS),
  'clip_linf': functools.partial(
    queries.NormClipSumQuery, order=math.inf, clip_norm=0.5
  ),
}
# Records are checked in one place for all queries, except for Laplace noise.
some_queries = pytest.mark.parametrize('kind', ['tree_cumulative', 'laplace'])


def _build(kind, specs):
  return _QUERIES[kind](record_specs=specs)


def _one_sample(query, specs, record):
  """Sample state of a round with this record alone, and the global state."""
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  sample = query.initial_sample_state(specs)
  return query.accumulate_record(params, sample, record), state


def _check_refused(kind, record, error, match):
  """Checks that a record is refused before it is added, eagerly and in a graph."""
  for accumulate in (_one_sample, tf.function(_one_sample, autograph=False)):
    with pytest.raises(error, match=match):
      accumulate(_build(kind, records_lib.SPECS), records_lib.SPECS, record)


@pytest.mark.parametrize('kind', _QUERIES)
@pytest.mark.parametrize('position', [0, 4, 5])
def test_non_finite_records_add_nothing_to_sum(kind, position):
  query = _build(kind, records_lib.SPECS)
  for value in (math.nan, math.inf, -math.inf):
    values = np.ones(6)
    values[position] = value
    sample, state = _one_sample(query, records_lib.SPECS, records_lib.record(values))
    result, _, _ = query.get_noised_result(sample, state)
    tf.nest.assert_same_structure(result, records_lib.SPECS)
    np.testing.assert_array_equal(records_lib.flat(result), np.zeros(6))


@some_queries
def test_query_refuses_record_with_other_structure(kind):
  zeros = records_lib.record(np.zeros(6))
  for record in (
    zeros['kernel'],
    collections.OrderedDict(core=zeros['kernel'], others=zeros['others']),
    collections.OrderedDict(zeros, more=tf.zeros([])),
  ):
    _check_refused(kind, record, ValueError, 'have the structure of record_specs')


@some_queries
@pytest.mark.parametrize('dtype', [tf.int32, tf.string, tf.float64])
def test_query_refuses_record_with_other_dtype(kind, dtype):
  record = records_lib.record(np.zeros(6))
  kernel = record['kernel']
  record['kernel'] = (
    tf.strings.as_string(kernel) if dtype == tf.string else tf.cast(kernel, dtype)
  )
  _check_refused(kind, record, TypeError, dtype.name)


@some_queries
@pytest.mark.parametrize('shape', [[], [2, 1], [0]])
def test_query_refuses_other_shape_even_if_broadcastable(kind, shape):
  # A scalar of the clip norm broadcast to d entries would have sqrt(d) times the norm.
  record = records_lib.record(np.zeros(6))
  record['kernel'] = tf.ones(shape)
  _check_refused(kind, record, ValueError, 'shape')
