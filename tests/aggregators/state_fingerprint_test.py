"""States belong to one mechanism, and record what was spent."""

import functools
import pickle

import dp_accounting
import numpy as np
import pytest
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants

_ROUNDS = 8
_TYPE = tff.TensorType(np.float32, [3])
_VALUES = [np.array([1, 2, 3], np.float32)] * 2
_runtime = running.local_runtime


def _participation(num_rounds=_ROUNDS, min_separation=2, max_participations=3):
  return strategies.Participation(num_rounds, min_separation, max_participations)


def _numbers(**kwargs):
  return {
    'clip_norm': 1.0,
    'noise_multiplier': 0.5,
    'clients_per_round': 10.0,
    'seed': noise.Seed(3),
    **kwargs,
  }


def _gaussian(participation=None, **kwargs):
  return aggregators.gaussian(participation or _participation(), **_numbers(**kwargs))


def _banded(coefficients=(1.0, 0.5), participation=None, **kwargs):
  return aggregators.from_strategy(
    strategies.BandedToeplitz(_ROUNDS, coefficients),
    participation or _participation(),
    **_numbers(**kwargs),
  )


def _adaptive(participation=None, **kwargs):
  numbers = _numbers(initial_clip_norm=1.0, **kwargs)
  del numbers['clip_norm']
  return aggregators.adaptive(
    participation=participation or _participation(), **numbers
  )


def _tree(participation=None, **kwargs):
  return aggregators.tree(participation or _participation(), **_numbers(**kwargs))


def _states_after(factory, rounds, state=None):
  process = factory.create(_TYPE)
  state = process.initialize() if state is None else state
  states = []
  for _ in range(rounds):
    state = process.next(state, _VALUES).state
    states.append(state)
  return states


@functools.cache
def _state_after_one_round(build):
  (state,) = _states_after(build(), 1)
  return state


@pytest.mark.few(2)
@pytest.mark.parametrize(
  ('build', 'changes', 'texts'),
  [
    (_gaussian, {'clip_norm': 2.0}, ('"clip_norm": 1.0', '"clip_norm": 2.0')),
    (_gaussian, {'noise_multiplier': 2.0}, ('"noise_multiplier": 0.5', ': 2.0')),
    (
      _gaussian,
      {'participation': _participation(min_separation=4)},
      ('"min_separation": 2', '"min_separation": 4'),
    ),
    (
      _tree,
      {'participation': strategies.Participation(_ROUNDS, 2, 3, fixed_epoch=True)},
      ('"clip_norm": 1.0', '"fixed_epoch": true'),
    ),
    (_gaussian, {'seed': noise.Seed(4)}, ('seed 3, stream 0', 'seed 4, stream 0')),
    (_gaussian, {'generator': 'chacha20'}, ('philox', 'chacha20')),
    (_banded, {'coefficients': (1.0, 0.4)}, ('sha256:', 'sha256:')),
    (_adaptive, {'clipped_count_stddev': 4.0}, ('_stddev": 0.79', '_stddev": 4.0')),
    (_adaptive, {'target_quantile': 0.9}, ('quantile": 0.5', 'quantile": 0.9')),
  ],
)
def test_state_of_another_mechanism_is_refused_and_both_named(build, changes, texts):
  with pytest.raises(Exception, match='belongs to another mechanism') as error:
    _states_after(build(**changes), 1, _state_after_one_round(build))
  for text in texts:
    assert text in str(error.value).replace('\\', '')


def test_state_of_model_with_another_shape_is_refused():
  # No tensor of the state has the model's shape, as its rows of z are drawn again.
  (state,) = _states_after(_tree(storage='redraw', honaker=False), 1)
  # A second process of the same factory would have another part of the seed.
  other_factory = _tree(storage='redraw', honaker=False)
  other = other_factory.create(tff.TensorType(np.float32, [8]))
  with pytest.raises(Exception, match='belongs to another mechanism') as error:
    other.next(state, [np.zeros(8, np.float32)] * 2)
  assert '3 float32' in str(error.value)


@pytest.mark.few(1)
@pytest.mark.parametrize('build', [_tree, _adaptive])
def test_pickled_state_resumes_and_its_events_compose(build):
  uninterrupted = _states_after(build(), 5)
  states = uninterrupted[:3]
  unpickled = pickle.loads(pickle.dumps(states[-1]))
  resumed = _states_after(build(), 2, unpickled)
  events = []
  for number, state in enumerate([*states, *resumed]):
    spent = aggregators.extract_dp_event(state)
    events.append(spent.last_round_only)
    composed = dp_accounting.ComposedDpEvent(events)
    assert accountants.gdp_mu(spent.all_rounds_so_far) == pytest.approx(
      accountants.gdp_mu(composed), rel=1e-12
    ), number
  for expected, actual in zip(
    tff.structure.flatten(tff.structure.from_container(uninterrupted[-1].query.noise)),
    tff.structure.flatten(tff.structure.from_container(resumed[-1].query.noise)),
  ):
    np.testing.assert_array_equal(expected, actual)
