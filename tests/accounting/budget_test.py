"""Budget: any two of epsilon, delta and noise give the third, and three are checked."""

import decimal
import math

import dp_accounting
import pytest

from tff_dp_aggregators import accounting
from tff_dp_aggregators.accounting import budget
from tff_dp_aggregators.base import rounding


def test_gaussian_noise_multiplier_matches_published_figure():
  # The implementation of arXiv:1805.06530 prints this for epsilon 1 and delta 1e-5.
  assert budget.gaussian_noise_multiplier(1.0, 1e-5) == pytest.approx(
    3.730631634944469, rel=1e-8
  )
  textbook = math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.9
  assert budget.gaussian_noise_multiplier(0.9, 1e-5) < 0.9 * textbook


@pytest.mark.parametrize('epsilon', [1e-6, 9000.0])
@pytest.mark.parametrize('count, probability', [(1, 1.0), (12, 1.0), (12, 0.02)])
def test_laplace_noise_multiplier_gives_back_pure_epsilon(epsilon, count, probability):
  noise = budget.laplace_noise_multiplier(epsilon, count, probability)
  spent = budget.laplace_epsilon(noise, count, probability)
  assert spent == pytest.approx(epsilon, rel=1e-11)
  pure = accounting.Budget(
    num_compositions=count,
    sampling_probability=probability,
    noise='laplace',
    epsilon=epsilon,
    delta=0.0,
  )
  assert (pure.noise_multiplier, pure.accountant) == (noise, 'pure')


def _exact_epsilon(noise, probability):
  with decimal.localcontext(decimal.Context(prec=800, Emin=-9999, Emax=9999)):
    unsampled = 1 / decimal.Decimal(noise)
    return (1 + decimal.Decimal(probability) * (unsampled.exp() - 1)).ln()


@pytest.mark.parametrize('noise', [0.0014, 0.01, 1.0, 1e6])
@pytest.mark.parametrize('probability', [1e-300, 1e-6, 1.0])
def test_laplace_epsilon_is_never_below_exact_epsilon(noise, probability):
  exact = _exact_epsilon(noise, probability)
  actual = decimal.Decimal(budget.laplace_epsilon(noise, 1, probability))
  assert exact <= actual <= exact * decimal.Decimal(1 + 1e-12)


@pytest.mark.parametrize('epsilon', [1e-5, 1.5, 800.0])
@pytest.mark.parametrize('probability', [1e-310, 1e-10, 1.0])
def test_laplace_noise_multiplier_is_never_below_exact_minimum(epsilon, probability):
  noise = budget.laplace_noise_multiplier(epsilon, 1, probability)
  spent, target = _exact_epsilon(noise, probability), decimal.Decimal(epsilon)
  assert target * decimal.Decimal(1 - 1e-10) <= spent <= target


USES = {
  'exact': {'num_compositions': 80},
  'rdp': {'num_compositions': 500, 'sampling_probability': 0.02, 'accountant': 'rdp'},
  'pld': {'num_compositions': 500, 'sampling_probability': 0.02},
  'laplace': {'num_compositions': 30, 'noise': 'laplace'},
  'sampled_laplace': {
    'num_compositions': 30,
    'sampling_probability': 0.1,
    'noise': 'laplace',
  },
}


@pytest.mark.parametrize('use', USES.values(), ids=USES.keys())
def test_budget_computes_third_number_from_any_two(use):
  calibrated = accounting.Budget(epsilon=2.0, delta=1e-5, **use)
  noise = calibrated.noise_multiplier
  actual = accounting.Budget(delta=1e-5, noise_multiplier=noise, **use)
  assert 2.0 * 0.999 < actual.epsilon <= 2.0
  delta = accounting.Budget(epsilon=2.0, noise_multiplier=noise, **use).delta
  assert 1e-5 * 0.99 < delta <= 1e-5
  less = accounting.Budget(delta=1e-5, noise_multiplier=0.9999 * noise, **use)
  assert less.epsilon > 2.0
  # All three numbers together are accepted.
  checked = accounting.Budget(epsilon=2.0, delta=1e-5, noise_multiplier=noise, **use)
  assert checked == calibrated


def test_budget_refuses_inconsistent_numbers():
  numbers = {'num_compositions': 100, 'delta': 1e-6, 'noise_multiplier': 6.0}
  spent = accounting.Budget(**numbers).epsilon
  with pytest.raises(ValueError) as error:
    accounting.Budget(epsilon=8.0, **numbers)
  assert f'spends epsilon = {rounding.up(spent, 6)}' in str(error.value)
  accounting.Budget(epsilon=spent, **numbers)
  with pytest.raises(ValueError, match='do not fit'):
    accounting.Budget(epsilon=spent * (1 - 1e-9), **numbers)


def test_noise_scaled_for_simulated_cohort_gives_no_guarantee():
  numbers = {'num_compositions': 10, 'epsilon': 2.0, 'delta': 1e-6}
  full = accounting.Budget(**numbers)
  scaled = accounting.Budget(noise_scale=0.1, **numbers)
  assert scaled.noise_multiplier == full.noise_multiplier
  assert scaled.cohort_noise_multiplier == pytest.approx(0.1 * full.noise_multiplier)
  assert scaled.simulated_cohort_scale == pytest.approx(10.0)
  assert scaled.cohort_event == dp_accounting.NonPrivateDpEvent()
  assert full.cohort_event == full.event
  # The mean over 100 clients has the same noise as that over 1000, unscaled.
  assert scaled.cohort_noise_multiplier / 100 == pytest.approx(
    full.noise_multiplier / 1000
  )


@pytest.mark.parametrize(
  'changed, message',
  [
    ({'epsilon': None}, 'at least two of epsilon, delta and noise_multiplier'),
    ({'epsilon': 0.0}, 'epsilon must be'),
    ({'delta': 0.0}, 'delta must be'),
    ({'noise_multiplier': math.inf}, 'noise_multiplier'),
    ({'num_compositions': 0}, 'num_compositions'),
    ({'sampling_probability': 1.1}, 'sampling_probability'),
    ({'noise_scale': 2.0}, 'noise_scale'),
    ({'noise': 'cauchy'}, 'cauchy'),
    ({'noise': 'laplace', 'delta': 0.0, 'accountant': 'pld'}, 'accountant'),
  ],
)
def test_budget_refuses_numbers_out_of_range(changed, message):
  numbers = {'num_compositions': 5, 'epsilon': 1.0, 'delta': 1e-6}
  with pytest.raises(ValueError, match=message):
    accounting.Budget(**{**numbers, **changed})


@pytest.mark.parametrize('accountant', ['exact', 'rdp', 'prv'])
def test_budget_refuses_accountants_without_sampled_laplace_noise(accountant):
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accounting.Budget(
      num_compositions=5,
      sampling_probability=0.1,
      noise='laplace',
      epsilon=1.0,
      delta=1e-6,
      accountant=accountant,
    )
