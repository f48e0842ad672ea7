"""Parses the flags of the benchmarks before slow modules are imported."""

import argparse
from typing import Any


def parse(description: str, **flags: Any) -> argparse.Namespace:
  """Parses the command line; exits with 2 if it is wrong.

  Args:
    description: The program's docstring.
    **flags: The default of each flag, whose type is the flag's; False makes a switch.
  """
  parser = argparse.ArgumentParser(
    description=description,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  for name, default in flags.items():
    if default is False:
      parser.add_argument(f'--{name}', action='store_true')
    else:
      parser.add_argument(
        f'--{name}', type=type(default), default=default, help=f'default: {default!r}'
      )
  return parser.parse_args()
