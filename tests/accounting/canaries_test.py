"""Lower bounds on epsilon from canaries, their scores, and the file of a run."""

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
def test_p_value_matches_theorem(epsilon, delta):
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
    actual = canaries.p_value(num_canaries, num_guesses, correct, epsilon, delta)
    assert actual == pytest.approx(expected, rel=1e-12)


def _largest_probability(num_canaries, num_guesses, num_correct, lines):
  """Largest probability of so many correct guesses if 1 - f is the minimum of lines.

  Lines are (slope, intercept). All that is used is r(j + 1) <= 1 - f(w(j)) for all j.
  """
  count = np.arange(num_guesses + 1)
  rows, limits = [], []
  for threshold in range(num_guesses):
    right = np.where(count > threshold, count / num_canaries, 0.0)
    wrong = np.where(count >= threshold, (num_guesses - count) / num_canaries, 0.0)
    for slope, intercept in lines:
      rows.append(right - slope * wrong)
      limits.append(intercept)
  solution = scipy.optimize.linprog(
    -(count >= num_correct).astype(float),
    A_ub=np.array(rows),
    b_ub=limits,
    A_eq=np.ones([1, num_guesses + 1]),
    b_eq=[1.0],
    bounds=(0, 1),
    method='highs',
  )
  return -solution.fun


def _significance_of_refutation(counts, inverse):
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
def test_any_curve_bound_matches_linear_program(counts, epsilon, delta):
  slope = math.exp(epsilon)
  lines = [(slope, delta), (1 / slope, 1 - (1 - delta) / slope)]
  expected = _largest_probability(*counts, lines)
  actual = _significance_of_refutation(counts, canaries._any_curve(epsilon, delta))
  assert actual == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('counts', _SMALL)
@pytest.mark.parametrize('mu', [0.3, 2.0])
def test_gaussian_curve_bound_matches_linear_program(counts, mu):
  # The curve is concave, so it lies below its tangents, here at many points.
  x = np.linspace(-5, 5, 250)
  slopes = np.exp(-mu * x - mu**2 / 2)
  lines = list(zip(slopes, special.ndtr(x + mu) - slopes * special.ndtr(x)))
  expected = _largest_probability(*counts, lines)
  actual = _significance_of_refutation(counts, canaries._gaussian_curve(mu))
  assert expected * (1 - 2e-3) <= actual <= expected * (1 + 1e-6)


def _bounds(num_canaries, guesses, delta, significance, is_gaussian=False):
  """Bounds of both methods, for each number of correct guesses."""
  counts = [(num_canaries, guesses, each) for each in range(guesses + 1)]
  options = {'delta': delta, 'significance': significance}
  return {
    'one_run': [canaries.one_run(*each, **options) for each in counts],
    'one_run_fdp': [
      canaries.one_run_fdp(*each, is_gaussian=is_gaussian, **options) for each in counts
    ],
  }


@pytest.mark.parametrize('guesses', [20, 60])
@pytest.mark.parametrize('epsilon', [0.2, 3.0])
def test_bounds_rarely_exceed_epsilon_of_randomised_response(epsilon, guesses):
  # The probability of each number of correct guesses is exact, not simulated.
  correct = np.arange(guesses + 1)
  probability = stats.binom.pmf(correct, guesses, special.expit(epsilon))
  for method, bounds in _bounds(60, guesses, 1e-6, 0.05).items():
    too_large = np.array(bounds) > epsilon
    assert probability[too_large].sum() <= 0.05
    # Bounds that are always small would pass the line before.
    assert too_large.any() or epsilon == 3.0, method
    # For pure randomised response, both bounds find most of epsilon.
    assert probability @ np.array(bounds) > 0.2 * epsilon - 0.1


def test_bounds_rarely_exceed_epsilon_of_gaussian_noise():
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
      bound = np.array(by_correct)[correct]
      assert np.mean(bound > epsilon) <= 0.05 + 5 * math.sqrt(0.0475 / repeats)
      assert np.mean(bound) > (0.03 if method == 'one_run' else 0.1) * epsilon


