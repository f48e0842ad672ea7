"""Gives a run access to its clients: by number, or laid out in files."""

import functools
import os
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import data


class Population:
  """The clients of a run, made from what `Clients.of` takes or `packed.PackedData`.

  Canaries are numbered after the clients, and have no examples.
  """

  def __init__(self, clients: Any, canaries: Optional[packed.Canaries] = None):
    self._canaries = canaries
    self._packed = clients if isinstance(clients, packed.PackedData) else None
    self._clients = None if self._packed else clients_lib.Clients.of(clients)

  def __len__(self) -> int:
    canaries = 0 if self._canaries is None else self._canaries.number
    return len(self._packed or self._clients or ()) + canaries

  @property
  def clients(self) -> clients_lib.Clients:
    """The clients by number."""
    if self._clients is None:
      raise ValueError(
        'packed.PackedData are for packed simulation alone; give the clients '
        'themselves, or leave run.packed_simulation on.'
      )
    return self._clients

  @property
  def ids(self) -> Optional[Sequence[Any]]:
    """The clients' ids by number; `None` if there are only numbers."""
    if self._clients is None:
      return None
    ids: Sequence[Any] = self._clients.ids
    return ids if self._canaries is None else self._canaries.ids_after(ids)

  def check_with(self, check: Callable[[Any, str], None]) -> None:
    """Calls `check` whenever examples are read: see `Clients.checked_by`."""
    if self._clients is not None:
      self._clients = self._clients.checked_by(check)

  @property
  def draw_ids(self) -> Sequence[Any]:
    """The ids by which clients are drawn, by number."""
    ids = self._packed.draw_ids if self._packed else self.clients.draw_ids
    return ids if self._canaries is None else self._canaries.ids_after(ids)

  @property
  def first(self) -> str:
    """The client whose examples determine `element_spec`, for messages."""
    return f'client {self.clients.ids[0]!r}' if self._clients else 'the packed data'

  @property
  def element_spec(self) -> Any:
    """Structure of `tf.TensorSpec` of an example; `None` for packed data."""
    return None if self._clients is None else self._clients.element_spec

  @property
  def are_batched(self) -> bool:
    """Whether the clients have datasets of batches."""
    return self._clients is not None and self._clients.are_batched

  def fewest_examples(self) -> tuple[str, int]:
    """A client with the fewest examples, for messages, and how many; reads them all."""
    if self._packed is not None:
      number = int(np.argmin(self._packed.all_sizes))
      return f'client number {number}', int(self._packed.all_sizes[number])
    clients = self.clients
    size, number = min(
      (len(tf.nest.flatten(clients.examples(number))[0]), number)
      for number in range(len(clients))
    )
    return clients.owner(number), size

  @property
  def is_laid_out(self) -> bool:
    """Whether the clients are `packed.PackedData`."""
    return self._packed is not None

  @functools.cached_property
  def checksum(self) -> str:
    """A checksum of all examples and of who has them; reading it reads all examples.

    It includes the ids by which clients are drawn, unless these are their numbers.
    """
    return self._packed.checksum if self._packed else data.checksum(self.clients)

  def lay_out(self, directory: str) -> None:
    """Lays the clients out for packed simulation, and caches their checksum."""
    self.checksum = packed.lay_out(self.clients, directory).checksum

  def laid_out(self, directory: str) -> packed.PackedData:
    """Returns the examples for packed simulation, laid out if they are not yet."""
    if self._packed is not None:
      return self._packed
    if os.path.isdir(directory):
      packed_data = packed.PackedData(directory)
    else:
      packed_data = packed.lay_out(self.clients, directory)
    if packed_data.checksum != self.checksum:
      raise ValueError(
        f'the examples in {directory} are not those of the clients: they have the '
        f'checksum {packed_data.checksum}, the clients {self.checksum}. If the clients '
        f'are the same whenever they are read, remove {directory}; it is made again.'
      )
    return packed_data
