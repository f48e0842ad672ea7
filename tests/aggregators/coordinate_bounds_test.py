"""`CoordinateBoundsFactory` clips each coordinate to its bound."""

import collections
import math

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import aggregators

_VECTOR = tff.TensorType(np.float32, [3])
_TYPE = tff.to_type(
  collections.OrderedDict(kernel=(np.float32, [2, 2]), bias=(np.float64, [2]))
)
_runtime = running.local_runtime


def _sum_within(bounds):
  return aggregators.CoordinateBoundsFactory(
    tff.aggregators.SumFactory(), bounds=bounds
  )


def _result(factory, value_type, value):
  process = factory.create(value_type)
  return process.next(process.initialize(), [value]).result


def _value(kernel, bias):
  return collections.OrderedDict(
    kernel=np.reshape(np.float32(kernel), [2, 2]), bias=np.array(bias)
  )


@pytest.mark.parametrize(
  ('bounds', 'kernel', 'bias'),
  [
    (1, [[0.1, 1], [-1, -0.5]], [1, -1]),
    (
      collections.OrderedDict(kernel=np.float32([5, 1.5]), bias=np.array([6, 1e300])),
      [[0.1, 1.5], [-5, -0.5]],
      [6, -1e200],
    ),
    (collections.OrderedDict(kernel=1e300, bias=1e9), None, [7, -1e9]),
  ],
)
def test_each_coordinate_is_clipped_to_its_bound(bounds, kernel, bias):
  value = _value([[0.1, 3e38], [-7.0, -0.5]], [7.0, -1e200])
  result = _result(_sum_within(bounds), _TYPE, value)
  expected = value['kernel'] if kernel is None else np.float32(kernel)
  np.testing.assert_array_equal(result['kernel'], expected)
  np.testing.assert_array_equal(result['bias'], bias)


def test_non_finite_values_are_left_to_the_mechanism():
  mean = aggregators.gaussian(clip_norm=9.0, noise_multiplier=0.0, clients_per_round=1)
  process = aggregators.CoordinateBoundsFactory(mean, bounds=1.0).create(_VECTOR)
  values = [np.float32([5, number, 5]) for number in (0, math.nan, math.inf, -math.inf)]
  output = process.next(process.initialize(), values)
  np.testing.assert_array_equal(output.result, [1, 0, 1])
  assert output.measurements['nonfinite_count'] == 3


@pytest.mark.parametrize('bounds', [0, math.inf, [1.0, [2.0, 0.0]]])
def test_bounds_that_are_not_positive_and_finite_are_refused(bounds):
  with pytest.raises(ValueError, match='bounds must be positive and finite; got'):
    _sum_within(bounds)


@pytest.mark.parametrize('bounds', [True, {'kernel': 'wide'}])
def test_bounds_that_are_not_numbers_are_refused(bounds):
  with pytest.raises(TypeError, match='bounds must be real numbers'):
    _sum_within(bounds)


def test_bounds_of_another_structure_or_shape_are_refused():
  for bounds in ([1.0, 2.0], collections.OrderedDict(kernel=1.0, b=1.0), [1.0]):
    with pytest.raises(
      (TypeError, ValueError), match='bounds must be a number or a st'
    ):
      _sum_within(bounds).create(_TYPE)
  for kernel in (np.ones(3), np.ones([2, 1]), np.ones([1, 2, 2])):
    bounds = collections.OrderedDict(kernel=kernel, bias=1.0)
    with pytest.raises(ValueError, match='bounds has an array of shape'):
      _sum_within(bounds).create(_TYPE)
