"""Any two of epsilon, delta and noise give the third, and three are checked."""

import decimal
import math

import dp_accounting
import pytest

from tff_dp_aggregators import accounting
from tff_dp_aggregators.accounting import budget
from tff_dp_aggregators.base import rounding


def test_gaussian_noise_of_one_use_is_the_published_figure():
  # What the authors' implementation prints for epsilon 1 and delta 1e-5.
  assert budget.gaussian_noise_multiplier(1.0, 1e-5) == pytest.approx(
    3.730631634944469, rel=1e-8
  )
  textbook = math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.9
  assert budget.gaussian_noise_multiplier(0.9, 1e-5) < 0.9 * textbook


@pytest.mark.parametrize('epsilon', [1e-6, 9000.0])
@pytest.mark.parametrize('count, probability', [(1, 1.0), (12, 1.0), (12, 0.02)])
def test_laplace_noise_keeps_its_pure_epsilon(epsilon, count, probability):
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
    before = 1 / decimal.Decimal(noise)
    return (1 + decimal.Decimal(probability) * (before.exp() - 1)).ln()


@pytest.mark.parametrize('noise', [0.0014, 0.01, 1.0, 1e6])
@pytest.mark.parametrize('probability', [1e-300, 1e-6, 1.0])
def test_pure_epsilon_of_laplace_noise_is_never_below_the_truth(noise, probability):
  exact = _exact_epsilon(noise, probability)
  found = decimal.Decimal(budget.laplace_epsilon(noise, 1, probability))
  assert exact <= found <= exact * decimal.Decimal(1 + 1e-12)


@pytest.mark.parametrize('epsilon', [1e-5, 1.5, 800.0])
@pytest.mark.parametrize('probability', [1e-310, 1e-10, 1.0])
def test_laplace_noise_of_pure_epsilon_is_never_below_the_least(epsilon, probability):
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
def test_two_give_the_third_and_it_keeps_them(use):
  found = accounting.Budget(epsilon=2.0, delta=1e-5, **use)
  noise = found.noise_multiplier
  kept = accounting.Budget(delta=1e-5, noise_multiplier=noise, **use)
  assert 2.0 * 0.999 < kept.epsilon <= 2.0
  delta = accounting.Budget(epsilon=2.0, noise_multiplier=noise, **use).delta
  assert 1e-5 * 0.99 < delta <= 1e-5
  less = accounting.Budget(delta=1e-5, noise_multiplier=0.9999 * noise, **use)
  assert less.epsilon > 2.0
  # All three: what was found is accepted and kept.
  three = accounting.Budget(epsilon=2.0, delta=1e-5, noise_multiplier=noise, **use)
  assert three == found


def test_three_that_do_not_fit_are_refused_with_by_how_much():
  given = {'num_compositions': 100, 'delta': 1e-6, 'noise_multiplier': 6.0}
  spent = accounting.Budget(**given).epsilon
  with pytest.raises(ValueError) as refused:
    accounting.Budget(epsilon=8.0, **given)
  message = str(refused.value)
  assert f'spends epsilon = {rounding.up(spent, 6)}' in message
  least = accounting.Budget(num_compositions=100, epsilon=8.0, delta=1e-6)
  assert (
    f'noise multiplier of {rounding.up(least.noise_multiplier, 6)} keeps' in message
  )
  accounting.Budget(epsilon=spent, **given)  # It fits.
  with pytest.raises(ValueError, match='do not fit'):
    accounting.Budget(epsilon=spent * (1 - 1e-9), **given)


def test_noise_of_a_larger_cohort_is_promised_to_nobody_in_the_run():
  use = {'num_compositions': 10, 'epsilon': 2.0, 'delta': 1e-6}
  whole = accounting.Budget(**use)
  scaled = accounting.Budget(noise_scale=0.1, **use)
  assert scaled.noise_multiplier == whole.noise_multiplier
  assert scaled.cohort_noise_multiplier == pytest.approx(0.1 * whole.noise_multiplier)
  assert scaled.simulated_cohort_scale == pytest.approx(10.0)
  assert scaled.cohort_event == dp_accounting.NonPrivateDpEvent()
  assert whole.cohort_event == whole.event
  # The mean over m clients has the same noise as that over 10 m with all of it.
  assert scaled.cohort_noise_multiplier / 100 == pytest.approx(
    whole.noise_multiplier / 1000
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
def test_numbers_out_of_range_are_refused_by_name(changed, message):
  given = {'num_compositions': 5, 'epsilon': 1.0, 'delta': 1e-6}
  with pytest.raises(ValueError, match=message):
    accounting.Budget(**{**given, **changed})


@pytest.mark.parametrize('accountant', ['exact', 'rdp', 'prv'])
def test_accountants_that_do_not_read_the_noise_are_refused(accountant):
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accounting.Budget(
      num_compositions=5,
      sampling_probability=0.1,
      noise='laplace',
      epsilon=1.0,
      delta=1e-6,
      accountant=accountant,
    )
