"""Parts of a model with mechanisms of their own, from repeated flags.

--part='embedding: weights=0, mechanism=tree, clip_norm=0.3, share=0.25'
--part='rest: weights=*, clip_norm=0.1, share=0.75'

The text of a run means the same to the report of a plan or of a ledger.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

from absl import flags

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting import sites
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.strategies import registry

# Flags that are of all parts together.
GO_WITH = ('part', 'target_epsilon', 'target_delta', 'accountant', 'adjacency')
_WEIGHTS, _MECHANISM, _CLIP_NORM = 'weights', 'mechanism', 'clip_norm'
_SHARE, _NOISE = 'share', 'noise_multiplier'
# Why flags of one mechanism do not go with parts, if there is more to say than that.
_REASONS = {
  'strategy_file': "a part's mechanism is given by its name, from which its strategy "
  'follows, and a file would be that of one mechanism for all weights',
  'clipped_count_stddev': 'clip norms of parts are fixed',
  'find': 'it is looked for with one --noise_multiplier, and each part has its own; of '
  'parts, noise alone is found',
  **dict.fromkeys(
    ('noise_site', *sites.options(), sites.SERVER_NOISE),
    'the noise of parts is made by the server alone',
  ),
}
_EXAMPLE = "--part='head: weights=2 3, mechanism=tree, clip_norm=0.3'"


class Part(NamedTuple):
  """What a flag says of a part.

  Attributes:
    name: Of the part.
    weights: Patterns of the names of its weights.
    mechanism: Name of its mechanism.
    clip_norm: Bound of a client's contribution to it.
    share: Of the budget; `None` if not given.
    noise_multiplier: `None` if it is to be found.
    options: Of the mechanism.
  """

  name: str
  weights: tuple[str, ...]
  mechanism: str
  clip_norm: float
  share: Optional[float]
  noise_multiplier: Optional[float]
  options: dict[str, int]


def parse(texts: Sequence[str]) -> list[Part]:
  """What the flags say, each by itself.

  Example:
    >>> parse(['head: weights=2 3, clip_norm=0.3, num_bands=4'])
    [Part(name='head', weights=('2', '3'), mechanism='banded', clip_norm=0.3,
      share=None, noise_multiplier=None, options={'num_bands': 4})]
  """
  return [_parse(text) for text in texts]


def _parse(text: str) -> Part:
  name, colon, rest = text.partition(':')
  given: dict[str, str] = {}
  for setting in rest.split(','):
    key, equals, value = (each.strip() for each in setting.partition('='))
    if not (colon and equals and key and value):
      raise ValueError(
        f'--part={text!r} is not a name, a colon, and settings with commas between '
        f'them, as in {_EXAMPLE}.'
      )
    if key in given:
      raise ValueError(f'--part={text!r} has {key} twice.')
    given[key] = value
  numbers = (_CLIP_NORM, _SHARE, _NOISE)
  known = (_WEIGHTS, _MECHANISM, *numbers, *registry.options())
  for key in given:
    if key not in known:
      raise ValueError(
        f'--part={text!r} has {key}, which parts do not; known: {", ".join(known)}.'
      )
  for key in (_WEIGHTS, _CLIP_NORM):
    if key not in given:
      raise ValueError(f'--part={text!r} has no {key}, as in {_EXAMPLE}.')
  for pattern in given[_WEIGHTS].split():
    if '=' in pattern:
      raise ValueError(
        f'--part={text!r}: {pattern} stands among the patterns of {_WEIGHTS}, where '
        'names have no equals sign; put a comma before it.'
      )
  found = {
    key: _number(text, key, given[key], float) for key in numbers if key in given
  }
  return Part(
    name.strip(),
    tuple(given[_WEIGHTS].split()),
    given.get(_MECHANISM, table.DEFAULT_OF_PARTS),
    found[_CLIP_NORM],
    found.get(_SHARE),
    found.get(_NOISE),
    {
      key: _number(text, key, given[key], int)
      for key in registry.options()
      if key in given
    },
  )


def _number(text: str, key: str, value: str, kind: Any) -> Any:
  try:
    number = kind(value)
  except ValueError as e:
    words = 'whole number' if kind is int else 'number'
    raise ValueError(f'--part={text!r}: {key}={value} is no {words}.') from e
  if not math.isfinite(number):
    raise ValueError(f'--part={text!r}: {key} must be finite; got {value}.')
  return number


def check_others(values: flags.FlagValues, names: Iterable[str]) -> None:
  """Refuses flags of one mechanism for all weights."""
  in_a_part = (_MECHANISM, _NOISE, _CLIP_NORM, *registry.options())
  for name in names:
    if name in GO_WITH or not values[name].present:
      continue
    where = f', where it stands as {name}=...' if name in in_a_part else ''
    reason = _REASONS.get(name, 'it is of one mechanism for all weights')
    raise ValueError(
      f'--{name} does not go with --part{where}: {reason}. Leave one of them out.'
    )


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
  """The joint mechanism of parts, with their noise or the least for a target.

  Args:
    parts: As the flags say.
    schema: Who takes part when.
    target: Privacy target; `None` if each part has its noise.
    accountant: By whose epsilon noise is found; `None` for the tightest.
    adjacency: Which data sets are neighbours; `None` for that of the schema.

  Raises:
    ValueError: If parts contradict each other, a number is out of range, or there is no
      analysis of such parts together.
  """
  if len(parts) < 2:
    raise ValueError(
      f'--part is given once, for {parts[0].name}, and parts are two or more. Give '
      'one for the other weights as well, or instead of it --mechanism and '
      f'--{_CLIP_NORM} for all of them.'
    )
  _check_noise(parts, target)
  if sampling.is_sampled(schema):
    raise ValueError(
      '--part does not go with --sampling: all parts of a client are in the same '
      'sample, for which their guarantees do not compose. Leave --sampling out, or '
      'give one --mechanism for all weights.'
    )
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
  having = [part.name for part in parts if part.share is not None]
  if having and len(having) < len(parts):
    raise ValueError(
      f'--part: {_SHARE} is given for {", ".join(having)} alone; give one for each '
      'part, or for none.'
    )
  shares = {part.name: part.share for part in parts if part.share is not None}
  return joint_mechanism.JointMechanism.for_target(
    made,
    target.epsilon,
    target.delta,
    shares=shares or None,
    accountant=accountant,
  )


def _check_noise(parts: Sequence[Part], target: Optional[mechanism_lib.Target]) -> None:
  """Refuses integers, noise beside a target, and parts without either."""
  for part in parts:
    if noises.of_mechanism(part.mechanism).is_integer:
      raise ValueError(
        f'--part: {part.name} has {part.mechanism} noise, whose grid and modulus are '
        'those of one sum of all weights. Give noise of real numbers, or one '
        '--mechanism for all weights.'
      )
  if target is not None:
    return
  for part in parts:
    if part.share is not None:
      raise ValueError(
        f'--part: {_SHARE} of {part.name} divides a target, and none is to be kept. '
        f'Give --target_epsilon, and no part a {_NOISE}; or each part its {_NOISE} '
        f'and none a {_SHARE}.'
      )
    if part.noise_multiplier is None:
      raise ValueError(
        f'--part: {part.name} has no {_NOISE}. Give one to each part, or '
        '--target_epsilon and one to none.'
      )
