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
  two directions together, `SHARE` of delta. Who calibrates several plans and keeps one
  has made several searches, each with a confidence of its own.
* **Epsilon.** The x_i fall with epsilon, so what passes at one passes at all above it.
  Let e be the largest epsilon of a grid whose delta is really too large: a result that
  is too small has passed at e, so one beta is enough for all epsilons.
* **Importance.** A pilot run chooses from where outcomes are drawn; it shares no
  outcome with the run that counts.
* **Outcomes.** As many as let a part of delta pass, at most two millions; a larger
  epsilon than the pilot's needs fewer.
* **Adding a client.** Where what one outcome adds is bounded by too much, the delta of
  the direction that tells Q from P is bounded by `light_tails` instead, from how often
  losses that are not rare are exceeded; so it mostly is the smaller one of both.

The seed is a hash of what is asked: the kind of event, the checksum of its strategy,
its numbers, epsilon or delta. What processors round in ways of their own, as inner
products of columns, is not in it, and moves outcomes by round-off alone. So the same
question has the same answer on any machine, to some 1e-12; or, should an outcome then
decide otherwise whether a point of a grid passes, to a step of it, 0.2% of epsilon or
delta.
"""

import collections
import dataclasses
import hashlib
import math
from typing import Any, Callable, NamedTuple, Optional

import dp_accounting
import numpy as np
from scipy import optimize
from scipy import special

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import light_tails
from tff_dp_aggregators.accounting.accountants import mixtures
from tff_dp_aggregators.accounting.accountants import parts
from tff_dp_aggregators.accounting.accountants import pld
from tff_dp_aggregators.accounting.accountants import renewals

# Questions of a search that the confidence covers, and the part of delta that goes to
# all of them being right.
MOST_ASKED, SHARE = 64, 0.01
# Outcomes, in units of B log(1 / beta) / delta: with fewer than 1 nothing passes, and
# with more what passes is nearer to delta. More than the least ones have so many cells.
_TIMES, _MORE_TIMES, _CELLS = 3.0, 12.0, 2**28
# Bets, over 1 / B.
_LAMBDAS = 2.0 ** -np.arange(12)
_FEWEST, MOST = 2**15, 2**21
# So many where other bounds will do.
_MOST_ADDED = 2**18
_PILOT, _PILOTS = 2**12, 4
# Ratio of neighbouring points of the grid of epsilons, less 1.
_STEP = 1 / 512
# Sizes of samples and log(a - 1) of proposals are rounded to so many steps of 1, as
# another last digit of theirs would draw other outcomes.
_SIZES, _PROPOSALS = 64, 512
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

  def outcomes(self, epsilon: float, log_unit: float = 0.0) -> np.ndarray:
    """Those of what is averaged that are not 0.

    Args:
      epsilon: Not less than the least one.
      log_unit: Logarithm of the number in which they are measured.
    """
    above = int(np.searchsorted(-self.losses, -epsilon))
    logs = np.log(-np.expm1(epsilon - self.losses[:above]))
    logs += self.log_weights[:above] - log_unit
    with np.errstate(over='ignore'):  # Infinite if it is more than float64 holds.
      return np.asarray(np.exp(logs))

  def delta(self, epsilon: float) -> float:
    """The estimate; infinite if it is more than float64 holds."""
    return float(self.outcomes(epsilon).sum()) / self.size

  def passes(self, epsilon: float, delta: float, log_beta: float) -> bool:
    """Whether the mean is below `delta`; wrongly with probability exp(log_beta)."""
    # Rounding moves an outcome above its bound by a hair.
    log_bound = self.log_bound + 1e-9
    log_mean = math.log(delta) - log_bound
    if log_mean >= 0:
      return True
    mean = math.exp(log_mean)
    if mean == 0:  # Of a bound beyond float64: it would take as many outcomes.
      return False
    outcomes = self.outcomes(epsilon, log_bound)
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

  def stretched(log: float) -> mixtures.Stretched:
    return mixtures.Stretched(1 + math.exp(log), removed)

  found = optimize.minimize_scalar(
    lambda log: stretched(log).log_bound(mixture, epsilon),
    bounds=(-7.0, 5.0),
    method='bounded',
    options={'xatol': 1e-3},
  )
  best = stretched(round(float(found.x) * _PROPOSALS) / _PROPOSALS)
  squared = mixtures.Squared()
  if removed and squared.log_bound(mixture, epsilon) < best.log_bound(mixture, epsilon):
    return squared
  return best


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
  bound = proposal.log_bound(mixture, epsilon)
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

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return isinstance(part, events.MixtureDpEvent) and part.strategy is not None

  def _maybe_compose(
    self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional[Any]:
    found = super()._maybe_compose(event, count, False)
    if found is None:
      # Whether an event is supported is asked with a count of 0.
      once = dp_accounting.SelfComposedDpEvent(event, max(count, 1))
      together = [*self._composed, once]
      read = parts.parts(
        dp_accounting.ComposedDpEvent(together), self.neighboring_relation
      )
      if read and not (self._is_alone(read) or parts.is_non_private(read)):
        return self.CompositionErrorDetails(event, f'Only {self.reads} are supported.')
    return super()._maybe_compose(event, count, do_compose)

  def _is_alone(self, read: list[parts.Part]) -> bool:
    ((part, times), *others) = read
    return not others and times == 1 and self._can_read(part)

  def get_epsilon(self, target_delta: float) -> float:
    """Smallest epsilon at `target_delta`, which has the confidence in it."""
    return self._remembered('epsilon', target_delta, self._get_epsilon)

  def doubt(self, target_delta: float) -> float:
    """Probability that `get_epsilon` returns too small a number: of both directions.

    Args:
      target_delta: As for `get_epsilon`.
    """
    return 2 * math.exp(_log_beta(target_delta))

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
    mixture, log_beta = _mixture(event), _log_beta(target_delta)
    delta = target_delta * (1 - SHARE)
    least = _LEAST_EPSILON
    for side, find in ((_REMOVED, _epsilon_removed), (_ADDED, _epsilon_added)):
      rng = np.random.default_rng(_seed(event, target_delta, side))
      least = find(mixture, rng, delta, log_beta, least, certain)
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
    rng = np.random.default_rng(_seed(event, target_epsilon, _REMOVED))
    proposal = best_proposal(mixture, True, target_epsilon)
    pilot = draw(mixture, rng, _PILOT, proposal, target_epsilon)
    least = math.exp(min(pilot.log_bound - math.log(MOST), 0.0))
    aim = max(pilot.delta(target_epsilon), least)
    removed = _delta(mixture, rng, proposal, target_epsilon, min(aim, 0.5))
    # Less than that is as good as nothing.
    rng = np.random.default_rng(_seed(event, target_epsilon, _ADDED))
    added = _delta_added(mixture, rng, target_epsilon, min(max(removed, 1e-30), 0.5))
    return min(certain, max(removed, added) + SHARE * max(aim, removed), 1.0)

  def _event(self) -> Any:
    """The one event; or the epsilon that is known without it, 0 or infinite."""
    found = self._parts()
    if not found:
      return 0.0
    return math.inf if parts.is_non_private(found) else found[0][0]


def about_epsilon(event: dp_accounting.DpEvent, delta: float) -> float:
  """About the epsilon of an event, without a confidence: to choose strategies by.

  A few thousand outcomes say it, in a fraction of the time that an answer takes. It is
  too small as often as too large.

  Args:
    event: Of balls in bins or b-min-sep sampling.
    delta: At which.

  Raises:
    dp_accounting.UnsupportedEventError: If the event is not one of them, alone.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> from tff_dp_aggregators.accounting import schemas
    >>> toeplitz = strategies.BandedToeplitz.square_root(40, num_bands=5)
    >>> event = schemas.event(toeplitz, schemas.BallsInBins(40, 10), 1.0)
    >>> round(about_epsilon(event, 1e-3))
    5
  """
  relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  one = MonteCarloAccountant(relation).compose(event)._event()
  if not isinstance(one, (events.BallsInBinsDpEvent, events.BMinSepDpEvent)):
    return float(one)
  certain = pld.PldAccountant(relation).compose(one.bound).get_epsilon(delta)
  if not math.isfinite(certain) or certain <= _LEAST_EPSILON:
    return certain
  rng = np.random.default_rng(_seed(one, delta, 'about'))
  return _about(_mixture(one), rng, delta, certain)


def _log_beta(delta: float) -> float:
  return math.log(delta) + math.log(SHARE / (2 * MOST_ASKED))


def _size(log_bound: float, delta: float, log_beta: float, cells: int) -> int:
  unit = math.exp(min(log_bound, 0.0)) * -log_beta / delta
  wanted = max(_TIMES * unit, min(_MORE_TIMES * unit, _CELLS / cells), _FEWEST)
  rounded = 2 ** (math.ceil(math.log2(wanted) * _SIZES) / _SIZES)
  return min(math.ceil(rounded), MOST)


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


def _mixture(event: events.MixtureDpEvent) -> mixtures.Mixture:
  assert event.strategy is not None  # Or it is not read.
  if isinstance(event, events.BallsInBinsDpEvent):
    return mixtures.Bins(event.strategy, event.num_bins, event.noise_multiplier)
  assert isinstance(event, events.BMinSepDpEvent)
  return renewals.Renewals(
    event.strategy,
    event.min_separation,
    event.sampling_probability,
    event.noise_multiplier,
  )


def _seed(event: Any, at: float, side: str) -> int:
  # Not its bound, in which there are inner products.
  about = {
    field.name: getattr(event, field.name)
    for field in dataclasses.fields(event)
    if field.name not in ('strategy', 'bound')
  }
  asked = f'{type(event).__name__} {about} {float(at)!r} {side}'
  return int.from_bytes(hashlib.sha256(asked.encode()).digest()[:16], 'big')


def _epsilon_removed(
  mixture: mixtures.Mixture,
  rng: np.random.Generator,
  delta: float,
  log_beta: float,
  least: float,
  certain: float,
) -> float:
  """The smallest epsilon, from a least one on, that passes with all above it.

  Args:
    mixture: The pair.
    rng: Whose numbers decide.
    delta: Of the answer.
    log_beta: Logarithm of the probability that it may be wrong.
    least: Smaller ones are not looked for.
    certain: Larger ones are known to pass.
  """
  about = max(least, _about(mixture, rng, delta, certain))
  # What passes with as many outcomes as there may be.
  least = _reached(mixture, True, (delta, log_beta), min(about, certain), certain)
  return _first_passing(mixture, rng, True, (delta, log_beta), least, certain)


def _epsilon_added(
  mixture: mixtures.Mixture,
  rng: np.random.Generator,
  delta: float,
  log_beta: float,
  least: float,
  certain: float,
) -> float:
  """The same for Q, from which P is told: by bets, by `light_tails`, or by both.

  Args:
    mixture: The pair.
    rng: Whose numbers decide.
    delta: Of the answer.
    log_beta: Logarithm of the probability that it may be wrong.
    least: Smaller ones are not looked for.
    certain: Larger ones are known to pass.
  """
  if least >= certain:
    return certain
  if _rest(mixture, False, least, (delta, log_beta), _MOST_ADDED) <= 0:
    return _first_passing(mixture, rng, False, (delta, log_beta), least, certain)
  # Half of what may be wrong for each.
  log_beta -= math.log(2)
  bound = _line(mixture, rng, least, math.log(delta), log_beta)
  known = certain if bound is None else bound.epsilon(math.log(delta), certain)
  known = min(max(known, least), certain)
  if known <= least * (1 + _STEP):
    return known
  start = _reached(mixture, False, (delta, log_beta), least, known)
  return _first_passing(mixture, rng, False, (delta, log_beta), start, known)


def _first_passing(
  mixture: mixtures.Mixture,
  rng: np.random.Generator,
  removed: bool,
  passes: tuple[float, float],
  least: float,
  certain: float,
) -> float:
  """By bets, the first of a grid of epsilons that passes as all above it do."""
  if least >= certain:
    return certain
  delta, log_beta = passes
  proposal = best_proposal(mixture, removed, least)
  size = _size(proposal.log_bound(mixture, least), delta, log_beta, mixture.cells)
  tails = draw(mixture, rng, size, proposal, least)
  return _least(_grid(least, certain), lambda each: tails.passes(each, delta, log_beta))


def _line(
  mixture: mixtures.Mixture,
  rng: np.random.Generator,
  epsilon: float,
  log_delta: float,
  log_beta: float,
) -> Optional[light_tails.Line]:
  """A bound on losses of Q, of so many outcomes as make delta small at epsilon."""
  pilot = -mixture.ratios_of_nobody(rng, _PILOT)
  size = _FEWEST
  while size < _MOST_ADDED and (
    light_tails.predicted(pilot, size, epsilon, log_beta) > log_delta - 1
  ):
    size *= 2
  at = light_tails.places(pilot, size, epsilon, log_beta)
  if at is None:
    return None
  losses = -mixture.ratios_of_nobody(rng, size)
  beyond = int((losses >= at[0]).sum()), int((losses >= at[1]).sum())
  return light_tails.line(beyond, size, at, log_beta)


def _delta(
  mixture: mixtures.Mixture,
  rng: np.random.Generator,
  proposal: mixtures.Proposal,
  epsilon: float,
  aim: float,
) -> float:
  """About the least delta that passes at an epsilon, by bets."""
  log_beta, log_bound = _log_beta(aim), proposal.log_bound(mixture, epsilon)
  size = _size(log_bound, aim, log_beta, mixture.cells)
  tails = draw(mixture, rng, size, proposal, epsilon)
  return _least_delta(tails, epsilon, log_beta)


def _delta_added(
  mixture: mixtures.Mixture, rng: np.random.Generator, epsilon: float, aim: float
) -> float:
  """A bound on the delta of Q, from which P is told; no matter how far below `aim`."""
  log_beta = _log_beta(aim)
  if _rest(mixture, False, epsilon, (aim, log_beta), _MOST_ADDED) > 0:
    bound = _line(mixture, rng, epsilon, math.log(aim), log_beta)
    if bound is not None:
      return math.exp(bound.log_delta(epsilon))
  return _delta(mixture, rng, best_proposal(mixture, False, epsilon), epsilon, aim)


def _rest(
  mixture: mixtures.Mixture,
  removed: bool,
  epsilon: float,
  passes: tuple[float, float],
  most: int = MOST,
) -> float:
  """Logarithm of the outcomes that bets need, over as many as there may be."""
  delta, log_beta = passes
  bound = best_proposal(mixture, removed, epsilon).log_bound(mixture, epsilon)
  return math.log(-_TIMES * log_beta / (most * delta)) + bound


def _reached(
  mixture: mixtures.Mixture,
  removed: bool,
  passes: tuple[float, float],
  epsilon: float,
  certain: float,
) -> float:
  """An epsilon, or a larger one that few enough outcomes can pass at."""

  def rest(at: float) -> float:
    return _rest(mixture, removed, at, passes)

  if rest(epsilon) <= 0:
    return epsilon
  if rest(certain) >= 0:
    return certain
  found = float(optimize.brentq(rest, epsilon, certain, rtol=1e-3))
  while rest(found) > 0 and found < certain:  # It may end on either side.
    found *= 1 + _STEP
  return min(found, certain)


def _about(
  mixture: mixtures.Mixture, rng: np.random.Generator, delta: float, certain: float
) -> float:
  """An epsilon whose delta is about that, as a few outcomes have it."""
  epsilon, grid = certain, _grid(_LEAST_EPSILON, certain)
  for _ in range(_PILOTS):
    proposal = best_proposal(mixture, True, epsilon)
    pilot = draw(mixture, rng, _PILOT, proposal, _LEAST_EPSILON)
    passing = _least(grid, lambda each: pilot.delta(each) <= delta)  # noqa: B023
    near = abs(passing - epsilon) <= 0.01 * epsilon
    epsilon = passing
    if near:
      break
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
