"""The runs of a comparison: one for each point of the grid and each seed."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.learning.runs import run_directory

from .. import settings as settings_lib
from . import grid

CELLS, TUNING = 'cells', 'tuning'  # Folders in that of the comparison.
# Flags of the simulation that a comparison sets itself, or that change no result.
REFUSED = {
  'seed': 'give --seeds=N for seeds 1 to N',
  'run_dir': 'each run has a directory of its own under --output',
}
_CHANGE_NOTHING = ('checkpoint_seconds', 'timeout_seconds')
UNVARIED = {**REFUSED, **dict.fromkeys(_CHANGE_NOTHING, 'it changes no result')}


@dataclasses.dataclass(frozen=True)
class Cell:
  point: grid.Point
  seed: int
  directory: str
  arguments: tuple[str, ...]  # Flags of the simulation that would be the same run.
  settings: settings_lib.Settings  # What they come to.
  # Flags that are tuned, with the values of this run.
  tuned: tuple[grid.Setting, ...] = ()
  # What else its report has to say that it does not cover.
  not_covered: tuple[str, ...] = ()

  @property
  def name(self) -> str:
    return os.path.basename(self.directory)

  @property
  def error_path(self) -> str:
    return os.path.join(self.directory, run_directory.ERROR)

  @property
  def error(self) -> str:
    try:
      with open(self.error_path, encoding='utf-8') as file:
        return last_line(file.read())
    except FileNotFoundError:
      return ''


@dataclasses.dataclass(frozen=True)
class Maker:
  """Makes cells, and refuses settings that cannot be run."""

  output: str  # Folder of the comparison.
  # Flags of the command line, each as arguments, that every run has.
  given: Mapping[str, tuple[str, ...]]
  # What is told of the user's own data, by the options that they are read with.
  facts: dict[str, Any] = dataclasses.field(default_factory=dict)

  def cells(
    self,
    points: Sequence[grid.Point],
    seeds: Sequence[int],
    folder: str = CELLS,
    tuned: Sequence[tuple[grid.Setting, ...]] = ((),),
  ) -> Iterator[Cell]:
    """Cells of all points, seed by seed, so that all have a first one early."""
    for seed in seeds:
      for point in points:
        for number, settings in enumerate(tuned):
          yield self.cell(point, seed + number * len(seeds), folder, settings)

  def cell(
    self,
    point: grid.Point,
    seed: int,
    folder: str = CELLS,
    tuned: tuple[grid.Setting, ...] = (),
    chosen: bool = False,
  ) -> Cell:
    in_name = (*point.settings, *(() if chosen else tuned), ('seed', str(seed)))
    directory = os.path.join(self.output, folder, grid.name_of(in_name))
    settings = dict((*point.settings, *tuned))
    arguments = tuple(
      argument
      for name, arguments in self.given.items()
      if name not in settings and name not in point.left_out
      for argument in arguments
    )
    arguments += tuple(f'--{name}={value}' for name, value in settings.items())
    arguments += (f'--seed={seed}',)
    try:
      checked = settings_of(arguments)
      run_directory.check_flags(directory, checked.flags, checked.facts)
      key = f'{checked.task.name} {checked.data!r}'
      if self.facts.setdefault(key, checked.facts) != checked.facts:
        raise ValueError(
          'the data have changed since the comparison began. Put back those that it '
          'began with, or give another --output.'
        )
    except (ValueError, OSError) as e:
      raise program.WrongUsage(f'{grid.name_of(in_name)}: {e}') from e
    return Cell(point, seed, directory, arguments, checked, tuned)


def settings_of(arguments: Sequence[str]) -> settings_lib.Settings:
  values = program.values_of(settings_lib.groups(), arguments)
  return settings_lib.from_flags(values)


def last_line(text: str) -> str:
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[-1] if lines else ''


def given(values: flags.FlagValues, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
  found = {}
  for name in names:
    flag = values[name]
    if not flag.present or flag.value is None:
      continue
    each = flag.value if isinstance(flag, flags.MultiFlag) else [flag.value]
    found[name] = tuple(f'--{name}={grid.written(value)}' for value in each)
  return found
