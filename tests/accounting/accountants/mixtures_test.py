"""Gaussian mixtures of Monte Carlo: likelihoods, draws and bounds by enumeration."""

import collections
import functools
import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import special
from scipy import stats

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.accounting.accountants import monte_carlo
from tff_dp_aggregators.sampling import allocation

BOTH = Relation.ADD_OR_REMOVE_ONE
# Stretch and tilt: of P, of both directions at a = 1.3 and 4, and an arbitrary pair.
STRETCHED = [(1.0, 0.0), (1.3, 0.3), (-0.3, -1.3), (4.0, 3.0), (-3.0, -4.0), (0.6, 2.0)]
# Rounds, b, p.
SAMPLINGS = [
  (1, 9, 0.4),
  (3, 2, 1.0),
  (4, 1, 0.2),
  (6, 6, 0.7),
  (7, 3, 0.45),
]


def _toeplitz(n, b):
  return strategies.BandedToeplitz.square_root(n, num_bands=b)


def _random_banded(n, b):
  """A strategy with columns of different norms and entries of both signs."""
  rng = np.random.default_rng(100 * n + b)
  matrix = np.tril(rng.normal(size=(n, n)))
  matrix *= np.subtract.outer(np.arange(n), np.arange(n)) < b
  np.fill_diagonal(matrix, rng.uniform(0.5, 1.5, n))
  return strategies.Banded.from_matrix(matrix, num_bands=min(n, b))


def _sets_from(t, n, b, p):
  """Sets of rounds of a client that is free in round t, with their probabilities."""
  if t >= n:
    return [((), 1.0)]
  stays = [(rounds, (1 - p) * q) for rounds, q in _sets_from(t + 1, n, b, p)]
  return stays + [((t, *rounds), p * q) for rounds, q in _sets_from(t + b, n, b, p)]


def _sets(n, b, p):
  """Every set of rounds of b-min-sep sampling, with its probability."""
  probabilities = collections.Counter()
  for first in range(b):
    probability = (p if first else 1.0) / (1 + (b - 1) * p)
    for rounds, q in _sets_from(first, n, b, p):
      probabilities[rounds] += probability * q
  return dict(probabilities)


def _bins(n, b):
  """The rounds of every bin, with its probability."""
  probabilities = collections.Counter()
  for first in range(b):
    probabilities[tuple(range(first, n, b))] += 1 / b
  return dict(probabilities)


def _means(strategy, noise, sets):
  """The mean m_S of every set S, one in each row."""
  columns = np.abs(strategy.materialize()).T / noise
  return np.array([columns[list(rounds)].sum(axis=0) for rounds in sets])


def _log_mean(logs, probabilities, axis=None):
  return special.logsumexp(logs, axis=axis, b=probabilities)


def _ratios(means, probabilities, y, stretch, tilt):
  """log (M(c) L_w) of outcomes y, by enumeration of the sets."""
  norms = (means**2).sum(axis=1)
  logs = stretch * y @ means.T - (stretch**2 - tilt) * norms / 2
  return _log_mean(logs, probabilities, axis=1)


def _cases():
  """Yields name, mixture, means, probabilities, and columns for inner products."""
  for n, b, p in SAMPLINGS:
    strategy, sets = _random_banded(n, b), _sets(n, b, p)
    columns = np.abs(strategy.materialize()).T / 0.8
    yield (
      f'{n}-{b}-{p}',
      monte_carlo._BMinSepMixture(strategy, b, p, 0.8),
      _means(strategy, 0.8, sets),
      np.array(list(sets.values())),
      columns,
    )
  for n, b in ((1, 3), (5, 2), (7, 1), (6, 4)):
    strategy, sets = _random_banded(n, n), _bins(n, b)
    means = _means(strategy, 4.0, sets)
    yield (
      f'bins-{n}-{b}',
      monte_carlo._BallsInBinsMixture(strategy, b, 4.0),
      means,
      np.array(list(sets.values())),
      np.array([row for row, rounds in zip(means, sets) if rounds]),
    )

  for n, k, num_places in ((1, 1, 1), (3, 1, 7), (5, 2, 5), (7, 5, 7), (4, 4, 4)):
    sets = {each: 1 / math.comb(n, k) for each in itertools.combinations(range(n), k)}
    if num_places > n:
      sets = {**dict.fromkeys(sets, 1 / num_places), (): 1 - n / num_places}
    identity = strategies.Identity(n)
    yield (
      f'{k} of {n}-{num_places}',
      monte_carlo._AllocationMixture(n, k, 0.8, num_places),
      _means(identity, 0.8, sets),
      np.array(list(sets.values())),
      np.eye(n) / 0.8,
    )


