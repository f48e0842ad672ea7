"""No record contributes more than the clip norm, whatever it is made of."""

import fractions
import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from tff_dp_aggregators.queries import grid

_RNG = np.random.default_rng(20210917)


def _float32(*shape):
  return tf.constant(_RNG.normal(size=shape), tf.float32)


def _float64(*shape):
  return tf.constant(_RNG.normal(size=shape), tf.float64)


_RECORDS = {
  'vector': _float32(50),
  'float64': _float64(3, 4),
  'nested': {
    'w': [(_float32(2, 3), _float32(3)), {'x': _float32()}],
    'y': _float64(1),
  },
  'with_empty_tensor': [_float32(0), _float32(5), _float64(0, 3)],
  'only_an_empty_tensor': [_float32(0)],
  'zeros': [tf.zeros([3]), tf.zeros([])],
  'no_tensors': (),
}
_ORDERS = (1, 1.5, 2, 100.0, math.inf)
all_records = pytest.mark.parametrize('name', _RECORDS)
all_orders = pytest.mark.parametrize('order', _ORDERS)


def _flat(record):
  parts = [np.ravel(t).astype(np.float64) for t in tf.nest.flatten(record)]
  return np.concatenate([np.zeros(0), *parts])


def _norm(record, order=2):
  """p-norm, in a precision and range far beyond float64."""
  flat = np.abs(_flat(record).astype(np.longdouble))
  largest = flat.max(initial=0.0)
  if largest == 0 or math.isinf(order):
    return largest
  ratios = flat / largest
  powers = {1: ratios, 2: ratios * ratios}.get(order)
  powers = ratios**order if powers is None else powers
  return largest * np.sum(powers) ** (np.longdouble(1) / np.longdouble(order))


def _scaled(record, factor):
  return tf.nest.map_structure(lambda t: t * tf.cast(float(factor), t.dtype), record)


# A function is traced once for each kind of record.
@functools.lru_cache(maxsize=None, typed=True)
def _clip(traced, order=2):
  def clip(record, clip_norm):
    return grid.clip_to_grid(record, clip_norm, _steps(clip_norm), order)

  return tf.function(clip, autograph=False) if traced else clip


def _steps(clip_norm):
  return grid.steps_per_unit(clip_norm, noise_multiplier=1.0)


def _in_units(clipped, bound):
  """The integers as the numbers that they stand for."""
  steps = np.longdouble(_steps(tf.constant(bound, tf.float32)).numpy())
  return tf.nest.map_structure(
    lambda t: t.numpy().astype(np.longdouble) / steps, clipped.integers
  )


def _is_within(clipped, bound, order):
  """Whether the exact norm is within the bound; whole powers are of Python's ints."""
  bound = fractions.Fraction(float(np.float32(bound)))
  bound *= fractions.Fraction(float(_steps(tf.constant(float(bound), tf.float32))))
  integers = [abs(t.numpy().ravel()) for t in tf.nest.flatten(clipped.integers)]
  if math.isinf(order):
    return all(int(np.max(t, initial=0)) <= bound for t in integers)
  if order == 2:
    return sum(map(_sum_of_squares, integers)) <= bound**2
  if order in (1, 3):
    powers = (int(np.sum(t)) if order == 1 else _sum_of_cubes(t) for t in integers)
    return sum(powers) <= bound**order
  total = sum(np.sum(t.astype(np.longdouble) ** order) for t in integers)
  return total <= np.longdouble(float(bound)) ** order * (1 + np.longdouble(1e-15))


def _sum_of_squares(integers):
  """Exact, without Python's integers for each: 2^40 and a million entries fit."""
  high, low = integers >> 20, integers & (2**20 - 1)
  parts = [np.sum(high * high), 2 * np.sum(high * low), np.sum(low * low)]
  return (int(parts[0]) << 40) + (int(parts[1]) << 20) + int(parts[2])


def _sum_of_cubes(integers):
  return sum(n**3 for n in integers.tolist())


