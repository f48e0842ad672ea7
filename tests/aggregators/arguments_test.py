"""No call of a builder means something else than it says."""

import inspect
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies

_ROUNDS = 8
_LIMITS = strategies.Participation(_ROUNDS, min_separation=2)
_STRATEGY = strategies.BandedToeplitz.square_root(_ROUNDS, 2)
_NUMBERS = {'clip_norm': 1.0, 'noise_multiplier': 2.0, 'clients_per_round': 50}
_SPLIT = {'noise_multiplier': 2.0, 'clients_per_round': 50}


def _gaussian_sum(specs):
  return queries.GaussianSumQuery(
    clip_norm=1.0, noise_multiplier=2.0, record_specs=specs
  )


# For each: what comes first, and what has to be given by name.
_BUILDERS = {
  'DPMeanFactory': ((_gaussian_sum,), {'clients_per_round': 50}),
  'adaptive': ((), _SPLIT),
  'approximate_local_gaussian': ((_LIMITS,), _NUMBERS),
  'approximate_local_laplace': ((_LIMITS,), _NUMBERS),
  'banded': ((_LIMITS,), _NUMBERS),
  'distributed_discrete_gaussian': ((_LIMITS,), {**_NUMBERS, 'bits': 18}),
  'distributed_skellam': ((_LIMITS,), {**_NUMBERS, 'bits': 18}),
  'from_mechanism': (
    (accounting.Mechanism('gaussian', _LIMITS, 2.0),),
    {'clip_norm': 1.0, 'clients_per_round': 50},
  ),
  'from_strategy': ((_STRATEGY, _LIMITS), _NUMBERS),
  'gaussian': ((_LIMITS,), _NUMBERS),
  'gaussian_shares': ((_LIMITS,), _NUMBERS),
  'laplace': ((_LIMITS,), _NUMBERS),
  'local_gaussian': ((_LIMITS,), _NUMBERS),
  'local_laplace': ((_LIMITS,), _NUMBERS),
  'norm_clip': ((), {'clip_norm': 1.0, 'clients_per_round': 50}),
  'quantile': (
    (
      aggregators.gaussian(
        _LIMITS, clip_norm=0.5, noise_multiplier=2.0, clients_per_round=50
      ),
    ),
    {'initial_estimate': 1.0},
  ),
  'range_sums': ((aggregators.gaussian(_LIMITS, **_NUMBERS),), {'arity': 3}),
  'tree': ((_LIMITS,), _NUMBERS),
  'two_sided_gaussian': (
    (_LIMITS,),
    {**_NUMBERS, 'server_noise_multiplier': 1.0},
  ),
}
# No number among their arguments.
_OTHERS = {
  'CoordinateBoundsFactory',
  'DPMeanState',
  'ExactSum',
  'SignalToNoise',
  'SpentEvents',
  'ZeroLargeFactory',
  'ZeroNonfiniteFactory',
  'extract_dp_event',
  'from_joint_mechanism',  # Each part has its numbers; joint_mechanisms_test.
  'joint',
  'secure_modular_sum',
  'secure_sum',
}
_FUNCTIONS = sorted(set(_BUILDERS) - {'DPMeanFactory'})
each = pytest.mark.parametrize('name', _BUILDERS)


def _parameters(name):
  return inspect.signature(getattr(aggregators, name)).parameters


def test_these_are_all_builders():
  assert set(aggregators.__all__) == {*_BUILDERS, *_OTHERS}


@each
def test_the_factory_is_made_when_numbers_are_named(name):
  first, numbers = _BUILDERS[name]
  factory = getattr(aggregators, name)(*first, **numbers)
  assert factory.noise_multiplier == (0.0 if name == 'norm_clip' else 2.0)
  assert factory.clients_per_round == 50


@pytest.mark.parametrize('name', [each for each in _BUILDERS if 'approxim' in each])
def test_the_noise_that_is_simulated_is_not_another_one(name):
  first, numbers = _BUILDERS[name]
  with pytest.raises(TypeError, match="multiple values for keyword argument 'noise'"):
    getattr(aggregators, name)(*first, **numbers, noise='laplace')


