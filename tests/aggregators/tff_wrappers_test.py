"""TFF factories around and inside ours keep sensitivity and event, or are refused."""

import math

import dp_accounting
import numpy as np
import pytest
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators.queries import grid

_CLIP_NORM, _CLIENTS = 0.5, 4
_TYPE = tff.to_type([(np.float32, [4]), (np.float32, [2, 2])])
_runtime = running.local_runtime


def _gaussian(noise_multiplier=0.0, **kwargs):
  return aggregators.gaussian(
    clip_norm=_CLIP_NORM,
    noise_multiplier=noise_multiplier,
    clients_per_round=_CLIENTS,
    seed=noise.Seed(5),
    **kwargs,
  )


def _measured(inner):
  return tff.aggregators.add_measurements(
    inner, server_measurement_fn=lambda total: {'total': total}
  )


# Each changes a client's value by itself.
_PER_CLIENT_WRAPPERS = {
  'add_debug_measurements': tff.learning.add_debug_measurements,
  'clipping_factory': lambda inner: tff.aggregators.clipping_factory(9.0, inner),
  'concat_factory': tff.aggregators.concat_factory,
  'coordinate_bounds': lambda inner: aggregators.CoordinateBoundsFactory(
    inner, bounds=1e3
  ),
  'zero_large': lambda inner: aggregators.ZeroLargeFactory(inner, norm=1e4),
  'zero_nonfinite': aggregators.ZeroNonfiniteFactory,
  'zeroing_factory': lambda inner: tff.aggregators.zeroing_factory(1e4, inner),
}
_ROTATIONS = {
  'discrete_fourier': tff.aggregators.DiscreteFourierTransformFactory,
  'hadamard': tff.aggregators.HadamardTransformFactory,
}
_LARGEST = float(np.finfo(np.float32).max)
# Within the norm for zeroing and beyond it; not finite; too small for the grid.
_HOSTILE = (0.0, -700.0, 1e5, _LARGEST, math.nan, 1e-42)


def _value(number):
  return [np.full([4], number, np.float32), np.full([2, 2], -number, np.float32)]


def _flat(value):
  return np.concatenate([np.ravel(tensor).astype(np.float64) for tensor in value])


def _changes_by_hostile_clients(process):
  """Norms of the change of the result by a client that sends each hostile value."""
  state = process.initialize()
  honest = [_value(0.01), _value(-0.03)]
  without = _flat(process.next(state, [*honest, _value(0.0)]).result)
  return [
    np.linalg.norm(
      _flat(process.next(state, [*honest, _value(number)]).result) - without
    )
    for number in _HOSTILE
  ]


@pytest.mark.few(1)
@pytest.mark.parametrize('name', _PER_CLIENT_WRAPPERS)
def test_wrapper_keeps_sensitivity_and_event_of_mechanism(name):
  process = _PER_CLIENT_WRAPPERS[name](_gaussian()).create(_TYPE)
  changes = _changes_by_hostile_clients(process)
  # Up to the rounding of float32 results of magnitude 0.02.
  assert max(changes) <= _CLIP_NORM / _CLIENTS + 1e-7
  assert max(changes) >= 0.99 * _CLIP_NORM / _CLIENTS
  assert changes[0] == changes[-1] == 0

  process = _PER_CLIENT_WRAPPERS[name](_gaussian(2.0)).create(_TYPE)
  state = process.initialize()
  for rounds in (1, 2):
    state = process.next(state, [_value(1.0)]).state
    spent = aggregators.extract_dp_event(state)
    assert spent.last_round_only == dp_accounting.GaussianDpEvent(2.0)
    spent_sigma = spent.all_rounds_so_far.noise_multiplier
    assert spent_sigma == pytest.approx(2.0 / math.sqrt(rounds))


@pytest.mark.few(1)
@pytest.mark.parametrize('name', _ROTATIONS)
def test_rotation_keeps_sensitivity_of_mechanism(name):
  process = _ROTATIONS[name](_gaussian()).create(_TYPE)
  changes = _changes_by_hostile_clients(process)
  # A change by exactly the clip norm is rotated back in float32.
  assert max(changes) <= _CLIP_NORM / _CLIENTS * (1 + 1e-5) + 1e-7
  assert max(changes) >= 0.99 * _CLIP_NORM / _CLIENTS


