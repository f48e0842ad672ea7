"""Mechanisms whose clients add noise: events, refusals and JSON."""

import dataclasses
import json
import math

import dp_accounting
import pytest

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import distributed_noise
from tff_dp_aggregators.accounting import local
from tff_dp_aggregators.accounting import mechanism as mechanism_lib

_LIMITS = strategies.Participation(9, min_separation=3)
_ON_TOP = {'server_noise_multiplier': 30.0}
_INTEGERS = {'min_clients': 40, 'dimension': 100, 'bits': 18}


def _make(name='gaussian', participation=_LIMITS, noise_multiplier=2.0, **options):
  return mechanism_lib.Mechanism(name, participation, noise_multiplier, **options)


@pytest.mark.parametrize(
  ('options', 'one_round'),
  [
    (
      {'noise_site': 'clients', 'min_clients': 10},
      local.central_event(local.share(2.0, 10), min_clients=10),
    ),
    # What a client sends does not contain the server's noise.
    (
      {'noise_site': 'clients_and_server', 'server_noise_multiplier': 30.0},
      local.local_event(2.0, adjacency='zero_out'),
    ),
    (
      {'name': 'laplace', 'noise_site': 'local'},
      local.local_event(2.0, noise='laplace', adjacency='zero_out'),
    ),
    (
      {'name': 'skellam', **_INTEGERS},
      distributed_noise.design(
        'skellam', clip_norm=0.37, noise_multiplier=2.0, **_INTEGERS
      ).event(),
    ),
  ],
)
def test_event_composes_rounds_of_densest_pattern(options, one_round):
  mechanism = _make(**options)
  most = max(map(len, _LIMITS.patterns()))
  assert most == 3
  epsilon = accountants.epsilon(
    dp_accounting.SelfComposedDpEvent(one_round, most), 1e-6
  )
  assert mechanism.epsilon(1e-6) == pytest.approx(epsilon, rel=1e-12)
  rounds = dp_accounting.ComposedDpEvent(list(mechanism.round_events))
  assert accountants.epsilon(rounds, 1e-6) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize('name', ['gaussian', 'laplace'])
def test_local_approximate_noise_has_no_guarantee(name):
  made = _make(name, noise_site='local_approximate')
  assert not made.is_private
  assert made.epsilon(1e-6) == float('inf')
  assert made.delta(1.0) == 1.0
  assert set(made.round_events) == {dp_accounting.NonPrivateDpEvent()}
  simulated, local_noise = (
    mechanism_lib.Mechanism.for_target(name, _LIMITS, 3.0, 1e-6, noise_site=site)
    for site in ('local_approximate', 'local')
  )
  assert simulated.noise_multiplier == local_noise.noise_multiplier
  assert local_noise.is_private
  assert local_noise.epsilon(1e-6) <= 3.0


_BOTH = 'clients_and_server'


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'noise_site': 'locally'}, 'noise_site=locally does not go'),
    ({'noise_site': 'clients'}, 'needs min_clients'),
    ({'min_clients': 5}, 'min_clients=5'),
    ({'name': 'banded', 'noise_site': 'local'}, 'the mechanism gaussian'),
    (
      {'name': 'laplace', 'noise_site': 'clients', 'min_clients': 5},
      'with laplace noise',
    ),
    ({'name': 'skellam', 'noise_site': 'server', **_INTEGERS}, 'with skellam noise'),
    ({'noise_site': _BOTH}, 'server_noise_multiplier, the noise .* got None'),
    ({'noise_site': 'local', **_ON_TOP}, 'server_noise_multiplier.* no other; got 30'),
    ({'noise_site': _BOTH, 'server_noise_multiplier': math.nan}, 'got nan'),
    (
      {'noise_site': _BOTH, 'noise_multiplier': 0.0, **_ON_TOP},
      '^noise_multiplier must',
    ),
    ({'name': 'skellam', 'min_clients': 40, 'bits': 18}, 'needs dimension'),
    ({'name': 'skellam', **_INTEGERS, 'bits': 4}, 'bits=4'),
    ({'bits': 18}, 'bits=18'),
    ({'name': 'skellam', 'adjacency': 'replace_one', **_INTEGERS}, 'zero_out'),
    ({'noise_site': 'local', 'clipped_count_stddev': 5.0}, 'clipped_count_stddev=5'),
  ],
)
def test_unsupported_noise_site_options_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    _make(**options)


@pytest.mark.parametrize(
  'options',
  [
    {'noise_site': 'clients', 'min_clients': 5},
    {'noise_site': 'local'},
    {'noise_site': _BOTH, **_ON_TOP},
    {'name': 'laplace', 'noise_site': 'local'},
    {'name': 'skellam', **_INTEGERS},
  ],
)
def test_client_noise_with_poisson_sampling_is_refused(options):
  schema = sampling.PoissonSampling(9, sampling_probability=0.1)
  with pytest.raises(ValueError, match='independent .* without sampling'):
    _make(participation=schema, **options)


@pytest.mark.parametrize(
  'options',
  [
    {
      'noise_site': 'clients_and_server',
      'min_clients': 10,
      'server_noise_multiplier': 7.0,
    },
    {'name': 'laplace', 'noise_site': 'local_approximate'},
    {'name': 'discrete_gaussian', 'max_clients': 60, **_INTEGERS},
  ],
)
def test_noise_site_json_round_trip(options):
  made = _make(**options)
  saved = json.loads(json.dumps(made.to_json()))
  loaded = mechanism_lib.Mechanism.from_json(saved)
  assert loaded == made
  assert loaded.event == made.event
  assert loaded != _make()
  assert {name: saved[name] for name in options} == options


def test_server_noise_multiplier_is_independent_and_required():
  site = {'noise_site': 'clients_and_server'}
  made = _make(**site, server_noise_multiplier=7)
  assert made.server_noise_multiplier == 7.0
  assert made != _make(**site, server_noise_multiplier=8.0)
  assert dataclasses.replace(made, noise_multiplier=3.0).server_noise_multiplier == 7.0
  alone = dataclasses.replace(made, noise_site='local', server_noise_multiplier=None)
  assert alone == _make(noise_site='local') and alone.event == made.event
  saved = made.to_json()
  del saved['server_noise_multiplier']
  with pytest.raises(ValueError, match='server_noise_multiplier.*got None'):
    mechanism_lib.Mechanism.from_json(saved)
