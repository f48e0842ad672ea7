"""Computes packs on several processes and machines, managed by Dask's `distributed`.

A round is a graph of tasks: the broadcast values, and the sums of packs, of groups of
packs, and of all groups. Dask computes the tasks of lost workers again. Workers add no
noise, and no key is sent to them. Only workers load TensorFlow.
"""

import concurrent.futures
import contextlib
import functools
import ipaddress
import json
import logging
import os
import pickle
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import machine
from tff_dp_aggregators.base import version
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import interrupts

if TYPE_CHECKING:  # It takes as long to load as all the rest.
  import distributed

_ADDRESS = re.compile(r'(tcp|tls)://(\[[0-9a-fA-F:.]+\]|[^][\s:/@]+):[1-9][0-9]{0,4}/?')
_LOCAL = re.compile(r'local:([1-9][0-9]{0,3})')
_INDEX = 'index.json'  # File of packed data that has their checksum.
_WORKERS_SECONDS, _CLOSE_SECONDS = 60.0, 30.0
_RETRIES = 2  # How often Dask tries a pack again that has failed.
# These repeat what errors say.
_LOGGERS = ('distributed', 'distributed.client', 'distributed.nanny', 'tornado')
# For a cluster that is started here: silent workers are restarted, which takes minutes
# on a busy machine; other users of this machine see no dashboard; memory is not given
# back to the kernel after each step.
_LOCAL_CONFIGURATION = {
  'distributed.scheduler.worker-ttl': '30 seconds',
  'distributed.scheduler.no-workers-timeout': '5 minutes',
  'distributed.deploy.lost-worker-timeout': '5 minutes',
  'distributed.scheduler.http.routes': ['distributed.http.health'],
  'distributed.worker.http.routes': ['distributed.http.health'],
  'distributed.worker.preload': [__name__],
  'distributed.nanny.pre-spawn-environ': {
    'MALLOC_TRIM_THRESHOLD_': 2**30,
    'MALLOC_MMAP_THRESHOLD_': 2**25,  # The largest value that glibc accepts.
  },
}
# Broadcast values are part of the graph that goes to the scheduler, so it is large.
_QUIET = {'distributed.admin.large-graph-warning-threshold': '1 TB'}


class ClusterError(RuntimeError):
  """A cluster cannot be used (any more); the message says why and what to do."""


def check(
  scheduler: Optional[str], trusted_network: bool = False, name: str = 'scheduler'
) -> None:
  """Checks the address of a scheduler, if there is one, without connecting to it."""
  given = scheduler or ''
  address, local = _ADDRESS.fullmatch(given), _LOCAL.fullmatch(given)
  if scheduler is not None and address is None and local is None:
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
  trust = '--trusted_network' if name.startswith('-') else 'run.trusted_network'
  is_elsewhere = False
  if address is not None and address.group(1) == 'tcp':
    try:
      entries = socket.getaddrinfo(address.group(2).strip('[]'), None)
    except (OSError, UnicodeError) as e:
      raise ValueError(f'{name}={scheduler} does not resolve: {e}.') from e
    hosts = [ipaddress.ip_address(entry[4][0]) for entry in entries]
    is_elsewhere = not all(host.is_loopback for host in hosts)
  if trusted_network and not is_elsewhere:
    raise ValueError(
      f'{trust} is for a {name}=tcp://HOST:PORT of another machine, and here it is '
      f'{scheduler or "not given"}; leave it out.'
    )
  if is_elsewhere and not trusted_network:
    raise ValueError(
      f'{name}={scheduler} is not on this machine alone, and whoever reaches an '
      'unencrypted scheduler can run code on all of its workers. Give '
      "tls://HOST:PORT, with keys and certificates of Dask's configuration "
      f'(distributed.comm.tls); or {trust}, if nobody else is on that network.'
    )


