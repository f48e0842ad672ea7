"""Parts of a model with mechanisms of their own, under one name and one accountant.

A client takes part in all parts of a model at once, so what its rounds cost is the
composition of what the parts cost. Each part has its own clip norm, strategy and noise.
Gaussian parts together are one Gaussian, whose mu^2 is the sum of theirs; with Laplace
noise among them, epsilon is composed numerically. `JointMechanism.for_target` divides a
target by shares.
"""

import dataclasses
import fnmatch
import hashlib
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Optional, Union, cast

import dp_accounting
import numpy as np

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.base import checks


@dataclasses.dataclass(frozen=True)
class JointPart:
  """A part of a model, with the mechanism for it."""

  name: str  # Letters, digits and underscores.
  weights: tuple[str, ...]  # Patterns of their names, for `fnmatch`; or a text of them.
  mechanism: mechanism_lib.Mechanism  # Of real noise of the server; fixed clip norm.
  # Bound of a client's contribution in a round, in L2 norm; for Laplace noise in L1.
  clip_norm: float

  def __post_init__(self) -> None:
    name = self.name if isinstance(self.name, str) else ''
    if not re.fullmatch('[A-Za-z][A-Za-z0-9_]*', name):
      raise ValueError(
        'the name of a part must be letters, digits and underscores, such as body; '
        f'got {self.name!r}.'
      )
    weights: Any = self.weights
    weights = tuple(weights.split() if isinstance(weights, str) else weights)
    if not weights or not all(isinstance(each, str) and each for each in weights):
      raise ValueError(
        f'weights of part {self.name} must be patterns of names, such as '
        f"'0' or 'embedding/*'; got {self.weights!r}."
      )
    if not isinstance(self.mechanism, mechanism_lib.Mechanism):
      raise TypeError(
        f'the mechanism of part {self.name} must be an accounting.Mechanism; got '
        f'{type(self.mechanism).__name__}.'
      )
    clip_norm = checks.check_positive(f'clip_norm of part {self.name}', self.clip_norm)
    self.__dict__.update(weights=weights, clip_norm=clip_norm)
    mechanism = self.mechanism
    # No composition with others is known here of these.
    refused = (
      (mechanism.is_sampled, f'{mechanism.participation}'),
      (mechanism.noise.is_integer, f'{mechanism.noise.name} noise'),
      (mechanism.placement is not noises.SERVER, f'noise_site={mechanism.noise_site}'),
      (mechanism.clipped_count_stddev is not None, 'adaptive clipping'),
      (not mechanism.noise_multiplier, 'no noise'),
    )
    for is_so, what in refused:
      if is_so:
        raise ValueError(
          f'part {name} has {what}, and a joint mechanism cannot: its parts have noise '
          'of real numbers, made by the server, without sampling and adaptive '
          'clipping. Change the part, or take one mechanism for all weights.'
        )

  def with_noise(self, noise_multiplier: float) -> 'JointPart':
    """The part with other noise."""
    other = dataclasses.replace(self.mechanism, noise_multiplier=noise_multiplier)
    return dataclasses.replace(self, mechanism=other)

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values."""
    return {
      'name': self.name,
      'weights': list(self.weights),
      'clip_norm': self.clip_norm,
      'mechanism': self.mechanism.to_json(),
    }


def is_for(pattern: str, weight: str) -> bool:
  """Whether a pattern is for a weight; '0' and 'dense/*' are for '0 dense/kernel:0'."""
  names = (weight, *weight.split(' ', 1))
  return any(fnmatch.fnmatchcase(name, pattern) for name in names)


@dataclasses.dataclass(frozen=True)
class JointStrategy:
  """The strategies of all parts, by name of the part, in the order of the parts."""

  parts: Mapping[str, strategies.Strategy]

  @property
  def num_rounds(self) -> int:
    """Rounds that they are for."""
    return next(iter(self.parts.values())).num_rounds

  @property
  def checksum(self) -> str:
    """SHA-256 over the names of the parts and the checksums of their strategies."""
    content = [[name, strategy.checksum] for name, strategy in self.parts.items()]
    return f'sha256:{hashlib.sha256(json.dumps(content).encode()).hexdigest()}'

  def sensitivity_kind(self, limits: Optional[strategies.Participation] = None) -> str:
    """'exact', or 'bound': each part is taken for the rounds that are its worst."""
    each = list(self.parts.values())
    known_by = {strategy.sensitivity_kind(limits) for strategy in each}
    are_same = len({strategy.checksum for strategy in each}) == 1
    return 'exact' if are_same and known_by == {'exact'} else 'bound'

  def to_npz(self) -> bytes:
    """The content of a NumPy .npz archive that `load` reads back exactly."""
    arrays = {
      name: np.frombuffer(strategy.to_npz(), np.uint8)
      for name, strategy in self.parts.items()
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()

  @classmethod
  def load(cls, path: str, names: Sequence[str]) -> 'JointStrategy':
    """Reads a file with what `to_npz` wrote."""
    try:
      with np.load(path, allow_pickle=False) as archive:
        found = {name: archive[name].tobytes() for name in archive.files}
    except (ValueError, EOFError, KeyError) as e:
      raise ValueError(f'{path} does not have the strategies of parts: {e}') from e
    if set(found) != set(names):
      raise ValueError(
        f'{path} has the strategies of the parts {sorted(found)}, and the parts are '
        f'{sorted(names)}: it is of another mechanism.'
      )
    return cls({name: strategies.Strategy.from_npz(found[name]) for name in names})


NAME = 'joint'  # The name of every joint mechanism.
_ROUND_OFF = 1e-9  # How far the sum of shares may be from 1.
# Round-off of noise multipliers that are composed one by one, relative.
_COMPOSING = 1e-13


@dataclasses.dataclass(frozen=True)
class JointMechanism(mechanism_lib.Guaranteed):
  """Mechanisms of parts of a model, in all of which a client takes part.

  There is no noise multiplier of all: each part has its own, relative to its clip norm.

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

  # Two or more, with names of their own, for the same participation and adjacency. A
  # weight is of the first part that has a pattern for its name.
  parts: tuple[JointPart, ...]

  def __post_init__(self) -> None:
    object.__setattr__(self, 'parts', tuple(self.parts))
    for part in self.parts:
      if not isinstance(part, JointPart):
        raise TypeError(
          f'parts must be JointParts; got one of type {type(part).__name__}.'
        )
    names = [part.name for part in self.parts]
    if len(names) < 2 or len(set(names)) < len(names):
      raise ValueError(
        f'a joint mechanism has two parts or more, each with its own name; got {names}.'
      )
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
    parts: Sequence[JointPart],
    target_epsilon: Optional[float] = None,
    target_delta: Optional[float] = None,
    *,
    target_rho: Optional[float] = None,
    shares: Optional[Mapping[str, float]] = None,
    accountant: Optional[str] = None,
  ) -> 'JointMechanism':
    """The parts with the least noise that keeps a privacy target for all together.

    Effective noise multipliers, those relative to the sensitivity, are `s /
    sqrt(share)` with one `s` for all parts. Of Gaussian parts, a share is the part of
    mu^2 that goes to it. `shares` are by name of the part, positive, 1 in sum; `None`
    for equal ones. The noise of `parts` is of no account; other arguments are those of
    `Mechanism.for_target`.
    """
    target = mechanism_lib.Target(target_epsilon, target_delta, accountant, target_rho)
    planned = cls(tuple(parts))
    divided = _check_shares(planned, shares)

    def noise_of(part: JointPart, noise: float) -> float:
      effective = noise / math.sqrt(divided[part.name])
      return effective * part.mechanism.sensitivity

    noise = mechanism_lib.least_noise(
      lambda noise: _together(
        {part.name: part.mechanism.event_with(noise_of(part, noise)) for part in parts}
      ),
      target,
      planned.relation,
    )
    made = cls(tuple(part.with_noise(noise_of(part, noise)) for part in parts))
    made.made_for(target)
    return made

  # What a `Mechanism` has, too. The guarantee rests on limits alone, never on sampling;
  # each part has noise of real numbers, which the server makes, and a fixed clip norm.
  name = NAME
  is_sampled = has_integer_noise = adds_noise_on_clients = False  # Of no part.
  has_noise = is_private = True  # Of each part.
  noise_site, placement = noises.SERVER.name, noises.SERVER
  options: ClassVar[tuple[tuple[str, int], ...]] = ()  # There are none.
  server_noise_multiplier = clipped_count_stddev = None  # There is neither.

  @property
  def participation(self) -> sampling.Schema:
    """Who takes part when, in all parts."""
    return self.parts[0].mechanism.participation

  @property
  def adjacency(self) -> str:
    """A key of `sampling.ADJACENCIES`."""
    return self.parts[0].mechanism.adjacency

  @property
  def limits(self) -> strategies.Participation:
    """In which rounds a client can take part at all."""
    return self.parts[0].mechanism.limits

  @property
  def is_one_gaussian(self) -> bool:
    """Whether all rounds of all parts are one Gaussian, or bounded by one."""
    return all(part.mechanism.is_one_gaussian for part in self.parts)

  @property
  def strategy(self) -> JointStrategy:
    """The strategies of the parts."""
    return JointStrategy({part.name: part.mechanism.strategy for part in self.parts})

  @property
  def effective_noise_multiplier(self) -> Optional[float]:
    """1 / mu of the Gaussian that all parts are; `None` if they are not one."""
    if not self.is_one_gaussian:
      return None
    return 1 / float(accountants.gdp_mu(self.event))

  @property
  def shares(self) -> dict[str, float]:
    """The shares by which `for_target` comes to the noise that the parts have."""
    return _shares_of(self.parts)

  @property
  def shares_of_mu_squared(self) -> dict[str, float]:
    """The part of mu^2 that goes to each Gaussian part, of that of all such parts."""
    return _shares_of([part for part in self.parts if part.mechanism.is_one_gaussian])

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
    """What is spent at most by the round before a client may have one more turn."""
    if turns == self.limits.possible_participations:
      return self.event
    rounds = min(turns * self.limits.min_separation, self.participation.num_rounds)
    spent = {
      part.name: part.mechanism.event_of_turns(turns)
      for part in self.parts
      if not part.mechanism.is_one_gaussian
    }
    if len(spent) < len(self.parts):
      so_far = float(self.noise_multipliers_so_far[rounds - 1]) * (1 - _COMPOSING)
      spent['gaussian parts'] = dp_accounting.GaussianDpEvent(so_far)
    return _together(spent)

  def part_of(
    self, names: Sequence[str], labels: Optional[Sequence[str]] = None
  ) -> tuple[str, ...]:
    """The name of the part that each weight is of: the first with a pattern for it."""
    listed = f'the weights are {", ".join(labels or names)}'
    patterns = [(pattern, part.name) for part in self.parts for pattern in part.weights]
    found = []
    for name in names:
      own = [part for pattern, part in patterns if is_for(pattern, name)]
      if not own:
        raise ValueError(
          f'the weight {name} is of no part: no pattern of {patterns} is one for it. '
          f'Add a part, or a pattern; {listed}.'
        )
      found.append(own[0])
    for pattern, part in patterns:
      if part not in found or not any(is_for(pattern, name) for name in names):
        raise ValueError(
          f'the pattern {pattern} of part {part} is for no weight, or for those of '
          f'parts before it alone. Change it, or put the part first; {listed}.'
        )
    return tuple(found)

  def noise_in_words(self) -> str:
    """The noise of each part, in a few words."""
    of_parts = ', '.join(
      f'{part.mechanism.noise_multiplier:.4f} for {part.name}' for part in self.parts
    )
    return f'noise multipliers {of_parts}'

  def line(self, clip_norm: Optional[float]) -> dict[str, Any]:
    """What a line of a ledger has of the mechanism."""
    if clip_norm is not None:
      raise ValueError(f'clip_norm={clip_norm}: each part has its own; leave it out.')
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
      'participation': sampling.to_json(self.participation),
      'adjacency': self.adjacency,
      'strategy_checksum': self.strategy.checksum,
      'parts': [part.to_json() for part in self.parts],
    }

  @classmethod
  def from_json(
    cls, data: dict[str, Any], strategy: Optional[JointStrategy] = None
  ) -> 'JointMechanism':
    """Reads what `to_json` wrote."""
    by_part = {} if strategy is None else strategy.parts
    read = mechanism_lib.Mechanism.from_json
    with mechanism_lib.reading('joint mechanism'):
      made = cls(
        tuple(
          JointPart(
            part['name'],
            tuple(part['weights']),
            read(part['mechanism'], by_part.get(part['name'])),
            part['clip_norm'],
          )
          for part in data['parts']
        )
      )
    again = made.to_json()
    for key in ('participation', 'adjacency', 'strategy_checksum'):
      if again[key] != data.get(key):
        raise ValueError(
          f'the stored joint mechanism has the {key} {data.get(key)}, its parts have '
          f'{again[key]}: something was altered.'
        )
    return made


