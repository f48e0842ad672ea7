"""A part of a model, with a mechanism of its own."""

import dataclasses
import fnmatch
import math
import re
from typing import Any, NoReturn

from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import sites
from tff_dp_aggregators.base import checks

# Names of parts are parts of names of metrics and of lines of a ledger.
_PART_NAME = re.compile(r'[A-Za-z][A-Za-z0-9_]*')


@dataclasses.dataclass(frozen=True)
class JointPart:
  """A part of a model, with the mechanism for it.

  Attributes:
    name: Of the part: letters, digits and underscores.
    weights: Patterns of the names of the weights that are of it, as `fnmatch` reads
      them; a text has them with blanks between.
    mechanism: Strategy, participation and noise: of real numbers, made by the server,
      without sampling and adaptive clipping.
    clip_norm: Bound of one client's contribution to the part in one round, of its L2
      norm, and with Laplace noise of its L1 norm.

  Raises:
    TypeError: If an attribute is not of its type.
    ValueError: If one is out of range, or there is no analysis of such a mechanism
      beside others.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> participation = strategies.Participation(8, min_separation=4)
    >>> tree = mechanism_lib.Mechanism('tree', participation, 2.0)
    >>> JointPart('embedding', '0', tree, clip_norm=0.3).weights
    ('0',)
  """

  name: str
  weights: tuple[str, ...]
  mechanism: mechanism_lib.Mechanism
  clip_norm: float

  def __post_init__(self) -> None:
    if not isinstance(self.name, str):
      raise TypeError(f'the name of a part must be a text; got {self.name!r}.')
    if not _PART_NAME.fullmatch(self.name):
      raise ValueError(
        'the name of a part must be letters, digits and underscores, such as body; '
        f'got {self.name!r}.'
      )
    object.__setattr__(self, 'weights', _patterns(self.name, self.weights))
    if not isinstance(self.mechanism, mechanism_lib.Mechanism):
      raise TypeError(
        f'the mechanism of part {self.name} must be an accounting.Mechanism; got '
        f'{type(self.mechanism).__name__}.'
      )
    checks.check_number(f'clip_norm of part {self.name}', self.clip_norm)
    if not 0 < self.clip_norm < math.inf:
      raise ValueError(
        f'clip_norm of part {self.name} must be positive and finite; got '
        f'{self.clip_norm}.'
      )
    object.__setattr__(self, 'clip_norm', float(self.clip_norm))
    _check_beside_others(self.name, self.mechanism)

  def with_noise(self, noise_multiplier: float) -> 'JointPart':
    """The part with other noise."""
    other = dataclasses.replace(self.mechanism, noise_multiplier=noise_multiplier)
    return dataclasses.replace(self, mechanism=other)

  def matches(self, weight: str) -> bool:
    """Whether a pattern is for the name of a weight."""
    return any(is_for(pattern, weight) for pattern in self.weights)

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values."""
    return {
      'name': self.name,
      'weights': list(self.weights),
      'clip_norm': self.clip_norm,
      'mechanism': self.mechanism.to_json(),
    }


def is_for(pattern: str, weight: str) -> bool:
  """Whether a pattern is for the name of a weight.

  Args:
    pattern: As `fnmatch` reads it.
    weight: The name; one of number and name with a blank between may be called by
      either.

  Example:
    >>> [is_for(pattern, '0 dense/kernel:0') for pattern in ('0', 'dense/*', '1')]
    [True, True, False]
  """
  names = (weight, *weight.split(' ', 1))
  return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _patterns(part: str, given: Any) -> tuple[str, ...]:
  patterns = tuple(given.split() if isinstance(given, str) else given)
  if not patterns or not all(isinstance(each, str) and each for each in patterns):
    raise ValueError(
      f"weights of part {part} must be patterns of names, such as '0' or 'embedding/*';"
      f' got {given!r}.'
    )
  return patterns


def _check_beside_others(name: str, mechanism: mechanism_lib.Mechanism) -> None:
  """Refuses a mechanism of which no composition with others is known here."""

  def refuse(what: str, why: str) -> NoReturn:
    raise ValueError(f'part {name} has {what}, and a joint mechanism cannot: {why}')

  if mechanism.is_sampled:
    refuse(
      f'{mechanism.participation}',
      'all parts of a client are in the same sample, for which the guarantees of the '
      'parts do not compose. Plan with limits on participation, or with one mechanism '
      'for all weights.',
    )
  if mechanism.noise.plan is not None:
    refuse(
      f'{mechanism.name} noise',
      'its grid and modulus are those of one sum of all weights. Take noise of real '
      'numbers, or one mechanism for all weights.',
    )
  if mechanism.site is not sites.SERVER:
    refuse(
      f'noise_site={mechanism.noise_site}',
      'what others than the server see of a client is stated of one mechanism alone. '
      'Leave noise_site out, or take one mechanism for all weights.',
    )
  if mechanism.clipped_count_stddev is not None:
    refuse(
      'adaptive clipping',
      'its clip norm would be that of the part alone, and no line of a ledger has '
      'several that change. Give a fixed clip_norm, or one mechanism for all weights.',
    )
  if not mechanism.noise_multiplier:
    refuse(
      'no noise',
      'what it releases would have no privacy, nor would all parts together. Give it a '
      'noise_multiplier.',
    )