@contextlib.contextmanager
def connect(
  scheduler: 'Union[str, distributed.Client]',
  *,
  trusted_network: bool = False,
  name: str = 'scheduler',
  reach_seconds: float = 20.0,
) -> 'Iterator[distributed.Client]':
  """Connects to a Dask cluster whose workers have the environment of this program."""
  import distributed  # It sets levels of loggers.

  with contextlib.ExitStack() as stack:
    client: Any = scheduler
    if isinstance(scheduler, str):
      check(scheduler, trusted_network, name)
      for logger in map(logging.getLogger, _LOGGERS):
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL + 1)
      name, local = f'{name}={scheduler}', _LOCAL.fullmatch(scheduler)
      # A server that is no scheduler may leave the client waiting for ever.
      thread, address = interrupts.CallingThread(), scheduler.rstrip('/')
      try:
        if local:
          address = stack.enter_context(_local_cluster(int(local.group(1))))
        make = functools.partial(
          distributed.Client, address, timeout=reach_seconds, set_as_default=False
        )
        client = thread.submit(make).result(2 * reach_seconds)
      except Exception as e:  # A server that is no scheduler can cause any error.
        raise ClusterError(
          f'{name} cannot be used, or not be reached within {reach_seconds:g} seconds: '
          f'{failures.in_words(e)}. Look whether a scheduler of Dask '
          f'{distributed.__version__} runs there by this protocol, whether this '
          "machine may connect, and Dask's configuration names keys and certificates "
          'of the same authority (docs/several_machines.md). A script that starts '
          "local processes has to begin below if __name__ == '__main__'."
        ) from e
      stack.enter_context(_closing(client))
    try:
      client.wait_for_workers(1, _WORKERS_SECONDS)
      answers = client.run(differs, software(), callback_timeout=_WORKERS_SECONDS)
    except Exception as e:
      raise ClusterError(
        f'{name} has no workers that answer: {failures.in_words(e)}. Look at their '
        'logs, or start some by `dask worker` with the address and --nthreads 1.'
      ) from e
    unfit = [f'{worker} {why}' for worker, why in answers.items() if why]
    if unfit:
      raise ClusterError(
        f'{name} has workers that differ from this program: {", ".join(unfit)}. All '
        'need its environment; restart them after it is changed.'
      )
    yield client


@contextlib.contextmanager
def _local_cluster(processes: int) -> Iterator[Any]:
  import dask
  import distributed

  with dask.config.set(_LOCAL_CONFIGURATION):
    cluster = distributed.LocalCluster(
      n_workers=processes,
      threads_per_worker=1,
      host='127.0.0.1',
      protocol='tls://',  # Other users of this machine cannot connect.
      security=distributed.Security.temporary(),
      dashboard_address='127.0.0.1:0',
      env={'TF_CPP_MIN_LOG_LEVEL': '3'},
      # Dask's default is the machine's memory per core; TensorFlow needs more.
      memory_limit=0,
      silence_logs=logging.CRITICAL,
    )
    with _closing(cluster):
      yield cluster


@contextlib.contextmanager
def _closing(resource: Any) -> Iterator[Any]:
  """Closes a client or a cluster, which may not answer any more."""
  try:
    yield resource
  finally:
    with contextlib.suppress(Exception):
      resource.close(timeout=_CLOSE_SECONDS)


def dask_setup(worker: Any) -> None:
  """Loads TensorFlow in a worker before it joins; Dask calls this.

  The worker ignores Ctrl-C, which the program that started it, or its nanny, handles.
  """
  from tff_dp_aggregators.learning import functions as unused_functions

  del unused_functions
  if worker.nanny is not None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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


