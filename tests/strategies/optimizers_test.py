"""Optimisers of all kinds are called alike."""

import importlib
import inspect
import pkgutil

import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import epoch_scaled

_ROUNDS = 60
# How to call each for 60 rounds, and who takes part.
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
# Those whose results may have scales for each epoch.
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
each = pytest.mark.parametrize('name', _OPTIMIZERS)


def _named(name):
  module, function = name.partition(',')[0].split('.')
  return getattr(getattr(strategies, module), function)


def test_these_are_all_optimizers():
  public = {
    f'{module.name}.{name}'
    for module in pkgutil.iter_modules(strategies.__path__)
    for name in vars(importlib.import_module(f'{strategies.__name__}.{module.name}'))
    if name.startswith('optimize')
  }
  here = {name.partition(',')[0] for name in _OPTIMIZERS}
  assert public == {*here, 'epoch_scaled.optimize'}


@pytest.mark.parametrize('name', [*_OPTIMIZERS, 'epoch_scaled.optimize'])
def test_parameters_are_alike(name):
  first, *others = inspect.signature(_named(name)).parameters.values()
  expected = 'unscaled' if name == 'epoch_scaled.optimize' else 'num_rounds'
  assert (first.name, first.default) == (expected, inspect.Parameter.empty)
  assert {other.kind for other in others} == {inspect.Parameter.KEYWORD_ONLY}
  shared = {other.name: other.default for other in others[-len(_SHARED) :]}
  assert list(shared.items()) == list(_SHARED.items())
  assert not {'objective', 'participation'} & {
    other.name for other in others[: -len(_SHARED)]
  }


@pytest.mark.few(3)
@each
def test_the_objective_is_the_mean_unless_the_largest_is_asked_for(name):
  optimize, (options, participation) = _named(name), _OPTIMIZERS[name]
  arguments = {**options, 'participation': participation, 'cache': False}
  default = optimize(_ROUNDS, **arguments)
  largest = optimize(_ROUNDS, objective='max', **arguments)
  pairs = [(default, largest)]
  if name in _UNSCALED:
    shared = {'participation': participation, 'cache': False}
    scaled = epoch_scaled.optimize(default, **shared)
    pairs.append((scaled, epoch_scaled.optimize(largest, objective='max', **shared)))
  for mean, largest in pairs:
    assert mean.rmse(participation) < largest.rmse(participation)
    assert largest.max_error(participation) < mean.max_error(participation)


@each
def test_another_objective_and_a_participation_for_other_rounds_are_refused(name):
  optimize, (options, participation) = _named(name), _OPTIMIZERS[name]
  with pytest.raises(ValueError, match="objective must be 'mean' or 'max', got 'rmse'"):
    optimize(_ROUNDS, **options, objective='rmse', participation=participation)
  with pytest.raises(ValueError, match='participation.num_rounds is 60, but num_round'):
    optimize(_ROUNDS + 1, **options, participation=participation)
