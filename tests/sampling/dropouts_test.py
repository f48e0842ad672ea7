"""Drop-outs hit each client with the rate, independently, by seed and number alone."""

import math

import numpy as np
import pytest

from tff_dp_aggregators import sampling


@pytest.mark.parametrize('vary', ['client', 'round', 'attempt', 'seed'])
def test_the_share_that_reports_is_one_less_the_rate(vary):
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
  assert abs(reporting - 0.7 * count) < 5.3 * spread  # Once in 10^7.


def test_a_client_reports_whoever_else_is_asked():
  drop = sampling.Dropouts(0.5, 3)
  cohort = np.arange(1000)
  reporting = set(drop.reporting(4, 1, cohort).tolist())
  some = cohort[::-7]
  assert set(drop.reporting(4, 1, some).tolist()) == reporting & set(some.tolist())
  kept = drop.reporting(4, 1, some)
  assert kept.tolist() == sorted(kept.tolist(), reverse=True)  # In the order given.


def test_a_rate_of_zero_drops_nobody_and_others_are_refused():
  cohort = np.arange(1000)
  assert len(sampling.Dropouts(0.0, 1).reporting(0, 0, cohort)) == 1000
  for rate in (1.0, -0.1, math.nan):
    with pytest.raises(ValueError, match='rate must be at least 0 and below 1'):
      sampling.Dropouts(rate, 1)
  with pytest.raises(TypeError, match='seed must be a whole number'):
    sampling.Dropouts(0.1, 1.5)
