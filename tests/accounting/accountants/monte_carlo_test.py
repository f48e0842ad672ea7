"""Monte Carlo accountant against integration and other accountants."""

import contextlib
import io
import math
import os
import subprocess
import sys

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import optimize
from scipy import stats

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.accounting.accountants import monte_carlo

BOTH = Relation.ADD_OR_REMOVE_ONE
NAME = 'monte_carlo'
P = 0.1
# Entries of both signs, and columns of different norms.
TRIPLE = strategies.Banded.from_matrix(
  [[1.0, 0.0, 0.0], [-0.4, 0.9, 0.0], [0.3, 0.5, 0.8]]
)
PAIR = strategies.Banded.from_matrix(
  [[1.0, 0.0, 0.0], [-0.4, 0.9, 0.0], [0.0, 0.5, 0.8]]
)
# A scheme, its strategy, and sets of rounds with their probabilities.
THREE_ROUNDS = {
  'two bins': (sampling.BallsInBins(3, 2), TRIPLE, {(0, 2): 1 / 2, (1,): 1 / 2}),
  'five bins': (
    sampling.BallsInBins(3, 5),
    TRIPLE,
    {(0,): 1 / 5, (1,): 1 / 5, (2,): 1 / 5, (): 2 / 5},
  ),
  # Free in round 0 with probability 1 / (1 + P), else in round 1.
  'b-min-sep': (
    sampling.BMinSepSampling(3, P, 2),
    PAIR,
    {
      (0,): P * (1 - P) / (1 + P),
      (0, 2): P * P / (1 + P),
      (1,): (P * (1 - P) + P * P) / (1 + P),
      (2,): (P * (1 - P) ** 2 + P * P * (1 - P)) / (1 + P),
      (): ((1 - P) ** 3 + P * (1 - P) ** 2) / (1 + P),
    },
  ),
  'two of three': (
    sampling.RandomAllocation(3, 2),
    strategies.Identity(3),
    {(0, 1): 1 / 3, (0, 2): 1 / 3, (1, 2): 1 / 3},
  ),
  'five places': (
    sampling.BallsInBins(3, 5),
    strategies.Identity(3),
    {(0,): 1 / 5, (1,): 1 / 5, (2,): 1 / 5, (): 2 / 5},
  ),
}


class _Integrated:
  """P and Q of three rounds, integrated over a grid of outcomes y."""

  def __init__(self, name, noise):
    self.schema, self.strategy, sets = THREE_ROUNDS[name]
    self.event = run_events.event(self.strategy, self.schema, noise)
    assert sum(sets.values()) == pytest.approx(1.0, rel=1e-12)
    columns = np.abs(self.strategy.materialize()).T / noise
    means = np.array([columns[list(rounds)].sum(axis=0) for rounds in sets])
    axis = np.linspace(-6.5, 6.5 + means.max(), 140)
    ratios = np.zeros((140, 140, 140))
    for mean, probability in zip(means, sets.values()):
      x, y, z = (np.exp(each * axis - each * each / 2) for each in mean)
      ratios += probability * x[:, None, None] * y[:, None] * z
    one = np.exp(-axis * axis / 2) / math.sqrt(2 * math.pi) * (axis[1] - axis[0])
    masses = one[:, None, None] * one[:, None] * one
    kept = masses * np.maximum(ratios, 1) > 1e-12
    self._ratios, self._masses = ratios[kept], masses[kept]

  def deltas(self, epsilon):
    """Deltas of P against Q, and of Q against P."""
    odds = math.exp(epsilon)
    return (
      float(self._masses @ np.maximum(self._ratios - odds, 0.0)),
      float(self._masses @ np.maximum(1 - odds * self._ratios, 0.0)),
    )

  def epsilon(self, delta):
    return optimize.brentq(
      lambda each: max(self.deltas(each)) - delta, 0.0, 20.0, rtol=1e-5
    )


