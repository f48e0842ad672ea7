"""What an attacker with canaries reached: lower bounds of epsilon, from one run.

Canaries are clients that an auditor makes up. For each a fair coin decides whether it
takes part with a random direction of the model as its update, or with zeros; everything
else treats it as a client. An attacker who sees all released sums scores each canary,
guesses the coins of those with the highest and the lowest scores, and abstains from the
others. Differential privacy limits how many guesses are right, so more of them than
that refute an epsilon. Three numbers come of it:

* `one_run`, a lower bound of epsilon for any mechanism (Steinke, Nasr, Jagielski,
  arXiv:2305.08846);
* `one_run_fdp`, one that knows the mechanism's trade-off curve (Mahloujifar, Melis,
  Chaudhuri, arXiv:2410.22235): that of Gaussian noise where all rounds are one Gaussian
  mechanism, and otherwise that of nothing but (epsilon, delta);
* `estimate`, of Gaussians fitted to the scores (as in Andrew et al., arXiv:2302.03098).
  It is no bound.

Both bounds are right together with the confidence that is asked for. How many guesses
are made is computed from the epsilon that was planned, so nothing is selected by the
scores. A bound holds whatever the scores are; better scores make it larger.
"""

import dataclasses
import functools
import json
import math
from typing import Any, Callable, Optional

import numpy as np
import scipy.linalg
from scipy import special

from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import strict_json

# Name of the file in a run directory.
FILE = 'canaries.json'
CONFIDENCE = 0.95
_ANY, _GAUSSIAN = 'any', 'gdp'
_PRECISION, _ROUGHLY = 1e-7, 1e-2
_LARGEST = 1e4  # Nothing above it is told apart.
# Candidates for the number of guesses are apart by this factor.
_STEP = math.sqrt(2)
_FEWEST_GUESSES = 4


@dataclasses.dataclass(frozen=True)
class Record:
  """What an attacker with canaries guesses by, of a run."""

  inserted: np.ndarray  # Who took part with their direction, bool of shape [canaries].
  scores: np.ndarray  # float64 of the same shape, of `scores`.
  rounds: int  # Number of rounds, from the first on, that scores are made of.
  confidence: float = CONFIDENCE  # Asked for, of all bounds together.

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
    """Reads a file of a run with so many rounds, whose configuration has the rest."""
    with open(path, encoding='utf-8') as file:
      try:
        content = strict_json.loads(file.read())
        if (content['inserted'], content['confidence']) != (inserted, confidence):
          raise ValueError('coins and confidence are not those of the configuration')
        found = cls(
          np.array([int(each) for each in content['inserted']], bool),
          np.array(content['scores'], np.float64),
          checks.check_positive_int('rounds', content['rounds']),
          check_confidence(content['confidence']),
        )
        if found.rounds > most_rounds:
          raise ValueError(f'it has {found.rounds} rounds, and the run {most_rounds}')
        if not np.isfinite(found.scores).all() or len(found.scores) != len(inserted):
          raise ValueError('it has not one finite score for each coin')
      except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f'{path} is not of the canaries of this run: {e}.') from e
    return found


def coins(inserted: np.ndarray) -> str:
  """Coins as a text of 0 and 1."""
  return ''.join('01'[int(each)] for each in inserted)


@dataclasses.dataclass(frozen=True)
class Bound:
  """A lower bound of epsilon, with the confidence of `Audit`."""

  method: str  # Name of the function that computes it.
  curve: str  # 'gdp' if that of a Gaussian mechanism was assumed, 'any' if none was.
  num_guesses: int  # Half of them of canaries with the highest scores.
  num_correct: int  # Guesses that were right.
  epsilon: float  # The run has at least this one.


@dataclasses.dataclass(frozen=True)
class Audit:
  """What an attacker with canaries reached."""

  num_canaries: int
  num_inserted: int  # How many of them took part with their direction.
  num_rounds: int  # Rounds, from the first on, that the scores are made of.
  confidence: float  # Probability that all bounds are right.
  bounds: tuple[Bound, ...]  # Lower bounds of epsilon.
  # Epsilon of Gaussians fitted to the scores, no bound; `None` with fewer than two
  # canaries of a kind.
  estimate: Optional[float]