@pytest.mark.parametrize('order', [1, 2, math.inf])
@all_records
def test_the_clipped_norm_is_the_smaller_of_norm_and_bound(name, order):
  clip = _clip(False, order)
  bound = np.float32(0.3)
  for factor in (1e-3, 1.0, 1e30):
    record = _scaled(_RECORDS[name], factor)
    clipped = clip(record, tf.constant(bound))
    tf.nest.assert_same_structure(clipped.integers, record)
    assert all(t.dtype == tf.int64 for t in tf.nest.flatten(clipped.integers))
    assert bool(clipped.finite)
    norm = _norm(record, order)
    np.testing.assert_allclose(float(clipped.norm), float(norm), rtol=1e-12)
    assert _is_within(clipped, bound, order)
    units = _in_units(clipped, bound)
    expected = min(norm, float(bound))
    np.testing.assert_allclose(float(_norm(units, order)), float(expected), rtol=1e-6)
    if math.isinf(order):
      np.testing.assert_allclose(
        _flat(units), np.clip(_flat(record), -bound, bound), rtol=0, atol=2.0**-36
      )
    elif norm:
      np.testing.assert_allclose(
        (_flat(units) / expected).astype(np.float64),
        (_flat(record) / norm).astype(np.float64),
        rtol=0,
        atol=1e-6,
      )


@pytest.mark.parametrize('order', [1.5, 2, math.inf])
@all_records
def test_a_record_within_the_norm_is_rounded_towards_zero_by_less_than_a_step(
  name, order
):
  record = _RECORDS[name]
  for bound in (100.0, 1e20):
    clipped = _clip(False, order)(record, tf.constant(bound))
    steps = float(_steps(tf.constant(bound)))
    for tensor, integers in zip(
      tf.nest.flatten(record), tf.nest.flatten(clipped.integers)
    ):
      exact = tensor.numpy().astype(np.float64) * steps  # A power of two.
      np.testing.assert_array_equal(integers, np.trunc(exact).astype(np.int64))


_TINY = np.finfo(np.float32).tiny  # The smallest normal number, 1.2e-38.
_LARGEST = np.finfo(np.float32).max
_EXTREMES = {
  'one_largest': lambda size: [np.float32(-_LARGEST)],
  'all_largest': lambda size: [np.full(size, _LARGEST)],
  'all_tiny': lambda size: [np.full(size, _TINY)],
  'all_subnormal': lambda size: [np.full(size, np.float32(1.1e-38))],
  'all_smallest': lambda size: [np.full(size, np.float32(1.4e-45))],
  'wide': lambda size: [
    np.float32(10.0) ** np.random.default_rng(1).uniform(-45, 38, size)
  ],
  'gaussian': lambda size: [
    np.random.default_rng(2).normal(size=size).astype(np.float32)
  ],
  'one_large_among_small': lambda size: [np.full(size, np.float32(1e-7)), _LARGEST],
  'all_largest_float64': lambda size: [np.full(size, 1.7e308)],
  'all_subnormal_float64': lambda size: [np.full(size, 1e-308)],
  'both_dtypes': lambda size: [np.full(size, 1e300), np.full(9, _TINY), np.zeros(0)],
  'half': lambda size: [np.full(size, np.float16(6e-8)), np.full(9, np.float16(65504))],
}
_BOUNDS = (*grid.CLIP_NORM_LIMITS, 0.1)


@pytest.mark.few(7)
@all_orders
@pytest.mark.parametrize('name', _EXTREMES)
def test_no_record_of_extremes_is_longer_than_any_clip_norm(name, order):
  size = 1_000_000 if order in (1, 2, math.inf) else 10_000
  record = [tf.constant(part) for part in _EXTREMES[name](size)]
  length = _norm(record, order)
  clip = _clip(True, order)
  for bound in _BOUNDS:
    clipped = clip(record, tf.constant(bound, tf.float32))
    if not 1e-30 < length < np.finfo(np.float64).max:
      assert np.isposinf(clipped.norm) or clipped.norm < 1e-29
    else:
      np.testing.assert_allclose(float(clipped.norm), float(length), rtol=1e-9)
    assert _is_within(clipped, bound, order), bound
    # Nothing is lost but what is below a step.
    step = 1 / float(_steps(tf.constant(bound, tf.float32)))
    lost = size * step if order == 1 else size ** (1 / order) * step
    reached = _norm(_in_units(clipped, bound), order)
    assert reached >= min(length, np.float32(bound)) * (1 - 1e-6) - 1.01 * lost, bound


