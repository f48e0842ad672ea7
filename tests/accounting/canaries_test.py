"""What the guesses of an attacker with canaries say of epsilon."""

import json
import math
import pathlib
import subprocess

import numpy as np
import pytest
import scipy.optimize
from scipy import special
from scipy import stats

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import canaries
from tff_dp_aggregators.accounting.accountants import gaussian

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PEER = json.loads(
  pathlib.Path(__file__).with_name('jax_privacy_audits.json').read_text('utf-8')
)
_COUNTS = ('num_canaries', 'num_guesses', 'num_correct')
_DELTA = 1e-3


@pytest.mark.parametrize('epsilon', [0.0, 3.0])
@pytest.mark.parametrize('delta', [0.0, 1e-2])
def test_the_probability_is_that_of_the_theorem(epsilon, delta):
  num_canaries, num_guesses = 12, 7
  chance = math.exp(epsilon) / (1 + math.exp(epsilon))

  def tail(correct):
    return sum(
      math.comb(num_guesses, k) * chance**k * (1 - chance) ** (num_guesses - k)
      for k in range(max(0, correct), num_guesses + 1)
    )

  for correct in range(num_guesses + 1):
    exempt = max(
      (tail(correct - i) - tail(correct)) / i for i in range(1, num_canaries + 1)
    )
    expected = min(1.0, tail(correct) + 2 * num_canaries * delta * exempt)
    found = canaries.p_value(num_canaries, num_guesses, correct, epsilon, delta)
    assert found == pytest.approx(expected, rel=1e-12)


def _largest_probability(num_canaries, num_guesses, num_correct, lines):
  """That of so many correct guesses, when 1 - f is the least of some lines.

  All that is used is that r(j + 1) <= 1 - f(w(j)) for every j.
  """
  count = np.arange(num_guesses + 1)
  rows, limits = [], []
  for fewest in range(num_guesses):
    right = np.where(count > fewest, count / num_canaries, 0.0)
    wrong = np.where(count >= fewest, (num_guesses - count) / num_canaries, 0.0)
    for slope, above in lines:
      rows.append(right - slope * wrong)
      limits.append(above)
  found = scipy.optimize.linprog(
    -(count >= num_correct).astype(float),
    A_ub=np.array(rows),
    b_ub=limits,
    A_eq=np.ones([1, num_guesses + 1]),
    b_eq=[1.0],
    bounds=(0, 1),
    method='highs',
  )
  return -found.fun


def _refuted_from(counts, inverse):
  """The least significance at which the counts refute a curve."""
  low, high = 0.0, 1.0
  for _ in range(50):
    middle = (low + high) / 2
    refuted = canaries._are_too_many(*counts, inverse, middle)
    low, high = (low, middle) if refuted else (middle, high)
  return high


_SMALL = [(5, 4, 4), (10, 10, 9), (16, 10, 7), (30, 12, 11)]


@pytest.mark.parametrize('counts', _SMALL)
@pytest.mark.parametrize(('epsilon', 'delta'), [(0.5, 1e-4), (1.5, 0.05)])
def test_no_curve_but_epsilon_and_delta_is_as_a_linear_program(counts, epsilon, delta):
  slope = math.exp(epsilon)
  lines = [(slope, delta), (1 / slope, 1 - (1 - delta) / slope)]
  expected = _largest_probability(*counts, lines)
  found = _refuted_from(counts, canaries._any_curve(epsilon, delta))
  assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('counts', _SMALL)
@pytest.mark.parametrize('mu', [0.3, 2.0])
def test_the_curve_of_gaussians_is_as_a_linear_program(counts, mu):
  # Tangents of it at many points, above which it nowhere is.
  x = np.linspace(-5, 5, 250)
  slopes = np.exp(-mu * x - mu**2 / 2)
  lines = list(zip(slopes, special.ndtr(x + mu) - slopes * special.ndtr(x)))
  expected = _largest_probability(*counts, lines)
  found = _refuted_from(counts, canaries._gaussian_curve(mu))
  assert expected * (1 - 2e-3) <= found <= expected * (1 + 1e-6)


def _bounds(num_canaries, guesses, delta, significance, is_gaussian=False):
  """By the number of correct guesses, of both methods."""
  counted = [(num_canaries, guesses, each) for each in range(guesses + 1)]
  given = {'delta': delta, 'significance': significance}
  return {
    'one_run': [canaries.one_run(*each, **given) for each in counted],
    'one_run_fdp': [
      canaries.one_run_fdp(*each, is_gaussian=is_gaussian, **given) for each in counted
    ],
  }


@pytest.mark.parametrize('guesses', [20, 60])
@pytest.mark.parametrize('epsilon', [0.2, 3.0])
def test_of_randomised_response_a_bound_is_rarely_too_large(epsilon, guesses):
  """With the exact probability of each number of correct guesses."""
  correct = np.arange(guesses + 1)
  probability = stats.binom.pmf(correct, guesses, special.expit(epsilon))
  for method, bounds in _bounds(60, guesses, 1e-6, 0.05).items():
    too_large = np.array(bounds) > epsilon
    assert probability[too_large].sum() <= 0.05
    # It is not that no bound is ever large.
    assert too_large.any() or epsilon == 3.0, method
    # Of pure randomised response, both find most of it.
    assert probability @ np.array(bounds) > 0.2 * epsilon - 0.1


