"""Packs on several processes and machines, which Dask's `distributed` looks after.

`connect` gives a client of a scheduler whose workers have the environment of this
program. Nothing here loads TensorFlow, but on workers.
"""

import contextlib
import ipaddress
import logging
import re
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from tff_dp_aggregators.base import version

if TYPE_CHECKING:  # It takes as long to load as all the rest.
  import distributed

_ADDRESS = re.compile(r'(tcp|tls)://(\[[0-9a-fA-F:.]+\]|[^][\s:/@]+):([0-9]{1,5})/?')
_LOCAL = re.compile(r'local:([1-9][0-9]{0,3})')
_MAX_PORT = 65535
# What Dask's configuration may have in place of names of files.
_LOADER = 'distributed.client.security-loader'
_MOST_NAMED = 5  # Workers that are not fit.
_TICK_SECONDS = 0.2
# How long scheduler and workers may take to answer what takes them no time.
_ANSWER_SECONDS = 30.0
# Of Dask, which log what this says itself.
_LOGGERS = ('distributed', 'distributed.client', 'distributed.nanny', 'tornado')
# Of a cluster that is started here. A worker whose event loop is silent for so long is
# started anew; others of this machine are shown nothing; Ctrl-C is for this program
# alone; memory is kept, and not given back to the kernel after each step.
_LOCAL_CONFIGURATION = {
  'distributed.scheduler.worker-ttl': '30 seconds',
  'distributed.scheduler.http.routes': ['distributed.http.health'],
  'distributed.worker.http.routes': ['distributed.http.health'],
  'distributed.worker.preload': [__name__],
  'distributed.nanny.pre-spawn-environ': {
    'MALLOC_TRIM_THRESHOLD_': 2**30,
    'MALLOC_MMAP_THRESHOLD_': 2**30,
  },
}


class ClusterError(RuntimeError):
  """A cluster cannot be used, or not any more; the message says why and what to do."""


def check(
  scheduler: str, trusted_network: bool = False, name: str = 'scheduler'
) -> None:
  """Checks where a scheduler is; nothing is connected to.

  Args:
    scheduler: As for `connect`.
    trusted_network: As for `connect`.
    name: What `scheduler` is called in messages: a flag with its dashes, or an
      argument.

  Raises:
    ValueError: If it is no address, or one for `tls://` or a trusted network, or a
      trusted network that allows nothing.
  """
  trust = '--trusted_network' if name.startswith('-') else 'trusted_network'
  found, host = _ADDRESS.fullmatch(scheduler), ''
  if found is not None and 0 < int(found.group(3)) <= _MAX_PORT:
    host = found.group(2).strip('[]')
  elif not _LOCAL.fullmatch(scheduler):
    raise ValueError(
      f'{name}={scheduler} is no address of a Dask scheduler; give {name}='
      'tcp://HOST:PORT or tls://HOST:PORT, as `dask scheduler` prints it, or '
      f'{name}=local:4 for four processes of this machine.'
    )
  is_open = False
  if host and scheduler.startswith('tcp'):
    others = [each for each in _resolve(host, name) if not _is_loopback(each)]
    is_open = bool(others)
    if is_open and not trusted_network:
      meant = '' if others == [host] else f' ({", ".join(others)})'
      raise ValueError(
        f'{name}={scheduler}{meant} is not on this machine alone, and whoever reaches '
        'an unencrypted scheduler can run code on all of its workers. Give '
        "tls://HOST:PORT, with keys and certificates of Dask's configuration "
        f'(distributed.comm.tls); or {trust}, if nobody else is on that network.'
      )
  if trusted_network and not is_open:
    raise ValueError(
      f'{trust} is for a {name}=tcp://HOST:PORT of another machine, and here there is '
      f'{name}={scheduler}; leave it out.'
    )


