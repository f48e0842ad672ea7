"""How the programs of this package start and end.

Exit codes: 0 fine, 1 a check failed, 2 wrong usage, also for flags that absl refuses.
"""

import sys
from typing import Callable

import dp_accounting
from absl import app
from absl import flags

from tff_dp_aggregators.strategies.numerics import series_optimization

CHECK_FAILED = 1
WRONG_USAGE = 2
# What a program says in a line, without where it happened.
_REFUSALS = (
  ValueError,
  OSError,
  OverflowError,
  MemoryError,
  dp_accounting.UnsupportedEventError,
  series_optimization.ConvergenceError,
)


class CheckFailed(ValueError):
  """What was asked for was computed, and is not so."""


def run(main: Callable[[list[str]], int]) -> None:
  """Parses the flags, runs `main` and ends the process with its exit code.

  Args:
    main: Gets the arguments that are not flags. A `CheckFailed` of it ends the process
      with 1, other errors of values and files with 2, each with a line that says why.
  """
  app.run(lambda argv: _guarded(main, argv), flags_parser=_parse)


def refuse_arguments(argv: list[str]) -> None:
  """Raises ValueError if there are arguments that are not flags."""
  if len(argv) > 1:
    raise ValueError(f'unexpected arguments {argv[1:]}; all are flags.')


def _guarded(main: Callable[[list[str]], int], argv: list[str]) -> int:
  try:
    return main(argv)
  except CheckFailed as e:
    print(f'error: {e}', file=sys.stderr)
    return CHECK_FAILED
  except _REFUSALS as e:
    print(f'error: {e or type(e).__name__}', file=sys.stderr)
    return WRONG_USAGE


def _parse(argv: list[str]) -> list[str]:
  try:
    return flags.FLAGS(argv)
  except flags.Error as e:
    print(f'error: {e}; --help lists all flags.', file=sys.stderr)
    sys.exit(WRONG_USAGE)
  except SystemExit:  # Of --help, for which absl's code is 1.
    sys.exit(0)
