"""Clipping to the grid: no record exceeds the clip norm, whatever its values."""

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


# Cached, so that a function is traced once for each kind of record.
@functools.lru_cache(maxsize=None, typed=True)
def _clip(traced, order=2):
  def clip(record, clip_norm):
    return grid.clip_to_grid(record, clip_norm, _steps(clip_norm), order)

  return tf.function(clip, autograph=False) if traced else clip


def _steps(clip_norm):
  return grid.steps_per_unit(clip_norm, noise_multiplier=1.0)


def _to_values(clipped, bound):
  """Returns the values that the integers of a clipped record represent."""
  steps = np.longdouble(_steps(tf.constant(bound, tf.float32)).numpy())
  return tf.nest.map_structure(
    lambda t: t.numpy().astype(np.longdouble) / steps, clipped.integers
  )


def _is_within(clipped, bound, order):
  """Whether the norm is within the bound: in Python integers if the order is whole."""
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
  """Exact without a Python integer per entry, for a million entries up to 2^40."""
  high, low = integers >> 20, integers & (2**20 - 1)
  parts = [np.sum(high * high), 2 * np.sum(high * low), np.sum(low * low)]
  return (int(parts[0]) << 40) + (int(parts[1]) << 20) + int(parts[2])


def _sum_of_cubes(integers):
  return sum(n**3 for n in integers.tolist())


@pytest.mark.parametrize('order', [1, 2, math.inf])
@all_records
def test_clipped_norm_is_minimum_of_norm_and_clip_norm(name, order):
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
    values = _to_values(clipped, bound)
    expected = min(norm, float(bound))
    np.testing.assert_allclose(float(_norm(values, order)), float(expected), rtol=1e-6)
    if math.isinf(order):
      np.testing.assert_allclose(
        _flat(values), np.clip(_flat(record), -bound, bound), rtol=0, atol=2.0**-36
      )
    elif norm:
      np.testing.assert_allclose(
        (_flat(values) / expected).astype(np.float64),
        (_flat(record) / norm).astype(np.float64),
        rtol=0,
        atol=1e-6,
      )


@pytest.mark.parametrize('order', [1.5, 2, math.inf])
@all_records
def test_record_within_clip_norm_is_truncated_to_grid(name, order):
  record = _RECORDS[name]
  for bound in (100.0, 1e20):
    clipped = _clip(False, order)(record, tf.constant(bound))
    steps = float(_steps(tf.constant(bound)))
    for tensor, integers in zip(
      tf.nest.flatten(record), tf.nest.flatten(clipped.integers)
    ):
      exact = tensor.numpy().astype(np.float64) * steps  # Exact: a power of two.
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
def test_extreme_records_do_not_exceed_clip_norm(name, order):
  size = 1_000_000 if order in (1, 2, math.inf) else 10_000
  record = [tf.constant(part) for part in _EXTREMES[name](size)]
  norm = _norm(record, order)
  clip = _clip(True, order)
  for bound in _BOUNDS:
    clipped = clip(record, tf.constant(bound, tf.float32))
    if not 1e-30 < norm < np.finfo(np.float64).max:
      assert np.isposinf(clipped.norm) or clipped.norm < 1e-29
    else:
      np.testing.assert_allclose(float(clipped.norm), float(norm), rtol=1e-9)
    assert _is_within(clipped, bound, order), bound
    # Each entry loses less than a step.
    step = 1 / float(_steps(tf.constant(bound, tf.float32)))
    rounding = size * step if order == 1 else size ** (1 / order) * step
    clipped_norm = _norm(_to_values(clipped, bound), order)
    assert (
      clipped_norm >= min(norm, np.float32(bound)) * (1 - 1e-6) - 1.01 * rounding
    ), bound


@pytest.mark.few(2)
@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
@pytest.mark.parametrize('order', [2, 1, 3])
def test_records_with_norm_near_clip_norm_do_not_exceed_it(order, dtype):
  # Here the computed norm is as likely below the exact norm as above it.
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
      if order == 2:
        added = grid.sum_clipped(scaled[tf.newaxis], bound, _steps(bound))
        assert _is_within(added, bound, order)
      steps = float(_steps(tf.constant(bound)))
      kept = np.trunc(scaled.numpy().astype(np.float64) * steps)
      changed += not np.array_equal(kept, clipped.integers.numpy())
  assert 30 < changed < 150  # Scaled and unscaled records both occur.


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('where', [0, 1, 2])
def test_record_with_non_finite_entry_counts_as_zero(where, bad):
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


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64, tf.float16])
def test_sum_clipped_equals_sum_of_each_clipped_record(dtype):
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
      # A norm may be rounded differently, and with it some entries of the record.
      bits = 2.0**-22 if dtype == tf.float32 else 0.0
      np.testing.assert_allclose(tensor, expected, rtol=bits, atol=count)


@pytest.mark.parametrize(
  ('part', 'message'),
  [
    (tf.constant([1, 2]), r'int32 of shape \(2,\)'),
    ('secret', 'string'),
    (None, 'NoneType'),
    (tf.SparseTensor([[0]], [1.0], [3]), 'SparseTensor'),
    (tf.RaggedTensor.from_row_lengths([1.0, 2.0], [2]), 'RaggedTensor'),
  ],
)
def test_clip_to_grid_refuses_what_is_not_a_float_tensor(part, message):
  for clip in (_clip(False), _clip(False, math.inf), _clip(False, 1)):
    with pytest.raises(TypeError, match=message) as error:
      clip({'good': tf.zeros([2]), 'bad': [part]}, tf.constant(1.0))
    assert 'secret' not in str(error.value)  # Errors are logged; records must not be.


@pytest.mark.parametrize('order', [0.99, -math.inf, math.nan])
def test_orders_without_a_triangle_inequality_are_refused(order):
  with pytest.raises(ValueError, match='order must be at least 1.*got'):
    _clip(False, order)([tf.zeros([2])], tf.constant(1.0))
  with pytest.raises(TypeError, match="order must be a number, got '2'"):
    grid.check_order('2')


@pytest.mark.parametrize('order', [1, 2, math.inf])
@pytest.mark.parametrize('bad', [math.nan, 0.0, -1.0])
def test_clip_to_grid_returns_zeros_for_invalid_clip_norm_tensor(order, bad):
  clip = tf.function(
    lambda record, bound: grid.clip_to_grid(
      record, bound, tf.constant(2.0**39, tf.float64), order
    ),
    autograph=False,
  )
  for dtype in (tf.float32, tf.float64):
    clipped = clip([tf.constant([0.5, 2.0], dtype)], tf.constant(bad))
    assert not np.any(clipped.integers[0])


def test_add_noise_rounds_sum_plus_real_noise():
  # floor(X + Z + 1/2), X an integer, is post-processing of the Gaussian mechanism.
  total = tf.constant([5, -3, 0, 2, 7], tf.int64)
  unit = tf.constant([0.3, -0.3, -0.9, 1.75, -2.5], tf.float64)
  noised = grid.add_noise(total, unit, tf.constant(2.0, tf.float64))
  expected = np.floor(total.numpy() + 2.0 * unit.numpy() + 0.5)
  np.testing.assert_array_equal(noised, expected)


def test_steps_per_unit_use_clip_norm_rounded_up_to_power_of_two():
  for clip_norm, bits in ((1.0, 35), (1.01, 34), (0.5, 36), (2.0, 34)):
    assert grid.steps_per_unit(tf.constant(clip_norm), 1.0) == 2.0**bits
