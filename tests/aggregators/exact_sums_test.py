"""A client changes the exact sum by at most the clip norm."""

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.queries import grid

pytestmark = pytest.mark.optimized_graphs

_PARTICIPATION = strategies.Participation(8, min_separation=2, max_participations=2)
_BUILDERS = {
  'gaussian': lambda **kw: aggregators.gaussian(_PARTICIPATION, clip_norm=1.0, **kw),
  'blt': lambda **kw: aggregators.from_strategy(
    strategies.BLT(8, (0.3, 0.1), (0.9, 0.5)), _PARTICIPATION, clip_norm=1.0, **kw
  ),
  'adaptive': lambda **kw: aggregators.adaptive(
    participation=_PARTICIPATION, initial_clip_norm=1.0, **kw
  ),
}
_SCALAR = tff.TensorType(np.float32)
_runtime = running.local_runtime


# Bits before the binary point of an attacked sum. The attack (rounding of float sums:
# Casacuberta et al., CCS 2022) changes a sum by over half a clip norm too much with 12
# bits, and by more than round-off with 6.
_BITS = [6, pytest.param(12, marks=pytest.mark.slow)]


def _attackers(bits):
  """Returns ones, small numbers that only sums above 2^bits lose, and float spacing.

  A small number is -0.49 of the spacing above 2^bits, which is rounded to nothing.
  Below, where the spacing is half of that, it is rounded to -0.5 of it.
  """
  ones = [np.float32(1)] * (2**bits + 1)
  spacing = 2.0 ** (bits - 23)
  small = [np.float32(-0.49 * spacing)] * {6: 38, 12: 2402}[bits]
  return ones, small, spacing


@pytest.mark.parametrize('bits', _BITS)
def test_client_changes_float_sum_by_more_than_clip_norm(bits):
  ones, small, spacing = _attackers(bits)
  process = tff.aggregators.SumFactory().create(_SCALAR)
  state = process.initialize()
  with_client = process.next(state, ones + small).result
  without_client = process.next(state, [np.float32(0), *ones[1:], *small]).result
  change = abs(float(with_client) - float(without_client))
  assert change > 1 + 0.49 * len(small) * spacing
  assert bits < 12 or change > 1.58


@pytest.mark.parametrize('bits', _BITS)
@pytest.mark.parametrize(
  'kind', ['gaussian', pytest.param('adaptive', marks=pytest.mark.slow)]
)
def test_client_changes_integer_sum_by_its_clip_norm(kind, bits):
  ones, small, spacing = _attackers(bits)
  process = _BUILDERS[kind](noise_multiplier=0.0, clients_per_round=1.0).create(_SCALAR)
  state = process.initialize()
  with_client = process.next(state, ones + small).result
  without_client = process.next(state, [np.float32(0), *ones[1:], *small]).result
  # Each result is the exact sum, rounded once to float32.
  assert 1 - 2 * spacing <= float(with_client) - float(without_client) <= 1 + spacing


def _records(num_clients, seed):
  rng = np.random.default_rng(seed)
  lengths = 10.0 ** rng.uniform(-4, 3, num_clients)
  return [
    [
      (rng.normal(size=(3, 2)) * length).astype(np.float32),
      np.float64(rng.normal() * length),
    ]
    for length in lengths
  ]


_TYPE = tff.to_type([(np.float32, [3, 2]), (np.float64, [])])