class Cluster:
  """Computes the packs of rounds on the workers of a Dask cluster."""

  def __init__(
    self, client: 'distributed.Client', round_seconds: Optional[float] = None
  ):
    self._client = client
    self._round_seconds = checks.check_timeout(round_seconds)
    self._key = ''  # Identifies the function that workers have.
    # Futures of the serialised function, and of the data that not all workers see.
    self._shared: tuple[Any, Any] = None, None

  @property
  def is_elsewhere(self) -> bool:
    """Whether workers may be on other machines, with other processors."""
    import distributed

    return not isinstance(self._client.cluster, distributed.LocalCluster)

  def sums(
    self, function: Any, broadcast: Sequence[np.ndarray], cohort: Sequence[np.ndarray]
  ) -> list[np.ndarray]:
    """Computes packs on workers; adds up groups of packs, then groups, in order."""
    try:
      root = self._submit(function, list(broadcast), cohort)
      return list(root.result(timeout=self._round_seconds))
    except (ClusterError, failures.ComputationError):
      raise
    except (TimeoutError, concurrent.futures.TimeoutError) as e:
      if self._round_seconds is None:
        raise
      raise failures.RoundTimeoutError.of(
        self._round_seconds,
        f' on the Dask cluster {self._client.scheduler.address}',
        'look at the logs of its workers',
      ) from e
    except Exception as e:
      raise ClusterError(
        f'The Dask cluster failed: {failures.in_words(e)}. Nothing of the round was '
        'kept. The same call goes on from the last checkpoint, on this cluster, '
        'another, or none.'
      ) from e

  def _submit(
    self, function: Any, broadcast: list[np.ndarray], cohort: Sequence[np.ndarray]
  ) -> Any:
    """Submits all tasks of a round; returns the future of the sum."""
    import dask

    from tff_dp_aggregators.learning import functions

    submit = functools.partial(self._client.submit, pure=False)
    with dask.config.set(_QUIET):
      if self._key != function.key:
        where, files = (function.data_directory, function.data_checksum), None
        sees = self._client.run(_sees, *where, callback_timeout=_WORKERS_SECONDS)
        if not all(sees.values()):
          files = submit(_identity, _read(function.data_directory))
        self._shared = submit(_identity, pickle.dumps(function)), files
        self._key = function.key
      sent = submit(_identity, broadcast)
      fixed = (function.key, *self._shared, sent, software())
      packs = [submit(_pack, rows, *fixed, retries=_RETRIES) for rows in cohort]
      size = functions.GROUP
      groups = [
        submit(_add, packs[first : first + size])
        for first in range(0, len(packs), size)
      ]
      return submit(_add, groups)


# The functions below run in workers.
_LOCK = threading.Lock()
_FUNCTIONS: dict[str, Any] = {}  # By key; they read data in a folder of this machine.


def _identity(value: Any) -> Any:
  """Keeps a value on the cluster for other tasks."""
  return value


def _add(sums: list[list[np.ndarray]]) -> list[np.ndarray]:
  from tff_dp_aggregators.learning import functions

  return functions.group_sums(sums)


def _pack(
  rows: np.ndarray,
  key: str,
  serialized: bytes,
  files: Optional[Mapping[str, np.ndarray]],
  broadcast: list[np.ndarray],
  expected: Mapping[str, str],
) -> list[np.ndarray]:
  import distributed
  import tensorflow as tf

  worker = distributed.get_worker()
  with _LOCK:
    function = _FUNCTIONS.get(key)
    if function is None:
      if why := differs(expected):
        raise ClusterError(f'The Dask worker {worker.address} {why}.')
      function = pickle.loads(serialized)
      # Last digits depend on it; an error if TensorFlow was used with another number.
      tf.config.threading.set_intra_op_parallelism_threads(function.intra_op_threads)
      if not _sees(function.data_directory, function.data_checksum):
        if files is None:
          raise ClusterError(
            f'The Dask worker {worker.address} does not see {function.data_directory}, '
            'as those that were there before do; the same call sends the data to all.'
          )
        function = function.at(_write_files(files, key, worker.local_directory))
      _FUNCTIONS.clear()  # Drops the function of another training.
      _FUNCTIONS[key] = function
  try:
    sums: list[np.ndarray] = function(broadcast, rows)
    return sums
  except tf.errors.OpError as e:
    raise failures.of_tensorflow(e) from None


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
