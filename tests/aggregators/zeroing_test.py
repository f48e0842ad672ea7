"""`ZeroLargeFactory` replaces values of large norm by zeros."""

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators


def _zeroed(value, norm):
  inner = tff.aggregators.SumFactory()
  factory = aggregators.ZeroLargeFactory(inner, norm=norm)
  result = factory.of_client(tf.nest.map_structure(tf.constant, value))
  return [np.asarray(each).tolist() for each in result]


def test_norm_is_over_all_tensors_of_a_value():
  value = [np.float32([3.0, 0.0]), np.float64([[4.0]])]
  assert _zeroed(value, 5.0) == [[3.0, 0.0], [[4.0]]]
  assert _zeroed(value, 4.999) == [[0.0, 0.0], [[0.0]]]
  assert _zeroed([np.float32([0.0, -0.0])], 1e-300) == [[0.0, -0.0]]


@pytest.mark.parametrize('dtype', [tf.float16, tf.float64])
def test_largest_numbers_are_zeroed_and_tiny_are_kept(dtype):
  largest, tiny = dtype.max, np.asarray(dtype.as_numpy_dtype(1e-6))
  (zeros,) = _zeroed([np.array([largest, -largest], dtype.as_numpy_dtype)], 1.0)
  assert zeros == [0.0, 0.0]
  (kept,) = _zeroed([np.array([tiny, 0], dtype.as_numpy_dtype)], 1.0)
  assert kept[0] == tiny


@pytest.mark.few(1)
@pytest.mark.parametrize('number', [math.nan, -math.inf])
def test_non_finite_values_are_left_to_the_mechanism(number):
  (kept,) = _zeroed([np.float32([number, 1e9])], 1.0)
  np.testing.assert_array_equal(kept, np.float32([number, 1e9]))
  mean = aggregators.gaussian(clip_norm=1.0, noise_multiplier=0.0, clients_per_round=2)
  process = aggregators.ZeroLargeFactory(mean, norm=10.0).create(
    tff.TensorType(np.float32, [2])
  )
  values = [np.float32([number, 1e9]), np.float32([0.5, 0.5])]
  output = process.next(process.initialize(), values)
  assert output.measurements['nonfinite_count'] == 1
  assert output.result.tolist() == [0.25, 0.25]


def test_zero_large_refuses_invalid_arguments_and_values():
  inner = tff.aggregators.SumFactory()
  for norm in (0, math.inf, math.nan):
    with pytest.raises(ValueError, match=f'norm must be positive and .* got {norm}'):
      aggregators.ZeroLargeFactory(inner, norm=norm)
  with pytest.raises(TypeError, match='norm must be a number'):
    aggregators.ZeroLargeFactory(inner, norm='1')
  with pytest.raises(TypeError, match='inner must be'):
    aggregators.ZeroLargeFactory(tff.aggregators.MeanFactory(), norm=1.0)
  with pytest.raises(TypeError, match='a structure of float tensors, got int32'):
    aggregators.ZeroLargeFactory(inner, norm=1.0).create(tff.TensorType(np.int32, [2]))
