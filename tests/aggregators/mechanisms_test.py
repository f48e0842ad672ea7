"""`from_mechanism` for noise of clients: factories of planned noise and events."""

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
all_mechanisms = pytest.mark.parametrize('case', _MECHANISMS)


def _mechanism_and_factory(case, clients_per_round=_CLIENTS, **kwargs):
  options, _ = _MECHANISMS[case]
  mechanism = accounting.Mechanism(
    participation=_LIMITS, noise_multiplier=3.0, **options
  )
  factory = aggregators.from_mechanism(
    mechanism, clip_norm=0.5, clients_per_round=clients_per_round, **kwargs
  )
  return mechanism, factory


@pytest.mark.few(3)
@all_mechanisms
def test_from_mechanism_has_planned_round_events_and_noise(case):
  mechanism, factory = _mechanism_and_factory(case)
  process = factory.create(tff.TensorType(np.float32, [_SIZE]))
  state, zeros = process.initialize(), [np.zeros(_SIZE, np.float32)] * _CLIENTS
  results = []
  for planned in mechanism.round_events[:2]:
    output = process.next(state, zeros)
    state = output.state
    results.append(np.asarray(output.result, np.float64))
    # No client is in both rounds, and the state's event is that of the worst client.
    assert aggregators.extract_dp_event(state).last_round_only == planned
  # The clip norm is 0.5, and the mean is divided by the number of clients.
  standardized = np.concatenate(results) * _CLIENTS / (0.5 * _MECHANISMS[case][1])
  count, squares = len(standardized), float(np.sum(standardized**2))
  # Laplace noise of few clients has heavier tails than the chi-squared bound allows.
  widened = 3.0 if 'local laplace' in case else 1.0
  low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], count)
  assert count - widened * (count - low) < squares < count + widened * (high - count)


def test_two_sided_noise_is_noise_of_each_client_and_of_the_server():
  clients = 2
  mechanism, factory = _mechanism_and_factory('both sides')
  process = factory.create(tff.TensorType(np.float32, [_SIZE]))
  state, zeros = process.initialize(), [np.zeros(_SIZE, np.float32)] * clients
  output = process.next(state, zeros)
  standardized = np.asarray(output.result, np.float64) * _CLIENTS / 0.5
  standardized /= math.sqrt(clients * 3.0**2 + 8.0**2)
  low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], _SIZE)
  assert low < float(np.sum(standardized**2)) < high
  # Again from the same state: clients have new keys, and so other noise.
  again = np.asarray(process.next(state, zeros).result, np.float64) * _CLIENTS / 0.5
  difference = np.asarray(output.result, np.float64) * _CLIENTS / 0.5 - again
  difference /= 3.0 * math.sqrt(2 * clients)  # The server's noise is equal and cancels.
  assert low < float(np.sum(difference**2)) < high
  assert mechanism.sum_noise_multiplier(clients) == pytest.approx(
    math.sqrt(clients * 9 + 64)
  )


def test_create_refuses_other_number_of_parameters_than_planned():
  _, factory = _mechanism_and_factory('skellam')
  with pytest.raises(ValueError, match='dimension=3000, and values here have 8192'):
    factory.create(tff.TensorType(np.float32, [_SIZE + 2000]))
  factory.create(tff.TensorType(np.float32, [_SIZE + 1000]))  # Equal when padded.


@pytest.mark.parametrize(
  'case, changes, message',
  [
    ('skellam', {'clients_per_round': 7.5}, 'max_clients=6 may wrap .* max_clients=8'),
    ('skellam', {'seed': 3}, 'seed=3 does not go with skellam noise'),
    ('shares', {'storage': 'state'}, "storage='state' has no use"),
  ],
)
def test_from_mechanism_refuses_unsuitable_options(case, changes, message):
  with pytest.raises(ValueError, match=message):
    _mechanism_and_factory(case, **changes)


def test_factory_has_min_clients_of_its_mechanism():
  mechanism = accounting.Mechanism(
    'gaussian', _LIMITS, 3.0, noise_site='local', min_clients=5
  )
  factory = aggregators.from_mechanism(mechanism, clip_norm=0.5, clients_per_round=6)
  assert factory.min_clients == 5
