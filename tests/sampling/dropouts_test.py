"""Dropouts: each client drops out independently, by seed, round and attempt alone."""

import math

import numpy as np
import pytest

from tff_dp_aggregators import sampling


@pytest.mark.parametrize('vary', ['client', 'round', 'attempt', 'seed'])
def test_share_of_reporting_clients_matches_rate(vary):
  count = 100_000 if vary == 'client' else 1_000
  if vary == 'client':
    reporting = len(sampling.Dropouts(0.3, 1).reporting(2, 0, np.arange(count)))
  else:
    reporting = 0
    for number in range(count):
      seed, this_round, attempt = (
        number * (vary == v) for v in ('seed', 'round', 'attempt')
      )
      drop = sampling.Dropouts(0.3, seed)
      reporting += len(drop.reporting(this_round, attempt, np.array([7])))
  spread = math.sqrt(0.3 * 0.7 * count)
  assert abs(reporting - 0.7 * count) < 5.3 * spread  # Once in 10^7 runs.


def test_reporting_does_not_depend_on_other_clients():
  drop = sampling.Dropouts(0.5, 3)
  cohort = np.arange(1000)
  reporting = set(drop.reporting(4, 1, cohort).tolist())
  subset = cohort[::-7]
  assert set(drop.reporting(4, 1, subset).tolist()) == reporting & set(subset.tolist())
  kept = drop.reporting(4, 1, subset)
  assert kept.tolist() == sorted(kept.tolist(), reverse=True)  # Order is kept.


def test_rate_zero_drops_nobody_and_invalid_rates_are_refused():
  cohort = np.arange(1000)
  assert len(sampling.Dropouts(0.0, 1).reporting(0, 0, cohort)) == 1000
  for rate in (1.0, -0.1, math.nan):
    with pytest.raises(ValueError, match='rate must be at least 0 and below 1'):
      sampling.Dropouts(rate, 1)
  with pytest.raises(TypeError, match='seed must be a whole number'):
    sampling.Dropouts(0.1, 1.5)
