"""What a program is: its flags, what it does with their values, and how it ends.

A program makes its own flag values each time it is executed and touches none of absl's
global ones, so that it can be executed any number of times in one process.

A flag can be given once; a second value would silently take the place of the first.
Flags that collect values (`DEFINE_multi_string`) can be given as often as wanted. Flag
files, and --no in front of a switch, count like the flags that they stand for.

Exit codes: 0 fine, 1 a check failed, 2 wrong usage, also for flags that absl refuses.
"""

import dataclasses
import functools
import re
import sys
from collections.abc import Sequence
from typing import Any, Callable, Optional

import dp_accounting
from absl import flags

from tff_dp_aggregators.base import messages
from tff_dp_aggregators.base import version
from tff_dp_aggregators.strategies.numerics import series_optimization

CHECK_FAILED = 1
WRONG_USAGE = 2
# Flags under a heading: the heading and the names.
Group = tuple[str, Sequence[str]]
# Where flags of all programs say that they are defined.
_EVERY_PROGRAM = 'every program'


class CheckFailed(ValueError):
  """What was asked for was computed, and is not so."""


class WrongUsage(ValueError):
  """What was asked for makes no sense, or cannot be done."""


# What a program says in a line, without where it happened.
_REFUSALS = (
  ValueError,
  OSError,
  OverflowError,
  MemoryError,
  dp_accounting.UnsupportedEventError,
  series_optimization.ConvergenceError,
)
# What checking of flags may raise, in programs that import no dp-accounting themselves.
BAD_INPUT = (ValueError, OSError, dp_accounting.UnsupportedEventError)
# The argument in refusals of accountants, which is the flag.
_ACCOUNTANT = re.compile(r'(?<![-.\w])accountant=')
# What Python and absl say of a value, and how it is said to people.
_IN_WORDS = (
  (re.compile(r'invalid literal for int\(\) with base 10: (.*)'), r'\1 is no integer'),
  (re.compile(r'could not convert string to float: (.*)'), r'\1 is no number'),
  (re.compile(r'flag --(\w+)=None: Flag --\1 must have .*'), r'--\1 is missing'),
)


@dataclasses.dataclass(frozen=True)
class Program:
  """A program of the command line.

  Attributes:
    name: What the program is called where it is installed.
    description: What `--help` says above the flags; the program's docstring.
    define: Defines the program's flags in the values that it gets.
    main: Does what the values say, and returns the exit code.
    groups: Gives the flags that `--help` shows under a heading of their own, below the
      others; those that the program does not have are passed over.
    refusals: Errors that a line says all about. A `CheckFailed` always is one, and
      makes the exit code 1; so is a `WrongUsage`, and like the others makes it 2.
    positional: A flag that collects values, also those that are given without a flag;
      `None` if everything is to have one.
  """

  name: str
  description: str
  define: Callable[[flags.FlagValues], None]
  main: Callable[[flags.FlagValues], int]
  groups: Callable[[], Sequence[Group]] = tuple
  refusals: tuple[type[Exception], ...] = _REFUSALS
  positional: Optional[str] = None

  def execute(self, arguments: Sequence[str]) -> int:
    """Parses flags and does what they say.

    Args:
      arguments: Flags as on the command line, without the name of the program.

    Returns:
      The exit code.
    """
    values = flags.FlagValues()
    self.define(values)
    self._define_of_every_program(values)
    for name in values:
      _only_once(values[name])
    if self.positional is not None:
      values.set_gnu_getopt(True)  # Flags may follow what has none.
    try:
      rest = values([self.name, *arguments])[1:]
    except _Shown:
      return 0
    except flags.Error as e:
      return _refuse(f'{_in_words(str(e))}; --help lists all flags.')
    if rest and self.positional is not None:
      values[self.positional].parse(rest)
    elif rest:
      return _refuse(f'unexpected arguments {rest}; all are flags.')
    refusals: tuple[type[Exception], ...] = (WrongUsage, *self.refusals)
    try:
      return self.main(values)
    except CheckFailed as e:
      _refuse(str(e))
      return CHECK_FAILED
    except refusals as e:
      return _refuse(said(e, values))

  def run(self) -> None:
    """Executes the command line and ends the process with the exit code."""
    sys.exit(self.execute(sys.argv[1:]))

  def _define_of_every_program(self, values: flags.FlagValues) -> None:
    of_every = {'flag_values': values, 'module_name': _EVERY_PROGRAM}
    flags.DEFINE_string(
      'flagfile', None, 'Take flags from this file as well, one a line.', **of_every
    )
    shows: tuple[tuple[str, str, Callable[[], str]], ...] = (
      ('help', 'Show this.', functools.partial(self._help, values)),
      ('version', 'Show the version, and its commit where it is known.', _version),
    )
    for name, text, show in shows:
      flags.DEFINE_flag(_Shows(name, text, show), **of_every)

  def _help(self, values: flags.FlagValues) -> str:
    of_every = [flag.name for flag in values.get_flags_for_module(_EVERY_PROGRAM)]
    groups = self.groups()
    grouped = {name for _, names in groups for name in names}
    others = [name for name in names_of(values) if name not in grouped]
    parts = [self.description.strip()]
    for heading, names in (
      ('Flags', others),
      *groups,
      ('Of every program', of_every),
    ):
      entries = [_entry(values[name]) for name in names if name in values]
      if entries:
        parts.append('\n'.join((f'{heading}:', *entries)))
    return '\n\n'.join(parts)


