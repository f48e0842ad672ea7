"""PLD: dp-accounting's numbers where those are good, and sound ones elsewhere.

* Little or much noise, rare sampling and many rounds neither fail, nor take all memory,
  nor come out below the exact curve.
* Intervals follow the losses, which dp-accounting's fixed one loosens.
* Below the delta that float64 resolves, and above the epsilons it holds, the answer is
  the Renyi bound.
"""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import accountants

Gaussian = dp_accounting.GaussianDpEvent
Laplace = dp_accounting.LaplaceDpEvent
Poisson = dp_accounting.PoissonSampledDpEvent
Repeated = dp_accounting.SelfComposedDpEvent
ADD_OR_REMOVE = Relation.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize('mu', [1e-200, 1e-12, 1e-6, 1e-3, 20.0, 300.0, 1e6, 1e120])
def test_any_noise_has_a_sound_epsilon(mu):
  for delta in (1e-15, 1e-6, 0.3):
    exact = accountants.epsilon(Gaussian(1 / mu), delta)
    pld = accountants.epsilon(Gaussian(1 / mu), delta, 'pld')
    assert exact <= pld <= max(exact * 1.3, exact + 1e-6), delta
  for epsilon in (0.0, 1.0, 1e5):
    exact = accountants.delta(Gaussian(1 / mu), epsilon)
    pld = accountants.delta(Gaussian(1 / mu), epsilon, 'pld')
    assert exact <= pld <= 1.0 or pld == pytest.approx(exact, abs=1e-300)


@pytest.mark.parametrize('rounds', [1, 100, 10**4, 10**6])
def test_repeated_sampling_of_nearly_everybody_is_below_the_gaussian_and_close(rounds):
  # The sampled event cannot be read as one Gaussian, whose epsilon is known exactly.
  noise_multiplier = 2.0 * math.sqrt(rounds)
  event = Repeated(Poisson(1 - 1e-9, Gaussian(noise_multiplier)), rounds)
  exact = accountants.epsilon(Gaussian(2.0), 1e-8)
  pld = accountants.epsilon(event, 1e-8, 'pld', ADD_OR_REMOVE)
  assert exact - 1e-6 <= pld <= exact + 0.02


def test_rare_sampling_costs_next_to_nothing():
  # A client is in any round with probability 1e-5, which is a bound on delta.
  event = Repeated(Poisson(1e-9, Gaussian(1.0)), 10**4)
  assert accountants.epsilon(event, 1e-5, 'pld', ADD_OR_REMOVE) < 1e-3
  assert accountants.delta(event, 0.0, 'pld', ADD_OR_REMOVE) <= 1e-5


def test_the_interval_follows_small_losses():
  event = Repeated(Poisson(1e-4, Gaussian(10.0)), 10**6)
  pld = accountants.epsilon(event, 1e-6, 'pld', ADD_OR_REMOVE)
  fixed = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-6)
  # By the central limit mu = probability * sqrt(rounds) / noise, arXiv:1911.11607.
  limit = accountants.epsilon(Gaussian(100.0), 1e-6)
  assert limit <= pld <= limit * 1.05
  assert fixed > 2 * pld


def test_little_noise_on_a_sample_takes_no_more_memory_than_much():
  event = Repeated(Poisson(0.3, Gaussian(1e-4)), 100)
  epsilon = accountants.epsilon(event, 1e-6, 'pld', ADD_OR_REMOVE)
  everybody = accountants.epsilon(Gaussian(1e-5), 1e-6)
  assert 0.1 * everybody < epsilon
  assert epsilon == accountants.epsilon(event, 1e-6, 'rdp', ADD_OR_REMOVE)
  # Renyi's bound has nothing for Laplace noise on a sample; on everybody it has.
  sampled = Repeated(Poisson(0.3, Laplace(1e-8)), 2)
  epsilon = accountants.epsilon(sampled, 1e-6, 'pld', ADD_OR_REMOVE)
  assert 1e8 < epsilon <= 2e8 * (1 + 1e-8)


def test_deltas_that_float64_does_not_resolve_have_the_renyi_bound():
  event = Repeated(Poisson(0.01, Gaussian(1.0)), 10**4)
  for delta in (1e-13, 1e-30):
    assert accountants.epsilon(event, delta, 'pld', ADD_OR_REMOVE) == (
      accountants.epsilon(event, delta, 'rdp', ADD_OR_REMOVE)
    )
  epsilons = [
    accountants.epsilon(event, delta, 'pld', ADD_OR_REMOVE)
    for delta in (1e-3, 1e-6, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14)
  ]
  assert np.all(np.diff(epsilons) > 0)


def test_composition_in_pieces_is_that_of_the_whole():
  sampled = Poisson(0.1, Gaussian(2.0))
  whole = dp_accounting.ComposedDpEvent([Repeated(sampled, 5), Gaussian(3.0)])
  pieces = dp_accounting.ComposedDpEvent([sampled, Gaussian(3.0)] + [sampled] * 4)
  assert accountants.epsilon(whole, 1e-6, 'pld', ADD_OR_REMOVE) == (
    accountants.epsilon(pieces, 1e-6, 'pld', ADD_OR_REMOVE)
  )
