"""What schemes draw: numbers of a client alone, and of a set of clients.

Where the guarantee rests on sampling, everything that is drawn for a client is a hash
of the seed, the sampling with all its numbers, a purpose and the client's key. The key
is a hash of the client's id, keyed by the seed. So a client that comes or goes changes
nobody else's draws, and samplings with other numbers have draws of their own.
"""

import collections
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

# SplitMix64's finaliser; `learning.packed` computes the same in TensorFlow.
INCREMENT = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)


def keys_of_ids(ids: Sequence[Any], seed: int) -> np.ndarray:
  """Keys of clients, by the seed and their own ids alone: uint64 of shape [clients]."""
  secret = hashlib.sha256(f'tff_dp_aggregators ids {int(seed)}'.encode()).digest()
  keyed, digests = hashlib.blake2b(key=secret, digest_size=8), bytearray()
  for each in ids:
    of_id = keyed.copy()
    of_id.update(str(each).encode('utf-8', 'surrogatepass'))
    digests += of_id.digest()
  return np.frombuffer(digests, '<u8').astype(np.uint64)


def check_ids(ids: Sequence[Any], name: str = 'ids') -> None:
  """Refuses ids that are written alike, as 1 and '1' are."""
  written = list(map(str, ids))
  if len(set(written)) < len(written):
    twice = collections.Counter(written).most_common(1)[0][0]
    raise ValueError(
      f'{name} has {twice!r} for two clients, which would be drawn together; give each '
      'client one of its own.'
    )


def hashed(
  sampling: Any, seed: int, keys: np.ndarray, purpose: str, step: int = 0
) -> np.ndarray:
  """Numbers that look uniform: uint64 of shape [clients], each of its client alone."""
  stated = json.dumps(sampling.to_json(), sort_keys=True)
  return of_step(seed, step, keys, f'{purpose} {stated}')


def of_step(seed: int, step: int, clients: np.ndarray, purpose: str) -> np.ndarray:
  """Hashes of clients in a step, from which neither the seed nor another step follows.

  The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) is applied twice with
  secret numbers of the step: once would tell how those of two clients differ.
  """
  begun = f'tff_dp_aggregators {purpose} {int(seed)} {int(step)}'.encode()
  first, second = np.frombuffer(hashlib.sha256(begun).digest()[:16], '<u8')
  clients = np.asarray(clients)
  if clients.dtype != np.uint64:
    clients = clients.astype(np.int64).astype(np.uint64)
  return mix(mix(clients + np.uint64(first)) ^ np.uint64(second))


def mix(numbers: np.ndarray) -> np.ndarray:
  """The finaliser of SplitMix64."""
  mixed = numbers + np.uint64(INCREMENT)
  for shift, factor in zip(SHIFTS[:2], FACTORS):
    mixed ^= mixed >> np.uint64(shift)
    mixed *= np.uint64(factor)
  mixed ^= mixed >> np.uint64(SHIFTS[2])
  return mixed


def uniform(numbers: np.ndarray) -> np.ndarray:
  """Numbers from hashes: multiples of 2^-53 in [0, 1): float64 of the same shape."""
  return (numbers >> np.uint64(11)) * 2.0**-53


def generator(seed: int, *key: int) -> np.random.Generator:
  """A generator for one purpose, such as a round; others have streams of their own."""
  sequence = np.random.SeedSequence(seed, spawn_key=key)
  return np.random.Generator(np.random.PCG64(sequence))


def number_type(num_clients: int) -> type:
  """The smallest integers that client numbers fit into: a population may be large."""
  return np.int32 if num_clients <= 2**31 else np.int64


class Pool:
  """A set of numbers from which some are drawn, at their own cost, and put back."""

  def __init__(self, numbers: np.ndarray):
    """Initializes the pool; `numbers` are not copied, and are changed."""
    self._numbers = numbers
    self._size = len(numbers)

  def __len__(self) -> int:
    return self._size

  def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
    """Takes out so many, all subsets of them being equally likely."""
    places = rng.choice(self._size, size=count, replace=False)
    drawn = self._numbers[places]
    rest = self._size - count
    stays = np.ones(count, bool)
    stays[places[places >= rest] - rest] = False
    self._numbers[places[places < rest]] = self._numbers[rest : self._size][stays]
    self._size = rest
    return drawn

  def add(self, numbers: np.ndarray) -> None:
    """Puts numbers in that are not there."""
    size = self._size + len(numbers)
    if size > len(self._numbers):
      grown = np.empty(max(size, 2 * self._size), numbers.dtype)
      grown[: self._size] = self._numbers[: self._size]
      self._numbers = grown
    self._numbers[self._size : size] = numbers
    self._size = size
