"""Bounds on the losses of Q, against normal distributions, integration and counting."""

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
# Along no axis, as all points of a grid would have the same loss there.
_TURN = np.array([[math.cos(0.4), math.sin(0.4)], [-math.sin(0.4), math.cos(0.4)]])


class _Plane:
  """Q and log L of a mixture in the plane, on a grid."""

  def __init__(self, name):
    means, weights = np.array(PLANE[name][0]) @ _TURN, np.array(PLANE[name][1])
    axis = np.linspace(-9, 9, 901)
    x, y = np.meshgrid(axis, axis, indexing='ij')
    logs = [x * m[0] + y * m[1] - (m @ m) / 2 for m in means]
    self.losses = -special.logsumexp(logs, axis=0, b=weights[:, None, None]).ravel()
    one = np.exp(-axis * axis / 2)
    self.masses = (np.multiply.outer(one, one) / one.sum() ** 2).ravel()

  def beyond(self, loss):
    return float(self.masses[self.losses >= loss].sum())

  def delta(self, epsilon):
    some = self.losses > epsilon
    return float(self.masses[some] @ -np.expm1(epsilon - self.losses[some]))


@pytest.mark.few(1)
@pytest.mark.parametrize('name', sorted(PLANE, reverse=True))
def test_tails_of_mixtures_are_concave_on_the_normal_scale(name):
  plane = _Plane(name)
  at = np.linspace(*np.quantile(plane.losses, [0.05, 0.95]), 60)
  shares = np.array([plane.beyond(each) for each in at])
  some = (shares > 1e-12) & (shares < 1 - 1e-9)
  at, z = at[some], special.ndtri(shares[some])
  slopes = np.diff(z) / np.diff(at)
  # The grid's own error, in slopes.
  assert np.all(np.diff(slopes) <= 0.02 * np.abs(slopes[1:]))
  if name == 'one':
    np.testing.assert_allclose(slopes, -1 / 1.3, rtol=0.01)


@pytest.mark.parametrize('mean', [0.0, 40.0])
@pytest.mark.parametrize('deviation', [1e-3, 0.3, 9.0])
def test_the_delta_of_a_line_is_that_of_a_normal_loss(mean, deviation):
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
    found = bound.log_delta(epsilon)
    assert found >= math.log(scale * exact) - 1e-12
    assert found == pytest.approx(math.log(scale * exact), abs=2e-8 / deviation)
  assert monte_carlo.NormalTail(1.0, 0.0, 0.5).log_delta(2.0) == -math.inf


@pytest.mark.parametrize('log_beta', [math.log(0.1), math.log(1e-13)])
def test_bounds_of_probabilities_are_those_of_the_binomial_distribution(log_beta):
  for count, size in ((0, 50), (1, 50), (7, 1000), (500, 1000), (999, 1000)):
    most = monte_carlo.probability_at_most(count, size, log_beta)
    assert stats.binom.logcdf(count, size, most) <= log_beta
    assert stats.binom.logcdf(count, size, most * (1 - 1e-6)) > log_beta
    least = monte_carlo.probability_at_least(size - count, size, log_beta)
    assert least == pytest.approx(1 - most, abs=1e-15)
  assert monte_carlo.probability_at_most(50, 50, log_beta) == 1.0
  assert monte_carlo.probability_at_least(0, 50, log_beta) == 0.0


def _counted(losses, size, epsilon, log_beta):
  _, at = monte_carlo.counting_points(losses[:8192], size, epsilon, log_beta)
  some = losses[8192 : 8192 + size]
  beyond = int((some >= at[0]).sum()), int((some >= at[1]).sum())
  return monte_carlo.normal_tail(beyond, size, at, log_beta)


def test_what_is_counted_bounds_what_was_never_drawn():
  rng, log_beta, size = np.random.default_rng(1), math.log(1e-9), 2**17
  for name, (means, weights) in PLANE.items():
    y = rng.standard_normal((8192 + size, 2))
    means = np.array(means)
    logs = y @ means.T - (means**2).sum(axis=1) / 2
    losses = -special.logsumexp(logs, axis=1, b=weights)
    plane, epsilon = _Plane(name), 3.0
    bound = _counted(losses, size, epsilon, log_beta)
    exact = plane.delta(epsilon)
    assert bound.start <= epsilon
    assert exact <= math.exp(bound.log_delta(epsilon))
    predicted, _ = monte_carlo.counting_points(losses[:8192], size, epsilon, log_beta)
    assert predicted < 0
    if name == 'one':  # Normal: there is nothing lost but the confidence.
      assert bound.log_delta(epsilon) <= math.log(2.5 * exact)
      assert bound.log_delta(12.0) <= 0.7 * math.log(plane.delta(9.0))


def test_nothing_is_said_where_all_losses_are_beyond():
  losses = np.random.default_rng(2).normal(5.0, 0.1, 8192)
  assert monte_carlo.counting_points(losses, 10_000, 3.0, -20.0) == (0.0, None)
  # Nor by counts that say nothing.
  assert monte_carlo.normal_tail((100, 100), 100, (0.0, 1.0), -20.0) is None
  assert monte_carlo.normal_tail((0, 0), 100, (0.0, 1.0), -20.0) is None
  # Nobody's loss is above a bound: a line that falls fast.
  bound = monte_carlo.normal_tail((900, 0), 1000, (0.1, 0.4), -20.0)
  assert bound.log_delta(8.0) < -100


class _Bits:
  """The truth of independent rounds: Poisson sampling, by its own accountant."""

  def __init__(self, n, p, noise):
    self.mixture = monte_carlo.BMinSepMixture(strategies.Identity(n), 1, p, noise)
    self.n, self.p, self.noise = n, p, noise

  def added(self, epsilon):
    """By convolution of the loss of a round on a fine grid, rounded to the nearest."""
    x = np.linspace(-12, 12, 240_001)
    loss = -np.log1p(self.p * np.expm1(x / self.noise - 0.5 / self.noise**2))
    cell = 2e-3
    first = math.floor(loss.min() / cell)
    masses = np.exp(-x * x / 2)
    size = 2**20
    one = np.bincount(
      np.round(loss / cell).astype(int) - first, masses / masses.sum(), size
    )
    many = np.fft.irfft(np.fft.rfft(one) ** self.n, size)
    losses = (self.n * first + np.arange(size)) * cell
    some = losses > epsilon
    return float(many[some] @ -np.expm1(epsilon - losses[some]))


def test_added_clients_of_many_rounds_are_bounded():
  truth = _Bits(40, 0.3, 1.2)
  epsilon = 6.0
  exact = truth.added(epsilon)
  assert 1e-12 < exact < 1e-3
  # Bets would need more outcomes than there may be.
  search = monte_carlo._Search(
    truth.mixture, np.random.default_rng(3), 1e-6, monte_carlo._log_beta(1e-6)
  )
  assert search.log_excess(False, epsilon) > 0
  found = search.delta_added(epsilon)
  assert exact <= found <= 1e4 * exact
