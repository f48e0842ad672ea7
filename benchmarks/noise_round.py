"""Measures what noise costs in a round of TFF: time, memory, and state.

    python -m benchmarks.noise_round [--elements=1000000] [--storage=all] [--only=blt]

Runs aggregation processes over one client with one float32 tensor, on one core, which
TFF's worker shares, each mechanism in a new worker. `seconds` are those of one round
minus those of the same round of a plain sum (`tff.aggregators.SumFactory`), timed in
turn: difference of the medians, and in brackets of the minima. `busy` is the processor
time of both processes, on average (in steps of 2 ms), for machines that run other
programs.

Each mechanism runs the round that remembers most: its buffers are full, and the tree
completes ten levels at once (in the line before, it completes only a leaf while ten
levels are occupied, as in every other round). That round is repeated. Files are in
memory if there is a file system in memory.

Ratios, both of medians:

* `to TFF's tree`: to TFF's own `tree_aggregation`, in the round that completes ten
  levels.
* `to limit`: to a lower bound of the machine, timed in the same run on the same core:
  64 random bits for each number that is drawn, and each buffer that is read or written,
  once, at the speed of copying memory.

`estimated` is the estimate that `storage='auto'` uses; it leaves out what a round takes
with any storage, such as clipping. `peak` is the peak memory of the worker, without
files. `state` is the size of TFF's state between rounds.
"""

import os

# Set before TensorFlow counts the cores; the worker inherits it.
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import contextlib
import dataclasses
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional
from unittest import mock

from benchmarks import _arguments

if __name__ == '__main__':
  # `storage`: auto, all, or one of them; `only`: part of the names of mechanisms.
  _FLAGS = _arguments.parse(__doc__ or '', elements=10**6, storage='auto', only='')

import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.noise import files as files_lib
from tff_dp_aggregators.noise import streaming
from tff_dp_aggregators.noise.options import STORAGES
from tff_dp_aggregators.noise.streaming import interpret

_ROUNDS = 2048
_TIMED, _UNTIMED = 5, 2
_SHARED_MEMORY = '/dev/shm'
_MAX_SECONDS = 5.0  # Storages whose estimated round is longer are left out.


class Case(NamedTuple):
  name: str
  strategy: strategies.Strategy
  round: int


def _cases() -> list[Case]:
  square_root = strategies.BandedToeplitz.square_root
  toeplitz = square_root(_ROUNDS, 64)
  blt = strategies.BLT(_ROUNDS, (0.2, 0.1, 0.1, 0.1), (0.999, 0.95, 0.8, 0.5))
  windowed = strategies.WindowedBLT(2000, 400, (0.2, 0.1), (0.99, 0.7))
  dense = square_root(256, 256).materialize()
  return [
    Case('iid Gaussian', strategies.Identity(_ROUNDS), 1),
    Case('BLT, 4 buffers', blt, 100),
    Case('tree, a leaf', strategies.BinaryTree(_ROUNDS), 1022),
    Case('tree, ten levels', strategies.BinaryTree(_ROUNDS), 1023),
    Case('plain tree, ten levels', strategies.BinaryTree(_ROUNDS, False), 1023),
    Case('banded C, 64 bands', toeplitz, 100),
    Case('banded C, 400 bands', square_root(_ROUNDS, 400), 500),
    Case(
      'general banded, 64 bands',
      strategies.Banded.from_matrix(toeplitz.materialize(), 64),
      100,
    ),
    Case(
      'banded C^-1, 16 bands', strategies.BandedInverse.square_root(_ROUNDS, 16), 100
    ),
    Case('windowed BLT, 12 buffers', windowed, 1999),
    Case('dense, 256 rounds', strategies.Dense(256, dense), 255),
  ]


class Limits(NamedTuple):
  """Seconds of one core for as many numbers as a record has.

  Attributes:
    draw: Drawing 64 random bits for each number.
    touch: Reading or writing the numbers once.
  """

  draw: float
  touch: float


def _limits(num_elements: int) -> Limits:
  draw = tf.function(
    lambda seed: tf.random.stateless_uniform(
      [num_elements], seed, minval=None, maxval=None, dtype=tf.uint64, alg='philox'
    )
  )
  seed = tf.constant([1, 2], tf.int64)
  source = np.ones(2**26, np.float32)  # Larger than any cache of the processor.
  target = np.ones(2**26, np.float32)
  bandwidth = 2 * source.size / _shortest(lambda: np.copyto(target, source))
  return Limits(_shortest(lambda: draw(seed).numpy()), num_elements / bandwidth)


