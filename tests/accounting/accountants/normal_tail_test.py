"""Normal-tail bounds on losses of Q, against integration and simulation."""

import math

import numpy as np
import pytest
from scipy import integrate
from scipy import special
from scipy import stats

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.accountants import monte_carlo

# Means in the plane, with their probabilities.
PLANE = {
  'one': ([[1.3, 0.0]], [1.0]),
  'sampled': ([[0.0, 0.0], [1.5, 0.0]], [0.8, 0.2]),
  'two bins': ([[1.2, 0.0], [0.0, 1.2]], [0.5, 0.5]),
  'two rounds': ([[0, 0], [1, 0], [0, 1], [1, 1]], [0.49, 0.21, 0.21, 0.09]),
  'signed': ([[2.0, 0.3], [-0.5, 1.0], [0.0, 0.0]], [0.2, 0.5, 0.3]),
}
# A rotation: along an axis, whole rows of grid points would have the same loss.
_TURN = np.array([[math.cos(0.4), math.sin(0.4)], [-math.sin(0.4), math.cos(0.4)]])


class _Plane:
  """Probabilities under Q and losses -log L of a mixture in the plane, on a grid."""

  def __init__(self, name):
    means, weights = np.array(PLANE[name][0]) @ _TURN, np.array(PLANE[name][1])
    axis = np.linspace(-9, 9, 901)
    x, y = np.meshgrid(axis, axis, indexing='ij')
    logs = [x * m[0] + y * m[1] - (m @ m) / 2 for m in means]
    self.losses = -special.logsumexp(logs, axis=0, b=weights[:, None, None]).ravel()
    one = np.exp(-axis * axis / 2)
    self.masses = (np.multiply.outer(one, one) / one.sum() ** 2).ravel()

  def tail(self, loss):
    return float(self.masses[self.losses >= loss].sum())

  def delta(self, epsilon):
    above = self.losses > epsilon
    return float(self.masses[above] @ -np.expm1(epsilon - self.losses[above]))


@pytest.mark.few(1)
@pytest.mark.parametrize('name', sorted(PLANE, reverse=True))
def test_tails_of_mixtures_are_concave_on_normal_scale(name):
  plane = _Plane(name)
  losses = np.linspace(*np.quantile(plane.losses, [0.05, 0.95]), 60)
  tails = np.array([plane.tail(each) for each in losses])
  kept = (tails > 1e-12) & (tails < 1 - 1e-9)
  losses, z = losses[kept], special.ndtri(tails[kept])
  slopes = np.diff(z) / np.diff(losses)
  # The slopes decrease, up to the error of the grid.
  assert np.all(np.diff(slopes) <= 0.02 * np.abs(slopes[1:]))
  if name == 'one':
    np.testing.assert_allclose(slopes, -1 / 1.3, rtol=0.01)


@pytest.mark.parametrize('mean', [0.0, 40.0])
@pytest.mark.parametrize('deviation', [1e-3, 0.3, 9.0])
def test_log_delta_matches_integral_of_normal_loss(mean, deviation):
  bound = monte_carlo.NormalTail(mean, deviation, mean - 3 * deviation)
  for x in (-2.0, 0.0, 1.0, 4.0, 7.0):
    epsilon = mean + x * deviation
    # In units of the deviation: integral of (1 - exp(-deviation t)) phi(x + t).
    scale = stats.norm.pdf(x)
    exact, _ = integrate.quad(
      lambda t: -math.expm1(-deviation * t) * math.exp(-x * t - t * t / 2),  # noqa: B023
      0.0,
      40.0,
      epsabs=0,
      epsrel=1e-11,
      limit=500,
    )
    actual = bound.log_delta(epsilon)
    assert actual >= math.log(scale * exact) - 1e-12
    assert actual == pytest.approx(math.log(scale * exact), abs=2e-8 / deviation)
  assert monte_carlo.NormalTail(1.0, 0.0, 0.5).log_delta(2.0) == -math.inf


