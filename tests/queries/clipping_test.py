"""No record contributes more than the clip norm, whatever it is made of.

Claims, for every structure of records and every p-norm, 1 <= p <= infinity:

* A clipped record's norm, over all its tensors together and computed in extended
  precision, is at most the clip norm (up to rounding, 1e-6), for entries, clip norms
  and sizes at all ends of what floating point holds.
* Its direction is that of the record; with the largest norm, each entry is clipped.
* A record within the norm is not changed by one bit, but for subnormal entries.
* Neither overflow nor underflow in float32 lets a record through or loses it.
* Subnormal entries count as zero, in every mode.
* A record with a NaN or an infinity anywhere counts as zero, all of it.
* Half precision is clipped in float32 and stays there; other dtypes are refused.
"""

import collections
import fractions
import math

import numpy as np
import pytest
import tensorflow as tf

from tff_dp_aggregators.queries import clipping

_RNG = np.random.default_rng(20210917)


def _float32(*shape):
  return tf.constant(_RNG.normal(size=shape), tf.float32)


def _float64(*shape):
  return tf.constant(_RNG.normal(size=shape), tf.float64)


_RECORDS = {
  'vector': _float32(50),
  'scalar': _float32(),
  'float64': _float64(3, 4),
  'list': [_float32(3), _float32(2, 2)],
  'tuple': (_float32(3), _float64(), _float32(1, 1, 5)),
  'ordered_dict': collections.OrderedDict(b=_float32(4), a=_float32(2)),
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
both_modes = pytest.mark.parametrize('traced', [False, True])


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


def _same_bits(one, other):
  tf.nest.assert_same_structure(one, other)
  return all(
    (a.dtype, a.shape, a.numpy().tobytes()) == (b.dtype, b.shape, b.numpy().tobytes())
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other))
  )


def _scaled(record, factor):
  return tf.nest.map_structure(lambda t: t * tf.cast(float(factor), t.dtype), record)


def _clip(traced, order=2):
  def clip(record, clip_norm):
    return clipping.clip_by_norm(record, clip_norm, order)

  return tf.function(clip) if traced else clip


@both_modes
@pytest.mark.parametrize('order', [1, 2, math.inf])
@all_records
def test_the_clipped_norm_is_the_smaller_of_norm_and_bound(name, order, traced):
  clip = _clip(traced, order)
  bound = np.float32(0.3)
  for factor in (1e-30, 1.0, 1e30):
    record = _scaled(_RECORDS[name], factor)
    clipped, norm = clip(record, tf.constant(bound))
    tf.nest.assert_same_structure(clipped, record)
    assert [t.dtype for t in tf.nest.flatten(clipped)] == [
      t.dtype for t in tf.nest.flatten(record)
    ]
    np.testing.assert_allclose(float(norm), float(_norm(record, order)), rtol=1e-12)
    expected = min(_norm(record, order), float(bound))
    assert _norm(clipped, order) <= float(bound) * (1 + 1e-6)
    np.testing.assert_allclose(float(_norm(clipped, order)), float(expected), rtol=1e-6)
    if math.isinf(order):
      np.testing.assert_allclose(
        _flat(clipped), np.clip(_flat(record), -bound, bound), rtol=0, atol=0
      )
    elif _norm(record):
      np.testing.assert_allclose(
        (_flat(clipped) / expected).astype(np.float64),
        (_flat(record) / _norm(record, order)).astype(np.float64),
        rtol=0,
        atol=1e-6,
      )


def test_clipping_by_the_l2_norm_is_clipping_by_the_norm_of_order_2():
  record = _RECORDS['nested']
  one, one_norm = clipping.clip_by_norm(record, 0.5)
  other, other_norm = clipping.clip_by_norm(record, 0.5, 2)
  assert _same_bits([one, one_norm], [other, other_norm])


@all_orders
@all_records
def test_a_record_within_the_norm_keeps_every_bit(name, order):
  record = _RECORDS[name]
  for bound in (100.0, 1e30):
    clipped, _ = clipping.clip_by_norm(record, bound, order)
    assert _same_bits(clipped, record)


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


def _what_counts(tensor):
  """A tensor as it is clipped: float32 or float64, without subnormal entries."""
  values = tensor.numpy()
  values = values.astype(np.float32) if tensor.dtype == tf.float16 else values
  return np.where(np.abs(values) < np.finfo(values.dtype).tiny, 0, values)


