"""Tests of the rows of z: independent, reproducible, and with a secret key."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies

pytestmark = pytest.mark.optimized_graphs

each_generator = pytest.mark.parametrize('generator', ['chacha20', 'philox'])


def _record(rows, key, index):
  return rows.layout.unflatten(rows.row(key, index))


def _key(rows):
  return tuple(rows.new_key().numpy().tolist())


@pytest.mark.parametrize('shape', [[], [2, 3], [3, 0]])
def test_rows_fill_every_shape(shape):
  rows = noise.GaussianRows(tf.TensorSpec(shape), seed=noise.Seed(1))
  row = _record(rows, rows.new_key(), 0).numpy()
  assert row.shape == tuple(shape)
  assert len(set(row.flat)) == row.size


@each_generator
def test_rounds_tensors_and_keys_are_uncorrelated(generator):
  # 120 pairs; each exceeds seven standard deviations with probability 3e-12.
  num_samples = 50_000
  specs = [tf.TensorSpec([num_samples]), tf.TensorSpec([num_samples])]
  vectors = []
  for seed in (1, 2):
    rows = noise.GaussianRows(specs, noise.Seed(seed), generator)
    key = rows.new_key()
    for index in range(4):
      vectors.extend(tensor.numpy() for tensor in _record(rows, key, index))
  correlations = np.corrcoef(np.array(vectors, np.float64))
  off_diagonal = correlations[~np.eye(len(vectors), dtype=bool)]
  assert np.abs(off_diagonal).max() < 7 / np.sqrt(num_samples)
  for one, other in itertools.combinations(vectors, 2):
    # Two float64 normals are equal with probability below 1e-15.
    assert not np.any(one == other)


@each_generator
def test_row_drawn_in_chunks_has_no_repeated_value(generator):
  rows = noise.GaussianRows(tf.TensorSpec([200_000]), noise.Seed(5), generator)
  values = _record(rows, rows.new_key(), 0).numpy()
  assert values.dtype == np.float64
  assert len(np.unique(values)) == len(values)


@each_generator
def test_rows_are_the_same_in_any_order_and_traced(generator):
  rows = noise.GaussianRows(tf.TensorSpec([7]), seed=noise.Seed(3), generator=generator)
  key = rows.new_key()
  forward = [_record(rows, key, index).numpy() for index in range(5)]
  backward = [_record(rows, key, index).numpy() for index in reversed(range(5))]
  np.testing.assert_array_equal(forward, backward[::-1])
  traced = tf.function(rows.row, autograph=False)
  for index in range(5):
    (value,) = traced(key, tf.constant(index, tf.int64))
    assert value.numpy().tobytes() == forward[index].tobytes()


def test_unseeded_keys_do_not_follow_the_global_seed():
  keys = []
  for _ in range(2):
    tf.random.set_seed(1)
    np.random.seed(1)  # noqa: NPY002 (the claim is about it)
    keys.append(_key(noise.GaussianRows(tf.TensorSpec([3]))))
  assert keys[0] != keys[1]


def test_unseeded_rows_use_chacha20_by_default():
  def generator(*args):
    return noise.GaussianRows(tf.TensorSpec([3]), *args).generator

  assert generator() == generator(None, 'auto') == 'chacha20'
  assert generator(1) == 'philox'
  assert generator(1, 'chacha20') == 'chacha20'
  assert generator(None, 'philox') == 'philox'
  for name in ('aes', None, ''):
    with pytest.raises(ValueError, match="must be 'auto', 'chacha20' or 'philox', got"):
      generator(None, name)


def test_repr_contains_neither_seed_nor_key():
  seed = 918273645
  rows = noise.GaussianRows(tf.TensorSpec([3]), seed)
  unseeded = noise.GaussianRows(tf.TensorSpec([3]))
  assert repr(rows) == repr(unseeded) == str(rows)
  for secret in (seed, *_key(rows)):
    assert str(secret) not in repr(rows)
  streaming = noise.build(strategies.Identity(3), rows)
  assert str(seed) not in repr(streaming)


@pytest.mark.parametrize('dtype', [tf.int32, tf.string])
def test_dtypes_that_are_not_floats_are_refused_by_name(dtype):
  specs = {'good': tf.TensorSpec([2]), 'bad': tf.TensorSpec([2], dtype)}
  with pytest.raises(TypeError, match=f'float32 or float64.*{dtype.name}'):
    noise.GaussianRows(specs)


@pytest.mark.parametrize('shape', [None, [None], [3, None]])
def test_unknown_shapes_are_refused(shape):
  with pytest.raises(ValueError, match='fully defined shapes'):
    noise.GaussianRows([tf.TensorSpec(shape)])