@pytest.mark.few(3)
@pytest.mark.parametrize(('noise', 'delta'), [(0.7, 1e-2), (1.0, 1e-3), (2.0, 1e-5)])
@pytest.mark.parametrize('name', sorted(THREE_ROUNDS))
def test_three_rounds_match_numerical_integration(name, noise, delta):
  integrated = _Integrated(name, noise)
  exact_epsilon = integrated.epsilon(delta)
  actual = accountants.epsilon(integrated.event, delta, NAME, BOTH)
  # 5e-4 is the error of the grid. If a client has one round, the bound is exact.
  assert exact_epsilon * (1 - 5e-4) <= actual <= 1.05 * exact_epsilon
  for epsilon in (exact_epsilon / 2, exact_epsilon):
    exact = max(integrated.deltas(epsilon))
    actual = accountants.delta(integrated.event, epsilon, NAME, BOTH)
    assert exact * (1 - 5e-4) <= actual <= 1.3 * exact
    bounded = getattr(integrated.event, 'bound', integrated.event)
    assert exact * (1 - 5e-4) <= accountants.delta(bounded, epsilon, 'pld', BOTH)
  # Both directions, without the margin for confidence.
  mixture = monte_carlo._mixture(integrated.event)
  for epsilon in (exact_epsilon / 3, 0.7 * exact_epsilon):
    for exact, removed in zip(integrated.deltas(epsilon), (True, False)):
      proposal = monte_carlo.best_proposal(mixture, removed, epsilon)
      rng = np.random.default_rng(1)
      tails = monte_carlo.draw(mixture, rng, 50_000, proposal, epsilon / 2)
      outcomes = tails.outcomes(epsilon)
      error = math.sqrt(np.square(outcomes).sum()) / tails.size
      assert abs(tails.delta(epsilon) - exact) <= 5 * error + 2e-3 * exact + 1e-9
      assert outcomes.max(initial=0.0) <= math.exp(tails.log_bound) * (1 + 1e-9)


def _five_bins(noise=1.0):
  return run_events.event(
    strategies.BandedToeplitz.square_root(12, num_bands=4),
    sampling.BallsInBins(12, 5),
    noise,
  )


def _min_sep(noise=1.0, p=0.2):
  return run_events.event(
    strategies.BandedToeplitz.square_root(12, num_bands=4),
    sampling.BMinSepSampling(12, p, 4),
    noise,
  )


def _allocated(noise=1.0):
  return run_events.event(
    strategies.Identity(12), sampling.RandomAllocation(12, 5), noise
  )


EVENTS = [_five_bins, _min_sep, _allocated]


def test_epsilon_does_not_depend_on_earlier_calls():
  epsilons = []
  for before in (1e-2, 1e-3):  # Deltas of an earlier call.
    monte_carlo._epsilon_of.cache_clear()
    accountant = monte_carlo.MonteCarloAccountant(BOTH).compose(_five_bins())
    accountant.get_epsilon(before)
    epsilons.append(accountant.get_epsilon(1e-4))
  assert epsilons[0] == epsilons[1]


_PROGRAM = """
import sys
from dp_accounting import NeighboringRelation as Relation
from tff_dp_aggregators import strategies
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import accountants, run_events
# Bins of one column each have equal norms.
strategy = strategies.BandedToeplitz(60, (1.0,) * 7)
for schema in (sampling.BallsInBins(60, 60), sampling.BMinSepSampling(60, 0.05, 10)):
  event = run_events.event(strategy, schema, 2.0)
  for ask, at in ((accountants.epsilon, 1e-3), (accountants.delta, 0.5)):
    print(repr(ask(event, at, 'monte_carlo', Relation.ADD_OR_REMOVE_ONE)))
"""


def _build_of_numpy():
  with contextlib.redirect_stdout(io.StringIO()) as text:
    np.show_config()
  return text.getvalue().lower()


@pytest.mark.slow
@pytest.mark.skipif('openblas' not in _build_of_numpy(), reason='one kind of kernels')
def test_results_agree_between_processor_kernels():
  processes = [
    subprocess.Popen(
      [sys.executable, '-c', _PROGRAM],
      stdout=subprocess.PIPE,
      text=True,
      env={**os.environ, 'OPENBLAS_CORETYPE': core, 'OPENBLAS_NUM_THREADS': '1'},
    )
    for core in ('Prescott', 'Haswell')
  ]
  outputs = [each.communicate()[0].split() for each in processes]
  assert [each.returncode for each in processes] == [0, 0]
  one, two = (np.array(each, np.float64) for each in outputs)
  assert one.shape == (4,) and np.all(one > 0)
  np.testing.assert_allclose(one, two, rtol=1e-9)