def audit(
  record: Record, *, delta: float, planned_epsilon: float, is_gaussian: bool
) -> Audit:
  """What the scores of a run's canaries say of its epsilon.

  `planned_epsilon` decides on the number of guesses alone; `is_gaussian` is whether all
  rounds are claimed to be one Gaussian mechanism.
  """
  significance = (1 - check_confidence(record.confidence)) / 2
  num_canaries, inserted = len(record.inserted), record.inserted
  mu = gaussian.mu_of(planned_epsilon, gaussian.check_delta(delta))
  given: Any = {'delta': delta, 'significance': significance}
  of_curve = {**given, 'is_gaussian': is_gaussian}
  methods: Any = (
    (_ANY, one_run, given),
    (_GAUSSIAN if is_gaussian else _ANY, one_run_fdp, of_curve),
  )
  bounds = []
  for curve, method, numbers in methods:
    bound: Callable[..., float] = functools.partial(method, num_canaries, **numbers)
    roughly = functools.partial(bound, precision=_ROUGHLY)
    guesses = planned_guesses(roughly, num_canaries, mu)
    correct = correct_guesses(record.scores, inserted, guesses)
    epsilon = bound(guesses, correct)
    bounds.append(Bound(method.__name__, curve, guesses, correct, epsilon))
  return Audit(
    num_canaries,
    int(inserted.sum()),
    record.rounds,
    record.confidence,
    tuple(bounds),
    estimate(record.scores, inserted, delta),
  )


