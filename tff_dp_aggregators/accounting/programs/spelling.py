"""What is refused, said of flags: arguments by the names that programs have for them.

Schemas and mechanisms name their arguments where they refuse one. Who gave flags knows
those: `spelled` puts them in, by what each kind of schema says of its own
(`of_schema`), and `as_flags` does so for all that is refused inside of it.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Optional

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import sites
from tff_dp_aggregators.accounting.programs import scheme_flags
from tff_dp_aggregators.strategies import registry

# Arguments that mechanisms name where they refuse one, and never mean otherwise.
_OF_NOISE = ('noise_multiplier', 'target_epsilon', 'target_delta')


def of_schema(
  kind: type[sampling.Scheme], called: Optional[Mapping[str, str]] = None
) -> dict[str, str]:
  """How a program spells the arguments of a kind of schema.

  Args:
    kind: The scheme.
    called: Flags that have another name in this program, with that.

  Returns:
    What stands for an argument, or for the name of the class, by name.

  Example:
    >>> of_schema(sampling.for_flag('b_min_sep'))['min_separation']
    '--sampled_separation'
  """
  flags = of_flags(('num_rounds', 'adjacency'))
  for argument, name in scheme_flags.spellings(kind).items():
    flags[argument] = f'--{(called or {}).get(name, name)}'
  flags.update((f'--{name}', f'--{other}') for name, other in (called or {}).items())
  flags[kind.data.__name__] = f'--sampling={kind.flag}'
  return flags


def of_sites() -> dict[str, str]:
  """How arguments are spelled that say who makes the noise, or what of it is left."""
  return of_flags(
    ('noise_site', *sites.options(), sites.SERVER_NOISE, 'clipped_count_stddev')
  )


def of_mechanism(schema: sampling.Schema) -> dict[str, str]:
  """How the arguments of a mechanism under a schema are spelled.

  Args:
    schema: Who takes part when. Its population and cohort are no arguments here, but
      words.
  """
  cohorts = (scheme_flags.POPULATION.name, scheme_flags.COHORT.name)
  of_its_schema = of_schema(type(sampling.of(schema)))
  return {
    **of_flags((*registry.options(), *_OF_NOISE)),
    **of_sites(),
    **{name: flag for name, flag in of_its_schema.items() if name not in cohorts},
  }


def of_flags(names: Iterable[str]) -> dict[str, str]:
  """What stands for arguments that are called like their flags."""
  return {name: f'--{name}' for name in names}


def spelled(message: str, flags: Mapping[str, str]) -> str:
  """A message with flags in the places of arguments.

  Args:
    message: What was refused.
    flags: What stands for an argument, by its name.

  Example:
    >>> spelled('min_separation must be at least 1', {'min_separation': '--apart'})
    '--apart must be at least 1'
    >>> spelled("calibration='exact' has it.", of_flags(['calibration']))
    '--calibration=exact has it.'
  """
  if not flags:
    return message
  longest_first = sorted(flags, key=len, reverse=True)
  names = '|'.join(map(re.escape, longest_first))
  flagged = re.sub(
    rf'(?<![-.\w])({names})(?![-\w])', lambda found: flags[found[1]], message
  )
  put = '|'.join(re.escape(flag) for flag in set(flags.values()))
  return re.sub(rf"(?<![-\w])((?:{put})=)'(\w+)'", r'\1\2', flagged)


@contextlib.contextmanager
def as_flags(flags: Mapping[str, str]) -> Iterator[None]:
  """What is refused inside of it, as `spelled`.

  Args:
    flags: What stands for an argument, by its name.
  """
  try:
    yield
  except ValueError as e:
    said = spelled(str(e), flags)
    if said == str(e):
      raise
    raise ValueError(said) from e
