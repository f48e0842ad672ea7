"""Computes packs on several processes and machines, managed by Dask's `distributed`.

A round consists of tasks that Dask can compute again: the broadcast values, and the
sums of packs, of groups of packs, and of all groups. So a worker may be lost with
everything that it holds. Workers add no noise, and no key is sent to them. Dask starts
tasks of lost workers again; this module adds a deadline for tasks that hang, and one
for silent workers that a round waits for. Only workers load TensorFlow.
"""

import concurrent.futures
import contextlib
import functools
import ipaddress
import itertools
import json
import logging
import os
import pickle
import queue
import re
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import numpy as np

from tff_dp_aggregators.base import folder_lock
from tff_dp_aggregators.base import machine
from tff_dp_aggregators.base import version
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning.runs import progress

if TYPE_CHECKING:  # It takes as long to load as all the rest.
  import distributed

_ADDRESS = re.compile(r'(tcp|tls)://(\[[0-9a-fA-F:.]+\]|[^][\s:/@]+):([0-9]{1,5})/?')
_WORKER = re.compile(r'(?:tcp|tls)://[^\s,;]+')
_LOCAL = re.compile(r'local:([1-9][0-9]{0,3})')
_MAX_PORT = 65535
# Key of Dask's configuration that may replace the names of key and certificate files.
_LOADER = 'distributed.client.security-loader'
_MAX_NAMED = 5  # Workers named in a message.
_INDEX = 'index.json'  # File of packed data that has their checksum.
_TICK_SECONDS = 0.2
# Timeout for requests that scheduler and workers can answer at once.
ANSWER_SECONDS = 30.0
# Dask's loggers, which repeat what this module reports itself.
_LOGGERS = ('distributed', 'distributed.client', 'distributed.nanny', 'tornado')
# For a cluster that is started here: silent workers are restarted; other users of this
# machine see no dashboard; memory is not given back to the kernel after each step.
_LOCAL_CONFIGURATION = {
  'distributed.scheduler.worker-ttl': '30 seconds',
  'distributed.deploy.lost-worker-timeout': '2 minutes',
  'distributed.scheduler.http.routes': ['distributed.http.health'],
  'distributed.worker.http.routes': ['distributed.http.health'],
  'distributed.worker.preload': [__name__],
  'distributed.nanny.pre-spawn-environ': {
    'MALLOC_TRIM_THRESHOLD_': 2**30,
    'MALLOC_MMAP_THRESHOLD_': 2**25,  # The largest value that glibc accepts.
  },
}


_Refused = Callable[[str], 'ClusterError']  # Makes the error from its message.


class ClusterError(RuntimeError):
  """A cluster cannot be used (any more); the message says why and what to do."""


def check(
  scheduler: str, trusted_network: bool = False, name: str = 'scheduler'
) -> None:
  """Checks the address of a scheduler, without connecting to it."""
  trust = '--trusted_network' if name.startswith('-') else 'run.trusted_network'
  address, local = _ADDRESS.fullmatch(scheduler), _LOCAL.fullmatch(scheduler)
  if local is None and (address is None or not 0 < int(address.group(3)) <= _MAX_PORT):
    raise ValueError(
      f'{name}={scheduler} is not the address of a Dask scheduler; give {name}='
      'tcp://HOST:PORT or tls://HOST:PORT, as `dask scheduler` prints it, or '
      f'{name}=local:4 for four processes of this machine.'
    )
  max_processes = max(8, 4 * machine.usable_processors())
  if local is not None and int(local.group(1)) > max_processes:
    raise ValueError(
      f'{name}={scheduler} is more than {max_processes} processes, four for each '
      'processor of this machine, and each takes some 500 MB; give fewer.'
    )
  others: list[str] = []
  if address is not None and address.group(1) == 'tcp':
    addresses = _resolve(address.group(2).strip('[]'), name)
    others = [each for each in addresses if not _is_loopback(each)]
  if others and not trusted_network:
    raise ValueError(
      f'{name}={scheduler} ({", ".join(others)}) is not on this machine alone, and '
      'whoever reaches an unencrypted scheduler can run code on all of its workers. '
      "Give tls://HOST:PORT, with keys and certificates of Dask's configuration "
      f'(distributed.comm.tls); or {trust}, if nobody else is on that network.'
    )
  if trusted_network and not others:
    raise ValueError(
      f'{trust} is for a {name}=tcp://HOST:PORT of another machine, and here there is '
      f'{name}={scheduler}; leave it out.'
    )


