"""Bounds on integer noise in shares hold for the distributions themselves."""

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
  beyond = np.full(REACH, -np.inf)
  windows = np.lib.stride_tricks.sliding_window_view(
    np.concatenate([beyond, share, beyond]), len(share)
  )
  total = share
  for _ in range(num_clients - 1):
    total = special.logsumexp(windows + total[::-1], axis=1)[::-1]
  return total


def log_skellam(variance):
  k = np.arange(-REACH, REACH + 1)
  with np.errstate(divide='ignore'):
    return np.log(special.ive(np.abs(k), variance))


def divergence(logs, moved, order):
  """Renyi divergence of an integer distribution moved by `moved` from itself."""
  if not moved:
    return 0.0
  p, q = logs[: len(logs) - moved], logs[moved:]
  told = np.isfinite(p) & np.isfinite(q)
  terms = order * p[told] + (1 - order) * q[told]
  # What is beyond the ends would be seen at the ends.
  assert max(terms[0], terms[-1]) < terms.max() - 40
  return special.logsumexp(terms) / (order - 1)


def of_vector(logs, vector, order):
  return sum(divergence(logs, abs(entry), order) for entry in vector)


VECTORS = [(3,), (1, 1, 1), (2, -1, 0, 1)]


@pytest.mark.parametrize('vector', VECTORS)
@pytest.mark.parametrize('local_stddev, num_clients', [(0.5, 2), (0.6, 6), (2.0, 3)])
def test_no_divergence_of_discrete_gaussian_shares_is_above_its_bound(
  vector, local_stddev, num_clients
):
  logs = log_sum_of_shares(local_stddev, num_clients)
  l2, l1 = math.hypot(*vector), sum(map(abs, vector))
  event = DiscreteGaussian(local_stddev, num_clients, l2, l1, len(vector))
  bounds = rdp.integer_noise(event, ORDERS)
  for order, bound in zip(ORDERS, bounds):
    exact = of_vector(logs, vector, order)
    assert exact <= bound
    if local_stddev >= 1:
      assert bound <= 1.01 * exact


@pytest.mark.parametrize('vector', VECTORS)
@pytest.mark.parametrize('local_stddev, num_clients', [(0.7, 2), (2.0, 3), (3.0, 9)])
def test_no_divergence_of_skellam_noise_is_above_its_bound(
  vector, local_stddev, num_clients
):
  event = Skellam(local_stddev, num_clients, math.hypot(*vector), sum(map(abs, vector)))
  logs = log_skellam(event.variance)
  for order, bound in zip(ORDERS, rdp.integer_noise(event, ORDERS)):
    if order * max(vector) > 12 * event.variance:
      continue  # Beyond what float64 has of the tail.
    exact = of_vector(logs, vector, order)
    assert exact <= bound
    if event.variance >= 20 and order in (2, 3, 8):
      assert bound <= 1.1 * exact


def vectors_within(norm_squared, dimension):
  """All vectors of whole numbers, but for order and signs, up to a squared norm."""
  largest = math.isqrt(norm_squared)
  for vector in itertools.combinations_with_replacement(range(largest + 1), dimension):
    if 0 < sum(entry * entry for entry in vector) <= norm_squared:
      yield vector


