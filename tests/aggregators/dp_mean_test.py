"""Factories make TFF processes that compute private means with a fixed denominator."""

import collections
import functools
import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.strategies import registry

_ROUNDS = 4
_VECTOR = tff.TensorType(np.float32, [3])

_LIMITS = strategies.Participation(_ROUNDS, min_separation=2)
_BUILDERS = {
  'gaussian': aggregators.gaussian,
  'tree': functools.partial(aggregators.tree, _LIMITS),
  'banded': functools.partial(aggregators.banded, _LIMITS),
  'blt_in_files': functools.partial(
    aggregators.from_strategy,
    strategies.BLT(_ROUNDS, (0.3, 0.1), (0.9, 0.5)),
    _LIMITS,
    storage='files',
  ),
}


def _numbers(measurements):
  """All numbers of a nested structure of measurements, flattened, as float64."""
  leaves = [np.ravel(leaf) for leaf in tf.nest.flatten(measurements)]
  numbers = [leaf.astype(float) for leaf in leaves if leaf.dtype.kind in 'biuf']
  return np.concatenate([np.zeros(0), *numbers])


@pytest.mark.parametrize('name', ['gaussian', 'blt_in_files'])
def test_mean_zeroes_and_counts_clients_that_are_not_finite(name):
  factory = _BUILDERS[name](clip_norm=1.0, noise_multiplier=0.0, clients_per_round=6)
  assert isinstance(factory, tff.aggregators.UnweightedAggregationFactory)
  process = factory.create(_VECTOR)
  assert isinstance(process, tff.templates.AggregationProcess)
  # Two vectors within the norm and one that is clipped to (0, 0, 1).
  values = [np.float32(v) for v in ([0.5, 0.5, 0], [0.1, -0.2, 0.3], [0, 0, 7])]
  non_finite = [np.float32([0, value, 0]) for value in (np.nan, np.inf)]
  for output in running.rounds(process, [*values, *non_finite], 2):
    # Only five of six clients reported, but the sum is divided by six.
    np.testing.assert_allclose(output.result, [0.1, 0.05, 1.3 / 6], rtol=1e-6)
    assert output.measurements['nonfinite_count'] == 2


@pytest.mark.parametrize(
  'value_type, value',
  [
    (tff.TensorType(np.float32), np.float32(0.25)),
    (
      tff.to_type(
        collections.OrderedDict(
          z=[np.float32, (np.float32, [0])],
          a=collections.OrderedDict(x=(np.float64, [2, 1])),
        )
      ),
      collections.OrderedDict(
        z=[np.float32(0.1), np.zeros([0], np.float32)],
        a=collections.OrderedDict(x=np.array([[0.2], [0.3]])),
      ),
    ),
  ],
  ids=['scalar', 'nested_with_empty'],
)
def test_mean_supports_every_structure_of_floats(value_type, value):
  process = _BUILDERS['banded'](
    clip_norm=10.0, noise_multiplier=0.0, clients_per_round=2
  ).create(value_type)
  assert process.next.type_signature.result.result.member.is_equivalent_to(value_type)
  for output in running.rounds(process, [value, value], 2):
    np.testing.assert_allclose(_numbers(output.result), _numbers(value), rtol=1e-6)


@pytest.mark.optimized_graphs
def test_noise_of_mean_has_covariance_of_strategy():
  # Empirical covariance of three rounds, d = 50,000: each of 9 entries is beyond seven
  # standard deviations with probability 3e-12.
  clip_norm, noise_multiplier, clients, dimension = 0.5, 3.0, 20, 50_000
  factory = _BUILDERS['banded'](
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients,
    seed=noise.Seed(5),
  )
  process = factory.create(tff.TensorType(np.float32, [dimension]))
  zeros = [np.zeros(dimension, np.float32)] * 2
  released = np.array(
    [output.result for output in running.rounds(process, zeros, 3)], np.float64
  )
  matrix = factory.strategy.noise_matrix()[:3]
  scale = clip_norm * noise_multiplier / clients
  expected = scale**2 * matrix @ matrix.T
  variances = np.diag(expected)
  bound = 7 * np.sqrt((np.outer(variances, variances) + expected**2) / dimension)
  assert np.all(np.abs(released @ released.T / dimension - expected) <= bound)
  # The standard deviation in the first round is that of independent noise.
  assert np.std(released[0]) == pytest.approx(0.075 * matrix[0, 0], rel=0.025)


def test_measurements_match_composed_events_and_hide_the_key():
  factory = _BUILDERS['blt_in_files'](
    clip_norm=0.5,
    noise_multiplier=3.0,
    clients_per_round=10,
    seed=noise.Seed(123456789),
  )
  process = factory.create(_VECTOR)
  outputs = running.rounds(process, [np.float32([0.1, 0.2, 0.3])], _ROUNDS)
  composed = []
  for number, output in enumerate(outputs, start=1):
    event = aggregators.extract_dp_event(output.state).last_round_only
    composed.append(event)
    measured = output.measurements
    assert set(measured) == {'dp_query_metrics', 'dp', 'nonfinite_count'}
    metrics = measured['dp_query_metrics']
    assert metrics['noise_storage'] == b'files'
    assert metrics['rounds'] == number
    assert metrics['effective_noise_multiplier'] == pytest.approx(
      1 / accountants.gdp_mu(dp_accounting.ComposedDpEvent(composed)), rel=1e-9
    )
    # The measurements contain neither a word of the key nor the seed.
    key = output.state.query.noise.key
    numbers = _numbers(measured)
    for secret in (*key, 123456789):
      assert not np.any(numbers == float(secret))
  effective = metrics['effective_noise_multiplier']
  assert effective == pytest.approx(factory.effective_noise_multiplier)
  assert effective == pytest.approx(3 / factory.strategy.sensitivity(_LIMITS))


