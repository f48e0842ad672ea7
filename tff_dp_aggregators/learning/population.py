"""Gives a run access to its clients: by number, or laid out in files."""

import functools
import os
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import data


class Population:
  """The clients of a run, made from what `Clients.of` takes or `packed.PackedData`.

  Canaries are numbered after the clients, and have no examples.

  Attributes:
    is_laid_out: Whether the clients are `packed.PackedData`.
  """

  def __init__(self, clients: Any, canaries: Optional[packed.Canaries] = None):
    self._canaries = canaries
    self.is_laid_out = isinstance(clients, packed.PackedData)
    self._given = clients if self.is_laid_out else clients_lib.Clients.of(clients)

  def __len__(self) -> int:
    return len(self._given) + (0 if self._canaries is None else self._canaries.number)

  @property
  def clients(self) -> clients_lib.Clients:
    """The clients by number."""
    if self.is_laid_out:
      raise ValueError(
        'packed.PackedData are for packed simulation alone; give the clients '
        'themselves, or leave run.packed_simulation on.'
      )
    return self._given

  @clients.setter
  def clients(self, clients: clients_lib.Clients) -> None:
    self._given = clients

  @property
  def ids(self) -> Optional[Sequence[Any]]:
    """The clients' ids by number; `None` if there are only numbers."""
    return None if self.is_laid_out else self._with_canaries(self._given.ids)

  @property
  def draw_ids(self) -> Sequence[Any]:
    """The ids by which clients are drawn, by number."""
    return self._with_canaries(self._given.draw_ids)

  def _with_canaries(self, ids: Sequence[Any]) -> Sequence[Any]:
    return ids if self._canaries is None else self._canaries.ids_after(ids)

  def fewest_examples(self) -> tuple[str, int]:
    """A client with the fewest examples, for messages, and how many; reads them all."""
    if self.is_laid_out:
      number = int(np.argmin(self._given.all_sizes))
      return f'client number {number}', int(self._given.all_sizes[number])
    read = map(self._given.examples, range(len(self._given)))
    sizes = [len(tf.nest.flatten(examples)[0]) for examples in read]
    return self._given.owner(int(np.argmin(sizes))), min(sizes)

  @functools.cached_property
  def checksum(self) -> str:
    """A checksum of all examples and of who has them; reading it reads all examples.

    It includes the ids by which clients are drawn, unless these are their numbers.
    """
    return self._given.checksum if self.is_laid_out else data.checksum(self._given)

  def lay_out(self, directory: str) -> None:
    """Lays the clients out for packed simulation, and caches their checksum."""
    self.checksum = packed.lay_out(self.clients, directory).checksum

  def laid_out(self, directory: str) -> packed.PackedData:
    """Returns the examples for packed simulation, laid out if they are not yet."""
    if self.is_laid_out:
      return self._given
    if os.path.isdir(directory):
      packed_data = packed.PackedData(directory)
    else:
      packed_data = packed.lay_out(self._given, directory)
    if packed_data.checksum != self.checksum:
      raise ValueError(
        f'the examples in {directory} are not those of the clients: they have the '
        f'checksum {packed_data.checksum}, the clients {self.checksum}. If the clients '
        f'are the same whenever they are read, remove {directory}; it is made again.'
      )
    return packed_data
