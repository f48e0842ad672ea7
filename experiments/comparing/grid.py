r"""The grid of a comparison, from flags such as `--grid mechanism=tree,banded`.

`FLAG=V1,V2` varies a flag; several `--grid` are crossed, and one that names the flag
again adds values. A value may bring other flags along, after colons, which then count
more than those of the grid and of the command line, as in
`mechanism=tree,banded:num_bands=8`; one that it brings without a value is left out:
`mechanism=gaussian,none:clip_norm=`. A comma in a value is written `\,`, and a colon in
front of a name and `=` as `\:`.

The folder of a comparison says in `comparison.json` what is varied, what all runs have,
and what is tuned. A command goes on if it says the same; values of the grid and seeds
may be added, which changes nothing of what is there.
"""

import contextlib
import csv
import dataclasses
import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

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

_AXIS = re.compile(r'(\w+)=(.*)', re.DOTALL)
_COMMA = re.compile(r'(?<!\\),')
_COLON = re.compile(r'(?<!\\):(?=\w+=)')
_ESCAPED = re.compile(r'\\([,:])')
# What stands in names of folders as it is; everything else would need quotes.
_UNUSUAL = re.compile(r'[^\w.,=+-]')
_LONGEST_NAME = 200  # Letters; file systems take 255.
_DIGEST = 8

FILE = 'comparison.json'  # Of the record of a comparison.
_VERSION = 1  # Changes with what the file can say.

# A flag and its value as text; an empty one leaves the flag out.
Setting = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Axis:
  flag: str  # Its name.
  # Each with the other flags that it brings along, itself first.
  values: tuple[tuple[Setting, ...], ...]


@dataclasses.dataclass(frozen=True)
class Point:
  """A point of a grid: what its runs have in common, but for flags of all points."""

  settings: tuple[Setting, ...]  # Flags and their values.
  left_out: tuple[str, ...] = ()  # Flags of the command line that do not go with them.

  @property
  def values(self) -> dict[str, str]:
    return dict(self.settings)

  @property
  def name(self) -> str:
    """For people and for folders; of no two points the same."""
    return name_of(self.settings)


def name_of(settings: Sequence[Setting]) -> str:
  """Settings as the name of a folder: readable, and never that of others.

  Example:
    >>> name_of([('mechanism', 'tree'), ('target_epsilon', '2')])
    'mechanism=tree,target_epsilon=2'
    >>> name_of([('data', 'my clients/a.csv')])
    'data=my_clients_a.csv,8e7c3a98'
  """
  text = ','.join(f'{flag}={value}' for flag, value in settings)
  name = _UNUSUAL.sub('_', text)
  # Commas and equal signs of values would read as those between settings.
  is_plain = not any(_UNUSUAL.search(v) or set(v) & {',', '='} for _, v in settings)
  if is_plain and len(name) <= _LONGEST_NAME:
    return name
  digest = hashlib.sha256(repr(list(settings)).encode()).hexdigest()[:_DIGEST]
  return f'{name[:_LONGEST_NAME]},{digest}'


def axes(
  texts: Sequence[str],
  values: flags.FlagValues,
  refused: Mapping[str, str],
  option: str = '--grid',
) -> tuple[Axis, ...]:
  found: dict[str, dict[tuple[Setting, ...], None]] = {}
  for text in texts:
    match = _AXIS.fullmatch(text)
    if match is None:
      raise ValueError(
        f'{option} {text!r} must be FLAG=VALUE,VALUE such as target_epsilon=2,4,8.'
      )
    flag, listed = match.groups()
    for part in _COMMA.split(listed):
      value = _value(f'{flag}={part}', values, refused, f'{option} {text!r}')
      # What is tuned has a value in each run, also of flags that are brought along.
      if not all(each for _, each in (value if option == '--tune' else value[:1])):
        raise ValueError(f'{option} {text!r} has an empty value; leave it out.')
      found.setdefault(flag, {})[value] = None
  return tuple(Axis(flag, tuple(listed)) for flag, listed in found.items())


