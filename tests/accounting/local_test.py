"""What noise of clients is accounted as is never less than what it costs."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy import special

from tff_dp_aggregators import accounting
from tff_dp_aggregators.accounting import local

_MOVES = {'zero_out': 1, 'replace_one': 2}
relations = pytest.mark.parametrize('adjacency', _MOVES)


def _rounded_gaussian(stddev):
  """Probabilities of floor(Z + 1/2) for whole numbers to 12 deviations."""
  reach = math.ceil(12 * stddev) + 1
  edges = (np.arange(-reach, reach + 2) - 0.5) / stddev
  # By tails, which are small numbers exactly.
  upper = special.ndtr(-np.abs(edges))
  mass = np.abs(np.diff(upper))
  mass[reach] = 1 - 2 * special.ndtr(-0.5 / stddev)
  return mass


def _rounded_laplace(scale):
  reach = math.ceil(40 * scale)
  edges = np.arange(-reach, reach + 2) - 0.5
  upper = np.exp(-np.abs(edges) / scale) / 2
  mass = np.abs(np.diff(upper))
  mass[reach] = -math.expm1(-0.5 / scale)
  return mass


def _sum_of(masses, count):
  total = np.ones(1)
  for _ in range(count):
    total = np.convolve(total, masses)
  return total


def _delta(masses, shift, epsilon):
  """Hockey-stick divergence of a distribution on whole numbers, moved by `shift`."""
  p = np.concatenate([masses, np.zeros(shift)])
  q = np.concatenate([np.zeros(shift), masses])
  return np.maximum(p - math.exp(epsilon) * q, 0).sum()


def _total_variation(stddev, clients):
  """Of `local`: from s, in steps of the grid, and m."""
  whole = np.arange(-50, 51)
  row = np.exp(-((math.pi * stddev * whole) ** 2) / clients).sum()
  return math.exp(-((math.pi * stddev) ** 2) / 2) * row ** (clients - 1) / 2


@relations
@pytest.mark.parametrize('noise_multiplier', [0.5, 3.0])
def test_one_clients_gaussian_noise_costs_what_the_local_event_says(
  adjacency, noise_multiplier
):
  clip_norm = 24  # Steps of the grid; a record's entry moves by whole ones.
  masses = _rounded_gaussian(noise_multiplier * clip_norm)
  event = local.local_event(noise_multiplier, adjacency=adjacency)
  for epsilon in (0.0, 0.5, 2.0):
    stated = accounting.accountants.delta(event, epsilon)
    real = _delta(masses, _MOVES[adjacency] * clip_norm, epsilon)
    assert 0.98 * stated - 1e-12 < real <= stated * (1 + 1e-9) + 1e-14


@relations
@pytest.mark.parametrize('noise_multiplier', [0.5, 2.0])
def test_one_clients_laplace_noise_costs_what_the_local_event_says(
  adjacency, noise_multiplier
):
  clip_norm = 24
  masses = _rounded_laplace(noise_multiplier * clip_norm)
  event = local.local_event(noise_multiplier, noise='laplace', adjacency=adjacency)
  epsilon = 1 / event.noise_multiplier
  shift = _MOVES[adjacency] * clip_norm
  # Zero but for where the masses end, and round-off.
  assert _delta(masses, shift, epsilon * (1 + 1e-9)) < 1e-14
  assert _delta(masses, shift, 0.9 * epsilon) > 1e-3


@relations
@pytest.mark.parametrize('clients', [2, 5])
@pytest.mark.parametrize('share', [0.8, 4.0])
@pytest.mark.parametrize('known', [0, 1])
def test_a_sum_of_rounded_shares_costs_what_the_central_event_says(
  adjacency, clients, share, known
):
  # Shares of about one step of the grid, where rounding is as rough as can be.
  clip_norm = 3
  masses = _sum_of(_rounded_gaussian(share), clients - known)
  event = local.central_event(
    share / clip_norm, min_clients=clients, known_shares=known, adjacency=adjacency
  )
  lost = _total_variation(share, clients - known)
  for epsilon in (0.0, 1.0, 3.0):
    stated = accounting.accountants.delta(event, epsilon)
    real = _delta(masses, _MOVES[adjacency] * clip_norm, epsilon)
    assert real <= stated + (1 + math.exp(epsilon)) * lost + 1e-13
    if share == 4.0:  # Otherwise rounding adds noise to speak of.
      assert real > 0.9 * stated - 1e-12


def test_noise_of_the_server_is_in_the_central_event():
  clip_norm, share, server, clients = 10, 6.0, 9.0, 4
  masses = np.convolve(
    _sum_of(_rounded_gaussian(share), clients), _rounded_gaussian(server)
  )
  event = local.central_event(
    share / clip_norm,
    min_clients=clients,
    server_noise_multiplier=server / clip_norm,
  )
  assert event == dp_accounting.GaussianDpEvent(1.5)
  for epsilon in (0.2, 1.0):
    stated = accounting.accountants.delta(event, epsilon)
    assert 0.98 * stated < _delta(masses, clip_norm, epsilon) <= stated


def test_shares_add_up_to_the_noise_they_are_of():
  for clients in (1, 7, 1000):
    share = local.share(2.0, clients)
    event = local.central_event(share, min_clients=clients)
    assert event.noise_multiplier == pytest.approx(2.0, rel=1e-14)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda: local.local_event(1.0, adjacency='add_or_remove'), 'add_or_remove'),
    (lambda: local.local_event(1.0, noise='uniform'), 'noise'),
    (lambda: local.local_event(-1.0), 'noise_multiplier'),
    (lambda: local.local_event(1.0, participations=0), 'participations'),
    (lambda: local.central_event(1.0, min_clients=3, known_shares=3), 'known_shares'),
    (lambda: local.share(1.0, 0), 'min_clients'),
  ],
)
def test_what_has_no_guarantee_is_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()


@pytest.mark.parametrize(('epsilon', 'delta'), [(0.5, 1e-5), (0.9, 1e-3)])
def test_noise_by_the_classical_formula_has_the_privacy_claimed_for_it(epsilon, delta):
  # Dwork and Roth 2014, theorem A.1, as LocalDpMod of Flower has it.
  noise_multiplier = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
  event = local.local_event(noise_multiplier, adjacency='zero_out')
  assert accounting.accountants.delta(event, epsilon) <= delta
  event = local.local_event(noise_multiplier, adjacency='replace_one')
  assert accounting.accountants.delta(event, epsilon) > delta
