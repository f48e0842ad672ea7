"""What a program is: its flags, what it does with their values, and how it ends.

A program has its own flag values, none of absl's global ones, and so can be executed
any number of times in a process. A command line says a flag once, and so does a flag
file (`--flagfile`), but for flags of the type `MANY`. The command line counts instead
of a file; `--noNAME` leaves out what a file has for `--NAME`.
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
_EVERY_PROGRAM = 'every program'  # Where flags of all say that they are defined.
# Modules of programs, which import this one.
_PROGRAMS = ('report', 'plan', 'participation', 'vectors')
_FEW = 24  # So many flags `--help` shows all of.
# What absl puts before the help of a flag that has one of several values.
_ALTERNATIVES = re.compile('^<[^>]*>: ')

# Types of flags besides Python's: whole or not; texts between commas; repeated texts.
NUMBER, LIST, MANY = 'number', 'list', 'many'


@dataclasses.dataclass(frozen=True)
class Flag:
  """A row of the table of flags."""

  name: str  # Without dashes; the argument of Python functions has the same.
  # `int`, `float`, `bool`, `str`, `NUMBER`, `LIST`, `MANY`, or all values there are.
  type: Union[type, str, Sequence[str]]
  help: str
  unset: str = ''  # What stands for the flag where it is left out, in words.
  default: Any = None
  at_least: Optional[float] = None
  above: Optional[float] = None
  below: Optional[float] = math.inf  # `None`: a number with a bound may be infinite.

  def define(self, values: flags.FlagValues) -> None:
    """Defines the flag."""
    text = f'{self.help} Default: {self.unset}.' if self.unset else self.help
    given = (self.name, self.default, text)
    if isinstance(self.type, (list, tuple)):
      flags.DEFINE_enum(self.name, self.default, self.type, text, values)
    elif self.type == NUMBER:
      flags.DEFINE(_NumberParser(), *given, values, flags.ArgumentSerializer())
    else:
      _DEFINERS[self.type](*given, flag_values=values)

  def check(self, value: Any) -> None:
    """Refuses a number out of its bounds."""
    least, above = self.at_least, self.above
    if value is None or (least is None and above is None):
      return
    is_low = least is not None and not value >= least
    is_low |= above is not None and not value > above
    if is_low or (self.below is not None and value >= self.below):
      words = 'positive' if above == 0 else f'above {above}'
      if above is None:
        words = f'at least {least:g}'
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


def parse(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
  """Reads a command line, and returns what of it is no flag."""
  try:
    of_files, others, left_out = _split(arguments, values)
    rest = values(['program', *of_files])[1:]
    for name in left_out:
      values[name].unparse()
    return [*rest, *values(['program', *others])[1:]]
  except flags.Error as e:
    message = ' '.join(str(e).split())
    if isinstance(e, flags.UnrecognizedFlagError):
      new = messages.RENAMED.get(e.flagname, '')
      near = [f'--{each}' for each in messages.near(e.flagname, names_of(values))]
      knowing = _programs_with(e.flagname)
      message = f"Unknown command line flag '{e.flagname}'"
      if new in values:
        message = f'--{e.flagname} is called --{new}'
      elif knowing:
        message += f', which is one of {" and ".join(knowing)}'
      elif near:
        message += f'; there are {", ".join(near)}'
    raise WrongUsage(f'{message.rstrip(".")}; --helpfull lists all flags.') from e


def _programs_with(name: str) -> list[str]:
  """Programs of this package that know a flag."""
  modules = (importlib.import_module(f'{__package__}.{each}') for each in _PROGRAMS)
  return [
    each.PROGRAM.name
    for each in modules
    if any(row.name == name for _, rows in each.PROGRAM.groups() for row in rows)
  ]


def _split(
  arguments: Sequence[str], values: flags.FlagValues
) -> tuple[list[str], list[str], list[str]]:
  """Arguments in flag files, others, and names of flags that these leave out."""
  _check_once(arguments, values)
  of_files: list[str] = []
  others: list[str] = []
  left_out, rest = [], iter(arguments)
  for argument in rest:
    name, is_no = _flag_of(argument, values)
    if argument == '--':
      others += [argument, *rest]
    elif name == 'flagfile' and not is_no:
      named = [argument, *([] if '=' in argument else itertools.islice(rest, 1))]
      try:
        lines = values.read_flags_from_files(named)
      except UnicodeError as e:
        raise flags.Error(
          f'{" ".join(named)} is not text in UTF-8; save it in that encoding'
        ) from e
      _check_once(lines, values)
      of_files += lines
    elif is_no and not values[name].boolean:
      left_out.append(name)
    else:
      others.append(argument)
  return of_files, others, left_out


def _check_once(arguments: Sequence[str], values: flags.FlagValues) -> None:
  """Refuses a flag that is there twice, unless it collects values."""
  seen = set()
  for argument in itertools.takewhile(lambda each: each != '--', arguments):
    name, _ = _flag_of(argument, values)
    if name == 'undefok':
      raise flags.Error(
        '--undefok would let flags that are not known do nothing in silence; leave it '
        'out'
      )
    if name not in values or isinstance(values[name], flags.MultiFlag):
      continue
    if name in seen and name != 'flagfile':
      raise flags.Error(f'--{name} is given twice; give it once')
    seen.add(name)


def _flag_of(argument: str, values: flags.FlagValues) -> tuple[str, bool]:
  """Name of the flag that an argument gives, or ''; and whether as --noNAME."""
  if not argument.startswith('-'):
    return '', False
  name = argument.lstrip('-').split('=', 1)[0]
  is_no = name not in values and name[:2] == 'no' and name[2:] in values
  return name[2:] if is_no else name, is_no


def values_of(groups: Sequence[Group], arguments: Sequence[str]) -> flags.FlagValues:
  """Values of flags, of which arguments are all."""
  values = flags.FlagValues()
  define(values, groups)
  parse(values, arguments)
  check_bounds(values, groups)
  return values


def check_bounds(values: flags.FlagValues, groups: Iterable[Group]) -> None:
  """Refuses numbers out of the bounds of their flags."""
  for _, rows in groups:
    for row in rows:
      row.check(values[row.name].value)


def refuse(
  values: flags.FlagValues, names: Iterable[str], why: str, but: Collection[str] = ()
) -> None:
  """Refuses flags that are given; the reason follows the name of one that is."""
  for name in names:
    if name in values and values[name].present and name not in but:
      raise ValueError(f'--{name} {why}')


def check_new(values: flags.FlagValues, *names: str) -> None:
  """Refuses files to write that are there or have no folder, before any work."""
  for name in names:
    path = values[name].value
    if path is None:
      continue
    folder = os.path.dirname(path) or '.'
    if not path or not os.path.isdir(folder):
      wrong = f'there is no folder {folder}' if path else 'a file has a name'
      raise ValueError(f'--{name}={path}: {wrong}. Give a file in one that exists.')
    if os.path.lexists(path):
      raise ValueError(
        f'--{name}={path} exists and is not overwritten; choose another name.'
      )


def print_or_write(text: str, output: Optional[str]) -> None:
  """Prints a text, or writes it to a new file."""
  if output is None:
    sys.stdout.write(text)
  else:
    new_files.write_new(output, text)


# A dataclass may be a table of flags: a field of `flag` is one of its name and type.


def flag(text: str, type: Any = None, empty: Any = None, **more: Any) -> Any:
  """A field that is a flag, with the attributes of `Flag`.

  `type`: Where the annotation does not say it. `empty`: The field's value without flag.
  """
  metadata = {'flag': {'help': text, **more}, 'type': type}
  return dataclasses.field(default=more.get('default', empty), metadata=metadata)


def rows_of(record: type) -> tuple[Flag, ...]:
  """The flags that are fields of a dataclass."""
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
  """The values of the flags that are fields of a dataclass, by their names."""
  return {row.name: values[row.name].value for row in rows_of(record)}


def _type_of(annotation: Any) -> Any:
  types = [annotation, *typing.get_args(annotation)]  # Of Optional[float], say.
  found = [{tuple: LIST, list: MANY}.get(typing.get_origin(k), k) for k in types]
  return next(each for each in found if each in _DEFINERS)


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
  descent.ConvergenceError,
)
# What checking of flags may raise, in programs that import no dp-accounting themselves.
BAD_INPUT = (ValueError, OSError, dp_accounting.UnsupportedEventError)


@dataclasses.dataclass(frozen=True)
class Program:
  """A program of the command line."""

  name: str  # What it is called where it is installed.
  description: str  # What `--help` says above the flags.
  groups: Callable[[], Sequence[Group]]
  main: Callable[[flags.FlagValues], int]  # Returns the exit code.
  # Errors of which one line says all, with exit code 2, besides `WrongUsage`.
  refusals: tuple[type[Exception], ...] = _REFUSALS
  basic: Collection[str] = ()  # Flags that `--help` shows; all if they are few.
  # A flag that collects values, also those that are given without a flag.
  positional: Optional[str] = None

  def execute(self, arguments: Sequence[str]) -> int:
    """Parses flags and does what they say."""
    values, groups = flags.FlagValues(), self.groups()
    define(values, groups)
    self._define_of_every_program(values)
    if self.positional is not None:
      values.set_gnu_getopt(True)  # Flags may follow what has none.
    refusals: tuple[type[Exception], ...] = (WrongUsage, *self.refusals)
    try:
      rest = parse(values, arguments)
      if rest and self.positional is not None:
        values[self.positional].parse(rest)
      elif rest:
        raise WrongUsage(f'unexpected arguments {rest}; all are flags.')
      check_bounds(values, groups)
      return self.main(values)
    except _Shown:
      return 0
    except CheckFailed as e:
      print(f'error: {e}', file=sys.stderr)
      return CHECK_FAILED
    except refusals as e:
      print(f'error: {said(e, values)}', file=sys.stderr)
      return WRONG_USAGE

  def run(self) -> None:
    """Executes the command line and ends the process with the exit code."""
    sys.exit(self.execute(sys.argv[1:]))

  def _define_of_every_program(self, values: flags.FlagValues) -> None:
    of_every = {'flag_values': values, 'module_name': _EVERY_PROGRAM}
    text = (
      'Read flags from this file, one per line. The command line overrides them, and '
      '--noNAME leaves out --NAME of the file.'
    )
    flags.DEFINE_string('flagfile', None, text, **of_every)
    for shows in (
      _Shows('help', 'Show the most important flags.', lambda: self._help(values)),
      _Shows('helpfull', 'Show all flags.', lambda: self._help(values, is_full=True)),
      _Shows('version', 'Show version and commit.', lambda: str(version.current())),
    ):
      flags.DEFINE_flag(shows, **of_every)

  def _help(self, values: flags.FlagValues, is_full: bool = False) -> str:
    groups = self.groups()
    number = sum(len(rows) for _, rows in groups)
    is_full = is_full or number <= _FEW
    of_every = [flag.name for flag in values.get_flags_for_module(_EVERY_PROGRAM)]
    shown = [
      (heading, [row.name for row in rows if is_full or row.name in self.basic])
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
        return f'--{name}={error.filename}: {error.strerror}.'
  message = str(error)
  if isinstance(error, dp_accounting.UnsupportedEventError):
    message = messages.without_cause(error)  # That has all numbers of the event.
  return message or type(error).__name__


def names_of(values: flags.FlagValues) -> list[str]:
  """Names of the flags that a program defines itself, in the order in which it does."""
  of_every = {flag.name for flag in values.get_flags_for_module(_EVERY_PROGRAM)}
  return [name for name in values if name not in of_every]


def _entry(flag: flags.Flag) -> str:
  """What `--help` says about one flag."""
  is_switch = flag.boolean and not isinstance(flag, _Shows)
  said = _ALTERNATIVES.sub(lambda each: each[0].replace('|', ', '), flag.help)
  text = f'--{"[no]" if is_switch else ""}{flag.name}: {said}'
  if flag.default_as_str and not isinstance(flag, _Shows):
    text += f' (default: {flag.default_as_str})'
  return textwrap.fill(
    ' '.join(text.split()),
    flags.get_help_width(),
    initial_indent='  ',
    subsequent_indent='      ',
    break_long_words=False,
    break_on_hyphens=False,
  )


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
