"""Joint mechanisms: several mechanisms for the parts of a model, accounted together.

A client takes part in all parts of a model at once, so the privacy cost of a round is
the composition of the costs of its parts. Each part has its own clip norm, strategy and
noise. Gaussian parts together are one Gaussian, whose mu^2 is the sum of theirs; with
Laplace noise among them, epsilon is composed numerically. `JointMechanism.for_target`
splits a target between the parts by shares.
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
  """A part of a model, with its mechanism."""

  name: str  # Letters, digits and underscores.
  weights: tuple[str, ...]  # `fnmatch` patterns of names; or one string, with spaces.
  mechanism: mechanism_lib.Mechanism  # With real noise of the server; fixed clip norm.
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
    clip_norm = checks.check_positive(f'clip_norm of part {self.name}', self.clip_norm)
    self.__dict__.update(weights=weights, clip_norm=clip_norm)
    mechanism = self.mechanism
    # There is no analysis here of these in composition with other parts.
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
    """Returns this part with another noise multiplier."""
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
  """Whether a pattern matches a weight; '0' and 'dense/*' match '0 dense/kernel:0'."""
  names = (weight, *weight.split(' ', 1))
  return any(fnmatch.fnmatchcase(name, pattern) for name in names)


@dataclasses.dataclass(frozen=True)
class JointStrategy:
  """The strategies of all parts by the name of the part, in the order of the parts."""

  parts: Mapping[str, strategies.Strategy]

  @property
  def num_rounds(self) -> int:
    """Number of rounds, the same for all parts."""
    return next(iter(self.parts.values())).num_rounds

  @property
  def checksum(self) -> str:
    """SHA-256 over the names of the parts and the checksums of their strategies."""
    content = [[name, strategy.checksum] for name, strategy in self.parts.items()]
    return f'sha256:{hashlib.sha256(json.dumps(content).encode()).hexdigest()}'

  def sensitivity_kind(self, limits: Optional[strategies.Participation] = None) -> str:
    """'exact', or 'bound': the parts' worst cases may be for different rounds."""
    all_strategies = list(self.parts.values())
    kinds = {strategy.sensitivity_kind(limits) for strategy in all_strategies}
    are_same = len({strategy.checksum for strategy in all_strategies}) == 1
    return 'exact' if are_same and kinds == {'exact'} else 'bound'

  def to_npz(self) -> bytes:
    """Returns the content of a NumPy .npz archive that `load` reads back exactly."""
    arrays = {
      name: np.frombuffer(strategy.to_npz(), np.uint8)
      for name, strategy in self.parts.items()
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()

  @classmethod
  def load(cls, path: str, names: Sequence[str]) -> 'JointStrategy':
    """Reads a file that `to_npz` wrote, with strategies for parts of these names."""
    try:
      with np.load(path, allow_pickle=False) as archive:
        archived = {name: archive[name].tobytes() for name in archive.files}
    except (ValueError, EOFError, KeyError) as e:
      raise ValueError(f'{path} does not have the strategies of parts: {e}') from e
    if set(archived) != set(names):
      raise ValueError(
        f'{path} has the strategies of the parts {sorted(archived)}, and the parts are '
        f'{sorted(names)}: it is of another mechanism.'
      )
    return cls({name: strategies.Strategy.from_npz(archived[name]) for name in names})


NAME = 'joint'  # The name of every joint mechanism.
_ROUND_OFF = 1e-9  # Tolerance of the sum of shares, which has to be 1.
_COMPOSING = 1e-13  # Relative round-off of noise multipliers composed one by one.


@dataclasses.dataclass(frozen=True)
class JointMechanism(mechanism_lib.Guaranteed):
  """The mechanisms of a model's parts; a client takes part in all of them at once.

  There is no common noise multiplier: each part has its own, over its clip norm.

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

  # Two or more, with different names and the same participation and adjacency. A weight
  # belongs to the first part that has a pattern which matches its name.
  parts: tuple[JointPart, ...]

  def __post_init__(self) -> None:
    object.__setattr__(self, 'parts', tuple(self.parts))
    names = [part.name for part in self.parts]
    if len(names) < 2 or len(set(names)) < len(names):
      raise ValueError(
        f'a joint mechanism has two parts or more, each with its own name; got {names}.'
      )
    first, *others = self.parts
    for part in others:
      for attribute in ('participation', 'adjacency'):
        first_value = getattr(first.mechanism, attribute)
        value = getattr(part.mechanism, attribute)
        if value != first_value:
          raise ValueError(
            f'parts are of the same clients and need the same {attribute}; part '
            f'{first.name} has {first_value}, part {part.name} has {value}.'
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
    """Returns the parts with the least noise that keeps a target for all together.

    The effective noise multiplier of a part, which is relative to its sensitivity, is
    `s / sqrt(share)`, with the same `s` for all parts. For Gaussian parts, a share is
    the part's share of mu^2. `shares` are by name of the part, positive, with sum 1;
    `None` for equal ones. The noise of `parts` is ignored; other arguments are those of
    `Mechanism.for_target`.
    """
    target = mechanism_lib.Target(target_epsilon, target_delta, accountant, target_rho)
    planned = cls(tuple(parts))
    share_of = _check_shares(planned, shares)

    def noise_of(part: JointPart, noise: float) -> float:
      effective = noise / math.sqrt(share_of[part.name])
      return effective * part.mechanism.sensitivity

    noise = mechanism_lib.least_noise(
      lambda noise: _composed(
        {part.name: part.mechanism.event_with(noise_of(part, noise)) for part in parts}
      ),
      target,
      planned.relation,
    )
    result = cls(tuple(part.with_noise(noise_of(part, noise)) for part in parts))
    result.made_for(target)
    return result

  # Attributes that a `Mechanism` has, too. The guarantee rests on limits, never on
  # sampling; each part has real noise, which the server adds, and a fixed clip norm.
  name = NAME
  is_sampled = has_integer_noise = adds_noise_on_clients = False  # True of no part.
  has_noise = is_private = True  # True of each part.
  noise_site, placement = noises.SERVER.name, noises.SERVER
  options: ClassVar[tuple[tuple[str, int], ...]] = ()  # It has none.
  # It has none of these.
  server_noise_multiplier = clipped_count_stddev = clipped_count_share = None

  @property
  def participation(self) -> sampling.Schema:
    """The participation schema, the same for all parts."""
    return self.parts[0].mechanism.participation

  @property
  def adjacency(self) -> str:
    """A key of `sampling.ADJACENCIES`."""
    return self.parts[0].mechanism.adjacency

  @property
  def limits(self) -> strategies.Participation:
    """The limits on the rounds of one client."""
    return self.parts[0].mechanism.limits

  @property
  def is_one_gaussian(self) -> bool:
    """Whether all rounds of all parts are one Gaussian mechanism, or bounded by one."""
    return all(part.mechanism.is_one_gaussian for part in self.parts)

  @property
  def strategy(self) -> JointStrategy:
    """The strategies of the parts."""
    return JointStrategy({part.name: part.mechanism.strategy for part in self.parts})

  @property
  def effective_noise_multiplier(self) -> Optional[float]:
    """1 / mu of all parts together; `None` unless `is_one_gaussian`."""
    if not self.is_one_gaussian:
      return None
    return 1 / float(accountants.gdp_mu(self.event))

  @property
  def shares(self) -> dict[str, float]:
    """The shares with which `for_target` would return the noise of the parts."""
    return _shares_of(self.parts)

  @property
  def shares_of_mu_squared(self) -> dict[str, float]:
    """The share of each Gaussian part in the mu^2 of all Gaussian parts."""
    return _shares_of([part for part in self.parts if part.mechanism.is_one_gaussian])

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together."""
    return _composed({part.name: part.mechanism.event for part in self.parts})

  @property
  def round_events(self) -> tuple[dp_accounting.DpEvent, ...]:
    """The event of each round, for a ledger; they compose to `event`."""
    names = [part.name for part in self.parts]
    by_part = [part.mechanism.round_events for part in self.parts]
    return tuple(_composed(dict(zip(names, each))) for each in zip(*by_part))

  @property
  def noise_multipliers_so_far(self) -> np.ndarray:
    """Effective noise multiplier of the Gaussian parts in rounds 0 to t, shape [n]."""
    return 1 / np.sqrt(
      sum(
        part.mechanism.noise_multipliers_so_far**-2.0
        for part in self.parts
        if part.mechanism.is_one_gaussian
      )
    )

  def event_of_turns(self, turns: int) -> dp_accounting.DpEvent:
    """Upper bound on what is spent before a client may take part once more."""
    if turns == self.limits.possible_participations:
      return self.event
    rounds = min(turns * self.limits.min_separation, self.participation.num_rounds)
    spent = {
      part.name: part.mechanism.event_of_turns(turns)
      for part in self.parts
      if not part.mechanism.is_one_gaussian
    }
    if len(spent) < len(self.parts):
      noise = float(self.noise_multipliers_so_far[rounds - 1]) * (1 - _COMPOSING)
      spent['gaussian parts'] = dp_accounting.GaussianDpEvent(noise)
    return _composed(spent)

  def part_of(
    self, names: Sequence[str], labels: Optional[Sequence[str]] = None
  ) -> tuple[str, ...]:
    """The name of the part of each weight: the first one with a matching pattern."""
    listed = f'the weights are {", ".join(labels or names)}'
    patterns = [(pattern, part.name) for part in self.parts for pattern in part.weights]
    names_of_parts = []
    for name in names:
      matching = [part for pattern, part in patterns if is_for(pattern, name)]
      if not matching:
        raise ValueError(
          f'the weight {name} is of no part: no pattern of {patterns} matches it. '
          f'Add a part, or a pattern; {listed}.'
        )
      names_of_parts.append(matching[0])
    for pattern, part in patterns:
      if part not in names_of_parts or not any(is_for(pattern, name) for name in names):
        raise ValueError(
          f'the pattern {pattern} of part {part} is for no weight, or for those of '
          f'parts before it alone. Change it, or put the part first; {listed}.'
        )
    return tuple(names_of_parts)

  def noise_in_words(self) -> str:
    """The noise of each part, for messages."""
    of_parts = ', '.join(
      f'{part.mechanism.noise_multiplier:.4f} for {part.name}' for part in self.parts
    )
    return f'noise multipliers {of_parts}'

  def line(self, clip_norm: Optional[float]) -> dict[str, Any]:
    """The fields of a ledger's line that describe the mechanism."""
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
      mechanism = cls(
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
    values = mechanism.to_json()
    for key in ('participation', 'adjacency', 'strategy_checksum'):
      if values[key] != data.get(key):
        raise ValueError(
          f'the stored joint mechanism has the {key} {data.get(key)}, its parts have '
          f'{values[key]}: something was altered.'
        )
    return mechanism


def _shares_of(parts: Sequence[JointPart]) -> dict[str, float]:
  squares = {part.name: part.mechanism.effective_noise_multiplier**-2 for part in parts}
  total = sum(squares.values())
  return {name: square / total for name, square in squares.items()}


def _composed(by_part: Mapping[str, dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
  """Composes the events of parts, sorted by name as in aggregation states."""
  ordered = [by_part[name] for name in sorted(by_part)]
  return events.simplify(dp_accounting.ComposedDpEvent(ordered))


def _check_shares(
  joint: JointMechanism, shares: Optional[Mapping[str, float]]
) -> dict[str, float]:
  """Returns the share of each part; raises ValueError unless their sum is 1."""
  names = [part.name for part in joint.parts]
  if shares is None:
    return {name: 1 / len(names) for name in names}
  checked = {
    name: checks.check_positive(f'share of part {name}', share)
    for name, share in shares.items()
  }
  if set(checked) != set(names) or abs(math.fsum(checked.values()) - 1) > _ROUND_OFF:
    raise ValueError(
      f'shares must be given for each part, {names}, and be 1 in sum, or for none; got '
      f'{dict(shares)}.'
    )
  return checked


# The mechanism of a run, and its strategy.
AnyMechanism = Union[mechanism_lib.Mechanism, JointMechanism]
AnyStrategy = Union[strategies.Strategy, JointStrategy]


def stored(
  data: dict[str, Any], strategy: Optional[AnyStrategy] = None
) -> AnyMechanism:
  """Reads the mechanism, joint or not, of a configuration or a report."""
  kind: Any = JointMechanism if _is_joint(data) else mechanism_lib.Mechanism
  return cast(AnyMechanism, kind.from_json(data, strategy))


def load_strategy(data: dict[str, Any], path: str) -> AnyStrategy:
  """Loads the strategy, or strategies, of a stored mechanism from a run's file."""
  if _is_joint(data):
    return JointStrategy.load(path, [part['name'] for part in data['parts']])
  return strategies.Strategy.load(path)


def strategy_from_json(data: dict[str, Any], written: dict[str, Any]) -> AnyStrategy:
  """Reads the strategy, or strategies, of a mechanism from a report."""
  if not _is_joint(data):
    return strategies.Strategy.from_json(json.dumps(written))
  names = [part['name'] for part in data['parts']]
  read = strategies.Strategy.from_json
  return JointStrategy({name: read(json.dumps(written[name])) for name in names})


def _is_joint(data: dict[str, Any]) -> bool:
  return data.get('name') == NAME
