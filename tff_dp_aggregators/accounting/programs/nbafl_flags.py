"""Flags of NbAFL: a plan by its formulas, for a report of what they claim and give."""

import re
from collections.abc import Collection, Mapping
from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting.programs import flags as flags_lib

# What is taken of the flags that every mechanism has, and what it is of a plan.
_SHARED = {
  'target_epsilon': 'epsilon',
  'target_delta': 'delta',
  'num_rounds': 'num_rounds',
  'clip_norm': 'clip_norm',
}
_OWN = {
  'num_exposures': "How often a client's uploads are seen; L.",
  'num_clients': 'How many clients there are; N.',
  'min_examples': 'How many examples every client has at least; m.',
  'clients_per_round': 'How many clients take part in a round, drawn at random; K. '
  'Default: all.',
}
# All of its own; the first asks for such a report.
NAMES = ('nbafl', *_OWN, 'calibration')
# All that decide on the numbers of one.
DECIDING = (*NAMES, *_SHARED)


_REPORT = (
  'Report a plan of NbAFL (arXiv:1911.00222): what its formulas claim beside what '
  'the accountants say of the same noise. It takes --target_epsilon, --target_delta, '
  '--num_rounds, --clip_norm and the flags below.'
)


def define(
  values: flags.FlagValues,
  text: str = _REPORT,
  known: Collection[str] = (),
  defaults: Optional[Mapping[str, str]] = None,
) -> None:
  """Defines the flags.

  Args:
    values: Where to define them; those of a target and of rounds are there.
    text: What --help says of --nbafl.
    known: Those that the program has already.
    defaults: What the program puts where one is left out, in words.
  """
  flags.DEFINE_bool('nbafl', False, text, flag_values=values)
  for name, what in _OWN.items():
    if name not in known:
      default = (defaults or {}).get(name)
      said = f'{what} Default: {default}.' if default else what
      flags.DEFINE_integer(name, None, f'With --nbafl: {said}', flag_values=values)
  flags.DEFINE_enum(
    'calibration',
    'published',
    nbafl.CALIBRATIONS,
    'With --nbafl: noise by the published formulas, or the least that keeps what they '
    'promise.',
    flag_values=values,
  )


def check(values: flags.FlagValues, known: Collection[str] = ()) -> None:
  """Refuses flags of NbAFL without --nbafl.

  Args:
    values: Parsed flags.
    known: Those that the program has for something else as well.

  Raises:
    ValueError: If there are any.
  """
  for name in NAMES[1:]:
    if name not in known and values[name].present and not values.nbafl:
      raise ValueError(f'--{name} is for --nbafl.')


def plan(values: flags.FlagValues) -> nbafl.Nbafl:
  """The plan that the flags state.

  Raises:
    ValueError: If one is missing, or out of range.
  """
  numbers = {field: values[flag].value for flag, field in _SHARED.items()}
  numbers.update((name, values[name].value) for name in _OWN)
  optional = ('clients_per_round',)
  flag_of = {field: flag for flag, field in _SHARED.items()}
  missing = [
    f'--{flag_of.get(name, name)}'
    for name, value in numbers.items()
    if value is None and name not in optional
  ]
  if missing:
    raise ValueError(f'--nbafl needs {", ".join(missing)} as well.')
  try:
    return nbafl.Nbafl(calibration=values.calibration, **numbers)
  except ValueError as e:
    # An epsilon without a number is none that was given.
    said = re.sub(r'\b(epsilon|delta)(?==| must)', r'target_\1', str(e))
    raise ValueError(flags_lib.spelled(said, DECIDING)) from e
