"""Brings rows into an order by their keys, with bounded memory, however many there are.

Rows are dealt out to buckets by the first bits of their keys, in a file without a name,
and each bucket is sorted by itself.
"""

import math
from collections.abc import Iterator

import numpy as np

from . import spill

_CHUNK = 2**16
_BUCKET = 2**18
_MOST_BITS = 12


def sorted_rows(keys: np.ndarray, folder: str) -> Iterator[np.ndarray]:
  """Rows in the order of their keys, some at a time.

  Rows with the same first key come together. Memory is for some hundred thousand rows,
  or for all those whose first key is the same, if these are more.

  `keys`: uint64 of shape [rows, number of keys]; the first are hashes, so that buckets
  are about equal.

  Returns uint64 of shape [some rows, number of keys + 1]: the keys, and the row's
  number.
  """
  count, width = keys.shape
  bits = max(0, math.ceil(math.log2(max(1, count) / _BUCKET)))
  if not bits:
    yield _sorted(_numbered(keys, 0, count))
    return
  shift = np.uint64(64 - min(bits, _MOST_BITS))
  sizes = np.zeros(2 ** min(bits, _MOST_BITS), np.int64)
  for first in range(0, count, _CHUNK):
    buckets = (keys[first : first + _CHUNK, 0] >> shift).astype(np.int64)
    sizes += np.bincount(buckets, minlength=len(sizes))
  ends = np.cumsum(sizes)
  places = ends - sizes
  rows = spill.writable(folder, np.uint64, count, (width + 1,))
  for first in range(0, count, _CHUNK):
    chunk = _numbered(keys, first, first + _CHUNK)
    buckets = (chunk[:, 0] >> shift).astype(np.int64)
    order = np.argsort(buckets, kind='stable')
    counts = np.bincount(buckets, minlength=len(sizes))
    starts = np.cumsum(counts) - counts
    within = np.arange(len(chunk)) - starts[buckets[order]]
    rows[places[buckets[order]] + within] = chunk[order]
    places += counts
  for first, end in zip(ends - sizes, ends):
    if end > first:
      yield _sorted(rows[first:end])


def _numbered(keys: np.ndarray, first: int, end: int) -> np.ndarray:
  chunk = keys[first:end]
  numbers = np.arange(first, first + len(chunk), dtype=np.uint64)
  return np.concatenate([chunk, numbers[:, None]], axis=1)


def _sorted(rows: np.ndarray) -> np.ndarray:
  order = np.lexsort(rows.T[::-1])  # The last is the first to sort by.
  return np.asarray(rows[order])
