"""Random draws for schemes: for each client separately, or from a set of clients.

Where the guarantee relies on sampling, each draw for a client is a hash of the seed,
the sampling with all its parameters, a purpose and the client's key. The key is a hash
of the client's id, keyed by the seed. So adding or removing a client does not change
the draws of others, and samplings with other parameters have different draws.
"""

import collections
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

# Constants of SplitMix64's finaliser; `learning.packed` has the same in TensorFlow.
INCREMENT = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)


def keys_of_ids(ids: Sequence[Any], seed: int) -> np.ndarray:
  """Keys of clients, each from the seed and its id alone: uint64 of shape [clients]."""
  secret = hashlib.sha256(f'tff_dp_aggregators ids {int(seed)}'.encode()).digest()
  keyed, digests = hashlib.blake2b(key=secret, digest_size=8), bytearray()
  for client_id in ids:
    keyed_id = keyed.copy()
    keyed_id.update(str(client_id).encode('utf-8', 'surrogatepass'))
    digests += keyed_id.digest()
  return np.frombuffer(digests, '<u8').astype(np.uint64)


def check_ids(ids: Sequence[Any], name: str = 'ids') -> None:
  """Raises ValueError if two ids have the same text, such as 1, '1' and '1 '."""
  texts = [unicodedata.normalize('NFC', str(each).strip()) for each in ids]
  if len(set(texts)) < len(texts):
    text = collections.Counter(texts).most_common(1)[0][0]
    raise ValueError(
      f'{name} has {text!r} for two clients, which would be drawn together; give each '
      'client one of its own.'
    )


def hashed(
  sampling: Any, seed: int, keys: np.ndarray, purpose: str, step: int = 0
) -> np.ndarray:
  """Pseudorandom uint64 of shape [clients], each from its client's key alone."""
  parameters = json.dumps(sampling.to_json(), sort_keys=True)
  return of_step(seed, step, keys, f'{purpose} {parameters}')


def of_step(seed: int, step: int, clients: np.ndarray, purpose: str) -> np.ndarray:
  """Hashes of clients in a step; they reveal neither the seed nor other steps' hashes.

  The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) is applied twice, with
  secret numbers of the step: once would reveal how the hashes of two clients differ.
  """
  text = f'tff_dp_aggregators {purpose} {int(seed)} {int(step)}'.encode()
  first, second = np.frombuffer(hashlib.sha256(text).digest()[:16], '<u8')
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
  """Maps hashes to multiples of 2^-53 in [0, 1): float64 of the same shape."""
  return (numbers >> np.uint64(11)) * 2.0**-53


def generator(seed: int, *key: int) -> np.random.Generator:
  """A generator whose stream is independent for each `key`, such as a round."""
  sequence = np.random.SeedSequence(seed, spawn_key=key)
  return np.random.Generator(np.random.PCG64(sequence))


def number_type(num_clients: int) -> type:
  """The smallest integer type for client numbers, to save memory."""
  return np.int32 if num_clients <= 2**31 else np.int64


class Pool:
  """A set of numbers; drawing or adding k of them takes time proportional to k."""

  def __init__(self, numbers: np.ndarray):
    """Initializes the pool; `numbers` are not copied, and are changed."""
    self._numbers = numbers
    self._size = len(numbers)

  def __len__(self) -> int:
    return self._size

  def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
    """Removes and returns a uniformly random subset of `count` numbers."""
    places = rng.choice(self._size, size=count, replace=False)
    drawn = self._numbers[places]
    rest = self._size - count
    stays = np.ones(count, bool)
    stays[places[places >= rest] - rest] = False
    self._numbers[places[places < rest]] = self._numbers[rest : self._size][stays]
    self._size = rest
    return drawn

  def add(self, numbers: np.ndarray) -> None:
    """Adds numbers that are not in the pool."""
    size = self._size + len(numbers)
    if size > len(self._numbers):
      grown = np.empty(max(size, 2 * self._size), numbers.dtype)
      grown[: self._size] = self._numbers[: self._size]
      self._numbers = grown
    self._numbers[self._size : size] = numbers
    self._size = size
