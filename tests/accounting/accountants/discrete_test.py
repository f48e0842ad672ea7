"""RDP bounds on integer noise in shares, against the distributions themselves."""

import itertools
import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import special

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import rdp

Skellam = events.SkellamDpEvent
DiscreteGaussian = events.DistributedDiscreteGaussianDpEvent
ORDERS = (1.1, 1.5, 2.0, 2.7, 3.0, 5.5, 8.0, 17.0)
REACH = 220


def log_sum_of_shares(local_stddev, num_clients):
  """Logarithms of the probabilities of -REACH to REACH, convolved share by share."""
  share = -(np.arange(-REACH, REACH + 1.0) ** 2) / (2 * local_stddev**2)
  share -= special.logsumexp(share)
  padding = np.full(REACH, -np.inf)
  windows = np.lib.stride_tricks.sliding_window_view(
    np.concatenate([padding, share, padding]), len(share)
  )
  total = share
  for _ in range(num_clients - 1):
    total = special.logsumexp(windows + total[::-1], axis=1)[::-1]
  return total


def log_skellam(variance):
  k = np.arange(-REACH, REACH + 1)
  with np.errstate(divide='ignore'):
    return np.log(special.ive(np.abs(k), variance))


def divergence(logs, shift, order):
  """Renyi divergence of an integer distribution shifted by `shift` from itself."""
  if not shift:
    return 0.0
  p, q = logs[: len(logs) - shift], logs[shift:]
  finite = np.isfinite(p) & np.isfinite(q)
  terms = order * p[finite] + (1 - order) * q[finite]
  # Terms beyond the ends are negligible if those at the ends are.
  assert max(terms[0], terms[-1]) < terms.max() - 40
  return special.logsumexp(terms) / (order - 1)


def vector_divergence(logs, vector, order):
  return sum(divergence(logs, abs(entry), order) for entry in vector)


VECTORS = [(3,), (1, 1, 1), (2, -1, 0, 1)]


@pytest.mark.parametrize('vector', VECTORS)
@pytest.mark.parametrize('local_stddev, num_clients', [(0.5, 2), (0.6, 6), (2.0, 3)])
def test_integer_noise_bounds_discrete_gaussian_divergences(
  vector, local_stddev, num_clients
):
  logs = log_sum_of_shares(local_stddev, num_clients)
  l2, l1 = math.hypot(*vector), sum(map(abs, vector))
  event = DiscreteGaussian(local_stddev, num_clients, l2, l1, len(vector))
  bounds = rdp.integer_noise(event, ORDERS)
  for order, bound in zip(ORDERS, bounds):
    exact = vector_divergence(logs, vector, order)
    assert exact <= bound
    if local_stddev >= 1:
      assert bound <= 1.01 * exact


@pytest.mark.parametrize('vector', VECTORS)
@pytest.mark.parametrize('local_stddev, num_clients', [(0.7, 2), (2.0, 3), (3.0, 9)])
def test_integer_noise_bounds_skellam_divergences(vector, local_stddev, num_clients):
  event = Skellam(local_stddev, num_clients, math.hypot(*vector), sum(map(abs, vector)))
  logs = log_skellam(event.variance)
  for order, bound in zip(ORDERS, rdp.integer_noise(event, ORDERS)):
    if order * max(vector) > 12 * event.variance:
      continue  # Beyond the tail that float64 can represent.
    exact = vector_divergence(logs, vector, order)
    assert exact <= bound
    if event.variance >= 20 and order in (2, 3, 8):
      assert bound <= 1.1 * exact


def vectors_within(norm_squared, dimension):
  """All integer vectors up to a squared norm, without permutations and signs."""
  largest = math.isqrt(norm_squared)
  for vector in itertools.combinations_with_replacement(range(largest + 1), dimension):
    if 0 < sum(entry * entry for entry in vector) <= norm_squared:
      yield vector


