"""No call of a query means something else than it says."""

import inspect

import pytest
import tensorflow as tf

from tff_dp_aggregators import queries
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies

_ROUNDS = 8
_BANDED = strategies.BandedToeplitz.square_root(_ROUNDS, 2)
_EVERY_ROUND = strategies.Participation(_ROUNDS)
_SPEC = tf.TensorSpec([3])
_NUMBERS = {'clip_norm': 1.0, 'noise_multiplier': 2.0}
_ADAPTIVE = {'initial_clip_norm': 1.0, 'noise_multiplier': 2.0, 'clients_per_round': 50}

# For each: what comes first, and what has to be given by name.
_QUERIES = {
  'AdaptiveClippingQuery': ((_BANDED, _EVERY_ROUND), {**_ADAPTIVE}),
  'AdaptiveGaussianSumQuery': ((_EVERY_ROUND,), {**_ADAPTIVE}),
  'ApproximateLocalSumQuery': ((), {'noise': 'laplace', **_NUMBERS}),
  'BandedMatrixFactorizationQuery': ((_BANDED, _EVERY_ROUND), _NUMBERS),
  'GaussianSharesSumQuery': ((_EVERY_ROUND,), {**_NUMBERS, 'min_clients': 5}),
  'DistributedSumQuery': (
    (_EVERY_ROUND,),
    {
      **_NUMBERS,
      'noise': 'skellam',
      'min_clients': 5,
      'max_clients': 6,
      'bits': 16,
    },
  ),
  'GaussianSumQuery': ((_EVERY_ROUND,), _NUMBERS),
  'LaplaceSumQuery': ((), _NUMBERS),
  'LocalGaussianSumQuery': ((_EVERY_ROUND,), _NUMBERS),
  'LocalLaplaceSumQuery': ((_EVERY_ROUND,), _NUMBERS),
  'MatrixMechanismQuery': ((_BANDED, _EVERY_ROUND), _NUMBERS),
  'NormClipSumQuery': ((), {'order': 2.0, 'clip_norm': 1.0}),
  'TreeCumulativeSumQuery': ((_EVERY_ROUND,), _NUMBERS),
  'TreeResidualSumQuery': ((_EVERY_ROUND,), _NUMBERS),
}
# Without specs of a record, or with a query in front of the number.
_OTHERS = {
  'JointSumQuery': (
    (
      {
        'a': queries.NormClipSumQuery(order=2.0, clip_norm=1.0, record_specs=(_SPEC,)),
      },
    ),
    {'part_of': ['a'], 'record_specs': [_SPEC]},
  ),
  'NestedSumQuery': (
    ([queries.NormClipSumQuery(order=2.0, clip_norm=1.0, record_specs=_SPEC)],),
    {},
  ),
  'NoPrivacyAverageQuery': ((), {}),
  'NoPrivacySumQuery': ((), {}),
  'QuantileQuery': (
    (
      queries.GaussianSumQuery(
        clip_norm=0.5, noise_multiplier=2.0, record_specs=tf.TensorSpec([])
      ),
    ),
    {'initial_estimate': 1.0, 'clients_per_round': 50},
  ),
  'RangeSumsQuery': (
    (
      queries.GaussianSumQuery(
        clip_norm=1.0, noise_multiplier=2.0, record_specs=tf.TensorSpec([7])
      ),
    ),
    {'record_specs': tf.TensorSpec([4])},
  ),
  'NormalizedQuery': ((queries.NoPrivacySumQuery(),), {'denominator': 2.0}),
}
_ALL = {**_QUERIES, **_OTHERS}
# Interfaces, without arguments, and states, which are made by queries.
_NOT_MADE = {
  'ApproximateSample',
  'ClientNoiseState',
  'ClientNoiseSumQuery',
  'DPQuery',
  'DistributedState',
  'GlobalState',
  'LaplaceState',
  'QuantileParams',
  'QuantileState',
  'Shares',
  'SumAggregationDPQuery',
  'tree_levels',  # A function; range_sums_test.
}
each = pytest.mark.parametrize('name', _ALL)


def _build(name, *args, **kwargs):
  first, numbers = _ALL[name]
  specs = {'record_specs': _SPEC} if name in _QUERIES else {}
  return getattr(queries, name)(*(args or first), **{**numbers, **specs, **kwargs})


def test_these_are_all_queries():
  assert set(queries.__all__) == {*_ALL, *_NOT_MADE}


@each
def test_the_query_is_made_when_numbers_are_named(name):
  assert isinstance(_build(name), queries.SumAggregationDPQuery)


@pytest.mark.parametrize('name', [name for name in _ALL if _ALL[name][1]])
def test_numbers_by_position_are_refused(name):
  first, numbers = _ALL[name]
  specs = {'record_specs': _SPEC} if name in _QUERIES else {}
  query = getattr(queries, name)
  for args in ((*first, *numbers.values()), numbers.values()):
    with pytest.raises(TypeError, match='positional|keyword-only|strategy must be'):
      query(*args, **specs)
    # Not even those that are one too many.
    with pytest.raises(TypeError, match='positional'):
      query(*args, *numbers.values(), **numbers, **specs)


@pytest.mark.parametrize(
  'name',
  [
    'AdaptiveClippingQuery',
    'BandedMatrixFactorizationQuery',
    'MatrixMechanismQuery',
    'TreeCumulativeSumQuery',
    'TreeResidualSumQuery',
  ],
)
@pytest.mark.parametrize(
  'participation', [None, 0, _ROUNDS, sampling.PoissonSampling(_ROUNDS, 0.1)]
)
def test_a_participation_has_to_be_given(name, participation):
  first = _ALL[name][0]
  with pytest.raises(TypeError, match='participation must be a strategies.Particip'):
    _build(name, *first[:-1], participation)
  signature = inspect.signature(getattr(queries, name))
  assert signature.parameters['participation'].default is inspect.Parameter.empty


@pytest.mark.parametrize('option', ['storage', 'workload', 'sed'])
@pytest.mark.parametrize('name', ['GaussianSumQuery', 'AdaptiveGaussianSumQuery'])
def test_independent_noise_has_named_arguments_and_refuses_others(name, option):
  parameters = inspect.signature(getattr(queries, name)).parameters
  assert {'noise_multiplier', 'record_specs'} <= set(parameters)
  with pytest.raises(TypeError, match=f"'{option}' is not an argument"):
    _build(name, **{option: None})


@pytest.mark.parametrize('name', ['GaussianSumQuery', 'AdaptiveGaussianSumQuery'])
def test_no_participation_is_every_round(name):
  query = _build(name, None)
  state = query.initial_global_state()
  sample = query.initial_sample_state()
  for _ in range(_ROUNDS):
    _, state, event = query.get_noised_result(sample, state)
    assert float(event.noise_multiplier) == 2.0
  spent = float(query.derive_metrics(state)['effective_noise_multiplier'])
  assert spent == pytest.approx(_build(name).effective_noise_multiplier)
  for number in (0, _ROUNDS):
    with pytest.raises(TypeError, match='participation must be a strategies.Particip'):
      _build(name, number)
