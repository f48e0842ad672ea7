"""Poisson sampling with a cap: what it costs, and the cohorts that it draws."""

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
from tff_dp_aggregators.sampling import schedule as schedule_lib

ADD_OR_REMOVE, ZERO_OUT = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL
Gaussian = dp_accounting.GaussianDpEvent
Repeated = dp_accounting.SelfComposedDpEvent


def _event(others, probability, most, noise, rounds=1):
  one = events.TruncatedPoissonDpEvent(others, probability, most, Gaussian(noise))
  return Repeated(one, rounds) if rounds > 1 else one


def _cohorts(num_clients, probability, most):
  """Each cohort that there may be, with its probability."""
  for size in range(num_clients + 1):
    chance = probability**size * (1 - probability) ** (num_clients - size)
    for drawn in itertools.combinations(range(num_clients), size):
      kept = list(itertools.combinations(drawn, min(size, most)))
      yield from ((each, chance / len(kept)) for each in kept)


def _releases(values, probability, most, noise, x):
  """The density of the noisy sum of a random cohort of clients with these values."""
  density = np.zeros_like(x)
  for cohort, chance in _cohorts(len(values), probability, most):
    mean = sum(values[each] for each in cohort)
    density += chance * np.exp(-(((x - mean) / noise) ** 2) / 2)
  return density / (noise * math.sqrt(2 * math.pi))


def _neighbours(others, probability, most, noise, points):
  """Densities of all pairs of data sets, by relation, and the spread of the grid."""
  x = np.linspace(-others - 1 - 9 * noise, others + 1 + 9 * noise, points)
  found = {ADD_OR_REMOVE: [], ZERO_OUT: []}
  for values in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), others):
    without = _releases(values, probability, most, noise, x)
    zeroed = _releases((*values, 0.0), probability, most, noise, x)
    for own in (-1.0, 0.6, 1.0):
      whole = _releases((*values, own), probability, most, noise, x)
      found[ADD_OR_REMOVE].append((whole, without))
      found[ZERO_OUT].append((whole, zeroed))
  return found, x[1] - x[0]


@pytest.mark.parametrize(
  'others, probability, most, noise',
  [(2, 0.3, 1, 2.0), pytest.param(3, 1.0, 3, 1.0, marks=pytest.mark.slow)],
)
def test_no_data_sets_are_told_apart_more_easily_than_stated(
  others, probability, most, noise
):
  pairs, spread = _neighbours(others, probability, most, noise, 6001)
  for relation, densities in pairs.items():
    for side in (pld.Side.REMOVED, pld.Side.ADDED):
      ordered = densities if side is pld.Side.REMOVED else [p[::-1] for p in densities]
      for epsilon in (-0.3, 1.0):
        odds = math.exp(epsilon)
        worst = max(np.maximum(p - odds * q, 0).sum() for p, q in ordered) * spread
        for more in (0, 3):  # It holds if there are fewer clients than stated.
          event = _event(others + more, probability, most, noise)
          rounds = ((pld._loss(event, relation, side), 1),)
          how = pld.plan(rounds, -20.0, epsilon)
          stated, _ = pld.Composition(rounds, how).delta(epsilon)
          assert worst * (1 - 1e-5) <= stated + 1e-12, (relation, side, epsilon, more)


def test_two_rounds_of_any_data_sets_are_below_the_composed_pair():
  pairs, spread = _neighbours(2, 0.5, 1, 1.5, 301)
  for relation, densities in pairs.items():
    stated = accountants.delta(_event(2, 0.5, 1, 1.5, 2), 0.7, 'pld', relation)
    odds = math.exp(0.7)
    for one, two in itertools.product(densities, repeat=2):
      p, q = (np.multiply.outer(a, b) for a, b in zip(one, two))
      for first, second in ((p, q), (q, p)):
        delta = np.maximum(first - odds * second, 0).sum() * spread**2
        assert delta * (1 - 1e-4) <= stated