@pytest.mark.parametrize('log_beta', [math.log(0.1), math.log(1e-13)])
def test_probability_bounds_match_binomial_distribution(log_beta):
  for count, size in ((0, 50), (1, 50), (7, 1000), (500, 1000), (999, 1000)):
    upper = monte_carlo.probability_at_most(count, size, log_beta)
    assert stats.binom.logcdf(count, size, upper) <= log_beta
    assert stats.binom.logcdf(count, size, upper * (1 - 1e-6)) > log_beta
  assert monte_carlo.probability_at_most(50, 50, log_beta) == 1.0


def _tail_from_counts(losses, size, epsilon, log_beta):
  _, points = monte_carlo.counting_points(losses[:8192], size, epsilon, log_beta)
  main_run = losses[8192 : 8192 + size]
  counts = int((main_run >= points[0]).sum()), int((main_run >= points[1]).sum())
  return monte_carlo.normal_tail(counts, size, points, log_beta)


def test_normal_tail_from_counts_bounds_rare_delta():
  rng, log_beta, size = np.random.default_rng(1), math.log(1e-9), 2**17
  for name, (means, weights) in PLANE.items():
    y = rng.standard_normal((8192 + size, 2))
    means = np.array(means)
    logs = y @ means.T - (means**2).sum(axis=1) / 2
    losses = -special.logsumexp(logs, axis=1, b=weights)
    plane, epsilon = _Plane(name), 3.0
    bound = _tail_from_counts(losses, size, epsilon, log_beta)
    exact = plane.delta(epsilon)
    assert bound.start <= epsilon
    assert exact <= math.exp(bound.log_delta(epsilon))
    predicted, _ = monte_carlo.counting_points(losses[:8192], size, epsilon, log_beta)
    assert predicted < 0
    if name == 'one':  # The loss is normal: only the confidence costs.
      assert bound.log_delta(epsilon) <= math.log(2.5 * exact)
      assert bound.log_delta(12.0) <= 0.7 * math.log(plane.delta(9.0))


def test_normal_tail_is_none_if_counts_are_uninformative():
  losses = np.random.default_rng(2).normal(5.0, 0.1, 8192)
  assert monte_carlo.counting_points(losses, 10_000, 3.0, -20.0) == (0.0, None)
  # Equal counts, or none, give no line.
  assert monte_carlo.normal_tail((100, 100), 100, (0.0, 1.0), -20.0) is None
  assert monte_carlo.normal_tail((0, 0), 100, (0.0, 1.0), -20.0) is None
  # Many losses above the first point and none above the second give a steep line.
  bound = monte_carlo.normal_tail((900, 0), 1000, (0.1, 0.4), -20.0)
  assert bound.log_delta(8.0) < -100


class _IndependentRounds:
  """Exact delta of independent rounds: b-min-sep with b = 1 is Poisson sampling."""

  def __init__(self, n, p, noise):
    self.mixture = monte_carlo._BMinSepMixture(strategies.Identity(n), 1, p, noise)
    self.n, self.p, self.noise = n, p, noise

  def delta_added(self, epsilon):
    """Delta by convolving losses of a round on a fine grid, rounded to the nearest."""
    x = np.linspace(-12, 12, 240_001)
    loss = -np.log1p(self.p * np.expm1(x / self.noise - 0.5 / self.noise**2))
    cell = 2e-3
    first = math.floor(loss.min() / cell)
    masses = np.exp(-x * x / 2)
    size = 2**20
    single = np.bincount(
      np.round(loss / cell).astype(int) - first, masses / masses.sum(), size
    )
    total = np.fft.irfft(np.fft.rfft(single) ** self.n, size)
    losses = (self.n * first + np.arange(size)) * cell
    above = losses > epsilon
    return float(total[above] @ -np.expm1(epsilon - losses[above]))


def test_delta_added_bounds_many_independent_rounds():
  rounds = _IndependentRounds(40, 0.3, 1.2)
  epsilon = 6.0
  exact = rounds.delta_added(epsilon)
  assert 1e-12 < exact < 1e-3
  # Bets alone would need more outcomes than the maximum.
  search = monte_carlo._Search(
    rounds.mixture, np.random.default_rng(3), 1e-6, monte_carlo._log_beta(1e-6)
  )
  assert search.log_excess(False, epsilon) > 0
  bound = search.delta_added(epsilon)
  assert exact <= bound <= 1e4 * exact
