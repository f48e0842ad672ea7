"""What a comparison's folder says about it, so that the same command goes on.

`comparison.json` has what is varied, what all runs have, and what is tuned. A command
goes on if it says the same; values of the grid and seeds may be added, which changes
nothing of what is there.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import folder_lock
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import strict_json

from ..options import run as run_options
from . import grid

FILE = 'comparison.json'
# Changes with what the file can say.
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Record:
  given: Mapping[str, tuple[str, ...]]  # Flags of every run, as arguments, by name.
  varied: Sequence[str]  # Names of the flags that are varied, in their order.
  # Points of the grid, of all commands that worked in the folder.
  points: Sequence[grid.Point]
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


def read(output: str) -> Record:
  path = os.path.join(output, FILE)
  try:
    with open(path, encoding='utf-8') as file:
      return Record.from_json(json.load(file))
  except (OSError, KeyError, TypeError, AttributeError, ValueError) as e:
    raise ValueError(f'{path} is not a record of a comparison: {e}.') from e


def is_any(output: str) -> bool:
  return os.path.exists(os.path.join(output, FILE))


def taken_up(output: str, record: Record) -> tuple[Record, Record]:
  """What is asked for, and what the comparison in a folder is with that.

  Flags of `--grid` in another order are the same points.
  """
  if not is_any(output):
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
  begun = read(output)
  known = {frozenset(point.settings): point for point in begun.points}
  points = [known.get(frozenset(each.settings), each) for each in record.points]
  is_same = set(begun.varied) == set(record.varied)
  asked = dataclasses.replace(
    record,
    varied=begun.varied if is_same else record.varied,
    points=tuple(dict.fromkeys(points)),
  )
  differences = list(_differences(begun, asked))
  if differences:
    raise ValueError(
      f'the comparison in {output} is a different one, and resumes only with the same '
      f'flags, to which values of --grid and --seeds may be added: '
      f'{"; ".join(differences)}. Give another --output.'
    )
  return asked, dataclasses.replace(
    asked,
    points=tuple(dict.fromkeys([*begun.points, *asked.points])),
    seeds=max(begun.seeds, asked.seeds),
  )


def _differences(begun: Record, now: Record) -> list[str]:
  said: list[tuple[str, Any, Any]] = []
  for name in sorted({*begun.given, *now.given}.difference(run_options.MAY_DIFFER)):
    then, new = (' '.join(each.given.get(name, ())) for each in (begun, now))
    said.append((name, then, new))
  said.append(('grid', sorted(begun.varied), sorted(now.varied)))
  before, after = begun.to_json(), now.to_json()
  for name, option in (('tuned', 'tune'), ('tuning_seeds', 'tuning_seeds')):
    said.append((option, before[name], after[name]))
  return [
    f'--{name}: {then or "not given"} then, {new or "not given"} now'
    for name, then, new in said
    if then != new
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


def write(output: str, record: Record) -> None:
  new_files.replace(
    os.path.join(output, FILE), json.dumps(record.to_json(), indent=2) + '\n'
  )
