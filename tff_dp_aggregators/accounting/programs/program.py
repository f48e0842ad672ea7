"""Command line programs: tables of absl flags, help, errors and exit codes.

A program has its own flag values instead of absl's global ones, so that a process can
execute it any number of times.
"""

import dataclasses
import os
import sys
import typing
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Callable, Optional, TypeVar, Union

import dp_accounting
import msgspec
from absl import flags

from tff_dp_aggregators.base import messages
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.base import version
from tff_dp_aggregators.strategies.numerics import descent

_Settings = TypeVar('_Settings', bound=msgspec.Struct)
CHECK_FAILED, WRONG_USAGE = 1, 2  # Exit codes; 0 is fine.
_COMMON = """
--flagfile=FILE reads flags from a file, one per line. The command line overrides them,
and --noNAME leaves out --NAME of the file. --helpfull shows all flags, and --version
shows version and commit."""
_MOST_IMPORTANT = 'Most important flags'

# Types of flags besides Python's: int or float, comma-separated texts, repeated texts.
NUMBER, LIST, MANY = 'number', 'list', 'many'


@dataclasses.dataclass(frozen=True)
class Flag:
  """A row of the table of flags."""

  name: str  # Without dashes; also the name of the argument of Python functions.
  # `int`, `float`, `bool`, `str`, `NUMBER`, `LIST`, `MANY`, or a list of all values.
  type: Union[type, str, Sequence[str]]
  help: str
  default: Any = None
  within: str = ''  # The interval of valid numbers, such as '[0, 1)' or '(0, inf]'.

  def define(self, values: flags.FlagValues, heading: str) -> None:
    """Defines the flag, below a heading of `--help`."""
    # To the help of repeated flags, absl adds '; repeat this option ...'.
    text = self.help.rstrip('.') if self.type == MANY else self.help
    arguments = (self.name, self.default, text)
    more: dict[str, Any] = {'flag_values': values, 'module_name': heading}
    if isinstance(self.type, (list, tuple)):
      flags.DEFINE_enum(self.name, self.default, self.type, self.help, **more)
    elif self.type == NUMBER:
      more['serializer'] = flags.ArgumentSerializer()
      flags.DEFINE(_NumberParser(), *arguments, **more)
    else:
      _DEFINERS[self.type](*arguments, **more)
    if self.within:
      words = f'must be in {self.within}'
      flags.register_validator(self.name, self._is_within, words, values)

  def _is_within(self, value: Optional[float]) -> bool:
    if value is None:
      return True
    low, high = map(float, self.within[1:-1].split(','))
    is_end = (self.within[0] == '[' and value == low) or (
      self.within[-1] == ']' and value == high
    )
    return is_end or low < value < high


_DEFINERS: dict[Any, Callable[..., Any]] = {
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  bool: flags.DEFINE_bool,
  str: flags.DEFINE_string,
  LIST: flags.DEFINE_list,
  MANY: flags.DEFINE_multi_string,
}


class _NumberParser(flags.FloatParser):
  def convert(self, argument: Any) -> Any:
    number = super().convert(argument)
    return int(number) if number.is_integer() else number


Group = tuple[str, Sequence[Flag]]  # A heading and the flags below it.


def define(values: flags.FlagValues, groups: Iterable[Group]) -> None:
  """Defines all flags of groups."""
  for heading, rows in groups:
    for row in rows:
      row.define(values, heading)


def parse(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
  """Parses a command line, after its flag files; returns what is no flag."""
  left = iter(arguments)
  arguments = [
    f'{each}={next(left, "")}' if each == '--flagfile' else each for each in left
  ]
  files = [each for each in arguments if each.startswith('--flagfile=')]
  left_out = [
    each
    for each in arguments
    if each[:4] == '--no' and each[2:] not in values and each[4:] in values
    if not values[each[4:]].boolean
  ]
  others = [each for each in arguments if each not in (*files, *left_out)]
  try:
    if '--flagfile=' in files or any('undefok' in each for each in others):
      raise flags.Error('--flagfile needs a file, and --undefok is not supported')
    rest: list[str] = []
    for each in files:
      rest += _parse_once(values, [each])
    for each in left_out:
      values[each[4:]].unparse()
    rest += _parse_once(values, others)
    for each in left_out:
      if values[each[4:]].present:
        raise flags.Error(f'{each} and --{each[4:]} are given; give one of them')
    return rest
  except flags.Error as e:
    message = ' '.join(str(e).split()).rstrip('.')
    former = getattr(e, 'flagname', '')  # Set for flags that are not known.
    if messages.RENAMED.get(former) in values:
      message = f'--{former} is called --{messages.RENAMED[former]}'
    raise WrongUsage(f'{message}; --helpfull lists all flags.') from e
  except UnicodeError as e:
    raise WrongUsage(f'{" ".join(files)} must be text in UTF-8: {e}.') from e


def _parse_once(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
  """Parses flags, each of which may be given once."""
  before = {name: values[name].present for name in values}
  rest: list[str] = values(['program', *arguments])[1:]
  for name, times in before.items():
    is_many = isinstance(values[name], flags.MultiFlag)
    if values[name].present > times + 1 and not is_many:
      raise flags.Error(f'--{name} is given twice; give it once')
  return rest


def values_of(groups: Sequence[Group], arguments: Sequence[str]) -> flags.FlagValues:
  """Parses arguments that are all flags and returns the values."""
  values = flags.FlagValues()
  define(values, groups)
  parse(values, arguments)
  return values


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


def settings_of(name: str, text: str, to: type[_Settings], example: str) -> _Settings:
  """Returns the value of a flag that is a name and settings, as in `example`."""
  what, _, settings = text.partition(':')
  try:
    if not what.strip() or not what.isprintable():
      raise ValueError('it has no name')
    given: list[tuple[str, Any]] = [('name', what.strip())]
    texts = [each.name for each in msgspec.structs.fields(to) if each.type is str]
    for setting in settings.split(','):
      key, _, value = map(str.strip, setting.partition('='))
      if '=' in value:
        raise ValueError(f'a comma is missing in {key}={value}')
      try:  # msgspec reads numbers as JSON has them: not .5, 1. or +1.
        given.append((key, value if key in texts else float(value)))
      except ValueError:
        given.append((key, value))
    return msgspec.convert(strict_json.unique(given), to, strict=False)
  except (ValueError, msgspec.ValidationError) as e:
    known = ', '.join(to.__struct_fields__[1:])
    raise ValueError(
      f'--{name}={text!r} is not a name, a colon, and settings (of {known}) with '
      f'commas between them, as in {example}: {e}.'
    ) from e


def check_new(values: flags.FlagValues, *names: str) -> None:
  """Raises ValueError if an output exists, twice, or has no folder, before any work."""
  other_of: dict[str, str] = {}
  for name in names:
    path = values[name].value
    if path is None:
      continue
    other = other_of.setdefault(os.path.realpath(path), name)
    if other != name:
      raise ValueError(
        f'--{name}={path} is the path of --{other}, too; choose another name.'
      )
    if os.path.lexists(path):
      raise ValueError(
        f'--{name}={path} exists and is not overwritten; choose another name.'
      )
    if not path or not os.path.isdir(os.path.dirname(path) or '.'):
      raise ValueError(f'--{name}={path} must be a file in a folder that exists.')


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
      each.name, each.metadata['type'] or _type_of(each.type), **each.metadata['flag']
    )
    for each in dataclasses.fields(record)
    if each.metadata
  )


