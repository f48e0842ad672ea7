"""A cache of optimised strategies on disk.

The folder is `$TFF_DP_AGGREGATORS_CACHE`, by default
`$XDG_CACHE_HOME/tff_dp_aggregators` or `~/.cache/tff_dp_aggregators`; the empty string
turns the cache off. Files may be deleted at any time, and several processes may use one
folder. A file contains the request that it answers; if that is another request or the
file is damaged, it is replaced with a warning. Privacy does not depend on the cache:
noise and sensitivity are both computed from the strategy that was read.
"""

import hashlib
import io
import json
import logging
import os
import zipfile
from typing import IO, Any, Callable, Optional, TypeVar

import numpy as np

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.participation import Participation

_logger = logging.getLogger(__name__)
_VARIABLE = 'TFF_DP_AGGREGATORS_CACHE'
_Kind = TypeVar('_Kind', bound=strategy_lib.Strategy)


def directory() -> Optional[str]:
  """Returns the folder of the cache, or `None` if the cache is off."""
  configured = os.environ.get(_VARIABLE)
  if configured is not None:
    return configured or None
  base = os.environ.get('XDG_CACHE_HOME') or os.path.join('~', '.cache')
  return os.path.join(os.path.expanduser(base), 'tff_dp_aggregators')


def fetch(
  kind: type[_Kind],
  name: str,
  version: int,
  parameters: dict[str, Any],
  compute: Callable[[], _Kind],
  use_cache: bool = True,
) -> _Kind:
  """Returns the cached strategy, or computes and caches it.

  `kind` is its class; `name` and `version` identify the function that computes it, and
  `parameters` are all that it depends on. Errors of the file system are only logged.
  """
  folder = directory() if use_cache else None
  if folder is None:
    return compute()
  content = {'name': name, 'version': version, 'parameters': parameters}
  request = json.dumps(content, sort_keys=True, default=_json_value).encode()
  digest = hashlib.sha256(request).hexdigest()[:32]
  path = os.path.join(folder, f'{name}-{digest}.npz')
  try:
    os.makedirs(folder, exist_ok=True)
    lock = _lock(path + '.lock')
  except OSError as e:
    _logger.warning('nothing is cached in %s (%s); set %s', folder, e, _VARIABLE)
    return compute()
  with lock:
    strategy = _read(path, kind, request)
    if strategy is None:
      strategy = compute()
      _write(path, strategy, request)
  return strategy


def _read(path: str, kind: type[_Kind], request: bytes) -> Optional[_Kind]:
  try:
    strategy = strategy_lib.Strategy.load(path)
    with zipfile.ZipFile(path) as archive:
      stored_request = archive.comment
    if stored_request != request:
      text = stored_request.decode(errors='replace')
      raise ValueError(f'{path}: answers {text!r}, not {request.decode()!r}.')
    if not isinstance(strategy, kind):
      raise ValueError(f'{path}: holds a {strategy.kind}, not a {kind.kind}.')
    return strategy
  except FileNotFoundError:
    return None
  except (OSError, ValueError, zipfile.BadZipFile) as e:
    _logger.warning('a cached strategy cannot be read and is optimised again: %s', e)
    return None


def _write(path: str, strategy: strategy_lib.Strategy, request: bytes) -> None:
  content = io.BytesIO(strategy.to_npz())
  with zipfile.ZipFile(content, 'a') as archive:
    archive.comment = request
  try:
    new_files.replace(path, content.getvalue())
  except OSError as e:
    _logger.warning('the strategy could not be cached as %s: %s', path, e)


def _lock(path: str) -> IO[str]:
  """Waits for an exclusive lock, which is held until the file is closed."""
  file = open(path, 'a', encoding='utf-8')
  try:
    import fcntl
  except ImportError:  # Windows: several processes may compute the same strategy.
    return file
  try:
    fcntl.flock(file, fcntl.LOCK_EX)
  except OSError:
    file.close()
    raise
  return file


def _json_value(value: Any) -> Any:
  """Encodes what json.dumps cannot, for a request."""
  if isinstance(value, np.ndarray):
    return ['array', strategy_lib.array_digest(value)]
  if isinstance(value, Participation):
    return ['participation', vars(value)]
  if isinstance(value, workload_lib.Workload):
    rates = None if value.learning_rates is None else np.array(value.learning_rates)
    return ['workload', {**vars(value), 'learning_rates': rates}]
  raise TypeError(f'cannot make a cache key of {value!r} ({type(value).__name__}).')