CASES = [pytest.param(*each, id=name) for name, *each in _cases()]


@pytest.mark.parametrize(('mixture', 'means', 'probabilities', 'columns'), CASES)
def test_log_ratios_and_moments_match_enumeration(
  mixture, means, probabilities, columns
):
  assert probabilities.sum() == pytest.approx(1.0, rel=1e-13)
  rng = np.random.default_rng(1)
  y = rng.normal(size=(40, columns.shape[1])) * np.geomspace(0.1, 3, 40)[:, None]
  for stretch, tilt in STRETCHED:
    actual = mixture.log_ratios(y @ columns.T, stretch, tilt)
    expected = _ratios(means, probabilities, y, stretch, tilt)
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-11)
  norms = (means**2).sum(axis=1)
  for tilt in (-7.0, -1.3, 0.0, 0.4, 3.0):
    expected = _log_mean(tilt * norms / 2, probabilities)
    assert mixture.log_moment(tilt) == pytest.approx(expected, rel=1e-12, abs=1e-13)
  both = np.multiply.outer(probabilities, probabilities)
  expected = special.logsumexp(means @ means.T, b=both)
  assert mixture.log_second_moment() == pytest.approx(expected, rel=1e-11, abs=1e-12)


def _check_frequencies(counts, expected):
  """Chi-square test at 1e-7; what is expected less than five times is pooled."""
  counts, expected = np.array(counts, float), np.array(expected)
  assert counts[expected < 1e-12].sum() == 0
  rare = expected < 5
  counts = np.append(counts[~rare], counts[rare].sum())
  expected = np.append(expected[~rare], expected[rare].sum())
  possible = expected > 0
  counts, expected = counts[possible], expected[possible]
  statistic = ((counts - expected) ** 2 / expected).sum()
  assert statistic <= stats.chi2.isf(1e-7, len(counts)), (counts, expected)


@pytest.mark.parametrize('tilt', [0.0, 1.2, -2.5])
@pytest.mark.parametrize(('n', 'b', 'p'), SAMPLINGS)
def test_b_min_sep_rounds_are_drawn_with_enumerated_probabilities(n, b, p, tilt):
  strategy, sets, size = _random_banded(n, b), _sets(n, b, p), 20_000
  mixture = monte_carlo._BMinSepMixture(strategy, b, p, 0.8)
  taken = mixture._rounds(np.random.default_rng(n + b), size, tilt)
  assert taken.shape == (n, size)
  drawn = collections.Counter(tuple(np.flatnonzero(each)) for each in taken.T)
  assert set(drawn) <= set(sets)
  norms = (_means(strategy, 0.8, sets) ** 2).sum(axis=1)
  weights = np.array(list(sets.values())) * np.exp(tilt * norms / 2)
  expected = size * weights / weights.sum()
  _check_frequencies([drawn[each] for each in sets], expected)


class _KnownNoise:
  """A random generator with given normal numbers; all other numbers are random."""

  def __init__(self, seed, normal):
    self._rng = np.random.default_rng(seed)
    self._normal = normal
    self.choice, self.random = self._rng.choice, self._rng.random

  def standard_normal(self, size):
    assert size == self._normal.shape
    return self._normal.copy()


def _check_points(inner, points, weights):
  """Checks that each row is one of these points, in proportion to its weight."""
  matches = np.abs(inner[:, None] - points[None]).max(axis=2) < 1e-12
  assert np.all(matches.sum(axis=1) == 1)
  _check_frequencies(matches.sum(axis=0), len(inner) * weights / weights.sum())