def _shortest(function: Callable[[], object]) -> float:
  return min(_seconds(function) for _ in range(_TIMED + _UNTIMED))


def _seconds(function: Callable[[], object]) -> float:
  start = time.perf_counter()
  function()
  return time.perf_counter() - start


class Work(NamedTuple):
  """Rows drawn, and buffers read or written, in the round of a case."""

  drawn: int
  touched: int

  def seconds(self, limits: Limits) -> float:
    return self.drawn * limits.draw + self.touched * limits.touch


def _work(case: Case) -> Work:
  work = case.strategy.recursion().work
  past = interpret(case.strategy.recursion())
  if isinstance(past, streaming.Decays):
    return Work(work.draws, work.reads + work.writes)
  if not work.buffers:
    return Work(work.draws, 0)
  weights = past.step(tf.constant(case.round, tf.int64)).past
  return Work(work.draws, np.count_nonzero(np.any(weights, axis=0)) + 1)


@dataclasses.dataclass
class Measured:
  """Seconds of rounds, plain sums and processor, and bytes, of one mechanism."""

  rounds: list[float]
  sums: list[float]
  busy: float
  peak: int
  state: int
  files: int = 0

  @property
  def median(self) -> float:
    return statistics.median(self.rounds) - statistics.median(self.sums)

  @property
  def shortest(self) -> float:
    return min(self.rounds) - min(self.sums)


def _measure(
  factory: tff.aggregators.UnweightedAggregationFactory,
  num_elements: int,
  set_up: Callable[[Any], Any],
) -> Measured:
  """Times rounds that start from the state that `set_up` makes from the initial one."""
  value_type = tff.TensorType(np.float32, [num_elements])
  value = [np.full([num_elements], 1e-4, np.float32)]
  with runtime.local_runtime():
    process = factory.create(value_type)
    plain = tff.aggregators.SumFactory().create(value_type)
    state = _mapped(set_up, process.initialize())
    plain_state = plain.initialize()
    rounds, sums, busy = [], [], []
    for _ in range(_UNTIMED + _TIMED):
      before = _busy_seconds()
      rounds.append(_seconds(lambda: process.next(state, value)))
      between = _busy_seconds()
      sums.append(_seconds(lambda: plain.next(plain_state, value)))
      busy.append(2 * between - before - _busy_seconds())
    peak = _peak_of_worker()
  leaves = tf.nest.flatten(state)
  num_bytes = sum(np.asarray(leaf).nbytes for leaf in leaves)
  return Measured(
    rounds[_UNTIMED:],
    sums[_UNTIMED:],
    statistics.mean(busy[_UNTIMED:]),
    peak,
    num_bytes,
  )


def _mapped(function: Callable[[Any], Any], state: Any) -> Any:
  """Applies `function` to the named tuples in a state, outermost first."""
  changed = function(state)
  if changed is not state or not isinstance(state, tuple):
    return changed
  return type(state)(*(_mapped(function, part) for part in state))


def _worker() -> psutil.Process:
  children = psutil.Process().children()
  (worker,) = [child for child in children if child.name() == 'worker_binary']
  return worker


def _busy_seconds() -> float:
  """Returns the processor time of this process and its worker so far."""
  times = [process.cpu_times() for process in (psutil.Process(), _worker())]
  return sum(time.user + time.system for time in times)


def _peak_of_worker() -> int:
  """Returns the peak memory of the worker, in bytes."""
  worker = _worker()
  with open(f'/proc/{worker.pid}/status') as status:
    (kilobytes,) = re.findall(r'^VmHWM:\s*(\d+) kB', status.read(), re.MULTILINE)
  return int(kilobytes) * 1024


def _measure_case(case: Case, storage: noise.Storage, num_elements: int) -> Measured:
  def set_up(state: Any) -> Any:
    if not isinstance(state, noise.NoiseState):
      return state
    if isinstance(storage, noise.Files):
      _write_files(case, storage, state.key, num_elements)
    return state._replace(round=np.int64(case.round))

  factory = aggregators.from_strategy(
    case.strategy,
    strategies.Participation(case.strategy.num_rounds),
    clip_norm=1.0,
    noise_multiplier=1.0,
    clients_per_round=1,
    storage=storage,
  )
  return _measure(factory, num_elements, set_up)


class _Filled(files_lib._Memory):
  """Memory that writes zeros to each file before it is read."""

  def _read(self, position: int, slot: tf.Tensor, stamp: tf.Tensor) -> Any:
    layout = self.rows.layout
    zeros = tf.zeros([layout.sizes[position]], layout.dtypes[position])
    earlier = files_lib._Memory(self.directory, self.prefix, self.rows, stamp)
    earlier.write(position, [slot], [zeros])
    earlier.keep()
    return tf.constant(True), zeros