def test_seed_depends_on_event_argument_and_direction():
  cases = [_five_bins(), _five_bins(1.0 + 1e-12), _min_sep(), _min_sep(p=0.2 + 1e-12)]
  other = strategies.BandedToeplitz(12, (1.0, 0.25))
  cases.append(run_events.event(other, sampling.BallsInBins(12, 5), 1.0))
  cases.append(run_events.event(other, sampling.BMinSepSampling(12, 0.2, 4), 1.0))
  seeds = {
    monte_carlo._seed(event, at, side)
    for event in cases
    for at in (1e-6, 1e-6 * (1 + 1e-15), 1.0)
    for side in ('removed', 'added')
  }
  assert len(seeds) == len(cases) * 3 * 2
  # Another seed changes the bits of an estimate.
  pair = [
    accountants.epsilon(_min_sep(1.0 + k * 1e-9), 1e-4, NAME, BOTH) for k in (0, 1)
  ]
  assert pair[0] != pair[1] and pair[0] == pytest.approx(pair[1], rel=0.02)


@pytest.mark.few(1)
@pytest.mark.parametrize('make_event', EVENTS)
def test_epsilon_and_delta_are_at_most_deterministic_bound(make_event):
  event = make_event(2.0)
  bound = accountants.epsilon(event.bound, 1e-6, 'pld', BOTH)
  assert accountants.epsilon(event, 1e-6, NAME, BOTH) < 0.99 * bound
  bound = accountants.delta(event.bound, 0.3, 'pld', BOTH)
  assert accountants.delta(event, 0.3, NAME, BOTH) <= bound


def _tails(outcomes, size, log_bound=0.0):
  """Outcomes in [0, 1], times the bound, which are the same for every epsilon."""
  with np.errstate(divide='ignore'):
    logs = np.log(outcomes) + log_bound
  return monte_carlo.Tails(np.full(len(logs), np.inf), logs, size, log_bound)


# Outcomes that are rare and at the bound, common, of all sizes, or small.
LAWS = {
  'rare': lambda rng, size, mean: np.ones(rng.binomial(size, mean)),
  'half': lambda rng, size, mean: np.full(rng.binomial(size, 2 * mean), 0.5),
  'any': lambda rng, size, mean: rng.random(rng.binomial(size, 2 * mean)),
  'small': lambda rng, size, mean: 0.02 * rng.random(rng.binomial(size, 100 * mean)),
}


@pytest.mark.few(3)
@pytest.mark.parametrize('size', [400, 3000])
@pytest.mark.parametrize('law', sorted(LAWS))
def test_passes_has_stated_error_probability(law, size):
  rng, times, beta, mean, log_bound = np.random.default_rng(3), 1000, 0.05, 0.008, -9.0
  delta = mean * math.exp(log_bound)
  passed = sum(
    _tails(LAWS[law](rng, size, mean), size, log_bound).passes(
      1.0, delta, math.log(beta)
    )
    for _ in range(times)
  )
  assert passed <= stats.binom.isf(1e-7, times, beta)
  # A smaller mean does pass, so the line before is not trivial.
  outcomes = LAWS[law](rng, 3000, mean / 8)
  assert _tails(outcomes, 3000, log_bound).passes(1.0, delta, math.log(beta))


def test_passes_requires_enough_outcomes():
  log_beta = math.log(1e-9)
  # If all outcomes are zero, log(1 / beta) / delta of them are required.
  assert not _tails(np.zeros(0), 2000, 0.0).passes(1.0, 0.01, log_beta)
  assert _tails(np.zeros(0), 2400, 0.0).passes(1.0, 0.01, log_beta)
  # If the bound is below delta, it passes without further outcomes.
  assert _tails(np.ones(10), 10, math.log(0.009)).passes(1.0, 0.01, log_beta)
  assert not _tails(np.ones(10), 10, math.log(0.011)).passes(1.0, 0.01, log_beta)