@pytest.mark.few(2)
@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
@pytest.mark.parametrize('order', [1, 2, 3])
def test_records_of_just_the_norm_do_not_exceed_it_by_a_step(order, dtype):
  # Where a norm that was computed is as likely below the exact one as above it.
  rng = np.random.default_rng(11)
  clip = _clip(True, order)
  changed = 0
  for _ in range(60):
    record = tf.constant(rng.normal(size=50), dtype)
    bound = np.float32(_norm(record, order))
    for factor in (0.9999999, 1.0, 1.0000001):
      scaled = record * tf.constant(factor, dtype)
      clipped = clip(scaled, tf.constant(bound))
      assert _is_within(clipped, bound, order)
      steps = float(_steps(tf.constant(bound)))
      kept = np.trunc(scaled.numpy().astype(np.float64) * steps)
      changed += not np.array_equal(kept, clipped.integers.numpy())
  assert 30 < changed < 150  # Both are met with.


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('where', [0, 1, 2])
def test_a_record_with_a_non_finite_entry_counts_as_zero(where, bad):
  for dtypes in ((np.float32, np.float64, np.float32), (np.float32,) * 3):
    for order in (1, 2, 3, math.inf):
      values = [np.ones(shape, t) for shape, t in zip([(3,), (), (2, 2)], dtypes)]
      values[where].flat[0] = bad
      record = [tf.constant(value) for value in values]
      clipped = _clip(False, order)(record, tf.constant(1.0))
      assert float(clipped.norm) == 0.0
      assert not bool(clipped.finite)
      assert np.array_equal(_flat(clipped.integers), np.zeros(8))
  kept, finite = grid.zero_unless_finite(record)
  assert not bool(finite)
  assert np.array_equal(_flat(kept), np.zeros(8))


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
@pytest.mark.parametrize('shape', [[30, 20], [300, 300]])
def test_records_added_to_a_sum_are_those_that_are_clipped(shape, dtype):
  rng = np.random.default_rng(5)
  scales = [1e-3, 1.0, 1e-42, 1e30, 1e-9, 1.0, 1.0]
  several = [
    [tf.constant(scale * rng.normal(size=each), dtype) for each in (shape, [], [7])]
    for scale in scales
  ]
  several[4][0] = tf.tensor_scatter_nd_update(several[4][0], [[1, 2]], [np.nan])
  several[5][2] = tf.tensor_scatter_nd_update(several[5][2], [[1]], [-np.inf])
  steps = grid.steps_per_unit(3.7, 1.0)
  total = [
    tf.random.uniform(each, -(2**61), 2**61, tf.int64) for each in (shape, [], [7])
  ]
  added = grid.add_clipped(total, several, 3.7, steps)
  clipped = [grid.clip_to_grid(each, 3.7, steps) for each in several]
  np.testing.assert_array_equal(added.finite, [each.finite for each in clipped])
  np.testing.assert_array_equal(added.norms, [each.norm for each in clipped])
  assert added.finite.numpy().tolist() == [True] * 4 + [False] * 2 + [True]
  for position, tensor in enumerate(added.integers):
    expected = sum(each.integers[position].numpy() for each in clipped)
    np.testing.assert_array_equal(tensor, total[position] + expected)


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64, tf.float16])
def test_the_sum_of_stacked_records_is_that_of_records_that_are_clipped(dtype):
  rng = np.random.default_rng(6)
  scales = np.array([1e-3, 1.0, 1e-6, 1e3, 0.0, 1.0, 1.0])
  stacked = [
    rng.normal(size=[7, *shape]) * scales.reshape([7] + [1] * len(shape))
    for shape in ([4, 3], [], [5])
  ]
  stacked[0][5, 1, 2], stacked[2][6, 3] = np.nan, -np.inf
  stacked = [tf.constant(each, dtype) for each in stacked]
  steps = grid.steps_per_unit(3.7, 1.0)
  for count in (7, 5):  # With records that are not finite, and without.
    some = [each[:count] for each in stacked]
    added = grid.sum_clipped(some, 3.7, steps)
    clipped = [
      grid.clip_to_grid([each[i] for each in some], 3.7, steps) for i in range(count)
    ]
    assert added.finite.numpy().tolist() == [i < 5 for i in range(count)]
    np.testing.assert_allclose(added.norms, [each.norm for each in clipped], rtol=1e-14)
    for position, tensor in enumerate(added.integers):
      expected = sum(each.integers[position].numpy() for each in clipped)
      # A norm may be rounded otherwise, and with it an entry of some records.
      bits = 2.0**-22 if dtype == tf.float32 else 0.0
      np.testing.assert_allclose(tensor, expected, rtol=bits, atol=count)


