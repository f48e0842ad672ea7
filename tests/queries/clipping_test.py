"""No record contributes more than the clip norm, whatever it is made of.

Claims, for every structure of records:

* A clipped record's L2 norm, over all its tensors together, is at most the clip norm
  (up to rounding, 1e-6), and its direction is that of the record.
* A record within the norm is not changed by one bit.
* Neither overflow nor underflow in float32 lets a record through or loses it.
* A record with a NaN or an infinity anywhere counts as zero, all of it.
"""

import collections

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
all_records = pytest.mark.parametrize('name', _RECORDS)


def _flat(record):
  parts = [np.ravel(t).astype(np.float64) for t in tf.nest.flatten(record)]
  return np.concatenate([np.zeros(0), *parts])


def _norm(record):
  """L2 norm, computed so that no square overflows float64."""
  flat = _flat(record)
  largest = np.abs(flat).max(initial=0.0)
  return largest * np.linalg.norm(flat / largest) if largest else 0.0


def _same_bits(one, other):
  tf.nest.assert_same_structure(one, other)
  return all(
    (a.dtype, a.shape, a.numpy().tobytes()) == (b.dtype, b.shape, b.numpy().tobytes())
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other))
  )


def _scaled(record, factor):
  return tf.nest.map_structure(lambda t: t * tf.cast(factor, t.dtype), record)


@pytest.mark.parametrize('traced', [False, True])
@all_records
def test_the_clipped_norm_is_the_smaller_of_norm_and_bound(name, traced):
  clip = tf.function(clipping.clip_by_l2_norm) if traced else clipping.clip_by_l2_norm
  bound = np.float32(0.3)
  for factor in (1e-30, 1e-3, 1.0, 1e3, 1e30):
    record = _scaled(_RECORDS[name], factor)
    clipped, norm = clip(record, tf.constant(bound))
    tf.nest.assert_same_structure(clipped, record)
    assert [t.dtype for t in tf.nest.flatten(clipped)] == [
      t.dtype for t in tf.nest.flatten(record)
    ]
    np.testing.assert_allclose(float(norm), _norm(record), rtol=1e-12)
    expected = min(_norm(record), float(bound))
    assert _norm(clipped) <= float(bound) * (1 + 1e-6)
    np.testing.assert_allclose(_norm(clipped), expected, rtol=1e-6)
    if _norm(record):
      np.testing.assert_allclose(
        _flat(clipped) / expected, _flat(record) / _norm(record), rtol=0, atol=1e-6
      )


@all_records
def test_a_record_within_the_norm_keeps_every_bit(name):
  record = _RECORDS[name]
  for bound in (100.0, 1e30):
    clipped, _ = clipping.clip_by_l2_norm(record, bound)
    assert _same_bits(clipped, record)


def test_a_record_exactly_on_the_norm_keeps_every_bit():
  record = [tf.constant([3.0]), tf.constant(4.0)]
  clipped, norm = clipping.clip_by_l2_norm(record, 5.0)
  assert float(norm) == 5.0
  assert _same_bits(clipped, record)


def test_many_random_records_are_never_longer_than_the_bound():
  clip = tf.function(clipping.clip_by_l2_norm)
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
  clipped, _ = clipping.clip_by_l2_norm(record, 1.0)
  assert _norm(clipped) <= 1 + 2e-7  # Only the entries are rounded.


@pytest.mark.parametrize('size', [1, 2, 10_000])
def test_entries_near_the_largest_float32_neither_overflow_nor_escape(size):
  # Their squares are infinite in float32, and so is the norm of more than one.
  largest = np.finfo(np.float32).max
  record = tf.fill([size], tf.constant(-largest))
  clipped, norm = clipping.clip_by_l2_norm(record, 1.0)
  np.testing.assert_allclose(float(norm), float(largest) * size**0.5, rtol=1e-12)
  np.testing.assert_allclose(clipped, np.full(size, -(size**-0.5)), rtol=1e-6)


def test_float64_records_whose_norm_overflows_do_not_escape():
  record = tf.constant([1.7e308] * 4, tf.float64)
  clipped, _ = clipping.clip_by_l2_norm(record, 1.0)
  assert _norm(clipped) <= 1.0 + 1e-6


def test_entries_whose_squares_vanish_in_float32_still_count():
  record = tf.fill([10_000], tf.constant(1e-30))
  clipped, norm = clipping.clip_by_l2_norm(record, 1e-32)
  np.testing.assert_allclose(float(norm), 1e-28, rtol=1e-6)
  np.testing.assert_allclose(_norm(clipped), 1e-32, rtol=1e-6)


@pytest.mark.parametrize('bound', [1e-30, 1.0])
def test_denormal_entries_do_no_harm(bound):
  # TensorFlow may flush them to zero; nothing else may happen.
  denormal = np.float32(1e-40)
  record = tf.constant([denormal, -denormal, 0.5], tf.float32)
  clipped, _ = clipping.clip_by_l2_norm(record, bound)
  expected = min(0.5, bound)
  np.testing.assert_allclose(clipped, [0, 0, expected], rtol=1e-6, atol=1.1e-40)
  alone, _ = clipping.clip_by_l2_norm(record[:2], bound)
  assert np.all(np.abs(alone) <= 1.1e-40)


def test_a_mixed_record_is_clipped_over_all_tensors_together():
  record = [tf.constant([3e30]), tf.constant(4e30, tf.float64), tf.zeros([2, 0])]
  clipped, norm = clipping.clip_by_l2_norm(record, 10.0)
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
  clip = tf.function(clipping.clip_by_l2_norm) if traced else clipping.clip_by_l2_norm
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
