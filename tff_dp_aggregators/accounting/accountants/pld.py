"""Privacy loss distributions, on a grid that follows the event and the delta.

`losses` has the distributions of rounds, rounded up, and composes them. Which pair of
distributions stands for a round depends on the neighbouring relation:

* A Poisson sample, add-or-remove: the client is told from its absence or the other way
  round, the same in all rounds; the worse of the two counts.
* A sample of fixed size, add-or-remove: the same two. Draw a cohort without the client;
  with probability q, cohort over population with the client, it then takes the place of
  one of them, drawn at random. Given that cohort and place, the sum is N(mu), or a
  mixture of N(mu) and, with weight q, N(mu'), where mu and mu' are at most two clip
  norms apart. As H_a is jointly convex, not to know cohort and place makes nothing
  easier to tell. Some data sets have just these distributions in every round, so that
  nothing smaller holds.
* A sample of fixed size, replace-one. In the same way, given cohort and place, the two
  data sets have (1 - q) N_0 + q N_1 and (1 - q) N_0 + q N_2, noise around three points
  of which each two are at most two clip norms apart. For a >= 1, with odds of
  a' = 1 + (a - 1) / q and w = a / a', the first minus a times the second is
  q (N_1 - a' ((1 - w) N_0 + w N_2)). So H_a is q times the divergence of N_1 from a
  mixture at a', which is at most the larger of those from N_0 and N_2 (convexity; also
  arXiv:1807.01647): at most q H_a' of noise on two clip norms, which is H_a of
  `REMOVED`. Below 1 it follows by H_a(P || Q) = 1 - a + a H_1/a(Q || P), with the two
  data sets exchanged, and is that of `ADDED`. Both together are a convex curve, for its
  slope rises by what `REPLACED` has at loss 0, which is not negative; so it is that of
  one pair, `REPLACED`, which dominates each round and composes. One round has no
  smaller bound. For many, no data set has the worst of both sides at once in each of
  them (arXiv:2405.20769), and `REMOVED` alone is what is known to be reached.

* Noise in a step that is drawn at random, once for all steps: `allocation`.

Where grid or float64 end, the answer is the Renyi bound, which is looser and sound, and
`PldAccountant.instead` says so: with noise multipliers below a millionth, and where so
coarse a grid is needed that the Renyi bound is the smaller; and where it is, of many
rounds of `REPLACED`. Where losses are rare and
delta is below some 1e-11, the bound on round-off is a part of delta that may cost a
percent of epsilon.
"""

import functools
import math
from typing import NamedTuple, Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting.accountants import allocation
from tff_dp_aggregators.accounting.accountants import losses
from tff_dp_aggregators.accounting.accountants import parts
from tff_dp_aggregators.accounting.accountants import pure
from tff_dp_aggregators.accounting.accountants import rdp

# More noise is read as that much: as nothing for every delta that matters.
_MAX_NOISE, _MIN_NOISE = 1e9, 1e-6
# Nor are smaller probabilities read as such.
_LEAST = 1e-300
# Deltas of so many decades have one composition, if its error is small there.
_DECADES = 4
# Part of delta that may be numerical error before a grid of its own is made for it.
_ERROR = 1e-6
# Nor does it serve epsilons so small that what it is off by shows.
_SMALL_EPSILON = 0.05
# So coarse a grid, over the width of a round's losses, may lose to Renyi's bound.
_COARSE = 0.25
# Of a grid for those: a second or two.
_MORE_CELLS = 4 * losses.MAX_CELLS
# Of a sum of losses, relative, and more.
_ROUND_OFF = 1e-12
# Below it float64 has no room for what is cut off.
_MIN_DELTA = 1e-280


class _Answer(NamedTuple):
  """An epsilon or delta, and why it is the Renyi bound if it is."""

  value: float
  reason: str = ''


