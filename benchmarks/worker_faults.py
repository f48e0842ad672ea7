"""A campaign of faults against a training on a Dask cluster, which none may change.

    python -m benchmarks.worker_faults [--faults=200] [--seed=1] [--workers=3]

Starts a cluster of processes of this machine, as --scheduler=local:N does. A private
training runs on it, round after round, and the state and metrics of each round have to
be, to the bit, those of a training in this process alone. In each round faults come at
random moments, one to three of them, to random workers: processes are killed, stopped
for a while or for good, end by themselves, or take all memory that they may have; tasks
fail, or hang; connections are dropped; all workers stop at once; workers leave, and
others join.

Prints a line for each kind, with the seconds of the longest round that had it. Ends
with 1 if a round took more than five minutes, was lost, or came to other bits.

Workers are given up after 5 s of silence and 15 s without a pack, here, and not after
15 and 120 s, so that more faults come in a minute.
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
_FEWEST_WORKERS = 2  # With fewer there is nobody to go on.


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
  """A training that is run round after round."""

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
    """Runs a round; returns a fingerprint of all that it came to."""
    clients = np.random.default_rng(number).choice(_CLIENTS, _COHORT, replace=False)
    keys = local_order.keys(1, number, clients)
    self._state, metrics = self._simulation.next(self._state, clients, keys)
    found = hashlib.sha256()
    for leaf in tf.nest.flatten((self._state, metrics)):
      array = np.asarray(leaf)
      is_text = array.dtype.hasobject
      found.update(repr(array.tolist()).encode() if is_text else array.tobytes())
    return found.hexdigest()


def misbehave(how: str, dask_worker: Any) -> None:
  """Has this worker do something wrong with its next pack, or at once.

  Args:
    how: What.
    dask_worker: The worker; Dask gives it.
  """
  from tff_dp_aggregators.learning import functions

  def wrong(*unused: Any) -> Any:
    if how == 'fail':
      raise OSError('no space left on device')
    if how == 'hang':
      time.sleep(1e6)
    if how == 'exit':
      os._exit(3)
    # As a machine without memory does it: after much was taken.
    np.ones(5 * 10**7).sum()
    os.kill(os.getpid(), signal.SIGKILL)

  if how == 'drop':
    dask_worker.batched_stream.comm.abort()
  else:
    patched: Any = functions.PackFunction
    patched.__call__ = wrong


class _Site:
  """The cluster, and what can be done to it."""

  def __init__(self, client: Any, workers: int, rng: random.Random):
    self._rng, self._number = rng, workers
    self.client = client
    self.cluster: Any = client.cluster
    self._late: list[threading.Timer] = []

  def _workers(self) -> list[str]:
    return sorted(cluster.workers_of(self.client))

  def one(self) -> list[str]:
    """A random worker."""
    return [self._rng.choice(self._workers())]

  def signal(self, workers: Any, number: int) -> list[int]:
    """Sends a signal to workers' processes, and returns their numbers."""
    pids = self.client.run(
      os.getpid, workers=workers, on_error='ignore', callback_timeout=5.0
    )
    found = [pid for pid in pids.values() if isinstance(pid, int)]
    _send(found, number)
    return found

  def stop(self, workers: Any, seconds: float) -> None:
    """Stops workers for a while, unless they are ended before."""
    pids = self.signal(workers, signal.SIGSTOP)
    self._late.append(threading.Timer(seconds, _send, [pids, signal.SIGCONT]))
    self._late[-1].daemon = True
    self._late[-1].start()

  def ask(self, how: str) -> None:
    """Has a worker misbehave."""
    self.client.run(
      misbehave, how, workers=self.one(), on_error='ignore', callback_timeout=5.0
    )

  def leave(self) -> None:
    """Lets a worker go, with what it has handed over, if there are others."""
    if len(self._workers()) > _FEWEST_WORKERS:
      self.client.retire_workers(self.one())

  def join(self) -> None:
    """Starts another worker, unless there are more than there were."""
    if len(self._workers()) <= self._number:
      self.cluster.scale(len(self.cluster.worker_spec) + 1)

  def close(self) -> None:
    """Lets stopped workers go on, which then end as others do."""
    for each in self._late:
      each.cancel()
      each.function(*each.args)


def _send(pids: list[int], number: int) -> None:
  for pid in pids:
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, number)


class _Kind(NamedTuple):
  """A kind of fault: what it does, and how often it comes among the others."""

  name: str
  make: Callable[[_Site, random.Random], None]
  weight: float = 1.0


