r"""The grid of a comparison, from flags such as `--grid mechanism=tree,banded`.

`comparison.json` in the folder of a comparison records which flags are varied, which
all runs have, and which are tuned. A command with the same flags resumes it; values of
the grid and seeds may be added, which does not change existing runs.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Optional

import msgspec
from absl import flags

from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import folder_lock
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.strategies import registry

from ..options import privacy as privacy_options
from ..options import run as run_options

_COMMA = re.compile(r'(?<!\\),')
_COLON = re.compile(r'(?<!\\):(?=\w+=)')
_ESCAPED = re.compile(r'\\([,:])')
# Characters that names of folders would need quotes for.
_UNUSUAL = re.compile(r'[^\w.,=+-]')
_MAX_NAME = 200  # Characters.
_MAX_BYTES = 255  # Bytes of a name in file systems.
_DIGEST_LENGTH = 8

FILE = 'comparison.json'  # The record of a comparison.
# Files of which a folder is as good as empty.
_OF_ANY_FOLDER = (new_files.HALF_WRITTEN, folder_lock.FILE)

# A flag and its value as text; an empty value leaves the flag out.
Setting = tuple[str, str]


# The values of varied flags: each is the flag's setting, and those it brings along.
Axes = dict[str, tuple[tuple[Setting, ...], ...]]


@dataclasses.dataclass(frozen=True)
class Point:
  """A point of a grid: the settings of its runs, without those of all points."""

  settings: dict[str, str]  # Flags and their values; the order is that of the name.
  left_out: tuple[str, ...] = ()  # Flags of the command line that do not go with them.

  def __hash__(self) -> int:
    return hash(frozenset(self.settings.items()))

  @property
  def name(self) -> str:
    return name_of([*self.settings.items()])


def name_of(settings: Sequence[Setting]) -> str:
  """Returns settings as the name of a folder, readable and unique.

  Example:
    >>> name_of([('mechanism', 'tree'), ('target_epsilon', '2')])
    'mechanism=tree,target_epsilon=2'
    >>> name_of([('data', 'my clients/a.csv')])
    'data=my_clients_a.csv,8e7c3a98'
  """
  text = ','.join(f'{flag}={value}' for flag, value in settings)
  name = _UNUSUAL.sub('_', text)
  # Commas and equal signs in values would look like those between settings.
  is_plain = not any(_UNUSUAL.search(v) or set(v) & {',', '='} for _, v in settings)
  if is_plain and len(name) <= _MAX_NAME and len(os.fsencode(name)) <= _MAX_BYTES:
    return name
  digest = hashlib.sha256(repr(list(settings)).encode()).hexdigest()[:_DIGEST_LENGTH]
  beginning = os.fsencode(name[:_MAX_NAME])[: _MAX_BYTES - 1 - _DIGEST_LENGTH]
  return f'{beginning.decode(errors="ignore")},{digest}'


def axes(
  texts: Sequence[str],
  values: flags.FlagValues,
  refused: Mapping[str, str],
  option: str = '--grid',
) -> Axes:
  by_flag: dict[str, dict[tuple[Setting, ...], None]] = {}
  for text in texts:
    flag, equals, listed = text.partition('=')
    if not equals:
      raise ValueError(
        f'{option} {text!r} must be FLAG=VALUE,VALUE such as target_epsilon=2,4,8.'
      )
    for part in _COMMA.split(listed):
      value = _value(f'{flag}={part}', values, refused, f'{option} {text!r}')
      # A tuned flag has a value in each run, and so have flags that are brought along.
      if not all(each for _, each in (value if option == '--tune' else value[:1])):
        raise ValueError(f'{option} {text!r} has an empty value; leave it out.')
      by_flag.setdefault(flag, {})[value] = None
    parsed = [_parsed(value, values) for value in by_flag[flag]]
    if any(each in parsed[:place] for place, each in enumerate(parsed)):
      raise ValueError(
        f'{option} {text!r} has a value twice, in other words; leave one out.'
      )
  return {flag: tuple(listed) for flag, listed in by_flag.items()}


def _parsed(settings: Iterable[Setting], values: flags.FlagValues) -> dict[str, Any]:
  """Values by name, which are equal if settings are, in whatever words."""
  return {
    name: values[name].parser.parse(text) if text else None for name, text in settings
  }


def _value(
  text: str, values: flags.FlagValues, refused: Mapping[str, str], where: str
) -> tuple[Setting, ...]:
  settings = []
  for part in _COLON.split(text):
    flag, _, text = part.partition('=')
    text, why = _ESCAPED.sub(r'\1', text), refused.get(flag)
    if why is None and flag not in values:
      why = f'there is no flag --{flag}; --helpfull lists all'
    elif text and why is None and isinstance(values[flag], flags.MultiFlag):
      why = (
        'it is given several times, and here would be one. Where others bring '
        f'{flag}= along, all of them are left out'
      )
    if why is not None:
      raise ValueError(f'{where}: --{flag} cannot be varied: {why}.')
    try:
      if text:
        values[flag].parser.parse(text)
    except (ValueError, TypeError) as e:
      raise ValueError(f'{where}: {text!r} is not a value of --{flag}: {e}.') from e
    settings.append((flag, text))
  return tuple(settings)


def points(axes: Axes, others: Mapping[str, Any]) -> tuple[Point, ...]:
  """Returns all points of a grid; the last axis varies fastest.

  Options that a mechanism does not have are left out, and so are all flags of privacy
  without a mechanism. Points that are then equal are one point.
  """
  all_points: dict[Point, None] = {}
  for combination in itertools.product(*axes.values()):
    merged = dict(own for own, *_ in combination)
    merged |= dict(each for _, *extra in combination for each in extra)
    unused = unused_by({**others, **merged})
    settings = {f: v for f, v in merged.items() if v and f not in unused}
    left_out = {f for f, v in merged.items() if not v}
    left_out |= {f for f in unused if others.get(f) is not None}
    all_points[Point(settings, tuple(sorted(left_out)))] = None
  return tuple(all_points)


def as_saved(
  points: Sequence[Point], saved: Sequence[Point], values: flags.FlagValues
) -> tuple[Point, ...]:
  """Returns points in the words of equal ones that are saved: 0.10 as 0.1."""
  return tuple(
    each
    if each in saved
    else next((old for old in saved if _is_same(each, old, values)), each)
    for each in points
  )


def _is_same(one: Point, other: Point, values: flags.FlagValues) -> bool:
  if one.left_out != other.left_out or one.settings.keys() != other.settings.keys():
    return False
  parsed = [_parsed(each.settings.items(), values) for each in (one, other)]
  return parsed[0] == parsed[1]


def unused_by(chosen: Mapping[str, Any]) -> frozenset[str]:
  """Returns flags that only go with other mechanisms, or other sites of noise."""
  mechanism, site = chosen.get('mechanism'), chosen.get('noise_site')
  if mechanism == privacy_options.NONE:
    clipping = chosen.get('clipping')
    unused = {*privacy_options.privacy_flags(clipping)}
    if clipping != privacy_options.FIXED:
      # Other kinds of clipping need noise, and secure sums need bounded values.
      unused |= {'clipping', 'inner_aggregator'}
    return frozenset(unused)
  if mechanism not in mechanism_lib.names():  # From a file; flags are checked later.
    return frozenset()
  options = registry.options()
  unused = {name for name, having in options.items() if mechanism not in having}
  noise = noises.of_mechanism(mechanism)
  if site in (None, *noise.placements):  # Other sites are refused later.
    unused |= {*noises.options()} - {*noise.options, *noise.placement(site).options}
    if not noise.placement(site).adds_on_server:
      unused.add(noises.SERVER_NOISE)
  return frozenset(unused)


@dataclasses.dataclass(frozen=True)
class Record:
  """The record in a comparison's folder, from which the same command resumes."""

  given: Mapping[str, tuple[str, ...]]  # Flags of every run, as arguments, by name.
  varied: Sequence[str]  # Names of the flags that are varied, in their order.
  # Points of the grid, of all commands that worked in the folder.
  points: Sequence[Point]
  tasks: Sequence[str]  # Names of the tasks.
  seeds: int  # Runs of each point: the maximum that was asked for.
  # Flags that are tuned, with the values that are tried.
  tuned: Mapping[str, Sequence[str]]
  tuning_seeds: int  # Runs of each combination of these values.
  version: Literal[1] = 1  # Version of the file's format.