@all_orders
@pytest.mark.parametrize('name', _EXTREMES)
def test_no_record_of_extremes_is_longer_than_any_clip_norm(name, order):
  size = 1_000_000 if order in (1, 2, math.inf) else 10_000
  record = [tf.constant(part) for part in _EXTREMES[name](size)]
  length = _norm([_what_counts(part) for part in record], order)
  clip = _clip(True, order)
  for bound in (1.2e-38, 0.1, 3e38):
    clipped, norm = clip(record, tf.constant(bound, tf.float32))
    bound = np.longdouble(np.float32(bound))
    if length < np.finfo(np.float64).max:
      np.testing.assert_allclose(float(norm), float(length), rtol=1e-9)
    else:
      assert np.isposinf(norm)
    reached = _norm(clipped, order)
    assert reached <= bound * (1 + 1e-6), bound
    # Nothing is lost but what would be subnormal: entries below the smallest number.
    assert reached >= min(length, bound) * (1 - 1e-6) - 1.01 * size * float(_TINY), (
      bound
    )


def test_the_bound_holds_in_exact_arithmetic():
  rng = np.random.default_rng(7)
  slack = 1 + fractions.Fraction(1, 10**6)
  for order in (1, 2, 3):
    clip = _clip(True, order)
    for exponent in rng.uniform(-37, 37, 20):
      record = tf.constant(rng.standard_cauchy(30) * 10**exponent, tf.float32)
      for bound in (np.float32(1.2e-38), np.float32(0.1), np.float32(3e38)):
        clipped, _ = clip(record, tf.constant(bound))
        power = sum(abs(fractions.Fraction(float(x))) ** order for x in clipped.numpy())
        assert power <= (fractions.Fraction(float(bound)) * slack) ** order


@both_modes
@all_orders
def test_subnormal_entries_count_as_zero(order, traced):
  clip = _clip(traced, order)
  for size in (2, 10_000):
    for record in (
      tf.fill([size], np.float32(1.1e-38)),
      tf.fill([size], np.float32(-1e-45)),
      tf.fill([size], np.float64(2.2e-308)),
    ):
      for bound in (1.2e-38, 1.0):
        clipped, norm = clip([record, tf.constant(1.0)], bound)
        # The bits, as arithmetic may not tell a subnormal number from zero.
        assert not any(clipped[0].numpy().tobytes())
        assert float(norm) == 1.0


def test_a_record_exactly_on_the_norm_keeps_every_bit():
  record = [tf.constant([3.0]), tf.constant(4.0)]
  clipped, norm = clipping.clip_by_norm(record, 5.0)
  assert float(norm) == 5.0
  assert _same_bits(clipped, record)


def test_many_random_records_are_never_longer_than_the_bound():
  clip = tf.function(clipping.clip_by_norm)
  rng = np.random.default_rng(5)
  for _ in range(300):
    exponent, bound_exponent = rng.uniform(-20, 20, 2)
    record = tf.constant(rng.standard_cauchy(40) * 10**exponent, tf.float32)
    bound = np.float32(10**bound_exponent)
    clipped, _ = clip(record, tf.constant(bound))
    assert _norm(clipped) <= float(bound) * (1 + 1e-6)


