"""Truncated Poisson sampling: its epsilon, and the cohorts that it draws."""

import fractions
import itertools
import math

import dp_accounting
import numpy as np
import pytest
import scipy.stats
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.accounting.accountants import pld

ADD_OR_REMOVE, ZERO_OUT = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL
Gaussian = dp_accounting.GaussianDpEvent
Repeated = dp_accounting.SelfComposedDpEvent


def _event(others, probability, cap, noise, rounds=1):
  one = events.TruncatedPoissonDpEvent(others, probability, cap, Gaussian(noise))
  return Repeated(one, rounds) if rounds > 1 else one


def _cohorts(num_clients, probability, cap):
  """All possible cohorts, with their probabilities."""
  for size in range(num_clients + 1):
    chance = probability**size * (1 - probability) ** (num_clients - size)
    for drawn in itertools.combinations(range(num_clients), size):
      kept = list(itertools.combinations(drawn, min(size, cap)))
      yield from ((each, chance / len(kept)) for each in kept)


def _releases(values, probability, cap, noise, x):
  """Density of the noisy sum of a random cohort of clients with these values."""
  density = np.zeros_like(x)
  for cohort, chance in _cohorts(len(values), probability, cap):
    mean = sum(values[each] for each in cohort)
    density += chance * np.exp(-(((x - mean) / noise) ** 2) / 2)
  return density / (noise * math.sqrt(2 * math.pi))


def _neighbours(others, probability, cap, noise, points):
  """Densities of all neighbouring data sets, by relation, and the step of the grid."""
  x = np.linspace(-others - 1 - 9 * noise, others + 1 + 9 * noise, points)
  densities = {ADD_OR_REMOVE: [], ZERO_OUT: []}
  for values in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), others):
    without = _releases(values, probability, cap, noise, x)
    zeroed = _releases((*values, 0.0), probability, cap, noise, x)
    for own in (-1.0, 0.6, 1.0):
      present = _releases((*values, own), probability, cap, noise, x)
      densities[ADD_OR_REMOVE].append((present, without))
      densities[ZERO_OUT].append((present, zeroed))
  return densities, x[1] - x[0]


@pytest.mark.parametrize(
  'others, probability, cap, noise',
  [(2, 0.3, 1, 2.0), pytest.param(3, 1.0, 3, 1.0, marks=pytest.mark.slow)],
)
def test_pld_delta_bounds_all_neighbouring_data_sets(others, probability, cap, noise):
  pairs, step = _neighbours(others, probability, cap, noise, 6001)
  for relation, densities in pairs.items():
    for side in (pld.Side.REMOVED, pld.Side.ADDED):
      ordered = densities if side is pld.Side.REMOVED else [p[::-1] for p in densities]
      for epsilon in (-0.3, 1.0):
        odds = math.exp(epsilon)
        worst = max(np.maximum(p - odds * q, 0).sum() for p, q in ordered) * step
        for extra in (0, 3):  # It is a bound with fewer clients than stated as well.
          event = _event(others + extra, probability, cap, noise)
          rounds = ((pld._loss(event, relation, side), 1),)
          grid_plan = pld.plan(rounds, -20.0, epsilon)
          bound, _ = pld.Composition(rounds, grid_plan).delta(epsilon)
          assert worst * (1 - 1e-5) <= bound + 1e-12, (relation, side, epsilon, extra)


def test_composed_delta_bounds_two_rounds_of_any_data_sets():
  pairs, step = _neighbours(2, 0.5, 1, 1.5, 301)
  for relation, densities in pairs.items():
    bound = accountants.delta(_event(2, 0.5, 1, 1.5, 2), 0.7, 'pld', relation)
    odds = math.exp(0.7)
    for one, two in itertools.product(densities, repeat=2):
      p, q = (np.multiply.outer(a, b) for a, b in zip(one, two))
      for first, second in ((p, q), (q, p)):
        delta = np.maximum(first - odds * second, 0).sum() * step**2
        assert delta * (1 - 1e-4) <= bound


# Clients, probability, cap, noise, rounds, and epsilon at delta 1e-6 of dp-accounting
# 0.6.0 for add-or-remove. Its fraction of clients that displace another is smaller, and
# its pair for them is that of replacing a client, which is larger.
PEER = {
  (10_000, 0.01, 120, 1.0, 1000): 6.5238,
  (10_000, 0.01, 150, 1.0, 1000): 2.1378,
}
OURS = (('6.54', '5.14'), ('2.14', '2.13'))  # Both relations, docs/accounting.md.


@pytest.mark.parametrize(('setting', 'ours'), zip(PEER, OURS), ids=str)
def test_epsilon_matches_documented_figures_and_dp_accounting(setting, ours):
  *one, rounds = setting
  epsilons = [
    accountants.epsilon(_event(*one, rounds), 1e-6, 'pld', relation)
    for relation in (ADD_OR_REMOVE, ZERO_OUT)
  ]
  assert [f'{each:.2f}' for each in epsilons] == list(ours)
  assert epsilons[0] == pytest.approx(PEER[setting], rel=0.02)