@pytest.mark.parametrize('norm_squared, dimension', [(5, 1), (9, 4), (3, 8)])
@pytest.mark.parametrize('factor', [1, 2])
def test_integer_noise_bounds_every_vector_within_sensitivities(
  norm_squared, dimension, factor
):
  # L1 as in `distributed_noise`; `factor` is 2 if one contribution replaces another.
  l2 = factor * math.sqrt(norm_squared)
  l1 = factor * min(math.sqrt(dimension * norm_squared), norm_squared)
  vectors = list(vectors_within(factor * factor * norm_squared, dimension))
  if factor == 2:
    # Only differences of two contributions, not all vectors of that norm.
    vectors = [vector for vector in vectors if sum(vector) <= l1]
  for event, logs in (
    (Skellam(2.5, 3, l2, l1), log_skellam(18.75)),
    (DiscreteGaussian(0.5, 6, l2, l1, dimension), log_sum_of_shares(0.5, 6)),
  ):
    orders = (1.3, 2.0, 3.5, 6.0)
    for order, bound in zip(orders, rdp.integer_noise(event, orders)):
      by_entry = {k: divergence(logs, k, order) for k in range(math.ceil(l2) + 1)}
      exact = max(sum(by_entry[entry] for entry in vector) for vector in vectors)
      assert exact <= bound
      largest = max(sum(entry * entry for entry in vector) for vector in vectors)
      if event.local_stddev > 1 and order in (2.0, 6.0):
        assert bound <= 1.3 * exact * l2**2 / largest


EVENTS = [Skellam(2.0, 10, 3.0, 5.0), DiscreteGaussian(2.0, 10, 3.0, 5.0, 4)]


@pytest.mark.parametrize('event', EVENTS)
def test_event_json_round_trips_and_refuses_wrong_fields(event):
  repeated = dp_accounting.SelfComposedDpEvent(event, 7)
  for each in (event, repeated):
    written = json.loads(json.dumps(events.to_json(each)))
    assert events.from_json(written) == each
  written = events.to_json(event)
  for name in set(written) - {'type'}:
    with pytest.raises(ValueError, match='its fields'):
      events.from_json({key: written[key] for key in written if key != name})
    for wrong in (-1, 'much', None):
      with pytest.raises(ValueError, match=name):
        events.from_json({**written, name: wrong})


@pytest.mark.parametrize('event', EVENTS)
def test_add_or_remove_is_refused_for_distributed_noise(event):
  for relation in (Relation.REPLACE_SPECIAL, Relation.REPLACE_ONE):
    assert accountants.tightest(event, relation) == 'rdp'
  sampled = dp_accounting.PoissonSampledDpEvent(0.1, event)
  for refused in (event, sampled):
    with pytest.raises(dp_accounting.UnsupportedEventError):
      accountants.epsilon(refused, 1e-6, relation=Relation.ADD_OR_REMOVE_ONE)


def test_event_parameters_out_of_range_are_refused():
  with pytest.raises(ValueError, match='local_stddev .* must be at least 0.5'):
    DiscreteGaussian(0.49, 10, 3.0, 5.0, 4)
  with pytest.raises(ValueError, match='local_stddev'):
    Skellam(math.nan, 10, 3.0, 5.0)
  with pytest.raises(ValueError, match='l2_sensitivity'):
    Skellam(1.0, 10, -1.0, 5.0)
  with pytest.raises(TypeError, match='num_clients'):
    Skellam(1.0, 10.5, 3.0, 5.0)


@pytest.mark.slow
@pytest.mark.parametrize('rounds', [1, 40])
def test_rdp_epsilon_bounds_exact_pld_epsilon(rounds):
  for event, logs in (
    (Skellam(3.0, 4, 5.0, 5.0), log_skellam(36.0)),
    (DiscreteGaussian(1.0, 9, 4.0, 4.0, 1), log_sum_of_shares(1.0, 9)),
  ):
    shift = int(event.l2_sensitivity)
    support = [k for k in range(-REACH, REACH + 1) if logs[k + REACH] > -300]
    log_masses = {k: logs[k + REACH] for k in support}
    exact = pld.from_two_probability_mass_functions(
      log_masses, {k + shift: log for k, log in log_masses.items()}
    ).self_compose(rounds)
    composed = dp_accounting.SelfComposedDpEvent(event, rounds)
    for delta in (1e-5, 1e-9):
      bound = accountants.epsilon(composed, delta)
      # The peer rounds up as well, to a grid of 1e-4 in each round.
      assert exact.get_epsilon_for_delta(delta) <= bound + 1e-4 * rounds
      assert bound <= 1.25 * exact.get_epsilon_for_delta(delta)
