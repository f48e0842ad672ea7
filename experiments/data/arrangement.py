"""Assigns rows to clients, and to training or testing, by hashes and a seed.

The result does not depend on the order of rows in a file, or of files in a folder.
"""

import bisect
from collections.abc import Iterator
from typing import NamedTuple, Optional

import numpy as np

from ..options import data as data_options
from . import hashing
from . import problems
from . import spill
from . import table

_ORDER, _CLIENTS, _ROUNDING, _PARTITION = range(4)  # Separate uses of the seed.
_PART = 2**14


class Arrangement(NamedTuple):
  """An order of rows in which each client's rows are together."""

  order: np.ndarray  # Index in the file of the row at each position.
  starts: np.ndarray  # Position of the first row of each participating client, int64.
  ends: np.ndarray  # Position after its last row. Rows of no client are for testing.
  # Keys of the clients' ids, uint64 [clients, 2]; `None` if clients were made.
  keys: Optional[np.ndarray]
  num_test_clients: int  # Number of clients that never participate.
  num_positions: int

  def parts(self) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields slices of the positions, and which of them are for testing."""
    for first in range(0, self.num_positions, _PART):
      positions = np.arange(first, min(first + _PART, self.num_positions))
      before = np.searchsorted(self.starts, positions, side='right') - 1
      is_test = (before < 0) | (positions >= self.ends[before])
      yield slice(first, first + len(positions)), is_test

  def training(self, array: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the entries for training of an array in order."""
    for index, is_test in self.parts():
      yield array[index][~is_test]


def of_clients(rows: table.Rows, options: data_options.Data) -> Arrangement:
  """Arranges rows by the clients of the data."""
  assert rows.clients is not None and options.files is not None
  keys = _sorted(rows, options.seed, options.files.scratch)
  is_first = np.ones(len(keys), bool)
  is_first[1:] = keys[1:, 0] != keys[:-1, 0]
  is_first[1:] |= keys[1:, 1] != keys[:-1, 1]
  starts = np.flatnonzero(is_first)
  client_keys = keys[starts, :2].astype(np.uint64)
  sizes = np.diff(starts, append=len(keys))
  is_kept, num_held = _held_out(client_keys[:, 0], sizes, options.files, options.seed)
  return Arrangement(
    keys[:, -1],
    (starts + num_held)[is_kept],  # A client's first rows may be for testing.
    (starts + sizes)[is_kept],
    client_keys[is_kept],
    num_test_clients=int(np.count_nonzero(~is_kept)),
    num_positions=len(keys),
  )


def _sorted(rows: table.Rows, seed: int, folder: str) -> np.ndarray:
  """Returns rows' keys in order: clients if there are any, hashes, and indices."""
  width = 2 if rows.clients is None else 4
  spilled = spill.Spill(folder, '>u8', (width,))
  for first in range(0, len(rows.hashes), _PART):
    part = slice(first, first + _PART)
    hashes = hashing.seeded(rows.hashes[part], seed, _ORDER)
    keys = [hashes, first + np.arange(len(hashes), dtype=np.uint64)]
    if rows.clients is not None:
      keys.insert(0, rows.clients[part])
    spilled.append(np.column_stack(keys))
  return spilled.sorted_array()