def _value(
  text: str, values: flags.FlagValues, refused: Mapping[str, str], where: str
) -> tuple[Setting, ...]:
  settings = []
  for part in _COLON.split(text):
    flag, value = part.split('=', 1)
    value = _ESCAPED.sub(r'\1', value)
    if flag in refused:
      raise ValueError(f'{where}: --{flag} cannot be varied: {refused[flag]}.')
    if flag not in values:
      raise ValueError(f'{where}: there is no flag --{flag}; --helpfull lists all.')
    if value and isinstance(values[flag], flags.MultiFlag):
      raise ValueError(
        f'{where}: --{flag} cannot be varied: it is given several times, and here '
        f'would be one. Where others bring {flag}= along, all of them are left out.'
      )
    settings.append((flag, _canonical(values[flag], value, where) if value else ''))
  return tuple(settings)


def _canonical(flag: flags.Flag, text: str, where: str) -> str:
  """A value as everybody writes it, so that 2 and 2.0 are the same."""
  try:
    value = flag.parser.parse(text)
  except (ValueError, TypeError) as e:
    said = ' '.join(str(e).split()).rstrip('.')
    raise ValueError(
      f'{where}: {text!r} is not a value of --{flag.name}: {said}.'
    ) from e
  return written(value)


def written(value: Any) -> str:
  """The value of a flag as text.

  Example:
    >>> written(2.0), written(0.1), written(True), written('tree')
    ('2', '0.1', 'true', 'tree')
    >>> written(['age', 'height, in m'])
    'age,"height, in m"'
  """
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, float):
    short = f'{value:g}'
    return short if float(short) == value else repr(value)
  if isinstance(value, (list, tuple)):
    line = io.StringIO()  # Names with commas in quotes, as flags read them.
    csv.writer(line, lineterminator='').writerow(map(written, value))
    return line.getvalue()
  return str(value)


def points(axes: Sequence[Axis], others: Mapping[str, Any]) -> tuple[Point, ...]:
  """All points of a grid, in the order in which people would write them down.

  Options that only some mechanisms have are left out for the others, and so is all of
  privacy where there is no mechanism. Points that then are the same are one.
  """
  found: dict[Point, None] = {}
  for combination in itertools.product(*(axis.values for axis in axes)):
    merged: dict[str, str] = {flag: value for (flag, value), *_ in combination}
    for _, *along in combination:
      merged.update(along)
    chosen = {**others, **merged}
    unused = unused_by(
      chosen.get('mechanism'), chosen.get('noise_site'), chosen.get('clipping')
    )
    settings = tuple((f, v) for f, v in merged.items() if v and f not in unused)
    left_out = {f for f, v in merged.items() if not v}
    left_out |= {f for f in unused if others.get(f) is not None}
    found[Point(settings, tuple(sorted(left_out)))] = None
  return tuple(found)


def unused_by(
  mechanism: Optional[str],
  noise_site: Optional[str] = None,
  clipping: Optional[str] = None,
) -> frozenset[str]:
  """Flags that are of other mechanisms than this one, or of other sites of noise."""
  if mechanism == privacy_options.NONE:
    unused = set(privacy_options.not_without(clipping))
    if clipping != privacy_options.FIXED:
      # They belong to clipping that needs noise, and to bounded values.
      unused |= {'clipping', 'inner_aggregator'}
    return frozenset(unused)
  if mechanism not in mechanism_lib.names():  # A file's, which flags are checked with.
    return frozenset()
  options = registry.options()
  unused = {name for name, having in options.items() if mechanism not in having}
  noise = noises.of_mechanism(mechanism)
  if noise_site in (None, *noise.placements):  # Else it is refused, and says why.
    unused |= {*noises.options()} - {*noises.options_of(noise, noise_site)}
    if not noise.placement(noise_site).adds_on_server:
      unused.add(noises.SERVER_NOISE)
  return frozenset(unused)