def _resolve(host: str, name: str) -> list[str]:
  try:
    entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
  except (OSError, UnicodeError) as e:
    raise ValueError(
      f'{name}={host} does not resolve ({getattr(e, "strerror", None) or e}); see '
      'whether the name is spelled as it is known to this machine, or give an address.'
    ) from e
  return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _is_loopback(address: str) -> bool:
  parsed = ipaddress.ip_address(address.partition('%')[0])
  return (getattr(parsed, 'ipv4_mapped', None) or parsed).is_loopback


@contextlib.contextmanager
def connect(
  scheduler: 'Union[str, distributed.Client]',
  *,
  trusted_network: bool = False,
  name: str = 'scheduler',
  reach_seconds: float = 20.0,
  workers_seconds: float = 60.0,
) -> 'Iterator[distributed.Client]':
  """Connects to a Dask cluster whose workers have the environment of this program."""
  import distributed

  stated = scheduler if isinstance(scheduler, str) else 'CLIENT'

  def refused(what: str) -> ClusterError:
    return ClusterError(f'{name}={stated} {what}')

  if isinstance(scheduler, distributed.Client):
    if scheduler.asynchronous or scheduler.status != 'running':
      raise refused(
        f'is {scheduler!r}; give one that is connected, and not asynchronous.'
      )
    _check_workers(scheduler, refused, workers_seconds)
    yield scheduler
    return
  check(scheduler, trusted_network, name)
  local = _LOCAL.fullmatch(scheduler)
  with contextlib.ExitStack() as stack:
    stack.enter_context(_quiet_dask())
    if local is not None:
      address: Any = stack.enter_context(_local_cluster(int(local.group(1)), refused))
    else:
      address = scheduler.rstrip('/')
      if address.startswith('tls'):
        _check_keys(refused)
    client = _connect(address, refused, reach_seconds)
    stack.callback(_close, client)
    _check_workers(client, refused, workers_seconds)
    yield client


@contextlib.contextmanager
def _local_cluster(processes: int, refused: _Refused) -> Iterator[Any]:
  """A cluster on this machine, encrypted, so that other users cannot connect."""
  import dask
  import distributed

  with contextlib.ExitStack() as stack:
    stack.enter_context(dask.config.set(_LOCAL_CONFIGURATION))
    # Dask sets environment variables for workers in this process, and leaves them set.
    for each in _LOCAL_CONFIGURATION['distributed.nanny.pre-spawn-environ']:
      stack.callback(_set_variable, each, os.environ.get(each))
    folder, lock = folder_lock.temporary('tff-dp-dask-')
    stack.callback(lock.close)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    try:
      with interrupts.deferred():
        cluster = distributed.LocalCluster(
          n_workers=processes,
          threads_per_worker=1,
          host='127.0.0.1',
          protocol='tls://',
          security=distributed.Security.temporary(),
          dashboard_address='127.0.0.1:0',
          local_directory=folder,
          env={'TF_CPP_MIN_LOG_LEVEL': '3'},
          # Dask's default is the machine's memory per core; TensorFlow needs more.
          memory_limit=0,
          silence_logs=logging.CRITICAL,
        )
        stack.callback(_close_cluster, cluster)
    except Exception as e:
      raise refused(
        f'does not start: {type(e).__name__}: {_one_line(e)}. A script has to begin '
        "below if __name__ == '__main__': since processes that it starts load it, too."
      ) from e
    yield cluster


def _set_variable(name: str, value: Optional[str]) -> None:
  os.environ.pop(name, None)
  if value is not None:
    os.environ[name] = value