def test_log_bounds_beyond_float64_do_not_pass():
  for size in (10, 3000):
    tails = _tails(np.full(size // 2, 1e-3), size, log_bound=800.0)
    assert not tails.passes(1.0, 0.5, math.log(0.05))
    assert tails.delta(1.0) == math.inf
  # In so large a unit, tiny outcomes still count.
  tails = _tails(np.full(10, 1e-320), 3000, log_bound=700.0)
  assert 0 < tails.delta(1.0) < 1e-15
  event = _allocated(1e-3)
  assert accountants.delta(event, 1.0, NAME, BOTH) == 1.0
  assert 1e6 < accountants.epsilon(event, 1e-6, NAME, BOTH) < 1e7


@pytest.mark.few(2)
@pytest.mark.parametrize('removed', [True, False])
@pytest.mark.parametrize('make_event', EVENTS)
def test_passes_is_monotone_in_epsilon_and_delta(make_event, removed):
  mixture = monte_carlo._mixture(make_event())
  proposal = monte_carlo.best_proposal(mixture, removed, 1.0)
  tails = monte_carlo.draw(mixture, np.random.default_rng(5), 20_000, proposal, 0.01)
  assert np.all(np.diff(tails.losses) <= 0) and tails.losses[-1] > 0.01
  epsilons, deltas = np.linspace(0.01, 5.0, 20), np.geomspace(1e-6, 0.9, 20)
  passed = np.array(
    [[tails.passes(e, d, math.log(1e-6)) for d in deltas] for e in epsilons]
  )
  assert 0.1 < passed.mean() < 0.9
  assert np.all(np.diff(passed.astype(int), axis=0) >= 0)
  assert np.all(np.diff(passed.astype(int), axis=1) >= 0)
  assert np.all(np.diff([tails.delta(each) for each in epsilons]) <= 0)


def test_zero_noise_gives_infinite_epsilon():
  strategy = strategies.BandedToeplitz.square_root(6, num_bands=2)
  event = run_events.event(strategy, sampling.BallsInBins(6, 3), 0.0)
  assert accountants.epsilon(event, 1e-6, NAME, BOTH) == math.inf
  assert accountants.delta(event, 3.0, NAME, BOTH) == 1.0
  nothing = monte_carlo.MonteCarloAccountant(BOTH)
  assert nothing.get_epsilon(1e-6) == nothing.get_delta(1.0) == 0.0


def test_composed_events_are_refused():
  event, refused = _five_bins(), dp_accounting.UnsupportedEventError
  composed = dp_accounting.ComposedDpEvent([event, dp_accounting.GaussianDpEvent(1.0)])
  with pytest.raises(refused):
    monte_carlo.MonteCarloAccountant(BOTH).compose(composed)
  accountant = monte_carlo.MonteCarloAccountant(BOTH).compose(event)
  with pytest.raises(refused):
    accountant.compose(event)
  with pytest.raises(refused):
    monte_carlo.MonteCarloAccountant(BOTH).compose(event, 2)
  # Refused events changed nothing, and an event composed with nothing is accepted.
  epsilon = accountants.epsilon(event, 1e-3, NAME, BOTH)
  assert accountant.get_epsilon(1e-3) == epsilon
  wrapped = dp_accounting.ComposedDpEvent([dp_accounting.SelfComposedDpEvent(event, 1)])
  assert accountants.epsilon(wrapped, 1e-3, NAME, BOTH) == epsilon


def test_unsupported_events_and_relations_are_refused():
  refused = dp_accounting.UnsupportedEventError
  for event in (
    dp_accounting.GaussianDpEvent(1.0),
    events.AllocatedDpEvent(3, 3, dp_accounting.LaplaceDpEvent(1.0)),
  ):
    with pytest.raises(refused):
      accountants.epsilon(event, 1e-5, NAME, BOTH)
  for event in (_five_bins(), _min_sep(), _allocated()):
    with pytest.raises(refused, match='REPLACE_ONE'):
      accountants.epsilon(event, 1e-5, NAME, Relation.REPLACE_ONE)
  epsilon = accountants.epsilon(event, 1e-3, NAME, BOTH)
  assert accountants.epsilon(event, 1e-3, NAME, Relation.REPLACE_SPECIAL) == epsilon


@pytest.mark.few(3)
@pytest.mark.parametrize('scheme', [
  sampling.BMinSepSampling(20, 1e-9, 1),
  sampling.BMinSepSampling(3, 1.0, 1),
  sampling.RandomAllocation(4, 3),
])  # fmt: skip
@pytest.mark.parametrize('noise', [0.01, 0.3, 50.0])
def test_epsilon_with_extreme_noise_is_near_and_at_most_bound(scheme, noise):
  event = run_events.event(strategies.Identity(scheme.num_rounds), scheme, noise)
  bound = accountants.epsilon(event.bound, 1e-5, 'pld', BOTH)
  # Sampling does not gain much here, so that epsilon is not far below the bound.
  assert 0.9 * bound <= accountants.epsilon(event, 1e-5, NAME, BOTH) <= bound


def test_too_many_rounds_or_places_are_refused():
  for n, b, scheme in (
    (10_000, 10_000, sampling.BMinSepSampling(10_000, 0.001, 10_000)),
    (4097, 4097, sampling.BallsInBins(4097, 4097)),
    (20_000, 9, sampling.BallsInBins(20_000, 9)),
  ):
    strategy = strategies.BandedToeplitz.square_root(n, num_bands=9)
    message = f'num_rounds={n}: {b} places.*accountant=pld'
    event = run_events.event(strategy, scheme, 0.5)
    for ask in (accountants.epsilon, accountants.delta):
      with pytest.raises(ValueError, match=message):
        ask(event, 1e-6, NAME, BOTH)
    with pytest.raises(ValueError, match=message):
      monte_carlo.MonteCarloAccountant.estimate(event, 1e-6)
  event = run_events.event(
    strategies.Identity(2000), sampling.RandomAllocation(2000, 655), 20.5
  )
  with pytest.raises(ValueError, match='num_rounds=2000: .*accountant=pld'):
    accountants.epsilon(event, 1e-6, NAME, BOTH)


@pytest.mark.slow
def test_five_of_391_rounds_need_less_noise_by_monte_carlo_than_by_bound():
  # For (8, 1.25e-5), as in arXiv:2605.07072; the least noise is near 0.5201.
  scheme, delta = sampling.RandomAllocation(391, 5), 1.25e-5
  poisson = sampling.PoissonSampling(391, 5 / 391)
  for scheme_of_run, noise in ((scheme, 0.5335), (poisson, 0.556)):
    for change, meets_target in ((0.0, True), (1e-4, False)):
      event = run_events.event(strategies.Identity(391), scheme_of_run, noise - change)
      assert (accountants.epsilon(event, delta, 'pld', BOTH) <= 8.0) == meets_target
  for noise, meets_target in ((0.5235, True), (0.5185, False)):
    event = run_events.event(strategies.Identity(391), scheme, noise)
    assert (accountants.epsilon(event, delta, NAME, BOTH) <= 8.0) == meets_target
  # Delta is not below an estimate without importance weights.
  mixture = monte_carlo._mixture(event)
  rng, size = np.random.default_rng(3), 20_000
  ratios = mixture.log_ratios(mixture.draw(rng, size, 1.0, 0.0))
  for epsilon in (1.0, 3.0):
    outcomes = -np.expm1(np.minimum(epsilon - ratios, 0.0))
    error = 5.3 * outcomes.std() / math.sqrt(size)
    actual = accountants.delta(event, epsilon, NAME, BOTH)
    assert outcomes.mean() - error <= actual <= 1.1 * outcomes.mean() + error


def test_other_accountants_compose_bound_of_mixture_events():
  event, gaussian = _min_sep(), dp_accounting.GaussianDpEvent(1.0)
  bound, refused = event.bound, dp_accounting.UnsupportedEventError
  for parts, bounds in (
    ([event, gaussian], [bound, gaussian]),
    ([event, _five_bins()], [bound, _five_bins().bound]),
  ):
    composed = dp_accounting.ComposedDpEvent(parts)
    expected = accountants.epsilon(
      dp_accounting.ComposedDpEvent(bounds), 1e-5, 'pld', BOTH
    )
    assert accountants.tightest(composed, BOTH) == 'pld'
    assert accountants.epsilon(composed, 1e-5, None, BOTH) == expected
    with pytest.raises(refused, match='leave it out'):
      accountants.epsilon(composed, 1e-5, NAME, BOTH)
    with pytest.raises(refused, match='REPLACE_ONE'):
      accountants.epsilon(composed, 1e-5, 'pld', Relation.REPLACE_ONE)
  never = dp_accounting.SelfComposedDpEvent(event, 0)
  for other, expected in ((_five_bins(), 'pld'), (gaussian, 'exact')):
    composed = dp_accounting.ComposedDpEvent([never, other])
    assert accountants.tightest(composed, BOTH) == expected
  # A single event is read by Monte Carlo, or by PLD as its bound; by no exact curve.
  assert accountants.tightest(event, BOTH) == NAME
  epsilon = accountants.epsilon(event, 1e-5, 'pld', BOTH)
  assert epsilon == accountants.epsilon(bound, 1e-5, 'pld', BOTH)
  with pytest.raises(refused, match='leave it out'):
    accountants.epsilon(event, 1e-5, 'exact', BOTH)
