"""All accountants: published figures, order of tightness, and refusals."""

import json
import math
import pathlib

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events

GBOARD = json.loads(pathlib.Path(__file__).with_name('gboard_tree.json').read_text())
# All accountants that read Gaussian events.
OF_GAUSSIANS = sorted({*accountants.ACCOUNTANTS} - {'monte_carlo'})
Gaussian = dp_accounting.GaussianDpEvent
Laplace = dp_accounting.LaplaceDpEvent
Poisson = dp_accounting.PoissonSampledDpEvent
WithoutReplacement = dp_accounting.SampledWithoutReplacementDpEvent
Repeated = dp_accounting.SelfComposedDpEvent
Selected = dp_accounting.dp_event.RepeatAndSelectDpEvent
TREE = dp_accounting.SingleEpochTreeAggregationDpEvent(5.0, [7])


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
def test_gboard_run_has_published_epsilon(gboard_event, accountant, figure, published):
  epsilon = accountants.epsilon(gboard_event, GBOARD['delta'], accountant)
  # The stored figure of dp-accounting's PLD exceeds the exact one by 1e-8.
  assert epsilon == pytest.approx(
    GBOARD[figure], rel=3e-8 if accountant == 'pld' else 1e-9
  )
  assert epsilon == pytest.approx(published, abs=2e-3)


def test_gboard_run_has_published_zcdp_and_gdp(gboard_event):
  rho = accountants.zcdp_rho(gboard_event)
  assert rho == pytest.approx(GBOARD['zcdp'], rel=1e-14)
  assert f'{rho:.2f}' == '0.81'
  assert accountants.gdp_mu(gboard_event) == pytest.approx(GBOARD['gdp_mu'], rel=1e-14)


@pytest.mark.parametrize('mu', [0.1, 1.0])
def test_accountants_are_ordered_from_exact_to_loosest(mu):
  event = Gaussian(1 / mu)
  for delta in (1e-10, 1e-4):
    exact, pld, prv, rdp, zcdp = (
      accountants.epsilon(event, delta, name)
      for name in ('exact', 'pld', 'prv', 'rdp', 'zcdp')
    )
    assert exact <= pld <= exact + 1e-6
    assert exact <= prv <= exact + 1e-3
    assert pld <= rdp
    assert exact <= zcdp
    # The largest order is 63: for epsilon below about 0.4, RDP is looser than zCDP.
    assert rdp <= zcdp or mu < 0.3
  for epsilon in (0.0, 3 * mu + mu * mu / 2):
    exact, pld, *others = (
      accountants.delta(event, epsilon, name)
      for name in ('exact', 'pld', 'prv', 'rdp', 'zcdp')
    )
    assert exact <= pld <= exact * (1 + 1e-3) and exact <= min(others)


@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
@pytest.mark.parametrize(
  'event, only',
  [
    (Poisson(0.1, Gaussian(1.0)), 'ADD_OR_REMOVE_ONE'),
    (Poisson(1.0, Gaussian(1.0)), 'ADD_OR_REMOVE_ONE'),
    (WithoutReplacement(100, 10, Gaussian(1.0)), 'REPLACE_ONE or ADD_OR_REMOVE_ONE'),
    (TREE, 'REPLACE_SPECIAL'),
  ],
  ids=['poisson', 'poisson of all', 'without replacement', 'tree'],
)
def test_events_are_refused_under_invalid_relations(accountant, event, only):
  nested = dp_accounting.ComposedDpEvent([Gaussian(9.0), Repeated(event, 3)])
  for relation in Relation:
    if relation.name in only.split(' or '):
      continue
    for each in (event, nested, Selected(event, 2.0, 1.0)):
      for ask in (accountants.epsilon, accountants.delta):
        with pytest.raises(dp_accounting.UnsupportedEventError, match=only):
          ask(each, 0.5, accountant, relation)
      with pytest.raises(dp_accounting.UnsupportedEventError, match=only):
        accountants.tightest(each, relation)


def test_gaussian_epsilon_is_the_same_under_every_relation():
  for name in OF_GAUSSIANS:
    values = {accountants.epsilon(Gaussian(2.0), 1e-6, name, each) for each in Relation}
    assert len(values) == 1