def dask_setup(worker: Any) -> None:
  """Loads TensorFlow in a worker before it joins; Dask calls this.

  The worker ignores Ctrl-C, which the program that started it, or its nanny, handles.
  """
  from tff_dp_aggregators.learning import functions as unused_functions

  del unused_functions
  if worker.nanny is not None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _connect(address: Any, refused: _Refused, seconds: float) -> 'distributed.Client':
  """Connects a client to a scheduler, or to a cluster that was started here."""
  import distributed

  # A server that is no scheduler may leave the client waiting for ever.
  connecting = interrupts.CallingThread().submit(
    functools.partial(
      distributed.Client, address, timeout=seconds, set_as_default=False
    )
  )
  concurrent.futures.wait([connecting], 2 * seconds)
  if not connecting.done():
    raise refused(f'cannot be used: it does not answer in {2 * seconds:g} s')
  try:
    client: distributed.Client = connecting.result()
    return client
  except Exception as e:  # A server that is no scheduler can cause any error.
    raise refused(
      f'cannot be used, or not be reached within {seconds:g} seconds. Look whether a '
      f'scheduler of Dask {distributed.__version__} runs there by this protocol (tcp '
      "or tls; see require-encryption in Dask's configuration), with a certificate of "
      'the same authority, and whether this machine may connect to it. Dask says: '
      f'{type(e).__name__}: {_one_line(e)}.'
    ) from e


def _check_keys(refused: _Refused) -> None:
  """Refuses to connect by TLS without keys, where Dask's own error is unclear."""
  import dask
  import distributed

  if dask.config.get(_LOADER, None):
    return
  why = 'it names none'
  try:
    if distributed.Security().get_connection_args('client')['ssl_context'] is not None:
      return
  except OSError as e:  # A missing file, or one that has no key (ssl.SSLError).
    tls = dask.config.get('distributed.comm.tls')
    files = [tls['ca-file'], *(tls['client'] or {}).values()]
    named = ', '.join(str(each) for each in files if each)
    why = f'{_one_line(e)}, of {named} as seen from {os.getcwd()}'
  raise refused(
    "needs keys and certificates of Dask's configuration, distributed.comm.tls with "
    f'ca-file, client.key and client.cert: {why}. docs/several_machines.md tells how '
    'to make them, and which configuration DASK_CONFIG has to name.'
  )


def software() -> dict[str, str]:
  """Versions, by name, that affect messages, their decoding, and the last digits."""
  return {
    'Python': '.'.join(map(str, sys.version_info[:2])),
    'tff_dp_aggregators': f'{version.current()}, modules {version.checksum()}',
    **version.of_libraries(),
  }


def differs(expected: Mapping[str, str]) -> str:
  """Why this process cannot compute for a program, as a clause; '' if it can."""
  own = software()
  for each, theirs in expected.items():
    if own.get(each) != theirs:
      return f'has {each} {own.get(each)}, and this program {theirs}'
  return ''


def _check_workers(
  client: 'distributed.Client', refused: _Refused, seconds: float
) -> None:
  """Waits for a first worker, and refuses workers that have other versions."""
  import distributed

  try:
    client.wait_for_workers(1, seconds)
  except (TimeoutError, distributed.TimeoutError):
    raise refused(
      f'has no workers, and none came within {seconds:g} seconds. Start some: '
      f'dask worker {client.scheduler.address} --nthreads 1'
    ) from None
  try:
    answers = ask(client, differs, software())
  except Exception as e:
    raise refused(
      f'has workers that do not answer within {ANSWER_SECONDS:g} seconds '
      f'({type(e).__name__}: {_one_line(e)}). Look at their logs, and end '
      'those that hang.'
    ) from e
  unfit = [f'{worker} {why}' for worker, why in answers.items() if why]
  if unfit:
    raise refused(
      f'has workers that differ from this program: {_listed(unfit)}. All need the '
      'environment of this program; restart them after it is changed.'
    )


def workers_of(client: 'distributed.Client') -> dict[str, int]:
  """The number of threads of each current worker, by address."""
  return dict(client.sync(client.scheduler.ncores, callback_timeout=ANSWER_SECONDS))