def test_release_is_rounded_exact_sum_plus_noise():
  specs = [tf.TensorSpec([3, 2]), tf.TensorSpec([], tf.float64)]
  for noise_multiplier in (0.01, 1.0, 5000.0):
    seed = noise.Seed(3)
    numbers = {'clip_norm': 0.7, 'noise_multiplier': noise_multiplier}
    query = queries.GaussianSumQuery(
      _PARTICIPATION, record_specs=specs, seed=seed, **numbers
    )
    state = query.initial_global_state()
    params = query.derive_sample_params(state)
    steps = float(grid.steps_per_unit(state.clip_norm, noise_multiplier))
    assert math.log2(steps) % 1 == 0
    total = query.initial_sample_state()
    exact = [np.zeros(shape, object) for shape in ((3, 2), ())]
    for record in _records(20, seed=5):
      sample = query.preprocess_record(params, record)
      total = query.accumulate_preprocessed_record(total, sample)
      exact = [x + t.numpy().astype(object) for x, t in zip(exact, sample)]
    streaming = noise.build(
      strategies.Identity(8), noise.GaussianRows(specs, seed), storage='redraw'
    )
    z, _ = streaming.next(state.noise)
    result, _, _ = query.get_noised_result(total, state)
    stddev = float(state.clip_norm) * noise_multiplier * steps
    for released, x, unit, spec in zip(result, exact, z, specs):
      scaled = unit.numpy().astype(np.float64) * stddev
      in_steps = np.vectorize(lambda v: math.floor(v + 0.5), otypes=[object])(scaled)
      expected = np.asarray(x + in_steps, object).astype(np.int64)
      as_float = expected.astype(spec.dtype.as_numpy_dtype) / spec.dtype.as_numpy_dtype(
        steps
      )
      np.testing.assert_array_equal(released, as_float)


@pytest.mark.few(1)
@pytest.mark.parametrize('kind', ['blt', 'adaptive'])
def test_order_of_clients_does_not_change_the_result(kind):
  process = _BUILDERS[kind](
    noise_multiplier=1.0, clients_per_round=20.0, seed=noise.Seed(1)
  ).create(_TYPE)
  rng = np.random.default_rng(2)
  results = []
  for _ in range(2):
    state = process.initialize()
    bits = []
    for this_round in range(2):
      records = _records(20, seed=this_round)
      output = process.next(state, [records[i] for i in rng.permutation(20)])
      state = output.state
      bits.append([np.asarray(t).tobytes() for t in output.result])
    results.append(bits)
  assert results[0] == results[1]


class _AlteredSum(tff.aggregators.UnweightedAggregationFactory):
  """Applies a function to the sum."""

  def __init__(self, alter):
    self._alter = alter

  def create(self, value_type):
    inner = tff.aggregators.SumFactory().create(value_type)
    alter = tff.tensorflow.computation(self._alter, value_type)

    @tff.federated_computation(
      inner.state_type, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, value):
      output = inner.next(state, value)
      return tff.templates.MeasuredProcessOutput(
        output.state, tff.federated_map(alter, output.result), output.measurements
      )

    return tff.templates.AggregationProcess(inner.initialize, next_fn)


def test_more_clients_than_can_be_summed_exactly_are_refused():
  process = aggregators.DPMeanFactory(
    lambda specs: queries.GaussianSumQuery(
      clip_norm=1.0, noise_multiplier=1.0, record_specs=specs
    ),
    clients_per_round=20.0,
    count_sum_factory=_AlteredSum(
      lambda counts: type(counts)(counts.clients + 10**7 - 3, counts.nonfinite)
    ),
  ).create(_SCALAR)
  state, value = process.initialize(), np.float32(1)
  process.next(state, [value] * 3)
  with pytest.raises(Exception, match='more clients in a round than can be summed'):
    process.next(state, [value] * 4)


def test_create_refuses_inner_aggregation_that_returns_floats():
  floats = _AlteredSum(
    lambda total: tf.nest.map_structure(lambda each: tf.cast(each, tf.float32), total)
  )
  factory = _BUILDERS['gaussian'](
    noise_multiplier=1.0,
    clients_per_round=20.0,
    record_aggregation_factory=aggregators.ExactSum(floats),
  )
  with pytest.raises(TypeError, match='exact sum of the integers'):
    factory.create(_TYPE)


@pytest.mark.parametrize('noise_multiplier', [2.0**-20, 8.0, 9.0, 2.0**30])
def test_grid_steps_suit_smallest_and_largest_noise(noise_multiplier):
  # A float64 below 8 is within 2^-50 of the next one: a step contains at least 2^15.
  for clip_norm in (0.3, 1.0, 1.99):
    steps = float(grid.steps_per_unit(tf.constant(clip_norm), noise_multiplier))
    assert np.float32(clip_norm) * noise_multiplier * steps <= 2.0**35
    # Rounding all records to steps loses less than the noise hides.
    assert 10**7 / steps < 1e-3 * max(1.0, noise_multiplier) * clip_norm