@pytest.mark.parametrize('norm_squared, dimension', [(5, 1), (9, 4), (3, 8)])
@pytest.mark.parametrize('twice', [1, 2])
def test_no_vector_within_the_sensitivities_of_a_plan_costs_more(
  norm_squared, dimension, twice
):
  # L1 as `distributed_noise` has it; `twice` for one contribution in another's place.
  l2 = twice * math.sqrt(norm_squared)
  l1 = twice * min(math.sqrt(dimension * norm_squared), norm_squared)
  moved = list(vectors_within(twice * twice * norm_squared, dimension))
  if twice == 2:
    # What two of them differ by, not all of that norm.
    moved = [vector for vector in moved if sum(vector) <= l1]
  for event, logs in (
    (Skellam(2.5, 3, l2, l1), log_skellam(18.75)),
    (DiscreteGaussian(0.5, 6, l2, l1, dimension), log_sum_of_shares(0.5, 6)),
  ):
    orders = (1.3, 2.0, 3.5, 6.0)
    for order, bound in zip(orders, rdp.integer_noise(event, orders)):
      of_entry = {k: divergence(logs, k, order) for k in range(math.ceil(l2) + 1)}
      exact = max(sum(of_entry[entry] for entry in vector) for vector in moved)
      assert exact <= bound
      longest = max(sum(entry * entry for entry in vector) for vector in moved)
      if event.local_stddev > 1 and order in (2.0, 6.0):
        assert bound <= 1.3 * exact * l2**2 / longest


EVENTS = [Skellam(2.0, 10, 3.0, 5.0), DiscreteGaussian(2.0, 10, 3.0, 5.0, 4)]


@pytest.mark.parametrize('event', EVENTS)
def test_events_are_written_and_read_back(event):
  repeated = dp_accounting.SelfComposedDpEvent(event, 7)
  for each in (event, repeated):
    written = json.loads(json.dumps(events.to_json(each)))
    assert events.from_json(written) == each
  written = events.to_json(event)
  for name in set(written) - {'type'}:
    with pytest.raises(ValueError, match='has the fields'):
      events.from_json({key: written[key] for key in written if key != name})
    for wrong in (-1, 'much', None):
      with pytest.raises(ValueError, match=name):
        events.from_json({**written, name: wrong})


@pytest.mark.parametrize('event', EVENTS)
def test_a_client_that_takes_its_noise_along_is_refused(event):
  for relation in (Relation.REPLACE_SPECIAL, Relation.REPLACE_ONE):
    assert accountants.tightest(event, relation) == 'rdp'
  sampled = dp_accounting.PoissonSampledDpEvent(0.1, event)
  for refused in (event, sampled):
    with pytest.raises(dp_accounting.UnsupportedEventError):
      accountants.epsilon(refused, 1e-6, relation=Relation.ADD_OR_REMOVE_ONE)


def test_parameters_out_of_range_are_refused_where_they_enter():
  with pytest.raises(ValueError, match='local_stddev must be at least 0.5'):
    DiscreteGaussian(0.49, 10, 3.0, 5.0, 4)
  with pytest.raises(ValueError, match='local_stddev'):
    Skellam(math.nan, 10, 3.0, 5.0)
  with pytest.raises(ValueError, match='l2_sensitivity'):
    Skellam(1.0, 10, -1.0, 5.0)
  with pytest.raises(TypeError, match='num_clients'):
    Skellam(1.0, 10.5, 3.0, 5.0)


@pytest.mark.slow
@pytest.mark.parametrize('rounds', [1, 40])
def test_exact_privacy_loss_distributions_give_no_larger_epsilon(rounds):
  for event, logs in (
    (Skellam(3.0, 4, 5.0, 5.0), log_skellam(36.0)),
    (DiscreteGaussian(1.0, 9, 4.0, 4.0, 1), log_sum_of_shares(1.0, 9)),
  ):
    moved = int(event.l2_sensitivity)
    at = [k for k in range(-REACH, REACH + 1) if logs[k + REACH] > -300]
    lower = {k: logs[k + REACH] for k in at}
    exact = pld.from_two_probability_mass_functions(
      lower, {k + moved: log for k, log in lower.items()}
    ).self_compose(rounds)
    composed = dp_accounting.SelfComposedDpEvent(event, rounds)
    for delta in (1e-5, 1e-9):
      bound = accountants.epsilon(composed, delta)
      # The grid of that accountant, of 1e-4 a round, is rounded up as well.
      assert exact.get_epsilon_for_delta(delta) <= bound + 1e-4 * rounds
      assert bound <= 1.25 * exact.get_epsilon_for_delta(delta)