def ask(
  client: 'distributed.Client',
  function: Any,
  *arguments: Any,
  workers: Optional[list[str]] = None,
) -> dict[str, Any]:
  """Has workers call a function; returns answers, or why it cannot be loaded there."""
  answers = client.run(
    function,
    *arguments,
    workers=workers,
    on_error='return',
    callback_timeout=ANSWER_SECONDS,
  )
  results = {}
  for worker, answer in answers.items():
    if isinstance(answer, ImportError):
      results[worker] = f'cannot load {function.__module__} ({_one_line(answer)})'
    elif not isinstance(answer, BaseException):
      results[worker] = answer
    elif not isinstance(answer, OSError):
      raise answer
  return results


def _close(client: 'distributed.Client') -> None:
  with contextlib.suppress(Exception):
    client.close(timeout=_TICK_SECONDS * 10)


def _close_cluster(cluster: Any) -> None:
  with interrupts.deferred(), contextlib.suppress(Exception):
    cluster.close(timeout=ANSWER_SECONDS)


def _listed(workers: Sequence[str]) -> str:
  more = len(workers) - _MAX_NAMED
  return ', '.join(workers[:_MAX_NAMED]) + (f' and {more} more' if more > 0 else '')


def _one_line(error: BaseException) -> str:
  return ' '.join(str(error).split()).rstrip('.')


@contextlib.contextmanager
def _quiet_dask() -> Iterator[None]:
  """Silences Dask's logs and version warnings inside the context."""
  from distributed import versions

  with warnings.catch_warnings(), contextlib.ExitStack() as stack:
    warnings.simplefilter('ignore', versions.VersionMismatchWarning)
    for logger in map(logging.getLogger, _LOGGERS):
      stack.callback(logger.setLevel, logger.level)
      logger.setLevel(logging.CRITICAL + 1)
    yield


# Once packs have failed on this many workers, the packs are the cause, and the round
# fails; and how often Dask retries a pack.
_MAX_FAILED, _RETRIES = 3, 1
# A round may wait for the next pack this many times as long as the longest pause of
# rounds in which no worker was lost, joined or failed.
_PAUSE_FACTOR = 8.0
_RESTART_SECONDS = 15.0
# Broadcast values are part of the graph that goes to the scheduler, so it is large.
_QUIET = {'distributed.admin.large-graph-warning-threshold': '1 TB'}


class _PackError(Exception):
  """A pack failed on a worker; `is_unfit`: because of its versions, or lack of data."""

  def __init__(self, worker: str, error: Exception, is_unfit: bool = False):
    super().__init__(worker, error, is_unfit)
    self.worker, self.error, self.is_unfit = worker, error, is_unfit