def test_extract_dp_event_refuses_initial_and_foreign_states():
  process = aggregators.gaussian(
    clip_norm=1.0, noise_multiplier=1.0, clients_per_round=2
  ).create(_VECTOR)
  with pytest.raises(ValueError, match='from initialize: nothing was released'):
    aggregators.extract_dp_event(process.initialize())
  foreign = tff.aggregators.SumFactory().create(_VECTOR).initialize()
  for state in (foreign, None, 7, collections.OrderedDict(inner=1)):
    with pytest.raises(TypeError, match='one DPMeanFactory process'):
      aggregators.extract_dp_event(state)
  tff_process = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    noise_multiplier=1.0, clients_per_round=10, clip=1.0
  ).create(_VECTOR)
  with pytest.raises(ValueError, match='earlier version .* begin anew'):
    aggregators.extract_dp_event(tff_process.initialize())


def test_cumulative_tree_is_residual_tree_with_prefix_sums():
  numbers = {'clip_norm': 1.0, 'noise_multiplier': 2.0, 'clients_per_round': 4}
  residual, cumulative = (
    aggregators.tree(_LIMITS, cumulative=cumulative, **numbers)
    for cumulative in (False, True)
  )
  assert residual.workload is None
  assert cumulative.workload == strategies.Workload(_ROUNDS)
  assert cumulative.strategy == residual.strategy
  assert cumulative.query.run_event() == residual.query.run_event()


def test_same_seed_gives_factories_and_processes_different_noise():
  numbers = {'clip_norm': 1.0, 'noise_multiplier': 2.0, 'clients_per_round': 2}
  first, second = (aggregators.tree(_LIMITS, seed=424242, **numbers) for _ in range(2))
  streams = [each.query_for(tf.TensorSpec([3])) for each in (first, first, second)]
  assert [each.seed_identity for each in streams] == [
    'seed 424242, stream 0',
    'seed 424242, stream 0, part 1',
    'seed 424242, stream 1',
  ]
  keys = [each.initial_global_state().noise.key.numpy() for each in streams]
  assert len(np.unique(keys)) == 12


def test_state_too_large_for_tff_is_refused_before_allocation():
  # The state is nine times 10^9 numbers of 4 bytes, which no step may allocate.
  aggregator = aggregators.banded(
    strategies.Participation(100, min_separation=10),
    clip_norm=1.0,
    noise_multiplier=1.0,
    clients_per_round=10,
    storage='state',
  )
  with pytest.raises(ValueError, match='state of 36.00 GB with storage'):
    aggregator.create(tff.TensorType(np.float32, [1_000_000_000]))


@pytest.mark.parametrize('clients_per_round', [0, 1.1e7, math.nan, math.inf])
def test_clients_per_round_out_of_range_is_refused(clients_per_round):
  with pytest.raises(ValueError, match='clients_per_round must be'):
    aggregators.gaussian(
      clip_norm=1.0, noise_multiplier=1.0, clients_per_round=clients_per_round
    )


@pytest.mark.parametrize(
  'schema, options',
  [
    (sampling.PoissonSampling(8, 0.1), {}),
    (strategies.Participation(8), {'clipped_count_stddev': 3.0}),
  ],
)
def test_from_mechanism_requires_schedule_if_sampled_or_adaptive(schema, options):
  mechanism = accounting.Mechanism('gaussian', schema, 1.0, **options)
  with pytest.raises(ValueError, match='nothing here ensures that without a schedule'):
    aggregators.from_mechanism(mechanism, clip_norm=1.0, clients_per_round=4)


def test_min_clients_are_refused_if_cohorts_are_secret():
  mechanism = accounting.Mechanism('gaussian', sampling.PoissonSampling(8, 0.5), 1.0)
  factory = aggregators.from_mechanism(
    mechanism,
    clip_norm=0.5,
    clients_per_round=4,
    schedule=sampling.for_mechanism(mechanism, 8, 4, seed=1),
  )
  other = aggregators.gaussian(clip_norm=1.0, noise_multiplier=1.0, clients_per_round=4)
  for same_draws in (
    factory.with_not_private_signal_to_noise(),
    aggregators.joint({'a': factory, 'b': other}, ['a', 'b']),
    aggregators.quantile(factory, initial_estimate=1.0),
    aggregators.range_sums(factory),
  ):
    with pytest.raises(ValueError, match='min_clients=3 does not go with sampling'):
      same_draws.with_min_clients(3)
  with pytest.raises(ValueError, match='min_clients=3 does not go with sampling'):
    aggregators.joint({'a': factory, 'b': other.with_min_clients(3)}, ['a', 'b'])


@pytest.mark.few(4)
@pytest.mark.parametrize('name', registry.KINDS)
def test_from_mechanism_has_planned_strategy_and_noise(name):
  limits = strategies.Participation(12, 4)
  planned = accounting.Mechanism.for_target(name, limits, 5.0, 1e-6)
  factory = aggregators.from_mechanism(planned, clip_norm=1.0, clients_per_round=4)
  assert factory.strategy == planned.strategy
  assert factory.effective_noise_multiplier == pytest.approx(
    planned.effective_noise_multiplier, rel=1e-12
  )
