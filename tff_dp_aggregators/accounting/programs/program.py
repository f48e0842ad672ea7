"""What a program is: its flags, what it does with their values, and how it ends.

A program makes its own flag values each time it is executed and touches none of absl's
global ones, so that it can be executed any number of times in one process.

A command line says a flag once; a second value would silently take the place of the
first. A flag file (`--flagfile`) stands for the flags that are in it, in its place:
what the command line says after it counts instead. Flags of the type `MANY` collect
values.

Exit codes: 0 fine, 1 a check failed, 2 wrong usage, also for flags that absl refuses.
"""

import dataclasses
import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional, Union

import dp_accounting
from absl import flags

from tff_dp_aggregators.base import messages
from tff_dp_aggregators.base import version
from tff_dp_aggregators.strategies.numerics import series_optimization

CHECK_FAILED = 1
WRONG_USAGE = 2
# Where flags of all programs say that they are defined.
_EVERY_PROGRAM = 'every program'
# So many flags `--help` shows all of.
_FEW = 24
# Flags that had another name, by that; who gives it is told.
RENAMED = {
  'population': 'num_clients',
  'cohort': 'clients_per_round',
  'sampled_separation': 'min_separation',
  'free_probability': 'sampling_probability',
}

# Types of flags besides Python's: whole or not; texts between commas; repeated texts.
NUMBER, LIST, MANY = 'number', 'list', 'many'


@dataclasses.dataclass(frozen=True)
class Flag:
  """A row of the table of flags.

  Attributes:
    name: The name without dashes; the argument of Python functions has the same.
    type: `int`, `float`, `bool`, `str`, `NUMBER`, `LIST`, `MANY`, or all values that
      there are.
    help: What `--help` says.
    unset: What stands for the flag where it is left out, in words.
    default: The value where it is left out.
    at_least: Bound of an `int`.
    is_basic: Whether `--help` shows it, as `--helpfull` shows all.
  """

  name: str
  type: Union[type, str, Sequence[str]]
  help: str
  unset: str = ''
  default: Any = None
  at_least: Optional[int] = None
  is_basic: bool = False

  def define(self, values: flags.FlagValues) -> None:
    """Defines the flag."""
    text = f'{self.help} Default: {self.unset}.' if self.unset else self.help
    given = (self.name, self.default, text)
    if isinstance(self.type, (list, tuple)):
      flags.DEFINE_enum(self.name, self.default, self.type, text, values)
    elif self.type is int:
      bound = {} if self.at_least is None else {'lower_bound': self.at_least}
      flags.DEFINE_integer(*given, flag_values=values, **bound)
    elif self.type == NUMBER:
      flags.DEFINE(_NumberParser(), *given, values, flags.ArgumentSerializer())
    else:
      _DEFINERS[self.type](*given, flag_values=values)


_DEFINERS: dict[Any, Callable[..., Any]] = {
  float: flags.DEFINE_float,
  bool: flags.DEFINE_bool,
  str: flags.DEFINE_string,
  LIST: flags.DEFINE_list,
  MANY: flags.DEFINE_multi_string,
}


class _NumberParser(flags.FloatParser):
  """Reads a whole number as an `int`."""

  def convert(self, argument: Any) -> Any:
    number = super().convert(argument)
    return int(number) if number.is_integer() else number


# Flags under a heading: the heading and the rows.
Group = tuple[str, Sequence[Flag]]


def define(values: flags.FlagValues, groups: Iterable[Group]) -> None:
  """Defines all flags of groups."""
  for _, rows in groups:
    for row in rows:
      row.define(values)


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
# What Python and absl say of a value, and how it is said to people.
_IN_WORDS = (
  (re.compile(r'invalid literal for int\(\) with base 10: (.*)'), r'\1 is no integer'),
  (re.compile(r'could not convert string to float: (.*)'), r'\1 is no number'),
)


