"""Seeds of reproducible noise, and which of a seed's streams somebody has."""

import collections
import dataclasses
import hashlib
import threading
from typing import Any, Callable, Optional, Union

import numpy as np

_lock = threading.Lock()
# Streams that were taken in this process, by seed.
_taken: 'collections.Counter[int]' = collections.Counter()


@dataclasses.dataclass(frozen=True)
class Seed:
  """One stream of reproducible noise, exactly.

  Noise of equal seeds is equal; noise of two that differ in anything is independent, as
  far as a simulation can tell.

  Arguments `seed` take `None` for secret noise, an int or a `Seed`. An int takes the
  seed's next stream in this process: a program that makes the same things in the same
  order gets the same bits, and no two of these things the same. A `Seed` says which
  stream.

  Arguments `generator` say what random words the noise is made of: 'chacha20', a
  cipher's; 'philox', faster, and no cipher; 'auto' for the first in secret noise and
  the second with a seed.

  Example:
    >>> Seed(7), str(Seed(7, stream=2))
    (Seed(value=7, stream=0, part=0), 'seed 7, stream 2')

  Attributes:
    value: Any whole number.
    stream: Which of its streams, from 0.
    part: Which part of a stream. It is 0, but for what a factory gives each process
      that it creates after the first.

  Raises:
    TypeError: If one of them is no int.
    ValueError: If `stream` or `part` is negative.
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


def resolve(seed: SeedLike) -> Optional[Seed]:
  """The stream that a `seed` argument means.

  `seed`: `None` for secret noise; a `Seed`; or an int, of which each call takes the
  next stream, from 0 in each process.
  """
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


def identity(seed: Optional[Seed]) -> str:
  """What may be said of a seed in public: which it is, or 'secret'."""
  return 'secret' if seed is None else str(seed)


def for_factory(seed: SeedLike) -> Callable[[], Optional[Seed]]:
  """The seeds of the queries that a factory builds, one after the other.

  The first is of a query that is only looked at. The second, for the first process, is
  the same stream; each one after is a part of its own, so that no two processes of a
  factory have the same noise.
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
