"""The directory of a run, in which no file is ever half written.

`docs/threat_model.md` lists its files and who may see them. The running process holds a
lock on `.lock`, which is never removed; `log.txt` and `error.txt` belong to the program
that runs, and may exist before the run.

A hash of the data shows who is among them to somebody who tries, and a seed who was
drawn, or the noise. So no file that may be shared has these, nor a hash of a seed that
is quick to try: see `Plan.private_settings`.
"""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Optional

from tff_dp_aggregators.accounting import canaries
from tff_dp_aggregators.base import folder_lock
from tff_dp_aggregators.base import new_files

CONFIG, PRIVATE = 'config.json', 'private.json'
METRICS, LEDGER = 'metrics.csv', 'ledger.jsonl'
CANARIES, CANARY_SCORES = 'canaries.csv', canaries.FILE
STRATEGY, MODEL, REPORT = 'strategy.npz', 'model.npz', 'report.json'
CHECKPOINTS, DATA, EVENTS = 'checkpoints', 'data', 'events'
# Identifies the directory that the run began in; beside the checkpoints with the key.
ORIGINAL = os.path.join(CHECKPOINTS, 'original.json')
# Files of a Keras model, of a functional one, and of the preprocessing of their inputs.
KERAS_ARCHITECTURE, ARCHITECTURE = 'architecture.keras', 'architecture'
PREPROCESSING = 'preprocessing.json'
LOG, ERROR = 'log.txt', 'error.txt'
SHARE = 'share'
SHARED = (CONFIG, LEDGER, STRATEGY, 'report.md', REPORT, 'report.html')
_SEED_BITS = 128  # So that nobody can guess a seed.
# Settings that may differ between a run and its continuation.
_MAY_DIFFER = (
  'software',
  'machine',
  # Evaluation does not change the training.
  'flags.evaluate_every',
  'training.evaluate_every',
  # Keras models draw theirs anew; a resumed run has the weights of its checkpoint.
  'training.model.initial_weights',
)
REMOVED = '.removed'  # Data, then checkpoints with the key of the noise, while removed.
# Prefix of temporary names: data of a run without configuration, an architecture.
LAYING_OUT = '.laying-out-'
NEW_DATA = f'{LAYING_OUT}data'
# Prefixes of what is left if new_files, packed data or a run's end are interrupted.
_HALF_WRITTEN = (new_files.HALF_WRITTEN, LAYING_OUT, REMOVED)
# The setting that names the file with the private settings.
_PRIVATE_FILE = 'private_settings_in'


class FilesError(ValueError):
  """A run cannot go on: files are a copy, lost or changed, or settings are others."""


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
  """Raises errors of what is in a file or folder as `FilesError`, with its path."""
  try:
    yield
  except ValueError as e:
    message = str(e)
    if path not in message:
      message = f'{path} cannot be read: {message}. Put it back.'
    raise FilesError(message) from e