def test_stacked_records_of_just_the_norm_do_not_exceed_it():
  rng = np.random.default_rng(12)
  for _ in range(25):
    record = tf.constant(rng.normal(size=50), tf.float32)
    bound = np.float32(_norm(record, 2))
    for factor in (0.9999999, 1.0, 1.0000001):
      steps = _steps(tf.constant(bound))
      added = grid.sum_clipped(
        record[tf.newaxis] * tf.constant(factor, tf.float32), tf.constant(bound), steps
      )
      clipped = grid.Clipped(added.integers, added.norms[0], added.finite[0])
      assert _is_within(clipped, bound, 2)


@pytest.mark.parametrize(
  ('part', 'named'),
  [
    (tf.constant([1, 2]), r'int32 of shape \(2,\)'),
    ('secret', 'string'),
    (None, 'NoneType'),
    (tf.SparseTensor([[0]], [1.0], [3]), 'SparseTensor'),
    (tf.RaggedTensor.from_row_lengths([1.0, 2.0], [2]), 'RaggedTensor'),
  ],
)
def test_what_is_not_a_float_tensor_is_refused_by_name(part, named):
  for clip in (_clip(False), _clip(False, math.inf), _clip(False, 1)):
    with pytest.raises(TypeError, match=named) as error:
      clip({'good': tf.zeros([2]), 'bad': [part]}, tf.constant(1.0))
    assert 'secret' not in str(error.value)  # Records are not for logs.


@pytest.mark.parametrize('order', [0.99, -math.inf, math.nan])
def test_orders_without_a_triangle_inequality_are_refused(order):
  with pytest.raises(ValueError, match='order must be at least 1.*got'):
    _clip(False, order)([tf.zeros([2])], tf.constant(1.0))


@pytest.mark.parametrize('order', [1, 2, math.inf])
@pytest.mark.parametrize('bad', [math.nan, 0.0, -1.0])
def test_a_clip_norm_that_turns_out_to_be_none_lets_no_record_through(order, bad):
  clip = tf.function(
    lambda record, bound: grid.clip_to_grid(
      record, bound, tf.constant(2.0**39, tf.float64), order
    ),
    autograph=False,
  )
  for dtype in (tf.float32, tf.float64):
    clipped = clip([tf.constant([0.5, 2.0], dtype)], tf.constant(bad))
    assert not np.any(clipped.integers[0])


def test_the_noised_sum_follows_from_the_sum_and_real_noise():
  # So it is post-processing of the Gaussian mechanism: floor(X + Z + 1/2), X whole.
  total = tf.constant([5, -3, 0, 2, 7], tf.int64)
  unit = tf.constant([0.3, -0.3, -0.9, 1.75, -2.5], tf.float64)
  noised = grid.add_noise(total, unit, tf.constant(2.0, tf.float64))
  expected = np.floor(total.numpy() + 2.0 * unit.numpy() + 0.5)
  np.testing.assert_array_equal(noised, expected)


def test_steps_are_a_power_of_two_of_what_is_not_below_the_clip_norm():
  for clip_norm, bits in ((1.0, 35), (1.01, 34), (0.5, 36), (2.0, 34)):
    assert grid.steps_per_unit(tf.constant(clip_norm), 1.0) == 2.0**bits