def _resolve(host: str, name: str) -> list[str]:
  """The addresses that a host stands for."""
  try:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
  except (OSError, UnicodeError) as e:
    raise ValueError(
      f'{name}={host} stands for no address ({getattr(e, "strerror", None) or e}); see '
      'whether the name is spelled as it is known to this machine, or give an address.'
    ) from e
  return list(dict.fromkeys(str(entry[4][0]) for entry in found))


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
  """Connects to a Dask cluster whose workers have the environment of this program.

  While inside, what Dask logs and warns of is kept off the terminal: who uses the
  cluster says what matters.

  Args:
    scheduler: 'tcp://HOST:PORT' or 'tls://HOST:PORT', as `dask scheduler` prints it;
      keys and certificates for `tls://` are those of Dask's own configuration. Or
      'local:4' for a cluster of four processes of this machine, with one thread each,
      which ends with this and which other users of the machine cannot connect to. Or a
      client that is connected, which stays so.
    trusted_network: Whether a scheduler of another machine may be reached by `tcp://`,
      as nobody else is on the network.
    name: What `scheduler` is called in messages: a flag with its dashes, or an
      argument.
    reach_seconds: How long to try to reach the scheduler.
    workers_seconds: How long to wait for a first worker.

  Yields:
    A client.

  Raises:
    ClusterError: If Dask is not installed, the scheduler is not reached, there are no
      workers, or some have other versions.
    ValueError: As from `check`.
  """
  said = scheduler if isinstance(scheduler, str) else 'CLIENT'
  refused = _Refused(f'{name}={said}')
  try:
    import distributed
  except ImportError as e:
    raise refused(
      f'needs Dask, which is not installed here ({e}). Install this package with its '
      'extra dask; requirements.lock has it.'
    ) from e
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
    stack.enter_context(_silenced())
    if local is not None:
      address: Any = stack.enter_context(_local(int(local.group(1)), refused))
    else:
      address = scheduler.rstrip('/')
      if address.startswith('tls'):
        _check_keys(refused)
    client = _connected(address, refused, reach_seconds)
    stack.callback(_close, client)
    _check_workers(client, refused, workers_seconds)
    yield client


class _Refused:
  """Makes the errors that say what is wrong with a scheduler."""

  def __init__(self, scheduler: str):
    self.scheduler = scheduler

  def __call__(self, what: str) -> ClusterError:
    return ClusterError(f'{self.scheduler} {what}')


@contextlib.contextmanager
def _local(processes: int, refused: _Refused) -> Iterator[Any]:
  """A cluster of this machine, encrypted, so that other users have no part in it."""
  import dask
  import distributed

  with dask.config.set(_LOCAL_CONFIGURATION):
    try:
      cluster = distributed.LocalCluster(
        n_workers=processes,
        threads_per_worker=1,
        host='127.0.0.1',
        protocol='tls://',
        security=distributed.Security.temporary(),
        dashboard_address='127.0.0.1:0',
        silence_logs=logging.CRITICAL,
      )
    except Exception as e:
      raise refused(f'does not start: {type(e).__name__}: {_line(e)}.') from e
    try:
      yield cluster
    finally:
      with contextlib.suppress(Exception):
        cluster.close(timeout=_ANSWER_SECONDS)


def dask_setup(worker: Any) -> None:
  """Lets a worker of `local` go on at Ctrl-C; Dask calls this in its main thread."""
  del worker
  signal.signal(signal.SIGINT, signal.SIG_IGN)


def _connected(address: Any, refused: _Refused, seconds: float) -> 'distributed.Client':
  """A client of a scheduler, or of a cluster that was started here."""
  import distributed

  try:
    return distributed.Client(
      address, timeout=seconds, set_as_default=False, name='tff_dp_aggregators'
    )
  except OSError as e:  # Among them what is too late.
    raise refused(
      f'cannot be reached within {seconds:g} seconds. Look whether the scheduler runs '
      f'there, and whether this machine may connect to it. Dask says: {_line(e)}'
    ) from e
  except Exception as e:  # By whatever else answers there.
    raise refused(
      'cannot be used. Look whether it is a Dask scheduler of this version '
      f'({distributed.__version__}). Dask says: {type(e).__name__}: {_line(e)}'
    ) from e


