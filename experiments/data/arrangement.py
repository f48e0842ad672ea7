"""Who has which rows, and which of them are for testing; by hashes and a seed.

Nothing depends on the order of rows in a file, nor on that of files in a folder.
"""

import bisect
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ..options import data as data_options
from . import hashing
from . import problems
from . import spill
from . import table

# Uses of the seed.
_ORDER, _CLIENTS, _ROUNDING, _PARTITION = range(4)
# Rows that are sorted at once, unless there are more than so many buckets of them.
_BUCKET, _MOST_BITS = 2**18, 8
_BUFFER = 2**15
_MANY = 2**16  # Clients that are looked at together.


class Arrangement(NamedTuple):
  """Rows brought into an order, client after client."""

  order: np.ndarray  # Number of the row in the file by its place here, int64.
  is_test: np.ndarray  # Whether a row is for testing, by its place; int8.
  starts: np.ndarray  # Place of the first row of each client that takes part, int64.
  ends: np.ndarray  # Place behind the last one.
  # A row in the file of each client, the first; empty if clients were made.
  first_rows: np.ndarray
  num_test_clients: int  # Clients that never take part.


def of_clients(rows: table.Rows, options: data_options.Data) -> Arrangement:
  """Arranges rows by the clients who have them."""
  assert rows.clients is not None and options.files is not None
  folder = options.files.scratch
  order = spill.Spill(folder, np.int64)
  starts = spill.Spill(folder, np.int64)
  hashes = spill.Spill(folder, np.uint64)
  first_rows = spill.Spill(folder, np.int64)
  drawn = _row_keys(rows, options.seed)
  keys = (np.column_stack(each) for each in zip(table.chunks(rows.clients), drawn))
  for some in sorted_rows(keys, len(rows.hashes), 3, folder):
    # A client's rows have the same first key, so they are here all together.
    is_first = np.ones(len(some), bool)
    is_first[1:] = (some[1:, :2] != some[:-1, :2]).any(axis=1)
    firsts = np.flatnonzero(is_first)
    starts.append(len(order) + firsts)
    hashes.append(some[firsts, 0])
    numbers = some[:, 3].astype(np.int64)
    first_rows.append(np.minimum.reduceat(numbers, firsts))
    order.append(numbers)
  sizes = np.diff(starts.array, append=len(order))
  is_kept, held = _held_out(hashes.array, sizes, options.files, options.seed)
  marks = spill.Spill(folder, np.int8)
  kept = [spill.Spill(folder, np.int64) for _ in range(3)]
  for first in range(0, len(sizes), _MANY):
    part = slice(first, first + _MANY)
    size, start, keeps = sizes[part], starts.array[part], is_kept[part]
    # All of a client's rows are for testing, or the first some.
    tested = np.where(keeps, held[part], size)
    within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    marks.append(within < np.repeat(tested, size))
    numbers = first_rows.array[part]
    for each, values in zip(kept, (start + held[part], start + size, numbers)):
      each.append(values[keeps])
  return Arrangement(
    order.array,
    marks.array,
    starts=kept[0].array,
    ends=kept[1].array,
    first_rows=kept[2].array,
    num_test_clients=int(len(is_kept) - np.count_nonzero(is_kept)),
  )


def _row_keys(rows: table.Rows, seed: int) -> Iterator[np.ndarray]:
  """By what rows of one client, or of nobody, are brought into an order."""
  for content in table.chunks(rows.hashes):
    yield hashing.seeded(content, seed, _ORDER)


def sorted_rows(
  keys: Iterable[np.ndarray], count: int, width: int, folder: str
) -> Iterator[np.ndarray]:
  """Rows in the order of their keys, some at a time, with their numbers behind.

  They are dealt out to buckets on disk by the first key, a hash, each of which is
  sorted by itself; so rows with the same first key come together.

  `keys`: Chunks of uint64 [rows, width], of `count` rows in all.
  """
  bits = min(_MOST_BITS, max(0, math.ceil(math.log2(max(1, count) / _BUCKET))))
  buckets = [
    spill.Spill(folder, np.uint64, (width + 1,), _BUFFER) for _ in range(2**bits)
  ]
  done = 0
  for chunk in keys:
    numbers = np.arange(done, done + len(chunk), dtype=np.uint64)
    chunk = np.column_stack([chunk, numbers])
    done += len(chunk)
    # In two steps, as no bits at all would be a shift by 64.
    places = (chunk[:, 0] >> np.uint64(32)) >> np.uint64(32 - bits)
    order = np.argsort(places, kind='stable')
    ends = np.cumsum(np.bincount(places.astype(np.int64), minlength=2**bits))
    for bucket, part in zip(buckets, np.split(chunk[order], ends[:-1])):
      bucket.append(part)
  for bucket in buckets:
    if len(bucket):
      # The last key is the first to sort by.
      yield bucket.array[np.lexsort(bucket.array.T[::-1])]


