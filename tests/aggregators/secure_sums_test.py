"""Secure sums of records, for every mechanism whose noise the server adds."""

import math

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies

_LIMITS = strategies.Participation(4, min_separation=2)
_NUMBERS = {'clip_norm': 0.7, 'noise_multiplier': 2.0, 'clients_per_round': 4}
_SEED = noise.Seed(1)
_TYPE = tff.to_type([(np.float32, [2, 2]), np.float64])


def _joint(number=None, **kwargs):
  parts = {
    'matrix': aggregators.gaussian(**_NUMBERS, seed=noise.Seed(2)),
    'number': number or aggregators.laplace(**_NUMBERS, seed=noise.Seed(3)),
  }
  return aggregators.joint(parts, ['matrix', 'number'], **kwargs)


def _quantile(**kwargs):
  counts = aggregators.laplace(**{**_NUMBERS, 'clip_norm': 0.5}, seed=noise.Seed(3))
  return _joint(aggregators.quantile(counts, initial_estimate=0.05), **kwargs)


_MECHANISMS = {
  'adaptive': lambda **kw: aggregators.adaptive(
    noise_multiplier=2.0, clients_per_round=40, seed=_SEED, **kw
  ),
  'banded': lambda **kw: aggregators.banded(_LIMITS, **_NUMBERS, seed=_SEED, **kw),
  'gaussian': lambda **kw: aggregators.gaussian(**_NUMBERS, seed=_SEED, **kw),
  'joint': _joint,
  'laplace': lambda **kw: aggregators.laplace(**_NUMBERS, seed=_SEED, **kw),
  'norm_clip': lambda **kw: aggregators.norm_clip(
    clip_norm=0.7, clients_per_round=4, order=1, **kw
  ),
  'quantile': _quantile,
}


def _value(matrix, number):
  return [np.full([2, 2], matrix, np.float32), np.float64(number)]


_ROUNDS = (
  [_value(0.1, -0.2), _value(3e38, 1e300), _value(-0.7, 0.0), _value(1e-42, 5e-324)],
  [_value(math.nan, 0.1), _value(-900.0, math.inf), _value(0.3, 0.3)],
)


@pytest.fixture(scope='module', autouse=True)
def _test_backend():
  # TFF simulates secure sums in its test context only.
  tff.backends.test.set_sync_test_cpp_execution_context()
  yield
  tff.backends.native.set_sync_local_cpp_execution_context()


@pytest.mark.few(1)
@pytest.mark.parametrize('name', _MECHANISMS)
def test_secure_sum_gives_same_bits_and_event_as_plain_sum(name):
  outcomes = []
  for inner in (aggregators.secure_sum(), None):
    process = _MECHANISMS[name](record_aggregation_factory=inner).create(_TYPE)
    if inner is not None:
      tff.test.assert_not_contains_unsecure_aggregation(process.next)
    state, released = process.initialize(), []
    for values in _ROUNDS:
      output = process.next(state, values)
      state = output.state
      released += [np.asarray(tensor).tobytes() for tensor in output.result]
      released.append(int(output.measurements['nonfinite_count']))
    outcomes.append((released, aggregators.extract_dp_event(state)))
  assert outcomes[0] == outcomes[1]
  assert outcomes[0][0][2] == 0
  assert outcomes[0][0][5] == 2


def test_plain_sum_contains_unsecure_aggregation():
  process = _MECHANISMS['gaussian']().create(_TYPE)
  with pytest.raises(AssertionError):
    tff.test.assert_not_contains_unsecure_aggregation(process.next)


@pytest.mark.slow
def test_wrappers_with_secure_counts_contain_no_unsecure_aggregation():
  counts = tff.aggregators.SecureSumFactory(1, 0)
  factory = tff.aggregators.zeroing_factory(
    90.0,
    tff.aggregators.clipping_factory(
      5.0,
      aggregators.CoordinateBoundsFactory(
        aggregators.ZeroNonfiniteFactory(
          _MECHANISMS['gaussian'](record_aggregation_factory=aggregators.secure_sum()),
          counts,
        ),
        bounds=1.0,
      ),
      clipped_count_sum_factory=counts,
    ),
    zeroed_count_sum_factory=counts,
  )
  process = factory.create(_TYPE)
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  output = process.next(process.initialize(), _ROUNDS[0])
  assert output.measurements['zeroed_count'] == 1
  assert aggregators.extract_dp_event(output.state).last_round_only