def _check_keys(refused: _Refused) -> None:
  """Refuses to connect by TLS without keys, which a client may not survive."""
  import dask
  import distributed

  if dask.config.get(_LOADER, None):
    return
  why = 'it names none'
  try:
    security = distributed.Security()
    if security.get_connection_args('client')['ssl_context'] is not None:
      return
  except OSError as e:  # Also of what is no key.
    why = _line(e)
  raise refused(
    "needs keys and certificates of Dask's configuration, distributed.comm.tls with "
    f'ca-file, client.key and client.cert: {why}. docs.dask.org has "TLS/SSL".'
  )


def software() -> dict[str, str]:
  """Versions that decide what is sent, how it is read, and the last digits, by name."""
  return {
    'Python': '.'.join(map(str, sys.version_info[:2])),
    'tff_dp_aggregators': str(version.current()),
    **version.of_libraries(),
  }


def differs(expected: Mapping[str, str]) -> str:
  """Why this process cannot compute for a program, in a clause; '' if it can.

  Args:
    expected: What `software` is there.
  """
  own = software()
  for each, theirs in expected.items():
    if own.get(each) != theirs:
      return f'has {each} {own.get(each)}, and this program {theirs}'
  return ''


def _check_workers(
  client: 'distributed.Client', refused: _Refused, seconds: float
) -> None:
  """Waits for a first worker, and refuses those that have other versions."""
  deadline = time.monotonic() + seconds
  while not workers_of(client):
    if time.monotonic() > deadline:
      raise refused(
        f'has no workers, and none came within {seconds:g} seconds. Start some: '
        f'dask worker {client.scheduler.address} --nthreads 1'
      )
    time.sleep(_TICK_SECONDS)
  try:
    said = ask(client, differs, software())
  except Exception as e:
    raise refused(
      f'has workers that do not answer within {_ANSWER_SECONDS:g} seconds '
      f'({type(e).__name__}: {_line(e)}). Look at their logs, and end those that hang.'
    ) from e
  unfit = [f'{worker} {why}' for worker, why in said.items() if why]
  if unfit:
    more = len(unfit) - _MOST_NAMED
    raise refused(
      f'has workers that are not as this program: {"; ".join(unfit[:_MOST_NAMED])}'
      f'{f"; and {more} more" if more > 0 else ""}. All need the environment of this '
      'program, and are to be started anew where it was changed.'
    )


def workers_of(client: 'distributed.Client') -> dict[str, int]:
  """How many threads each worker has that there is now, by address."""
  return dict(client.sync(client.scheduler.ncores, callback_timeout=_ANSWER_SECONDS))


def ask(
  client: 'distributed.Client',
  function: Any,
  *arguments: Any,
  workers: Optional[list[str]] = None,
) -> dict[str, Any]:
  """Has workers call a function, besides their tasks.

  Args:
    client: Of their scheduler.
    function: Of an importable module.
    *arguments: Its arguments.
    workers: Their addresses; `None` for all.

  Returns:
    What each says that answers, by address; one may be gone by now. One that cannot
    load the function says so.

  Raises:
    TimeoutError: If some take too long.
  """
  answers = client.sync(
    client._run,  # `run` itself waits for ever.
    function,
    *arguments,
    workers=workers,
    on_error='return',
    callback_timeout=_ANSWER_SECONDS,
  )
  found = {}
  for worker, said in answers.items():
    if isinstance(said, ImportError):
      found[worker] = f'cannot load {function.__module__} ({_line(said)})'
    elif not isinstance(said, BaseException):
      found[worker] = said
    elif not isinstance(said, OSError):
      raise said
  return found


def _close(client: 'distributed.Client') -> None:
  with contextlib.suppress(Exception):
    client.close(timeout=_TICK_SECONDS * 10)


def _line(error: BaseException) -> str:
  return ' '.join(str(error).split()).rstrip('.')


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
  """Keeps what Dask logs and warns of off the terminal, while inside."""
  from distributed import versions

  loggers = [logging.getLogger(name) for name in _LOGGERS]
  levels = [each.level for each in loggers]
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', versions.VersionMismatchWarning)
    for each in loggers:
      each.setLevel(logging.CRITICAL + 1)
    try:
      yield
    finally:
      for each, level in zip(loggers, levels):
        each.setLevel(level)
