"""Hashes of ids, texts and rows of numbers, equal in every process.

Draws by hash, such as which clients are held out, depend on the seed and the data, not
on the order of rows in a file.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

_DIGEST = 16
# Constants of SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number
# generators", 2014.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ROUNDS = np.arange(1, 5, dtype=np.uint64)


def encoded(texts: Sequence[str]) -> list[bytes]:
  return [text.encode('utf-8', 'surrogatepass') for text in texts]


def of_texts(texts: Sequence[bytes]) -> np.ndarray:
  """Returns BLAKE2b digests of encoded texts: uint64 [texts, 2]."""
  digests = [hashlib.blake2b(each, digest_size=_DIGEST).digest() for each in texts]
  return _as_pairs(b''.join(digests))


def of_ids(ids: Sequence[bytes]) -> np.ndarray:
  """Returns distinct keys of encoded ids: uint64 [ids, 2].

  Ids of at most 16 bytes are permuted one-to-one; the key of others is BLAKE2b.
  """
  padded = np.array(ids, f'S{_DIGEST}')  # Longer ones are cut.
  num_kept = np.count_nonzero(padded.view(np.uint8).reshape(-1, _DIGEST), axis=1)
  keys = _scrambled(_as_pairs(padded.tobytes()))
  is_long = num_kept != np.fromiter(map(len, ids), np.int64, len(ids))
  if is_long.any():
    keys[is_long] = of_texts([ids[i] for i in np.flatnonzero(is_long)])
  return keys


def _as_pairs(digests: bytes) -> np.ndarray:
  return np.frombuffer(digests, '>u8').reshape(-1, 2).astype(np.uint64)


def _scrambled(pairs: np.ndarray) -> np.ndarray:
  """Permutes pairs of numbers pseudorandomly by a Feistel network."""
  left, right = pairs[:, 0], pairs[:, 1]
  for index in _ROUNDS:
    left, right = right, left ^ mixed(right ^ mixed(index))
  return np.stack([left, right], axis=1)


def mixed(numbers: np.ndarray) -> np.ndarray:
  """Permutes numbers pseudorandomly by the finalizer of SplitMix64."""
  with np.errstate(over='ignore'):
    z = numbers + _STEP
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return np.asarray(z ^ (z >> np.uint64(31)))


def of_rows(block: np.ndarray) -> np.ndarray:
  """Returns a hash of each row of float64 or uint64 numbers: uint64 [rows]."""
  column_keys = mixed(np.arange(block.shape[1], dtype=np.uint64))
  bits = np.ascontiguousarray(block).view(np.uint64)
  return np.asarray(np.add.reduce(mixed(bits ^ column_keys), axis=1, dtype=np.uint64))


def seeded(numbers: np.ndarray, seed: int, use: int) -> np.ndarray:
  """Returns hashes of numbers under a seed, independent for each `use`."""
  salt = hashlib.blake2b(f'{seed} {use}'.encode(), digest_size=8).digest()
  return mixed(numbers ^ np.frombuffer(salt, '>u8').astype(np.uint64))