def _shares_of(parts: Sequence[JointPart]) -> dict[str, float]:
  squares = {part.name: part.mechanism.effective_noise_multiplier**-2 for part in parts}
  total = sum(squares.values())
  return {name: square / total for name, square in squares.items()}


def _together(by_part: Mapping[str, dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
  """Events of parts as one, in the order in which states have them: by name."""
  ordered = [by_part[name] for name in sorted(by_part)]
  return events.simplify(dp_accounting.ComposedDpEvent(ordered))


def _check_shares(
  joint: JointMechanism, shares: Optional[Mapping[str, float]]
) -> dict[str, float]:
  """Returns the share of each part, if they divide all there is."""
  names = [part.name for part in joint.parts]
  if shares is None:
    return {name: 1 / len(names) for name in names}
  divided = {
    name: checks.check_positive(f'share of part {name}', each)
    for name, each in shares.items()
  }
  if set(divided) != set(names) or abs(math.fsum(divided.values()) - 1) > _ROUND_OFF:
    raise ValueError(
      f'shares must be given for each part, {names}, and be 1 in sum, or for none; got '
      f'{dict(shares)}.'
    )
  return divided


AnyMechanism = Union[mechanism_lib.Mechanism, JointMechanism]  # What a run may have.


# The strategy, or strategies, of what a run may have.
AnyStrategy = Union[strategies.Strategy, JointStrategy]


def stored(
  data: dict[str, Any], strategy: Optional[AnyStrategy] = None
) -> AnyMechanism:
  """The mechanism that a configuration or a report has, joint or not."""
  if _is_joint(data):
    return JointMechanism.from_json(data, cast(Optional[JointStrategy], strategy))
  return mechanism_lib.Mechanism.from_json(
    data, cast(Optional[strategies.Strategy], strategy)
  )


def load_strategy(data: dict[str, Any], path: str) -> AnyStrategy:
  """The strategy, or strategies, of a stored mechanism, from a file of a run."""
  if _is_joint(data):
    return JointStrategy.load(path, [part['name'] for part in data['parts']])
  return strategies.Strategy.load(path)


def strategy_from_json(data: dict[str, Any], written: dict[str, Any]) -> AnyStrategy:
  """The strategy, or strategies, that a report has of a mechanism in it."""

  def read(one: Any) -> strategies.Strategy:
    return strategies.Strategy.from_json(json.dumps(one))

  if not _is_joint(data):
    return read(written)
  names = [part['name'] for part in data['parts']]
  return JointStrategy({name: read(written[name]) for name in names})


def _is_joint(data: dict[str, Any]) -> bool:
  return data.get('name') == NAME