def _held_out(
  hashes: np.ndarray, sizes: np.ndarray, files: data_options.Files, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Which clients take part, and how many examples of each are for testing."""
  count = len(sizes)
  is_kept, held = np.ones(count, bool), np.zeros(count, np.int64)
  if files.test_clients is not None:
    if count < 2:
      raise problems.DataError(
        'the data have one client only, of whom none can be held out for testing. '
        'Give --test_examples or --test_data.'
      )
    # Each client by itself: who else is there does not decide on it.
    drawn = hashing.seeded(hashes, seed, _CLIENTS) / 2.0**64
    is_kept = drawn >= files.test_clients
    # But of few clients, where chance would leave none on one side.
    if is_kept.all():
      is_kept[np.argmin(drawn)] = False
    elif not is_kept.any():
      is_kept[np.argmax(drawn)] = True
  elif files.test_examples is not None:
    # Rounded up or down by chance, so that small clients give their share as well.
    chance = hashing.seeded(hashes, seed, _ROUNDING) / 2.0**64
    wanted = np.floor(files.test_examples * sizes + chance).astype(np.int64)
    held = np.minimum(wanted, sizes - 1)
    if not held.any():
      raise problems.DataError(
        f'test_examples={files.test_examples} holds out nothing: clients have '
        f'{int(sizes.max())} examples at most. Give a larger share, --test_clients or '
        '--test_data.'
      )
  return is_kept, held


def of_nobody(rows: table.Rows, options: data_options.Data) -> Arrangement:
  """Deals rows out to clients that are made for it."""
  files, num_clients = options.files, options.num_clients
  assert files is not None and num_clients is not None
  folder, seed, alpha = files.scratch, options.seed, options.dirichlet_alpha
  order = spill.Spill(folder, np.int64)
  keys = (drawn[:, None] for drawn in _row_keys(rows, seed))
  for some in sorted_rows(keys, len(rows.hashes), 1, folder):
    order.append(some[:, 1])
  count, tested = len(order), 0
  if files.test_examples is not None:
    tested = max(1, round(files.test_examples * count))
  left = count - tested
  if left < num_clients:
    raise problems.DataError(
      f'num_clients must be at most {max(left, 0)}, the number of training examples; '
      f'got {num_clients}.'
    )
  rng = np.random.default_rng([seed, _PARTITION])
  places = order.array
  if files.partition == 'label_skew':
    labels = rows.labels_of(places[tested:]).astype(np.int32)
    parts = split_with_label_skew(labels, num_clients, alpha, rng)
    sizes = np.array([len(part) for part in parts])
    dealt = places[tested:][np.concatenate(parts)]
    places = np.concatenate([places[:tested], dealt])
  elif files.partition == 'quantity_skew':
    sizes = skewed_sizes(left, num_clients, alpha, rng)
  else:
    sizes = equal_sizes(left, num_clients)
  ends = tested + np.cumsum(sizes)
  is_test = np.zeros(count, np.int8)
  is_test[:tested] = 1
  return Arrangement(
    order=places,
    is_test=is_test,
    starts=ends - sizes,
    ends=ends,
    first_rows=np.zeros(0, np.int64),
    num_test_clients=0,
  )


def split_with_label_skew(
  labels: np.ndarray,
  num_clients: int,
  dirichlet_alpha: float,
  rng: np.random.Generator,
) -> list[np.ndarray]:
  """Deals examples out to clients of equal size and skewed label distributions.

  Each client draws a label distribution from a Dirichlet and then its examples, label
  by label from it, among those that are left. Every example is dealt out once.

  `labels`: Class numbers, int [num_examples]; clients are no more than these.
  """
  classes = np.unique(labels)
  pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in classes]
  parts = []
  for size in equal_sizes(len(labels), num_clients):
    wanted = rng.dirichlet(np.full(len(classes), dirichlet_alpha))
    part: list[int] = []
    while len(part) < size:
      left = np.array([len(pool) > 0 for pool in pools])
      weights = np.where(left, wanted, 0.0)
      if weights.sum() <= 0:  # The client's labels are used up: any other.
        weights = left.astype(float)
      shares = np.cumsum(weights / weights.sum())
      shares = (shares / shares[-1]).tolist()
      pool = [0]
      while pool and len(part) < size:  # As `rng.choice`, until a label is used up.
        pool = pools[bisect.bisect_right(shares, rng.random())]
        part.append(pool.pop())
    parts.append(np.array(part))
  return parts


def equal_sizes(num_examples: int, num_clients: int) -> np.ndarray:
  """How many examples each client gets, of sizes that differ by at most one."""
  sizes = np.full(num_clients, num_examples // num_clients)
  sizes[: num_examples % num_clients] += 1
  return sizes


def skewed_sizes(
  num_examples: int,
  num_clients: int,
  dirichlet_alpha: float,
  rng: np.random.Generator,
) -> np.ndarray:
  """How many examples each client gets, by shares from a Dirichlet; at least one."""
  shares = rng.dirichlet(np.full(num_clients, dirichlet_alpha))
  more = rng.multinomial(num_examples - num_clients, shares / shares.sum())
  return np.asarray(1 + more)
