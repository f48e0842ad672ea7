"""Separations of b-min-sep sampling, and where searches by drawn outcomes begin.

Claims:

* The separation that is chosen has about the least error of all that are tried, by the
  accountant's answers; its noise keeps the target.
* What no separation is left for is refused, as is a mechanism without bands.
* A search by Monte Carlo asks few questions, and begins near its answer, also where the
  bound without sampling error is far above; it asks no more than its confidence is for.
"""

import itertools
import math

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.accounting.accountants import monte_carlo
from tff_dp_aggregators.accounting.planning import separations

BOTH = Relation.ADD_OR_REMOVE_ONE


@pytest.mark.slow
def test_the_chosen_separation_has_about_the_least_error():
  clients, epsilon, delta = (64, 1000, 50), 16.0, 1e-2
  chosen = separations.best_separation(*clients, epsilon, delta)
  assert chosen.num_rounds == 64 and chosen.rate == pytest.approx(0.05, rel=1e-12)
  errors = {}
  for b in (2, 4, 8, 16):
    schema = sampling.BMinSepSampling.of_cohort(*clients, b)
    made = accounting.Mechanism.for_target(
      'toeplitz', schema, epsilon, delta, num_bands=b
    )
    assert made.epsilon(delta) <= epsilon
    errors[b] = made.strategy.rmse() * made.noise_multiplier
  assert errors[chosen.min_separation] <= 1.05 * min(errors.values())
  # No error of the others would do as well: the choice is one.
  assert max(errors.values()) > 1.15 * min(errors.values())
  assert separations.best_separation(*clients, epsilon, delta, largest=3) == (
    sampling.BMinSepSampling.of_cohort(*clients, 2)
  )


def test_what_has_no_separation_is_refused():
  with pytest.raises(ValueError, match='at most num_clients=10; got 20'):
    separations.best_separation(64, 10, 20, 8.0, 1e-3)
  for mechanism in ('gaussian', 'bandd'):
    said = f"which '{mechanism}' is not; known: banded, toeplitz."
    with pytest.raises(ValueError, match=said):
      separations.best_separation(64, 1000, 50, 8.0, 1e-3, mechanism=mechanism)
  for clients in ((64, 100, 60), (1, 1000, 50)):
    with pytest.raises(ValueError, match='take Poisson sampling'):
      separations.best_separation(*clients, 8.0, 1e-3)
  with pytest.raises(ValueError, match='take Poisson sampling'):
    separations.best_separation(64, 1000, 50, 8.0, 1e-3, largest=1)


@pytest.mark.slow
def test_a_target_that_hardly_any_noise_keeps_is_refused():
  """Who is in a round with a probability below delta needs none."""
  with pytest.raises(ValueError, match='a smaller one is not looked for'):
    separations.best_separation(32, 10**6, 1, 1.0, 1e-4)


def _event_of(noise):
  """Whose bound without sampling error is some times the answer."""
  schema = sampling.BMinSepSampling.of_cohort(128, 1000, 20, 4)
  strategy = strategies.BandedToeplitz.square_root(128, num_bands=4)
  return run_events.event(strategy, schema, noise)


def test_more_questions_than_the_confidence_is_for_are_refused(monkeypatch):
  """Answers that never settle, of an accountant that says what it is told."""
  answers = itertools.count(1)

  class Restless(monte_carlo.MonteCarloAccountant):
    def get_epsilon(self, target_delta):
      return 6.0 + 1.0 / next(answers)

  monkeypatch.setattr(
    accountants.entry_of('monte_carlo'), 'get_epsilon', Restless.get_epsilon
  )
  with pytest.raises(ValueError, match='more than 64 epsilons.*or state the noise'):
    calibration.noise_multiplier(
      _event_of, 6.0, 1e-3, accountant='monte_carlo', relation=BOTH
    )


def test_about_is_about():
  about = calibration.about_noise_multiplier(
    _event_of, 6.0, 1e-3, accountant='monte_carlo', relation=BOTH
  )
  epsilon = accountants.epsilon(_event_of(about), 1e-3, 'monte_carlo', BOTH)
  assert epsilon == pytest.approx(6.0, rel=0.1)
  gaussian = calibration.about_noise_multiplier(
    dp_accounting.GaussianDpEvent, 6.0, 1e-6
  )
  exact = calibration.noise_multiplier(dp_accounting.GaussianDpEvent, 6.0, 1e-6)
  assert exact <= gaussian <= 1.1 * exact
  with pytest.raises(dp_accounting.UnsupportedEventError, match='one alone'):
    monte_carlo.MonteCarloAccountant.estimate(dp_accounting.GaussianDpEvent(1.0), 1e-6)
  assert monte_carlo.MonteCarloAccountant.estimate(_event_of(0.0), 1e-6) == math.inf