@pytest.mark.parametrize('tilt', [0.0, 1.2, -2.5])
@pytest.mark.parametrize(('n', 'b'), [(5, 2), (4, 9)])
def test_bins_are_drawn_with_enumerated_probabilities(n, b, tilt):
  strategy, sets, size = _random_banded(n, n), _bins(n, b), 20_000
  mixture = monte_carlo._BallsInBinsMixture(strategy, b, 1.1)
  columns = min(n, b)
  rng = _KnownNoise(b, np.zeros((size, columns)))
  inner = mixture.draw(rng, size, 1.5, tilt)
  means = _means(strategy, 1.1, sets)
  columns_of_bins = np.array([row for row, rounds in zip(means, sets) if rounds])
  weights = np.array(list(sets.values())) * np.exp(tilt * (means**2).sum(axis=1) / 2)
  # Without noise, a draw is w times the inner products of one mean with all columns.
  _check_points(inner, 1.5 * (means @ columns_of_bins.T), weights)


@pytest.mark.parametrize('num_bins', [1, 4, 11])
def test_bins_of_adds_columns_and_noise_has_their_covariance(num_bins):
  strategy = _random_banded(6, 6)
  matrix = np.abs(strategy.materialize())
  bins = allocation.bins_of(strategy, num_bins)
  assert bins.shape == (6, min(num_bins, 6))
  for j, column in enumerate(bins.T):
    np.testing.assert_allclose(column, matrix[:, j::num_bins].sum(axis=1), rtol=1e-14)
  columns = bins.shape[1]
  # With unit vectors as noise, inner products show their covariance.
  rng = _KnownNoise(1, np.eye(columns))
  inner = monte_carlo._BallsInBinsMixture(strategy, num_bins, 2.0).draw(
    rng, columns, 0.0, 0.0
  )
  np.testing.assert_allclose(inner.T @ inner, bins.T @ bins / 4, rtol=1e-9, atol=1e-9)


def _mixtures():
  """Mixtures of every kind, with sets of different norms, some of them empty."""
  return {
    'breaks': monte_carlo._BMinSepMixture(_random_banded(7, 3), 3, 0.3, 2.5),
    'rare': monte_carlo._BMinSepMixture(_toeplitz(7, 2), 9, 0.2, 1.0),
    'bins': monte_carlo._BallsInBinsMixture(_random_banded(7, 7), 3, 6.0),
    'empty': monte_carlo._BallsInBinsMixture(_toeplitz(4, 3), 9, 1.0),
    'four of five': monte_carlo._AllocationMixture(5, 4, 2.5),
    'more places': monte_carlo._AllocationMixture(5, 1, 1.2, 9),
  }


MIXTURES = sorted(_mixtures())


@pytest.mark.few(8)
@pytest.mark.parametrize('make', [
  monte_carlo.squared,
  functools.partial(monte_carlo.squared, doubled=True),
  *(
    functools.partial(monte_carlo.stretched, a=a, removed=removed)
    for a, removed in itertools.product((1.05, 2.2), (True, False))
  ),
])  # fmt: skip
@pytest.mark.parametrize('name', MIXTURES)
def test_importance_weights_have_mean_one(name, make, monkeypatch):
  mixture, size = _mixtures()[name], 40_000
  # Several batches, the last of them smaller.
  monkeypatch.setattr(monte_carlo, '_BATCH', 17_000 * mixture.cells)
  rng = np.random.default_rng(7)
  losses, log_weights, *_ = monte_carlo.draw(
    mixture, rng, size, make(mixture), -math.inf
  )
  assert losses.shape == log_weights.shape == (size,)
  weights = np.exp(log_weights)
  error = weights.std() / math.sqrt(size)
  assert error < 0.05
  assert abs(weights.mean() - 1) <= 5 * error
  # As Q is P / L, the weights of Q for the same outcomes have mean 1 as well.
  weights_of_q = np.exp(log_weights - losses)
  error = weights_of_q.std() / math.sqrt(size)
  assert error < 0.05
  assert abs(weights_of_q.mean() - 1) <= 5 * error