def test_of_gaussian_noise_a_bound_is_rarely_too_large():
  rng, size, repeats, mu = np.random.default_rng(2), 200, 2000, 1.5
  epsilon = gaussian.epsilon_of(mu, _DELTA)
  for guesses in (40, 200):
    bounds = _bounds(size, guesses, _DELTA, 0.05, is_gaussian=True)
    correct = np.empty(repeats, int)
    for i in range(repeats):
      inserted = rng.random(size) < 0.5
      scores = rng.normal(size=size) + mu * inserted
      correct[i] = canaries.correct_guesses(scores, inserted, guesses)
    for method, by_correct in bounds.items():
      found = np.array(by_correct)[correct]
      assert np.mean(found > epsilon) <= 0.05 + 5 * math.sqrt(0.0475 / repeats)
      assert np.mean(found) > (0.03 if method == 'one_run' else 0.1) * epsilon


def test_bounds_grow_with_what_is_right_and_shrink_with_delta():
  for is_gaussian in (False, True):
    for bounds in _bounds(100, 40, 1e-6, 0.05, is_gaussian).values():
      assert bounds == sorted(bounds) and bounds[20] == 0 and bounds[40] > 2
  for delta in (1e-6, 1e-4):
    of = {'delta': delta, 'significance': 0.05}
    more = {'delta': 2 * delta, 'significance': 0.05}
    assert canaries.one_run(100, 40, 38, **more) < canaries.one_run(100, 40, 38, **of)


@pytest.mark.parametrize('stated', _PEER['audits'], ids=str)
def test_bounds_are_those_of_jax_privacy(stated):
  counts = [stated[name] for name in _COUNTS]
  given = {name: stated[name] for name in ('delta', 'significance')}
  found = canaries.one_run(*counts, **given)
  assert found == pytest.approx(stated['one_run'], abs=3e-6)
  found = canaries.one_run_fdp(*counts, is_gaussian=True, **given)
  assert found == pytest.approx(stated['one_run_fdp'], abs=3e-6)


@pytest.mark.slow
def test_jax_privacy_says_so_still():
  python = _ROOT / 'build' / 'peers' / 'jax_privacy' / 'bin' / 'python'
  if not python.exists():
    pytest.skip('it has an environment of its own; `make moving` makes it')
  program = _ROOT / 'tools' / 'peers' / 'jax_privacy_audits.py'
  said = subprocess.run([python, program], capture_output=True, check=True).stdout
  assert json.loads(said) == _PEER


def test_counts_that_cannot_be_are_refused():
  for counts in ((10, 11, 5), (10, 5, 6), (10, 5, -1)):
    with pytest.raises(ValueError, match='num_correct'):
      canaries.one_run(*counts, delta=1e-5, significance=0.05)


# Scores.

_LIMITS = strategies.Participation(num_rounds=12, min_separation=4)


def _record(mechanism, size, seed=1):
  """What is released along directions that are orthogonal, with the mechanism's noise.

  Each canary is in every fourth round, from its number on.
  """
  rng, rounds = np.random.default_rng(seed), _LIMITS.num_rounds
  inserted = rng.random(size) < 0.5
  took_part = np.arange(rounds)[:, None] % 4 == np.arange(size) % 4
  noise = mechanism.noise_multiplier * mechanism.strategy.noise_matrix()
  released = took_part * inserted + noise @ rng.normal(size=[noise.shape[1], size])
  return inserted, released, took_part


@pytest.mark.parametrize('name', ['gaussian', 'tree', 'banded'])
def test_scores_lie_apart_as_far_as_the_sensitivity_says(name):
  mechanism = accounting.Mechanism(name, _LIMITS, noise_multiplier=1.0)
  size = 8000
  inserted, released, took_part = _record(mechanism, size)
  scores = canaries.scores(released, took_part, mechanism)
  # Of those that are in rounds 0, 4 and 8; others end before the rounds do, or not.
  first = np.arange(size) % 4 == 0
  inside, outside = scores[first & inserted], scores[first & ~inserted]
  for each in (inside, outside):
    assert np.var(each) == pytest.approx(1, abs=5 * math.sqrt(2 / len(each)))
  apart = inside.mean() - outside.mean()
  allowed = 5 * math.sqrt(1 / len(inside) + 1 / len(outside))
  # It cannot be more than is accounted for.
  assert apart <= 1 / mechanism.effective_noise_multiplier + allowed
  expected = mechanism.strategy.materialize()[:, [0, 4, 8]].sum(axis=1)
  if name != 'tree':  # Whose observer sees estimates, not all nodes.
    assert apart == pytest.approx(np.linalg.norm(expected), abs=allowed)
  # Weights that ignore how the noise is correlated tell no more.
  plain = released[:, first].T @ took_part[:, 0]
  groups = plain[inserted[first]], plain[~inserted[first]]
  ratio = (groups[0].mean() - groups[1].mean()) / np.std(groups[1])
  assert ratio <= apart + allowed


