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
def _build(kind):
  return _QUERIES[kind](record_specs=records_lib.SPECS)


def _one_sample(query, record):
  """Sample state of a round with this record alone, and the global state."""
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  sample = query.initial_sample_state(records_lib.SPECS)
  return query.accumulate_record(params, sample, record), state


@pytest.mark.parametrize('kind', _QUERIES)
@pytest.mark.parametrize('position', [0, 4, 5])
def test_non_finite_records_add_nothing_to_sum(kind, position):
  query = _build(kind)
  for value in (math.nan, math.inf, -math.inf):
    values = np.ones(6)
    values[position] = value
    sample, state = _one_sample(query, records_lib.record(values))
    result, _, _ = query.get_noised_result(sample, state)
    tf.nest.assert_same_structure(result, records_lib.SPECS)
    np.testing.assert_array_equal(records_lib.flat(result), np.zeros(6))


_ZEROS = records_lib.record(np.zeros(6))
_KERNEL = _ZEROS['kernel']


def _with_kernel(kernel):
  return collections.OrderedDict(_ZEROS, kernel=kernel)


_REFUSED = {
  (ValueError, 'have the structure of record_specs'): (
    _KERNEL,
    collections.OrderedDict(core=_KERNEL, others=_ZEROS['others']),
    collections.OrderedDict(_ZEROS, more=tf.zeros([])),
  ),
  (TypeError, 'int32'): [_with_kernel(tf.cast(_KERNEL, tf.int32))],
  (TypeError, 'string'): [_with_kernel(tf.strings.as_string(_KERNEL))],
  (TypeError, 'float64'): [_with_kernel(tf.cast(_KERNEL, tf.float64))],
  # A scalar of the clip norm broadcast to d entries would have sqrt(d) times its norm.
  (ValueError, 'shape'): [_with_kernel(tf.ones(shape)) for shape in ([], [2, 1], [0])],
}


@pytest.mark.parametrize('kind', ['tree_cumulative', 'laplace'])
@pytest.mark.parametrize('refusal', _REFUSED, ids=str)
def test_query_refuses_record_unlike_specs(kind, refusal):
  error, message = refusal
  for record in _REFUSED[refusal]:
    # Before it is added, eagerly and in a graph.
    for accumulate in (_one_sample, tf.function(_one_sample, autograph=False)):
      with pytest.raises(error, match=message):
        accumulate(_build(kind), record)
