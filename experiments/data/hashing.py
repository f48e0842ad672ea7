"""Hashes of ids, texts and rows of numbers, equal in every process.

Draws by hash, such as which clients are held out, depend on the seed and the data, not
on the order of rows in a file.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np

_DIGEST = 16
# Constants of SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number
# generators", 2014.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# By ASCII code: characters that begin a number; and those other than digits that are in
# floats, such as 7.0 and 1e-05, or in numbers in groups.
_BEGINS_NUMBER, _IS_IN_FLOAT = np.zeros((2, 128), bool)
_BEGINS_NUMBER[list(b'0123456789+-.')] = True
_IS_IN_FLOAT[list(b".,+-' ")] = True
_ROUNDS = np.arange(1, 5, dtype=np.uint64)


def of_texts(texts: Sequence[str]) -> np.ndarray:
  """Returns BLAKE2b digests of texts: uint64 [texts, 2]."""
  digests = [
    hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=_DIGEST).digest()
    for text in texts
  ]
  return _as_pairs(b''.join(digests))


def of_ids(ids: Sequence[str]) -> np.ndarray:
  """Returns distinct keys of ids: uint64 [ids, 2].

  Ids of at most 16 bytes are permuted one-to-one; the key of others is BLAKE2b.
  """
  encoded = [each.encode('utf-8', 'surrogatepass') for each in ids]
  is_short = np.array([len(e) <= _DIGEST and b'\0' not in e for e in encoded], bool)
  padded = b''.join(each[:_DIGEST].ljust(_DIGEST, b'\0') for each in encoded)
  keys = _scrambled(_as_pairs(padded))
  if not is_short.all():
    keys[~is_short] = of_texts([ids[i] for i in np.flatnonzero(~is_short)])
  return keys


def of_short_ids(ids: Union[Sequence[Any], np.ndarray]) -> Optional[np.ndarray]:
  """Returns the keys of `of_ids`, faster, if all ids have 1 to 16 ASCII characters.

  Returns `None` otherwise, and if an id begins or ends with a space, contains a null
  character, or may be a number in another notation than that of integers.
  """
  if isinstance(ids, np.ndarray):
    if ids.dtype.kind != 'U' or ids.ndim != 1:
      return None
    array = ids
  elif set(map(type, ids)) == {str} and '\0' not in ''.join(ids):
    array = np.array(ids)  # Null characters would be taken for padding.
  else:
    return None
  width = array.dtype.itemsize // 4
  if not 1 <= width <= _DIGEST:
    return None
  codes = array.view(np.uint32).reshape(len(array), width)
  if codes.max() > 127 or codes[:, 0].min() <= ord(' '):
    return None
  ends = np.count_nonzero(codes, axis=1) - 1
  if codes[np.arange(len(codes)), ends].min() <= ord(' '):
    return None
  begins = _BEGINS_NUMBER[codes[:, 0]]
  if begins.any() and _IS_IN_FLOAT[codes[begins]].any():
    return None
  padded = np.zeros((len(array), _DIGEST), np.uint8)
  padded[:, :width] = codes
  return _scrambled(_as_pairs(padded.tobytes()))


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