class RunDirectory:
  """The directory of one run, locked so that one process at a time works in it."""

  def __init__(self, path: str):
    """Makes the directory, or opens that of a run to be resumed, and locks it."""
    check_usable(path)
    os.makedirs(path, exist_ok=True)
    self.path = path
    try:
      self._lock = folder_lock.FolderLock(path)
    except BlockingIOError as e:
      raise BlockingIOError(
        f'another process, here or on another machine, runs the training in {path}; '
        'wait for it, or give another run_dir.'
      ) from e
    for name in os.listdir(path):
      if name.startswith(_HALF_WRITTEN):
        if os.path.isdir(self.file(name)):
          shutil.rmtree(self.file(name))
        else:
          os.unlink(self.file(name))

  def file(self, name: str) -> str:
    """Returns the path of a file in the directory."""
    return os.path.join(self.path, name)

  def has(self, name: str) -> bool:
    """Whether the directory has a file of that name."""
    return os.path.exists(self.file(name))

  def read(self, name: str) -> dict[str, Any]:
    """Returns the content of a JSON file."""
    return _read(self.file(name))

  @property
  def config(self) -> Optional[dict[str, Any]]:
    """The run's configuration with private settings; `None` before the run begins."""
    return read_config(self.path) if self.has(CONFIG) else None

  def begin(self, config: Mapping[str, Any], private: Collection[str] = ()) -> None:
    """Records a new run's configuration, or refuses another than a resumed run's."""
    saved = self.config
    if saved is not None:
      _refuse_others(self.path, saved, config)
    if not self.has(LEDGER):  # Settings that may differ are the first checkpoint's.
      flat = _flat(config)
      secret = {name: flat[name] for name in flat if _is_among(name, private)}
      public = _nested(flat, left_out=private)
      if secret:
        public[_PRIVATE_FILE] = PRIVATE
      # The configuration marks the run as begun, so it is written last.
      self._write_json(PRIVATE, _nested(secret), is_private=True)
      self._write_json(CONFIG, public, is_private=False)

  def keep_preprocessing(self, preprocessing: Optional[Mapping[str, Any]]) -> None:
    """Writes the preprocessing, if any, or refuses another one than a resumed run's."""
    if preprocessing is None:
      return
    if not self.has(PREPROCESSING):
      self._write_json(PREPROCESSING, preprocessing, is_private=True)
    elif self.read(PREPROCESSING) != json.loads(json.dumps(preprocessing)):
      raise FilesError(
        f'run.preprocessing is not that of the run, in {self.file(PREPROCESSING)}. '
        'Give the same, or another run_dir.'
      )

  def _write_json(self, name: str, content: Any, *, is_private: bool) -> None:
    text = json.dumps(content, indent=2, allow_nan=False) + '\n'
    self.write(name, text, is_private=is_private)

  def share(self, instead: Mapping[str, str]) -> None:
    """Copies what a reviewer may have into `share/`; `instead` has other contents."""
    if not self.has(PRIVATE):  # The configuration of an old run has private settings.
      return
    os.makedirs(self.file(SHARE), exist_ok=True)
    for name in filter(self.has, (*SHARED, CANARY_SCORES)):
      if name in instead:
        self.write(os.path.join(SHARE, name), instead[name])
        continue
      with open(self.file(name), 'rb') as file:
        self.write(os.path.join(SHARE, name), file.read())

  def mark_as_original(self) -> None:
    """Marks a directory by its inode number, which a move keeps and a copy does not."""
    if not self.has(ORIGINAL):
      self.write(ORIGINAL, json.dumps({'inode': os.stat(self.path).st_ino}) + '\n')

  def check_is_original(self) -> None:
    """Refuses a copy of a marked directory, as it has the key of the noise."""
    if self.has(ORIGINAL):
      if self.read(ORIGINAL) != {'inode': os.stat(self.path).st_ino}:
        raise FilesError(
          f'{self.path} is a copy of the directory that its run began in, or was moved '
          'to another file system. A copy has the key of the noise: if the original '
          'goes on as well, the noise of both cancels. If the original is gone, as '
          f'after a backup was restored, remove {self.file(ORIGINAL)}, and the same '
          'call goes on here. Otherwise begin another run in another run_dir.'
        )

  def check_in_place(self) -> None:
    """Checks that the directory was not moved, or another put in its place."""
    if not self._lock.is_of(self.path):
      raise OSError(
        f'{self.path} was moved or removed while the run in it went on, and nothing '
        'more is written there. All rounds that were released are in the ledger of '
        'the directory that was moved; back in its place, the same call goes on.'
      )

  def write(self, name: str, content: Any, *, is_private: bool = False) -> None:
    """Writes or replaces a file, whole or not at all."""
    self.check_in_place()
    new_files.replace(self.file(name), content, is_private=is_private)

  def close(self) -> None:
    """Releases the lock."""
    self._lock.close()

  def __enter__(self) -> 'RunDirectory':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()


def check_usable(path: str) -> None:
  """Checks that a run may begin, or be resumed, in `path`."""
  if not os.path.lexists(path):
    return
  if os.path.isdir(path):
    names = set(os.listdir(path)) - {PRIVATE, folder_lock.FILE, LOG, ERROR}
    if CONFIG in names or all(name.startswith(_HALF_WRITTEN) for name in names):
      return
  raise FileExistsError(
    f'{path} exists, is not empty, and is not the directory of a run; nothing is '
    'overwritten. Give another run_dir, or remove it first.'
  )


