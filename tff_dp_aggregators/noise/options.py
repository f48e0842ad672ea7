"""Options of the noise of all builders and queries: seed, generator and storage.

They are passed as `**noise_options`; their defaults are in `CheckedOptions`.
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
# Number of streams taken in this process, by seed.
_taken: 'collections.Counter[int]' = collections.Counter()


@dataclasses.dataclass(frozen=True)
class Seed:
  """One stream of reproducible noise.

  Equal seeds have equal noise; the noise of two seeds that differ in any attribute is
  independent, as far as a simulation can tell.

  Raises:
    TypeError: If an attribute is not an int.
    ValueError: If `stream` or `part` is negative.

  Example:
    >>> Seed(7), str(Seed(7, stream=2))
    (Seed(value=7, stream=0, part=0), 'seed 7, stream 2')

  Attributes:
    value: Any whole number.
    stream: Index of the stream, from 0.
    part: Index of the part of the stream. It is 0, except in processes after the first
      one that a factory creates.
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
    """Returns the key of the noise, int64 of shape [4]."""
    digest = hashlib.blake2b(str(self).encode(), digest_size=32).digest()
    return np.frombuffer(digest, np.int64)


# Type of `seed` arguments.
SeedLike = Union[None, int, Seed]


@dataclasses.dataclass(frozen=True)
class Files:
  """Stores noise in files of a directory, on the machine that adds the noise.

  Attributes:
    directory: An absolute path on that machine, not a symbolic link, for one run. It is
      created with access for its owner only, and locked by this process. To resume
      training without computing all rounds again, use one that outlives the process.
      `None` creates a temporary one, removed at exit or, if this process is killed, by
      the next process.
    rewind: Number of last rounds that can be run again, from an older state, without
      computing all rounds before them again.

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


# Storage of the noise of earlier rounds: 'auto', 'in_process', 'state', 'redraw',
# 'files', or a `Files`.
Storage = Union[str, Files]


class IndependentOptions(typing_extensions.TypedDict, total=False):
  """Options of noise that is independent in each round: without `storage`."""

  seed: SeedLike  # `None` for secret noise, or the stream; see `Options`.
  generator: str  # Generator of the random words; see `Options`.


class Options(IndependentOptions, total=False):
  """Optional keyword arguments of builders and queries about their noise.

  Attributes:
    seed: `None`, the default, for secret noise; only secret noise protects anybody. An
      int or a `Seed` makes noise reproducible, for simulations; whoever knows it can
      remove the noise. An int takes the seed's next stream in this process: a program
      that creates the same queries in the same order gets the same bits, and no two of
      these queries get the same noise. A `Seed` fixes the stream.
    generator: Generator of the random words for the noise: 'chacha20', a cipher;
      'philox', faster, but not a cipher; 'auto', the default, for 'chacha20' in secret
      noise and 'philox' with a seed.
    storage: Where correlated noise stores values of earlier rounds: 'state' carries
      them in the state, 'redraw' stores nothing and draws them again in each round,
      'files' or a `Files` stores them in files of the machine that adds the noise.
      'auto', the default, takes the least work inside TFF, where the state is
      transferred in each round. 'in_process' is for a state that is not transferred: it
      stores values in the state, or in files if they exceed 4 GiB.
  """

  storage: Storage


STORAGES = ('state', 'redraw', 'files')


class CheckedOptions(NamedTuple):
  """All options, with their defaults; see `Options`."""

  seed: SeedLike = None
  generator: str = 'auto'
  storage: Storage = 'auto'


def checked(options: Mapping[str, Any], allowed: type = Options) -> CheckedOptions:
  """Returns options with defaults; raises TypeError for options not in `allowed`."""
  names = list(allowed.__annotations__)
  for name in options:
    if name not in names:
      raise TypeError(
        f'{name!r} is not an argument of this function, nor an option of its noise, '
        f'which are {", ".join(names)}.'
      )
  if 'storage' in options:
    check_storage(options['storage'])
  return CheckedOptions(**options)


def check_storage(storage: Any) -> None:
  """Raises TypeError or ValueError if `storage` is not valid."""
  if isinstance(storage, str):
    if storage not in ('auto', 'in_process', *STORAGES):
      raise ValueError(
        f"storage must be 'auto', 'in_process', {', '.join(map(repr, STORAGES))} or "
        f'noise.Files(...), got {storage!r}.'
      )
  elif not isinstance(storage, Files):
    raise TypeError(f'storage must be a string or a Files, got {storage!r}.')


def resolve(seed: SeedLike) -> Optional[Seed]:
  """Returns the stream of a `seed` argument; for an int, each call takes the next."""
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
  """Returns a function that returns the seed of the next query that a factory builds.

  The first two seeds are equal: those of the sample query and of the first process.
  Later ones are different parts of the stream: no two processes have the same noise.
  """
  resolved = resolve(seed)
  if resolved is not None and resolved.part:
    raise ValueError(
      f'a factory needs a whole stream, to give parts to its processes; got {resolved}.'
    )
  built = -1

  def next_seed() -> Optional[Seed]:
    nonlocal built
    with _lock:
      built += 1
      part = max(0, built - 1)
    if resolved is None:
      return None
    return dataclasses.replace(resolved, part=part)

  return next_seed


def _is_int(number: Any) -> bool:
  return isinstance(number, (int, np.integer)) and not isinstance(number, bool)