@pytest.mark.parametrize('side', [pld.Side.REMOVED, pld.Side.ADDED])
@pytest.mark.parametrize('q, mu', [(1.0, 0.5), (0.01, 2.0)])
def test_zeroed_loss_matches_numerical_integration(q, mu, side):
  x = np.linspace(-12.0, 2 * mu + 12.0, 20_001)
  none, one, two = (scipy.stats.norm.pdf(x, each * mu) for each in range(3))
  whole, zeroed = ((1 - q) * none + q * each for each in (two, one))
  # The pair of distributions for a >= 1, and the one for a < 1.
  pairs = [(whole, zeroed), (zeroed, none)]
  if side is pld.Side.ADDED:
    pairs = pairs[::-1]

  def delta(pair, odds):
    return np.maximum(pair[0] - odds * pair[1], 0).sum() * (x[1] - x[0])

  rounds = ((pld.zeroed(mu, q, side), 1),)
  for epsilon in (-0.4, 0.02, 1.0):
    a = math.exp(epsilon)
    exact = delta(pairs[0], a) if a >= 1 else 1 - a + a * delta(pairs[1], 1 / a)
    stated, _ = pld.Composition(rounds, pld.plan(rounds, -20.0, epsilon)).delta(epsilon)
    assert stated == pytest.approx(exact, rel=1e-5, abs=1e-12)


@pytest.mark.skipif(
  not hasattr(dp_accounting, 'TruncatedSubsampledGaussianDpEvent'),
  reason='dp-accounting has the event from 0.6 on',
)
def test_dp_accounting_reproduces_stored_figure():
  setting = (10_000, 0.01, 150, 1.0, 1000)
  *one, rounds = setting
  peer = dp_accounting.pld.PLDAccountant(ADD_OR_REMOVE)
  peer.compose(dp_accounting.TruncatedSubsampledGaussianDpEvent(*one), rounds)
  assert peer.get_epsilon(1e-6) == pytest.approx(PEER[setting], abs=1e-4)


def test_unreachable_cap_gives_poisson_sampling():
  poisson = Repeated(dp_accounting.PoissonSampledDpEvent(0.1, Gaussian(1.0)), 50)
  for name in ('pld', 'rdp'):
    expected = accountants.epsilon(poisson, 1e-6, name, ADD_OR_REMOVE)
    event = _event(100, 0.1, 101, 1.0, 50)
    for relation in (ADD_OR_REMOVE, ZERO_OUT):
      actual = accountants.epsilon(event, 1e-6, name, relation)
      assert actual == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize('relation', [ADD_OR_REMOVE, ZERO_OUT])
@pytest.mark.parametrize('setting', [(300, 0.1, 40, 2.0, 100), (3, 1.0, 3, 4.0, 5)])
def test_rdp_epsilon_is_above_pld_epsilon(setting, relation):
  *one, rounds = setting
  event = _event(*one, rounds)
  tight = accountants.epsilon(event, 1e-7, 'pld', relation)
  loose = accountants.epsilon(event, 1e-7, 'rdp', relation)
  assert tight <= loose
  assert loose < 1.5 * tight or relation is not ADD_OR_REMOVE
  assert accountants.tightest(event, relation) == 'pld'


@pytest.mark.parametrize(
  'clients, probability, cap', [(3, 0.5, 2), (200, 0.25, 55), (7, 1.0, 7)]
)
def test_displacement_probability_is_rounded_up(clients, probability, cap):
  q = fractions.Fraction(probability)
  exact = sum(
    math.comb(clients, n) * q**n * (1 - q) ** (clients - n)
    for n in range(cap, clients + 1)
  )
  actual = accountants.accountant.displacement_probability(
    _event(clients, probability, cap, 1.0)
  )
  assert (
    exact <= fractions.Fraction(actual) <= exact * (1 + fractions.Fraction(1, 10**5))
  )


def test_unsupported_relations_and_event_arguments_are_refused():
  event = _event(100, 0.1, 20, 1.0)
  with pytest.raises(dp_accounting.UnsupportedEventError, match='REPLACE_SPECIAL'):
    accountants.epsilon(event, 1e-6, relation=Relation.REPLACE_ONE)
  with pytest.raises(dp_accounting.UnsupportedEventError, match='leave it out'):
    accountants.epsilon(event, 1e-6, 'prv', ADD_OR_REMOVE)
  for wrong, name in (
    ((0, 0.1, 2), 'num_clients'),
    ((5, 1.5, 2), 'probability'),
    ((5, 0.5, 0), 'max_clients'),
  ):
    with pytest.raises(ValueError, match=name):
      _event(*wrong, 1.0)
  assert events.from_json(events.to_json(event)) == event
  assert accountants.epsilon(_event(9, 0.1, 2, 0.0), 0.1, None, ZERO_OUT) == math.inf
  assert accountants.epsilon(_event(9, 0.1, 2, math.inf), 0.1, None, ZERO_OUT) == 0


