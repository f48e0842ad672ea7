"""Builders refuse arguments that are unnamed, unknown or of the wrong type."""

import inspect
import math

import numpy as np
import pytest
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


# Positional arguments of each builder, and those that must be given by name.
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
# These have no number among their arguments.
_OTHERS = {
  'CoordinateBoundsFactory',
  'DPMeanState',
  'ExactSum',
  'SignalToNoise',
  'SpentEvents',
  'ZeroLargeFactory',
  'ZeroNonfiniteFactory',
  'extract_dp_event',
  'from_joint_mechanism',  # Its parts have numbers: joint_mechanisms_test.
  'joint',
  'secure_modular_sum',
  'secure_sum',
}
_FUNCTIONS = sorted(set(_BUILDERS) - {'DPMeanFactory'})
all_builders = pytest.mark.parametrize('name', _BUILDERS)


def _parameters(name):
  return inspect.signature(getattr(aggregators, name)).parameters


def test_all_public_builders_are_tested():
  assert set(aggregators.__all__) == {*_BUILDERS, *_OTHERS}


def _factory(name, **changes):
  positional, numbers = _BUILDERS[name]
  return getattr(aggregators, name)(*positional, **{**numbers, **changes})


@all_builders
def test_builder_accepts_numbers_by_name(name):
  factory = _factory(name)
  assert factory.noise_multiplier == (0.0 if name == 'norm_clip' else 2.0)
  assert factory.clients_per_round == 50


_SEQUENCE = tff.SequenceType(np.float32)


_FACTORIES = {
  'gaussian': lambda: _factory('gaussian'),
  'adaptive': lambda: _factory('adaptive'),
  'quantile': lambda: _factory('quantile'),
  'zeroing': lambda: aggregators.ZeroNonfiniteFactory(_factory('gaussian')),
  'bounds': lambda: aggregators.CoordinateBoundsFactory(
    _factory('gaussian'), bounds=1.0
  ),
  'joint': lambda: aggregators.joint(
    {'a': _factory('gaussian')}, part_of=['a', 'a', 'a']
  ),
}


@pytest.mark.parametrize('name', _FACTORIES)
@pytest.mark.parametrize(
  'value_type, message',
  [
    (tff.to_type({'a': np.float32, 'b': _SEQUENCE}), r'has float32\* at b, a Sequence'),
    (tff.FederatedType(np.float32, tff.CLIENTS), 'a FederatedType'),
    (tff.StructType([('a', np.float32)]), 'a StructType.*tff.to_type'),
  ],
)
def test_create_refuses_what_is_not_a_structure_of_tensors(name, value_type, message):
  with pytest.raises(TypeError, match=f'value_type .*{message}'):
    _FACTORIES[name]().create(value_type)


_TAKING_OPTIONS = [
  name
  for name in _FUNCTIONS
  if {'arguments', 'noise_options'} & set(_parameters(name))
  and not name.startswith('distributed')
]


@pytest.mark.parametrize('name', _TAKING_OPTIONS)
def test_builder_refuses_unknown_noise_options(name):
  options = {'seed': 1, 'generator': 'chacha20'}
  unknown = {'sed': 1}
  has_storage = name in ('banded', 'from_mechanism', 'from_strategy', 'tree')
  (options if has_storage else unknown)['storage'] = 'auto'
  for option, value in unknown.items():
    message = f"'{option}' is not an argument.*seed, generator"
    with pytest.raises(TypeError, match=message):
      _factory(name, **{option: value})
  factory = _factory(name, **options)
  assert (factory.seed_identity[:6], factory.generator) == ('seed 1', 'chacha20')


@all_builders
def test_builder_refuses_numbers_by_position(name):
  positional, numbers = _BUILDERS[name]
  build = getattr(aggregators, name)
  for args in ((*positional, *numbers.values()), numbers.values()):
    with pytest.raises(TypeError, match='positional|keyword-only|must be a factory'):
      build(*args)


@pytest.mark.parametrize(
  ('name', 'participation'),
  [
    *(('gaussian', number) for number in (0, 0.5, _ROUNDS)),
    *(
      (name, participation)
      for name in ('tree', 'banded', 'from_strategy')
      for participation in (None, 0)
    ),
  ],
)
def test_builder_refuses_invalid_participation(name, participation):
  positional, numbers = _BUILDERS[name]
  with pytest.raises(TypeError, match='participation must be a strategies.Particip'):
    getattr(aggregators, name)(*positional[:-1], participation, **numbers)


def test_adaptive_strategy_requires_participation():
  with pytest.raises(TypeError, match='participation must be'):
    aggregators.adaptive(strategy=_STRATEGY, **_SPLIT)


@all_builders
def test_builder_refuses_strings_as_numbers(name):
  for argument in _BUILDERS[name][1]:
    with pytest.raises(TypeError, match=f'{argument} must be a (whole )?number'):
      _factory(name, **{argument: '0.5'})


def test_missing_number_and_noise_option_that_clients_lack_are_named():
  with pytest.raises(TypeError, match='^clients_per_round must be a number, got None'):
    aggregators.local_gaussian(clip_norm=1.0, noise_multiplier=2.0)
  for name in ('seed', 'generator', 'sed'):
    with pytest.raises(TypeError, match=f"^'{name}' is not an arg.*leave out seed"):
      _factory('distributed_skellam', **{name: None})


@pytest.mark.parametrize(
  ('name', 'argument', 'value'),
  [
    ('two_sided_gaussian', 'server_noise_multiplier', -1.0),
    ('two_sided_gaussian', 'server_noise_multiplier', 2.0**31),
    ('gaussian_shares', 'clients_per_round', math.nan),
    ('gaussian_shares', 'clients_per_round', math.inf),
    ('distributed_skellam', 'clients_per_round', math.nan),
    ('distributed_skellam', 'clients_per_round', math.inf),
  ],
)
def test_error_about_number_names_its_argument(name, argument, value):
  with pytest.raises(ValueError, match=f'^{argument} must be .*got'):
    _factory(name, **{argument: value})


@pytest.mark.parametrize('strategy', ['blt', np.eye(_ROUNDS)])
def test_builder_refuses_invalid_strategy(strategy):
  for build in (
    lambda: aggregators.from_strategy(strategy, _LIMITS, **_NUMBERS),
    lambda: aggregators.adaptive(strategy=strategy, participation=_LIMITS, **_SPLIT),
  ):
    with pytest.raises(TypeError, match='strategy must be a strategies.Strategy'):
      build()