def check_confidence(confidence: float, name: str = 'confidence') -> float:
  """Returns it, if it is within 0.5 and 1."""
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

  See arXiv:2305.08846. The number of guesses was decided before any score was seen.
  With probability `significance` at most, the bound is above the mechanism's epsilon at
  `delta`. It is rounded down, by the relative `precision`. 0 refutes none.
  """
  _check_counts(num_canaries, num_guesses, num_correct)

  def is_refuted(epsilon: float) -> bool:
    chance = p_value(num_canaries, num_guesses, num_correct, epsilon, delta)
    return chance <= significance

  return _largest(is_refuted, precision)


def p_value(
  num_canaries: int, num_guesses: int, num_correct: int, epsilon: float, delta: float
) -> float:
  """Probability of so many correct guesses at most (arXiv:2305.08846, Appendix D)."""
  # With delta 0 each guess is right with this probability at most.
  chance = float(special.expit(epsilon))
  fewer = np.arange(num_correct + 1)
  # Tails of a binomial distribution, from so many, and fewer, on.
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
  """The same by the trade-off curve of the mechanism (arXiv:2410.22235).

  `is_gaussian`: Whether the mechanism is a Gaussian one, of which the noise is in
  doubt; for others the bound is wrong then. If not, nothing is assumed but (epsilon,
  delta).
  """
  _check_counts(num_canaries, num_guesses, num_correct)

  def is_refuted(number: float) -> bool:
    inverse = _gaussian_curve(number) if is_gaussian else _any_curve(number, delta)
    return _are_too_many(num_canaries, num_guesses, num_correct, inverse, significance)

  number = _largest(is_refuted, precision)
  return gaussian.epsilon_of(number, delta) if is_gaussian else number


def _are_too_many(
  num_canaries: int,
  num_guesses: int,
  num_correct: int,
  inverse: Callable[[float], float],
  significance: float,
) -> bool:
  """Whether so many correct guesses, or more, are less likely than `significance`.

  Of a canary drawn at random let r(j) be the probability that its guess is right and at
  least j are right in all, and w(j) that it is wrong and at least j are right. With its
  coin turned, a right guess is wrong and one fewer is right: so r(j + 1) <= 1 - f(w(j))
  for the trade-off curve f, and `inverse` of r(j + 1) is at most w(j). If num_correct
  has the probability `significance`, r and w grow from there at least as below, and at
  0 they would add up to more than there are guesses.
  """
  right = significance * num_correct / num_canaries
  wrong = significance * (num_guesses - num_correct) / num_canaries
  for count in range(num_correct - 1, -1, -1):
    least = inverse(right)
    if least <= wrong:
      break  # Nothing changes any more.
    right = min(1.0, right + count / (num_guesses - count) * (least - wrong))
    wrong = least
  return right + wrong > num_guesses / num_canaries


def _gaussian_curve(mu: float) -> Callable[[float], float]:
  """The inverse of 1 - f, of the trade-off curve f of N(0, 1) and N(mu, 1)."""
  return lambda right: float(special.ndtr(special.ndtri(right) - mu))


def _any_curve(epsilon: float, delta: float) -> Callable[[float], float]:
  """The same of what is known of all (epsilon, delta)-DP (arXiv:1905.02383)."""
  factor = math.exp(min(epsilon, 700.0))

  def inverse(right: float) -> float:
    return max(0.0, (right - delta) / factor, 1 - delta - factor * (1 - right))

  return inverse


def _largest(is_refuted: Callable[[float], bool], precision: float) -> float:
  """The largest number that is refuted, rounded down; those below it are as well."""
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


def _check_counts(num_canaries: int, num_guesses: int, num_correct: int) -> None:
  if not 0 <= num_correct <= num_guesses <= num_canaries or num_canaries < 1:
    raise ValueError(
      'num_correct must be from 0 to num_guesses, and that at most num_canaries, at '
      f'least 1; got {num_correct} of {num_guesses} guesses of {num_canaries}.'
    )


def planned_guesses(
  bound: Callable[[int, int], float], num_canaries: int, mu: float
) -> int:
  """How many guesses have the largest `bound`, if as many are right as expected."""
  best, largest, guesses = num_canaries - num_canaries % 2, 0.0, float(num_canaries)
  while guesses >= min(_FEWEST_GUESSES, num_canaries):
    even = int(guesses) - int(guesses) % 2
    found = bound(even, math.floor(even * _accuracy(even / num_canaries, mu)))
    if found > largest:
      best, largest = even, found
    guesses /= _STEP
  return best


def _accuracy(share: float, mu: float) -> float:
  """Expected share of correct guesses among these, the most certain ones."""

  def tail(threshold: float) -> float:
    return float(special.ndtr(-threshold) + special.ndtr(mu - threshold)) / 2

  # Symmetric about mu / 2, above which half of the guesses are at most.
  low, high = mu / 2, mu + 40.0
  for _ in range(60):
    middle = (low + high) / 2
    low, high = (middle, high) if tail(middle) > share / 2 else (low, middle)
  if tail(low) <= 0.0:
    return 1.0
  return float(special.ndtr(mu - low)) / 2 / tail(low)


def correct_guesses(scores: np.ndarray, inserted: np.ndarray, num_guesses: int) -> int:
  """How many guesses are right: half in, of the highest scores, half out."""
  order, half = np.argsort(scores, kind='stable'), num_guesses // 2
  highest, lowest = inserted[order[len(order) - half :]], inserted[order[:half]]
  return int(highest.sum()) + half - int(lowest.sum())


def scores(
  projections: np.ndarray, took_part: np.ndarray, mechanism: mechanism_lib.Mechanism
) -> np.ndarray:
  """Scores of canaries: the likelihood ratio's statistic for the noise that is known.

  With a canary whose rounds are u, what was released along its direction is s = u + n,
  and without it s = n, n Gaussian with the covariance Sigma = sigma^2 D D^T of the
  rounds' noise: no statistic is better than u^T Sigma^-1 s (Neyman and Pearson). Where
  privacy rests on sampling, u is secret, and its mean stands for it.

  `projections`, [rounds, canaries], are in clip norms of the sum; `took_part`, of that
  shape, says who was in which round, inserted or not. Returns [canaries], of variance 1
  in noise alone; 0 for who was in no round.
  """
  rounds = len(projections)
  noise = mechanism.values_noise_multiplier * mechanism.strategy.noise_matrix()[:rounds]
  factor = scipy.linalg.cholesky(noise @ noise.T, lower=True)
  known = took_part.astype(np.float64)
  if mechanism.is_sampled:
    known = np.ones_like(known)
  white, u = (
    scipy.linalg.solve_triangular(factor, each, lower=True)
    for each in (projections, known)
  )
  norms = np.linalg.norm(u, axis=0)
  products: np.ndarray = np.einsum('ij,ij->j', white, u)
  return np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)


def estimate(scores: np.ndarray, inserted: np.ndarray, delta: float) -> Optional[float]:
  """Epsilon of a Gaussian mechanism whose scores would lie as far apart; no bound."""
  groups = scores[inserted], scores[~inserted]
  if min(map(len, groups)) < 2:
    return None
  squares = sum(float(np.square(each - each.mean()).sum()) for each in groups)
  deviation = math.sqrt(squares / (len(scores) - 2))
  mu = max(0.0, float(groups[0].mean() - groups[1].mean()))
  if not deviation:
    return math.inf if mu else 0.0
  return gaussian.epsilon_of(mu / deviation, delta)
