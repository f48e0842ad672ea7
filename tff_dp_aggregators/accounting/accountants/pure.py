"""Pure epsilon: what holds with delta 0, of Laplace noise, or because it is stated.

The accountants compose privacy losses and state epsilon at a positive delta, where it
is smaller, and never more than here: a grid, or a Renyi divergence of finite order, may
come out above. The sum of what single uses cost holds with no exception, of Laplace
noise; that which is made ends after some 88 scales, at a probability of 2^-128 a number
(`noise.laplace`).
"""

import fractions
import math
from typing import Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import parts

# What closed forms are rounded up by, relative: more than their round-off.
_ROUND_OFF = 1e-14
# Of e, below what float64 ends at.
_LARGEST_EXPONENT = 700.0


def of_laplace(noise_multiplier: float, sampling_probability: float = 1.0) -> float:
  """Epsilon of one use of Laplace noise, with delta 0.

  1 / noise_multiplier (Dwork et al. 2006, theorem 1); on a Poisson sample, to add or
  remove one, ln(1 + q (e^that - 1)).

  Args:
    noise_multiplier: Scale of the noise over L1 sensitivity; positive.
    sampling_probability: q, above 0 and at most 1; 1 for everybody.

  Returns:
    Epsilon, rounded up in its last digits.

  Example:
    >>> round(of_laplace(2.0), 12), round(of_laplace(2.0, 0.01), 6)
    (0.5, 0.006466)
  """
  q = sampling_probability
  before = math.nextafter(1 / noise_multiplier, math.inf)
  if before > _LARGEST_EXPONENT:  # Both terms may be large and their sum small.
    one = before * (1 + _ROUND_OFF)
    one += math.log(q + (1 - q) * math.exp(-before))
  else:
    one = math.log1p(q * math.expm1(before))
  return one * (1 + _ROUND_OFF)


def pure_epsilon(
  event: dp_accounting.DpEvent, relation: Relation = Relation.REPLACE_SPECIAL
) -> float:
  """Epsilon with delta 0 of everything that is composed.

  Args:
    event: Any event.
    relation: Neighbouring relation it is to be read under.

  Returns:
    The sum over its uses of Laplace noise and what is stated to be pure, rounded up in
    its last digits; infinite if anything else is among them, for of Gaussian noise
    there is none.

  Raises:
    dp_accounting.UnsupportedEventError: If a part is not valid under `relation`.
    ValueError: If a parameter of the event is out of range.

  Example:
    >>> once = dp_accounting.LaplaceDpEvent(2.0)
    >>> pure_epsilon(dp_accounting.SelfComposedDpEvent(once, 3))
    1.5
    >>> both = dp_accounting.ComposedDpEvent([once, dp_accounting.GaussianDpEvent(1.0)])
    >>> pure_epsilon(both)
    inf
  """
  return of_parts(parts.parts(event, relation))


def of_parts(found: list[parts.Part]) -> float:
  """The same of what an event is made of.

  No accountant needs to state more than this, at any delta: at it, delta is 0.

  Args:
    found: From `parts.parts`.

  Example:
    >>> of_parts([(dp_accounting.LaplaceDpEvent(4.0), 2)])
    0.5
  """
  exact = fractions.Fraction(0)
  for part, count in found:
    cost = _of(part)
    if cost is None:
      return math.inf
    exact += count * cost
  return parts.up(exact)


def _of(part: dp_accounting.DpEvent) -> Optional[fractions.Fraction]:
  """Epsilon of one use, exact but for sampling; `None` if there is none."""
  if isinstance(part, dp_accounting.LaplaceDpEvent):
    return 1 / fractions.Fraction(part.noise_multiplier)
  if isinstance(part, dp_accounting.PoissonSampledDpEvent) and isinstance(
    part.event, dp_accounting.LaplaceDpEvent
  ):
    sampled = of_laplace(part.event.noise_multiplier, part.sampling_probability)
    return fractions.Fraction(sampled)
  if isinstance(part, events.EpsilonDeltaDpEvent) and part.delta == 0:
    return fractions.Fraction(part.epsilon)
  return None