def test_a_canary_in_no_round_has_no_score():
  mechanism = accounting.Mechanism('banded', _LIMITS, noise_multiplier=1.0)
  _, released, took_part = _record(mechanism, 10)
  took_part[:, 3] = False
  scores = canaries.scores(released, took_part, mechanism)
  assert scores[3] == 0 and np.count_nonzero(scores) == 9


def test_scores_of_the_first_rounds_are_by_their_noise_alone():
  mechanism = accounting.Mechanism('banded', _LIMITS, noise_multiplier=1.5)
  _, released, took_part = _record(mechanism, 10)
  c = mechanism.strategy.materialize()[:5, :5] / 1.5
  found = canaries.scores(released[:5], took_part[:5], mechanism)
  for i in range(10):
    u = took_part[:5, i].astype(float)
    expected = (c @ u) @ (c @ released[:5, i]) / np.linalg.norm(c @ u)
    assert found[i] == pytest.approx(expected, rel=1e-9)


def test_with_sampling_who_was_drawn_is_not_used():
  scheme = sampling.PoissonSampling(12, sampling_probability=0.25)
  mechanism = accounting.Mechanism('gaussian', scheme, noise_multiplier=1.0)
  _, released, took_part = _record(mechanism, 10)
  before = canaries.scores(released, took_part, mechanism)
  nobody = np.zeros_like(took_part)
  np.testing.assert_array_equal(canaries.scores(released, nobody, mechanism), before)
  np.testing.assert_allclose(before, released.sum(axis=0) / math.sqrt(12))


def _audit(mechanism, claimed):
  inserted, released, took_part = _record(mechanism, 2000)
  scores = canaries.scores(released, took_part, claimed)
  record = canaries.Record(inserted, scores, _LIMITS.num_rounds)
  epsilon = claimed.epsilon(1e-5)
  return canaries.audit(record, delta=1e-5, planned_epsilon=epsilon, is_gaussian=True)


def test_a_correct_mechanism_is_not_refuted_and_one_with_less_noise_is():
  claimed = accounting.Mechanism('banded', _LIMITS, noise_multiplier=4.0)
  epsilon = claimed.epsilon(1e-5)
  true = _audit(claimed, claimed)
  assert [each.method for each in true.bounds] == ['one_run', 'one_run_fdp']
  assert [each.curve for each in true.bounds] == ['any', 'gdp']
  assert max(each.epsilon for each in true.bounds) < epsilon
  assert true.estimate == pytest.approx(epsilon, rel=0.25)
  less = accounting.Mechanism('banded', _LIMITS, noise_multiplier=1.6)
  broken = _audit(less, claimed)
  assert broken.bounds[1].epsilon > epsilon
  # The plan decides on the guesses.
  assert [each.num_guesses for each in broken.bounds] == [
    each.num_guesses for each in true.bounds
  ]


# The file of a run.


def _load(path, inserted='0110'):
  return canaries.Record.load(
    str(path), inserted=inserted, confidence=0.9, most_rounds=7
  )


def test_what_is_written_is_read(tmp_path):
  inserted = np.array([False, True, True, False])
  record = canaries.Record(inserted, np.array([1.25, -2.0, 1 / 3, 0.0]), 7, 0.9)
  path = tmp_path / canaries.FILE
  path.write_text(record.to_json(), 'utf-8')
  found = _load(path)
  np.testing.assert_allclose(found.scores, record.scores, rtol=1e-8)
  assert found.inserted.tolist() == inserted.tolist()
  assert (found.rounds, found.confidence) == (7, 0.9)
  with pytest.raises(ValueError, match='coins'):
    _load(path, inserted='0111')
  content = json.loads(path.read_text('utf-8'))
  for change in (
    {'scores': [1.0, 2.0, 3.0]},
    {'scores': [1.0, 2.0, 3.0, 'x']},
    {'rounds': 8},  # More than the run has.
    {'confidence': 0.99},  # Another one than the run was begun with.
  ):
    path.write_text(json.dumps({**content, **change}), 'utf-8')
    with pytest.raises((TypeError, ValueError), match=canaries.FILE):
      _load(path)


@pytest.mark.parametrize('epsilon', [0.5, 1.0])
def test_of_response_that_may_tell_the_truth_a_bound_is_rarely_too_large(epsilon):
  """The worst for (epsilon, delta), with the guesses that it makes easy first."""
  rng, delta, size, guesses, repeats = np.random.default_rng(1), 0.05, 100, 20, 20_000
  told = rng.random([repeats, size]) < delta
  right = rng.random([repeats, size]) < special.expit(epsilon)
  # Coins that are told are guessed first, and others as the response says.
  known = np.minimum(told.sum(axis=1), guesses)
  first = np.arange(size) < (guesses - known)[:, None]
  correct = known + (right & first).sum(axis=1)
  for bounds in _bounds(size, guesses, delta, 0.05).values():
    too_large = float(np.mean(np.array(bounds)[correct] > epsilon))
    assert too_large <= 0.05 + 5 * math.sqrt(0.05 * 0.95 / repeats)
