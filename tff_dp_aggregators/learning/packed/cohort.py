"""A round's clients, cut into packs: what a round is told.

A *row* has of a client its first example, how many it has, and its key. As an argument
of a computation of TFF's, rows take some 400 bytes a client, in two processes. So they
are made pack by pack, from 24 bytes a client: when a worker is given a pack, or for a
private file of each pack, which the computation reads as it comes to it.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.learning.schedules import checking
from tff_dp_aggregators.noise import private_directory

# Of a client: its first example, number of examples and key.
_COLUMNS = 3
_ROW_BYTES = 8 * _COLUMNS
_PAGE_BYTES = 4096  # Of a file, by which it is rounded up.


class Cohort(Sequence[np.ndarray]):
  """Clients of a round, most examples first; a sequence of the rows of each pack."""

  def __init__(
    self,
    data: data_lib.PackedData,
    clients: np.ndarray,
    keys: np.ndarray,
    cut: Callable[[np.ndarray], np.ndarray],
  ):
    """Orders and cuts them.

    Args:
      data: Their examples.
      clients: Client numbers, int64 of shape [cohort].
      keys: What decides the order of each one's examples, uint64 of shape [cohort].
      cut: Where packs begin and end, int64, of how many examples each client has.

    Raises:
      TypeError: If `clients` are no vector of whole numbers.
      ValueError: If one of them is not there, or twice, or there is not a key for each.
    """
    self._clients = checking.check_cohort('clients', clients, len(data))
    if np.shape(keys) != self._clients.shape:
      raise ValueError(
        f'keys must be as many as clients, {len(self._clients)}; got an array of shape '
        f'{list(np.shape(keys))}. local_order.keys makes one for each.'
      )
    self._data, self._keys = data, keys.view(np.int64)
    sizes = data.sizes(self._clients)
    self._cuts = cut(sizes)
    self._order = np.argsort(np.negative(sizes, out=sizes), kind='stable')

  def __len__(self) -> int:
    return len(self._cuts) - 1

  def __getitem__(self, number: Any) -> Any:
    """The rows of a pack, int64 of shape [clients, 3]; of a slice a list of them."""
    if isinstance(number, slice):
      return [self[each] for each in range(len(self))[number]]
    number = range(len(self))[number]
    chosen = self._order[self._cuts[number] : self._cuts[number + 1]]
    clients = self._clients[chosen]
    starts, sizes = self._data.starts(clients), self._data.sizes(clients)
    return np.stack([starts, sizes, self._keys[chosen]], axis=1)

  @contextlib.contextmanager
  def in_files(self, run: str) -> Iterator[str]:
    """Has the rows of each pack in a file, which `rows_in` reads, for a while.

    Args:
      run: Whose files they are, as in `private_directory`.

    Yields:
      How the names of the files begin.
    """
    num_bytes = _ROW_BYTES * len(self._clients) + _PAGE_BYTES * len(self)
    directory = private_directory.open_temporary(num_bytes).path
    # Other names each time: a computation that was given up finds its rows or nothing.
    begin = os.path.join(directory, f'{run}.rows-{secrets.token_hex(8)}.')
    try:
      for number, rows in enumerate(self):
        private_directory.write(_name(begin, number), rows.astype('<i8').tobytes())
      yield begin
    finally:
      for number in range(len(self)):
        with contextlib.suppress(OSError):
          os.unlink(_name(begin, number))


def _name(begin: str, number: int) -> str:
  # As files of noise are called, so that what a killed process left is removed.
  return f'{begin}{number}.0'


def rows_in(begin: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
  """The rows of a pack, inside a computation.

  Args:
    begin: What `Cohort.in_files` yields, a string scalar.
    number: Of the pack, an integer scalar.

  Returns:
    int64 of shape [clients, 3].
  """
  name = tf.strings.join([begin, tf.strings.as_string(number), '.0'])
  rows = tf.io.decode_raw(tf.io.read_file(name), tf.int64)
  return tf.reshape(rows, [-1, _COLUMNS])
