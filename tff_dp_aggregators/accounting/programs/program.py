"""Command line programs: definition and parsing of flags, help, errors, exit codes.

A program has its own flag values instead of absl's global ones, so that a process can
execute it any number of times. A command line has each flag at most once, as does a
flag file (`--flagfile`), except flags of type `MANY`. The command line overrides flag
files; `--noNAME` removes the value that a file has for `--NAME`.
"""

import dataclasses
import importlib
import itertools
import math
import os
import re
import sys
import textwrap
import typing
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Callable, Optional, Union

import dp_accounting
from absl import flags

from tff_dp_aggregators.base import messages
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import version
from tff_dp_aggregators.strategies.numerics import descent

CHECK_FAILED, WRONG_USAGE = 1, 2  # Exit codes; 0 is fine.
_COMMON = ('flagfile', 'help', 'helpfull', 'version')  # Flags of every program.
# Modules of programs, which import this one.
_PROGRAMS = ('report', 'plan', 'participation', 'vectors')
_MAX_SHOWN = 24  # The number of flags up to which `--help` shows all.
# What absl puts before the help of a flag with a list of possible values.
_ALTERNATIVES = re.compile('^<[^>]*>: ')

# What Python says of text that is no number.
_NO_INT = re.compile('invalid literal for int.*')
_NO_FLOAT = re.compile('could not convert string to float.*')

# Types of flags besides Python's: int or float, comma-separated texts, repeated texts.
NUMBER, LIST, MANY = 'number', 'list', 'many'


@dataclasses.dataclass(frozen=True)
class Flag:
  """A row of the table of flags."""

  name: str  # Without dashes; also the name of the argument of Python functions.
  # `int`, `float`, `bool`, `str`, `NUMBER`, `LIST`, `MANY`, or a list of all values.
  type: Union[type, str, Sequence[str]]
  help: str
  unset: str = ''  # In words, what is used if the flag is not given.
  default: Any = None
  at_least: Optional[float] = None
  above: Optional[float] = None
  below: Optional[float] = math.inf  # `None` also allows infinity.

  def define(self, values: flags.FlagValues) -> None:
    """Defines the flag."""
    text = f'{self.help} Default: {self.unset}.' if self.unset else self.help
    arguments = (self.name, self.default, text)
    if isinstance(self.type, (list, tuple)):
      flags.DEFINE_enum(self.name, self.default, self.type, text, values)
    elif self.type == NUMBER:
      flags.DEFINE(_NumberParser(), *arguments, values, flags.ArgumentSerializer())
    else:
      _DEFINERS[self.type](*arguments, flag_values=values)

  def check(self, value: Any) -> None:
    """Raises WrongUsage if a number is out of its bounds."""
    at_least, above = self.at_least, self.above
    if value is None or (at_least is None and above is None):
      return
    is_low = at_least is not None and not value >= at_least
    is_low |= above is not None and not value > above
    if is_low or (self.below is not None and value >= self.below):
      words = 'positive' if above == 0 else f'above {above}'
      if above is None:
        words = f'at least {at_least:g}'
      if self.below not in (None, math.inf):
        words += f' and below {self.below:g}'
      raise WrongUsage(f'--{self.name} must be {words}; got {value}.')


_DEFINERS: dict[Any, Callable[..., Any]] = {
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  bool: flags.DEFINE_bool,
  str: flags.DEFINE_string,
  LIST: flags.DEFINE_list,
  MANY: flags.DEFINE_multi_string,
}


class _NumberParser(flags.FloatParser):
  """Parses integral values as `int`."""

  def convert(self, argument: Any) -> Any:
    number = super().convert(argument)
    return int(number) if number.is_integer() else number


Group = tuple[str, Sequence[Flag]]  # A heading and the flags below it.


def define(values: flags.FlagValues, groups: Iterable[Group]) -> None:
  """Defines all flags of groups."""
  for _, rows in groups:
    for row in rows:
      row.define(values)