# The scheme.


def test_event_with_groups_is_that_of_one_group():
  schema = sampling.TruncatedPoissonSampling.of_cohort(100, 1002, 40, 60, num_groups=10)
  strategy = strategies.BandedToeplitz(100, (1.0, 0.5, 0.25))
  event = run_events.event(strategy, schema, noise_multiplier=2.0)
  noise = 2.0 / strategy.sensitivity(None)
  assert event == _event(101, 0.4, 60, noise, 10)
  mechanism = accounting.Mechanism('banded', schema, 2.0, num_bands=10)
  assert mechanism.adjacency == 'zero_out'
  with pytest.raises(ValueError, match='adjacency=zero_out'):
    run_events.event(strategy, schema, 2.0, ADD_OR_REMOVE)
  with pytest.raises(ValueError, match='num_bands=11'):
    accounting.Mechanism('banded', schema, 2.0, num_bands=11)


def test_without_groups_adjacency_is_add_or_remove():
  schema = sampling.TruncatedPoissonSampling(50, 0.1, 100, 20)
  assert accounting.Mechanism('gaussian', schema, 1.0).adjacency == 'add_or_remove'
  # The added client comes on top of all others.
  event = run_events.event(strategies.Identity(50), schema, 1.0)
  assert event == _event(100, 0.1, 20, 1.0, 50)


def test_cap_below_expected_cohort_is_refused():
  with pytest.raises(ValueError, match='at least 10, .*got 9'):
    sampling.TruncatedPoissonSampling(50, 0.1, 100, 9)
  with pytest.raises(sampling.PopulationTooSmallError, match='groups'):
    sampling.TruncatedPoissonSampling(50, 0.1, 3, 9, num_groups=4)


def test_cohorts_have_probabilities_that_event_assumes():
  clients, probability, cap, rounds, groups = 4, 0.45, 2, 6000, 2
  scheme = sampling.TruncatedPoissonSampling(
    rounds, probability, clients * groups, cap, groups
  )
  schedule = sampling.SampledSchedule(scheme, clients * groups, seed=1)
  for first_round in range(groups):
    cohorts = [schedule.cohort(t) for t in range(first_round, rounds, groups)]
    group = sorted(set(np.concatenate(cohorts).tolist()))
    assert len(group) == clients
    chances = np.zeros(2**clients)
    for cohort, chance in _cohorts(clients, probability, cap):
      chances[sum(2**each for each in cohort)] += chance
    bits = [sum(2 ** group.index(each) for each in cohort) for cohort in cohorts]
    # Two successive rounds of a group are drawn independently.
    pairs = np.outer(chances, chances).ravel()
    for indices, expected in (
      (bits, chances),
      (np.array(bits[::2]) * 2**clients + bits[1::2], pairs),
    ):
      counts = np.bincount(indices, minlength=len(expected))
      assert not counts[expected == 0].any()
      expected, counts = expected[expected > 0] * len(indices), counts[expected > 0]
      assert expected.min() > 4
      chi_squared = np.sum((counts - expected) ** 2 / expected)
      assert chi_squared < scipy.stats.chi2.isf(1e-7, len(expected) - 1)


def test_added_client_displaces_at_most_one_other():
  ids = [f'client {number}' for number in range(60)]

  def cohorts(ids):
    scheme = sampling.TruncatedPoissonSampling(80, 0.3, 60, 19)
    draw = scheme.drawing(3, sampling.draws.keys_of_ids(ids, 3))
    return [{ids[each] for each in draw(t)} for t in range(80)]

  replaced = 0
  for without, with_client in zip(cohorts(ids[:30] + ids[31:]), cohorts(ids)):
    assert len(with_client) <= 19
    if ids[30] in with_client:
      assert with_client - without == {ids[30]}
      assert len(without - with_client) == (len(without) == 19)
      replaced += len(without - with_client)
    else:
      assert with_client == without
  assert replaced > 2


def test_groups_have_equal_sizes_and_fixed_clients():
  scheme = sampling.TruncatedPoissonSampling(9, 1.0, 41, 14, num_groups=3)
  schedule = sampling.SampledSchedule(scheme, 41, seed=1)
  groups = [set(schedule.cohort(t).tolist()) for t in range(9)]
  assert groups[:3] == groups[3:6] == groups[6:]
  assert sorted(map(len, groups[:3])) == [13, 14, 14]
  assert sorted(sum(map(list, groups[:3]), [])) == list(range(41))
  assert schedule.clients_per_round == 13


def test_cohort_above_cap_is_refused(tmp_path):
  schema = sampling.TruncatedPoissonSampling(2, 0.5, 9, 5)
  path = tmp_path / 'cohorts.jsonl'
  path.write_text('[0, 1, 2, 3, 4]\n[0, 1, 2, 3, 4, 5]\n')
  with pytest.raises(ValueError, match='round 1 .* has 6 clients; .* from 0 to 5'):
    sampling.Replay(str(path), sampling.Header(schema, 9, 4.5))
