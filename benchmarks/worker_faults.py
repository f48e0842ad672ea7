"""Injects faults into a training on a Dask cluster; none may change the results.

    python -m benchmarks.worker_faults [--faults=200] [--seed=1] [--workers=3]

Starts a cluster of processes of this machine, like --scheduler=local:N. A private
training runs on it, and the state and metrics of each round must equal, bit for bit,
those of a training in this process alone. In each round one to three faults hit random
workers at random moments: processes are killed, stopped temporarily or permanently,
exit, or exhaust their memory; connections are dropped; all workers stop at once;
workers leave, and others join.

Prints a line for each kind, with the seconds of the longest round that had it. Exits
with 1 if a round took more than five minutes, was lost, or had other results.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import collections
import contextlib
import functools
import hashlib
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

from benchmarks import _arguments

if __name__ == '__main__':
  _FLAGS = _arguments.parse(__doc__ or '', faults=200, seed=1, workers=3)

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import _perceptron
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed

_LAYERS, _EXAMPLES = (64, 100, 10), 20
_CLIENTS, _COHORT, _PACKS, _NUM_ROUNDS = 2000, 600, 12, 1000
_HANG_SECONDS = 300.0
_MIN_WORKERS = 2  # With one, its fault would leave none.


class _Clients:
  """Clients with random examples."""

  def __len__(self) -> int:
    return _CLIENTS

  def examples(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    size = 1 + (5 * number) % _EXAMPLES
    x = rng.normal(size=[size, _LAYERS[0]]).astype(np.float32)
    return x, rng.integers(_LAYERS[-1], size=size)


class _Training:
  """A training that runs one round at a time."""

  def __init__(self, data: packed.PackedData, used: Any = None):
    self._simulation = packed.PackedFedAvg(
      packed.LocalTraining(
        _perceptron.model(_LAYERS),
        tff.learning.optimizers.build_sgdm(0.1),
        batch_size=4,
        local_epochs=2,
      ),
      aggregators.banded(
        strategies.Participation(_NUM_ROUNDS, min_separation=2),
        noise_multiplier=0.3,
        clip_norm=0.4,
        clients_per_round=_COHORT,
        seed=noise.Seed(1),
      ),
      data,
      server_optimizer=tff.learning.optimizers.build_sgdm(0.7, momentum=0.9),
      num_packs=_PACKS,
      cluster=used,
    )
    self._state = self._simulation.initialize()

  def round(self, number: int) -> str:
    """Runs a round; returns a digest of its state and metrics."""
    clients = np.random.default_rng(number).choice(_CLIENTS, _COHORT, replace=False)
    keys = local_order.keys(1, number, clients)
    self._state, metrics = self._simulation.next(self._state, clients, keys)
    digest = hashlib.sha256()
    for leaf in tf.nest.flatten((self._state, metrics)):
      array = np.asarray(leaf)
      is_text = array.dtype.hasobject
      digest.update(repr(array.tolist()).encode() if is_text else array.tobytes())
    return digest.hexdigest()


def misbehave(fault: str, dask_worker: Any) -> None:
  """Makes this worker fail at its next pack, or at once.

  Args:
    fault: Kind of failure: exit, memory or drop.
    dask_worker: The worker, which Dask passes.
  """
  from tff_dp_aggregators.learning import functions

  def run_wrongly(*unused: Any) -> Any:
    if fault == 'exit':
      os._exit(3)
    # As on a machine out of memory: killed after a large allocation.
    np.ones(5 * 10**7).sum()
    os.kill(os.getpid(), signal.SIGKILL)

  if fault == 'drop':
    dask_worker.batched_stream.comm.abort()
  else:
    patched: Any = functions.PackFunction
    patched.__call__ = run_wrongly


class _Site:
  """The cluster, and the faults that can be injected into it."""

  def __init__(self, client: Any, workers: int, rng: random.Random):
    self._rng, self._number = rng, workers
    self.client = client
    self.cluster: Any = client.cluster
    self._timers: list[threading.Timer] = []

  def _workers(self) -> list[str]:
    return sorted(self.client.ncores())

  def pick(self) -> list[str]:
    """Returns the address of a random worker, in a list."""
    return [self._rng.choice(self._workers())]

  def signal(self, workers: Any, number: int) -> list[int]:
    """Sends a signal to workers' processes, and returns their process ids."""
    pids = self.client.run(
      os.getpid, workers=workers, on_error='ignore', callback_timeout=5.0
    )
    valid_pids = [pid for pid in pids.values() if isinstance(pid, int)]
    _send(valid_pids, number)
    return valid_pids

  def stop(self, workers: Any, seconds: float) -> None:
    """Stops workers for some seconds, unless they end before."""
    pids = self.signal(workers, signal.SIGSTOP)
    self._timers.append(threading.Timer(seconds, _send, [pids, signal.SIGCONT]))
    self._timers[-1].daemon = True
    self._timers[-1].start()

  def inject(self, fault: str) -> None:
    """Makes a random worker fail."""
    self.client.run(
      misbehave, fault, workers=self.pick(), on_error='ignore', callback_timeout=5.0
    )

  def leave(self) -> None:
    """Retires a worker, which hands its data over, if enough others remain."""
    if len(self._workers()) > _MIN_WORKERS:
      self.client.retire_workers(self.pick())

  def join(self) -> None:
    """Starts another worker, unless there are more than at the start."""
    if len(self._workers()) <= self._number:
      self.cluster.scale(len(self.cluster.worker_spec) + 1)

  def close(self) -> None:
    """Continues stopped workers, so that they can end."""
    for each in self._timers:
      each.cancel()
      each.function(*each.args)


