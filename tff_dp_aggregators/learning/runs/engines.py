"""What computes the rounds of a run: packed simulation, or a learning process of TFF's.

Both have the same rounds and the same states, `LearningAlgorithmState`s of TFF: a
checkpoint of one is one of the other. `release` makes NumPy arrays of a state, which
holds the key of the noise, and `hold` takes them back.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import tensorflow_federated as tff

from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning import sources
from tff_dp_aggregators.learning.packed import simulation as simulation_lib
from tff_dp_aggregators.sampling import draws

if TYPE_CHECKING:
  from tff_dp_aggregators.learning import cluster as cluster_lib


class PackedEngine:
  """Many clients in one function of this process, or of a cluster's."""

  def __init__(
    self,
    simulation: packed.PackedFedAvg,
    seed: int,
    ids: Sequence[Any],
    cluster: 'Optional[cluster_lib.Cluster]' = None,
  ):
    self._simulation = simulation
    self._seed = seed
    self._keys = draws.keys_of_ids(ids, seed)
    self._cluster = cluster
    self.initialize, self.hold = simulation.initialize, simulation.hold

  def next(self, state: Any, number: int, clients: np.ndarray) -> tuple[Any, Any]:
    """The state after a round of some clients, and the metrics of a process."""
    keys = local_order.keys(self._seed, number, self._keys[clients])
    return self._simulation.next(state, clients, keys)

  def release(self, state: Any) -> Any:
    """The tensors' arrays, which are not copied."""
    return simulation_lib.to_numpy(state)

  def notes(self) -> tuple[str, ...]:
    """What happened to the cluster's workers since this was asked before."""
    return () if self._cluster is None else self._cluster.notes()


class ProcessEngine:
  """A learning process whose clients are each a dataset."""

  def __init__(
    self,
    process: tff.learning.templates.LearningProcess,
    source: sources.ClientSource,
  ):
    self._process = process
    self._source = source
    self.initialize = process.initialize

  def next(self, state: Any, number: int, clients: np.ndarray) -> tuple[Any, Any]:
    """The state after a round of some clients, and the process's metrics."""
    output = self._process.next(state, self._source.cohort_data(number, clients))
    return output.state, output.metrics

  def release(self, state: Any) -> Any:
    """The state, which is arrays already; so it is for `hold`."""
    return state

  hold = release

  def notes(self) -> tuple[str, ...]:
    """Nothing: nobody else computes."""
    return ()


Engine = Union[PackedEngine, ProcessEngine]