def parse(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
  """Parses a command line and returns the arguments that are not flags."""
  try:
    return _parse(values, arguments)
  except flags.Error as e:
    message = ' '.join(str(e).split())
    message = _NO_INT.sub('must be a whole number such as 1000', message)
    message = _NO_FLOAT.sub('must be a number such as 2.5 or 1e-6', message)
    if isinstance(e, flags.UnrecognizedFlagError):
      new = messages.RENAMED.get(e.flagname, '')
      similar = [f'--{each}' for each in messages.near(e.flagname, names_of(values))]
      programs = _programs_with(e.flagname)
      message = f"Unknown command line flag '{e.flagname}'"
      if new in values:
        message = f'--{e.flagname} is called --{new}'
      elif programs:
        message += f', which is one of {" and ".join(programs)}'
      elif similar:
        message += f'; there are {", ".join(similar)}'
    raise WrongUsage(f'{message.rstrip(".")}; --helpfull lists all flags.') from e


def _programs_with(name: str) -> list[str]:
  modules = (importlib.import_module(f'{__package__}.{each}') for each in _PROGRAMS)
  return [
    each.PROGRAM.name
    for each in modules
    if any(row.name == name for _, rows in each.PROGRAM.groups() for row in rows)
  ]


def _parse(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
  """Parses flag files, then takes out flags for --noNAME, then parses the rest."""
  others: list[str] = []
  not_flags: list[str] = []
  left_out: list[str] = []
  rest = iter(arguments)
  for argument in rest:
    name = argument.lstrip('-').split('=', 1)[0] if argument.startswith('-') else ''
    is_no = name[:2] == 'no' and name not in values and name[2:] in values
    if argument == '--':
      others += [argument, *rest]
    elif name == 'flagfile':
      named = [argument, *([] if '=' in argument else itertools.islice(rest, 1))]
      try:
        lines = values.read_flags_from_files(named)
      except UnicodeError as e:
        raise flags.Error(
          f'{" ".join(named)} is not text in UTF-8; save it in that encoding'
        ) from e
      not_flags += _parse_once(values, lines)
    elif is_no and not values[name[2:]].boolean:
      left_out.append(name[2:])
    else:
      others.append(argument)
  for name in left_out:
    values[name].unparse()
  return [*not_flags, *_parse_once(values, others, left_out)]


def _parse_once(
  values: flags.FlagValues, arguments: Sequence[str], left_out: Sequence[str] = ()
) -> list[str]:
  """Parses arguments that override earlier ones; refuses flags that are given twice."""
  if any(re.match('--?undefok(=|$)', argument) for argument in arguments):
    raise flags.Error(
      '--undefok would let flags that are not known do nothing in silence; leave it out'
    )
  earlier = {name: values[name].present for name in values}
  not_flags: list[str] = values(['program', *arguments])[1:]
  for name, before in earlier.items():
    times = values[name].present - before + left_out.count(name)
    if times > 1 and not isinstance(values[name], flags.MultiFlag):
      raise flags.Error(f'--{name} is given twice; give it once')
  return not_flags


def values_of(groups: Sequence[Group], arguments: Sequence[str]) -> flags.FlagValues:
  """Parses arguments that are all flags and returns the values."""
  values = flags.FlagValues()
  define(values, groups)
  parse(values, arguments)
  check_bounds(values, groups)
  return values


def check_bounds(values: flags.FlagValues, groups: Iterable[Group]) -> None:
  """Raises WrongUsage if a number is out of the bounds of its flag."""
  for _, rows in groups:
    for row in rows:
      row.check(values[row.name].value)


def refuse(
  values: flags.FlagValues, names: Iterable[str], why: str, but: Collection[str] = ()
) -> None:
  """Raises ValueError if a flag in `names` but not in `but` is given; says `why`."""
  for name in names:
    if name in values and values[name].present and name not in but:
      raise ValueError(f'--{name} {why}')


def given(values: flags.FlagValues, names: Iterable[str]) -> list[str]:
  """Returns the given flags in `names` as arguments of a command line."""
  arguments = []
  for name in names:
    if not values[name].present:
      continue
    if isinstance(values[name], flags.MultiFlag):
      arguments += [f'--{name}={value}' for value in values[name].value]
    else:
      arguments.append(values[name].serialize())
  return arguments


def check_new(values: flags.FlagValues, *names: str) -> None:
  """Raises ValueError if an output file exists or has no folder, before any work."""
  for name in names:
    path = values[name].value
    if path is None:
      continue
    folder = os.path.dirname(path) or '.'
    if not path or not os.path.isdir(folder):
      wrong = f'there is no folder {folder}' if path else 'the name is empty'
      raise ValueError(f'--{name}={path}: {wrong}. Give a file in an existing folder.')
    if os.path.lexists(path):
      raise ValueError(
        f'--{name}={path} exists and is not overwritten; choose another name.'
      )


def print_or_write(text: str, output: Optional[str]) -> None:
  """Prints a text, or writes it to the new file `output`."""
  if output is None:
    sys.stdout.write(text)
  else:
    new_files.write_new(output, text)


# Dataclasses as tables of flags: each field that `flag` makes is a flag.


def flag(text: str, type: Any = None, empty: Any = None, **more: Any) -> Any:
  """Returns a dataclass field that is a flag, with the attributes of `Flag`.

  `type`: If the annotation does not give it. `empty`: Default value of the field.
  """
  metadata = {'flag': {'help': text, **more}, 'type': type}
  return dataclasses.field(default=more.get('default', empty), metadata=metadata)


def rows_of(record: type) -> tuple[Flag, ...]:
  """Returns the flags of a dataclass."""
  return tuple(
    Flag(
      each.name,
      each.metadata['type'] or _type_of(each.type),
      **each.metadata['flag'],
    )
    for each in dataclasses.fields(record)
    if each.metadata
  )


def read(record: type, values: flags.FlagValues) -> dict[str, Any]:
  """Returns the values of the flags of a dataclass, by name."""
  return {row.name: values[row.name].value for row in rows_of(record)}


def _type_of(annotation: Any) -> Any:
  types = [annotation, *typing.get_args(annotation)]  # Such as of Optional[float].
  flag_types = [{tuple: LIST, list: MANY}.get(typing.get_origin(k), k) for k in types]
  return next(each for each in flag_types if each in _DEFINERS)


class CheckFailed(ValueError):
  """A check that was asked for was computed and failed; exit code 1."""


class WrongUsage(ValueError):
  """Arguments that make no sense or cannot be processed; exit code 2."""


# Errors that a program prints in one line, without a traceback.
_REFUSALS = (
  ValueError,
  OSError,
  OverflowError,
  MemoryError,
  dp_accounting.UnsupportedEventError,
  descent.ConvergenceError,
)
# Errors of checking flags, for programs that do not import dp-accounting themselves.
BAD_INPUT = (ValueError, OSError, dp_accounting.UnsupportedEventError)


@dataclasses.dataclass(frozen=True)
class Program:
  """A program of the command line."""

  name: str  # The name of the installed command.
  description: str  # The text of `--help` above the flags.
  groups: Callable[[], Sequence[Group]]
  main: Callable[[flags.FlagValues], int]  # Returns the exit code.
  # Errors, besides `WrongUsage`, that are printed in one line with exit code 2.
  refusals: tuple[type[Exception], ...] = _REFUSALS
  basic: Collection[str] = ()  # Flags that `--help` shows; all if there are few.
  # A flag of type `MANY` that also gets the arguments that are not flags.
  positional: Optional[str] = None

  def execute(self, arguments: Sequence[str]) -> int:
    """Parses flags, runs `main` and returns the exit code."""
    values, groups = flags.FlagValues(), self.groups()
    define(values, groups)
    self._define_common_flags(values)
    if self.positional is not None:
      values.set_gnu_getopt(True)  # Flags may follow positional arguments.
    refusals: tuple[type[Exception], ...] = (WrongUsage, *self.refusals)
    try:
      rest = parse(values, arguments)
      if rest and self.positional is not None:
        values[self.positional].parse(rest)
      elif rest:
        raise WrongUsage(f'unexpected arguments {rest}; all are flags.')
      check_bounds(values, groups)
      return self.main(values)
    except _Printed:
      return 0
    except CheckFailed as e:
      print(f'error: {e}', file=sys.stderr)
      return CHECK_FAILED
    except refusals as e:
      print(f'error: {error_message(e, values)}', file=sys.stderr)
      return WRONG_USAGE

  def run(self) -> None:
    """Executes the command line and ends the process with the exit code."""
    sys.exit(self.execute(sys.argv[1:]))

  def _define_common_flags(self, values: flags.FlagValues) -> None:
    text = (
      'Read flags from this file, one per line. The command line overrides them, and '
      '--noNAME leaves out --NAME of the file.'
    )
    flags.DEFINE_string('flagfile', None, text, values)
    for flag in (
      _Info('help', 'Show the most important flags.', lambda: self._help(values)),
      _Info('helpfull', 'Show all flags.', lambda: self._help(values, is_full=True)),
      _Info('version', 'Show version and commit.', lambda: str(version.current())),
    ):
      flags.DEFINE_flag(flag, values)

  def _help(self, values: flags.FlagValues, is_full: bool = False) -> str:
    groups = self.groups()
    num_flags = sum(len(rows) for _, rows in groups)
    is_full = is_full or num_flags <= _MAX_SHOWN
    shown = [
      (heading, [row.name for row in rows if is_full or row.name in self.basic])
      for heading, rows in groups
    ]
    parts = [self.description.strip()]
    for heading, names in (*shown, ('Of every program', _COMMON)):
      if names:
        parts.append('\n'.join((f'{heading}:', *(_entry(values[n]) for n in names))))
    if not is_full:
      parts.append(f'--helpfull shows all {num_flags} flags.')
    return '\n\n'.join(parts)


def error_message(error: BaseException, values: flags.FlagValues) -> str:
  """Returns the message for an error; errors of files name the flag."""
  if isinstance(error, OSError) and error.filename is not None:
    for name in names_of(values):
      value = values[name].value
      if error.filename in (value if isinstance(value, list) else [value]):
        return f'--{name}={error.filename}: {error.strerror}.'
  message = str(error)
  if isinstance(error, dp_accounting.UnsupportedEventError):
    message = messages.without_cause(error)  # The cause has all numbers of the event.
  return message or type(error).__name__


def names_of(values: flags.FlagValues) -> list[str]:
  """Returns the names of a program's own flags, in the order of definition."""
  return [name for name in values if name not in _COMMON]


def _entry(flag: flags.Flag) -> str:
  """The entry of a flag in `--help`."""
  is_switch = flag.boolean and not isinstance(flag, _Info)
  help_text = _ALTERNATIVES.sub(lambda each: each[0].replace('|', ', '), flag.help)
  text = f'--{"[no]" if is_switch else ""}{flag.name}: {help_text}'
  if flag.default_as_str and not isinstance(flag, _Info):
    text += f' (default: {flag.default_as_str})'
  return textwrap.fill(
    ' '.join(text.split()),
    flags.get_help_width(),
    initial_indent='  ',
    subsequent_indent='      ',
    break_long_words=False,
    break_on_hyphens=False,
  )


class _Printed(Exception):
  """Raised after `--help` and the like, to end the program."""


class _Info(flags.BooleanFlag):
  """A flag that prints something and ends the program, whatever else is given."""

  def __init__(self, name: str, text: str, show: Callable[[], str]):
    super().__init__(name, False, text)
    self._show = show

  def parse(self, argument: Any) -> None:
    super().parse(argument)
    if self.value:
      sys.stdout.write(self._show() + '\n')
      raise _Printed