def saved_record(output: str) -> Optional[Record]:
  """Returns the record in a folder; `None` if it is not of a comparison."""
  path = os.path.join(output, FILE)
  if not os.path.exists(path):
    return None
  try:
    with open(path, encoding='utf-8') as file:
      record: Record = strict_json.convert(json.load(file), Record)
      return record
  except (OSError, ValueError) as e:
    raise ValueError(f'{path} is not a record of a comparison: {e}.') from e


def merged(output: str, saved: Optional[Record], record: Record) -> Record:
  """Returns the record of this command with the points and seeds of the saved one.

  Points whose flags are in another order are the same.
  """
  if saved is None:
    names = set(os.listdir(output) if os.path.lexists(output) else ())
    if any(not name.startswith(_OF_ANY_FOLDER) for name in names):
      raise FileExistsError(
        f'{output} exists, is not empty, and is not of a comparison; nothing is '
        'overwritten. Give another --output.'
      )
    return record
  if differences := _differences(saved, record):
    raise ValueError(
      f'the comparison in {output} is a different one, and resumes only with the same '
      f'flags, to which values of --grid and --seeds may be added: '
      f'{"; ".join(differences)}. Give another --output.'
    )
  return dataclasses.replace(
    record,
    varied=saved.varied,
    points=tuple(dict.fromkeys([*saved.points, *record.points])),
    seeds=max(saved.seeds, record.seeds),
  )


def _differences(saved: Record, now: Record) -> list[str]:
  before, after = (
    {
      **{name: ' '.join(each.given[name]) for name in sorted(each.given)},
      'grid': sorted(each.varied),
      'tune': {name: [*values] for name, values in each.tuned.items()},
      'tuning_seeds': each.tuning_seeds,
    }
    for each in (saved, now)
  )
  return [
    f'--{name}: {before.get(name) or "not given"} then, '
    f'{after.get(name) or "not given"} now'
    for name in {**before, **after}
    if before.get(name) != after.get(name) and name not in run_options.MAY_DIFFER
  ]


@contextlib.contextmanager
def folder(output: str) -> Iterator[None]:
  """Makes the folder of a comparison and locks it for this process."""
  run_options.make_directory(output, 'output')
  try:
    lock = folder_lock.FolderLock(output)
  except BlockingIOError as e:
    raise program.WrongUsage(
      f'another comparison, here or on another machine, works in {output}; wait for '
      'it, or give another --output.'
    ) from e
  with contextlib.closing(lock):
    new_files.remove_half_written(output)  # Left by comparisons that were killed.
    yield


def write_record(output: str, record: Record) -> None:
  new_files.replace(
    os.path.join(output, FILE), json.dumps(msgspec.to_builtins(record), indent=2) + '\n'
  )
