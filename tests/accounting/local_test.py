"""Events of client noise: local and central guarantees against brute force."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy import special

from tff_dp_aggregators import accounting
from tff_dp_aggregators.accounting import local

_SENSITIVITIES = {'zero_out': 1, 'replace_one': 2}
relations = pytest.mark.parametrize('adjacency', _SENSITIVITIES)


def _rounded_gaussian(stddev):
  """Probabilities of floor(Z + 1/2) for whole numbers up to 12 standard deviations."""
  reach = math.ceil(12 * stddev) + 1
  edges = (np.arange(-reach, reach + 2) - 0.5) / stddev
  # Differences of tail probabilities are exact where those are small.
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


def _convolve(masses, count):
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
  """The bound on total variation from the docstring of `local`; `stddev` is s there."""
  integers = np.arange(-50, 51)
  theta = np.exp(-((math.pi * stddev * integers) ** 2) / clients).sum()
  return math.exp(-((math.pi * stddev) ** 2) / 2) * theta ** (clients - 1) / 2


@relations
@pytest.mark.parametrize('noise_multiplier', [0.5, 3.0])
def test_local_event_bounds_delta_of_rounded_gaussian(adjacency, noise_multiplier):
  clip_norm = 24  # In steps of the grid; entries of records are multiples of a step.
  masses = _rounded_gaussian(noise_multiplier * clip_norm)
  event = local.local_event(noise_multiplier, adjacency=adjacency)
  for epsilon in (0.0, 0.5, 2.0):
    bound = accounting.accountants.delta(event, epsilon)
    exact = _delta(masses, _SENSITIVITIES[adjacency] * clip_norm, epsilon)
    assert 0.98 * bound - 1e-12 < exact <= bound * (1 + 1e-9) + 1e-14


@relations
@pytest.mark.parametrize('noise_multiplier', [0.5, 2.0])
def test_local_event_bounds_delta_of_rounded_laplace(adjacency, noise_multiplier):
  clip_norm = 24
  masses = _rounded_laplace(noise_multiplier * clip_norm)
  event = local.local_event(noise_multiplier, noise='laplace', adjacency=adjacency)
  epsilon = 1 / event.noise_multiplier
  shift = _SENSITIVITIES[adjacency] * clip_norm
  # Zero but for the truncation of the masses, and round-off.
  assert _delta(masses, shift, epsilon * (1 + 1e-9)) < 1e-14
  assert _delta(masses, shift, 0.9 * epsilon) > 1e-3


@relations
@pytest.mark.parametrize('clients', [2, 5])
@pytest.mark.parametrize('share', [0.8, 4.0])
@pytest.mark.parametrize('known', [0, 1])
def test_central_event_bounds_delta_of_rounded_shares(adjacency, clients, share, known):
  # Shares of about one step of the grid, where rounding is coarsest.
  clip_norm = 3
  masses = _convolve(_rounded_gaussian(share), clients - known)
  event = local.central_event(
    share / clip_norm, min_clients=clients, known_shares=known, adjacency=adjacency
  )
  total_variation = _total_variation(share, clients - known)
  for epsilon in (0.0, 1.0, 3.0):
    bound = accounting.accountants.delta(event, epsilon)
    exact = _delta(masses, _SENSITIVITIES[adjacency] * clip_norm, epsilon)
    assert exact <= bound + (1 + math.exp(epsilon)) * total_variation + 1e-13
    if share == 4.0:  # With smaller shares, rounding adds considerable noise.
      assert exact > 0.9 * bound - 1e-12


def test_central_event_includes_server_noise():
  clip_norm, share, server, clients = 10, 6.0, 9.0, 4
  masses = np.convolve(
    _convolve(_rounded_gaussian(share), clients), _rounded_gaussian(server)
  )
  event = local.central_event(
    share / clip_norm,
    min_clients=clients,
    server_noise_multiplier=server / clip_norm,
  )
  assert event == dp_accounting.GaussianDpEvent(1.5)
  for epsilon in (0.2, 1.0):
    bound = accounting.accountants.delta(event, epsilon)
    assert 0.98 * bound < _delta(masses, clip_norm, epsilon) <= bound


def test_shares_add_up_to_noise_multiplier():
  for clients in (1, 7, 1000):
    share = local.share(2.0, clients)
    event = local.central_event(share, min_clients=clients)
    assert event.noise_multiplier == pytest.approx(2.0, rel=1e-14)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda: local.local_event(1.0, adjacency='add_or_remove'), 'add_or_remove'),
    (lambda: local.local_event(1.0, noise='uniform'), 'noise must be'),
    (lambda: local.local_event(-1.0), 'noise_multiplier'),
    (lambda: local.local_event(1.0, participations=0), 'participations'),
    (lambda: local.central_event(1.0, min_clients=3, known_shares=3), 'known_shares'),
    (lambda: local.share(1.0, 0), 'min_clients'),
  ],
)
def test_arguments_without_guarantee_are_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()


@pytest.mark.parametrize(('epsilon', 'delta'), [(0.5, 1e-5), (0.9, 1e-3)])
def test_classical_gaussian_formula_holds_for_zero_out_only(epsilon, delta):
  # Dwork and Roth 2014, theorem A.1, as in Flower's LocalDpMod.
  noise_multiplier = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
  event = local.local_event(noise_multiplier, adjacency='zero_out')
  assert accounting.accountants.delta(event, epsilon) <= delta
  event = local.local_event(noise_multiplier, adjacency='replace_one')
  assert accounting.accountants.delta(event, epsilon) > delta