@dataclasses.dataclass(frozen=True)
class Record:
  """What a comparison's folder says about it, so that the same command goes on."""

  given: Mapping[str, tuple[str, ...]]  # Flags of every run, as arguments, by name.
  varied: Sequence[str]  # Names of the flags that are varied, in their order.
  # Points of the grid, of all commands that worked in the folder.
  points: Sequence[Point]
  tasks: Sequence[str]  # What is trained.
  seeds: int  # How many runs each point has, the most that were asked for.
  # Flags that are tuned, with the values that are tried.
  tuned: Mapping[str, Sequence[str]]
  tuning_seeds: int  # How often each of them is tried.

  def to_json(self) -> dict[str, Any]:
    found = msgspec.json.decode(msgspec.json.encode(self))
    for point in found['points']:
      point['settings'] = dict(point['settings'])
    return {'version': _VERSION, **found}

  @classmethod
  def from_json(cls, data: Mapping[str, Any]) -> 'Record':
    if data['version'] != _VERSION:
      raise ValueError(f'it is of version {data["version"]}, not {_VERSION}')
    points = [{**p, 'settings': [*p['settings'].items()]} for p in data['points']]
    return strict_json.convert({**data, 'points': points}, cls)


def read_record(output: str) -> Record:
  path = os.path.join(output, FILE)
  try:
    with open(path, encoding='utf-8') as file:
      return Record.from_json(json.load(file))
  except (OSError, KeyError, TypeError, AttributeError, ValueError) as e:
    raise ValueError(f'{path} is not a record of a comparison: {e}.') from e


def is_comparison(output: str) -> bool:
  return os.path.exists(os.path.join(output, FILE))


def taken_up(output: str, record: Record) -> tuple[Record, Record]:
  """What is asked for, and what the comparison in a folder is with that.

  Flags of `--grid` in another order are the same points.
  """
  if not is_comparison(output):
    names = os.listdir(output) if os.path.isdir(output) else ()
    has_more = any(
      not name.startswith(new_files.HALF_WRITTEN) and name != folder_lock.FILE
      for name in names
    )
    if has_more or (os.path.lexists(output) and not os.path.isdir(output)):
      raise FileExistsError(
        f'{output} exists, is not empty, and is not of a comparison; nothing is '
        'overwritten. Give another --output.'
      )
    return record, record
  begun = read_record(output)
  if differences := _differences(begun, record):
    raise ValueError(
      f'the comparison in {output} is a different one, and resumes only with the same '
      f'flags, to which values of --grid and --seeds may be added: '
      f'{"; ".join(differences)}. Give another --output.'
    )
  known = {frozenset(point.settings): point for point in begun.points}
  points = [known.get(frozenset(each.settings), each) for each in record.points]
  asked = dataclasses.replace(
    record, varied=begun.varied, points=tuple(dict.fromkeys(points))
  )
  return asked, dataclasses.replace(
    asked,
    points=tuple(dict.fromkeys([*begun.points, *asked.points])),
    seeds=max(begun.seeds, asked.seeds),
  )


def _differences(begun: Record, now: Record) -> list[str]:
  before, after = (
    {
      **{name: ' '.join(each.given[name]) for name in sorted(each.given)},
      'grid': sorted(each.varied),
      'tune': each.to_json()['tuned'],
      'tuning_seeds': each.tuning_seeds,
    }
    for each in (begun, now)
  )
  return [
    f'--{name}: {before.get(name) or "not given"} then, '
    f'{after.get(name) or "not given"} now'
    for name in {**before, **after}
    if before.get(name) != after.get(name) and name not in run_options.MAY_DIFFER
  ]


@contextlib.contextmanager
def folder(output: str) -> Iterator[None]:
  """Makes the folder of a comparison, which one process at a time works in."""
  try:
    os.makedirs(output, exist_ok=True)
  except OSError as e:
    raise program.WrongUsage(
      f'--output={output} cannot be made: {e.strerror}. Give another directory.'
    ) from e
  try:
    lock = folder_lock.FolderLock(output)
  except BlockingIOError as e:
    raise BlockingIOError(
      f'another comparison, here or on another machine, works in {output}; wait for '
      'it, or give another --output.'
    ) from e
  with contextlib.closing(lock):
    new_files.remove_half_written(output)  # By comparisons that were killed.
    yield


def write_record(output: str, record: Record) -> None:
  new_files.replace(
    os.path.join(output, FILE), json.dumps(record.to_json(), indent=2) + '\n'
  )