def _send(pids: list[int], number: int) -> None:
  for pid in pids:
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, number)


class _Kind(NamedTuple):
  """A kind of fault: its effect, and its relative frequency."""

  name: str
  make: Callable[[_Site, random.Random], None]
  weight: float = 1.0


_KINDS = (
  _Kind('killed', lambda site, rng: site.signal(site.pick(), signal.SIGKILL), 2.0),
  _Kind(
    'stopped for a while', lambda site, rng: site.stop(site.pick(), rng.uniform(0.1, 8))
  ),
  _Kind('stopped for good', lambda site, rng: site.stop(site.pick(), 1e6)),
  _Kind('all stopped', lambda site, rng: site.stop(None, rng.uniform(0.1, 3.0))),
  _Kind('ends by itself', lambda site, rng: site.inject('exit')),
  _Kind('takes all memory', lambda site, rng: site.inject('memory')),
  _Kind('connection dropped', lambda site, rng: site.inject('drop')),
  _Kind('leaves', lambda site, rng: site.leave()),
  _Kind('joins', lambda site, rng: site.join(), 1.5),
)


@contextlib.contextmanager
def _faults(
  site: _Site, kinds: list[_Kind], rng: random.Random, max_delay: float
) -> Iterator[None]:
  """Injects faults at random moments while the context is open."""

  def make(kind: _Kind, own_rng: random.Random) -> None:
    time.sleep(own_rng.uniform(0, max_delay))
    with contextlib.suppress(Exception):  # Another fault may have hit the worker.
      kind.make(site, own_rng)

  threads = [
    threading.Thread(target=make, args=(kind, random.Random(rng.random())), daemon=True)
    for kind in kinds
  ]
  for each in threads:
    each.start()
  yield
  for each in threads:
    each.join(5)  # One may wait for a worker that never answers.


def run(
  faults: int,
  seed: int,
  workers: int,
  say: Callable[[str], None] = functools.partial(print, flush=True),
) -> tuple[str, bool]:
  """Runs a campaign.

  Args:
    faults: Number of faults; one of each kind if there are enough.
    seed: Seed of the faults and their times.
    workers: Processes of the cluster, two or more.
    say: Takes lines of progress.

  Returns:
    A summary, and whether no round hung, was lost or differed.
  """
  if workers < _MIN_WORKERS:
    raise ValueError(f'workers={workers}: give two or more, so that others go on.')
  rng = random.Random(seed)
  drawn = list(_KINDS) + rng.choices(_KINDS, [each.weight for each in _KINDS], k=faults)
  remaining = collections.deque(rng.sample(drawn[:faults], faults))
  rounds: list[tuple[float, list[str]]] = []
  hangs = lost = different = 0
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    data = packed.lay_out(_Clients(), os.path.join(folder, 'data'))
    client = stack.enter_context(cluster.connect(f'local:{workers}'))
    site = _Site(client, workers, rng)
    stack.callback(site.close)
    used = cluster.Cluster(client, round_seconds=_HANG_SECONDS)
    local, distributed = _Training(data), _Training(data, used)
    expected = local.round(0)
    different += distributed.round(0) != expected
    typical = 1.0
    while remaining:
      number = len(rounds) + 1
      expected = local.round(number)
      if len(client.ncores()) < _MIN_WORKERS:
        site.join()
      kinds = [
        remaining.popleft()
        for _ in range(min(len(remaining), rng.choice((1, 1, 2, 3))))
      ]
      names = [each.name for each in kinds]
      start = time.monotonic()
      try:
        with _faults(site, kinds, rng, typical):
          actual = distributed.round(number)
          seconds = time.monotonic() - start
      except Exception as e:  # The state of the training is lost.
        say(f'round {number} ({", ".join(names)}): {e}')
        hangs += isinstance(e, failures.RoundTimeoutError)
        lost += 1
        break
      rounds.append((seconds, names))
      typical = float(np.median([each for each, _ in rounds]))
      different += actual != expected
      say(f'round {number}: {seconds:6.1f} s, {", ".join(names)}')
  rounds_by_kind = {
    kind.name: [each for each in rounds if kind.name in each[1]] for kind in _KINDS
  }
  for name, with_kind in rounds_by_kind.items():
    if with_kind:
      count = sum(names.count(name) for _, names in with_kind)
      longest = max(seconds for seconds, _ in with_kind)
      say(f'{name:20} {count:4d}   longest round {longest:6.1f} s')
  count = sum(len(names) for _, names in rounds)
  return (
    f'rounds: {len(rounds)}, faults: {count}, hangs: {hangs}, lost rounds: {lost}, '
    f'different results: {different}',
    not (hangs or lost or different),
  )


def main() -> None:
  """Prints a line for each round and kind, then the summary."""
  try:
    summary, is_good = run(_FLAGS.faults, _FLAGS.seed, _FLAGS.workers)
  except ValueError as e:
    sys.exit(f'error: {e}')
  print(summary, flush=True)
  sys.exit(not is_good)


if __name__ == '__main__':
  main()
