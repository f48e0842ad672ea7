"""RDP accountant: divergences of sampled Gaussians match their definitions."""

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import special

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.accountants import rdp

Gaussian = dp_accounting.GaussianDpEvent
Poisson = dp_accounting.PoissonSampledDpEvent
WithoutReplacement = dp_accounting.SampledWithoutReplacementDpEvent
Repeated = dp_accounting.SelfComposedDpEvent


def divergence(upper, lower, noise_multiplier, order):
  """Renyi divergence of two mixtures of N(mean, noise^2), as a sum over a grid.

  Mixtures are lists of (weight, mean) with means from -1 to 1.
  """
  reach = (12 + order / noise_multiplier) * noise_multiplier
  x, step = np.linspace(-1 - reach, 1 + reach, 100_001, retstep=True)

  def log_density(mixture):
    terms = [
      math.log(weight) - ((x - mean) / noise_multiplier) ** 2 / 2
      for weight, mean in mixture
    ]
    return np.logaddexp.reduce(terms, axis=0)

  scale = math.log(step / (noise_multiplier * math.sqrt(2 * math.pi)))
  exponents = order * log_density(upper) - (order - 1) * log_density(lower) + scale
  return float(special.logsumexp(exponents)) / (order - 1)


@pytest.mark.few(3)
@pytest.mark.parametrize('noise_multiplier', [0.5, 5.0, 40.0])
@pytest.mark.parametrize('probability', [0.01, 0.9])
def test_poisson_divergences_match_numerical_integration(probability, noise_multiplier):
  orders = (1.1, 1.5, 2.0, 2.7, 5.0, 9.3, 20.0)
  computed = rdp.poisson(probability, noise_multiplier, orders)
  mixture = [(1 - probability, 0.0), (probability, 1.0)]
  for order, actual in zip(orders, computed):
    removing = divergence(mixture, [(1.0, 0.0)], noise_multiplier, order)
    adding = divergence([(1.0, 0.0)], mixture, noise_multiplier, order)
    assert max(removing, adding) <= actual + 1e-13 / (order - 1)
    if order.is_integer() or noise_multiplier <= 5:
      assert actual == pytest.approx(removing, rel=1e-6, abs=1e-10)


def test_poisson_divergences_with_rare_sampling_are_accurate():
  # For small q the divergence is q^2 (e^(1 / s^2) - 1) order / 2.
  orders = tuple(rdp.ORDERS)
  for probability in (1e-6, 1e-9, 1e-12):
    computed = rdp.poisson(probability, 2.0, orders)
    limit = probability**2 * math.expm1(1 / 4) * np.array(orders) / 2
    assert np.all(computed >= limit * (1 - 1e-5))
    integers = np.array([float(order).is_integer() and order < 20 for order in orders])
    assert computed[integers] == pytest.approx(limit[integers], rel=1e-2)
    assert np.all(np.diff(computed[integers]) > 0)


@pytest.mark.parametrize('noise_multiplier, fraction', [(0.5, 0.001), (3.0, 0.05)])
def test_without_replacement_matches_dp_accounting(fraction, noise_multiplier):
  event = WithoutReplacement(1000, round(1000 * fraction), Gaussian(noise_multiplier))
  peer = dp_accounting.rdp.RdpAccountant(rdp.ORDERS, Relation.REPLACE_ONE)
  expected = peer.compose(event).rdp
  computed = rdp.without_replacement(fraction, noise_multiplier, rdp.ORDERS)
  assert computed == pytest.approx(expected, rel=1e-9)
  assert np.all(computed >= expected)


@pytest.mark.parametrize('noise_multiplier', [0.6, 30.0])
@pytest.mark.parametrize('fraction', [0.02, 0.5])
def test_without_replacement_bounds_divergence_of_example(fraction, noise_multiplier):
  # One client's contribution goes from -1/2 to 1/2, sensitivity 1, all others are 0.
  orders = (1.3, 2.0, 5.0, 30.0)
  bounds = rdp.without_replacement(fraction, noise_multiplier, orders)
  before = [(1 - fraction, 0.0), (fraction, -0.5)]
  after = [(1 - fraction, 0.0), (fraction, 0.5)]
  for order, bound in zip(orders, bounds):
    assert divergence(after, before, noise_multiplier, order) <= bound


def test_orders_are_finite():
  assert np.all(np.isfinite(rdp.SAMPLED_ORDERS))
  assert set(rdp.ORDERS) < set(rdp.SAMPLED_ORDERS)
  peer = dp_accounting.rdp.RdpAccountant([2.0, math.inf]).compose(Gaussian(0.5))
  assert not peer.get_epsilon(1e-6) > 0  # An infinite order makes epsilon 0.


@pytest.mark.parametrize('noise_multiplier', [1e-140, 1e140])
def test_extreme_noise_has_sound_epsilon_and_delta(noise_multiplier):
  for event, relation in (
    (Gaussian(noise_multiplier), Relation.REPLACE_SPECIAL),
    (Poisson(0.1, Gaussian(noise_multiplier)), Relation.ADD_OR_REMOVE_ONE),
    (WithoutReplacement(10, 1, Gaussian(noise_multiplier)), Relation.REPLACE_ONE),
  ):
    epsilon = accountants.epsilon(event, 1e-6, 'rdp', relation)
    delta = accountants.delta(event, 1.0, 'rdp', relation)
    if noise_multiplier < 1:
      assert epsilon > 0.4 / noise_multiplier
      assert delta > 0.01
    else:
      assert 0 <= epsilon < 0.2
      assert 0 <= delta < 1e-6


