"""Balls in bins and b-min-sep sampling against Monte Carlo draws of jax_privacy 2.0.0.

jax_privacy.json has deltas estimated from its draws, with their standard errors, and a
few outcomes with their losses; tools/peers/jax_privacy_losses.py makes it, in an
environment of its own.
"""

import json
import math
import pathlib

import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.accounting.accountants import monte_carlo
from tff_dp_aggregators.sampling import allocation

_HERE = pathlib.Path(__file__)
_FILE = json.loads(_HERE.with_name('jax_privacy.json').read_text(encoding='utf-8'))
SETTINGS = _FILE['settings']
BOTH = Relation.ADD_OR_REMOVE_ONE
# Settings that give the same pair of distributions in both packages.
SAME = [name for name in SETTINGS if name not in ('a cold start', 'three bands')]
DIRECTIONS = {True: 'deltas of removing', False: 'deltas of adding'}


def _strategy(setting):
  return strategies.BandedToeplitz(setting['rounds'], tuple(setting['column']))


def _event(setting):
  scheme, rounds = setting['sampling'], setting['rounds']
  if 'cycle_length' in scheme:
    schema = sampling.BallsInBins(rounds, scheme['cycle_length'])
  else:
    schema = sampling.BMinSepSampling(
      rounds, scheme['sampling_prob'], scheme['min_sep']
    )
  return run_events.event(_strategy(setting), schema, setting['noise'])


def _losses(setting):
  """Our losses of its outcomes, always for removing a client."""
  strategy, noise = _strategy(setting), setting['noise']
  scheme, outcomes = setting['sampling'], np.array(setting['outcomes']) / noise
  if 'cycle_length' in scheme:
    bins = scheme['cycle_length']
    columns = allocation.bins_of(strategy, bins)
    mixture: monte_carlo.Mixture = monte_carlo._BallsInBinsMixture(
      strategy, bins, noise
    )
  else:
    columns = np.abs(strategy.materialize())
    mixture = monte_carlo._BMinSepMixture(
      strategy, scheme['min_sep'], scheme['sampling_prob'], noise
    )
  return mixture.log_ratios(outcomes @ columns / noise)


@pytest.mark.parametrize('name', SAME)
def test_losses_of_outcomes_match_jax_privacy(name):
  setting = SETTINGS[name]
  actual, expected = _losses(setting), np.array(setting['losses'])
  assert len(actual) == len(expected) >= 12
  np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def _standardized_differences(name):
  """Differences between our and its estimated deltas, in standard errors."""
  setting = SETTINGS[name]
  mixture = monte_carlo._mixture(_event(setting))
  for removed, deltas in DIRECTIONS.items():
    proposal = monte_carlo.best_proposal(mixture, removed, 1.0)
    tails = monte_carlo.draw(
      mixture, np.random.default_rng(1), 2**16, proposal, min(setting['epsilons'])
    )
    for epsilon, (mean, error) in zip(setting['epsilons'], setting[deltas]):
      outcomes = tails.outcomes(epsilon)
      own_error = math.sqrt(float(np.square(outcomes).sum())) / tails.size
      # Without an outcome in its draws, the mean is below 21 / draws, at 1 - 10^-9.
      tolerance = 21 / setting['draws'] if error == 0 else 0.0
      difference = abs(tails.delta(epsilon) - mean)
      yield max(difference - tolerance, 0.0) / max(math.hypot(own_error, error), 1e-300)


@pytest.mark.few(2)
@pytest.mark.parametrize('name', SAME)
def test_simulated_deltas_match_jax_privacy(name):
  assert max(_standardized_differences(name)) <= 6


@pytest.mark.few(2)
@pytest.mark.parametrize('name', SAME)
def test_deltas_are_not_below_jax_privacy_estimates(name):
  setting = SETTINGS[name]
  event = _event(setting)
  for i, epsilon in enumerate(setting['epsilons']):
    lower_bound = max(
      mean - 6 * error
      for mean, error in (setting[each][i] for each in DIRECTIONS.values())
    )
    bound = accountants.delta(event.bound, epsilon, 'pld', BOTH)
    assert bound >= lower_bound
    if epsilon == 1.0:
      actual = accountants.delta(event, epsilon, 'monte_carlo', BOTH)
      assert lower_bound <= actual <= bound


def test_stored_settings_cover_both_schemes():
  assert _FILE['version'] == '2.0.0'
  assert sum('cycle_length' in SETTINGS[name]['sampling'] for name in SAME) == 3
  assert sum('min_sep' in SETTINGS[name]['sampling'] for name in SAME) == 3
