"""Accountants: published runs, and one order from the exact curve to the loosest bound.

Figures: the published Gboard run with DP-FTRL (gboard_tree.json, with its source) and
dp-accounting's own for composed Gaussians, the events of DP-FedAvg.
"""

import json
import math
import pathlib

import dp_accounting
import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import events

GBOARD = json.loads(pathlib.Path(__file__).with_name('gboard_tree.json').read_text())
Gaussian = dp_accounting.GaussianDpEvent
Repeated = dp_accounting.SelfComposedDpEvent


@pytest.fixture(scope='module')
def gboard_event():
  participation = strategies.Participation.from_rounds_between(
    GBOARD['num_rounds'], GBOARD['rounds_between'], GBOARD['max_participations']
  )
  strategy = strategies.BinaryTree(GBOARD['num_rounds'])
  zeta_star = strategy.sensitivity_squared_by_round(participation)[-1]
  assert zeta_star == GBOARD['zeta_star'] == 79
  return events.run_event(strategy, participation, GBOARD['noise_multiplier'])


@pytest.mark.parametrize(
  'accountant, figure, published',
  [
    ('rdp', 'epsilon_rdp', 8.90),
    ('exact', 'epsilon_exact_gaussian', 8.5261),
    ('pld', 'epsilon_pld_default', 8.5261),
    ('zcdp', 'epsilon_zcdp_closed_form', 9.4228),
  ],
)
def test_gboard_run_has_its_published_epsilon(
  gboard_event, accountant, figure, published
):
  epsilon = accountants.epsilon(gboard_event, GBOARD['delta'], accountant)
  assert epsilon == pytest.approx(GBOARD[figure], rel=1e-9)
  assert epsilon == pytest.approx(published, abs=2e-3)


def test_gboard_run_has_its_published_zcdp_and_gdp(gboard_event):
  accountant = accountants.ZCdpAccountant()
  accountant.compose(gboard_event)
  assert accountant.rho == pytest.approx(GBOARD['zcdp'], rel=1e-14)
  assert accountant.rho == pytest.approx(0.81, abs=5e-3)
  assert accountant.rho == pytest.approx(79 / (2 * 7**2), rel=1e-14)
  assert accountants.gdp_mu(gboard_event) == pytest.approx(GBOARD['gdp_mu'], rel=1e-14)


def test_gboard_rdp_epsilon_is_the_published_orders_conversion(gboard_event):
  # Canonne, Kamath and Steinke, arXiv:2004.00010, Proposition 12, at order 6.1.
  a, rho, delta = GBOARD['rdp_order'], GBOARD['zcdp'], GBOARD['delta']
  converted = a * rho + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
  assert a in accountants.RDP_ORDERS
  assert accountants.epsilon(gboard_event, delta, 'rdp') == pytest.approx(converted)


def test_published_epsilon_needs_less_noise_with_the_exact_accountant():
  participation = strategies.Participation.from_rounds_between(2000, 313, 6)
  needed = calibration.noise_multiplier_for_target(
    strategies.BinaryTree(2000),
    participation,
    round(GBOARD['epsilon_rdp'], 6),
    GBOARD['delta'],
  )
  expected = GBOARD['noise_multiplier_for_published_epsilon_exactly']
  assert needed == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize('noise_multiplier', [0.5, 0.8, 1.3, 3.0, 10.0, 40.0])
def test_accountants_are_ordered_from_exact_to_loosest(noise_multiplier):
  event = Gaussian(noise_multiplier)
  for delta in (1e-10, 1e-8, 1e-6, 1e-4):
    exact, pld, rdp, zcdp = (
      accountants.epsilon(event, delta, name)
      for name in ('exact', 'pld', 'rdp', 'zcdp')
    )
    assert exact <= pld * (1 + 1e-9) <= exact + 1e-3
    assert pld <= rdp
    # Orders end at 63: below epsilon of about 0.4 the grid costs more than it gains.
    assert rdp <= zcdp or noise_multiplier >= 10


@pytest.mark.parametrize('accountant', ['exact', 'pld', 'rdp', 'zcdp'])
def test_delta_is_the_inverse_of_epsilon(accountant):
  event = Gaussian(1.5)
  epsilon = accountants.epsilon(event, 1e-5, accountant)
  delta = accountants.delta(event, epsilon, accountant)
  assert delta == pytest.approx(1e-5, rel=1e-6)
  assert delta <= 1e-5 * (1 + 1e-9)


# dp-accounting 0.4.3, pld/accountant_test.py, test_get_smallest_gaussian_noise, and
# pld/pld_privacy_accountant_test.py, test_gaussian_basic.
@pytest.mark.parametrize(
  'noise_multiplier, count, epsilon, delta',
  [
    (1 / 3, 1, 1.0, 0.78760074),
    (10 / 6, 25, 1.0, 0.78760074),
    (math.sqrt(3), 3, 1.0, 0.126936),
  ],
)
def test_composed_gaussians_have_the_figures_of_dp_accounting(
  noise_multiplier, count, epsilon, delta
):
  event = Repeated(Gaussian(noise_multiplier), count)
  assert accountants.delta(event, epsilon) == pytest.approx(delta, abs=1e-6)
  assert accountants.epsilon(event, delta) == pytest.approx(epsilon, abs=1e-5)
  # And for the mechanism that it is: that many participations, no sampling.
  run = events.run_event(
    strategies.Identity(count), strategies.Participation(count), noise_multiplier
  )
  assert accountants.delta(run, epsilon) == pytest.approx(delta, abs=1e-6)


