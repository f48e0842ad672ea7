"""A state knows what it belongs to, and what it spent."""

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


def _after(factory, rounds, state=None):
  process = factory.create(_TYPE)
  state = process.initialize() if state is None else state
  states = []
  for _ in range(rounds):
    state = process.next(state, _VALUES).state
    states.append(state)
  return states


@functools.cache
def _after_one_round(build):
  (state,) = _after(build(), 1)
  return state


@pytest.mark.few(2)
@pytest.mark.parametrize(
  ('build', 'changed', 'named'),
  [
    (_gaussian, {'clip_norm': 2.0}, ('"clip_norm": 1.0', '"clip_norm": 2.0')),
    (_gaussian, {'noise_multiplier': 2.0}, ('"noise_multiplier": 0.5', ': 2.0')),
    (
      _gaussian,
      {'participation': _participation(min_separation=4)},
      ('"min_separation": 2', '"min_separation": 4'),
    ),
    (_gaussian, {'seed': noise.Seed(4)}, ('seed 3, stream 0', 'seed 4, stream 0')),
    (_gaussian, {'generator': 'chacha20'}, ('philox', 'chacha20')),
    (_banded, {'coefficients': (1.0, 0.4)}, ('sha256:', 'sha256:')),
    (_adaptive, {'clipped_count_stddev': 4.0}, ('_stddev": 0.79', '_stddev": 4.0')),
    (_adaptive, {'target_quantile': 0.9}, ('quantile": 0.5', 'quantile": 0.9')),
  ],
)
def test_a_state_of_another_mechanism_is_refused_and_both_named(build, changed, named):
  with pytest.raises(Exception, match='belongs to another mechanism') as error:
    _after(build(**changed), 1, _after_one_round(build))
  for text in named:
    assert text in str(error.value).replace('\\', '')


def test_a_state_of_a_model_with_another_layout_is_refused():
  other = tff.TensorType(np.float32, [8])
  # Nothing in the state is of the model's shape, but its rows of z are drawn again.
  factory = aggregators.tree(
    _participation(), **_numbers(storage='redraw', honaker=False)
  )
  process = factory.create(_TYPE)
  state = process.next(process.initialize(), _VALUES).state
  values = [np.zeros(other.shape, other.dtype)] * 2
  with pytest.raises(Exception, match='belongs to another mechanism') as error:
    # Not of the same factory, whose second process has another part of the seed.
    aggregators.tree(
      _participation(), **_numbers(storage='redraw', honaker=False)
    ).create(other).next(state, values)
  assert '3 float32' in str(error.value)


@pytest.mark.few(1)
@pytest.mark.parametrize('build', [_tree, _adaptive])
def test_a_state_goes_on_in_an_equal_process_and_says_what_all_rounds_spent(build):
  straight = _after(build(), 5)
  states = straight[:3]
  kept = pickle.loads(pickle.dumps(states[-1]))
  resumed = _after(build(), 2, kept)
  events = []
  for number, state in enumerate([*states, *resumed]):
    spent = aggregators.extract_dp_event(state)
    events.append(spent.last_round_only)
    composed = dp_accounting.ComposedDpEvent(events)
    assert accountants.gdp_mu(spent.all_rounds_so_far) == pytest.approx(
      accountants.gdp_mu(composed), rel=1e-12
    ), number
  for one, other in zip(
    tff.structure.flatten(tff.structure.from_container(straight[-1].query.noise)),
    tff.structure.flatten(tff.structure.from_container(resumed[-1].query.noise)),
  ):
    np.testing.assert_array_equal(one, other)


def test_states_that_do_not_say_what_they_spent_are_refused():
  old = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    noise_multiplier=1.0, clients_per_round=10, clip=1.0
  ).create(_TYPE)
  with pytest.raises(ValueError, match='earlier version .* begin anew'):
    aggregators.extract_dp_event(old.initialize())
  with pytest.raises(ValueError, match='nothing was released'):
    aggregators.extract_dp_event(_gaussian().create(_TYPE).initialize())
