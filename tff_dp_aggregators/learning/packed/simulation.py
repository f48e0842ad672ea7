"""Packed federated averaging: one TFF client stands for many.

A round of TFF costs some 14 ms for each client, whatever the client does. Here a TFF
client is a *pack*: numbers of clients, whose examples the computation reads in place
and which it trains side by side, clips, encodes and adds up. What it hands up is an
exact sum of integers, with counts; so the aggregator's state, its noise and its
accounting are those of the process that it stands for, and the sum is the same however
clients are packed. It is a technique of simulation: no device is where it says.

`PackedFedAvg.process` is that as a `tff.learning.templates.LearningProcess`. A state
that goes to TFF's worker and back costs half a millisecond a tensor and 10 to 27 ms a
megabyte, and what packs are sent and hand up costs more than they train if a model is
large. So for a loop of many rounds there is `PackedFedAvg.next`: one computation, with
all packs in it, whose states stay where it is, in private files.
"""

import collections
import contextlib
import functools
import glob
import logging
import os
import secrets
import weakref
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.base import machine
from tff_dp_aggregators.learning import process_parts
from tff_dp_aggregators.learning.packed import choice
from tff_dp_aggregators.learning.packed import cohort as cohort_lib
from tff_dp_aggregators.learning.packed import cutting
from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.learning.packed import leaves
from tff_dp_aggregators.learning.packed import pack as pack_lib
from tff_dp_aggregators.learning.packed import server as server_lib
from tff_dp_aggregators.learning.packed import training as training_lib
from tff_dp_aggregators.noise import private_directory

_ROWS = tff.TensorType(np.int64, [None, 3])
# States that are kept: that before a round and that after it.
_KEPT = 2
# How what TensorFlow logs begins when it fails to vectorise an operation.
_OF_CONVERSIONS = ('Got error while pfor was converting op', '%s\ncreated at:\n')


class HeldState(NamedTuple):
  """A state that a `PackedFedAvg` holds; no more than a name.

  Attributes:
    run: Whose.
    number: How many there were before; it is there until two later ones are.
  """

  run: str
  number: int