_KINDS = (
  _Kind('killed', lambda site, rng: site.signal(site.one(), signal.SIGKILL), 2.0),
  _Kind(
    'stopped for a while', lambda site, rng: site.stop(site.one(), rng.uniform(0.1, 8))
  ),
  _Kind('stopped for good', lambda site, rng: site.stop(site.one(), 1e6)),
  _Kind('all stopped', lambda site, rng: site.stop(None, rng.uniform(0.1, 3.0))),
  _Kind('ends by itself', lambda site, rng: site.ask('exit')),
  _Kind('takes all memory', lambda site, rng: site.ask('memory')),
  _Kind('tasks fail', lambda site, rng: site.ask('fail')),
  _Kind('tasks hang', lambda site, rng: site.ask('hang'), 0.5),
  _Kind('connection dropped', lambda site, rng: site.ask('drop')),
  _Kind('leaves', lambda site, rng: site.leave()),
  _Kind('joins', lambda site, rng: site.join(), 1.5),
)


@contextlib.contextmanager
def _faults(
  site: _Site, kinds: list[_Kind], rng: random.Random, longest: float
) -> Iterator[None]:
  """Has faults come at random moments while inside."""

  def make(kind: _Kind, own: random.Random) -> None:
    time.sleep(own.uniform(0, longest))
    with contextlib.suppress(Exception):  # Of whom another fault has met before.
      kind.make(site, own)

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
    faults: How many, at least; of each kind one if there are as many.
    seed: Of what comes when.
    workers: Processes of the cluster, two or more.
    say: Takes lines.

  Returns:
    What it came to, and whether that is nothing bad.
  """
  if workers < _FEWEST_WORKERS:
    raise ValueError(f'workers={workers}: give two or more, so that others go on.')
  rng = random.Random(seed)
  made = list(_KINDS) + rng.choices(_KINDS, [each.weight for each in _KINDS], k=faults)
  left = collections.deque(rng.sample(made[:faults], faults))
  rounds: list[tuple[float, list[str]]] = []
  hangs = lost = different = 0
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    data = packed.lay_out(_Clients(), os.path.join(folder, 'data'))
    client = stack.enter_context(cluster.connect(f'local:{workers}'))
    site = _Site(client, workers, rng)
    stack.callback(site.close)
    used = cluster.Cluster(
      client,
      round_seconds=_HANG_SECONDS,
      silent_seconds=5.0,
      hang_seconds=15.0,
      say=lambda line: say(f'  {line}'),
    )
    stack.callback(used.close)
    here, there = _Training(data), _Training(data, used)
    expected = here.round(0)
    different += there.round(0) != expected
    typical = 1.0
    while left:
      number = len(rounds) + 1
      expected = here.round(number)
      if len(cluster.workers_of(client)) < _FEWEST_WORKERS:
        site.join()
      kinds = [left.popleft() for _ in range(min(len(left), rng.choice((1, 1, 2, 3))))]
      names = [each.name for each in kinds]
      begun = time.monotonic()
      try:
        with _faults(site, kinds, rng, typical):
          found = there.round(number)
          seconds = time.monotonic() - begun
      except Exception as e:  # Of which the state is gone.
        say(f'round {number} ({", ".join(names)}): {e}')
        hangs += isinstance(e, failures.RoundTimeoutError)
        lost += 1
        break
      rounds.append((seconds, names))
      typical = float(np.median([each for each, _ in rounds]))
      different += found != expected
      notes = len(used.notes())
      say(f'round {number}: {seconds:6.1f} s, {notes} notes, {", ".join(names)}')
  made_of = {
    kind.name: [each for each in rounds if kind.name in each[1]] for kind in _KINDS
  }
  for name, those in made_of.items():
    if those:
      count = sum(names.count(name) for _, names in those)
      longest = max(seconds for seconds, _ in those)
      say(f'{name:20} {count:4d}   longest round {longest:6.1f} s')
  count = sum(len(names) for _, names in rounds)
  return (
    f'rounds: {len(rounds)}, faults: {count}, hangs: {hangs}, lost rounds: {lost}, '
    f'different results: {different}',
    not (hangs or lost or different),
  )


def main() -> None:
  """Prints a line for each round and kind, and what became of all."""
  try:
    said, is_good = run(_FLAGS.faults, _FLAGS.seed, _FLAGS.workers)
  except ValueError as e:
    sys.exit(f'error: {e}')
  print(said, flush=True)
  sys.exit(not is_good)


if __name__ == '__main__':
  main()
