"""What a mechanism of all weights says where one of parts says something else.

Runs, ledgers and reports ask either in the same way; `joint_mechanism` has the other
answers.
"""

from collections.abc import Sequence
from typing import Any, Optional

import dp_accounting
import numpy as np

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting import sites


class WholeModel:
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
    """What a client has spent after so many turns, if rounds compose.

    Args:
      turns: Rounds that it has been in, or, with sampling, may have been in.
    """
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