def test_bounds_grow_with_correct_guesses_and_shrink_with_delta():
  for is_gaussian in (False, True):
    for bounds in _bounds(100, 40, 1e-6, 0.05, is_gaussian).values():
      assert bounds == sorted(bounds) and bounds[20] == 0 and bounds[40] > 2
  for delta in (1e-6, 1e-4):
    less = {'delta': delta, 'significance': 0.05}
    more = {'delta': 2 * delta, 'significance': 0.05}
    assert canaries.one_run(100, 40, 38, **more) < canaries.one_run(100, 40, 38, **less)


@pytest.mark.parametrize('audit', _PEER['audits'], ids=str)
def test_bounds_match_jax_privacy(audit):
  counts = [audit[name] for name in _COUNTS]
  options = {name: audit[name] for name in ('delta', 'significance')}
  actual = canaries.one_run(*counts, **options)
  assert actual == pytest.approx(audit['one_run'], abs=3e-6)
  actual = canaries.one_run_fdp(*counts, is_gaussian=True, **options)
  assert actual == pytest.approx(audit['one_run_fdp'], abs=3e-6)


@pytest.mark.slow
def test_jax_privacy_reproduces_stored_bounds():
  python = _ROOT / 'build' / 'peers' / 'jax_privacy' / 'bin' / 'python'
  if not python.exists():
    pytest.skip('it has an environment of its own; `make moving` makes it')
  program = _ROOT / 'tools' / 'peers' / 'jax_privacy_audits.py'
  output = subprocess.run([python, program], capture_output=True, check=True).stdout
  assert json.loads(output) == _PEER


def test_one_run_refuses_impossible_counts():
  for counts in ((10, 11, 5), (10, 5, 6), (10, 5, -1)):
    with pytest.raises(ValueError, match='num_correct'):
      canaries.one_run(*counts, delta=1e-5, significance=0.05)


# Scores.

_LIMITS = strategies.Participation(num_rounds=12, min_separation=4)


def _record(mechanism, size, seed=1):
  """What is released along orthogonal directions, with the mechanism's noise.

  Canary i takes part in rounds i % 4, i % 4 + 4, ...
  """
  rng, rounds = np.random.default_rng(seed), _LIMITS.num_rounds
  inserted = rng.random(size) < 0.5
  took_part = np.arange(rounds)[:, None] % 4 == np.arange(size) % 4
  noise = mechanism.noise_multiplier * mechanism.strategy.noise_matrix()
  released = took_part * inserted + noise @ rng.normal(size=[noise.shape[1], size])
  return inserted, released, took_part


@pytest.mark.parametrize('name', ['gaussian', 'tree', 'banded'])
def test_score_distance_matches_sensitivity(name):
  mechanism = accounting.Mechanism(name, _LIMITS, noise_multiplier=1.0)
  size = 8000
  inserted, released, took_part = _record(mechanism, size)
  scores = canaries.scores(released, took_part, mechanism)
  # Only canaries in rounds 0, 4 and 8: near the end of the run, others may differ.
  first = np.arange(size) % 4 == 0
  inside, outside = scores[first & inserted], scores[first & ~inserted]
  for each in (inside, outside):
    assert np.var(each) == pytest.approx(1, abs=5 * math.sqrt(2 / len(each)))
  distance = inside.mean() - outside.mean()
  tolerance = 5 * math.sqrt(1 / len(inside) + 1 / len(outside))
  # The distance is at most the mu that is accounted for.
  assert distance <= 1 / mechanism.effective_noise_multiplier + tolerance
  expected = mechanism.strategy.materialize()[:, [0, 4, 8]].sum(axis=1)
  if name != 'tree':  # The observer of a tree sees estimates, not all nodes.
    assert distance == pytest.approx(np.linalg.norm(expected), abs=tolerance)
  # Weights that ignore the correlation of the noise separate no better.
  plain = released[:, first].T @ took_part[:, 0]
  groups = plain[inserted[first]], plain[~inserted[first]]
  ratio = (groups[0].mean() - groups[1].mean()) / np.std(groups[1])
  assert ratio <= distance + tolerance


def test_canary_in_no_round_has_score_zero():
  mechanism = accounting.Mechanism('banded', _LIMITS, noise_multiplier=1.0)
  _, released, took_part = _record(mechanism, 10)
  took_part[:, 3] = False
  scores = canaries.scores(released, took_part, mechanism)
  assert scores[3] == 0 and np.count_nonzero(scores) == 9


