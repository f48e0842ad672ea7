"""A data source that follows a schedule, for loops and TFF's programs.

The data of a round depend on its number alone, so a round that is run again has the
same clients, with their examples in the same order.
"""

import copy
import functools
import hashlib
import json
import weakref
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.sampling import draws
from tff_dp_aggregators.sampling import schedule as schedule_lib

# Sources that saved iterators may belong to, by their `id`; the newest one is last.
_LIVE: 'weakref.WeakValueDictionary[int, ClientSource]' = weakref.WeakValueDictionary()


class ClientSource(tff.program.FederatedDataSource):
  """Provides each round's clients with data: a list of batched `tf.data.Dataset`.

  For `tff.learning.programs.train_model`, or for your own loop:

      for round_num in range(source.schedule.num_rounds):
        output = process.next(state, source.round_data(round_num))

  A client passes `local_epochs` times over its examples, each time in another order;
  the passes are concatenated and cut into batches, of which the last may be smaller.

  TFF's program state managers can save its iterator: the number of the next round, and
  the identity of the source, which has to be made before a saved iterator is read.

  Attributes:
    clients: Ids and data of the clients.
    schedule: Which clients take part in which round; the accountant reads its `schema`.

  Example:
    >>> from tff_dp_aggregators import sampling, strategies
    >>> data = {f'client {i}': np.full([3, 2], i, np.float32) for i in range(6)}
    >>> limits = strategies.Participation(num_rounds=10, min_separation=3)
    >>> schedule = sampling.RandomEligible(limits, 6, clients_per_round=2, seed=1)
    >>> source = ClientSource(data, schedule, batch_size=2, seed=1)
    >>> print(source.federated_type)
    {float32[?,2]*}@CLIENTS
    >>> [len(dataset) for dataset in source.round_data(0)]
    [2, 2]
  """

  def __init__(
    self,
    clients: Any,
    schedule: schedule_lib.Schedule,
    *,
    batch_size: int,
    local_epochs: int = 1,
    seed: int = 0,
    input_spec: Any = None,
  ):
    """Initializes the source.

    Args:
      clients: Anything that `Clients.of` takes.
      schedule: Which of them take part in which round.
      batch_size: Number of examples in a batch.
      local_epochs: Passes over a client's examples in a round.
      seed: Seed of the order of examples; it does not affect privacy.
      input_spec: The model's input spec, if examples are tuples and the spec has names.

    Raises:
      ValueError: If schedule and clients do not match, or examples change when read.
    """
    self.clients = clients_lib.Clients.of(clients, input_spec)
    self._batch_size = checks.check_positive_int('batch_size', batch_size)
    self._local_epochs = checks.check_positive_int('local_epochs', local_epochs)
    self._seed = schedule_lib.check_seed(seed)
    if len(self.clients) != schedule.num_clients:
      raise ValueError(
        f'the schedule draws from num_clients={schedule.num_clients}, but there are '
        f'{len(self.clients)} clients; make it for as many.'
      )
    clients_lib.check_repeatable(self.clients)
    ids = self.clients.draw_ids
    self.schedule = schedule.for_clients(ids)
    self._keys = draws.keys_of_ids(ids, self._seed)
    _LIVE[id(self)] = self

  @functools.cached_property
  def federated_type(self) -> tff.FederatedType:
    """Type of a round's data, which `next` of a learning process takes."""
    dataset_spec = tf.data.DatasetSpec(
      clients_lib.batch_spec(self.clients.element_spec)
    )
    return tff.FederatedType(tff.types.tensorflow_to_type(dataset_spec), tff.CLIENTS)

  def iterator(self) -> 'ClientIterator':
    """Returns an iterator that begins with round 0."""
    return ClientIterator(self)

  def round_data(self, round_num: int) -> list[tf.data.Dataset]:
    """Returns the data of each client of a round's cohort, in the cohort's order."""
    return self.cohort_data(round_num, self.schedule.cohort(round_num))

  def cohort_data(self, round_num: int, cohort: np.ndarray) -> list[tf.data.Dataset]:
    """Returns the data of clients by their numbers, in a round's order of examples."""
    where = f'the cohort of round {round_num}'
    cohort = schedule_lib.check_cohort(where, cohort, len(self.clients))
    keys = local_order.keys(self._seed, round_num, self._keys[cohort])
    return [self._dataset(*each) for each in zip(cohort, keys)]

  def _dataset(self, client: int, key: int) -> tf.data.Dataset:
    examples = self.clients.examples(int(client))
    num_examples = len(tf.nest.flatten(examples)[0])
    order = np.concatenate(
      [
        local_order.permutation(key, num_examples, epoch)
        for epoch in range(self._local_epochs)
      ]
    )
    ordered = tf.nest.map_structure(lambda array: array[order], examples)
    return tf.data.Dataset.from_tensor_slices(ordered).batch(self._batch_size)

  @functools.cached_property
  def identity(self) -> dict[str, Any]:
    """Identifies the source of a saved iterator; JSON-ready, with checksums."""
    ids = hashlib.sha256()
    for id_ in self.clients.draw_ids:
      ids.update(f'{id_!r},'.encode())
    return {
      'clients': 'sha256:' + ids.hexdigest(),
      'schedule': self.schedule.checksum,
      'batch_size': self._batch_size,
      'local_epochs': self._local_epochs,
      'seed': self._seed,
      'federated_type': str(self.federated_type),
    }


class ClientIterator(tff.program.FederatedDataSourceIterator):
  """Iterates over the rounds of a `ClientSource`; its state is the next round."""

  def __init__(self, source: ClientSource, round_num: int = 0):
    self._source, self.schedule = source, source.schedule
    self._round_num = checks.check_int('round_num', round_num, at_least=0)

  @property
  def round_num(self) -> int:
    """The round whose data `select` returns next."""
    return self._round_num

  @property
  def federated_type(self) -> tff.FederatedType:
    """Type of the data that `select` returns."""
    return self._source.federated_type

  def select(self, k: Optional[int] = None) -> list[tf.data.Dataset]:
    """Returns the next round's data; `k` is `None` or the size of its cohort."""
    num_rounds = self.schedule.num_rounds
    if self._round_num >= num_rounds:
      raise ValueError(f'all {num_rounds} rounds of the schedule are over.')
    size = len(self.schedule.cohort(self._round_num))
    if k is not None and k != size:
      raise ValueError(
        f'k must be None or {size}, the size of the cohort of round '
        f'{self._round_num}: the schedule says who takes part. Got {k}.'
      )
    data = self._source.round_data(self._round_num)
    self._round_num += 1
    return data

  def to_bytes(self) -> bytes:
    """Serialises the next round's number and the source's identity."""
    content = {'next_round': self._round_num, 'source': self._source.identity}
    return json.dumps(content).encode()

  @classmethod
  def from_bytes(cls, buffer: bytes) -> 'ClientIterator':
    """Reads an iterator of `to_bytes`; takes the newest source of the same identity."""
    content = json.loads(buffer)
    for source in reversed(list(_LIVE.values())):
      if source.identity == content['source']:
        return cls(source, content['next_round'])
    raise ValueError(
      'the saved iterator belongs to a ClientSource that this program has not made: '
      f'make it first, of the same clients and arguments: {content["source"]}.'
    )

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, ClientIterator):
      return NotImplemented
    return self._round_num == other._round_num and (
      self._source is other._source or self._source.identity == other._source.identity
    )

  def __hash__(self) -> int:
    return hash(self.to_bytes())

  def __deepcopy__(self, memo: dict[int, Any]) -> 'ClientIterator':
    return copy.copy(self)  # The source holds the data, and does not change.
