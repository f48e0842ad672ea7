"""Optimisers of all kinds are called alike.

Claims:

* Every public `optimize` takes the number of rounds first and all else by name: what is
  special to its kind, then what all share, with the same names, order and defaults.
* What they share means the same: without a word the objective is the mean squared
  error, `objective='max'` is the largest error, and another objective is refused.
"""

import importlib
import inspect
import pkgutil

import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import banded_inverse
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import dense
from tff_dp_aggregators.strategies import tailed_blt
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import windowed_blt
from tff_dp_aggregators.strategies.epoch_scaled import banded as epoch_banded
from tff_dp_aggregators.strategies.epoch_scaled import banded_inverse as epoch_inverse
from tff_dp_aggregators.strategies.epoch_scaled import toeplitz as epoch_toeplitz
from tff_dp_aggregators.strategies.epoch_scaled import windowed_blt as epoch_windowed

_ROUNDS = 60
# How to call each for 60 rounds, and who takes part.
_OPTIMIZERS = {
  'banded': (banded.optimize, {'num_bands': 12}, Participation(_ROUNDS, 12)),
  'banded_inverse': (
    banded_inverse.optimize,
    {'num_bands': 4},
    Participation(_ROUNDS, 12),
  ),
  'blt': (blt.optimize, {'num_buffers': 3}, Participation(_ROUNDS, 12)),
  'dense': (dense.optimize, {}, Participation(_ROUNDS, 12, fixed_epoch=True)),
  'epoch_scaled.banded': (
    epoch_banded.optimize,
    {'num_bands': 12},
    Participation(_ROUNDS, 12),
  ),
  'epoch_scaled.banded_inverse': (
    epoch_inverse.optimize,
    {'num_bands': 4},
    Participation(_ROUNDS, 12),
  ),
  'epoch_scaled.toeplitz': (
    epoch_toeplitz.optimize,
    {'num_bands': 12},
    Participation(_ROUNDS, 12),
  ),
  'epoch_scaled.windowed_blt': (
    epoch_windowed.optimize,
    {'num_decays': 2},
    Participation(_ROUNDS, 12),
  ),
  'tailed_blt': (tailed_blt.optimize, {'num_decays': 1}, Participation(_ROUNDS, 6, 2)),
  'toeplitz': (toeplitz.optimize, {'num_bands': 12}, Participation(_ROUNDS, 12)),
  'windowed_blt': (
    windowed_blt.optimize,
    {'num_decays': 2},
    Participation(_ROUNDS, 12),
  ),
}
_SHARED = {
  'objective': 'mean',
  'participation': None,
  'workload': None,
  'cache': True,
}
each = pytest.mark.parametrize('name', _OPTIMIZERS)


def test_these_are_all_optimizers():
  prefix = strategies.__name__ + '.'
  rooms = [strategies, strategies.epoch_scaled]
  modules = [
    importlib.import_module(f'{room.__name__}.{module.name}')
    for room in rooms
    for module in pkgutil.iter_modules(room.__path__)
    if not module.ispkg
  ]
  public = {
    module.__name__[len(prefix) :]: [
      name for name in vars(module) if name.startswith('optimize')
    ]
    for module in modules
  }
  assert {name: found for name, found in public.items() if found} == {
    name: ['optimize'] for name in _OPTIMIZERS
  }


@each
def test_parameters_are_alike(name):
  first, *others = inspect.signature(_OPTIMIZERS[name][0]).parameters.values()
  assert (first.name, first.default) == ('num_rounds', inspect.Parameter.empty)
  assert {other.kind for other in others} == {inspect.Parameter.KEYWORD_ONLY}
  shared = {other.name: other.default for other in others[-len(_SHARED) :]}
  assert list(shared.items()) == list(_SHARED.items())
  assert not {'objective', 'participation'} & {
    other.name for other in others[: -len(_SHARED)]
  }


def test_annotations_of_what_is_shared_are_the_same():
  annotations = {
    name: [
      inspect.signature(optimize).parameters[each].annotation
      for each in ('num_rounds', *_SHARED)
    ]
    for name, (optimize, _, _) in _OPTIMIZERS.items()
  }
  assert all(found == annotations['banded'] for found in annotations.values())


@each
def test_options_by_position_are_refused(name):
  optimize, options, _ = _OPTIMIZERS[name]
  with pytest.raises(TypeError, match='positional'):
    optimize(_ROUNDS, *(options.values() or ['mean']))


@pytest.mark.few(4)
@each
def test_the_objective_is_the_mean_unless_the_largest_is_asked_for(name):
  optimize, options, participation = _OPTIMIZERS[name]
  arguments = {**options, 'participation': participation, 'cache': False}
  default = optimize(_ROUNDS, **arguments)
  assert default == optimize(_ROUNDS, objective='mean', **arguments)
  largest = optimize(_ROUNDS, objective='max', **arguments)
  assert default.rmse(participation) < largest.rmse(participation)
  assert largest.max_error(participation) < default.max_error(participation)


@each
def test_another_objective_is_refused(name):
  optimize, options, participation = _OPTIMIZERS[name]
  with pytest.raises(ValueError, match="objective must be 'mean' or 'max', got 'rmse'"):
    optimize(_ROUNDS, **options, objective='rmse', participation=participation)


@each
def test_a_participation_for_other_rounds_is_refused(name):
  optimize, options, participation = _OPTIMIZERS[name]
  with pytest.raises(ValueError, match='participation.num_rounds is 60, but num_round'):
    optimize(_ROUNDS + 1, **options, participation=participation)