@pytest.mark.few(12)
@pytest.mark.parametrize('removed', [True, False])
@pytest.mark.parametrize('a', [1.01, 2.0, 10.0])
@pytest.mark.parametrize('name', MIXTURES)
def test_stretched_outcomes_are_within_log_bound(name, a, removed):
  mixture = _mixtures()[name]
  proposal = monte_carlo.stretched(mixture, a, removed)
  w, c = (a, a - 1) if removed else (1 - a, -a)
  num_above = 0
  # With the stretch of the proposal, with none, and with a larger one.
  for stretch in (w, 0.0, 1.5 * w):
    rng = np.random.default_rng(9)
    inner = mixture.draw(rng, 5000, stretch, c)
    log_ratios = mixture.log_ratios(inner, 1.0, 0.0)
    drawn = proposal.log_densities(inner, log_ratios)
    losses = log_ratios if removed else -log_ratios
    log_weights = (log_ratios if removed else 0.0) - drawn
    for epsilon in (0.0, 0.05, 0.5, 2.0):
      above = losses > epsilon
      num_above += above.sum()
      logs = np.log(-np.expm1(epsilon - losses[above])) + log_weights[above]
      bound = proposal.log_bound(epsilon)
      assert logs.max(initial=-math.inf) <= bound + 1e-9
  assert num_above > 1000


@pytest.mark.parametrize('name', MIXTURES)
def test_squared_outcomes_are_within_log_bound(name):
  # Outcomes with a loss of epsilon + log 2 reach the bound.
  mixture = _mixtures()[name]
  proposal, doubled = (monte_carlo.squared(mixture, each) for each in (False, True))
  inner = np.concatenate(
    [mixture.draw(np.random.default_rng(9), 5000, w, 0.0) for w in (0.0, 1.0, 2.0, 3.0)]
  )
  losses = mixture.log_ratios(inner)
  log_weights = losses - proposal.log_densities(inner, losses)
  for epsilon in (0.0, 0.05, 0.5):
    above = losses > epsilon
    logs = np.log(-np.expm1(epsilon - losses[above])) + log_weights[above]
    bound = proposal.log_bound(epsilon)
    assert bound - 0.01 <= logs.max() <= bound + 1e-9
    # In the doubled proposal, half of the draws are of one set twice: twice the bound.
    drawn = doubled.log_densities(inner, losses)[above]
    logs += losses[above] - log_weights[above] - drawn
    assert logs.max() <= doubled.log_bound(epsilon) + 1e-9


@pytest.mark.parametrize('p', [0.5, 1.0])
def test_log_ratios_beyond_float64_match_closed_form(p):
  # With at most one of two rounds, the ratio is known in closed form.
  mixture = monte_carlo._BMinSepMixture(strategies.Identity(2), 2, p, 0.01)
  inner = np.array([[0.0, 0.0], [9000.0, -50.0], [-3000.0, 12000.0]])
  exponents = np.hstack([inner - 5000.0, np.zeros((3, 1))])
  one_round = p / (1 + p)
  probabilities = np.array([one_round, one_round, (1 - p) / (1 + p)])
  with np.errstate(divide='ignore'):
    logs = exponents + np.log(probabilities)
  actual = mixture.log_ratios(inner, 1.0, 0.0)
  np.testing.assert_allclose(actual, np.logaddexp.reduce(logs, axis=1), rtol=1e-12)
  assert math.isfinite(mixture.log_moment(-100.0) + mixture.log_moment(100.0))


