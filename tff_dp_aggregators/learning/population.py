"""The clients of a training, as a run needs them: by number, or laid out in files."""

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import packed


class Population:
  """The clients of a run: what `Clients.of` takes, or `packed.PackedData`."""

  def __init__(self, clients: Any):
    """Initializes it.

    Args:
      clients: What there is.

    Raises:
      TypeError: If it is none of what `Clients.of` takes.
      ValueError: If there are no clients.
    """
    self._packed = clients if isinstance(clients, packed.PackedData) else None
    self._clients = None if self._packed else clients_lib.Clients.of(clients)

  def __len__(self) -> int:
    return len(self._packed or self._clients or ())

  @property
  def clients(self) -> clients_lib.Clients:
    """The clients by number.

    Raises:
      ValueError: If all there is was laid out for packed simulation.
    """
    if self._clients is None:
      raise ValueError(
        'packed.PackedData are for packed simulation alone; give the clients '
        'themselves, or leave packed_simulation on.'
      )
    return self._clients

  @property
  def ids(self) -> Optional[Sequence[Any]]:
    """The clients' ids by number; `None` if there are only numbers."""
    return None if self._clients is None else self._clients.ids

  @property
  def first(self) -> str:
    """The client whose examples say what those of all are like, for messages."""
    return f'client {self.clients.ids[0]!r}' if self._clients else 'the packed data'

  @property
  def element_spec(self) -> Any:
    """Structure of `tf.TensorSpec` of an example; `None` if only a model knows it."""
    return None if self._clients is None else self._clients.element_spec

  @functools.cached_property
  def checksum(self) -> str:
    """Tells populations apart: by content if laid out, else by ids and the first."""
    if self._packed is not None:
      return self._packed.checksum
    digest = hashlib.sha256()
    for id_ in self.clients.ids:
      digest.update(json.dumps(str(id_)).encode())
    for array in tf.nest.flatten(self.clients.examples(0)):
      digest.update(array.tobytes())
    return f'sha256:{digest.hexdigest()}'

  def laid_out(self, directory: str) -> packed.PackedData:
    """The examples for packed simulation.

    Args:
      directory: Where they are laid out if they are not there yet.
    """
    if self._packed is not None:
      return self._packed
    if os.path.isdir(directory):
      return packed.PackedData(directory)
    return packed.lay_out(self.clients, directory)