_SEQUENCE = tff.SequenceType(np.float32)


def _factory(name):
  first, numbers = _BUILDERS[name]
  return getattr(aggregators, name)(*first, **numbers)


_INNER = {
  'plain': tff.aggregators.UnweightedMeanFactory,
  'private': lambda: _factory('gaussian'),
}
_AROUND = {
  'CoordinateBoundsFactory': lambda inner: aggregators.CoordinateBoundsFactory(
    inner, bounds=1.0
  ),
  'ZeroLargeFactory': lambda inner: aggregators.ZeroLargeFactory(inner, norm=1.0),
  'ZeroNonfiniteFactory': aggregators.ZeroNonfiniteFactory,
}
_FACTORIES = {
  **{name: lambda name=name: _factory(name) for name in _BUILDERS},
  **{
    f'{around} of {inner}': lambda make=_AROUND[around], inner=_INNER[inner]: make(
      inner()
    )
    for around in _AROUND
    for inner in _INNER
  },
  'joint': lambda: aggregators.joint(
    {'a': _factory('gaussian')}, part_of=['a', 'a', 'a']
  ),
}


@pytest.mark.few(26)
@pytest.mark.parametrize('name', _FACTORIES)
@pytest.mark.parametrize(
  'value_type, where',
  [
    (_SEQUENCE, r'is float32\*, a SequenceType'),
    (tff.to_type({'a': np.float32, 'b': _SEQUENCE}), r'has float32\* at b, a Sequence'),
    (tff.to_type([(np.float32, [2]), (_SEQUENCE,)]), r'has float32\* at 1\.0, a Seq'),
    (tff.FederatedType(np.float32, tff.CLIENTS), 'a FederatedType'),
    (tff.FunctionType(None, np.float32), 'a FunctionType'),
    (tff.StructType([('a', np.float32)]), 'a StructType.*tff.to_type'),
  ],
)
def test_what_is_no_structure_of_tensors_is_a_type_error(name, value_type, where):
  with pytest.raises(TypeError, match=f'value_type .*{where}'):
    _FACTORIES[name]().create(value_type)


_TAKING_OPTIONS = [
  name
  for name in _FUNCTIONS
  if {'arguments', 'noise_options'} & set(_parameters(name))
  and not name.startswith('distributed')
]


@pytest.mark.parametrize('name', _TAKING_OPTIONS)
def test_an_option_of_the_noise_that_there_is_not_is_refused_by_name(name):
  first, numbers = _BUILDERS[name]
  remembers = name in ('banded', 'from_mechanism', 'from_strategy', 'tree')
  unsuitable = {} if remembers else {'storage': 'state'}
  for options in ({'sed': 1}, unsuitable):
    for option in options:
      with pytest.raises(
        TypeError, match=f"'{option}' is not an argument.*seed, generator"
      ):
        getattr(aggregators, name)(*first, **numbers, **options)
  options = {'seed': 1, 'generator': 'chacha20', 'storage': 'auto'}
  if not remembers:
    del options['storage']
  made = getattr(aggregators, name)(*first, **numbers, **options)
  assert (made.seed_identity[:6], made.generator) == ('seed 1', 'chacha20')


def test_no_builder_has_more_than_fifteen_arguments():
  for name in _FUNCTIONS:
    assert len(_parameters(name)) <= 15


@each
def test_numbers_by_position_are_refused(name):
  first, numbers = _BUILDERS[name]
  build = getattr(aggregators, name)
  for args in ((*first, *numbers.values()), numbers.values()):
    with pytest.raises(TypeError, match='positional|keyword-only|must be a factory'):
      build(*args)


@pytest.mark.parametrize(
  'name', ['gaussian', 'laplace', 'tree', 'banded', 'from_strategy']
)
@pytest.mark.parametrize('number', [0, 0.5, _ROUNDS])
def test_a_number_is_no_participation(name, number):
  first, numbers = _BUILDERS[name]
  with pytest.raises(TypeError, match='participation must be a strategies.Particip'):
    getattr(aggregators, name)(*first[:-1], number, **numbers)


