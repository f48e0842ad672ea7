"""Packed federated averaging: trains many clients in one TensorFlow function.

A round of TFF costs some 14 ms for each client. Here clients are trained in *packs*,
side by side where possible, and their updates clipped, encoded and summed: the result
of a pack is an exact sum of integers, with counts. So state, noise and accounting are
those of `build_dp_fed_avg`, and a state of one can be used by the other. A Dask cluster
may train the packs, to the same bits; state, noise and its keys stay here.
"""

import concurrent.futures
from typing import TYPE_CHECKING, Any, Callable, Optional, cast

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import cancellation

from tff_dp_aggregators.base import machine
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import functions
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning import optimizers
from tff_dp_aggregators.learning.packed import canaries as canaries_lib
from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.learning.packed import server as server_lib
from tff_dp_aggregators.learning.packed import training as training_lib
from tff_dp_aggregators.sampling import schedule as schedule_lib

if TYPE_CHECKING:
  from tff_dp_aggregators.learning import cluster as cluster_lib

_PATIENCE_SECONDS = 10.0
# Minimum number of examples in a pack. Measured on two cores: a pack costs 0.8 ms plus
# its clients, an example of a small model 5 us, and adding up sums of 10^6 parameters
# as much as 27 examples of a model of that size.
_MIN_EXAMPLES_SIDE_BY_SIDE, _MIN_EXAMPLES_ONE_BY_ONE = 8192, 256
# More packs do not speed up a single machine, unless packs are large.
_ENOUGH_PACKS = 32