@pytest.mark.parametrize('spread', [0.01, 50.0, 2000.0])
def test_log_mean_of_products_matches_enumeration(spread):
  rng = np.random.default_rng(4)
  for n, k in ((1, 1), (9, 1), (9, 4), (8, 7), (6, 6)):
    logs = spread * rng.normal(size=(60, n))
    sets = [list(each) for each in itertools.combinations(range(n), k)]
    sums = np.stack([logs[:, each].sum(axis=1) for each in sets])
    expected = special.logsumexp(sums, axis=0) - math.log(len(sets))
    actual = monte_carlo.log_mean_of_products(logs, k)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)
  # With many rounds: all logs equal, and then half of them negligible.
  for n, k in ((1024, 256), (700, 349), (700, 360)):
    equal = monte_carlo.log_mean_of_products(np.full((1, n), spread), k)
    assert equal == pytest.approx(k * spread, rel=1e-11, abs=1e-9)
    logs = np.where(np.arange(n) % 2, 3.0, -1e9)[None]
    log_factorials = special.gammaln([n // 2 + 1, n - k + 1, n // 2 - k + 1, n + 1])
    expected = log_factorials @ [1, 1, -1, -1] + 3.0 * k
    if k <= n // 2:
      actual = monte_carlo.log_mean_of_products(logs, k)
      assert actual == pytest.approx(expected, rel=1e-10)


def test_allocation_mixture_with_many_places_matches_closed_form():
  mixture = monte_carlo._AllocationMixture(3, 1, 0.05, 10**12)
  inner = np.array([[400.0, -100.0, 30.0], [0.0, 0.0, 0.0]])
  actual = mixture.log_ratios(inner)
  assert actual == pytest.approx([200 - 12 * math.log(10), 0.0], rel=1e-12, abs=1e-11)
  # If two independent sets are not empty, they are the same with probability 1/3.
  expected = 400.0 - 24 * math.log(10) + math.log(3)
  assert mixture.log_second_moment() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(('n', 'b', 'p'), SAMPLINGS)
def test_pairs_of_sets_are_drawn_with_enumerated_probabilities(n, b, p):
  strategy, sets, size, noise = _random_banded(n, b), _sets(n, b, p), 30_000, 0.6
  mixture = monte_carlo._BMinSepMixture(strategy, b, p, noise)
  taken = mixture._pairs.draw(np.random.default_rng(n + b), size)
  assert taken.shape == (n, size)
  drawn = collections.Counter(tuple(each.astype(int)) for each in taken.toarray().T)
  means, probabilities = _means(strategy, noise, sets), np.array(list(sets.values()))
  weights = np.outer(probabilities, probabilities) * np.exp(means @ means.T)
  # What is drawn is how often each round is in the two sets, not the sets themselves.
  expected = collections.Counter()
  for (one, two), weight in zip(itertools.product(sets, sets), weights.ravel()):
    times = np.bincount([*one, *two], minlength=n)
    expected[tuple(times)] += size * weight / weights.sum()
  assert set(drawn) <= set(expected)
  _check_frequencies([drawn[each] for each in expected], list(expected.values()))


@pytest.mark.parametrize(('n', 'b'), [(5, 2), (4, 9)])
def test_pairs_of_bins_are_drawn_with_enumerated_probabilities(n, b):
  strategy, sets, size = _random_banded(n, n), _bins(n, b), 30_000
  mixture = monte_carlo._BallsInBinsMixture(strategy, b, 2.5)
  inner = mixture.draw_squared(_KnownNoise(b, np.zeros((size, min(n, b)))), size)
  means, probabilities = _means(strategy, 2.5, sets), np.array(list(sets.values()))
  columns_of_bins = np.array([row for row, rounds in zip(means, sets) if rounds])
  pairs = list(itertools.combinations_with_replacement(range(len(means)), 2))
  points = np.array([(means[i] + means[j]) @ columns_of_bins.T for i, j in pairs])
  weights = np.outer(probabilities, probabilities) * np.exp(means @ means.T)
  expected = np.array([weights[i, j] * (1 if i == j else 2) for i, j in pairs])
  _check_points(inner, points, expected)


def test_b_min_sep_refuses_strategies_with_too_many_bands():
  # Likelihoods of such rounds do not multiply, and epsilon would be too small.
  pair = strategies.BandedToeplitz(6, (1.0, 1.0))
  bound = dp_accounting.GaussianDpEvent(0.5)
  refused = (
    (pair, 1, 'num_bands=2 '),
    (strategies.BandedInverse.square_root(6, 2), 4, 'num_bands=(inf|6)'),
  )
  for strategy, b, match in refused:
    with pytest.raises(ValueError, match=match):
      monte_carlo._BMinSepMixture(strategy, b, 0.3, 1.0)
    scheme = sampling.BMinSepSampling(6, 0.3, b)
    with pytest.raises(ValueError, match=match):
      run_events.event(strategy, scheme, 1.0)
    event = events.BMinSepDpEvent(strategy, b, 0.3, 1.0, bound)
    for ask in (accountants.epsilon, accountants.delta):
      with pytest.raises(ValueError, match=match):
        ask(event, 0.05, 'monte_carlo', BOTH)