# Of dp-accounting 0.6.0: clients, probability, cap, noise, rounds, and epsilon at 1e-6
# for add-or-remove. Its fraction of clients that push another out is smaller, and its
# pair for them is that of replacing a client, which is larger.
PEER = {
  (10_000, 0.01, 120, 1.0, 1000): 6.5238,
  (10_000, 0.01, 150, 1.0, 1000): 2.1378,
}
OWN = (('6.54', '5.14'), ('2.14', '2.13'))  # In docs/accounting.md: of both relations.


@pytest.mark.parametrize(('setting', 'own'), zip(PEER, OWN), ids=str)
def test_epsilon_is_close_to_dp_accountings_and_less_where_the_other_stays_away(
  setting, own
):
  *one, rounds = setting
  found = [
    accountants.epsilon(_event(*one, rounds), 1e-6, 'pld', relation)
    for relation in (ADD_OR_REMOVE, ZERO_OUT)
  ]
  assert [f'{each:.2f}' for each in found] == list(own)
  assert found[0] == pytest.approx(PEER[setting], rel=0.02)


@pytest.mark.parametrize('side', [pld.Side.REMOVED, pld.Side.ADDED])
@pytest.mark.parametrize('q, mu', [(1.0, 0.5), (0.01, 2.0)])
def test_the_pair_of_zeroing_out_is_what_an_integral_says(q, mu, side):
  x = np.linspace(-12.0, 2 * mu + 12.0, 20_001)
  none, one, two = (scipy.stats.norm.pdf(x, each * mu) for each in range(3))
  whole, zeroed = ((1 - q) * none + q * each for each in (two, one))
  # What is told apart for a >= 1, and the other way round.
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
def test_figures_of_dp_accounting_are_its_own():
  setting = (10_000, 0.01, 150, 1.0, 1000)
  *one, rounds = setting
  peer = dp_accounting.pld.PLDAccountant(ADD_OR_REMOVE)
  peer.compose(dp_accounting.TruncatedSubsampledGaussianDpEvent(*one), rounds)
  assert peer.get_epsilon(1e-6) == pytest.approx(PEER[setting], abs=1e-4)


def test_where_the_cap_is_out_of_reach_it_is_a_poisson_sample():
  poisson = Repeated(dp_accounting.PoissonSampledDpEvent(0.1, Gaussian(1.0)), 50)
  for name in ('pld', 'rdp'):
    expected = accountants.epsilon(poisson, 1e-6, name, ADD_OR_REMOVE)
    event = _event(100, 0.1, 101, 1.0, 50)
    for relation in (ADD_OR_REMOVE, ZERO_OUT):
      found = accountants.epsilon(event, 1e-6, name, relation)
      assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize('relation', [ADD_OR_REMOVE, ZERO_OUT])
@pytest.mark.parametrize('setting', [(300, 0.1, 40, 2.0, 100), (3, 1.0, 3, 4.0, 5)])
def test_renyis_bound_is_above(setting, relation):
  *one, rounds = setting
  event = _event(*one, rounds)
  tight = accountants.epsilon(event, 1e-7, 'pld', relation)
  loose = accountants.epsilon(event, 1e-7, 'rdp', relation)
  assert tight <= loose
  assert loose < 1.5 * tight or relation is not ADD_OR_REMOVE
  assert accountants.tightest(event, relation) == 'pld'


@pytest.mark.parametrize(
  'clients, probability, most', [(3, 0.5, 2), (200, 0.25, 55), (7, 1.0, 7)]
)
def test_the_probability_of_a_full_cohort_is_rounded_up(clients, probability, most):
  q = fractions.Fraction(probability)
  exact = sum(
    math.comb(clients, n) * q**n * (1 - q) ** (clients - n)
    for n in range(most, clients + 1)
  )
  found = accountants.accountant.displacement_probability(
    _event(clients, probability, most, 1.0)
  )
  assert (
    exact <= fractions.Fraction(found) <= exact * (1 + fractions.Fraction(1, 10**5))
  )


def test_other_relations_and_events_are_refused():
  event = _event(100, 0.1, 20, 1.0)
  with pytest.raises(dp_accounting.UnsupportedEventError, match='REPLACE_SPECIAL'):
    accountants.epsilon(event, 1e-6, relation=Relation.REPLACE_ONE)
  with pytest.raises(dp_accounting.UnsupportedEventError, match='pld or rdp'):
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


