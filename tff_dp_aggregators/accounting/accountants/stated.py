"""What is only stated to be (epsilon, delta)-DP, beside what an accountant reads.

Epsilons and deltas add up (basic composition; Dwork and Roth 2014, theorem 3.16), which
holds whatever the rest is, and which a reader of a report can do by hand. Many releases
that are stated so would compose better together; who knows more of them than epsilon
and delta states their noise instead.
"""

import fractions
import math
from typing import Optional, cast

import dp_accounting

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import parts

# Of sums of a few numbers, relative, and more.
_ROUND_OFF = 1e-14


class StatedAccountant(parts.Accountant):
  """An accountant's epsilon and delta, with those that are stated added to them.

  Attributes:
    rest: The accountant that has composed everything else.

  Example:
    >>> from tff_dp_aggregators.accounting.accountants import closed_forms
    >>> rest = closed_forms.GaussianAccountant()
    >>> _ = rest.compose(dp_accounting.GaussianDpEvent(1.0))
    >>> both = StatedAccountant(rest)
    >>> _ = both.compose(events.EpsilonDeltaDpEvent(0.5, 1e-6))
    >>> f'{rest.get_epsilon(1e-6):.4f} {both.get_epsilon(2e-6):.4f}'
    '4.8866 5.3866'
  """

  reads = 'events that state epsilon and delta'

  def __init__(self, rest: parts.Accountant):
    super().__init__(rest.neighboring_relation)
    self.rest = rest

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return isinstance(part, events.EpsilonDeltaDpEvent)

  def get_epsilon(self, target_delta: float) -> float:
    """That of the rest at what is left of `target_delta`, and what is stated."""
    left = self._left(target_delta)
    if not left > 0:
      return math.inf
    return (self.rest.get_epsilon(left) + parts.up(self._sums()[0])) * (1 + _ROUND_OFF)

  def get_delta(self, target_epsilon: float) -> float:
    """That of the rest at what is left of `target_epsilon`, and what is stated."""
    epsilon, delta = self._sums()
    left = target_epsilon * (1 - _ROUND_OFF) - parts.up(epsilon)
    if left < 0:
      return 1.0
    return min((self.rest.get_delta(left) + parts.up(delta)) * (1 + _ROUND_OFF), 1.0)

  def instead(self, target_delta: float) -> Optional[parts.Instead]:
    """As the rest has it, at what is left of `target_delta`."""
    left = self._left(target_delta)
    return self.rest.instead(left) if left > 0 else None

  def doubt(self, target_delta: float) -> float:
    """As the rest has it, at what is left of `target_delta`."""
    left = self._left(target_delta)
    return self.rest.doubt(left) if left > 0 else 0.0

  def _left(self, target_delta: float) -> float:
    left = float(fractions.Fraction(target_delta) - self._sums()[1])
    return math.nextafter(left, -math.inf)

  def _sums(self) -> tuple[fractions.Fraction, fractions.Fraction]:
    """Epsilon and delta of all that is stated, exactly."""
    found = [(cast(events.EpsilonDeltaDpEvent, p), count) for p, count in self._parts()]
    zero = fractions.Fraction(0)
    epsilon = sum((n * fractions.Fraction(p.epsilon) for p, n in found), zero)
    delta = sum((n * fractions.Fraction(p.delta) for p, n in found), zero)
    return epsilon, delta