def check_flags(
  path: str,
  flags: Mapping[str, Any],
  data_facts: Optional[Mapping[str, Any]] = None,
  checksums: Optional[Mapping[str, str]] = None,
) -> None:
  """Compares flags, and checksums of their files, with those of a run in `path`."""
  if not os.path.exists(os.path.join(path, CONFIG)):
    return
  now: dict[str, Any] = {'flags': flags}
  if data_facts is not None:
    now['data_facts'] = recorded_data_facts(data_facts)
  config = read_config(path)
  _refuse_others(path, {name: config.get(name) for name in now}, now)
  for name, checksum in (checksums or {}).items():
    if checksum not in json.dumps(config):
      raise FilesError(
        f'the file of --{name} is not the one that the run in {path} was begun with. '
        'Put that one back, or begin in another directory.'
      )


def recorded_data_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the facts about the data as a configuration records them."""
  return {'protected': False, **facts}


def _refuse_others(path: str, saved: Any, config: Mapping[str, Any]) -> None:
  private = os.path.join(path, PRIVATE)
  # Settings whose values must not appear in messages.
  kept = _flat(_read(private)) if os.path.exists(private) else {}
  secret = ['.'.join(name) for name in kept]
  before, after = _flat(saved), _flat(json.loads(json.dumps(config)))
  differences = [
    f'{".".join(name)}: another value then, which is in {PRIVATE}'
    if _is_among(name, secret)
    else f'{".".join(name).replace("flags.", "--")}: {before.get(name)!r} then, '
    f'{after.get(name)!r} now'
    for name in sorted({**before, **after})
    if before.get(name) != after.get(name) and not _is_among(name, _MAY_DIFFER)
    # The settings of a group that was empty are compared.
    if {} not in (before.get(name), after.get(name)) or name in before and name in after
  ]
  if differences:
    raise FilesError(
      f'the run in {path} was begun with other settings, and resumes only with the '
      f'same: {"; ".join(differences)}. Give another run_dir.'
    )


def _flat(settings: Mapping[str, Any], *within: str) -> dict[tuple[str, ...], Any]:
  """All settings by their paths, in which groups are not empty."""
  flat: dict[tuple[str, ...], Any] = {}
  for key, value in settings.items():
    if isinstance(value, dict) and value:
      flat.update(_flat(value, *within, key))
    else:
      flat[(*within, key)] = value
  return flat


def _nested(
  flat: Mapping[tuple[str, ...], Any], left_out: Collection[str] = ()
) -> dict[str, Any]:
  """Inverts `_flat`, without the settings and groups of some dotted names."""
  settings: dict[str, Any] = {}
  for path, value in flat.items():
    group = settings
    for end in range(1, len(path)):
      if _is_among(path[:end], left_out):
        break
      group = group.setdefault(path[end - 1], {})
    else:
      if not _is_among(path, left_out):
        group[path[-1]] = value
  return settings


def _is_among(path: tuple[str, ...], names: Collection[str]) -> bool:
  """Whether a setting, or a group that it is in, has one of these dotted names."""
  return any('.'.join(path[:end]) in names for end in range(1, len(path) + 1))


def _read(path: str) -> dict[str, Any]:
  with reading(path), open(path, encoding='utf-8') as file:
    content: dict[str, Any] = json.load(file)
    return content


def read_config(path: str) -> dict[str, Any]:
  """Reads the configuration in a run directory, with its private settings."""
  config = _read(os.path.join(path, CONFIG))
  private = os.path.join(path, PRIVATE)
  if os.path.exists(private):
    config = _nested({**_flat(config), **_flat(_read(private))})
  elif config.get(_PRIVATE_FILE) is not None:
    raise FilesError(
      f'{private} is gone, which has the seeds of the run and what tells its data from '
      'others: without it nothing shows that it goes on as it was begun. Put it back, '
      'or begin another run in another run_dir.'
    )
  config.pop(_PRIVATE_FILE, None)
  return config


def secret_seed(path: Optional[str]) -> int:
  """Returns the seed of the run in `path`, or a new one that nobody can guess."""
  if path is not None and os.path.exists(os.path.join(path, CONFIG)):
    seed = (read_config(path).get('training') or {}).get('seed')
    if isinstance(seed, int):
      return seed
  return secrets.randbits(_SEED_BITS)


def looks_finished(path: str) -> bool:
  """Whether a run in `path` seems to be finished; only `records.find` checks it."""
  names = set(os.listdir(path)) if os.path.isdir(path) else set()
  return REPORT in names and not names & {CHECKPOINTS, REMOVED}