def test_groups_have_an_event_for_their_own_clients_and_rounds():
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


def test_without_groups_a_client_may_be_added():
  schema = sampling.TruncatedPoissonSampling(50, 0.1, 100, 20)
  assert accounting.Mechanism('gaussian', schema, 1.0).adjacency == 'add_or_remove'
  # It comes in addition to all that there are.
  event = run_events.event(strategies.Identity(50), schema, 1.0)
  assert event == _event(100, 0.1, 20, 1.0, 50)


def test_a_cap_below_the_mean_is_refused():
  with pytest.raises(ValueError, match='at least 10, .*got 9'):
    sampling.TruncatedPoissonSampling(50, 0.1, 100, 9)
  with pytest.raises(sampling.PopulationTooSmallError, match='groups'):
    sampling.TruncatedPoissonSampling(50, 0.1, 3, 9, num_groups=4)


def test_cohorts_have_the_probabilities_that_the_event_assumes():
  clients, probability, most, rounds, groups = 4, 0.45, 2, 6000, 2
  scheme = sampling.TruncatedPoissonSampling(
    rounds, probability, clients * groups, most, groups
  )
  schedule = sampling.SampledSchedule(scheme, clients * groups, seed=1)
  for turn in range(groups):
    cohorts = [schedule.cohort(t) for t in range(turn, rounds, groups)]
    own = sorted(set(np.concatenate(cohorts).tolist()))
    assert len(own) == clients
    chances = np.zeros(2**clients)
    for cohort, chance in _cohorts(clients, probability, most):
      chances[sum(2**each for each in cohort)] += chance
    found = [sum(2 ** own.index(each) for each in cohort) for cohort in cohorts]
    # Of two rounds in a row, which are drawn independently.
    pairs = np.outer(chances, chances).ravel()
    for drawn, expected in (
      (found, chances),
      (np.array(found[::2]) * 2**clients + found[1::2], pairs),
    ):
      counts = np.bincount(drawn, minlength=len(expected))
      assert not counts[expected == 0].any()
      expected, counts = expected[expected > 0] * len(drawn), counts[expected > 0]
      assert expected.min() > 4
      chi_squared = np.sum((counts - expected) ** 2 / expected)
      assert chi_squared < scipy.stats.chi2.isf(1e-7, len(expected) - 1)


def test_a_client_that_comes_takes_at_most_the_place_of_one():
  ids = [f'client {number}' for number in range(60)]

  def cohorts(ids):
    scheme = sampling.TruncatedPoissonSampling(80, 0.3, 60, 19)
    draw = scheme.drawing(3, sampling.draws.keys_of_ids(ids, 3))
    return [{ids[each] for each in draw(t)} for t in range(80)]

  replaced = 0
  for fewer, whole in zip(cohorts(ids[:30] + ids[31:]), cohorts(ids)):
    assert len(whole) <= 19
    if ids[30] in whole:
      assert whole - fewer == {ids[30]}
      assert len(fewer - whole) == (len(fewer) == 19)
      replaced += len(fewer - whole)
    else:
      assert whole == fewer
  assert replaced > 2


def test_groups_have_equal_sizes_and_keep_their_clients():
  scheme = sampling.TruncatedPoissonSampling(9, 1.0, 41, 14, num_groups=3)
  schedule = sampling.SampledSchedule(scheme, 41, seed=1)
  groups = [set(schedule.cohort(t).tolist()) for t in range(9)]
  assert groups[:3] == groups[3:6] == groups[6:]
  assert sorted(map(len, groups[:3])) == [13, 14, 14]
  assert sorted(sum(map(list, groups[:3]), [])) == list(range(41))
  assert schedule.clients_per_round == 13


def test_a_cohort_above_the_cap_is_refused():
  schema = sampling.TruncatedPoissonSampling(2, 0.5, 9, 5)
  rounds = schedule_lib.Rounds('of a file', sampling.Header(schema, 9, 4.5))
  full, more = np.arange(5), np.arange(6)
  rounds.add([sampling.Attempt(full, full, True)])
  with pytest.raises(ValueError, match='has 6 clients; .* from 0 to 5'):
    rounds.add([sampling.Attempt(more, more, True)])