@pytest.mark.parametrize(
  'event, relation, expected',
  [
    (Repeated(Gaussian(2.0), 5), Relation.REPLACE_SPECIAL, 'exact'),
    (Poisson(1.0, Gaussian(2.0)), Relation.ADD_OR_REMOVE_ONE, 'exact'),
    (WithoutReplacement(100, 10, Gaussian(2.0)), Relation.REPLACE_ONE, 'pld'),
    (TREE, Relation.REPLACE_SPECIAL, 'rdp'),
  ],
)
def test_tightest_accountant_has_smallest_epsilon(event, relation, expected):
  name = accountants.tightest(event, relation)
  assert name == expected
  epsilon = accountants.epsilon(event, 1e-6, name, relation)
  assert accountants.epsilon(event, 1e-6, relation=relation) == epsilon
  delta = accountants.delta(event, 0.5, name, relation)
  assert accountants.delta(event, 0.5, relation=relation) == delta
  for other in accountants.ACCOUNTANTS:
    if accountants.ACCOUNTANTS[other].can_read(event, relation):
      assert epsilon <= accountants.epsilon(event, 1e-6, other, relation)


def test_tightest_refuses_events_that_no_accountant_reads():
  for event in (
    dp_accounting.UnsupportedDpEvent(),
    dp_accounting.SampledWithReplacementDpEvent(100, 10, Gaussian(1.0)),
    Poisson(0.1, dp_accounting.ComposedDpEvent([Gaussian(1.0), Laplace(1.0)])),
  ):
    with pytest.raises(dp_accounting.UnsupportedEventError, match='no accountant'):
      accountants.tightest(event, Relation.ADD_OR_REMOVE_ONE)


@pytest.mark.parametrize('accountant', ['exact', 'pld', 'rdp', 'zcdp'])
def test_delta_inverts_epsilon(accountant):
  event = Gaussian(1.5)
  epsilon = accountants.epsilon(event, 1e-5, accountant)
  delta = accountants.delta(event, epsilon, accountant)
  assert delta == pytest.approx(1e-5, rel=1e-6)
  assert delta <= 1e-5 * (1 + 1e-9)


@pytest.mark.parametrize('event', [
    dp_accounting.ComposedDpEvent([Gaussian(1.0), dp_accounting.UnsupportedDpEvent()]),
    Repeated(Laplace(1.0), 3),
], ids=str)  # fmt: skip
def test_gaussian_accountants_refuse_other_events(event):
  for accountant in ('exact', 'zcdp'):
    with pytest.raises(dp_accounting.UnsupportedEventError):
      accountants.epsilon(event, 1e-6, accountant)
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accountants.gdp_mu(event)
  assert not accountants.GaussianAccountant().supports(event)


def test_refused_event_does_not_change_accountant():
  accountant = accountants.GaussianAccountant().compose(Gaussian(2.0))
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accountant.compose(dp_accounting.ComposedDpEvent([Gaussian(1.0), Laplace(1)]))
  assert accountant.mu == 0.5


@pytest.mark.parametrize('count', [0, -1])
def test_compose_refuses_counts_below_one(count):
  # -1 would reduce the privacy loss.
  accountant = accountants.GaussianAccountant(Relation.REPLACE_SPECIAL)
  with pytest.raises(ValueError, match=f'count.*{count}'):
    accountant.compose(Gaussian(1.0), count)
  assert accountant.mu == 0.0


@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
def test_invalid_delta_and_epsilon_are_refused(accountant):
  event = Gaussian(1.0)
  with pytest.raises(TypeError, match='delta'):
    accountants.epsilon(1e-5, event, accountant)
  with pytest.raises(TypeError, match='epsilon'):
    accountants.delta(event, None, accountant)
  with pytest.raises(ValueError, match='delta'):
    accountants.epsilon(event, 1.0, accountant)
  for epsilon in (-1.0, math.nan, math.inf):
    with pytest.raises(ValueError, match='epsilon must be finite'):
      accountants.delta(event, epsilon, accountant)


def test_unknown_accountant_is_refused_with_known_names():
  with pytest.raises(ValueError, match='moments.*exact'):
    accountants.epsilon(Gaussian(1.0), 1e-6, 'moments')


@pytest.mark.few(3)
@pytest.mark.parametrize(
  'event, accountant, published',
  [
    (Repeated(Gaussian(0.7), 2), 'rdp', 10.8602036),
    (Repeated(Gaussian(0.7), 2), 'pld', 10.1224946),
    (Repeated(Poisson(0.01, Gaussian(0.7)), 120), 'rdp', 3.2391922),
    (Repeated(Poisson(0.01, Gaussian(0.7)), 120), 'pld', 2.4612381),
    (Repeated(Poisson(0.01, Gaussian(0.35)), 120), 'rdp', 22.5970358),
    (Repeated(Poisson(0.01, Gaussian(0.35)), 120), 'pld', 18.6977425),
  ],
)
def test_epoch_of_dp_sgd_has_epsilon_of_tf_privacy(event, accountant, published):
  epsilon = accountants.epsilon(event, 1e-5, accountant, Relation.ADD_OR_REMOVE_ONE)
  assert epsilon == pytest.approx(published, abs=1e-6)