def said(error: BaseException, values: flags.FlagValues) -> str:
  """What a program says of an error: of files and accountants with their flags.

  Args:
    error: One that a line says all about.
    values: The program's flags.
  """
  if isinstance(error, OSError) and error.filename is not None:
    for name in names_of(values):
      given = values[name].value
      if error.filename in (given if isinstance(given, list) else [given]):
        more = ''
        if isinstance(error, FileNotFoundError):
          more = ' Give a path that exists.'
        return f'--{name}={error.filename}: {error.strerror}.{more}'
  message = str(error)
  if isinstance(error, dp_accounting.UnsupportedEventError):
    message = messages.without_cause(error)  # That has all numbers of the event.
  return _ACCOUNTANT.sub('--accountant=', message) or type(error).__name__


def names_of(values: flags.FlagValues) -> list[str]:
  """Names of the flags that a program defines itself, in the order in which it does."""
  of_every = {flag.name for flag in values.get_flags_for_module(_EVERY_PROGRAM)}
  return [name for name in values if name not in of_every]


def _only_once(flag: flags.Flag) -> None:
  """Makes the flag refuse a second value, unless it collects them."""
  if isinstance(flag, flags.MultiFlag):
    return
  parse = flag.parse

  def parse_once(argument: Any) -> None:
    if flag.present:
      raise flags.IllegalFlagValueError(
        f'--{flag.name} is given twice, as {_written(flag.value)} and as '
        f'{_written(argument)}; give it once'
      )
    parse(argument)

  flag.parse = parse_once


def _written(value: Any) -> str:
  """A value as it stands on the command line."""
  if isinstance(value, list):
    return ','.join(map(str, value))
  return str(value).lower() if isinstance(value, bool) else str(value)


def _entry(flag: flags.Flag) -> str:
  """What `--help` says about one flag."""
  is_switch = flag.boolean and not isinstance(flag, _Shows)
  text = f'--{"[no]" if is_switch else ""}{flag.name}: {flag.help}'
  if flag.default_as_str and not isinstance(flag, _Shows):
    text += f' (default: {flag.default_as_str})'
  return flags.text_wrap(text, indent='      ', firstline_indent='  ')


class _Shown(Exception):
  """A flag was given after whose effect the program ends."""


class _Shows(flags.BooleanFlag):
  """A flag that prints something and ends the program, whatever else is given."""

  def __init__(self, name: str, text: str, show: Callable[[], str]):
    super().__init__(name, False, text)
    self._show = show

  def parse(self, argument: Any) -> None:
    super().parse(argument)
    if self.value:
      sys.stdout.write(self._show() + '\n')
      raise _Shown


def _version() -> str:
  return str(version.current())


def _in_words(message: str) -> str:
  """What absl says of a flag, on one line."""
  message = ' '.join(message.split())
  for pattern, words in _IN_WORDS:
    message = pattern.sub(words, message)
  return message.rstrip('.')


def _refuse(message: str) -> int:
  print(f'error: {message}', file=sys.stderr)
  return WRONG_USAGE