class Cluster:
  """Computes the packs of rounds on the workers of a Dask cluster."""

  def __init__(
    self,
    client: 'distributed.Client',
    *,
    round_seconds: Optional[float] = None,
    hang_seconds: float = 120.0,
    silent_seconds: float = 15.0,
    absence_seconds: float = 60.0,
    say: Callable[[str], None] = functools.partial(progress.say, file=sys.stderr),
  ):
    """Starts watching the workers; a round may take `round_seconds`."""
    self._client = client
    self._address = client.scheduler.address
    self._round_seconds, self._absence_seconds = round_seconds, absence_seconds
    self._hang_seconds, self._silent_seconds = hang_seconds, silent_seconds
    self._say = say
    self._name = secrets.token_hex(4)
    self._numbers = itertools.count()
    self._longest_pause = 0.0
    self._held: dict[str, Any] = {}  # Futures of values that all rounds use.
    self._notes: list[str] = []
    self._number_of: dict[str, int] = {}
    self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.subscribe_topic('all', self._events.put)
    # When each worker joined; which were checked; and which of these are not used.
    self._workers = dict.fromkeys(workers_of(client), time.monotonic())
    self._checked: set[str] = set()
    self._unfit: set[str] = set()
    self._see_data = True

  @property
  def is_elsewhere(self) -> bool:
    """Whether workers may be on other machines, with other processors."""
    hosts = (each.partition('://')[2].rpartition(':')[0] for each in self._workers)
    return not all(_is_loopback(host.strip('[]')) for host in hosts)

  def notes(self) -> tuple[str, ...]:
    """What happened to workers since the last call."""
    self._take_events()
    notes, self._notes = self._notes, []
    return tuple(notes)

  def close(self) -> None:
    """Releases the data that workers hold."""
    self._held.clear()
    with contextlib.suppress(Exception):
      self._client.unsubscribe_topic('all')

  def sums(
    self, function: Any, broadcast: Sequence[np.ndarray], cohort: Sequence[np.ndarray]
  ) -> list[np.ndarray]:
    """Computes packs on workers; adds up groups of packs, then groups, in order."""
    begun = time.monotonic()
    failed: set[str] = set()  # Workers on which packs failed.
    while True:
      fit = self._fit_workers(function) - failed
      name = f'{self._name}-{next(self._numbers)}'
      where = sorted(fit) if failed or self._unfit else None
      root, packs = self._submit(name, function, list(broadcast), cohort, where)
      try:
        sums = self._wait(name, root, packs, begun)
      except _PackError as e:
        if e.is_unfit:  # It joined during this round, and is checked now.
          self._checked.discard(e.worker)
          continue
        failed.add(e.worker)
        if len(failed) == _MAX_FAILED or not fit - failed:
          raise e.error from None
        self._note(f'a pack failed on worker {e.worker}: {_one_line(e.error)}')
        continue
      if failed:
        self._restart(sorted(failed))
      return sums

  def _submit(
    self,
    name: str,
    function: Any,
    broadcast: list[np.ndarray],
    cohort: Any,
    workers: Optional[list[str]],
  ) -> tuple[Any, dict[str, Any]]:
    """Submits all tasks of a round; returns the futures of the sum and of the packs."""
    import dask

    from tff_dp_aggregators.learning import functions

    submit = functools.partial(
      self._client.submit,
      pure=False,
      workers=workers,
      # Workers that join later may take over if all of these are lost.
      allow_other_workers=workers is not None,
    )

    def hold(key: str, make: Callable[[], Any]) -> Any:
      if key not in self._held or self._held[key].status in ('cancelled', 'lost'):
        self._held[key] = submit(_identity, make(), key=f'{key}-{self._name}')
      return self._held[key]

    with dask.config.set(_QUIET):
      serialized = hold(function.key, lambda: pickle.dumps(function))
      files = None
      if not self._see_data:
        files = hold(function.data_checksum, lambda: _read(function.data_directory))
      sent = submit(_identity, broadcast, key=f'broadcast-{name}')
      packs = [
        submit(
          *(_pack, rows, function.key, serialized, sent, files, software()),
          key=f'pack-{name}-{number}',
          retries=_RETRIES,
        )
        for number, rows in enumerate(cohort)
      ]
      size = functions.GROUP
      groups = [
        submit(_add, packs[first : first + size], key=f'group-{name}-{first}')
        for first in range(0, len(packs), size)
      ]
      root = submit(_add, groups, key=f'sum-{name}')
    return root, {each.key: each for each in packs}

  def _wait(
    self, name: str, root: Any, packs: dict[str, Any], begun: float
  ) -> list[np.ndarray]:
    """Waits for the sum; restarts workers that are silent or hang meanwhile."""
    import distributed

    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for each in (*packs.values(), root):
      each.add_done_callback(done.put)
    last = seen = looked = time.monotonic()
    patience, noted = 1.0, len(self._notes)
    while True:
      with contextlib.suppress(queue.Empty):
        key = done.get(timeout=_TICK_SECONDS).key  # Signals are handled in between.
        pause, last = time.monotonic() - last, time.monotonic()
        if len(self._notes) == noted:
          self._longest_pause = max(self._longest_pause, pause)
        packs.pop(key, None)  # Dask frees its sum once its group's is computed.
        if key == root.key:
          try:
            return list(root.result(timeout=self._silent_seconds))
          except distributed.TimeoutError:
            root.add_done_callback(done.put)  # The worker that has it is silent.
          except distributed.KilledWorker as e:
            raise self._lost(
              f'has lost more workers than allowed-failures={e.allowed_failures} one '
              'after the other with the same task, the last one '
              f'{e.last_worker.address}; their logs may say why. Mostly that is too '
              'little memory: have fewer workers on a machine'
            ) from None
          except distributed.CancelledError:
            raise self._lost('was lost, or has forgotten what it was given') from None
      now = time.monotonic()
      self._take_events()
      if self._client.status != 'running':
        raise self._lost('was lost')
      if self._round_seconds is not None and now - begun > self._round_seconds:
        raise failures.RoundTimeoutError.of(
          self._round_seconds,
          f' on the Dask cluster {self._address}',
          'look at the logs of its workers',
        )
      if self._workers:
        seen = now
      elif now - seen > self._absence_seconds:
        raise self._lost(f'has had no worker for {self._absence_seconds:g} seconds')
      if now - last > patience * self._silent_seconds and now - looked > 1:
        looked = now
        try:
          silent, busy = self._client.run_on_scheduler(
            _silent_and_busy,
            self._silent_seconds,
            name,
            callback_timeout=ANSWER_SECONDS,
          )
        except Exception as e:
          raise self._lost(f'does not answer any more: {_one_line(e)}') from e
        limit = patience * max(self._hang_seconds, _PAUSE_FACTOR * self._longest_pause)
        # A worker that has just joined may still be loading TensorFlow.
        slow = [each for each in busy if now - self._workers.get(each, now) > limit]
        hanging = silent or (slow if now - last > limit else [])
        if hanging:
          self._note(f'worker {_listed(hanging)} does not answer, and is started anew')
          self._restart(hanging)
          last, patience = time.monotonic(), 2 * patience
        elif not busy and now - last > limit:
          self._note('no worker has a task of the round, which is submitted again')
          raise _PackError('', RuntimeError('no worker has a task'), is_unfit=True)

  def _restart(self, workers: list[str]) -> None:
    """Has nannies restart workers; workers without a nanny are dropped."""

    def start() -> None:
      with contextlib.suppress(Exception):  # `_take_events` sees which workers exist.
        self._client.restart_workers(workers, _RESTART_SECONDS, raise_for_error=False)

    threading.Thread(target=start, daemon=True).start()

  def _fit_workers(self, function: Any) -> set[str]:
    """Checks new workers; waits for workers that are fit, and returns these."""
    begun = time.monotonic()
    where = function.data_directory, function.data_checksum
    while True:
      self._take_events()
      new = sorted(self._workers.keys() - self._checked)
      try:
        answers = (
          ask(self._client, _fitness, software(), *where, workers=new) if new else {}
        )
      except Exception as e:
        raise self._lost(f'does not answer any more: {_one_line(e)}') from e
      for worker, (why, sees) in answers.items():
        self._checked.add(worker)
        if why:
          self._unfit.add(worker)
          self._note(f'worker {worker} is not used: it {why}')
        else:
          self._see_data &= sees
      fit = self._workers.keys() - self._unfit
      if fit:
        return fit
      if time.monotonic() - begun > self._absence_seconds:
        raise self._lost(
          f'has had no worker for {self._absence_seconds:g} seconds that packs can be '
          'computed on'
        )
      time.sleep(_TICK_SECONDS)

  def _take_events(self) -> None:
    """Records workers that joined or were lost."""
    while not self._events.empty():  # No other thread takes any.
      _, event = self._events.get()
      action, worker = event.get('action'), event.get('worker')
      if action == 'add-worker' and worker not in self._workers:
        self._workers[worker] = time.monotonic()
        self._note(f'worker {worker} is there')
      elif action == 'remove-worker' and worker in self._workers:
        del self._workers[worker]
        self._checked.discard(worker)
        self._unfit.discard(worker)
        self._note(f'worker {worker} is lost')

  def _note(self, what: str) -> None:
    def number(address: re.Match[str]) -> str:
      return str(self._number_of.setdefault(address.group(), len(self._number_of) + 1))

    # The ledger may be published, so it has numbers in place of addresses.
    self._notes.append(_WORKER.sub(number, what))
    self._say(f'{what[0].upper()}{what[1:]}.')

  def _lost(self, what: str) -> ClusterError:
    return ClusterError(
      f'The Dask cluster {self._address} {what}. Nothing of the round was kept. The '
      'same call goes on from the last checkpoint, on this cluster, another, or none.'
    )


