"""Packs that workers train, on this machine or on others.

The state of a round stays on this machine, in files as in `simulation`. Workers are
told the model, and what clients have to know to clip and to encode; from each pack
comes an exact sum of integers, with counts. Noise is made and added here, once, also
that which clients of the simulation make; no key is sent.
"""

import contextlib
import functools
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.learning.packed import leaves
from tff_dp_aggregators.learning.packed import simulation
from tff_dp_aggregators.learning.packed import training as training_lib
from tff_dp_aggregators.learning.remote import connection
from tff_dp_aggregators.learning.remote import crew as crew_lib
from tff_dp_aggregators.learning.remote import job as job_lib
from tff_dp_aggregators.workers import group

_KEYS = tff.TensorType(np.int64, [None])


class SpreadFedAvg(simulation.PackedFedAvg):
  """`PackedFedAvg` whose packs are trained by workers, to the same bits."""

  def __init__(
    self,
    training: training_lib.LocalTraining,
    aggregator: Optional[tff.aggregators.UnweightedAggregationFactory],
    data: data_lib.PackedData,
    workers: group.Workers,
    *,
    server_optimizer: tff.learning.optimizers.Optimizer,
    num_packs: Optional[int] = None,
    say: Callable[[str], None],
    round_seconds: Optional[float] = None,
  ):
    """Builds the computations, and begins to take workers into use.

    Args:
      training: As for `PackedFedAvg`.
      aggregator: As for `PackedFedAvg`.
      data: As for `PackedFedAvg`.
      workers: Who trains.
      server_optimizer: As for `PackedFedAvg`.
      num_packs: As for `PackedFedAvg`.
      say: Tells whoever runs this what happens to workers.
      round_seconds: How long the packs of a round may take; `None` for no limit.

    Raises:
      TypeError: As for `PackedFedAvg`.
      ValueError: As for `PackedFedAvg`.
      WorkerError: If workers of this machine do not start.
    """
    super().__init__(
      training,
      aggregator,
      data,
      server_optimizer=server_optimizer,
      num_packs=num_packs,
    )
    self._stack = contextlib.ExitStack()
    self._crew = self._stack.enter_context(
      crew_lib.Crew(workers, self._job, say=say, round_seconds=round_seconds)
    )

  def close(self) -> None:
    """Lets the workers go."""
    self._stack.close()

  def notes(self) -> tuple[str, ...]:
    """What happened to workers since this was asked before."""
    return self._crew.notes()

  @property
  def traffic(self) -> connection.Traffic:
    """Bytes sent to workers, and received."""
    return self._crew.traffic

  @property
  def given_again(self) -> int:
    """How many packs were given to a worker after another one had them."""
    return self._crew.given_again

  def _make_run(self) -> Callable[[str, str, np.ndarray, np.ndarray], Any]:
    pack = self._pack(None)

    @tff.tensorflow.computation(np.str_, np.str_)
    @tracing.as_written
    def tell(path: Any, broadcast_path: Any) -> Any:
      broadcast = self._server.for_workers(simulation.read(path, self._state_specs))
      self._broadcast_specs = leaves.specs_of(broadcast)
      return simulation.write(broadcast_path, leaves.encode(broadcast), tf.constant(0))

    def answer(
      broadcast: Any, label: Any, rows: Any, examples: training_lib.Examples
    ) -> Any:
      strings = leaves.strings_in(broadcast)
      weights, params = leaves.decode(strings, self._broadcast_specs)
      sums = pack.run(weights, params, rows, examples)
      self._sums_specs = leaves.specs_of(sums)
      return job_lib.sealed(label, leaves.encode(sums))

    @tff.tensorflow.computation(np.str_, tff.StructType([job_lib.LABEL, job_lib.ROWS]))
    @tracing.as_written
    def in_place(broadcast: Any, what: Any) -> Any:
      return answer(broadcast, what[0], what[1], self._data.tensors())

    @functools.cache  # Most workers see the files, and to make it takes seconds.
    def make_shipped() -> executor_pb2.Value:
      @tff.tensorflow.computation(
        np.str_, tff.StructType([job_lib.LABEL, job_lib.ROWS, np.str_])
      )
      @tracing.as_written
      def shipped(broadcast: Any, what: Any) -> Any:
        examples = leaves.decode(leaves.strings_in(what[2]), self._data.specs())
        return answer(broadcast, what[0], what[1], examples)

      return connection.serialized(shipped)

    @tff.tensorflow.computation(job_lib.LABEL, _KEYS)
    @tracing.as_written
    def look(label: Any, numbers: Any) -> Any:
      index = tf.io.read_file(self._data.index_path)
      found = [tf.gather(feature, numbers) for feature in self._data.tensors()]
      return job_lib.sealed(label, tf.concat([[index], leaves.encode(found)], axis=0))

    @tff.tensorflow.computation(np.str_, np.str_, np.str_, _KEYS)
    @tracing.as_written
    def finish(path: Any, next_path: Any, sums_path: Any, keys: Any) -> Any:
      state = simulation.read(path, self._state_specs)
      sums = simulation.read(sums_path, self._sums_specs)
      _, params = self._server.for_clients(state)
      sums = self._server.add_noise(params, sums, tf.bitcast(keys, tf.uint64))
      return self._end_round(state, sums, next_path)

    self._tell, self._finish_round = tell, finish
    self._job = job_lib.Job(
      connection.serialized(in_place),
      make_shipped,
      connection.serialized(look),
      self._seen,
      self._data.num_examples,
      self._ship,
      self._parse,
    )
    return self._spread

  def _spread(
    self, path: str, next_path: str, rows: np.ndarray, cuts: np.ndarray
  ) -> Any:
    """A round, whose packs workers train."""
    broadcast_path, sums_path = map(self._scratch, ('broadcast', 'sums'))
    self._tell(path, broadcast_path)
    with open(broadcast_path, 'rb') as file:
      broadcast = file.read()
    packs = [rows[begin:end] for begin, end in zip(cuts, cuts[1:])]
    totals = [
      np.zeros(spec.shape, spec.dtype.as_numpy_dtype)
      for spec in tf.nest.flatten(self._sums_specs)
    ]
    for sums in self._crew.results(broadcast, packs):
      for total, each in zip(totals, sums):
        np.add(total, each, out=total)
    with open(sums_path, 'wb') as file:  # In a directory of this user alone.
      file.write(leaves.encode_to_bytes(totals))
    return self._finish_round(path, next_path, sums_path, rows[:, 2])

  def _some(self, numbers: np.ndarray) -> list[np.ndarray]:
    return [feature[numbers] for feature in self._data.arrays()]

  def _seen(self, numbers: np.ndarray) -> list[bytes]:
    """What a worker sees that has the same files."""
    with open(self._data.index_path, 'rb') as file:
      return [file.read(), *leaves.encode_each(self._some(numbers))]

  def _ship(self, rows: np.ndarray) -> tuple[np.ndarray, bytes]:
    """Rows and examples of a pack whose worker does not see the files."""
    moved = rows.copy()
    moved[:, 0] = np.concatenate([[0], np.cumsum(rows[:-1, 1])])
    numbers = np.concatenate(
      [np.arange(start, start + size) for start, size in rows[:, :2]]
    )
    return moved, leaves.encode_to_bytes(self._some(numbers))

  def _parse(self, contents: list[bytes], num_clients: int) -> list[np.ndarray]:
    """The sums in an answer, if they may be those of so many clients."""
    try:
      arrays = [leaves.parse(content) for content in contents]
    except Exception as e:  # Whatever the parser makes of it.
      raise connection.GarbageError(f'its sums cannot be read ({e})') from e
    specs = tf.nest.flatten(self._sums_specs)
    if [(each.dtype, each.shape) for each in arrays] != [
      (np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape)) for spec in specs
    ]:
      raise connection.GarbageError('its sums are of other shapes or dtypes')
    _, counts, _ = tf.nest.pack_sequence_as(self._sums_specs, arrays)
    clients, nonfinite = map(int, counts)
    if clients != num_clients or not 0 <= nonfinite <= num_clients:
      raise connection.GarbageError(
        f'it counts {clients} clients, {nonfinite} of them with values that are not '
        f'finite, in a pack of {num_clients}'
      )
    return arrays