@dataclasses.dataclass(frozen=True)
class Program:
  """A program of the command line.

  Attributes:
    name: What the program is called where it is installed.
    description: What `--help` says above the flags; the program's docstring.
    groups: Gives the program's flags, under the headings that `--help` has.
    main: Does what the values say, and returns the exit code.
    refusals: Errors that a line says all about. A `CheckFailed` always is one, and
      makes the exit code 1; so is a `WrongUsage`, and like the others makes it 2.
    positional: A flag that collects values, also those that are given without a flag;
      `None` if everything is to have one.
  """

  name: str
  description: str
  groups: Callable[[], Sequence[Group]]
  main: Callable[[flags.FlagValues], int]
  refusals: tuple[type[Exception], ...] = _REFUSALS
  positional: Optional[str] = None

  def execute(self, arguments: Sequence[str]) -> int:
    """Parses flags and does what they say."""
    values = flags.FlagValues()
    define(values, self.groups())
    self._define_of_every_program(values)
    if self.positional is not None:
      values.set_gnu_getopt(True)  # Flags may follow what has none.
    try:
      _check_once(arguments, values)
      rest = values([self.name, *arguments])[1:]
    except _Shown:
      return 0
    except flags.UnrecognizedFlagError as e:
      new = RENAMED.get(e.flagname, '')
      said_so = f'--{e.flagname} is called --{new}' if new in values else str(e)
      return _refuse(f'{_in_words(said_so)}; --helpfull lists all flags.')
    except flags.Error as e:
      return _refuse(f'{_in_words(str(e))}; --helpfull lists all flags.')
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
    text = 'Take flags from this file, one a line; those that follow it count more.'
    flags.DEFINE_string('flagfile', None, text, **of_every)
    shows: tuple[tuple[str, str, Callable[[], str]], ...] = (
      ('help', 'Show the flags that most need.', lambda: self._help(values)),
      ('helpfull', 'Show all flags.', lambda: self._help(values, is_full=True)),
      (
        'version',
        'Show the version, and its commit where it is known.',
        lambda: str(version.current()),
      ),
    )
    for name, text, show in shows:
      flags.DEFINE_flag(_Shows(name, text, show), **of_every)

  def _help(self, values: flags.FlagValues, is_full: bool = False) -> str:
    groups = self.groups()
    number = sum(len(rows) for _, rows in groups)
    is_full = is_full or number <= _FEW
    of_every = [flag.name for flag in values.get_flags_for_module(_EVERY_PROGRAM)]
    shown = [
      (heading, [row.name for row in rows if is_full or row.is_basic])
      for heading, rows in groups
    ]
    parts = [self.description.strip()]
    for heading, names in (*shown, ('Of every program', of_every)):
      if names:
        parts.append('\n'.join((f'{heading}:', *(_entry(values[n]) for n in names))))
    if not is_full:
      parts.append(f'--helpfull shows all {number} flags.')
    return '\n\n'.join(parts)


def said(error: BaseException, values: flags.FlagValues) -> str:
  """What a program says of an error: of files and accountants with their flags."""
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
  return message or type(error).__name__


def names_of(values: flags.FlagValues) -> list[str]:
  """Names of the flags that a program defines itself, in the order in which it does."""
  of_every = {flag.name for flag in values.get_flags_for_module(_EVERY_PROGRAM)}
  return [name for name in values if name not in of_every]


def _check_once(arguments: Sequence[str], values: flags.FlagValues) -> None:
  """Refuses a flag that the command line has twice, unless it collects values."""
  seen = set()
  for argument in itertools.takewhile(lambda each: each != '--', arguments):
    name = argument.lstrip('-').split('=', 1)[0] if argument.startswith('-') else ''
    if name not in values and name.startswith('no'):
      name = name[2:]  # As in --noshown.
    if name not in values or isinstance(values[name], flags.MultiFlag):
      continue
    if name in seen and name != 'flagfile':
      raise flags.Error(f'--{name} is given twice; give it once')
    seen.add(name)


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


def _in_words(message: str) -> str:
  """What absl says of a flag, on one line."""
  message = ' '.join(message.split())
  for pattern, words in _IN_WORDS:
    message = pattern.sub(words, message)
  return message.rstrip('.')


def _refuse(message: str) -> int:
  print(f'error: {message}', file=sys.stderr)
  return WRONG_USAGE