def _silent_and_busy(
  silent_seconds: float, name: str, dask_scheduler: Any
) -> tuple[list[str], list[str]]:
  """Workers that are silent, and workers with tasks whose key contains `name`."""
  from distributed.scheduler import heartbeat_interval

  workers, now = dask_scheduler.workers.values(), time.time()
  longest = max(silent_seconds, 10 * heartbeat_interval(len(workers)))
  silent = [each.address for each in workers if now - each.last_seen > longest]
  keys = {each.address: [str(task.key) for task in each.processing] for each in workers}
  return silent, [each for each in keys if any(name in key for key in keys[each])]


# The functions below run in workers.
_LOCK = threading.Lock()
_FUNCTIONS: dict[str, Any] = {}  # By key; they read data in a folder of this machine.


def _identity(value: Any) -> Any:
  """Returns a value unchanged: the task keeps it on the cluster for other tasks."""
  return value


def _add(sums: list[list[np.ndarray]]) -> list[np.ndarray]:
  from tff_dp_aggregators.learning import functions

  return functions.group_sums(sums)


def _pack(
  rows: np.ndarray,
  key: str,
  serialized: bytes,
  broadcast: list[np.ndarray],
  files: Optional[Mapping[str, np.ndarray]],
  expected: Mapping[str, str],
) -> list[np.ndarray]:
  """Computes the sums of a pack; errors name the worker."""
  import distributed

  worker = distributed.get_worker()
  why = differs(expected)
  try:
    if why:
      raise RuntimeError(why)
    import tensorflow as tf

    with _LOCK:
      if key not in _FUNCTIONS:
        function = pickle.loads(serialized)
        _use_threads(function.intra_op_threads)
        if not _sees(function.data_directory, function.data_checksum):
          if files is None:
            why = f'does not see {function.data_directory}'
            raise RuntimeError(why)
          function = function.at(_write_files(files, key, worker.local_directory))
        _FUNCTIONS.clear()  # Drops the function of another training.
        _FUNCTIONS[key] = function
    try:
      sums: list[np.ndarray] = _FUNCTIONS[key](broadcast, rows)
    except tf.errors.OpError as e:
      raise failures.of_tensorflow(e) from None
    return sums
  except Exception as e:
    raise _PackError(worker.address, e, is_unfit=bool(why)) from None


