"""Whatever a client sends, each query does with it what it says."""

import collections
import functools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.queries import records as records_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies

_ROUNDS = 8
_CLIP_NORM = 0.5
_PARTICIPATION = strategies.Participation(_ROUNDS, min_separation=4)


def _matrix(strategy, **kwargs):
  def build(specs):
    return queries.MatrixMechanismQuery(
      strategy,
      _PARTICIPATION,
      clip_norm=_CLIP_NORM,
      noise_multiplier=0.0,
      record_specs=specs,
      **kwargs,
    )

  return build


def _of_class(query_class, *args, **kwargs):
  def build(specs):
    return query_class(
      *args, clip_norm=_CLIP_NORM, noise_multiplier=0.0, record_specs=specs, **kwargs
    )

  return build


def _clip(order):
  return lambda specs: queries.NormClipSumQuery(
    order=order, clip_norm=_CLIP_NORM, record_specs=specs
  )


def _normalized(specs):
  gaussian = _of_class(queries.GaussianSumQuery)(specs)
  return queries.NormalizedQuery(gaussian, denominator=1.0)


_BANDED = strategies.BandedToeplitz.square_root(_ROUNDS, 3)
# All without noise, so that one sees what a record does. Rounds 0, so cumulative sums
# are the sums of the round.
_QUERIES = {
  'gaussian': _of_class(queries.GaussianSumQuery),
  'banded': _of_class(queries.BandedMatrixFactorizationQuery, _BANDED, _PARTICIPATION),
  'blt': _matrix(strategies.BLT(_ROUNDS, (0.3, 0.1), (0.9, 0.5))),
  'prefix_sums': _matrix(_BANDED, workload=strategies.Workload(_ROUNDS)),
  'tree_residual': _of_class(queries.TreeResidualSumQuery, _PARTICIPATION),
  'tree_cumulative': _of_class(queries.TreeCumulativeSumQuery, _PARTICIPATION),
  'normalized': _normalized,
  'laplace': _of_class(queries.LaplaceSumQuery),
  'clip_l1': _clip(1),
  'clip_l2': _clip(2),
  'clip_linf': _clip(math.inf),
  'sum': queries.NoPrivacySumQuery,
  'average': queries.NoPrivacyAverageQuery,
}
_ORDERS = {'laplace': 1, 'clip_l1': 1, 'clip_linf': math.inf}
_UNBOUNDED = ('sum', 'average')
_BOUNDED = [kind for kind in _QUERIES if kind not in _UNBOUNDED]
all_queries = pytest.mark.parametrize('kind', _QUERIES)
bounded_queries = pytest.mark.parametrize('kind', _BOUNDED)
both_modes = pytest.mark.parametrize('traced', [False, True])


@functools.cache
def _query(kind):
  return _QUERIES[kind](records_lib.SPECS)


def _sample_of(query, specs, record):
  """The sample state of a round with this record alone, and the global state."""
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  sample = query.initial_sample_state(specs)
  return query.accumulate_record(params, sample, record), state


@functools.cache
def _round(kind, traced):
  """What a round with this record alone releases, as a function of the record."""

  def one_round(record):
    return _query(kind).get_noised_result(
      *_sample_of(_query(kind), records_lib.SPECS, record)
    )[0]

  return tf.function(one_round) if traced else one_round


@pytest.fixture(scope='module', autouse=True)
def _let_go_of_functions():
  yield
  _round.cache_clear()
  _query.cache_clear()


def _check_refused(kind, record, error, match=None):
  """Checks that a record is refused before it is added, in both modes."""
  for accumulate in (_sample_of, tf.function(_sample_of)):
    with pytest.raises(error, match=match):
      accumulate(_query(kind), records_lib.SPECS, record)


def _clipped(kind, values):
  order = _ORDERS.get(kind, 2)
  if kind in _UNBOUNDED:
    return values
  if math.isinf(order):
    return np.clip(values, -_CLIP_NORM, _CLIP_NORM)
  largest = np.abs(values).max()
  return _CLIP_NORM * (values / largest) / np.linalg.norm(values / largest, order)


@pytest.mark.few(8)
@both_modes
@all_queries
@pytest.mark.parametrize('where', [0, 4, 5])
def test_what_is_not_finite_adds_nothing(kind, where, traced):
  for bad in (math.nan, math.inf, -math.inf):
    values = np.ones(6)
    values[where] = bad
    result = _round(kind, traced)(records_lib.record(values))
    tf.nest.assert_same_structure(result, records_lib.SPECS)
    expected = values if kind in _UNBOUNDED else np.zeros(6)
    np.testing.assert_array_equal(records_lib.flat(result), expected)


