"""Parts of a model with mechanisms of their own, from repeated flags.

--part='embedding: weights=0, mechanism=tree, clip_norm=0.3, share=0.25'
--part='rest: weights=*, clip_norm=0.1, share=0.75'

The text of a run means the same to the report of a plan or of a ledger.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Optional

from absl import flags

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.strategies import registry

# Flags that are of all parts together.
GO_WITH = (
  *('part', 'target_epsilon', 'target_rho', 'target_delta'),
  *('accountant', 'adjacency'),
)
_WEIGHTS, _MECHANISM, _CLIP_NORM = 'weights', 'mechanism', 'clip_norm'
_SHARE, _NOISE = 'share', 'noise_multiplier'
_EXAMPLE = "--part='head: weights=2 3, mechanism=tree, clip_norm=0.3'"


class Part(NamedTuple):
  """What a flag says of a part; weights are patterns, a share is of the budget."""

  name: str
  weights: tuple[str, ...]
  mechanism: str
  clip_norm: float
  share: Optional[float]
  noise_multiplier: Optional[float]
  options: dict[str, int]


def parse(texts: Sequence[str]) -> list[Part]:
  """What the flags say, each by itself."""
  return [_parse(text) for text in texts]


def _parse(text: str) -> Part:
  options = registry.options()
  read: dict[str, Callable[[str], Any]] = {
    **{_WEIGHTS: str.split, _MECHANISM: str, _CLIP_NORM: float},
    **{_SHARE: float, _NOISE: float, **dict.fromkeys(options, int)},
  }
  given: dict[str, Any] = {}
  name, colon, rest = text.partition(':')
  for setting in rest.split(','):
    key, equals, value = (each.strip() for each in setting.partition('='))
    try:
      if not (colon and equals and value) or key in given:
        raise ValueError(f'{setting!r} is no setting, or stands twice')
      given[key] = read[key](value)
    except (KeyError, ValueError) as e:
      raise ValueError(
        f'--part={text!r} is not a name, a colon, and settings with commas between '
        f'them, as in {_EXAMPLE}: {e}. Settings are {", ".join(read)}.'
      ) from e
  wrong = [each for each in given.get(_WEIGHTS, ()) if '=' in each]
  if wrong or not {_WEIGHTS, _CLIP_NORM} <= set(given):
    raise ValueError(
      f'--part={text!r} needs {_WEIGHTS}, patterns without an equals sign, and '
      f'{_CLIP_NORM}, with a comma between them, as in {_EXAMPLE}.'
    )
  return Part(
    name.strip(),
    tuple(given[_WEIGHTS]),
    given.get(_MECHANISM, table.DEFAULT_OF_PARTS),
    given[_CLIP_NORM],
    given.get(_SHARE),
    given.get(_NOISE),
    {key: value for key, value in given.items() if key in options},
  )


def check_others(values: flags.FlagValues, names: Iterable[str]) -> None:
  """Refuses flags of one mechanism for all weights."""
  in_a_part = (_MECHANISM, _NOISE, _CLIP_NORM, *registry.options())
  for name in names:
    where = f'; in a part it stands as {name}=...' if name in in_a_part else ''
    why = f'does not go with --part: it is of one mechanism for all weights{where}.'
    program.refuse(values, [name], why, but=GO_WITH)


def have_noise(parts: Sequence[Part]) -> bool:
  """Whether noise is given, if not for all of them, and so not to be found."""
  return any(part.noise_multiplier is not None for part in parts)


def joint(
  parts: Sequence[Part],
  schema: sampling.Schema,
  target: Optional[mechanism_lib.Target],
  accountant: Optional[str],
  adjacency: Optional[str],
) -> joint_mechanism.JointMechanism:
  """The joint mechanism of parts, with their noise or the least for a target."""
  _check_noise(parts, target)
  try:
    made = [
      joint_mechanism.JointPart(
        part.name,
        part.weights,
        mechanism_lib.Mechanism(
          part.mechanism,
          schema,
          1.0 if part.noise_multiplier is None else part.noise_multiplier,
          adjacency=adjacency,
          options=part.options,
        ),
        part.clip_norm,
      )
      for part in parts
    ]
    if target is None:
      return joint_mechanism.JointMechanism(tuple(made))
    shares = {part.name: part.share for part in parts if part.share is not None}
    return joint_mechanism.JointMechanism.for_target(
      made,
      target.epsilon,
      target.delta,
      target_rho=target.rho,
      shares=shares or None,
      accountant=accountant,
    )
  except ValueError as e:
    raise ValueError(f'--part: {e}') from e


def _check_noise(parts: Sequence[Part], target: Optional[mechanism_lib.Target]) -> None:
  """Refuses integers, noise beside a target, and parts without either."""
  for part in parts:
    if noises.of_mechanism(part.mechanism).is_integer:
      raise ValueError(
        f'--part: {part.name} has {part.mechanism} noise, whose grid and modulus are '
        'those of one sum of all weights. Give noise of real numbers, or one '
        '--mechanism for all weights.'
      )
    if target is None and (part.noise_multiplier is None or part.share is not None):
      raise ValueError(
        f'--part: without a target each part has its {_NOISE} and none a {_SHARE}; '
        f'{part.name} has {_NOISE}={part.noise_multiplier} and {_SHARE}={part.share}. '
        f'Or give --target_epsilon, and no {_NOISE}.'
      )