def _use_threads(number: int) -> None:
  """Sets TensorFlow's threads for an operation, on which last digits depend."""
  import tensorflow as tf

  chosen = tf.config.threading.get_intra_op_parallelism_threads()
  if chosen == number:
    return
  try:
    tf.config.threading.set_intra_op_parallelism_threads(number)
  except RuntimeError as e:
    raise RuntimeError(
      f'TensorFlow was used in this worker before with {chosen or "other"} threads for '
      f'an operation, and this training needs {number} for the same last digits: start '
      'the worker anew.'
    ) from e


def _fitness(
  expected: Mapping[str, str], directory: str, checksum: str
) -> tuple[str, bool]:
  """Returns why this worker is not fit ('' if it is), and whether it sees the data."""
  return differs(expected), _sees(directory, checksum)


def _sees(directory: str, checksum: str) -> bool:
  try:
    with open(os.path.join(directory, _INDEX), encoding='utf-8') as file:
      return bool(json.load(file).get('checksum') == checksum)
  except (OSError, ValueError):
    return False


def _read(directory: str) -> dict[str, np.ndarray]:
  return {
    name: np.fromfile(os.path.join(directory, name), np.uint8)
    for name in os.listdir(directory)
  }


def _write_files(files: Mapping[str, np.ndarray], key: str, folder: str) -> str:
  """Writes the files into the worker's own folder, which is removed with it."""
  directory = os.path.join(folder, f'data-{key[:16]}')
  os.makedirs(directory, 0o700, exist_ok=True)
  for name, content in files.items():
    content.tofile(os.path.join(directory, name))
  return directory
