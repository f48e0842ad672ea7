"""Empirical privacy auditing with canaries: lower bounds on epsilon from one run.

Canaries are artificial clients. For each, a fair coin decides whether it takes part
with a random direction of the model as its update, or with zeros. An attacker who sees
all released sums scores each canary and guesses the coins of those with the highest and
the lowest scores. More right guesses than differential privacy allows refute an
epsilon. There are three results:

* `one_run`, a lower bound on epsilon for any mechanism (arXiv:2305.08846);
* `one_run_fdp`, a lower bound from the mechanism's trade-off curve (arXiv:2410.22235):
  the Gaussian curve if all rounds are one Gaussian mechanism, otherwise the curve that
  (epsilon, delta) alone implies;
* `estimate`, from Gaussians fitted to the scores (as in arXiv:2302.03098). It is not a
  bound.

The confidence is that both bounds hold together. The number of guesses is computed from
the planned epsilon, so nothing is selected by the scores.
"""

import dataclasses
import functools
import json
import math
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import scipy.linalg
from scipy import special

from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import strict_json

FILE = 'canaries.json'  # In a run directory.
CONFIDENCE = 0.95
_PRECISION, _ROUGHLY = 1e-7, 1e-2  # Relative; the second for planning guesses.
_LARGEST = 1e4  # Searches for the largest refuted number end here.
_STEP = math.sqrt(2)  # Ratio of successive candidates for the number of guesses.
_FEWEST_GUESSES = 4


@dataclasses.dataclass(frozen=True)
class Record:
  """The coins and the scores of a run's canaries."""

  inserted: np.ndarray  # Which took part with their direction, bool, [canaries].
  scores: np.ndarray  # float64 of the same shape, computed by `scores`.
  rounds: int  # How many rounds, from the first on, the scores are computed from.
  confidence: float = CONFIDENCE  # All bounds together hold with this.

  def to_json(self) -> str:
    """The content of a file that `load` reads."""
    content = {
      'rounds': self.rounds,
      'confidence': self.confidence,
      'inserted': coins(self.inserted),
      'scores': [float(f'{each:.9g}') for each in self.scores],
    }
    return json.dumps(content, indent=1) + '\n'

  @classmethod
  def load(
    cls, path: str, *, inserted: str, confidence: float, most_rounds: int
  ) -> 'Record':
    """Reads a file; checks it against the run's configuration and number of rounds."""
    with open(path, encoding='utf-8') as file:
      try:
        content = strict_json.loads(file.read())
        if (content['inserted'], content['confidence']) != (inserted, confidence):
          raise ValueError('coins and confidence are not those of the configuration')
        rounds = checks.check_positive_int('rounds', content['rounds'])
        scored = np.array(content['scores'], np.float64)
        is_complete = len(scored) == len(inserted) and np.isfinite(scored).all()
        if rounds > most_rounds or not is_complete:
          raise ValueError(
            f'it has {rounds} rounds, and the run {most_rounds}; or not one finite '
            'score for each coin'
          )
      except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f'{path} is not of the canaries of this run: {e}.') from e
    coins_of_run = np.array([int(each) for each in inserted], bool)
    return cls(coins_of_run, scored, rounds, confidence)


def coins(inserted: np.ndarray) -> str:
  """The coins as a string of 0 and 1."""
  return ''.join('01'[int(each)] for each in inserted)


class Bound(NamedTuple):
  """A lower bound on epsilon, with the confidence of `Audit`."""

  method: str  # Name of the function that computes it.
  curve: str  # Assumed trade-off curve: 'gdp' of a Gaussian mechanism, 'any' for none.
  num_guesses: int  # Half of them are for the highest scores, half for the lowest.
  num_correct: int  # Number of right guesses.
  epsilon: float  # The lower bound.


class Audit(NamedTuple):
  """The result of an audit with canaries."""

  num_canaries: int
  num_inserted: int  # How many of them took part with their direction.
  num_rounds: int  # How many rounds, from the first on, the scores are computed from.
  confidence: float  # Probability that all bounds are right.
  bounds: tuple[Bound, ...]  # Lower bounds on epsilon.
  # Epsilon of Gaussians fitted to the scores, not a bound; `None` with fewer than two
  # inserted or fewer than two other canaries.
  estimate: Optional[float]


