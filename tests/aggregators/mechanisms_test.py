"""A mechanism whose noise clients make becomes the factory that keeps its promise."""

import math

import numpy as np
import pytest
import tensorflow_federated as tff
from scipy import stats

from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import strategies

_LIMITS = strategies.Participation(4, min_separation=2)
_CLIENTS, _SIZE = 6, 3000
_INTEGERS = {'min_clients': _CLIENTS, 'dimension': _SIZE, 'bits': 20}
# Options, and the standard deviation of the noise of a sum of all clients.
_MECHANISMS = {
  'shares': (
    {'name': 'gaussian', 'noise_site': 'clients', 'min_clients': 4},
    3.0 * math.sqrt(_CLIENTS / 4),
  ),
  'local': ({'name': 'gaussian', 'noise_site': 'local'}, 3.0 * math.sqrt(_CLIENTS)),
  'both sides': (
    {
      'name': 'gaussian',
      'noise_site': 'clients_and_server',
      'server_noise_multiplier': 8.0,
    },
    math.hypot(3.0 * math.sqrt(_CLIENTS), 8.0),
  ),
  'local laplace': (
    {'name': 'laplace', 'noise_site': 'local'},
    3.0 * math.sqrt(2 * _CLIENTS),
  ),
  'approximate': (
    {'name': 'laplace', 'noise_site': 'local_approximate'},
    3.0 * math.sqrt(2 * _CLIENTS),
  ),
  'skellam': ({'name': 'skellam', **_INTEGERS}, 3.0),
  'discrete gaussian': ({'name': 'discrete_gaussian', **_INTEGERS}, 3.0),
}
each_mechanism = pytest.mark.parametrize('which', _MECHANISMS)


def _made(which, clients_per_round=_CLIENTS, **given):
  options, _ = _MECHANISMS[which]
  mechanism = accounting.Mechanism(
    participation=_LIMITS, noise_multiplier=3.0, **options
  )
  factory = aggregators.from_mechanism(
    mechanism, clip_norm=0.5, clients_per_round=clients_per_round, **given
  )
  return mechanism, factory


@pytest.mark.few(3)
@each_mechanism
def test_states_say_what_the_mechanism_says_and_noise_is_as_loud(which):
  mechanism, factory = _made(which)
  process = factory.create(tff.TensorType(np.float32, [_SIZE]))
  state, zeros = process.initialize(), [np.zeros(_SIZE, np.float32)] * _CLIENTS
  drawn = []
  for promised in mechanism.round_events[:2]:
    output = process.next(state, zeros)
    state = output.state
    drawn.append(np.asarray(output.result, np.float64))
    # The second round is nobody's second; what a state says is of the worst client.
    assert aggregators.extract_dp_event(state).last_round_only == promised
  # Clipped at 0.5, and divided by the number of clients.
  loud = np.concatenate(drawn) * _CLIENTS / (0.5 * _MECHANISMS[which][1])
  count, squares = len(loud), float(np.sum(loud**2))
  # Laplace noise of few clients has heavier tails than the chi-squared bound allows.
  widened = 3.0 if 'local laplace' in which else 1.0
  low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], count)
  assert count - widened * (count - low) < squares < count + widened * (high - count)


def test_noise_of_both_sides_is_that_of_each_client_and_once_that_of_the_server():
  clients = 2
  mechanism, factory = _made('both sides')
  process = factory.create(tff.TensorType(np.float32, [_SIZE]))
  state, zeros = process.initialize(), [np.zeros(_SIZE, np.float32)] * clients
  output = process.next(state, zeros)
  loud = np.asarray(output.result, np.float64) * _CLIENTS / 0.5
  loud /= math.sqrt(clients * 3.0**2 + 8.0**2)
  low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], _SIZE)
  assert low < float(np.sum(loud**2)) < high
  # Again from the same state, and with the noise of other clients, as of other keys.
  again = np.asarray(process.next(state, zeros).result, np.float64) * _CLIENTS / 0.5
  drawn = np.asarray(output.result, np.float64) * _CLIENTS / 0.5 - again
  drawn /= 3.0 * math.sqrt(2 * clients)  # The server's is the same, and cancels.
  assert low < float(np.sum(drawn**2)) < high
  assert mechanism.sum_noise_multiplier(clients) == pytest.approx(
    math.sqrt(clients * 9 + 64)
  )


def test_another_number_of_parameters_than_was_planned_is_refused():
  _, factory = _made('skellam')
  with pytest.raises(ValueError, match='dimension=3000, and values here have 8192'):
    factory.create(tff.TensorType(np.float32, [_SIZE + 2000]))
  factory.create(tff.TensorType(np.float32, [_SIZE + 1000]))  # The same when padded.


def test_more_clients_than_a_sum_holds_are_refused():
  with pytest.raises(ValueError, match='max_clients=6 may wrap .* max_clients=8'):
    _made('skellam', clients_per_round=7.5)


def test_a_seed_for_what_clients_draw_is_refused():
  with pytest.raises(ValueError, match='seed=3 does not go with skellam noise'):
    _made('skellam', seed=3)


def test_a_storage_is_refused_where_no_round_remembers_noise():
  with pytest.raises(ValueError, match="storage='state' has no use"):
    _made('shares', storage='state')
  with pytest.raises(TypeError, match='storage'):
    aggregators.adaptive(noise_multiplier=1.0, clients_per_round=10, storage='state')


def test_local_noise_with_a_goal_fails_below_it():
  mechanism = accounting.Mechanism(
    'gaussian', _LIMITS, 3.0, noise_site='local', min_clients=5
  )
  factory = aggregators.from_mechanism(mechanism, clip_norm=0.5, clients_per_round=6)
  assert factory.min_clients == 5
