"""Tests that optimisers of all kinds have the same interface."""

import importlib
import inspect
import pkgutil

import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import epoch_scaled

_ROUNDS = 60
# Options of each optimiser for 60 rounds, and the participation.
_OPTIMIZERS = {
  'banded.optimize': ({'num_bands': 12}, Participation(_ROUNDS, 12)),
  'banded_inverse.optimize': ({'num_bands': 4}, Participation(_ROUNDS, 12)),
  'blt.optimize': ({'num_buffers': 3}, Participation(_ROUNDS, 12)),
  'blt.optimize_windowed': ({'num_decays': 2}, Participation(_ROUNDS, 12)),
  'blt.optimize_windowed, tail': (
    {'num_decays': 1, 'tail': True},
    Participation(_ROUNDS, 6, 2),
  ),
  'dense.optimize': ({}, Participation(_ROUNDS, 12, fixed_epoch=True)),
  'toeplitz.optimize': ({'num_bands': 12}, Participation(_ROUNDS, 12)),
}
# Optimisers whose results `epoch_scaled.optimize` can scale by epoch.
_UNSCALED = (
  'banded.optimize',
  'banded_inverse.optimize',
  'blt.optimize_windowed',
  'toeplitz.optimize',
)
_SHARED = {
  'objective': 'mean',
  'participation': None,
  'workload': None,
  'cache': True,
}
each_optimizer = pytest.mark.parametrize('name', _OPTIMIZERS)


def _optimizer(name):
  module, function = name.partition(',')[0].split('.')
  return getattr(getattr(strategies, module), function)


def test_every_public_optimizer_is_tested():
  public = {
    f'{module.name}.{name}'
    for module in pkgutil.iter_modules(strategies.__path__)
    for name in vars(importlib.import_module(f'{strategies.__name__}.{module.name}'))
    if name.startswith('optimize')
  }
  tested = {name.partition(',')[0] for name in _OPTIMIZERS}
  assert public == {*tested, 'epoch_scaled.optimize'}


@pytest.mark.parametrize('name', [*_OPTIMIZERS, 'epoch_scaled.optimize'])
def test_optimizers_share_parameter_names_and_defaults(name):
  first, *others = inspect.signature(_optimizer(name)).parameters.values()
  expected = 'unscaled' if name == 'epoch_scaled.optimize' else 'num_rounds'
  assert (first.name, first.default) == (expected, inspect.Parameter.empty)
  assert {other.kind for other in others} == {inspect.Parameter.KEYWORD_ONLY}
  shared = {other.name: other.default for other in others[-len(_SHARED) :]}
  assert list(shared.items()) == list(_SHARED.items())
  assert not {'objective', 'participation'} & {
    other.name for other in others[: -len(_SHARED)]
  }


@pytest.mark.few(3)
@each_optimizer
def test_objective_is_mean_by_default_and_max_on_request(name):
  optimize, (options, participation) = _optimizer(name), _OPTIMIZERS[name]
  arguments = {**options, 'participation': participation, 'cache': False}
  for_mean = optimize(_ROUNDS, **arguments)
  for_max = optimize(_ROUNDS, objective='max', **arguments)
  pairs = [(for_mean, for_max)]
  if name in _UNSCALED:
    shared = {'participation': participation, 'cache': False}
    scaled = epoch_scaled.optimize(for_mean, **shared)
    pairs.append((scaled, epoch_scaled.optimize(for_max, objective='max', **shared)))
  for for_mean, for_max in pairs:
    assert for_mean.rmse(participation) < for_max.rmse(participation)
    assert for_max.max_error(participation) < for_mean.max_error(participation)


@each_optimizer
def test_invalid_objective_or_participation_is_refused(name):
  optimize, (options, participation) = _optimizer(name), _OPTIMIZERS[name]
  with pytest.raises(ValueError, match="objective must be 'mean' or 'max', got 'rmse'"):
    optimize(_ROUNDS, **options, objective='rmse', participation=participation)
  with pytest.raises(ValueError, match='participation.num_rounds is 60, but num_round'):
    optimize(_ROUNDS + 1, **options, participation=participation)