@each
@pytest.mark.parametrize('value', [None, '0.5'])
def test_what_is_no_number_is_refused_by_name(name, value):
  first, numbers = _BUILDERS[name]
  for argument in numbers:
    with pytest.raises(
      TypeError, match=f'{argument} must be a (whole )?number, got {value!r}'
    ):
      getattr(aggregators, name)(*first, **{**numbers, argument: value})


@pytest.mark.parametrize('strategy', ['blt', np.eye(_ROUNDS), _LIMITS])
def test_what_is_no_strategy_is_refused_with_the_way_to_one(strategy):
  for build in (
    lambda: aggregators.from_strategy(strategy, _LIMITS, **_NUMBERS),
    lambda: aggregators.adaptive(strategy=strategy, participation=_LIMITS, **_SPLIT),
  ):
    with pytest.raises(TypeError, match='strategy must be a strategies.Strategy') as e:
      build()
    assert 'strategies.Dense(num_rounds, matrix)' in str(e.value)


@pytest.mark.parametrize('mechanism', ['blt', _STRATEGY, _LIMITS])
def test_what_is_no_mechanism_is_refused_with_the_way_to_one(mechanism):
  with pytest.raises(TypeError, match='mechanism must be an accounting.Mechanism') as e:
    aggregators.from_mechanism(mechanism, clip_norm=1.0, clients_per_round=50)
  assert 'accounting.Mechanism.for_target' in str(e.value)


@pytest.mark.parametrize(
  'build',
  [
    lambda: aggregators.tree(None, **_NUMBERS),
    lambda: aggregators.banded(None, **_NUMBERS),
    lambda: aggregators.from_strategy(_STRATEGY, None, **_NUMBERS),
    lambda: aggregators.adaptive(strategy=_STRATEGY, **_SPLIT),
    lambda: aggregators.adaptive(strategy=_STRATEGY, participation=None, **_SPLIT),
  ],
)
def test_no_participation_is_refused_where_it_would_be_a_single_one(build):
  with pytest.raises(TypeError, match=r'participation must be .*, got None') as error:
    build()
  assert 'strategies.Participation(num_rounds)' in str(error.value)
  assert 'strategies.Participation.single(num_rounds)' in str(error.value)


@pytest.mark.parametrize('name', ['gaussian', 'adaptive'])
def test_no_participation_is_every_round_of_independent_noise(name):
  numbers = _BUILDERS[name][1]
  factory = getattr(aggregators, name)(**numbers)
  with pytest.raises(ValueError, match='any number of rounds'):
    factory.effective_noise_multiplier  # noqa: B018
  planned = getattr(aggregators, name)(
    participation=strategies.Participation(_ROUNDS), **numbers
  )
  assert planned.effective_noise_multiplier == pytest.approx(2 / math.sqrt(_ROUNDS))


@pytest.mark.parametrize('name', ['gaussian', 'tree', 'banded', 'from_strategy'])
def test_limits_of_all_kinds_are_taken(name):
  first, numbers = _BUILDERS[name]
  for limits in (
    strategies.Participation(_ROUNDS, min_separation=2, max_participations=2),
    strategies.Participation(_ROUNDS, min_separation=2, fixed_epoch=True),
    strategies.Participation.single(_ROUNDS),
  ):
    factory = getattr(aggregators, name)(*first[:-1], limits, **numbers)
    assert factory.participation == limits
    assert factory.effective_noise_multiplier == pytest.approx(
      2 / factory.strategy.sensitivity(limits)
    )


def test_the_query_of_a_factory_is_asked_for_a_record_by_position():
  seen = []

  def build_query(specs):
    seen.append(specs)
    return _gaussian_sum(specs)

  aggregators.DPMeanFactory(build_query, clients_per_round=50)
  assert seen == [tf.TensorSpec([], tf.float32)]