def audit(
  record: Record, *, delta: float, planned_epsilon: float, is_gaussian: bool
) -> Audit:
  """Computes lower bounds on a run's epsilon from the scores of its canaries.

  `planned_epsilon` only determines the number of guesses. `is_gaussian` is whether all
  rounds are claimed to be one Gaussian mechanism.
  """
  significance = (1 - check_confidence(record.confidence)) / 2
  num_canaries, inserted = len(record.inserted), record.inserted
  mu = gaussian.mu_of(planned_epsilon, delta)
  fdp: Any = functools.partial(one_run_fdp, is_gaussian=is_gaussian)
  of_fdp, bounds = 'gdp' if is_gaussian else 'any', []
  for name, curve, method in (
    ('one_run', 'any', one_run),
    ('one_run_fdp', of_fdp, fdp),
  ):
    bound: Any = functools.partial(
      method, num_canaries, delta=delta, significance=significance
    )
    roughly = functools.partial(bound, precision=_ROUGHLY)
    guesses = planned_guesses(roughly, num_canaries, mu)
    correct = correct_guesses(record.scores, inserted, guesses)
    bounds.append(Bound(name, curve, guesses, correct, bound(guesses, correct)))
  return Audit(
    num_canaries,
    int(inserted.sum()),
    record.rounds,
    record.confidence,
    tuple(bounds),
    estimate(record.scores, inserted, delta),
  )


def check_confidence(confidence: float, name: str = 'confidence') -> float:
  """Returns the confidence, or raises ValueError unless 0.5 <= confidence < 1."""
  if not 0.5 <= checks.check_number(name, confidence) < 1:
    raise ValueError(f'{name} must be at least 0.5 and below 1; got {confidence}.')
  return float(confidence)


def one_run(
  num_canaries: int,
  num_guesses: int,
  num_correct: int,
  *,
  delta: float,
  significance: float,
  precision: float = _PRECISION,
) -> float:
  """The largest epsilon that so many correct guesses refute, for any mechanism.

  See arXiv:2305.08846. The number of guesses must be chosen before any score is seen.
  With probability `significance` at most, the bound is above the mechanism's epsilon at
  `delta`. It is rounded down, by the relative `precision`.
  """
  counts = _check_counts(num_canaries, num_guesses, num_correct)
  return _largest(lambda each: p_value(*counts, each, delta) <= significance, precision)


def p_value(
  num_canaries: int, num_guesses: int, num_correct: int, epsilon: float, delta: float
) -> float:
  """Bounds the chance of so many or more right guesses (arXiv:2305.08846, App. D)."""
  # With delta 0, each guess is right with this probability at most.
  chance = float(special.expit(epsilon))
  fewer = np.arange(num_correct + 1)
  # Binomial probabilities of at least num_correct - j right guesses, for each j.
  tails = np.ones(num_correct + 1)
  tails[:-1] = special.betainc(
    num_correct - fewer[:-1], num_guesses - num_correct + fewer[:-1] + 1, chance
  )
  exempt = float(np.max((tails[1:] - tails[0]) / fewer[1:], initial=0.0))
  return float(min(1.0, tails[0] + 2 * num_canaries * delta * exempt))


def one_run_fdp(
  num_canaries: int,
  num_guesses: int,
  num_correct: int,
  *,
  delta: float,
  significance: float,
  is_gaussian: bool,
  precision: float = _PRECISION,
) -> float:
  """The same as `one_run`, from the mechanism's trade-off curve (arXiv:2410.22235).

  With `is_gaussian` it is assumed to be Gaussian; for others the bound is then wrong.
  """
  counts = _check_counts(num_canaries, num_guesses, num_correct)

  def is_refuted(value: float) -> bool:
    inverse = _gaussian_curve(value) if is_gaussian else _any_curve(value, delta)
    return _are_too_many(*counts, inverse, significance)

  value = _largest(is_refuted, precision)
  return gaussian.epsilon_of(value, delta) if is_gaussian else value


def _are_too_many(
  num_canaries: int,
  num_guesses: int,
  num_correct: int,
  inverse: Callable[[float], float],
  significance: float,
) -> bool:
  """Whether so many correct guesses, or more, are less likely than `significance`.

  For a canary drawn at random, let r(j) be the probability that its guess is right and
  at least j guesses are right in total, and w(j) that it is wrong and at least j are
  right. If its coin is flipped, a right guess becomes wrong and one guess fewer is
  right: so `inverse` of r(j + 1) is at most w(j). If at least num_correct right guesses
  have the probability `significance`, r and w grow from there at least as in the loop
  below, and at 0 their sum would exceed the share of canaries that are guessed.
  """
  right = significance * num_correct / num_canaries
  wrong = significance * (num_guesses - num_correct) / num_canaries
  for count in range(num_correct - 1, -1, -1):
    next_wrong = inverse(right)
    if next_wrong <= wrong:
      break  # Further steps change nothing.
    right = min(1.0, right + count / (num_guesses - count) * (next_wrong - wrong))
    wrong = next_wrong
  return right + wrong > num_guesses / num_canaries


def _gaussian_curve(mu: float) -> Callable[[float], float]:
  """The inverse of 1 - f, for the trade-off curve f of N(0, 1) and N(mu, 1)."""
  return lambda right: float(special.ndtr(special.ndtri(right) - mu))


