"""Tests of separations of b-min-sep sampling, and of calibration by Monte Carlo."""

import itertools

import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.accounting.accountants import monte_carlo
from tff_dp_aggregators.accounting.planning import separations

BOTH = Relation.ADD_OR_REMOVE_ONE


def test_best_separation_refuses_tasks_without_a_separation():
  with pytest.raises(ValueError, match='leave no separation above 1'):
    separations.best_separation(64, 10, 20, 8.0, 1e-3)
  with pytest.raises(ValueError, match="must be one with bands; got 'gaussian'"):
    separations.best_separation(64, 1000, 50, 8.0, 1e-3, mechanism='gaussian')
  with pytest.raises(ValueError, match='leave no separation above 1'):
    separations.best_separation(1, 1000, 50, 8.0, 1e-3)
  with pytest.raises(ValueError, match='leave no separation above 1'):
    separations.best_separation(64, 1000, 50, 8.0, 1e-3, largest=1)


@pytest.mark.slow
def test_best_separation_refuses_target_kept_almost_without_noise():
  """A client that is in a round with a probability below delta needs no noise."""
  with pytest.raises(ValueError, match='is kept with next to no noise'):
    separations.best_separation(32, 10**6, 1, 1.0, 1e-4)


def _make_event(noise):
  """Returns an event whose bound without sampling error is several times epsilon."""
  schema = sampling.BMinSepSampling.of_cohort(128, 1000, 20, 4)
  strategy = strategies.BandedToeplitz.square_root(128, num_bands=4)
  return run_events.event(strategy, schema, noise)


@pytest.mark.slow
def test_calibration_refuses_more_epsilons_than_confidence_allows(monkeypatch):
  """The answers of the accountant never settle."""
  answers = itertools.count(1)

  class UnsettledAccountant(monte_carlo.MonteCarloAccountant):
    def get_epsilon(self, target_delta):
      return 6.0 + 1.0 / next(answers)

  monkeypatch.setattr(
    accountants.entry_of('monte_carlo'), 'get_epsilon', UnsettledAccountant.get_epsilon
  )
  with pytest.raises(ValueError, match='more than 64 epsilons.*or give the noise'):
    calibration.noise_multiplier(
      _make_event, 6.0, 1e-3, accountant='monte_carlo', relation=BOTH
    )
