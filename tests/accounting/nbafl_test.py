"""NbAFL: the published formulas, their limits, and guarantees by our accountants."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import stats

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import local
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting.accountants import gaussian

NUMBERS = {
  'epsilon': 0.8,
  'delta': 1e-5,
  'clip_norm': 1.5,
  'num_exposures': 2,
  'num_rounds': 40,
  'num_clients': 50,
  'min_examples': 1000,
}


def _nbafl(**changed):
  return nbafl.Nbafl(**{**NUMBERS, **changed})


def test_constant_and_downlink_stddev_match_flower_dp():
  # Docstrings of calculate_c and calculate_sigma_d in flower-dp's pytorch/privacy.py.
  assert nbafl.gaussian_constant(0.5, 2 / 1e5) == pytest.approx(4.699557816587533)
  made = _nbafl(num_rounds=3, num_clients=2, min_examples=10_000)
  assert made.downlink_stddev == pytest.approx(0.0009084009867385104, rel=1e-14)


@pytest.mark.parametrize('rounds, clients', [(40, 50), (15, 50), (14, 50), (3, 2)])
def test_stddevs_match_theorem_1(rounds, clients):
  made = _nbafl(num_rounds=rounds, num_clients=clients)
  c = math.sqrt(2 * math.log(1.25 / 1e-5))
  assert made.uplink_stddev == pytest.approx(c * 2 * 2 * 1.5 / (1000 * 0.8))
  expected = 0.0
  if rounds > 2 * math.sqrt(clients):
    root = math.sqrt(rounds**2 - 4 * clients)
    expected = 2 * c * 1.5 * root / (1000 * clients * 0.8)
  assert made.downlink_stddev == pytest.approx(expected)
  assert made.server_adds_noise == (expected > 0)
  assert made.uplink_sensitivity == 2 * 1.5 / 1000
  assert made.downlink_sensitivity == pytest.approx(2 * 1.5 / (1000 * clients))


@pytest.mark.parametrize('rounds', [1, 20, 22, 400])
@pytest.mark.parametrize('cohort', [1, 10, 50])
def test_downlink_stddev_with_random_clients_matches_paper(rounds, cohort):
  epsilon, exposures, clients = 0.8, min(2, rounds), 50
  made = _nbafl(num_rounds=rounds, num_exposures=exposures, clients_per_round=cohort)
  gamma = -math.log(
    1
    - cohort / clients
    + cohort / clients * math.exp(-epsilon / (exposures * math.sqrt(cohort)))
  )
  expected = 0.0
  if rounds > epsilon / gamma * (1 + 1e-12):
    inner = 1 - clients / cohort + clients / cohort * math.exp(-epsilon / rounds)
    b = -rounds / epsilon * math.log(inner)
    c = math.sqrt(2 * math.log(1.25 / 1e-5))
    root = math.sqrt((rounds / b) ** 2 - exposures**2 * cohort)
    expected = 2 * c * 1.5 * root / (1000 * cohort * epsilon)
  assert made.downlink_stddev == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('epsilon', [1.0, 10.0])
def test_epsilon_of_1_or_more_requires_exact_calibration(epsilon):
  with pytest.raises(ValueError, match="'exact' has the least noise for any"):
    _nbafl(epsilon=epsilon)
  _nbafl(epsilon=epsilon, calibration='exact')


@pytest.mark.parametrize('epsilon, cohort', [(0.8, 50), (4.0, 10)])
@pytest.mark.parametrize('rounds', [40, 1000])
def test_exact_calibration_meets_epsilon_tightly(epsilon, cohort, rounds):
  made = _nbafl(
    epsilon=epsilon,
    num_rounds=rounds,
    clients_per_round=cohort,
    calibration='exact',
  )
  claimed = [each for each in made.guarantees() if each.claimed_epsilon is not None]
  assert [each.seen for each in claimed] == ['uplink', 'downlink']
  uplink, downlink = claimed
  assert epsilon * (1 - 1e-9) < uplink.epsilon <= epsilon
  assert downlink.epsilon <= epsilon
  assert made.server_adds_noise == (rounds == 1000)
  if made.server_adds_noise:
    assert downlink.epsilon > epsilon * (1 - 1e-6)


def test_guarantees_match_accountants():
  made = _nbafl()
  event, c = dp_accounting.GaussianDpEvent, nbafl.gaussian_constant(0.8, 1e-5)

  def epsilon(noise_multiplier, releases, **relation):
    repeated = dp_accounting.SelfComposedDpEvent(event(noise_multiplier), releases)
    return accountants.epsilon(repeated, 1e-5, **relation)

  client = c * 2 * 2 / (1000 * 0.8)
  in_sum = 50 * math.hypot(made.uplink_stddev / math.sqrt(50), made.downlink_stddev)
  expected = {
    ('uplink', 'example', 'replace_one', 1): epsilon(c * 2 / 0.8, 1),
    ('uplink', 'example', 'replace_one', 2): epsilon(c * 2 / 0.8, 2),
    ('uplink', 'client', 'zero_out', 2): epsilon(client, 2),
    ('uplink', 'client', 'replace_one', 2): epsilon(client / 2, 2),
    ('uplink', 'client', 'zero_out', 40): epsilon(client, 40),
    ('downlink', 'example', 'replace_one', 40): epsilon(c * 40 / 0.8, 40),
    ('downlink', 'client', 'zero_out', 40): epsilon(in_sum / 1.5, 40),
    ('downlink', 'client', 'replace_one', 40): epsilon(in_sum / 3, 40),
  }
  actual = {
    (each.seen, each.unit, each.adjacency, each.releases): each
    for each in made.guarantees()
  }
  assert list(actual) == list(expected)
  for key, value in expected.items():
    assert actual[key].epsilon == pytest.approx(value, rel=1e-6), key
  claimed = [each.claimed_epsilon for each in actual.values()]
  assert claimed == [0.4, 0.8, None, None, None, 0.8, None, None]
  # What is claimed for an example is far from true for a client.
  assert min(each.epsilon for each in actual.values() if each.unit == 'client') > 100


@pytest.mark.parametrize(
  'changed, message',
  [
    ({'epsilon': 0.0}, 'epsilon'),
    ({'delta': 0.0}, 'delta'),
    ({'clip_norm': -1.0}, 'clip_norm'),
    ({'num_exposures': 41}, 'num_exposures'),
    ({'clients_per_round': 51}, 'clients_per_round'),
    ({'min_examples': 0}, 'min_examples'),
    ({'calibration': 'analytic'}, 'calibration'),
  ],
)
def test_numbers_out_of_range_are_refused(changed, message):
  with pytest.raises(ValueError, match=message):
    _nbafl(**changed)


@pytest.mark.parametrize(
  'changed',
  [
    {'num_rounds': 14},  # So few that the server adds no noise.
    {'calibration': 'exact', 'epsilon': 4.0, 'num_rounds': 400},
  ],
  ids=str,
)
def test_mechanism_arguments_give_noise_and_guarantees_of_plan(changed):
  plan = _nbafl(**changed)
  made = mechanism_lib.Mechanism(**plan.mechanism_arguments())
  assert made.noise_multiplier * plan.clip_norm == plan.uplink_stddev
  assert made.sum_noise_multiplier(plan.cohort) == pytest.approx(
    plan.sum_noise_multiplier, rel=1e-12
  )
  assert made.noise_site == ('clients_and_server' if plan.downlink_stddev else 'local')
  assert bool(plan.downlink_stddev) == (changed != {'num_rounds': 14})
  # For what a client sends in all rounds, mu is sqrt(num_rounds) over its noise.
  mu = math.sqrt(plan.num_rounds) / plan.client_noise_multiplier
  assert made.epsilon(1e-5) == pytest.approx(gaussian.epsilon_of(mu, 1e-5), rel=1e-12)
  central = local.central_event(
    made.noise_multiplier,
    min_clients=plan.cohort,
    server_noise_multiplier=made.server_noise_multiplier or 0.0,
    adjacency='replace_one',
    participations=plan.num_rounds,
  )
  stated = plan.guarantees()[-1]
  assert accountants.epsilon(central, 1e-5) == pytest.approx(stated.epsilon, rel=1e-9)


def _divergence(log_a, first, second, step):
  return float(np.sum(np.maximum(first - math.exp(log_a) * second, 0.0)) * step)


@pytest.mark.parametrize('epsilon', [0.0, 1.0])
def test_delta_of_one_random_round_matches_integration(epsilon):
  mu, fraction, step = 0.7, 0.2, 1e-3
  x = np.arange(-12, 45, step)
  bound = nbafl._delta_of_random_rounds(mu, epsilon, 1, fraction, 1e-20)
  assert bound == pytest.approx(fraction * gaussian.delta_of(mu, epsilon), rel=1e-9)
  for others, is_tight in ((30.0, True), (2.0, False), (0.0, False)):
    # The sum has mean 0 without the client, and `others` or `others` + mu with it.
    absent = (1 - fraction) * stats.norm.pdf(x)
    p = absent + fraction * stats.norm.pdf(x, loc=others)
    q = absent + fraction * stats.norm.pdf(x, loc=others + mu)
    delta = max(_divergence(epsilon, p, q, step), _divergence(epsilon, q, p, step))
    assert delta <= bound * (1 + 1e-6)
    if is_tight:
      assert delta == pytest.approx(bound, rel=1e-5)


def test_delta_of_random_rounds_matches_simulation():
  # Losses of 5 random rounds for an observer who knows who took part in each.
  rng, runs = np.random.default_rng(20261123), 400_000
  mu, fraction, epsilon = 0.8, 0.3, 0.6
  rounds = rng.binomial(5, fraction, size=runs)
  losses = rng.normal(loc=rounds * mu**2 / 2, scale=np.sqrt(rounds) * mu)
  outcomes = np.maximum(0, -np.expm1(epsilon - losses))
  delta = nbafl._delta_of_random_rounds(mu, epsilon, 5, fraction, 1e-20)
  # 4.9 standard errors: one false alarm in a million runs.
  error = 4.9 * outcomes.std() / math.sqrt(runs)
  assert abs(outcomes.mean() - delta) < error < 0.02


def test_client_guarantee_matches_fixed_size_sampling_accountant():
  made = _nbafl(clients_per_round=10, min_examples=1, num_exposures=1, num_rounds=20)
  downlink = [each for each in made.guarantees() if each.seen == 'downlink']
  assert [each.unit for each in downlink] == ['example', 'client']
  noise = dp_accounting.GaussianDpEvent(made.sum_noise_multiplier / 2)
  event = dp_accounting.SampledWithoutReplacementDpEvent(50, 10, noise)
  repeated = dp_accounting.SelfComposedDpEvent(event, 20)
  of_client = accountants.epsilon(repeated, 1e-5, relation=Relation.REPLACE_ONE)
  assert downlink[1].epsilon == of_client
  # With one example per client, both units are the same, but the bound for examples
  # allows the other clients to be far apart.
  assert downlink[0].epsilon >= of_client


@pytest.mark.parametrize('cohort', [50, 5])
def test_least_delta_has_guarantees_and_smaller_ones_are_refused(cohort):
  made = _nbafl(clients_per_round=cohort, delta=1e-280)
  assert all(0 < each.epsilon < math.inf for each in made.guarantees())
  with pytest.raises(ValueError, match='delta must be at least 1e-280'):
    _nbafl(clients_per_round=cohort, delta=1e-281)


def test_constant_is_too_small_at_flower_dp_default_epsilon():
  # The defaults of flower-dp's PrivateClient: epsilon=10, delta=1/2e5.
  noise = math.sqrt(2 * math.log(1.25 * 2e5)) / 10
  assert gaussian.epsilon_of(1 / noise, 1 / 2e5) > 10.05
