"""What every mechanism says, and what one of all weights says where parts do otherwise.

Runs, ledgers and reports ask a mechanism of all weights, and a joint one of parts, in
the same way: `Guaranteed` has the answers that are the same for both, `WholeModel`
those of the former, and `joint_mechanism` the others.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting import sites


class Target(NamedTuple):
  """A privacy target that a mechanism was made for.

  Attributes:
    epsilon: At most this.
    delta: At which delta.
    accountant: Whose epsilon that is; `None` for the tightest.
  """

  epsilon: float
  delta: float
  accountant: Optional[str] = None


class Guaranteed:
  """What has an `event` of all its rounds, and an `adjacency`: a guarantee."""

  @property
  def relation(self: Any) -> Relation:
    """The neighbouring relation of `adjacency`."""
    return schemas.ADJACENCIES[self.adjacency]

  @property
  def sensitivity_kind(self: Any) -> str:
    """Whether the sensitivity, and with it epsilon at best, is 'exact' or a 'bound'."""
    limits = None if self.is_sampled else self.limits
    return str(self.strategy.sensitivity_kind(limits))

  @property
  def target(self) -> Optional[Target]:
    """What `for_target` was asked for; else `None`.

    With the accountant that was asked, if the tightest one says more than the target.

    Neither equality nor `to_json` knows of it: it says where the noise came from, and
    not what the mechanism is.

    Example:
      >>> from tff_dp_aggregators import accounting, strategies
      >>> participation = strategies.Participation(100, min_separation=25)
      >>> accounting.Mechanism.for_target('tree', participation, 8.0, 1e-6).target
      Target(epsilon=8.0, delta=1e-06, accountant=None)
    """
    target: Optional[Target] = self.__dict__.get('_target')
    return target

  def _made_for(self: Any, target: Target) -> None:
    """Keeps what it was made for."""
    if target.accountant and self.epsilon(target.delta) <= target.epsilon:
      target = target._replace(accountant=None)
    # No field: a mechanism with other noise, which `replace` makes, has no target.
    self.__dict__['_target'] = target

  def epsilon(self: Any, delta: float, *, accountant: Optional[str] = None) -> float:
    """Epsilon of all rounds together, of all weights, at `delta`, for `adjacency`.

    Args:
      delta: Between 0 and 1, exclusive.
      accountant: A key of `accountants.ACCOUNTANTS`; `None` for the tightest.

    Returns:
      The smallest epsilon for which the accountant can vouch; infinite without noise.

    Raises:
      ValueError: If `delta` is out of range, or the accountant unknown.
      dp_accounting.UnsupportedEventError: If the accountant cannot read the events.

    Example:
      >>> from tff_dp_aggregators import accounting, strategies
      >>> participation = strategies.Participation.from_rounds_between(2000, 313, 6)
      >>> gboard = accounting.Mechanism('tree', participation, noise_multiplier=7.0)
      >>> (
      ...   round(gboard.epsilon(1e-10), 4),
      ...   round(gboard.epsilon(1e-10, accountant='rdp'), 4),
      ... )
      (8.5261, 8.8986)
    """
    return accountants.epsilon(self.event, delta, accountant, self.relation)

  def delta(self: Any, epsilon: float, *, accountant: Optional[str] = None) -> float:
    """Delta of all rounds together, of all weights, at `epsilon`, for `adjacency`.

    Args:
      epsilon: Finite and not negative.
      accountant: A key of `accountants.ACCOUNTANTS`; `None` for the tightest.

    Returns:
      The smallest delta for which the accountant can vouch; 1 without noise.

    Raises:
      ValueError: If `epsilon` is out of range, or the accountant unknown.
      dp_accounting.UnsupportedEventError: If the accountant cannot read the events.

    Example:
      >>> from tff_dp_aggregators import accounting, strategies
      >>> participation = strategies.Participation.from_rounds_between(2000, 313, 6)
      >>> gboard = accounting.Mechanism('tree', participation, noise_multiplier=7.0)
      >>> f'{gboard.delta(5.0):.2e}'
      '1.21e-04'
    """
    return accountants.delta(self.event, epsilon, accountant, self.relation)


class WholeModel(Guaranteed):
  """A mechanism of all weights: what `mechanism.Mechanism` is."""

  @property
  def parts(self) -> tuple[Any, ...]:
    """None: all weights have one mechanism, unlike those of a `JointMechanism`."""
    return ()

  def part_of(
    self, names: Sequence[str], described: Optional[Sequence[str]] = None
  ) -> tuple[str, ...]:
    """Nothing: weights are of no part, as there are none.

    Args:
      names: Of the weights of a model that are trained.
      described: What messages call them; `None` for their names.
    """
    del names, described
    return ()

  @property
  def has_noise(self: Any) -> bool:
    """Whether there is noise, or a simulation of it."""
    return bool(self.noise_multiplier > 0)

  @property
  def has_integer_noise(self: Any) -> bool:
    """Whether what is summed are integers, whose sums may wrap around."""
    return self.noise.plan is not None

  @property
  def adds_noise_on_clients(self: Any) -> bool:
    """Whether clients add the noise, if there is any."""
    return bool(self.noise_multiplier) and self.site.is_on_clients

  @property
  def noise_multipliers_so_far(self: Any) -> np.ndarray:
    """Effective noise multiplier of rounds 0 to t, if they are one Gaussian; [n]."""
    _, so_far = events.round_noise_multipliers(
      self.strategy,
      self.limits,
      schemas.run_noise_multiplier(self.noise_multiplier, self.relation),
    )
    return so_far

  def event_of_turns(self: Any, turns: int) -> dp_accounting.DpEvent:
    """What a client has spent at most after so many turns; all, if they do not compose.

    Args:
      turns: Rounds that it has been in, or, with sampling, may have been in.
    """
    if not schemas.kind_of(self.participation).composes:
      return self.event
    return dp_accounting.SelfComposedDpEvent(self.round_events[0], turns)

  def clips_in_words(self: Any) -> str:
    """In which norm clients are clipped."""
    return f'in L{self.noise.order} norm'

  def noise_in_words(self: Any) -> str:
    """The noise, in a few words."""
    return f'noise multiplier {self.noise_multiplier:.4f}'

  def line(self: Any, clip_norm: Optional[float]) -> dict[str, Any]:
    """What a line of a ledger has of the mechanism.

    Args:
      clip_norm: That of the round.
    """
    site = None
    if self.site is not sites.SERVER:
      site = {
        'name': self.noise_site,
        'min_clients': dict(self.options).get(noises.MIN_CLIENTS.name),
        'server_noise_multiplier': self.server_noise_multiplier,
      }
    return {
      'clip_norm': clip_norm,
      'noise_multiplier': self.noise_multiplier,
      'strategy_checksum': self.strategy.checksum,
      'noise_site': site,
    }