@pytest.mark.parametrize('excess', [1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
def test_a_record_barely_above_the_norm_is_clipped_as_well(excess):
  record = _scaled(_RECORDS['nested'], (1 + excess) / _norm(_RECORDS['nested']))
  clipped, _ = clipping.clip_by_norm(record, 1.0)
  assert _norm(clipped) <= 1 + 2e-7  # Only the entries are rounded.


@pytest.mark.parametrize('size', [1, 2, 10_000])
def test_entries_near_the_largest_float32_neither_overflow_nor_escape(size):
  # Their squares are infinite in float32, and so is the norm of more than one.
  largest = np.finfo(np.float32).max
  record = tf.fill([size], tf.constant(-largest))
  clipped, norm = clipping.clip_by_norm(record, 1.0)
  np.testing.assert_allclose(float(norm), float(largest) * size**0.5, rtol=1e-12)
  np.testing.assert_allclose(clipped, np.full(size, -(size**-0.5)), rtol=1e-6)


def test_float64_records_whose_norm_overflows_do_not_escape():
  record = tf.constant([1.7e308] * 4, tf.float64)
  clipped, _ = clipping.clip_by_norm(record, 1.0)
  assert _norm(clipped) <= 1.0 + 1e-6


def test_entries_whose_squares_vanish_in_float32_still_count():
  record = tf.fill([10_000], tf.constant(1e-30))
  clipped, norm = clipping.clip_by_norm(record, 1e-32)
  np.testing.assert_allclose(float(norm), 1e-28, rtol=1e-6)
  np.testing.assert_allclose(float(_norm(clipped)), 1e-32, rtol=1e-6)


def test_a_mixed_record_is_clipped_over_all_tensors_together():
  record = [tf.constant([3e30]), tf.constant(4e30, tf.float64), tf.zeros([2, 0])]
  clipped, norm = clipping.clip_by_norm(record, 10.0)
  assert float(norm) == pytest.approx(5e30, rel=1e-6)
  np.testing.assert_allclose(_flat(clipped), [6, 8], rtol=1e-6)


@pytest.mark.parametrize('traced', [False, True])
@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('where', [0, 1, 2])
def test_a_record_with_a_non_finite_entry_counts_as_zero(where, bad, traced):
  values = [np.ones(3, np.float32), np.float64(2.0), np.ones([2, 2], np.float32)]
  values[where] = (
    np.where(np.arange(values[where].size) == 0, bad, 1.0)
    .reshape(values[where].shape)
    .astype(values[where].dtype)
  )
  record = [tf.constant(value) for value in values]
  clip = tf.function(clipping.clip_by_norm) if traced else clipping.clip_by_norm
  clipped, norm = clip(record, 1.0)
  assert float(norm) == 0.0
  assert np.array_equal(_flat(clipped), np.zeros(8))
  kept, finite = clipping.zero_unless_finite(record)
  assert not bool(finite)
  assert np.array_equal(_flat(kept), np.zeros(8))


@all_records
def test_a_finite_record_is_kept_by_the_check_for_non_finite_ones(name):
  kept, finite = clipping.zero_unless_finite(_RECORDS[name])
  assert bool(finite)
  assert _same_bits(kept, _RECORDS[name])


@both_modes
@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16])
@all_orders
def test_half_precision_is_clipped_in_float32(order, dtype, traced):
  values = np.array([60000.0, -30000.0, 1e-3, 0.0])
  record = {'a': tf.constant(values, dtype), 'b': tf.constant([0.5])}
  as_float32 = tf.nest.map_structure(lambda t: tf.cast(t, tf.float32), record)
  for bound in (1e-3, 1e6):
    # 1e6 and the norm of the record are infinite in float16.
    clipped, norm = _clip(traced, order)(record, bound)
    expected, expected_norm = _clip(traced, order)(as_float32, bound)
    assert _same_bits([clipped, norm], [expected, expected_norm])
    assert clipped['a'].dtype == tf.float32


@pytest.mark.parametrize(
  ('part', 'named'),
  [
    (tf.constant([1, 2]), r'int32 of shape \(2,\)'),
    (np.zeros([2, 1], np.int64), r'int64 of shape \(2, 1\)'),
    (tf.constant([True]), 'bool'),
    (tf.constant(['secret']), 'string'),
    ('secret', 'string'),
    (tf.constant([1j]), 'complex128'),
    (None, 'NoneType'),
    (object(), 'object'),
    (tf.SparseTensor([[0]], [1.0], [3]), 'SparseTensor'),
    (tf.RaggedTensor.from_row_lengths([1.0, 2.0], [2]), 'RaggedTensor'),
  ],
)
def test_what_is_not_a_float_tensor_is_refused_by_name(part, named):
  for clip in (_clip(False), _clip(False, math.inf), _clip(False, 1)):
    with pytest.raises(TypeError, match=named) as error:
      clip({'good': tf.zeros([2]), 'bad': [part]}, 1.0)
    assert 'secret' not in str(error.value)  # Records are not for logs.


@pytest.mark.parametrize('order', [0.99, 0, -1, -math.inf, math.nan])
def test_orders_without_a_triangle_inequality_are_refused(order):
  for function in (
    lambda: clipping.clip_by_norm([tf.zeros([2])], 1.0, order),
    lambda: clipping.global_norm([tf.zeros([2])], order),
  ):
    with pytest.raises(ValueError, match='order must be at least 1.*got'):
      function()


@pytest.mark.parametrize('clip_norm', [0.0, -1.0, math.nan])
def test_clip_norms_that_are_not_positive_are_refused(clip_norm):
  with pytest.raises(ValueError, match='clip_norm must be positive; got'):
    clipping.clip_by_norm([tf.zeros([2])], clip_norm)


@all_orders
@pytest.mark.parametrize('clip_norm', [0.1, 1e300, np.float64(0.1)])
def test_clip_norms_are_not_rounded_to_float32(order, clip_norm):
  record = [tf.constant([1e308, -1e308], tf.float64)]
  clipped, _ = clipping.clip_by_norm(record, clip_norm, order)
  assert float(_norm(clipped, order)) == pytest.approx(clip_norm, rel=1e-14)


@all_orders
def test_a_clip_norm_that_turns_out_to_be_nan_lets_no_record_through(order):
  # Traced, so that it is not known when it could be refused.
  clipped, _ = _clip(True, order)([tf.constant([0.5, 2.0])], tf.constant(math.nan))
  assert not np.any(np.isfinite(clipped[0]))
