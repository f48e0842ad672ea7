"""Monte Carlo accounting, with a confidence that is counted in delta.

Of a pair (P, Q) from which outcomes can be drawn (`mixtures`), the deltas of both
directions are means of numbers in [0, B]. They are estimated from drawn outcomes x_i,
and what is said of them holds with a stated probability: if the mean is m or more, then

    mean over some lambda <= 1 / B of prod_i (1 + lambda (m - x_i))

has at most the mean 1, and exceeds 1 / beta with probability at most beta (a bet,
arXiv:2010.09686, section 4); if it does, the mean is said to be less than m. That this
may be wrong counts in delta: with probability at most beta, what chooses its noise by
(epsilon, delta - beta) is (epsilon, delta)-DP, over the coins of the accountant as well
(arXiv:2412.16802, section 4; arXiv:2602.09338, appendix A).

* **Search.** Calibration asks for many noise multipliers and keeps one that passed.
  Each is looked at with outcomes of its own, and beta is for `MOST_ASKED` questions of
  two directions together, `SHARE` of delta.
* **Epsilon.** The x_i fall with epsilon, so what passes at one passes at all above it.
  Let e be the largest epsilon of a grid whose delta is really too large: a result that
  is too small has passed at e, so one beta is enough for all epsilons.
* **Importance.** A pilot run chooses from where outcomes are drawn; it shares no
  outcome with the run that counts.
* **Outcomes.** As many as let a part of delta pass, at most two millions; a larger
  epsilon than the pilot's needs fewer.

The seed is a hash of what is asked, so the same question has the same answer, on any
machine to round-off.
"""

import collections
import hashlib
import math
from typing import Any, Callable, NamedTuple, Optional

import dp_accounting
import numpy as np
from scipy import optimize
from scipy import special

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import mixtures
from tff_dp_aggregators.accounting.accountants import parts
from tff_dp_aggregators.accounting.accountants import pld

# Questions of a search that the confidence covers, and the part of delta that goes to
# all of them being right.
MOST_ASKED, SHARE = 64, 0.01
# Outcomes, in units of B log(1 / beta) / delta: with fewer than 1 nothing passes.
_TIMES = 3.0
# Bets, over 1 / B.
_LAMBDAS = 2.0 ** -np.arange(12)
_FEWEST, _MOST = 2**15, 2**21
_PILOT, _PILOTS = 2**13, 4
# Ratio of neighbouring points of the grid of epsilons, less 1.
_STEP = 1 / 512
_REMOVED, _ADDED = 'removed', 'added'
_LEAST_EPSILON = 1e-3
# Answers, by question: a report asks the same ones several times.
_known: 'collections.OrderedDict[str, float]' = collections.OrderedDict()
_MOST_KNOWN = 256


class Tails(NamedTuple):
  """Drawn outcomes of one direction: all that is needed for every epsilon from one on.

  Attributes:
    losses: Privacy losses above the least epsilon, falling.
    log_weights: Logarithms of how much each counts.
    size: Of the sample.
    log_bound: Logarithm of what one outcome adds at most.
  """

  losses: np.ndarray
  log_weights: np.ndarray
  size: int
  log_bound: float

  def outcomes(self, epsilon: float) -> np.ndarray:
    """Those of what is averaged that are not 0.

    Args:
      epsilon: Not less than the least one.
    """
    above = int(np.searchsorted(-self.losses, -epsilon))
    each = -np.expm1(epsilon - self.losses[:above])
    return np.asarray(each * np.exp(self.log_weights[:above]))

  def delta(self, epsilon: float) -> float:
    """The estimate."""
    return float(self.outcomes(epsilon).sum()) / self.size

  def passes(self, epsilon: float, delta: float, log_beta: float) -> bool:
    """Whether the mean is below `delta`; wrongly with probability exp(log_beta)."""
    # Rounding moves an outcome above its bound by a hair.
    bound = math.exp(self.log_bound) * (1 + 1e-9)
    if bound <= delta:
      return True
    outcomes = self.outcomes(epsilon) / bound
    mean = delta / bound
    logs = np.array(
      [
        float(np.log1p(each * (mean - outcomes)).sum())
        + (self.size - len(outcomes)) * math.log1p(each * mean)
        for each in _LAMBDAS
      ]
    )
    return bool(special.logsumexp(logs) - math.log(len(logs)) >= -log_beta)


def best_proposal(
  mixture: mixtures.Mixture, removed: bool, epsilon: float
) -> mixtures.Proposal:
  """The proposal with the least bound on what an outcome adds.

  Args:
    mixture: The pair.
    removed: Whether P is told from Q, or Q from P.
    epsilon: At which delta is looked for.
  """
  found = optimize.minimize_scalar(
    lambda log: mixture.log_bound(
      mixtures.Proposal(1 + math.exp(log), removed), epsilon
    ),
    bounds=(-7.0, 5.0),
    method='bounded',
    options={'xatol': 1e-3},
  )
  return mixtures.Proposal(1 + math.exp(float(found.x)), removed)