def test_delta_of_gaussian_is_never_zero():
  # Delta 0 would be pure differential privacy, which Gaussian noise does not have.
  for accountant in ('exact', 'pld', 'rdp', 'zcdp'):
    assert 0 < accountants.delta(Gaussian(1.0), 100.0, accountant) < 1e-280
    assert accountants.delta(dp_accounting.NoOpDpEvent(), 1.0, accountant) == 0


@pytest.mark.parametrize(
  'event, relation, published',
  [
    (
      Poisson(0.01, Gaussian(2.5)),
      Relation.ADD_OR_REMOVE_ONE,
      {1.5: 6.5007e-4, 2.5: 1.0854e-3, 5.0: 2.1808e-3, 50: 2.3846e-2},
    ),
    (
      WithoutReplacement(100, 1, Gaussian(2.5)),
      Relation.REPLACE_ONE,
      {1.5: 0.003470, 2.5: 0.004638, 5.0: 0.0087633, 50: 0.098474,
       512: 1817.35871, 1024: 3865.55029},
    ),
  ],
)  # fmt: skip
def test_fifty_rounds_have_published_divergences(event, relation, published):
  accountant = rdp.RdpAccountant(relation).compose(event, 50)
  orders, divergences = accountant.divergences()
  for order, expected in published.items():
    assert divergences[orders.index(order)] == pytest.approx(expected, rel=2e-4)


@dataclasses.dataclass(frozen=True)
class EpsilonDelta(dp_accounting.DpEvent):
  """An event whose epsilon a later dp-accounting reads, but not its delta."""

  epsilon: float
  delta: float


@pytest.mark.parametrize(
  'make',
  [
    lambda event: event,
    lambda event: dp_accounting.ComposedDpEvent([Gaussian(1.0), event]),
    lambda event: dp_accounting.dp_event.RepeatAndSelectDpEvent(event, 2.0, 1.0),
  ],
)
def test_events_read_without_their_delta_are_refused(make, monkeypatch):
  peer = dp_accounting.rdp.RdpAccountant
  original = peer._maybe_compose

  def reads_more(self, event, count, do_compose):
    if isinstance(event, EpsilonDelta):
      event = dp_accounting.LaplaceDpEvent(1 / event.epsilon)
    return original(self, event, count, do_compose)

  monkeypatch.setattr(peer, '_maybe_compose', reads_more)
  event = make(EpsilonDelta(1.0, 1e-6))
  assert peer().supports(event)  # Its epsilon at delta 1e-7 would be too small.
  with pytest.raises(dp_accounting.UnsupportedEventError):
    rdp.RdpAccountant().compose(event)


def test_log_differences_with_much_noise_are_accurate():
  # With so much noise, dp-accounting's differences are round-off: too small at order 2,
  # and many times too large above.
  differences = rdp._log_differences(1e6)
  for order in (2, 4, 20, 100):  # For small mu = 1 / s, B(l) is (l - 1)!! mu^l.
    expected = math.lgamma(order + 1) - order / 2 * math.log(2)
    expected -= math.lgamma(order / 2 + 1) + order * math.log(1e6)
    assert differences[order] == pytest.approx(expected, rel=1e-9)
  for noise_multiplier in (0.7, 1.0, 3.0):  # Differences of low order, exactly.
    values = [math.exp(k * (k - 1) / 2 / noise_multiplier**2) for k in range(5)]
    second = values[2] - 2 * values[1] + values[0]
    fourth = values[4] - 4 * values[3] + 6 * values[2] - 4 * values[1] + values[0]
    differences = rdp._log_differences(noise_multiplier)
    assert differences[2] == pytest.approx(math.log(second), rel=1e-9)
    assert differences[4] == pytest.approx(math.log(fourth), rel=1e-9)


# Epsilons at delta 1e-6 of dp-accounting 0.4.3.
@pytest.mark.parametrize(
  'event, relation, epsilon',
  [
    (Repeated(Gaussian(10.0), 100), Relation.REPLACE_SPECIAL, 5.2215396311544),
    (
      Repeated(Poisson(0.01, Gaussian(1.0)), 1000),
      Relation.ADD_OR_REMOVE_ONE,
      2.436693803031,
    ),
    (
      Repeated(WithoutReplacement(1000, 20, Gaussian(1.0)), 500),
      Relation.REPLACE_ONE,
      6.005941959312917,
    ),
    (
      dp_accounting.ComposedDpEvent(
        [
          Repeated(Poisson(0.1, Gaussian(2.0)), 30),
          Repeated(Gaussian(20.0), 40),
          dp_accounting.LaplaceDpEvent(5.0),
        ]
      ),
      Relation.ADD_OR_REMOVE_ONE,
      2.4309887577173,
    ),
  ],
)
def test_epsilon_is_at_most_that_of_dp_accounting_0_4_3(event, relation, epsilon):
  computed = accountants.epsilon(event, 1e-6, 'rdp', relation)
  assert computed <= epsilon * (1 + 1e-9)
  assert computed >= 0.95 * epsilon