def test_event_of_rotated_mechanism_is_in_inner_state():
  size = 2**15
  process = _ROTATIONS['hadamard'](_gaussian(2.0)).create(
    tff.TensorType(np.float32, [size])
  )
  output = process.next(process.initialize(), [np.zeros([size], np.float32)])
  with pytest.raises(ValueError, match='this state remembers'):
    aggregators.extract_dp_event(output.state)
  spent = aggregators.extract_dp_event(output.state[0])
  assert spent.all_rounds_so_far == dp_accounting.GaussianDpEvent(2.0)
  # Mean of 2^15 squared normals: beyond 5 standard deviations with probability 6e-7.
  relative = (
    np.mean(np.square(output.result, dtype=np.float64))
    / (2.0 * _CLIP_NORM / _CLIENTS) ** 2
  )
  assert abs(relative - 1) < 5 * math.sqrt(2 / size)


def _adaptive_norm():
  return tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
    initial_estimate=1.0, target_quantile=0.8, learning_rate=0.2
  )


def test_extract_dp_event_refuses_adaptive_norm_around_mechanism():
  factory = tff.aggregators.clipping_factory(_adaptive_norm(), _gaussian(2.0))
  process = factory.create(_TYPE)
  state = process.next(process.initialize(), [_value(1.0)]).state
  with pytest.raises(ValueError, match='this state remembers'):
    aggregators.extract_dp_event(state)
  # The inner mechanism reports what it spent, which is not all that was spent.
  assert aggregators.extract_dp_event(state['inner_agg']).last_round_only


# Factories inside a mechanism.


class _Subclass(tff.aggregators.SumFactory):
  """Not known to be an exact sum, because it may override anything."""


_SUM = tff.aggregators.SumFactory
_UNTRUSTED_SUMS = {
  'clipping_factory': lambda: tff.aggregators.clipping_factory(1.0, _SUM()),
  'compression_aggregator': lambda: tff.learning.compression_aggregator(weighted=False),
  'concat_factory': lambda: tff.aggregators.concat_factory(_SUM()),
  'encoded': lambda: tff.aggregators.EncodedSumFactory(lambda spec: None),
  'hadamard': tff.aggregators.HadamardTransformFactory,
  'measured': lambda: _measured(_SUM()),
  'modular': lambda: tff.aggregators.SecureModularSumFactory(2**41),
  'private': lambda: tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    1.0, 10, 1.0
  ),
  'robust_aggregator': lambda: tff.learning.robust_aggregator(weighted=False),
  'secure_floats': lambda: tff.aggregators.SecureSumFactory(1.0),
  'secure_adaptive': lambda: tff.aggregators.SecureSumFactory(_adaptive_norm()),
  'secure_narrow': lambda: tff.aggregators.SecureSumFactory(grid.LARGEST_ENTRY - 1),
  'secure_positive': lambda: tff.aggregators.SecureSumFactory(grid.LARGEST_ENTRY, 0),
  'subclass': _Subclass,
  'unweighted_mean': tff.aggregators.UnweightedMeanFactory,
  'zeroing_factory': lambda: tff.aggregators.zeroing_factory(1.0, _SUM()),
}


@pytest.mark.parametrize('name', _UNTRUSTED_SUMS)
def test_record_aggregation_factory_that_may_alter_sums_is_refused(name):
  factory = _UNTRUSTED_SUMS[name]()
  with pytest.raises(ValueError, match='^record_aggregation_factory '):
    _gaussian(record_aggregation_factory=factory)


def test_exact_record_aggregation_factories_are_accepted():
  for factory in (
    tff.aggregators.SumFactory(),
    aggregators.secure_sum(),
    tff.aggregators.SecureSumFactory(2**45, -(2**40)),
    tff.aggregators.SecureSumFactory(np.int64(grid.LARGEST_ENTRY)),
  ):
    _gaussian(record_aggregation_factory=factory)


def test_sum_declared_exact_gives_the_same_bits():
  values = [_value(0.01), _value(-0.03), _value(900.0)]
  bits = []
  for inner in (None, aggregators.ExactSum(_UNTRUSTED_SUMS['measured']())):
    process = _gaussian(2.0, record_aggregation_factory=inner).create(_TYPE)
    state = process.initialize()
    for _ in range(2):
      output = process.next(state, values)
      state = output.state
      bits.append(_flat(output.result).tobytes())
    assert aggregators.extract_dp_event(state).last_round_only
  assert bits[:2] == bits[2:]