def test_scores_of_first_rounds_use_only_their_noise():
  mechanism = accounting.Mechanism('banded', _LIMITS, noise_multiplier=1.5)
  _, released, took_part = _record(mechanism, 10)
  c = mechanism.strategy.materialize()[:5, :5] / 1.5
  actual = canaries.scores(released[:5], took_part[:5], mechanism)
  for i in range(10):
    u = took_part[:5, i].astype(float)
    expected = (c @ u) @ (c @ released[:5, i]) / np.linalg.norm(c @ u)
    assert actual[i] == pytest.approx(expected, rel=1e-9)


def test_scores_under_sampling_ignore_who_took_part():
  scheme = sampling.PoissonSampling(12, sampling_probability=0.25)
  mechanism = accounting.Mechanism('gaussian', scheme, noise_multiplier=1.0)
  _, released, took_part = _record(mechanism, 10)
  expected = canaries.scores(released, took_part, mechanism)
  nobody = np.zeros_like(took_part)
  np.testing.assert_array_equal(canaries.scores(released, nobody, mechanism), expected)
  np.testing.assert_allclose(expected, released.sum(axis=0) / math.sqrt(12))


def _audit(mechanism, claimed):
  inserted, released, took_part = _record(mechanism, 2000)
  scores = canaries.scores(released, took_part, claimed)
  record = canaries.Record(inserted, scores, _LIMITS.num_rounds)
  epsilon = claimed.epsilon(1e-5)
  return canaries.audit(record, delta=1e-5, planned_epsilon=epsilon, is_gaussian=True)


def test_audit_refutes_only_mechanism_with_less_noise():
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
  # The number of guesses follows from the plan, not from the scores.
  assert [each.num_guesses for each in broken.bounds] == [
    each.num_guesses for each in true.bounds
  ]


# The file of a run.


def _load(path, inserted='0110'):
  return canaries.Record.load(
    str(path), inserted=inserted, confidence=0.9, most_rounds=7
  )


def test_record_file_round_trips_and_refuses_alterations(tmp_path):
  inserted = np.array([False, True, True, False])
  record = canaries.Record(inserted, np.array([1.25, -2.0, 1 / 3, 0.0]), 7, 0.9)
  path = tmp_path / canaries.FILE
  path.write_text(record.to_json(), 'utf-8')
  loaded = _load(path)
  np.testing.assert_allclose(loaded.scores, record.scores, rtol=1e-8)
  assert loaded.inserted.tolist() == inserted.tolist()
  assert (loaded.rounds, loaded.confidence) == (7, 0.9)
  with pytest.raises(ValueError, match='coins'):
    _load(path, inserted='0111')
  content = json.loads(path.read_text('utf-8'))
  for change, message in (
    ({'scores': [1.0, 2.0, 3.0]}, 'one finite score for each coin'),
    ({'scores': [1.0, 2.0, 3.0, 'x']}, "float: 'x'"),
    ({'rounds': 8}, 'it has 8 rounds, and the run 7'),
    # Not the confidence that the run was started with.
    ({'confidence': 0.99}, 'coins and confidence are not those'),
  ):
    path.write_text(json.dumps({**content, **change}), 'utf-8')
    with pytest.raises(ValueError, match=f'{canaries.FILE} .*{message}'):
      _load(path)


@pytest.mark.parametrize('epsilon', [0.5, 1.0])
def test_bounds_rarely_exceed_epsilon_when_some_coins_leak(epsilon):
  # The worst mechanism of (epsilon, delta): with probability delta it reveals a coin.
  rng, delta, size, guesses, repeats = np.random.default_rng(1), 0.05, 100, 20, 20_000
  revealed = rng.random([repeats, size]) < delta
  right = rng.random([repeats, size]) < special.expit(epsilon)
  # Coins that are revealed are guessed first, and others as the response says.
  known = np.minimum(revealed.sum(axis=1), guesses)
  first = np.arange(size) < (guesses - known)[:, None]
  correct = known + (right & first).sum(axis=1)
  for bounds in _bounds(size, guesses, delta, 0.05).values():
    too_large = float(np.mean(np.array(bounds)[correct] > epsilon))
    assert too_large <= 0.05 + 5 * math.sqrt(0.05 * 0.95 / repeats)