def read(record: type, values: flags.FlagValues) -> dict[str, Any]:
  """Returns the values of the flags of a dataclass that have one, by name."""
  given = {row.name: values[row.name].value for row in rows_of(record)}
  return {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in given.items()
    if value is not None
  }


def _type_of(annotation: Any) -> Any:
  types = [annotation, *typing.get_args(annotation)]  # Such as of Optional[float].
  flag_types = [{tuple: LIST, list: MANY}.get(typing.get_origin(k), k) for k in types]
  return next(each for each in flag_types if each in _DEFINERS)


class CheckFailed(ValueError):
  """A check that was asked for was computed and failed; exit code 1."""


class WrongUsage(ValueError):
  """Arguments that make no sense or cannot be processed; exit code 2."""


# Errors of checking flags, for programs that do not import dp-accounting themselves.
BAD_INPUT = (ValueError, OSError, dp_accounting.UnsupportedEventError)
# Errors that a program prints in one line, without a traceback.
_REFUSALS = (*BAD_INPUT, OverflowError, MemoryError, descent.ConvergenceError)


@dataclasses.dataclass(frozen=True)
class Program:
  """A program of the command line."""

  name: str  # The name of the installed command.
  description: str  # The text of `--help` above the flags.
  groups: Callable[[], Sequence[Group]]
  main: Callable[[flags.FlagValues], int]  # Returns the exit code.
  # Errors, besides `WrongUsage`, that are printed in one line with exit code 2.
  refusals: tuple[type[Exception], ...] = _REFUSALS
  basic: Collection[str] = ()  # Flags that `--help` shows; by default all.
  # A flag of type `MANY` that also gets the arguments that are not flags.
  positional: Optional[str] = None

  def execute(self, arguments: Sequence[str]) -> int:
    """Parses flags, runs `main` and returns the exit code."""
    values = flags.FlagValues()
    refusals: tuple[type[Exception], ...] = (WrongUsage, *self.refusals)
    define(values, self.groups())
    if {'--help', '--helpfull'} & {*arguments}:
      print(self._help(values, is_full='--helpfull' in arguments))
      return 0
    if '--version' in arguments:
      print(version.current())
      return 0
    try:
      if self.positional is not None:
        values.set_gnu_getopt(True)  # Flags may follow positional arguments.
      rest = parse(values, arguments)
      if rest and self.positional is None:
        raise WrongUsage(f'unexpected arguments {rest}; all are flags.')
      if rest:
        values[self.positional].parse(rest)
      return self.main(values)
    except CheckFailed as e:
      print(f'error: {e}', file=sys.stderr)
      return CHECK_FAILED
    except refusals as e:
      print(f'error: {error_message(e)}', file=sys.stderr)
      return WRONG_USAGE

  def run(self) -> None:
    """Executes the command line and ends the process with the exit code."""
    sys.exit(self.execute(sys.argv[1:]))

  def _help(self, values: flags.FlagValues, is_full: bool) -> str:
    headings = [heading for heading, _ in self.groups()]
    if self.basic and not is_full:
      headings = [_MOST_IMPORTANT]
      for name in filter(values.__contains__, self.basic):
        values.register_key_flag_for_module(_MOST_IMPORTANT, values[name])
    parts = (self.description.strip(), *map(values.module_help, headings), _COMMON)
    return '\n'.join(parts)


def error_message(error: BaseException) -> str:
  """Returns the message of an error in one line."""
  if isinstance(error, dp_accounting.UnsupportedEventError):
    return messages.without_cause(error)  # The cause has all numbers of the event.
  return str(error) or type(error).__name__
