"""The mechanisms of all parts, under one accountant."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import dp_accounting
import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting import sites
from tff_dp_aggregators.accounting import whole_model
from tff_dp_aggregators.accounting.joint_mechanism import part as part_lib
from tff_dp_aggregators.accounting.joint_mechanism import strategy as strategy_lib
from tff_dp_aggregators.base import checks

NAME = 'joint'
# How far the sum of shares may be from 1.
_ROUND_OFF = 1e-9
# Round-off of noise multipliers that are composed one by one, relative.
_COMPOSING = 1e-13


@dataclasses.dataclass(frozen=True)
class JointMechanism(whole_model.Guaranteed):
  """Mechanisms of parts of a model, in all of which a client takes part.

  What asks a `Mechanism` for its guarantee asks this in the same way. There is no noise
  multiplier of all: each part has its own, relative to its clip norm.

  Attributes:
    parts: Two or more, with names of their own, for the same participation and
      adjacency. A weight is of the first part that has a pattern for its name.

  Raises:
    TypeError: If one is none.
    ValueError: If there are fewer than two, or they do not go together.

  Example:
    >>> from tff_dp_aggregators.accounting import JointPart
    >>> participation = strategies.Participation(8, min_separation=4)
    >>> make = mechanism_lib.Mechanism
    >>> joint = JointMechanism(
    ...   (
    ...     JointPart('body', '[01]', make('tree', participation, 6.0), clip_norm=0.3),
    ...     JointPart('head', '*', make('gaussian', participation, 3.0), clip_norm=0.1),
    ...   )
    ... )
    >>> joint.part_of(['0', '1', '2'])
    ('body', 'body', 'head')
    >>> round(joint.effective_noise_multiplier, 4), round(joint.epsilon(1e-5), 4)
    (1.4142, 2.9432)
  """

  parts: tuple[part_lib.JointPart, ...]

  def __post_init__(self) -> None:
    object.__setattr__(self, 'parts', tuple(self.parts))
    for part in self.parts:
      if not isinstance(part, part_lib.JointPart):
        raise TypeError(
          f'parts must be JointParts; got one of type {type(part).__name__}.'
        )
    names = [part.name for part in self.parts]
    if len(names) < 2:
      raise ValueError(
        f'a joint mechanism has two parts or more; got {names}. Of all weights take '
        'an accounting.Mechanism.'
      )
    for name in names:
      if names.count(name) > 1:
        raise ValueError(f'two parts are called {name!r}; give each its own name.')
    first, *others = self.parts
    for part in others:
      for what in ('participation', 'adjacency'):
        of_first = getattr(first.mechanism, what)
        own = getattr(part.mechanism, what)
        if own != of_first:
          raise ValueError(
            f'parts are of the same clients and need the same {what}; part '
            f'{first.name} has {of_first}, part {part.name} has {own}.'
          )

  @classmethod
  def for_target(
    cls,
    parts: Sequence[part_lib.JointPart],
    target_epsilon: float,
    target_delta: float,
    *,
    shares: Optional[Mapping[str, float]] = None,
    accountant: Optional[str] = None,
  ) -> 'JointMechanism':
    """The parts with the least noise that keeps a privacy target for all together.

    Effective noise multipliers, those relative to the sensitivity, are `s /
    sqrt(share)` with one `s` for all parts. Of Gaussian parts, a share is the part of
    mu^2 that goes to it. A share of Laplace noise has no such meaning in numbers: more
    of it is less noise.

    Args:
      parts: As for the class; what noise their mechanisms have is of no account.
      target_epsilon: Positive.
      target_delta: Between 0 and 1, exclusive.
      shares: By name of the part, positive, 1 in sum; `None` for equal ones.
      accountant: A key of `accountants.ACCOUNTANTS`; `None` for the tightest.

    Raises:
      TypeError: As for the class.
      ValueError: If an argument is out of range, or no noise keeps the target.

    Example:
      >>> from tff_dp_aggregators.accounting import JointPart
      >>> participation = strategies.Participation(8, min_separation=4)
      >>> tree = mechanism_lib.Mechanism('tree', participation, 1.0)
      >>> gaussian = mechanism_lib.Mechanism('gaussian', participation, 1.0)
      >>> joint = JointMechanism.for_target(
      ...   [JointPart('body', '0', tree, 0.3), JointPart('head', '*', gaussian, 0.1)],
      ...   target_epsilon=4.0,
      ...   target_delta=1e-5,
      ...   shares={'body': 0.75, 'head': 0.25},
      ... )
      >>> (
      ...   round(joint.epsilon(1e-5), 6),
      ...   {name: round(share, 6) for name, share in joint.shares.items()},
      ... )
      (4.0, {'body': 0.75, 'head': 0.25})
    """
    planned = cls(tuple(parts))
    divided = _check_shares(planned, shares)

    def noise_of(part: part_lib.JointPart, noise: float) -> float:
      effective = noise / math.sqrt(divided[part.name])
      return effective * part.mechanism.sensitivity

    noise = calibration.noise_multiplier(
      lambda noise: _together(
        {part.name: part.mechanism.event_with(noise_of(part, noise)) for part in parts}
      ),
      target_epsilon,
      target_delta,
      accountant=accountant,
      relation=planned.relation,
    )
    made = cls(tuple(part.with_noise(noise_of(part, noise)) for part in parts))
    made._made_for(whole_model.Target(target_epsilon, target_delta, accountant))
    return made

  @property
  def name(self) -> str:
    """'joint'."""
    return NAME

  @property
  def participation(self) -> schemas.Schema:
    """Who takes part when, in all parts."""
    return self.parts[0].mechanism.participation

  @property
  def adjacency(self) -> str:
    """A key of `schemas.ADJACENCIES`."""
    return self.parts[0].mechanism.adjacency

  @property
  def limits(self) -> strategies.Participation:
    """In which rounds a client can take part at all."""
    return self.parts[0].mechanism.limits

  @property
  def is_sampled(self) -> bool:
    """Whether the guarantee rests on sampling: no."""
    return False

  @property
  def has_noise(self) -> bool:
    """Whether there is noise, which each part has."""
    return True

  @property
  def is_private(self) -> bool:
    """Whether there is noise, which each part has."""
    return True

  @property
  def has_integer_noise(self) -> bool:
    """Whether what is summed are integers of a mechanism: no."""
    return False

  def clips_in_words(self) -> str:
    """In which norm clients are clipped."""
    return "each part in the norm of its mechanism's noise"

  @property
  def adds_noise_on_clients(self) -> bool:
    """Whether clients add the noise: the server does."""
    return False

  @property
  def is_one_gaussian(self) -> bool:
    """Whether all rounds of all parts are one Gaussian, whose privacy curve is known.

    Its mu is that of the composition of the parts, each for the participations that are
    the worst for it. Where these are not the same for all parts it is an upper bound of
    what one client can change (`strategy.sensitivity_kind`), and so is epsilon.
    """
    return all(part.mechanism.is_one_gaussian for part in self.parts)

  @property
  def noise_site(self) -> str:
    """A key of `sites.SITES`: the server makes the noise."""
    return sites.SERVER.name

  @property
  def site(self) -> sites.Site:
    """Where the noise is made."""
    return sites.SERVER

  @property
  def options(self) -> tuple[tuple[str, int], ...]:
    """None: those of strategies are of the parts."""
    return ()

  @property
  def server_noise_multiplier(self) -> None:
    """None: there is no noise of clients that the server would add to."""
    return None

  @property
  def clipped_count_stddev(self) -> None:
    """None: parts have fixed clip norms."""
    return None

  @property
  def strategy(self) -> strategy_lib.JointStrategy:
    """The strategies of the parts."""
    return strategy_lib.JointStrategy(
      {part.name: part.mechanism.strategy for part in self.parts}
    )

  @property
  def effective_noise_multiplier(self) -> Optional[float]:
    """Of the Gaussian that all parts are together, 1 / mu; `None` if they are none."""
    if not self.is_one_gaussian:
      return None
    return 1 / float(accountants.gdp_mu(self.event))

  @property
  def shares(self) -> dict[str, float]:
    """The shares by which `for_target` comes to the noise that the parts have.

    They are parts of the sum of 1 / effective noise multiplier^2 of all: of Gaussian
    parts alone, parts of mu^2.
    """
    return self._shares_of(self.parts)

  @property
  def shares_of_mu_squared(self) -> dict[str, float]:
    """The part of mu^2 that goes to each Gaussian part, of that of all such parts."""
    return self._shares_of(
      [part for part in self.parts if part.mechanism.is_one_gaussian]
    )

  @staticmethod
  def _shares_of(parts: Sequence[part_lib.JointPart]) -> dict[str, float]:
    squares = {
      part.name: part.mechanism.effective_noise_multiplier**-2 for part in parts
    }
    total = sum(squares.values())
    return {name: square / total for name, square in squares.items()}

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together."""
    return _together({part.name: part.mechanism.event for part in self.parts})

  @property
  def round_events(self) -> tuple[dp_accounting.DpEvent, ...]:
    """The event of each round, for a ledger; together they are `event`."""
    names = [part.name for part in self.parts]
    by_part = [part.mechanism.round_events for part in self.parts]
    return tuple(_together(dict(zip(names, each))) for each in zip(*by_part))

  @property
  def noise_multipliers_so_far(self) -> np.ndarray:
    """Effective noise multiplier of the Gaussian parts after each round, shape [n]."""
    return 1 / np.sqrt(
      sum(
        part.mechanism.noise_multipliers_so_far**-2.0
        for part in self.parts
        if part.mechanism.is_one_gaussian
      )
    )

  def event_of_turns(self, turns: int) -> dp_accounting.DpEvent:
    """What is spent at most by the round before a client may have one more turn.

    Args:
      turns: Rounds that a client has been in, from 1 to the most that it may be in.
    """
    if turns == self.limits.possible_participations:
      return self.event
    rounds = min(turns * self.limits.min_separation, self.participation.num_rounds)
    spent = {
      part.name: part.mechanism.event_of_turns(turns)
      for part in self.parts
      if not part.mechanism.is_one_gaussian
    }
    if len(spent) < len(self.parts):
      # A ledger's rounds, composed one by one, come to this but for round-off.
      so_far = float(self.noise_multipliers_so_far[rounds - 1]) * (1 - _COMPOSING)
      spent['gaussian parts'] = dp_accounting.GaussianDpEvent(so_far)
    return _together(spent)

  def part_of(
    self, names: Sequence[str], described: Optional[Sequence[str]] = None
  ) -> tuple[str, ...]:
    """The name of the part that each weight is of: the first with a pattern for it.

    Args:
      names: Of the weights of a model that are trained.
      described: What messages call them; `None` for their names.

    Raises:
      ValueError: If a weight is of no part, a part has no weight, or a pattern is for
        none; the message lists all of them.
    """
    listed = f'the weights are {", ".join(described or names)}'
    found = []
    for name in names:
      own = next((part for part in self.parts if part.matches(name)), None)
      if own is None:
        raise ValueError(
          f'the weight {name} is of no part: no pattern of {self._in_words()} is one '
          f'for it. Add a part, or a pattern; {listed}.'
        )
      found.append(own.name)
    for part in self.parts:
      if part.name not in found:
        raise ValueError(
          f'the part {part.name} has no weight: {_why_empty(part, names, found)}, or '
          f'leave the part out; {listed}.'
        )
      for pattern in part.weights:
        if not any(part_lib.is_for(pattern, name) for name in names):
          raise ValueError(
            f'the pattern {pattern} of part {part.name} is for no weight; {listed}.'
          )
    return tuple(found)

  def _in_words(self) -> str:
    return ', '.join(f'{part.name} ({" ".join(part.weights)})' for part in self.parts)

  def noise_in_words(self) -> str:
    """The noise of each part, in a few words."""
    of_parts = ', '.join(
      f'{part.mechanism.noise_multiplier:.4f} for {part.name}' for part in self.parts
    )
    return f'noise multipliers {of_parts}'

  def line(self, clip_norm: Optional[float]) -> dict[str, Any]:
    """What a line of a ledger has of the mechanism.

    Args:
      clip_norm: `None`: each part has its own.
    """
    if clip_norm is not None:
      raise ValueError(
        f'clip_norm is {clip_norm}, and each part has its own; leave it out.'
      )
    return {
      'clip_norm': None,
      'noise_multiplier': None,
      'strategy_checksum': self.strategy.checksum,
      'noise_site': None,
      'parts': [
        {
          'name': part.name,
          'clip_norm': part.clip_norm,
          'noise_multiplier': part.mechanism.noise_multiplier,
        }
        for part in self.parts
      ],
    }

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values that `from_json` reads back exactly."""
    return {
      'name': NAME,
      'participation': schemas.to_json(self.participation),
      'adjacency': self.adjacency,
      'strategy_checksum': self.strategy.checksum,
      'parts': [part.to_json() for part in self.parts],
    }

  @classmethod
  def from_json(
    cls, data: dict[str, Any], strategy: Optional[strategy_lib.JointStrategy] = None
  ) -> 'JointMechanism':
    """Reads what `to_json` wrote.

    Args:
      data: As written.
      strategy: The strategies, if they were stored as well; else they are found anew.

    Raises:
      ValueError: If something is missing or contradicts the rest, or the strategies are
        not those whose checksums were stored.
    """
    try:
      by_part = {} if strategy is None else strategy.parts
      made = cls(
        tuple(
          part_lib.JointPart(
            part['name'],
            tuple(part['weights']),
            mechanism_lib.Mechanism.from_json(
              part['mechanism'], by_part.get(part['name'])
            ),
            part['clip_norm'],
          )
          for part in data['parts']
        )
      )
    except KeyError as e:
      raise ValueError(f'the stored joint mechanism lacks {e}.') from e
    except TypeError as e:
      raise ValueError(f'the stored joint mechanism is incomplete: {e}') from e
    again = made.to_json()
    for key in ('participation', 'adjacency', 'strategy_checksum'):
      if again[key] != data.get(key):
        raise ValueError(
          f'the stored joint mechanism has the {key} {data.get(key)}, its parts have '
          f'{again[key]}: something was altered.'
        )
    return made


def _together(by_part: Mapping[str, dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
  """Events of parts as one, in the order in which states have them: by name."""
  ordered = [by_part[name] for name in sorted(by_part)]
  return events.simplify(dp_accounting.ComposedDpEvent(ordered))


def _why_empty(
  part: part_lib.JointPart, names: Sequence[str], part_of: Sequence[str]
) -> str:
  """Why a part has no weight, and what would give it some."""
  pattern = ' '.join(part.weights)
  taken = [name for name in names if part.matches(name)]
  if not taken:
    return f'no weight has a name like {pattern}. Give another pattern'
  earlier = dict.fromkeys(part_of[names.index(name)] for name in taken)
  return (
    f'all that {pattern} is for ({", ".join(taken)}) is of parts before it, '
    f'{", ".join(earlier)}. Put it before these, give another pattern'
  )


def _check_shares(
  joint: JointMechanism, shares: Optional[Mapping[str, float]]
) -> dict[str, float]:
  """Returns the share of each part, if they divide all there is."""
  names = [part.name for part in joint.parts]
  if shares is None:
    return {name: 1 / len(names) for name in names}
  if set(shares) != set(names):
    raise ValueError(
      f'shares must be given for each part, {names}, or for none; got {dict(shares)}.'
    )
  for name, share in shares.items():
    checks.check_number(f'share of part {name}', share)
    if not 0 < share < 1:
      raise ValueError(
        f'share of part {name} must be between 0 and 1, exclusive; got {share}.'
      )
  total = math.fsum(shares.values())
  if abs(total - 1) > _ROUND_OFF:
    raise ValueError(f'shares must be 1 in sum; got {dict(shares)}, {total:g} in sum.')
  return {name: float(shares[name]) for name in names}