def _write_files(case: Case, files: noise.Files, key: Any, num_elements: int) -> None:
  """Writes zeros to all files that the round of a case reads."""
  rows = noise.GaussianRows(tf.TensorSpec([num_elements]))
  streaming = noise.build(case.strategy, rows, files)
  state = noise.NoiseState(tf.constant(key), tf.constant(case.round, tf.int64), ())
  with mock.patch.object(files_lib, '_Memory', _Filled):
    streaming.next(state)


def _measure_tff_tree(num_elements: int) -> Measured:
  """TFF's own tree in the round that completes ten levels."""

  def set_up(state: Any) -> Any:
    if type(state).__name__ != 'TreeState':
      return state
    levels = np.arange(10, dtype=np.int32)
    return state._replace(
      level_buffer=np.zeros([10, num_elements], np.float32), level_buffer_idx=levels
    )

  factory = tff.aggregators.DifferentiallyPrivateFactory.tree_aggregation(
    noise_multiplier=1.0,
    clients_per_round=1.0,
    l2_norm_clip=1.0,
    record_specs=tf.TensorSpec([num_elements]),
  )
  return _measure(factory, num_elements, set_up)


@contextlib.contextmanager
def _directory() -> Iterator[str]:
  parent = _SHARED_MEMORY if os.path.isdir(_SHARED_MEMORY) else None
  directory = tempfile.mkdtemp(prefix='noise_round-', dir=parent)
  try:
    yield directory
  finally:
    shutil.rmtree(directory)


def _bytes_in(directory: str) -> int:
  return sum(entry.stat().st_size for entry in os.scandir(directory))


def _print_line(
  name: str,
  storage: str,
  measured: Measured,
  peer: Measured,
  limit: Optional[float] = None,
  estimated: Optional[float] = None,
) -> None:
  megabytes = [measured.peak / 2**20, measured.state / 1e6, measured.files / 1e6]
  print(
    f'{name:25}{storage:8}'
    f'{measured.median:7.3f} ({measured.shortest:6.3f})'
    f'{measured.busy:8.3f}{measured.median / peer.median:14.3f}'
    + (f'{measured.median / limit:10.1f}' if limit else ' ' * 10)
    + (f'{estimated:11.3f}' if estimated else ' ' * 11)
    + ''.join(f'{number:10.1f}' for number in megabytes),
    flush=True,
  )


def _storages(case: Case, num_elements: int, choice: str) -> dict[str, float]:
  """Returns the storages to measure, with their estimated seconds."""
  rows = noise.GaussianRows(tf.TensorSpec([num_elements]))
  costs = strategies.strategy.by_storage(case.strategy, rows.layout.num_bytes)
  cheapest = strategies.strategy.cheapest(costs)
  estimates = {storage: cost.seconds for storage, cost in costs.items()}
  if choice == 'auto':
    return {cheapest: estimates[cheapest]}
  quick = {s: e for s, e in estimates.items() if e <= _MAX_SECONDS}
  return quick if choice == 'all' else {s: e for s, e in quick.items() if s == choice}


def main(num_elements: int, choice: str, only: str) -> None:
  """Prints the limits, then a line for TFF's tree and each mechanism and storage."""
  choices = ['auto', 'all', *STORAGES]
  if choice not in choices:
    sys.exit(f'error: --storage={choice} is none of {", ".join(choices)}.')
  limits = _limits(num_elements)
  print(
    f'{num_elements} numbers: {limits.draw:.4f} s to draw 64 random bits for each, '
    f'{limits.touch:.4f} s to read or write them'
  )
  print(
    f'{"mechanism":25}{"storage":8}{"seconds (best)":>16}{"busy":>8}'
    f'{"to TFFs tree":>14}{"to limit":>10}{"estimated":>11}{"peak MiB":>10}'
    f'{"state MB":>10}{"files MB":>10}'
  )
  peer = _measure_tff_tree(num_elements)
  _print_line("TFF's tree_aggregation", 'state', peer, peer)
  for case in _cases():
    if only not in case.name:
      continue
    limit = _work(case).seconds(limits)
    for storage, estimated in _storages(case, num_elements, choice).items():
      with _directory() as directory:
        used: noise.Storage = noise.Files(directory) if storage == 'files' else storage
        measured = _measure_case(case, used, num_elements)
        measured.files = _bytes_in(directory)
      _print_line(case.name, storage, measured, peer, limit, estimated)


if __name__ == '__main__':
  main(_FLAGS.elements, _FLAGS.storage, _FLAGS.only)
