"""Packs that workers train, on this machine or on others.

The state of a round stays on this machine, in files as in `simulation`. Workers are
told the model, and what clients have to know to clip and to encode; from their packs
come exact sums of integers, with counts. Noise is made and added here, once, also that
which clients of the simulation make; no key is sent.

Sums of integers are the same in any order, so workers hand up one for several packs.
What is in floats, metrics and sums of trainings without privacy, comes pack by pack and
is added up here, in the order of the packs.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.base import machine
from tff_dp_aggregators.learning.packed import cohort as cohort_lib
from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.learning.packed import leaves
from tff_dp_aggregators.learning.packed import simulation
from tff_dp_aggregators.learning.packed import training as training_lib
from tff_dp_aggregators.learning.remote import connection
from tff_dp_aggregators.learning.remote import crew as crew_lib
from tff_dp_aggregators.learning.remote import job as job_lib
from tff_dp_aggregators.learning.remote import seats
from tff_dp_aggregators.noise import private_directory
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
    self._told: set[str] = set()  # Of which states the broadcast is in a file.
    # Other machines are mostly like this one.
    self._usual_parallel = seats.parallel(
      machine.usable_processors(), workers.num_local or 1
    )
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

  def _make_run(self) -> Callable[[str, str, cohort_lib.Cohort], Any]:
    pack = self._pack(None)

    def write_broadcast(state: Any, broadcast_path: Any, result: Any) -> Any:
      broadcast = self._server.for_workers(state)
      self._told_specs = leaves.specs_of(broadcast)
      return simulation.write(broadcast_path, leaves.encode(broadcast), result)

    @tff.tensorflow.computation(np.str_, np.str_)
    @tracing.as_written
    def tell(path: Any, broadcast_path: Any) -> Any:
      state = simulation.read(path, self._state_specs)
      return write_broadcast(state, broadcast_path, tf.constant(0))

    def answer(
      broadcast: Any, what: Any, examples: training_lib.Examples, parallel: int
    ) -> Any:
      label, rows, cuts = what[0], what[1], what[2]
      strings = leaves.strings_in(broadcast)
      weights, params = leaves.decode(strings, self._told_specs)
      self._answer_specs = leaves.specs_of(pack.zeros(weights, params))
      sums = self._sums_of_packs(
        pack,
        weights,
        params,
        lambda number: rows[cuts[number] : cuts[number + 1]],
        tf.shape(cuts)[0] - 1,
        examples,
        parallel,
        lambda dtype: not dtype.is_integer,
      )
      return job_lib.sealed(label, leaves.encode(sums))

    told = [job_lib.LABEL, job_lib.ROWS, job_lib.CUTS]

    @_once
    def in_place(parallel: int) -> executor_pb2.Value:
      @tff.tensorflow.computation(np.str_, tff.StructType(told))
      @tracing.as_written
      def computation(broadcast: Any, what: Any) -> Any:
        return answer(broadcast, what, self._data.tensors(), parallel)

      return connection.serialized(computation)

    # What is wrong with it is raised here; `finish` needs the specs of sums.
    in_place(self._usual_parallel)

    @_once
    def shipped(parallel: int) -> executor_pb2.Value:
      @tff.tensorflow.computation(np.str_, tff.StructType([*told, np.str_]))
      @tracing.as_written
      def computation(broadcast: Any, what: Any) -> Any:
        examples = leaves.decode(leaves.strings_in(what[3]), self._data.specs())
        return answer(broadcast, what, examples, parallel)

      return connection.serialized(computation)

    @tff.tensorflow.computation(job_lib.LABEL, _KEYS)
    @tracing.as_written
    def look(label: Any, numbers: Any) -> Any:
      index = tf.io.read_file(self._data.index_path)
      found = [tf.gather(feature, numbers) for feature in self._data.tensors()]
      return job_lib.sealed(label, tf.concat([[index], leaves.encode(found)], axis=0))

    @tff.tensorflow.computation(np.str_, np.str_, np.str_, np.str_, np.str_, np.int32)
    @tracing.as_written
    def finish(
      path: Any,
      next_path: Any,
      next_broadcast_path: Any,
      sums_path: Any,
      rows: Any,
      num_packs: Any,
    ) -> Any:
      state = simulation.read(path, self._state_specs)
      sums = simulation.read(sums_path, self._answer_specs)
      if self._server.clients_add_noise:
        sums = self._with_noise(state, sums, rows, num_packs)
      next_state, metrics = self._end_round(state, sums, next_path)
      return write_broadcast(next_state, next_broadcast_path, metrics)

    self._tell, self._finish_round = tell, finish
    self._job = job_lib.Job(
      in_place,
      shipped,
      connection.serialized(look),
      self._seen,
      self._data.num_examples,
      self._ship,
      sum(each.nbytes for each in self._some(np.zeros(1, np.int64))),
      self._parse,
      self._bytes_apart,
    )
    return self._spread

  def _with_noise(
    self, state: Any, sums: Any, rows: tf.Tensor, num_packs: tf.Tensor
  ) -> Any:
    """Inside a computation: sums with the noise that clients of the simulation add."""
    _, params = self._server.for_clients(state)

    def body(number: tf.Tensor, noised: Any) -> Any:
      keys = tf.bitcast(cohort_lib.rows_in(rows, number)[:, 2], tf.uint64)
      return number + 1, self._server.add_noise(params, noised, keys)

    _, sums = tf.while_loop(
      lambda number, unused_noised: number < num_packs,
      body,
      (tf.constant(0), sums),
      parallel_iterations=1,
    )
    return sums

  def _spread(self, path: str, next_path: str, cohort: cohort_lib.Cohort) -> Any:
    """A round, whose packs workers train."""
    next_broadcast_path = _broadcast_path(next_path)
    self._told.discard(next_path)
    broadcast_path, sums_path = _broadcast_path(path), self._scratch('sums')
    if path not in self._told:
      self._tell(path, broadcast_path)
      self._told.add(path)
    with open(broadcast_path, 'rb') as file:
      broadcast = file.read()
    totals = [
      np.zeros(spec.shape, spec.dtype.as_numpy_dtype)
      for spec in tf.nest.flatten(self._answer_specs)
    ]
    in_turn = _InTurn()
    for numbers, sums in self._crew.results(broadcast, cohort):
      for total, each in zip(totals, sums):
        if _is_exact(total.dtype):
          np.add(total, each, out=total)
      apart = [each for each in sums if not _is_exact(each.dtype)]
      for values in in_turn.of(numbers, zip(*apart)):
        floats = [total for total in totals if not _is_exact(total.dtype)]
        for total, each in zip(floats, values):
          np.add(total, each, out=total)
    private_directory.write(sums_path, leaves.encode_to_bytes(totals))
    with contextlib.ExitStack() as stack:
      rows = ''
      if self._server.clients_add_noise:
        rows = stack.enter_context(cohort.in_files(self._run_id))
      metrics = self._finish_round(
        path, next_path, next_broadcast_path, sums_path, rows, len(cohort)
      )
    self._told.add(next_path)
    return metrics

  def _new_state(self) -> simulation.HeldState:
    state = super()._new_state()
    self._told.discard(self._path(state))
    return state

  def _some(self, numbers: np.ndarray) -> list[np.ndarray]:
    return [feature[numbers] for feature in self._data.arrays()]

  def _seen(self, numbers: np.ndarray) -> list[bytes]:
    """What a worker sees that has the same files."""
    with open(self._data.index_path, 'rb') as file:
      return [file.read(), *leaves.encode_each(self._some(numbers))]

  def _ship(self, rows: np.ndarray) -> tuple[np.ndarray, bytes]:
    """Rows and examples of packs whose worker does not see the files."""
    moved = rows.copy()
    moved[:, 0] = np.cumsum(rows[:, 1]) - rows[:, 1]
    numbers = np.concatenate(  # Of no clients, none.
      [np.arange(0), *(np.arange(start, start + size) for start, size in rows[:, :2])]
    )
    return moved, leaves.encode_to_bytes(self._some(numbers))

  def _bytes_apart(self) -> int:
    return sum(
      (spec.shape.num_elements() or 0) * spec.dtype.size
      for spec in tf.nest.flatten(self._answer_specs)
      if not spec.dtype.is_integer
    )

  def _parse(self, contents: list[bytes], sizes: list[int]) -> list[np.ndarray]:
    """What is in an answer, if it may be that for packs of so many clients."""
    try:
      arrays = [leaves.parse(content) for content in contents]
    except Exception as e:  # Whatever the parser makes of it.
      raise connection.GarbageError(f'its sums cannot be read ({e})') from e
    expected = [
      (dtype, shape if _is_exact(dtype) else (len(sizes), *shape))
      for dtype, shape in (
        (np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape))
        for spec in tf.nest.flatten(self._answer_specs)
      )
    ]
    if [(each.dtype, each.shape) for each in arrays] != expected:
      raise connection.GarbageError('its sums are of other shapes or dtypes')
    _, counts, _ = tf.nest.pack_sequence_as(self._answer_specs, arrays)
    clients, nonfinite = map(int, counts)
    num_clients = sum(sizes)
    if clients != num_clients or not 0 <= nonfinite <= num_clients:
      raise connection.GarbageError(
        f'it counts {clients} clients, {nonfinite} of them with values that are not '
        f'finite, in packs of {num_clients}'
      )
    return arrays


def _broadcast_path(path: str) -> str:
  """Where what workers are told of a state is, beside it, and called like it."""
  folder, name = os.path.split(path)
  return os.path.join(folder, name.replace('.state.', '.broadcast.'))


def _once(
  make: Callable[[int], executor_pb2.Value],
) -> Callable[[int], executor_pb2.Value]:
  """What takes seconds to make, once, however many threads ask for it."""
  making = threading.Lock()
  made: dict[int, executor_pb2.Value] = {}

  def get(parallel: int) -> executor_pb2.Value:
    with making:
      if parallel not in made:
        made[parallel] = make(parallel)
      return made[parallel]

  return get


class _InTurn:
  """What comes for packs in any order, in the order of the packs."""

  def __init__(self) -> None:
    self._waiting: dict[int, Any] = {}
    self._next = 0

  def of(self, numbers: Sequence[int], values: Iterable[Any]) -> Iterator[Any]:
    """Takes what came for some packs, and gives all whose turn it is."""
    self._waiting.update(zip(numbers, values))
    while self._next in self._waiting:
      yield self._waiting.pop(self._next)
      self._next += 1


def _is_exact(dtype: np.dtype) -> bool:
  """Whether sums are the same in any order."""
  return np.issubdtype(dtype, np.integer)