def num_packs(sizes: np.ndarray, local_epochs: int, *, side_by_side: bool) -> int:
  """Number of packs for a cohort whose clients have the given numbers of examples.

  At least two, if there are two clients; more if every pack then has enough examples;
  and enough for no pack to be larger than `LARGEST` of `training`.
  """
  cohort = len(sizes)
  min_examples = _MIN_EXAMPLES_ONE_BY_ONE
  if side_by_side:
    min_examples = _MIN_EXAMPLES_SIDE_BY_SIDE
  num = min(_ENOUGH_PACKS, int(sizes.sum()) * local_epochs // min_examples)
  power = max(1, num.bit_length() - 1)
  while cohort > training_lib.LARGEST << power:
    power += 1
  return max(1, min(cohort, 1 << power))


def cuts(cohort: int, packs: int) -> np.ndarray:
  """Boundaries of packs whose sizes differ by at most 1: int32 of shape [packs + 1]."""
  return (np.arange(packs + 1, dtype=np.int64) * cohort // packs).astype(np.int32)


class PackedFedAvg:
  """Federated averaging of clients in packs; not thread-safe.

  Attributes:
    one_by_one: Why clients are trained one after the other; `None` if side by side.
  """

  def __init__(
    self,
    training: training_lib.LocalTraining,
    aggregator: Optional[tff.aggregators.UnweightedAggregationFactory],
    data: data_lib.PackedData,
    *,
    server_optimizer: tff.learning.optimizers.Optimizer,
    num_packs: Optional[int] = None,
    cluster: 'Optional[cluster_lib.Cluster]' = None,
    timeout_seconds: Optional[float] = None,
    canaries: Optional[canaries_lib.Canaries] = None,
    clip_norm: Optional[float] = None,
  ):
    """Builds the TensorFlow functions of a round.

    Args:
      training: The clients' local training, with the model.
      aggregator: The private mean, alone or in `CoordinateBoundsFactory` and
        `ZeroLargeFactory`; `None` for training without privacy. Packs are summed here.
      data: Clients' examples.
      server_optimizer: Applies the mean of updates to the model.
      num_packs: The number of packs of a cohort; `None` for one that depends on the
        cohort alone.
      cluster: The cluster that trains packs; `None` for this process.
      timeout_seconds: Maximum duration of a round in this process; `None` for no limit.
      canaries: Clients to audit with, numbered after those of `data`; `None` for none.
      clip_norm: The aggregator's clip norm, which canaries need.

    Raises:
      TypeError: If an optimizer is not an optimizer of TFF.
      ValueError: If data and model, or optimizer and aggregator, do not go together.
    """
    data.check_against(training.model.input_spec)
    server_optimizer = optimizers.check_optimizer('server_optimizer', server_optimizer)
    optimizers.check_client_optimizer(training.optimizer)
    optimizers.check_pair(
      tff.aggregators.UnweightedMeanFactory() if aggregator is None else aggregator,
      server_optimizer,
    )
    self._data = data
    self._num_packs = num_packs
    self._cluster = cluster
    self._timeout_seconds = timeout_seconds
    self._thread = interrupts.CallingThread()
    self._server = server_lib.Server(training, aggregator, server_optimizer)
    self._training = training
    self.one_by_one = training_lib.why_one_by_one(training, data)
    self._insertion = None
    if canaries is not None:
      assert clip_norm is not None
      self._insertion = canaries_lib.Insertion(canaries, clip_norm, self._server)
    self._specs = functions.specs_of(self.initialize())
    self._sums_specs = functions.specs_of(self._server.zeros())
    if self.one_by_one is None:
      logger = tf.get_logger()
      logger.disabled = True  # It would name each operation; `one_by_one` says why.
      try:
        self._build()
      except Exception as e:  # TensorFlow raises many types if it cannot vectorise.
        *_, why = str(e).strip().splitlines() or [type(e).__name__]
        self.one_by_one = f'TensorFlow cannot vectorise the model: {why.strip()}'
      finally:
        logger.disabled = False
    if self.one_by_one is not None:
      self._build()

  def _build(self) -> None:
    state, rows = self._specs, tf.TensorSpec([None, 3], tf.int64)
    round_inputs: tuple[tf.TensorSpec, ...] = (rows, tf.TensorSpec([None], tf.int32))
    if self._insertion is not None:
      round_inputs += self._insertion.specs
    if self._cluster is None:
      self._traced_round = functions.Traced.of(self._round, state, *round_inputs)
      return
    self._broadcast = functions.Traced.of(self._server.for_clients, state)
    traced = functions.Traced.of(
      lambda sent, rows: tf.nest.flatten(self._pack(sent[0], sent[1], rows)),
      self._broadcast.specs,
      rows,
    )
    self._function = functions.PackFunction(
      traced, self._data.directory, self._data.checksum, functions.intra_op_threads()
    )
    self._finish = functions.Traced.of(
      self._finish_round, state, traced.specs, *round_inputs
    )

  def _round(
    self, state: Any, rows: tf.Tensor, cuts: tf.Tensor, *canaries: tf.Tensor
  ) -> Any:
    weights, params = self._server.for_clients(state)
    sums = _sum_in_groups(
      lambda number: self._pack(weights, params, rows[cuts[number] : cuts[number + 1]]),
      tf.shape(cuts)[0] - 1,
      self._server.zeros(),
    )
    return self._finish_round(state, sums, rows, cuts, *canaries)

  def _pack(self, weights: training_lib.Weights, params: Any, rows: tf.Tensor) -> Any:
    """Returns the sums of clients' contributions; rows are int64 [clients, 3]."""
    at_once = 1 if self.one_by_one else training_lib.at_once(self._training)
    padded = training_lib.is_padded(self._training, self._data)
    examples = self._data.tensors()

    def body(number: tf.Tensor, sums: Any) -> Any:
      chunk = rows[number * at_once : (number + 1) * at_once]
      batches = training_lib.Batches(self._training, examples, chunk)
      if self.one_by_one:
        trained = training_lib.one(self._training, weights, batches)
      else:
        trained = training_lib.side_by_side(
          self._training, weights, batches, padded=padded
        )
      return tf.nest.map_structure(
        lambda before, more: tf.ensure_shape(before + more, before.shape),
        sums,
        self._server.sum(params, trained),
      )

    chunks = (tf.shape(rows)[0] + at_once - 1) // at_once
    return training_lib.fold(body, chunks, self._server.zeros())

  def _finish_round(
    self, state: Any, sums: Any, rows: tf.Tensor, cuts: tf.Tensor, *canaries: tf.Tensor
  ) -> tuple[Any, Any]:
    sums = tf.nest.pack_sequence_as(self._sums_specs, tf.nest.flatten(sums))
    # The sums and the noise are integers, so the order of addition does not matter.
    sums = self._server.add_noise(state, sums, rows[:, 2])
    if self._insertion is None:
      return self._server.finish(state, sums)
    directions, numbers = canaries
    sums = self._insertion.add(state, sums, directions, numbers)
    return self._server.finish(state, sums, directions)

  def packs(self, clients: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
    """Rows of each pack's clients, int64 [clients, 3], most examples first.

    A *row* has the index of a client's first example, its number of examples, and a
    key. The last bits of an update may depend on how many clients are trained side by
    side. So packs depend on the cohort alone, and a round has the same bits anywhere.
    """
    clients = schedule_lib.check_cohort('clients', clients, len(self._data))
    if np.shape(keys) != clients.shape:
      raise ValueError(
        f'keys must be as many as clients, {len(clients)}; got an array of shape '
        f'{list(np.shape(keys))}. local_order.keys makes one for each.'
      )
    sizes, packs = self._data.sizes(clients), self._num_packs
    if packs is None:
      packs = num_packs(
        sizes, self._training.local_epochs, side_by_side=self.one_by_one is None
      )
    order = np.argsort(-sizes, kind='stable')
    columns = (self._data.starts(clients), sizes, keys.view(np.int64))
    boundaries = cuts(len(clients), max(1, min(packs, len(clients))))
    return np.split(np.stack(columns, axis=-1)[order], boundaries[1:-1])

  def initialize(self) -> Any:
    """Returns the initial state; with secret noise, each call draws a new key."""
    return self._server.initial_state()

  def next(self, state: Any, clients: np.ndarray, keys: np.ndarray) -> tuple[Any, Any]:
    """Runs a round.

    Run again from the same state it has the same noise: with the same clients and keys
    it releases the same bits, and with others the difference of two sums without noise.

    Args:
      state: The state before the round, from `initialize`, `next` or `hold`.
      clients: Client numbers, int64 of shape [cohort].
      keys: From `local_order.keys`; they determine the order of clients' examples.

    Returns:
      The next state, as tensors, and a learning process's metrics, as NumPy arrays.

    Raises:
      ComputationError: If a computation of the round fails; the message says why.
      RoundTimeoutError: If the round takes longer than `timeout_seconds`.
      TypeError: If `clients` is not a vector of integers.
      ValueError: If a client does not exist, occurs twice, or has no key.
    """
    canaries: tuple[tf.Tensor, ...] = ()
    if self._insertion is not None:
      is_client = clients < len(self._data)
      numbers = (clients[~is_client] - len(self._data)).astype(np.int32)
      canaries = self._insertion.directions, tf.constant(numbers)
      clients, keys = clients[is_client], keys[is_client]
    packs = self.packs(clients, keys)
    boundaries = np.cumsum([0, *map(len, packs)], dtype=np.int32)
    rows = tf.constant(np.concatenate(packs))
    round_inputs = (rows, tf.constant(boundaries), *canaries)
    if self._cluster is None:
      state, metrics = self._call(self._traced_round, state, *round_inputs)
    else:
      broadcast = [np.asarray(each) for each in tf.nest.flatten(self._broadcast(state))]
      sums = self._cluster.sums(self._function, broadcast, packs)
      _, counts, _ = tf.nest.pack_sequence_as(self._sums_specs, sums)
      if counts[0] != len(rows):
        raise RuntimeError(
          f'the cluster summed {counts[0]} clients, and the round has '
          f'{len(rows)}; the sum was discarded. Check that its workers run the '
          'same version as this program.'
        )
      state, metrics = self._call(
        self._finish, state, [tf.constant(each) for each in sums], *round_inputs
      )
    return state, to_numpy(metrics)

  def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a thread, so that signals and the time limit are handled."""
    manager = cancellation.CancellationManager()

    def call() -> Any:
      with cancellation.CancellationManagerContext(manager):
        return function(*arguments)

    result = self._thread.submit(call)
    try:
      ended, _ = concurrent.futures.wait([result], self._timeout_seconds)
    finally:
      if not result.done():
        self._thread = interrupts.CallingThread()  # The old thread may hang for ever.
        result.cancel()  # This has an effect only if the call has not begun.
        manager.start_cancel()
        concurrent.futures.wait([result], _PATIENCE_SECONDS)
    if not ended:
      raise failures.RoundTimeoutError.of(
        cast(float, self._timeout_seconds), '', 'see whether the machine lacked memory'
      )
    try:
      return result.result()
    except tf.errors.OpError as e:
      raise failures.of_tensorflow(e) from None

  def hold(self, state: Any) -> Any:
    """Converts a state, of this class or of a TFF process, to the tensors for `next`.

    Raises:
      ValueError: If the state does not fit this process.
    """

    def held(spec: tf.TensorSpec, value: Any) -> tf.Tensor:
      tensor = tf.convert_to_tensor(value)
      if not spec.is_compatible_with(tensor):
        raise ValueError(f'{functions.specs_of(tensor)} takes the place of {spec}.')
      return tensor

    try:
      return tf.nest.map_structure(held, self._specs, state)
    except (TypeError, ValueError) as e:
      raise ValueError(f'this state is of another process: {e}') from e


def to_numpy(structure: Any) -> Any:
  """Converts tensors to NumPy arrays and scalars; arrays are not copied."""
  return tf.nest.map_structure(lambda tensor: np.asarray(tensor)[()], structure)


def _sum_in_groups(
  compute: Callable[[tf.Tensor], Any], number: tf.Tensor, zeros: Any
) -> Any:
  """Sums `compute` over packs, in the order of `functions.group_sums`."""

  def add(compute: Callable[[tf.Tensor], Any], number: tf.Tensor, parallel: int) -> Any:
    return training_lib.fold(
      lambda index, total: tf.nest.map_structure(tf.add, total, compute(index)),
      number,
      zeros,
      parallel=parallel,
    )

  size, processors = functions.GROUP, machine.usable_processors()

  def group(index: tf.Tensor) -> Any:
    first = size * index
    packs = tf.minimum(size, number - first)
    return add(lambda pack: compute(first + pack), packs, min(size, processors))

  return add(group, (number + size - 1) // size, -(-processors // size))