def _any_curve(epsilon: float, delta: float) -> Callable[[float], float]:
  """The same for any (epsilon, delta)-DP mechanism (arXiv:1905.02383)."""
  factor = math.exp(min(epsilon, 700.0))

  def inverse(right: float) -> float:
    return max(0.0, (right - delta) / factor, 1 - delta - factor * (1 - right))

  return inverse


def _largest(is_refuted: Callable[[float], bool], precision: float) -> float:
  """The largest refuted number, rounded down; all smaller ones are refuted, too."""
  if not is_refuted(0.0):
    return 0.0
  low, high = 0.0, 1.0
  while is_refuted(high):
    low, high = high, 2 * high
    if high > _LARGEST:
      return low
  while high - low > precision * high:
    middle = (low + high) / 2
    low, high = (middle, high) if is_refuted(middle) else (low, middle)
  return low


def _check_counts(
  num_canaries: int, num_guesses: int, num_correct: int
) -> tuple[int, int, int]:
  if not 0 <= num_correct <= num_guesses <= num_canaries or num_canaries < 1:
    raise ValueError(
      'num_correct must be from 0 to num_guesses, and that at most num_canaries, at '
      f'least 1; got {num_correct} of {num_guesses} guesses of {num_canaries}.'
    )
  return num_canaries, num_guesses, num_correct


def planned_guesses(
  bound: Callable[[int, int], float], num_canaries: int, mu: float
) -> int:
  """The number of guesses with the largest `bound` if the expected number are right."""
  best, largest, guesses = num_canaries - num_canaries % 2, 0.0, float(num_canaries)
  while guesses >= min(_FEWEST_GUESSES, num_canaries):
    even = int(guesses) - int(guesses) % 2
    value = bound(even, math.floor(even * _accuracy(even / num_canaries, mu)))
    if value > largest:
      best, largest = even, value
    guesses /= _STEP
  return best


def _accuracy(share: float, mu: float) -> float:
  """Expected share of right guesses, if this share of canaries is guessed."""

  def tail(threshold: float) -> float:
    return float(special.ndtr(-threshold) + special.ndtr(mu - threshold)) / 2

  # Scores are symmetric about mu / 2, so at most half of the guesses are above it.
  low, high = mu / 2, mu + 40.0
  for _ in range(60):
    middle = (low + high) / 2
    low, high = (middle, high) if tail(middle) > share / 2 else (low, middle)
  if tail(low) <= 0.0:
    return 1.0
  return float(special.ndtr(mu - low)) / 2 / tail(low)


def correct_guesses(scores: np.ndarray, inserted: np.ndarray, num_guesses: int) -> int:
  """Number of right guesses; half of them are that the highest scores were inserted."""
  order, half = np.argsort(scores, kind='stable'), num_guesses // 2
  highest, lowest = inserted[order[len(order) - half :]], inserted[order[:half]]
  return int(highest.sum()) + half - int(lowest.sum())


def scores(
  projections: np.ndarray, took_part: np.ndarray, mechanism: mechanism_lib.Mechanism
) -> np.ndarray:
  """Scores of canaries: the likelihood ratio statistic for noise of known covariance.

  It is u^T Sigma^-1 s, of the sums s along a canary's direction, its rounds u, and the
  covariance Sigma of the rounds' noise (Neyman and Pearson). Where privacy rests on
  sampling, u is secret and is replaced by its mean.

  `projections` are those of the sums in clip norms, and `took_part` is whether a canary
  was in a round, inserted or not: [rounds, canaries]. Returns [canaries], with variance
  1 in noise alone; 0 for a canary that was in no round.
  """
  rounds = len(projections)
  noise = mechanism.values_noise_multiplier * mechanism.strategy.noise_matrix()[:rounds]
  factor = scipy.linalg.cholesky(noise @ noise.T, lower=True)
  expected = took_part.astype(np.float64)
  if mechanism.is_sampled:
    expected = np.ones_like(expected)
  white, u = (
    scipy.linalg.solve_triangular(factor, each, lower=True)
    for each in (projections, expected)
  )
  norms = np.linalg.norm(u, axis=0)
  products: np.ndarray = np.einsum('ij,ij->j', white, u)
  return np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)


def estimate(scores: np.ndarray, inserted: np.ndarray, delta: float) -> Optional[float]:
  """Epsilon of a Gaussian mechanism with the same separation of scores; not a bound."""
  groups = scores[inserted], scores[~inserted]
  if min(map(len, groups)) < 2:
    return None
  sum_of_squares = sum(float(np.square(each - each.mean()).sum()) for each in groups)
  deviation = math.sqrt(sum_of_squares / (len(scores) - 2))
  mu = max(0.0, float(groups[0].mean() - groups[1].mean()))
  if not deviation:
    return math.inf if mu else 0.0
  return gaussian.epsilon_of(mu / deviation, delta)