class PackedFedAvg:
  """Federated averaging of clients in packs.

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
  ):
    """Builds the computations.

    Args:
      training: What each client does, with the model.
      aggregator: The private mean, as it is or in `CoordinateBoundsFactory` and
        `ZeroLargeFactory`; `None` for training without privacy. How it sums records is
        not used: sums are made here.
      data: Clients' examples.
      server_optimizer: Applies the mean of updates to the model.
      num_packs: In how many packs a cohort is cut; `None` for what `cutting` says,
        which is the same on all machines.

    Raises:
      TypeError: If an optimizer is none.
      ValueError: If the features of `data` are not those of the model's `input_spec`,
        or the server's optimizer is not for the results of the aggregator.
    """
    data.check_against(training.model.input_spec)
    server_optimizer = process_parts.check_optimizer(
      'server_optimizer', server_optimizer
    )
    process_parts.check_client_optimizer(training.optimizer)
    process_parts.check_pair(
      tff.aggregators.UnweightedMeanFactory() if aggregator is None else aggregator,
      server_optimizer,
    )
    self._data = data
    self._num_packs = num_packs
    self._server = server_lib.Server(training, aggregator, server_optimizer)
    self._optimizer = server_optimizer
    self._training = training
    self._run_id = secrets.token_hex(8)
    self._latest = -1
    self.one_by_one = choice.why_one_by_one(training, data)
    self._build()

  def _build(self) -> None:
    """Makes the computations whose states are in files."""

    @tff.tensorflow.computation(np.str_)
    @tracing.as_written
    def begin(path: Any) -> Any:
      state = self._server.initial_state()
      self._state_specs = leaves.specs_of(state)
      return write(path, leaves.encode(state), tf.constant(0))

    try:
      with (
        contextlib.nullcontext() if self.one_by_one else _without_conversions_logged()
      ):
        self._run = self._make_run()
    except Exception as e:  # TensorFlow says in many ways that it cannot vectorise.
      if self.one_by_one is not None:
        raise
      why = [line.strip() for line in str(e).splitlines() if line.strip()]
      self.one_by_one = (
        f'TensorFlow cannot vectorise the model: {why[-1] if why else type(e).__name__}'
      )
      self._run = self._make_run()  # What else is wrong is raised here.
    self._begin = begin

  def _make_run(self) -> Callable[[str, str, cohort_lib.Cohort], Any]:
    """Makes what runs a round, of a file for each state, before and after, and who.

    A whole round is one graph: what is large does not leave it. Its packs, and the
    noise, which depends on none of them, are computed side by side.
    """
    pack = self._pack(self._server.add_noise)

    @tff.tensorflow.computation(np.str_, np.str_, np.str_, np.int32)
    @tracing.as_written
    def compute(path: Any, next_path: Any, rows: Any, num_packs: Any) -> Any:
      state = read(path, self._state_specs)
      weights, params = self._server.for_clients(state)
      sums = self._sums_of_packs(
        pack,
        weights,
        params,
        functools.partial(cohort_lib.rows_in, rows),
        num_packs,
        self._data.tensors(),
        machine.usable_processors(),
      )
      _, metrics = self._end_round(state, sums, next_path)
      return metrics

    def run(path: str, next_path: str, cohort: cohort_lib.Cohort) -> Any:
      with cohort.in_files(self._run_id) as rows:
        return compute(path, next_path, rows, len(cohort))

    return run

  def _end_round(
    self, state: Any, sums: Any, next_path: tf.Tensor
  ) -> tuple[Any, tf.Tensor]:
    """Inside a computation: the next state, and metrics once it is in a file."""
    next_state, metrics = self._server.finish(state, sums)
    tf.nest.assert_same_structure(next_state, self._state_specs)
    self._metrics_specs = leaves.specs_of(metrics)
    written = write(next_path, leaves.encode(next_state), leaves.encode(metrics))
    return next_state, written

  def _sums_of_packs(
    self,
    pack: pack_lib.Pack,
    weights: Any,
    params: Any,
    rows: Callable[[tf.Tensor], tf.Tensor],
    num_packs: tf.Tensor,
    examples: training_lib.Examples,
    parallel: int,
    keep_apart: Callable[[tf.DType], bool] = lambda dtype: False,
  ) -> Any:
    """Sums of packs, which are trained side by side and added up in their order.

    Args:
      pack: What each computes.
      weights: As for `Pack.run`.
      params: As for `Pack.run`.
      rows: Those of a pack, by its number.
      num_packs: How many there are.
      examples: As for `Pack.run`.
      parallel: How many are trained at once.
      keep_apart: Of which dtypes there is to be a value for each pack, and no sum.
    """
    zeros = pack.zeros(weights, params)

    def begin(zero: tf.Tensor) -> Any:
      if not keep_apart(zero.dtype):
        return zero
      return tf.TensorArray(zero.dtype, num_packs, element_shape=zero.shape)

    def body(number: tf.Tensor, totals: Any) -> Any:
      sums = pack.run(weights, params, rows(number), examples)
      return number + 1, [
        total.write(number, each) if isinstance(total, tf.TensorArray) else total + each
        for total, each in zip(totals, tf.nest.flatten(sums))
      ]

    _, totals = tf.while_loop(
      lambda number, unused_totals: number < num_packs,
      body,
      (tf.constant(0), [begin(zero) for zero in tf.nest.flatten(zeros)]),
      parallel_iterations=parallel,
    )
    flat = [
      total.stack() if isinstance(total, tf.TensorArray) else total for total in totals
    ]
    return tf.nest.pack_sequence_as(zeros, flat)

  def _pack(
    self, add_noise: Optional[Callable[[Any, Any, tf.Tensor], Any]]
  ) -> pack_lib.Pack:
    return pack_lib.Pack(
      self._training,
      self._data,
      self._server.encode,
      side_by_side=self.one_by_one is None,
      add_noise=add_noise,
    )

  def _work(self, broadcast_type: tff.Type) -> tff.Computation:
    """What a TFF client computes that is a pack."""
    pack = self._pack(self._server.add_noise)

    @tff.tensorflow.computation(broadcast_type, _ROWS)
    @tracing.as_written
    def work(broadcast: Any, rows: Any) -> Any:
      weights, params = leaves.decode(broadcast, self._broadcast_specs)
      sums = pack.run(weights, params, rows, self._data.tensors())
      self._sums_specs = leaves.specs_of(sums)
      return leaves.join(sums)

    return work

  def _finish(self, state: Any, sums: Any) -> tuple[Any, Any]:
    return self._server.finish(state, leaves.split(sums, self._sums_specs))

  def packs(self, clients: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
    """Cuts a cohort into packs, clients of a size together: what a round is told.

    Args:
      clients: Client numbers, int64 of shape [cohort].
      keys: What decides the order of each one's examples, of `local_order.keys`.

    Returns:
      For each pack, int64 of shape [clients, 3]: first example, number of examples and
      key of each. There is one pack at least.

    Raises:
      TypeError: If `clients` are no vector of whole numbers.
      ValueError: If one of them is not there, or twice, or there is not a key for each.
    """
    return list(self._cohort(clients, keys))

  def _cohort(self, clients: np.ndarray, keys: np.ndarray) -> cohort_lib.Cohort:
    def cut(sizes: np.ndarray) -> np.ndarray:
      num_packs = self._num_packs or cutting.num_packs(
        sizes, self._training.local_epochs, side_by_side=self.one_by_one is None
      )
      return cutting.cuts(len(sizes), max(1, min(num_packs, len(sizes))))

    return cohort_lib.Cohort(self._data, clients, keys, cut)

  def initialize(self) -> HeldState:
    """The state before the first round."""
    state = self._new_state()
    self._begin(self._path(state))
    return state

  def next(
    self, state: HeldState, clients: np.ndarray, keys: np.ndarray
  ) -> tuple[HeldState, Any]:
    """Runs a round.

    A round that is run again has the same noise again: with the same clients and keys
    it releases the same bits, and with others the difference of two sums without noise.

    Args:
      state: Before it; the latest, or the one before that, to run a round again.
      clients: As for `packs`.
      keys: As for `packs`.

    Returns:
      The state after the round, and its metrics, those of a learning process.

    Raises:
      TypeError: As for `packs`.
      ValueError: As for `packs`, or if the state is no longer there.
    """
    path, cohort = self._path(state), self._cohort(clients, keys)
    if state.number == self._latest:
      after = self._new_state()
    else:
      after = HeldState(self._run_id, state.number + 1)
    encoded = self._run(path, self._path(after), cohort)
    return after, leaves.to_numpy(encoded, self._metrics_specs)

  def release(self, state: HeldState) -> tff.learning.templates.LearningAlgorithmState:
    """A state as NumPy arrays: that of the process that is not packed.

    It holds the key of the noise.

    Args:
      state: Of `initialize` or `next`.

    Raises:
      ValueError: If it is no longer there.
    """
    with open(self._path(state), 'rb') as file:
      encoded = leaves.strings_of(file.read())
    return leaves.to_numpy(encoded, self._state_specs)

  def hold(self, state: tff.learning.templates.LearningAlgorithmState) -> HeldState:
    """Goes on from a state: what `release` returned, here or in another process.

    Args:
      state: Of this process, packed or not.

    Raises:
      ValueError: If it is of another process.
    """
    try:
      tf.nest.assert_same_structure(state, self._state_specs)
      flat = [
        spec.is_compatible_with(tf.convert_to_tensor(leaf))
        for leaf, spec in zip(
          tf.nest.flatten(state), tf.nest.flatten(self._state_specs)
        )
      ]
    except (TypeError, ValueError) as e:
      raise ValueError(f'this state is of another process: {e}') from e
    if not all(flat):
      raise ValueError(
        'this state is of another process: shapes or dtypes differ from '
        f'{self._state_specs}.'
      )
    held = self._new_state()
    private_directory.write(self._path(held), leaves.encode_to_bytes(state))
    return held

  def _new_state(self) -> HeldState:
    self._latest += 1
    return HeldState(self._run_id, self._latest)

  def _path(self, state: HeldState) -> str:
    if state.run != self._run_id or not (
      self._latest - _KEPT < state.number <= self._latest
    ):
      raise ValueError(
        f'{state} is not there, or no longer: of the states of {self._run_id}, those '
        f'of the last {_KEPT} rounds are kept, up to {self._latest}.'
      )
    return self._scratch('state', state.number % _KEPT)

  @functools.cached_property
  def _directory(self) -> private_directory.Directory:
    specs = tf.nest.flatten(self._state_specs)
    num_bytes = sum(
      (spec.shape.num_elements() or 0) * max(1, spec.dtype.size) for spec in specs
    )
    directory = private_directory.open_temporary(_KEPT * num_bytes)
    weakref.finalize(self, _remove, os.getpid(), directory.path, self._run_id)
    return directory

  def _scratch(self, what: str, number: int = 0) -> str:
    # As files of noise are called, so that what a killed process left is removed.
    return os.path.join(self._directory.path, f'{self._run_id}.{what}.{number}.0')

  @functools.cached_property
  def process(self) -> tff.learning.templates.LearningProcess:
    """All of it as a learning process of three computations.

    Its state is that of `build_dp_fed_avg` with the same model, aggregator and
    optimizers, and may go from one to the other. The argument of a round are `packs`.
    """
    initialize = tff.tensorflow.computation(
      tracing.as_written(self._server.initial_state)
    )
    state_type = initialize.type_signature.result

    @tff.tensorflow.computation(state_type)
    @tracing.as_written
    def for_clients(state: Any) -> Any:
      broadcast = self._server.for_clients(state)
      self._broadcast_specs = leaves.specs_of(broadcast)
      return leaves.encode(broadcast)

    work = self._work(for_clients.type_signature.result)

    @tff.tensorflow.computation(state_type, work.type_signature.result)
    @tracing.as_written
    def finish(state: Any, sums: Any) -> Any:
      return tff.learning.templates.LearningProcessOutput(*self._finish(state, sums))

    @tff.federated_computation
    def init_fn() -> Any:
      return tff.federated_eval(initialize, tff.SERVER)

    @tff.federated_computation(
      init_fn.type_signature.result, tff.FederatedType(_ROWS, tff.CLIENTS)
    )
    def next_fn(state: Any, packs: Any) -> Any:
      broadcast = tff.federated_broadcast(tff.federated_map(for_clients, state))
      sums = tff.federated_sum(tff.federated_map(work, (broadcast, packs)))
      output = tff.federated_map(finish, (state, sums))
      return tff.learning.templates.LearningProcessOutput(output.state, output.metrics)

    @tff.tensorflow.computation(state_type)
    @tracing.as_written
    def get_model_weights(state: Any) -> Any:
      return state.global_model_weights

    @tff.tensorflow.computation(state_type, state_type.global_model_weights)
    @tracing.as_written
    def set_model_weights(state: Any, model_weights: Any) -> Any:
      return _with(state, global_model_weights=model_weights)

    @tff.tensorflow.computation(state_type)
    @tracing.as_written
    def get_hparams(state: Any) -> Any:
      return collections.OrderedDict(
        client_work=collections.OrderedDict(),
        finalizer=self._optimizer.get_hparams(state.finalizer),
      )

    @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
    @tracing.as_written
    def set_hparams(state: Any, hparams: Any) -> Any:
      optimizer_state = self._optimizer.set_hparams(
        state.finalizer, hparams['finalizer']
      )
      return _with(state, finalizer=optimizer_state)

    return tff.learning.templates.LearningProcess(
      init_fn,
      next_fn,
      get_model_weights,
      set_model_weights,
      get_hparams_fn=get_hparams,
      set_hparams_fn=set_hparams,
    )


def _with(state: Any, **changed: Any) -> tff.learning.templates.LearningAlgorithmState:
  names = (
    'global_model_weights',
    'distributor',
    'client_work',
    'aggregator',
    'finalizer',
  )
  return tff.learning.templates.LearningAlgorithmState(
    **{name: changed.get(name, getattr(state, name)) for name in names}
  )


@contextlib.contextmanager
def _without_conversions_logged() -> Iterator[None]:
  """Leaves out what TensorFlow logs of an operation that it cannot vectorise.

  For a convolution that is 1,800 lines of errors, and all that comes of it is that
  clients are trained one by one. What was wrong is in the exception as well.
  """

  def is_other(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_OF_CONVERSIONS)

  logger = tf.get_logger()
  logger.addFilter(is_other)
  try:
    yield
  finally:
    logger.removeFilter(is_other)


def _remove(process: int, directory: str, run: str) -> None:
  """Removes a run's files, if this is the process whose they are and no fork of it."""
  if os.getpid() != process:
    return
  for path in glob.glob(os.path.join(glob.escape(directory), f'{run}.*')):
    with contextlib.suppress(OSError):
      os.unlink(path)


def read(path: tf.Tensor, specs: Any) -> Any:
  """What a file holds that `write` wrote, inside a computation.

  Args:
    path: String scalar.
    specs: Structure of `tf.TensorSpec`s like it.
  """
  return leaves.decode(leaves.strings_in(tf.io.read_file(path)), specs)


def write(path: tf.Tensor, encoded: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
  """Returns a result once a file is written, inside a computation.

  Args:
    path: String scalar.
    encoded: Of `leaves.encode`.
    result: What is returned.
  """
  written = tf.io.write_file(path, tf.io.serialize_tensor(encoded))
  with tf.control_dependencies([written]):
    return tf.identity(result)
