"""What computes the rounds of a run: packed simulation, or a learning process of TFF's.

Both have the same rounds and the same states; a checkpoint of one is one of the other.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow_federated as tff

from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning import sources
from tff_dp_aggregators.learning.packed import simulation as simulation_lib
from tff_dp_aggregators.sampling import draws


class Round(NamedTuple):
  """A round as it is run.

  Attributes:
    number: From 0.
    clients: Numbers of those whose updates it is made of, int64.
  """

  number: int
  clients: np.ndarray


class Engine(abc.ABC):
  """Runs rounds; states are `tff.learning.templates.LearningAlgorithmState`s."""

  @abc.abstractmethod
  def initialize(self) -> Any:
    """The state before the first round."""

  @abc.abstractmethod
  def next(self, state: Any, this_round: Round) -> tuple[Any, Any]:
    """The state after a round, and the metrics of a learning process."""

  @abc.abstractmethod
  def release(self, state: Any) -> Any:
    """A state as NumPy arrays; it holds the key of the noise."""

  @abc.abstractmethod
  def hold(self, state: Any) -> Any:
    """What stands for a state that `release` returned."""

  def notes(self) -> tuple[str, ...]:
    """What is to be told of how rounds were computed since this was asked before."""
    return ()


class PackedEngine(Engine):
  """Many clients in one function of this process, or of a cluster's."""

  def __init__(
    self,
    simulation: packed.PackedFedAvg,
    seed: int,
    ids: Sequence[Any],
    cluster: Optional[simulation_lib.Cluster] = None,
  ):
    """Initializes the engine.

    `cluster`: Who trains for it; `None` for this process.
    """
    self._simulation = simulation
    self._seed = seed
    self._keys = draws.keys_of_ids(ids, seed)
    self._cluster = cluster

  def initialize(self) -> Any:
    """The simulation's initial state, tensors."""
    return self._simulation.initialize()

  def next(
    self,
    state: Any,
    this_round: Round,
  ) -> tuple[Any, Any]:
    """Trains the clients of a round in packs."""
    of_clients = self._keys[this_round.clients]
    keys = local_order.keys(self._seed, this_round.number, of_clients)
    return self._simulation.next(state, this_round.clients, keys)

  def release(self, state: Any) -> Any:
    """The tensors' arrays, which are not copied."""
    return simulation_lib.to_numpy(state)

  def hold(self, state: Any) -> Any:
    """The arrays as tensors."""
    return self._simulation.hold(state)

  def notes(self) -> tuple[str, ...]:
    """What happened to the cluster's workers."""
    return () if self._cluster is None else self._cluster.notes()


class ProcessEngine(Engine):
  """A learning process whose clients are each a dataset."""

  def __init__(
    self,
    process: tff.learning.templates.LearningProcess,
    source: sources.ClientSource,
  ):
    self._process = process
    self._source = source

  def initialize(self) -> Any:
    """The process's initial state."""
    return self._process.initialize()

  def next(self, state: Any, this_round: Round) -> tuple[Any, Any]:
    """Trains the clients of a round, a dataset each."""
    data = self._source.cohort_data(this_round.number, this_round.clients)
    output = self._process.next(state, data)
    return output.state, output.metrics

  def release(self, state: Any) -> Any:
    """The state, which is one already."""
    return state

  def hold(self, state: Any) -> Any:
    """The state as it is."""
    return state
