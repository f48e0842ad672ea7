"""What a comparison of mechanisms offers of each scheme of participation.

`OFFERS` has the rows by scheme, with the words and the line of a plot that they have.
"""

import dataclasses
from typing import Any, Callable, Optional

from tff_dp_aggregators import sampling


@dataclasses.dataclass(frozen=True)
class Offer:
  """Rows that a comparison has for a scheme.

  Attributes:
    name: What the comparison's JSON calls the assumption.
    title: The same after a mechanism's name; empty for none.
    line: Matplotlib's style of line: a name, or an offset with lengths of dashes.
    make: The scheme for num_rounds, num_clients and clients_per_round, and num_groups
      with groups; `None` for the limits of the task itself, which every comparison has.
    any_noise: Whether there are rows of all mechanisms, and not of those alone whose
      noise is independent.
    noise_for: With groups that take turns, so that banded noise may be used: about the
      noise multiplier, over the largest column norm, with which a scheme is
      mu-Gaussian-DP, to choose the number of groups by; `None` without groups.
  """

  name: str
  title: str
  line: Any
  make: Optional[Callable[..., Any]] = None
  any_noise: bool = False
  noise_for: Optional[Callable[[Any, float], float]] = None


OFFERS: dict[type[sampling.Scheme], tuple[Offer, ...]] = {
  sampling.Limits: (Offer('none', '', '-'),),
  sampling.PoissonSampling: (
    Offer('poisson', 'Poisson sampling', ':', sampling.PoissonSampling.of_cohort),
    Offer(
      'cyclic_poisson',
      'cyclic Poisson sampling',
      '--',
      sampling.PoissonSampling.of_cohort,
      noise_for=sampling.PoissonSampling.rough_noise_multiplier,
    ),
  ),
  sampling.FixedSizeSampling: (
    Offer('fixed_size', 'sampling of fixed size', '-.', sampling.FixedSizeSampling),
  ),
  sampling.BallsInBins: (
    Offer(
      'balls_in_bins',
      'balls in bins',
      (0, (3, 1, 1, 1)),
      sampling.BallsInBins.of_cohort,
      any_noise=True,
    ),
  ),
  sampling.RandomAllocation: (
    Offer(
      'random_allocation',
      'random allocation',
      (0, (5, 1)),
      sampling.RandomAllocation.of_cohort,
    ),
  ),
}
# What plans with a scheme instead, of which a comparison has no rows.
NOT_OFFERED: dict[type[sampling.Scheme], str] = {
  sampling.BMinSepSampling: (
    'its separation is chosen together with the bands, which takes '
    'tff_dp_aggregators.accounting.planning.separations.best_separation; tff-dp-report '
    'and tff-dp-simulate take what it finds as --min_separation and --num_bands'
  ),
}


def offers() -> dict[str, Offer]:
  """What rows may assume about how clients are drawn, by name, in their order."""
  return {offer.name: offer for each in OFFERS.values() for offer in each}


def samplings() -> dict[str, tuple[str, ...]]:
  """How a server can draw clients, and the names of `offers` which that allows."""
  always = tuple(offer.name for offer in OFFERS[sampling.Limits])
  return {
    kind.flag: tuple(dict.fromkeys((*always, *(offer.name for offer in of_kind))))
    for kind, of_kind in OFFERS.items()
  }


def check(name: str) -> None:
  """Refuses what is no key of `samplings`; says what plans with a scheme instead."""
  if name in samplings():
    return
  instead = {kind.flag: f': {text}' for kind, text in NOT_OFFERED.items()}
  raise ValueError(
    f'sampling={name} is in no comparison{instead.get(name, "")}. Values here are '
    f'{", ".join(samplings())}.'
  )