def draw(
  mixture: mixtures.Mixture,
  rng: np.random.Generator,
  size: int,
  proposal: mixtures.Proposal,
  epsilon: float,
) -> Tails:
  """Outcomes for the deltas of epsilons from a least one on.

  Args:
    mixture: The pair.
    rng: Whose numbers decide.
    size: Of the sample.
    proposal: From where they are drawn.
    epsilon: The least one.
  """
  losses, log_weights = mixture.losses(rng, size, proposal, epsilon)
  order = np.argsort(-losses)
  bound = mixture.log_bound(proposal, epsilon)
  return Tails(losses[order], log_weights[order], size, bound)


class MonteCarloAccountant(parts.Accountant):
  """Accountant of mixtures of Gaussians that nothing composes with.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> from tff_dp_aggregators.accounting import schemas
    >>> toeplitz = strategies.BandedToeplitz.square_root(40, num_bands=5)
    >>> event = schemas.event(toeplitz, schemas.BallsInBins(40, 10), 1.0)
    >>> relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    >>> accountant = MonteCarloAccountant(relation)
    >>> epsilon = accountant.compose(event).get_epsilon(1e-3)
    >>> bound = pld.PldAccountant(relation).compose(event)
    >>> round(epsilon, 1), round(bound.get_epsilon(1e-3), 1)
    (5.5, 5.9)
  """

  reads = 'events of balls in bins and of b-min-sep sampling, one alone,'

  def _read(self, event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return event

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return isinstance(part, (events.BallsInBinsDpEvent, events.BMinSepDpEvent))

  def _maybe_compose(
    self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional[Any]:
    found = super()._maybe_compose(event, count, False)
    if found is None:
      together = [*self._composed, dp_accounting.SelfComposedDpEvent(event, count)]
      read = parts.parts(
        dp_accounting.ComposedDpEvent(together), self.neighboring_relation
      )
      if sum(times for _, times in read) > 1:
        return self.CompositionErrorDetails(event, f'Only {self.reads} are supported.')
    return super()._maybe_compose(event, count, do_compose)

  def get_epsilon(self, target_delta: float) -> float:
    """Smallest epsilon at `target_delta`, which has the confidence in it."""
    return self._remembered('epsilon', target_delta, self._get_epsilon)

  def get_delta(self, target_epsilon: float) -> float:
    """Smallest delta at `target_epsilon`, with the confidence in it."""
    return self._remembered('delta', target_epsilon, self._get_delta)

  def _remembered(self, what: str, at: float, find: Callable[[float], float]) -> float:
    key = f'{what} {at!r} {self.neighboring_relation} {self._event()!r}'
    if key not in _known:
      _known[key] = find(at)
      if len(_known) > _MOST_KNOWN:
        _known.popitem(last=False)
    return _known[key]

  def _get_epsilon(self, target_delta: float) -> float:
    event = self._event()
    if not isinstance(event, (events.BallsInBinsDpEvent, events.BMinSepDpEvent)):
      return event
    # Without sampling, or by the deterministic bound, this much is certain.
    known = pld.PldAccountant(self.neighboring_relation).compose(event.bound)
    certain = known.get_epsilon(target_delta * (1 - SHARE))
    if not math.isfinite(certain) or certain <= _LEAST_EPSILON:
      return certain
    mixture = _mixture(event)
    least = _LEAST_EPSILON
    for side in (_REMOVED, _ADDED):
      rng = np.random.default_rng(_seed(event, target_delta, side))
      least = _epsilon(mixture, rng, target_delta, side == _REMOVED, least, certain)
    if least >= certain:  # No outcome has a part in it.
      return known.get_epsilon(target_delta)
    return least

  def _get_delta(self, target_epsilon: float) -> float:
    event = self._event()
    if not isinstance(event, (events.BallsInBinsDpEvent, events.BMinSepDpEvent)):
      return 1.0 if event else 0.0
    known = pld.PldAccountant(self.neighboring_relation).compose(event.bound)
    certain = known.get_delta(target_epsilon)
    mixture = _mixture(event)
    worst, largest_aim = 0.0, 0.0
    for side in (_REMOVED, _ADDED):
      rng = np.random.default_rng(_seed(event, target_epsilon, side))
      proposal = best_proposal(mixture, side == _REMOVED, target_epsilon)
      pilot = draw(mixture, rng, _PILOT, proposal, target_epsilon)
      guess = pilot.delta(target_epsilon)
      aim = min(max(guess, math.exp(pilot.log_bound) / _MOST), 0.5)
      log_beta = _log_beta(aim)
      size = _size(pilot.log_bound, aim, log_beta)
      tails = draw(mixture, rng, size, proposal, target_epsilon)
      worst = max(worst, _least_delta(tails, target_epsilon, log_beta))
      largest_aim = max(largest_aim, aim)
    return min(certain, worst + SHARE * largest_aim, 1.0)

  def _event(self) -> Any:
    """The one event; or the epsilon that is known without it, 0 or infinite."""
    found = self._parts()
    if not found:
      return 0.0
    return math.inf if parts.is_non_private(found) else found[0][0]


def _log_beta(delta: float) -> float:
  return math.log(delta) + math.log(SHARE / (2 * MOST_ASKED))


def _size(log_bound: float, delta: float, log_beta: float) -> int:
  wanted = _TIMES * math.exp(min(log_bound, 0.0)) * -log_beta / delta
  return int(min(max(wanted, _FEWEST), _MOST))


def _least_delta(tails: Tails, epsilon: float, log_beta: float) -> float:
  """About the least one that passes; larger ones do as well."""
  low, high = math.log(max(tails.delta(epsilon), 1e-300)), 0.0
  while high - low > _STEP:
    middle = (low + high) / 2
    if tails.passes(epsilon, math.exp(middle), log_beta):
      high = middle
    else:
      low = middle
  return math.exp(high)


def _mixture(event: Any) -> mixtures.Mixture:
  if isinstance(event, events.BallsInBinsDpEvent):
    return mixtures.Bins(event.strategy, event.num_bins, event.noise_multiplier)
  return mixtures.Renewals(
    event.strategy,
    event.min_separation,
    event.sampling_probability,
    event.noise_multiplier,
  )


def _seed(event: dp_accounting.DpEvent, at: float, side: str) -> int:
  asked = f'{event!r} {at!r} {side}'
  return int.from_bytes(hashlib.sha256(asked.encode()).digest()[:16], 'big')


def _epsilon(
  mixture: mixtures.Mixture,
  rng: np.random.Generator,
  delta: float,
  removed: bool,
  least: float,
  certain: float,
) -> float:
  """The smallest epsilon, from a least one on, that passes with all above it.

  Args:
    mixture: The pair.
    rng: Whose numbers decide.
    delta: Of the answer.
    removed: Whether P is told from Q, or Q from P.
    least: Smaller ones are not looked for.
    certain: Larger ones are known to pass.
  """
  log_beta = _log_beta(delta)
  delta *= 1 - SHARE
  if removed:
    least = max(least, _about(mixture, rng, delta, log_beta, certain))
  if least >= certain:
    return certain
  proposal = best_proposal(mixture, removed, least)
  size = _size(mixture.log_bound(proposal, least), delta, log_beta)
  tails = draw(mixture, rng, size, proposal, least)
  return _least(_grid(least, certain), lambda each: tails.passes(each, delta, log_beta))


def _about(
  mixture: mixtures.Mixture,
  rng: np.random.Generator,
  delta: float,
  log_beta: float,
  certain: float,
) -> float:
  """An epsilon that is about to pass: a few outcomes say so, and many would do."""
  epsilon = certain
  for _ in range(_PILOTS):
    proposal = best_proposal(mixture, True, epsilon)
    pilot = draw(mixture, rng, _PILOT, proposal, _LEAST_EPSILON)
    grid = _grid(_LEAST_EPSILON, certain)
    passing = _least(grid, lambda each: pilot.delta(each) <= delta)  # noqa: B023
    near = abs(passing - epsilon) <= 0.01 * epsilon
    epsilon = passing
    if near:
      break

  def rest(at: float) -> float:
    """What so many outcomes as there may be leave open."""
    bound = mixture.log_bound(best_proposal(mixture, True, at), at)
    return math.log(-_TIMES * log_beta / (_MOST * delta)) + bound

  if rest(epsilon) > 0 and rest(certain) < 0:
    epsilon = float(optimize.brentq(rest, epsilon, certain, rtol=1e-3))
  return epsilon


def _grid(least: float, largest: float) -> np.ndarray:
  """Epsilons from one to another, in equal ratios."""
  steps = max(math.ceil(math.log(largest / least) / math.log1p(_STEP)), 1)
  return np.geomspace(least, largest, steps + 1)


def _least(grid: np.ndarray, passes: Callable[[float], bool]) -> float:
  """The least point that passes, as all above it do; the last one is certain."""
  low, high = 0, len(grid) - 1
  while low < high:
    middle = (low + high) // 2
    if passes(float(grid[middle])):
      high = middle
    else:
      low = middle + 1
  return float(grid[high])