def _held_out(
  hashes: np.ndarray, sizes: np.ndarray, files: data_options.Files, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns which clients participate, and the number of test examples of each."""
  count = len(sizes)
  is_kept, num_held = np.ones(count, bool), np.zeros(count, np.int64)
  if files.test_clients is not None:
    if count < 2:
      raise problems.DataError(
        'the data have one client only, of whom none can be held out for testing. '
        'Give --test_examples or --test_data.'
      )
    # Whether a client is held out does not depend on which others there are.
    draws = hashing.seeded(hashes, seed, _CLIENTS) / 2.0**64
    is_kept = draws >= files.test_clients
    # But if clients are few, chance must not leave one side empty.
    if is_kept.all():
      is_kept[np.argmin(draws)] = False
    elif not is_kept.any():
      is_kept[np.argmax(draws)] = True
  elif files.test_examples is not None:
    # Rounded up or down at random, so that small clients contribute their share.
    offsets = hashing.seeded(hashes, seed, _ROUNDING) / 2.0**64
    num_wanted = np.floor(files.test_examples * sizes + offsets).astype(np.int64)
    num_held = np.minimum(num_wanted, sizes - 1)
    if not num_held.any():
      raise problems.DataError(
        f'test_examples={files.test_examples} holds out nothing: clients have '
        f'{int(sizes.max())} examples at most. Give a larger share, --test_clients or '
        '--test_data.'
      )
  return is_kept, num_held


def of_made_clients(rows: table.Rows, options: data_options.Data) -> Arrangement:
  """Partitions rows among clients that are made for data without clients."""
  files, num_clients = options.files, options.num_clients
  assert files is not None and num_clients is not None
  seed, alpha = options.seed, options.dirichlet_alpha
  order = _sorted(rows, seed, files.scratch)[:, -1]
  count, num_test = len(order), 0
  if files.test_examples is not None:
    num_test = max(1, round(files.test_examples * count))
  num_training = count - num_test
  if num_training < num_clients:
    raise problems.DataError(
      f'num_clients must be at most {max(num_training, 0)}, the number of training '
      f'examples; got {num_clients}.'
    )
  rng = np.random.default_rng([seed, _PARTITION])
  if files.partition == 'label_skew':
    labels = rows.values[order[num_test:]].astype(np.int32)
    parts = split_with_label_skew(labels, num_clients, alpha, rng)
    sizes = np.array([len(part) for part in parts])
    training = order[num_test:][np.concatenate(parts)]
    order = np.concatenate([order[:num_test], training])
  elif files.partition == 'quantity_skew':
    sizes = skewed_sizes(num_training, num_clients, alpha, rng)
  else:
    sizes = equal_sizes(num_training, num_clients)
  ends = num_test + np.cumsum(sizes)
  return Arrangement(order, ends - sizes, ends, None, 0, num_positions=count)


def split_with_label_skew(
  labels: np.ndarray,
  num_clients: int,
  dirichlet_alpha: float,
  rng: np.random.Generator,
) -> list[np.ndarray]:
  """Partitions examples among clients of equal size and skewed label distributions.

  Each client draws a label distribution from a Dirichlet distribution, and its examples
  from the remaining ones by that. There are no more clients than examples.
  """
  classes = np.unique(labels)
  pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in classes]
  parts = []
  for size in equal_sizes(len(labels), num_clients):
    distribution = rng.dirichlet(np.full(len(classes), dirichlet_alpha))
    part: list[int] = []
    while len(part) < size:
      is_available = np.array([len(pool) > 0 for pool in pools])
      weights = np.where(is_available, distribution, 0.0)
      if weights.sum() <= 0:  # The client's labels are used up: takes any other.
        weights = is_available.astype(float)
      cumulative = np.cumsum(weights / weights.sum())
      cumulative = (cumulative / cumulative[-1]).tolist()
      pool = [0]
      while pool and len(part) < size:  # Like `rng.choice`, until a label is used up.
        pool = pools[bisect.bisect_right(cumulative, rng.random())]
        part.append(pool.pop())
    parts.append(np.array(part))
  return parts


def equal_sizes(num_examples: int, num_clients: int) -> np.ndarray:
  """Returns the clients' numbers of examples, which differ by at most one."""
  sizes = np.full(num_clients, num_examples // num_clients)
  sizes[: num_examples % num_clients] += 1
  return sizes


def skewed_sizes(
  num_examples: int,
  num_clients: int,
  dirichlet_alpha: float,
  rng: np.random.Generator,
) -> np.ndarray:
  """Returns the clients' numbers of examples: Dirichlet shares, at least one each."""
  shares = rng.dirichlet(np.full(num_clients, dirichlet_alpha))
  extra = rng.multinomial(num_examples - num_clients, shares / shares.sum())
  return np.asarray(1 + extra)
