"""What all builders and queries take about their noise: seed, generator and storage.

They take these as `**noise_options`; `checked` alone knows their defaults.
"""

import collections
import dataclasses
import hashlib
import os
import threading
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np
import typing_extensions

from tff_dp_aggregators.base import checks

_lock = threading.Lock()
# Streams that were taken in this process, by seed.
_taken: 'collections.Counter[int]' = collections.Counter()


@dataclasses.dataclass(frozen=True)
class Seed:
  """One stream of reproducible noise, exactly.

  Noise of equal seeds is equal; noise of two that differ in anything is independent, as
  far as a simulation can tell.

  Raises:
    TypeError: If one of them is not an int.
    ValueError: If `stream` or `part` is negative.

  Example:
    >>> Seed(7), str(Seed(7, stream=2))
    (Seed(value=7, stream=0, part=0), 'seed 7, stream 2')

  Attributes:
    value: Any whole number.
    stream: Which of its streams, from 0.
    part: Which part of a stream. It is 0, but for what a factory gives each process
      that it creates after the first.
  """

  value: int
  stream: int = 0
  part: int = 0

  def __post_init__(self) -> None:
    for name in ('value', 'stream', 'part'):
      number = getattr(self, name)
      if not _is_int(number):
        raise TypeError(f'{name} must be an int, got {number!r}.')
      object.__setattr__(self, name, int(number))
      if name != 'value' and number < 0:
        raise ValueError(f'{name} must not be negative; got {number}.')

  def __str__(self) -> str:
    text = f'seed {self.value}, stream {self.stream}'
    return f'{text}, part {self.part}' if self.part else text

  def key(self) -> np.ndarray:
    """The key of the noise, int64 of shape [4]."""
    digest = hashlib.blake2b(str(self).encode(), digest_size=32).digest()
    return np.frombuffer(digest, np.int64)


# What a `seed` argument takes.
SeedLike = Union[None, int, Seed]


@dataclasses.dataclass(frozen=True)
class Files:
  """Noise is kept in files of a directory on the machine that adds it.

  Attributes:
    directory: An absolute path on that machine, no symbolic link, for one run. It is
      made, for its owner alone, and locked by this process. Give one that outlives the
      process if training is to be resumed without computing all rounds again. `None`
      makes a temporary one, removed at exit or, if this process is killed, by the next.
    rewind: How many of the rounds served last can be served again, from an older
      state, without computing all rounds before them again.

  Raises:
    TypeError: If `rewind` is not an int.
    ValueError: If `rewind` is less than 1, or the path not absolute.
  """

  directory: Optional[str] = None
  rewind: int = 3

  def __post_init__(self) -> None:
    checks.check_positive_int('rewind', self.rewind)
    if self.directory is not None:
      object.__setattr__(self, 'directory', os.path.normpath(self.directory))
      if not os.path.isabs(self.directory):
        raise ValueError(f'directory must be an absolute path, got {self.directory!r}.')


# Where the past of the noise is: 'auto', 'in_process', 'state', 'redraw', 'files', or
# `Files` that say where.
Storage = Union[str, Files]


class IndependentOptions(typing_extensions.TypedDict, total=False):
  """Options of noise that is independent in each round: without `storage`."""

  seed: SeedLike  # Whether noise is secret, or which stream it is; see `Options`.
  generator: str  # What random words it is made of; see `Options`.


class Options(IndependentOptions, total=False):
  """What builders and queries take about their noise, as keywords; none is needed.

  Attributes:
    seed: `None`, the default, for secret noise, which alone protects anybody. An int or
      a `Seed` makes noise reproducible, for simulations; whoever knows it can remove
      the noise. An int takes the seed's next stream in this process: a program that
      makes the same things in the same order gets the same bits, and no two of these
      things the same. A `Seed` says which stream.
    generator: What random words the noise is made of: 'chacha20', a cipher's; 'philox',
      faster, and no cipher; 'auto', the default, for the first in secret noise and the
      second with a seed.
    storage: Where what correlated noise remembers of earlier rounds is: 'state' carries
      it in the state, 'redraw' draws it again in each round, 'files' or a `Files` keeps
      it in files of the machine that adds the noise. 'auto', the default, takes what is
      least work inside TFF, where a state travels in each round; 'in_process' is for a
      state that stays where it is, and keeps the past there, but in files if it is
      above 4 GiB.
  """

  storage: Storage


STORAGES = ('state', 'redraw', 'files')


class CheckedOptions(NamedTuple):
  """All options, with defaults filled in; see `Options`."""

  seed: SeedLike = None
  generator: str = 'auto'
  storage: Storage = 'auto'


def checked(given: Mapping[str, Any], known: type = Options) -> CheckedOptions:
  """The options of a builder or query, with defaults; unknown ones are a TypeError."""
  names = list(known.__annotations__)
  for name in given:
    if name not in names:
      raise TypeError(
        f'{name!r} is not an argument of this function, nor an option of its noise, '
        f'which are {", ".join(names)}.'
      )
  if 'storage' in given:
    check_storage(given['storage'])
  return CheckedOptions(**given)


def check_storage(storage: Any) -> None:
  """Refuses anything but a place for the past of the noise."""
  if isinstance(storage, str):
    if storage not in ('auto', 'in_process', *STORAGES):
      raise ValueError(
        f"storage must be 'auto', 'in_process', {', '.join(map(repr, STORAGES))} or "
        f'noise.Files(...), got {storage!r}.'
      )
  elif not isinstance(storage, Files):
    raise TypeError(f'storage must be a string or a Files, got {storage!r}.')


def resolve(seed: SeedLike) -> Optional[Seed]:
  """The stream of a `seed` argument; each call takes the next one of an int."""
  if seed is None or isinstance(seed, Seed):
    return seed
  if not _is_int(seed):
    raise TypeError(
      f'seed must be an int, a noise.Seed or None, got {type(seed).__name__}.'
    )
  value = int(seed)
  with _lock:
    stream = _taken[value]
    _taken[value] += 1
  return Seed(value, stream)


def for_factory(seed: SeedLike) -> Callable[[], Optional[Seed]]:
  """The seeds of the queries that a factory builds, one after the other.

  The first two are the same stream: of a query that is only looked at, and of the first
  process. Each one after is a part of its own: no two processes have the same noise.
  """
  resolved = resolve(seed)
  if resolved is not None and resolved.part:
    raise ValueError(
      f'a factory needs a whole stream, to give parts to its processes; got {resolved}.'
    )
  built = -1

  def following() -> Optional[Seed]:
    nonlocal built
    with _lock:
      built += 1
      part = max(0, built - 1)
    if resolved is None:
      return None
    return dataclasses.replace(resolved, part=part)

  return following


def _is_int(number: Any) -> bool:
  return isinstance(number, (int, np.integer)) and not isinstance(number, bool)
