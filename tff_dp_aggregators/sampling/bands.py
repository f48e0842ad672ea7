"""Whether rounds that are so far apart share noise: by the bands of C.

What is said of a client that is drawn again and again rests on it: likelihoods of its
rounds multiply only where the columns of C share no row.
"""

import math

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import registry

# Longest break or cycle: sums of two such numbers are 64-bit integers.
MAX_CYCLE = 2**62
# Of a client's places: fewer are less private, so that so many are a bound; with more,
# what accountants add for round-off would be more than the loss.
MAX_PLACES = 10**12
_NOT_SHARED = (
  'sampling amplifies privacy only if the rounds of a client do not share noise'
)
# What a sampling without separation is exchanged for.
_GROUPED = 'cyclic Poisson sampling in as many groups (--sampling=poisson --num_groups)'
# Rounds up to which a matrix is held against what is said of it.
_MAX_LOOKED_AT = 1024


def check_groups(
  strategy: strategies.Strategy, groups: int, separation: str = ''
) -> None:
  """Checks that rounds which are so far apart share no noise."""
  num_bands = getattr(strategy, 'num_bands', math.inf)  # Infinite unless banded.
  if num_bands <= groups:
    _check_bands(strategy, int(num_bands))
    return
  bands = 'no bands' if math.isinf(num_bands) else f'{int(num_bands)} bands'
  with_bands = ' or '.join(
    each.name for each in registry.KINDS.values() if each.bands is not None
  )
  if separation:
    instead = f'{with_bands} with num_bands of at most {separation} ({groups} here)'
  else:
    instead = f'{with_bands} with {_GROUPED}'
  raise ValueError(
    f'{_NOT_SHARED}; the {registry.name_of(strategy)} strategy has {bands} and a '
    f'client may be drawn again {groups} round(s) later. Use independent noise '
    f'(gaussian), {instead}, balls in bins, or no sampling assumption.'
  )


def check_bands(option: str, num_bands: int, groups: int, separation: str) -> None:
  """Checks that so many bands leave rounds that are so far apart no noise to share."""
  if num_bands <= groups:
    return
  if separation:
    why, instead = f'more than {separation}={groups}', f'{separation}={num_bands}'
  else:
    why, instead = 'too many where a client may be drawn in the next round', _GROUPED
  raise ValueError(
    f'{option}={num_bands} is {why}: {_NOT_SHARED}. Use {option} of at most {groups}, '
    f'or {instead}.'
  )


def _check_bands(strategy: strategies.Strategy, num_bands: int) -> None:
  """Refuses a C that has more bands than it says, where it is small enough to look.

  A `num_bands` that means something else, such as bands of `C^-1`, would pass for one
  that makes the noise of a client's rounds independent.
  """
  if strategy.num_rounds <= _MAX_LOOKED_AT:
    matrix = strategy.materialize()
    if len(matrix) != strategy.num_rounds or np.tril(matrix, -num_bands).any():
      raise ValueError(
        f'the {strategy.kind} strategy has num_bands={num_bands}, but its C has '
        'entries further from the diagonal; num_bands must count the bands of C.'
      )


def check_break(min_separation: int, probability: float) -> None:
  """Checks the numbers of b-min-sep sampling."""
  check_cycle('min_separation', min_separation)
  checks.check_probability('sampling_probability', probability)


def check_cycle(name: str, value: int) -> None:
  """Checks a number of rounds that may be more than there are, such as of a break."""
  if checks.check_positive_int(name, value) > MAX_CYCLE:
    raise ValueError(
      f'{name} must be at most {MAX_CYCLE}, for computations with it; got {value}.'
    )