class PldAccountant(parts.Accountant):
  """Numerical accountant of sampled and unsampled Gaussian and Laplace mechanisms.

  Example:
    >>> accountant = PldAccountant(Relation.ADD_OR_REMOVE_ONE)
    >>> gaussian = dp_accounting.GaussianDpEvent(1.0)
    >>> sampled = dp_accounting.PoissonSampledDpEvent(0.01, gaussian)
    >>> _ = accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, 1000))
    >>> round(accountant.get_epsilon(1e-6), 3)
    2.125
  """

  reads_bounds = True
  reads = (
    'Gaussian and Laplace events, Poisson-sampled or not, and Gaussian events sampled '
    'without replacement or allocated at random'
  )

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return (
      parts.is_noise(part)
      or parts.is_poisson(part, dp_accounting.GaussianDpEvent)
      or parts.is_poisson(part, dp_accounting.LaplaceDpEvent)
      or parts.is_without_replacement(part)
      or parts.is_allocated(part)
    )

  def get_epsilon(self, target_delta: float) -> float:
    """Smallest epsilon at `target_delta`, rounded up."""
    return self._epsilon(target_delta).value

  def get_delta(self, target_epsilon: float) -> float:
    """Smallest delta at `target_epsilon`, rounded up."""
    found = self._parts()
    if not found or parts.is_non_private(found):
      return 1.0 if found else 0.0
    if target_epsilon >= pure.of_parts(found):
      return 0.0
    if not _is_in_range(found):
      bound = _renyi(tuple(found), self.neighboring_relation)
      return bound.get_delta(target_epsilon)
    deltas = [math.ulp(0.0)]
    for side in _sides(found, self.neighboring_relation):
      deltas.append(_delta_of_side(side, target_epsilon))
    bounds = [1.0, max(deltas), _total_variation(found)]
    if _is_replaced(found, self.neighboring_relation):
      renyi = _renyi(tuple(found), self.neighboring_relation)
      bounds.append(renyi.get_delta(target_epsilon))
    return min(bounds)

  def instead(self, target_delta: float) -> Optional[parts.Instead]:
    """Whose bound `get_epsilon` returns where the grid has no smaller one."""
    reason = self._epsilon(target_delta).reason
    return parts.Instead('rdp', reason) if reason else None

  def _epsilon(self, target_delta: float) -> _Answer:
    found = self._parts()
    if not found or parts.is_non_private(found):
      return _Answer(math.inf if found else 0.0)
    answer = _epsilon(tuple(found), self.neighboring_relation, target_delta)
    most = pure.of_parts(found)
    return _Answer(most) if answer.value > most else answer


def _renyi(found: tuple[parts.Part, ...], relation: Relation) -> rdp.RdpAccountant:
  """Renyi's bound; what it does not read counts as if it were noise on everybody."""
  bound = rdp.RdpAccountant(relation)
  for part, count in found:
    bound.compose(part if bound.supports(part) else part.event, count)
  return bound


def _is_in_range(found: list[parts.Part]) -> bool:
  return all(
    getattr(part, 'event', part).noise_multiplier >= _MIN_NOISE for part, _ in found
  )


@functools.lru_cache(maxsize=64)
def _epsilon(
  found: tuple[parts.Part, ...], relation: Relation, delta: float
) -> _Answer:
  if _total_variation(list(found)) <= delta:
    return _Answer(0.0)
  bound = _renyi(found, relation)
  if not (_is_in_range(list(found)) and delta >= _MIN_DELTA):
    reason = f"pld's grid does not reach noise this small at delta = {delta:g}"
    return _Answer(bound.get_epsilon(delta), reason)
  epsilon, coarse = 0.0, False
  for side in _sides(list(found), relation):
    one, wide = _of_side(side, delta)
    one = min(one, _end(side))
    epsilon, coarse = max(epsilon, one), coarse or wide
  reason = ''
  if coarse or not math.isfinite(epsilon):
    reason = f"pld's grid could not reach delta = {delta:g} any closer"
  elif _is_replaced(list(found), relation):
    reason = 'the pair that stands for replacing a client has both sides at their worst'
  if reason:
    renyi = bound.get_epsilon(delta)
    if not epsilon <= renyi:
      return _Answer(renyi, reason)
  return _Answer(epsilon)


def _is_replaced(found: list[parts.Part], relation: Relation) -> bool:
  """Whether rounds have the pair of `REPLACED`, which many rounds make loose."""
  return relation is Relation.REPLACE_ONE and any(
    parts.is_without_replacement(part) for part, _ in found
  )


def _total_variation(found: list[parts.Part]) -> float:
  """At least the delta at epsilon 0: the sum over rounds, each by how many it hides.

  A round on a sample of fraction q has q times that of its noise, for its distributions
  are the same but for q.
  """
  total = 0.0
  for part, count in found:
    fraction = 1.0
    if parts.is_allocated(part):
      fraction = part.num_steps / part.num_places
    elif parts.is_without_replacement(part):
      fraction = part.sample_size / part.source_dataset_size
    elif not parts.is_noise(part):
      fraction = part.sampling_probability
    noise = getattr(part, 'event', part)
    mu = 1 / max(noise.noise_multiplier, 1e-300)
    if isinstance(noise, dp_accounting.LaplaceDpEvent):
      one = -math.expm1(-mu / 2)
    else:
      one = math.erf(mu / math.sqrt(8))
    total += count * fraction * one
  return total * (1 + 1e-9)