def test_rdp_equals_the_bound_dp_accounting_is_tested_against():
  # dp-accounting 0.4.3, rdp/rdp_privacy_accountant_test.py,
  # test_delta_bounds_gaussian: exact <= rdp <= exp(-(epsilon - 1/2)^2 / 2), sigma 1.
  for epsilon in (0.6, 1.0, 2.0, 5.0, 8.0):
    exact = accountants.delta(Gaussian(1.0), epsilon)
    closed = math.erfc((epsilon - 0.5) / math.sqrt(2)) / 2
    closed -= math.exp(epsilon) * math.erfc((epsilon + 0.5) / math.sqrt(2)) / 2
    assert exact == pytest.approx(closed, rel=1e-9)
    assert exact <= accountants.delta(Gaussian(1.0), epsilon, 'rdp')
    standard = math.exp(-((epsilon - 0.5) ** 2) / 2)
    assert accountants.delta(Gaussian(1.0), epsilon, 'zcdp') == pytest.approx(standard)
    # The grid of orders leaves a hair at the smallest epsilon.
    assert accountants.delta(Gaussian(1.0), epsilon, 'rdp') <= standard * 1.0001


@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
def test_composition_adds_up_for_every_accountant(accountant):
  composed = dp_accounting.ComposedDpEvent(
    [Gaussian(2.0), Repeated(Gaussian(4.0), 12), Gaussian(math.inf)]
  )
  assert accountants.epsilon(composed, 1e-6, accountant) == pytest.approx(
    accountants.epsilon(Gaussian(1.0), 1e-6, accountant), rel=1e-9
  )
  assert accountants.gdp_mu(composed) == pytest.approx(1.0, rel=1e-14)


@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
def test_nothing_costs_nothing_and_no_noise_everything(accountant):
  for event in (dp_accounting.NoOpDpEvent(), Gaussian(math.inf)):
    assert accountants.epsilon(event, 1e-6, accountant) == 0.0
    assert accountants.delta(event, 1.0, accountant) == 0.0
  for event in (dp_accounting.NonPrivateDpEvent(), Gaussian(0.0)):
    assert accountants.epsilon(event, 1e-6, accountant) == math.inf
    assert accountants.delta(event, 1.0, accountant) == 1.0


@pytest.mark.parametrize('event', [
    dp_accounting.PoissonSampledDpEvent(0.1, Gaussian(1.0)),
    dp_accounting.LaplaceDpEvent(1.0),
    dp_accounting.UnsupportedDpEvent(),
    dp_accounting.ComposedDpEvent([Gaussian(1.0), dp_accounting.UnsupportedDpEvent()]),
    Repeated(dp_accounting.LaplaceDpEvent(1.0), 3),
], ids=str)  # fmt: skip
def test_events_that_are_not_gaussian_are_refused_and_not_ignored(event):
  for accountant in ('exact', 'zcdp'):
    with pytest.raises(dp_accounting.UnsupportedEventError, match='Only Gaussian'):
      accountants.epsilon(event, 1e-6, accountant)
    with pytest.raises(dp_accounting.UnsupportedEventError, match='Only Gaussian'):
      accountants.delta(event, 1.0, accountant)
  with pytest.raises(dp_accounting.UnsupportedEventError, match='Only Gaussian'):
    accountants.gdp_mu(event)
  assert not accountants.GaussianAccountant().supports(event)


@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
def test_unsupported_events_are_refused_by_every_accountant(accountant):
  event = dp_accounting.ComposedDpEvent(
    [Gaussian(9.0), dp_accounting.UnsupportedDpEvent()]
  )
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accountants.epsilon(event, 1e-6, accountant)


def test_a_refused_event_leaves_the_accountant_as_it_was():
  accountant = accountants.GaussianAccountant().compose(Gaussian(2.0))
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accountant.compose(
      dp_accounting.ComposedDpEvent([Gaussian(1.0), dp_accounting.LaplaceDpEvent(1)])
    )
  assert accountant.mu == 0.5


@pytest.mark.parametrize('name', ['exact', 'zcdp'])
def test_composing_several_times_adds_up(name):
  accountant = accountants.ACCOUNTANTS[name]()
  accountant.compose(Gaussian(3.0), 8).compose(Gaussian(3.0))
  assert accountant.mu == pytest.approx(1.0, rel=1e-14)


@pytest.mark.parametrize('count', [0, -1])
@pytest.mark.parametrize('name', ['exact', 'zcdp'])
def test_composing_less_than_once_is_refused(name, count):
  # -1 would take privacy loss away.
  accountant = accountants.ACCOUNTANTS[name]()
  with pytest.raises(ValueError, match=f'must be positive. Found {count}'):
    accountant.compose(Gaussian(1.0), count)
  assert accountant.mu == 0.0


def test_zcdp_conversion_is_the_closed_form():
  event = Gaussian(2.0)
  rho = 1 / 8
  expected = rho + 2 * math.sqrt(rho * math.log(1e6))
  assert accountants.epsilon(event, 1e-6, 'zcdp') == pytest.approx(expected, rel=1e-14)
  assert accountants.delta(event, rho / 2, 'zcdp') == 1.0


@pytest.mark.parametrize('delta', [0.0, 1.0, -1.0, math.nan])
@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
def test_delta_out_of_range_is_refused(accountant, delta):
  with pytest.raises(ValueError, match='delta must be between 0 and 1'):
    accountants.epsilon(Gaussian(1.0), delta, accountant)


@pytest.mark.parametrize('epsilon', [-1.0, math.nan, math.inf])
def test_epsilon_out_of_range_is_refused(epsilon):
  with pytest.raises(ValueError, match='epsilon must be finite'):
    accountants.delta(Gaussian(1.0), epsilon)


def test_unknown_accountants_are_refused_with_those_known():
  with pytest.raises(ValueError, match="unknown accountant 'gdp'; known: .'exact', "):
    accountants.epsilon(Gaussian(1.0), 1e-6, 'gdp')