@pytest.mark.few(9)
@both_modes
@all_queries
def test_the_largest_numbers_add_the_clip_norm(kind, traced):
  largest = float(np.finfo(np.float32).max)
  for values in (
    largest * np.array([1, -1, 1, -1, 1, 1.0]),
    np.array([largest, 1.0, 1e30, 0, 0, 0]),
    np.array([1.0, 2.0, 3.0, 4.0, 5.0, 1.7e308]),
  ):
    expected = _clipped(kind, values)
    result = records_lib.flat(_round(kind, traced)(records_lib.record(values)))
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=2.0**-39)
    if kind not in _UNBOUNDED:
      norm = np.linalg.norm(result, _ORDERS.get(kind, 2))
      assert norm <= _CLIP_NORM * (1 + 1e-6)


@pytest.mark.few(8)
@both_modes
@bounded_queries
def test_subnormal_numbers_add_nothing(kind, traced):
  values = np.array([1e-40, -1e-45, 1e-38, -1.1e-38, 1e-42, 1e-308])
  result = records_lib.flat(_round(kind, traced)(records_lib.record(values)))
  assert result.tobytes() == np.zeros(6).tobytes()


@all_queries
def test_scalars_and_tensors_without_elements_are_records(kind):
  for specs, record in (
    (tf.TensorSpec([]), tf.constant(0.25)),
    (tf.TensorSpec([0]), tf.zeros([0])),
    ([tf.TensorSpec([3, 0]), tf.TensorSpec([1])], [tf.zeros([3, 0]), tf.ones([1]) / 4]),
  ):
    query = _QUERIES[kind](specs)
    result, _, _ = query.get_noised_result(*_sample_of(query, specs, record))
    tf.nest.assert_same_structure(result, specs)
    for part, expected in zip(tf.nest.flatten(result), tf.nest.flatten(record)):
      assert part.shape == expected.shape
      np.testing.assert_array_equal(part, expected)


@all_queries
def test_another_structure_is_refused(kind):
  zeros = records_lib.record(np.zeros(6))
  for record in (
    zeros['kernel'],
    collections.OrderedDict(core=zeros['kernel'], others=zeros['others']),
    collections.OrderedDict(zeros, more=tf.zeros([])),
  ):
    _check_refused(kind, record, (TypeError, ValueError))


@pytest.mark.few(10)
@all_queries
@pytest.mark.parametrize(
  'dtype', [tf.int32, tf.bool, tf.complex64, tf.string, tf.float64]
)
def test_another_dtype_is_refused_by_name(kind, dtype):
  record = records_lib.record(np.zeros(6))
  kernel = record['kernel']
  record['kernel'] = (
    tf.strings.as_string(kernel) if dtype == tf.string else tf.cast(kernel, dtype)
  )
  _check_refused(kind, record, TypeError, dtype.name)


@pytest.mark.few(10)
@all_queries
@pytest.mark.parametrize('shape', [[], [2, 1], [1, 2, 2], [0]])
def test_another_shape_is_refused_also_if_it_can_be_broadcast(kind, shape):
  # A scalar of the clip norm broadcast to d entries would have sqrt(d) times the norm.
  record = records_lib.record(np.zeros(6))
  record['kernel'] = tf.ones(shape)
  _check_refused(kind, record, ValueError, 'shape')


@pytest.mark.few(2)
@all_queries
def test_inside_tff_hostile_clients_add_no_more_than_the_clip_norm(kind):
  query = _QUERIES[kind](tf.TensorSpec([4]))
  factory = tff.aggregators.DifferentiallyPrivateFactory(query)
  process = factory.create(tff.TensorType(np.float32, [4]))
  honest = np.array([0.01, -0.02, 0.03, 0.0])
  largest = float(np.finfo(np.float32).max) * np.array([1, 1, -1, 0])
  hostile = [
    largest,
    np.array([math.nan, 0, 0, 0]),
    np.array([0, math.inf, 0, 0]),
    np.full(4, 1e-40),
  ]
  clients = [row.astype(np.float32) for row in (honest, *hostile)]
  result = process.next(process.initialize(), clients).result
  if kind in _UNBOUNDED:
    assert np.isnan(result[0])
    assert np.isposinf(result[1])
  else:
    expected = honest + _clipped(kind, largest)
    np.testing.assert_allclose(result, expected, rtol=0, atol=4e-7)