def _of_side(side: '_Losses', delta: float) -> tuple[float, bool]:
  """Epsilon, and whether the grid is coarse."""
  decade = _DECADES * math.floor(math.log10(delta) / _DECADES)
  around = 10.0 ** (decade + _DECADES / 2)
  composition = _composition(side, losses.plan(side, math.log(around)))
  epsilon, wrong = composition.epsilon(delta)
  if not wrong <= _ERROR or epsilon < _SMALL_EPSILON:
    composition = _composition(side, losses.plan(side, math.log(delta)))
    # What either is off by is in it already: both hold.
    epsilon = min(epsilon, composition.epsilon(delta)[0])
  if composition.coarseness > _COARSE:
    plan = losses.plan(side, math.log(delta), max_cells=_MORE_CELLS)
    composition = _composition(side, plan)
    epsilon = min(epsilon, composition.epsilon(delta)[0])
  return epsilon, composition.coarseness > _COARSE


def _delta_of_side(side: '_Losses', epsilon: float) -> float:
  """Delta by a grid that is cut off ever farther out, until that does not matter."""
  if epsilon >= _end(side):
    return 0.0
  delta = 1.0
  for log_delta in (-20.0, -50.0, -120.0, -300.0, math.log(_MIN_DELTA)):
    composition = _composition(side, losses.plan(side, log_delta, epsilon))
    found, wrong = composition.delta(epsilon)
    delta = min(delta, found)
    if wrong <= _ERROR:
      break
  return delta


def _end(side: '_Losses') -> float:
  """A bound of all losses together, where the curve ends: infinite if there is none.

  Losses of Laplace noise end. So do those of `ADDED` on a sample, of any noise: P is at
  most Q / (1 - q), which makes a loss -log(1 - q) at most; and those of a step that may
  be none of the steps, where 1 - q is the probability of that. That is far below the
  interval of a grid that is as wide as the rare losses of `REMOVED`, and near the end
  there is no tilt to look at the curve with.
  """
  end = 0.0
  for loss, count in side:
    if isinstance(loss, allocation.AllocatedLoss):
      missed = 1 - loss.num_steps / loss.num_places
      if loss.side is not losses.Side.ADDED or missed <= 0:
        return math.inf
      end += -count * math.log(missed)
    elif not isinstance(loss, losses.Loss):
      return math.inf
    elif loss.is_laplace:
      end += count * (loss.range(0.0)[1] + loss.displacement(0.0))
    elif loss.side is losses.Side.ADDED and loss.fraction < 1:
      end += -count * math.log1p(-loss.fraction)
    else:
      return math.inf
  return end * (1 + _ROUND_OFF)


_Losses = tuple[tuple[losses.AnyLoss, int], ...]
_composition = functools.lru_cache(maxsize=8)(losses.Composition)


def _sides(found: list[parts.Part], relation: Relation) -> list[_Losses]:
  """What is composed: one list, or two where adding differs from removing."""
  sides = [
    tuple((_loss(part, relation, side), count) for part, count in found)
    for side in (losses.Side.REMOVED, losses.Side.ADDED)
  ]
  return sides[:1] if sides[0] == sides[1] else sides


def _loss(
  part: dp_accounting.DpEvent, relation: Relation, side: losses.Side
) -> losses.AnyLoss:
  noise = getattr(part, 'event', part)
  is_laplace = isinstance(noise, dp_accounting.LaplaceDpEvent)
  mu = 1 / min(noise.noise_multiplier, _MAX_NOISE)
  if parts.is_noise(part):  # Symmetric: both sides are the same.
    return losses.Loss(is_laplace, mu, 1.0, losses.Side.REMOVED)
  if parts.is_allocated(part) and part.num_steps == 1:  # It is in that one, or in none.
    return losses.Loss(is_laplace, mu, 1 / part.num_places, side)
  if parts.is_allocated(part):
    return allocation.AllocatedLoss(mu, part.num_places, part.num_steps, side)
  if not parts.is_without_replacement(part):
    probability = max(part.sampling_probability, _LEAST)
    return losses.Loss(is_laplace, mu, probability, side)
  fraction = part.sample_size / part.source_dataset_size
  if relation is Relation.REPLACE_ONE:
    side = losses.Side.REPLACED
  return losses.Loss(is_laplace, mu, fraction, side)
