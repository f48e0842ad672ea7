"""Noise that keeps the values of earlier rounds in files, on the machine that adds it.

The state is a key and a round; files are a cache, whose content is a function of both.
A file's header has a tag of the key (which does not reveal it), the round and a
fingerprint. If a file that a round reads is missing or damaged, all rounds are computed
again. A round overwrites nothing that an earlier one needs, so a crash loses nothing.
Files are as secret as the key.
"""

import atexit
import dataclasses
import functools
import hashlib
import itertools
import os
import re
import shutil
import stat
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_dp_aggregators.base import folder_lock
from tff_dp_aggregators.noise import generators
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import streaming
from tff_dp_aggregators.strategies import recursion

_TEMPORARY = 'tff_dp_aggregators-noise-'
_HEADER_BYTES = 192  # Bytes before the values; aligned, so that these are not copied.
_locks: dict[Any, folder_lock.FolderLock] = {}  # By process, device and inode.
_counter = itertools.count(1)
_escaped = functools.partial(re.sub, r'([*?[\\])', r'\\\1')  # For TensorFlow's globs.
_digits = functools.partial(tf.strings.as_string, width=20, fill='0')


@functools.lru_cache
def _temporary(process: int) -> tuple[str, folder_lock.FolderLock]:
  """Returns the temporary directory of a process; it and its forks hold the lock."""
  path, lock = folder_lock.temporary(_TEMPORARY)

  def remove() -> None:
    if os.getpid() == process:  # Forks do not own the directory.
      shutil.rmtree(path, ignore_errors=True)

  atexit.register(remove)
  return path, lock


def _lock(path: str) -> None:
  """Checks a directory and locks it until the process and its forks have ended."""
  status = os.lstat(path)
  if not stat.S_ISDIR(status.st_mode):
    what = 'is a symbolic link, or no directory; give the path of a directory'
    raise NotADirectoryError(f'the noise directory {path} {what}.')
  if status.st_uid != os.geteuid() or status.st_mode & 0o077:
    raise PermissionError(
      f'the noise directory {path} belongs to user {status.st_uid} and has mode '
      f'{stat.S_IMODE(status.st_mode):o}, but its files reveal the noise. Use one of '
      f"user {os.geteuid()}, this process's user, with mode 700."
    )
  key = (os.getpid(), status.st_dev, status.st_ino)
  try:
    _locks[key] = _locks.get(key) or folder_lock.FolderLock(path)
  except BlockingIOError as e:
    what = 'is in use by another process. Give each process a directory of its own'
    raise RuntimeError(f'the noise directory {path} {what}.') from e


class FilesNoise(streaming.StreamingNoise):
  """Stores the values of earlier rounds in files, one for each slot and vector."""

  storage = 'files'

  def __init__(
    self,
    interpreter: streaming.Interpreter,
    rows: rows_lib.GaussianRows,
    scaling: Sequence[recursion.Scaled],
    directory: Optional[str],
    identity: str,
  ):
    super().__init__(rows, scaling)
    self._interpreter = interpreter
    # In the temporary directory no two objects share a file, even if they share a seed.
    count = next(_counter) if directory is None else 0
    ids = identity, rows.generator, rows.layout.vectors, interpreter.num_slots, count, 2
    self._identity = hashlib.blake2b(repr(ids).encode(), digest_size=8).hexdigest()
    if directory is not None:
      os.makedirs(directory, mode=0o700, exist_ok=True)
      _lock(directory)
    self.directory = directory or _temporary(os.getpid())[0]

  def next(self, state: streaming.NoiseState) -> tuple[Any, streaming.NoiseState]:
    """As `StreamingNoise.next`; a `tf.errors.OpError` if a file cannot be written."""
    layout, path = self._rows.layout, self.directory
    # The path depends on the round, so that reads are not folded into constants.
    empty = tf.strings.substr(tf.strings.as_string(state.round), 0, 0)
    lock = tf.strings.join([_escaped(path), '/', folder_lock.FILE, empty])
    message = f'The noise directory {path} is not on the machine that runs this round. '
    message += "Run rounds where they are built, or use storage='state'."
    is_here = tf.debugging.Assert(tf.size(tf.io.matching_files(lock)) > 0, [message])
    with tf.control_dependencies([] if is_here is None else [is_here]):
      prefix = tf.strings.join(
        [self._identity, _digits(generators.tag_of(state.key))], '.'
      )

    def advance(this_round: tf.Tensor, retry: tf.Tensor, _: Any) -> Any:
      files = _Memory(path, prefix, self._rows, this_round)
      draw = functools.partial(self._rows.row, state.key)
      noise = self._interpreter.advance(draw, this_round, files)
      valid = tf.reduce_all(files.valid)
      recovers = tf.debugging.Assert(valid | ~retry, [f'{path} cannot be read back.'])
      lost = f'needs is not in {path} (any more); computing all rounds again.'
      warning = ['tff_dp_aggregators: noise that round', this_round, lost]
      done = tf.cond(valid, files.flush, lambda: tf.print(*warning))
      with tf.control_dependencies([op for op in (recovers, done) if op is not None]):
        noise = [tf.identity(vector) for vector in noise]
        return tf.where(valid, this_round + 1, 0), retry | ~valid, noise

    zeros = [tf.zeros([size], tf.float64) for size in layout.sizes]
    first = (state.round, tf.constant(False), zeros)
    noise = tf.while_loop(lambda due, *_: due <= state.round, advance, first)[2]
    return self._emitted(noise, state.round), state._replace(round=state.round + 1)


@dataclasses.dataclass
class _Memory(streaming.Memory):
  """Values in files whose names begin with `prefix`."""

  directory: str
  prefix: tf.Tensor
  rows: rows_lib.GaussianRows
  this_round: tf.Tensor
  valid: list[tf.Tensor] = dataclasses.field(default_factory=list)  # For each read.
  pending: list[Any] = dataclasses.field(default_factory=list)  # Until `flush`.

  def weighted(self, position: int, step: streaming.Step) -> tf.Tensor:
    layout = self.rows.layout
    zeros = tf.zeros([layout.sizes[position]], layout.dtypes[position])
    past = tf.unstack(tf.cast(step.past, zeros.dtype))

    def add(before: Any, slot: tf.Tensor) -> Any:  # Few vectors at a time in memory.
      is_valid, value = self._read(position, slot, step.stamps[slot])
      sums = [total + each[slot] * value for total, each in zip(before[1], past)]
      return before[0] & is_valid, sums

    first = (tf.constant(True), [zeros] * len(past))
    valid, sums = tf.foldl(add, step.read_slots(), first, parallel_iterations=2)
    self.valid.append(valid)
    return tf.stack(sums)

  def read(self, position: int, slots: Any, stamp: tf.Tensor) -> list[tf.Tensor]:
    read = [self._read(position, slot, stamp) for slot in slots]
    self.valid += [is_valid for is_valid, _ in read]
    return [vector for _, vector in read]

  def write(self, position: int, slots: Any, vectors: list[tf.Tensor]) -> None:
    self.pending += [(position, slot, each) for slot, each in zip(slots, vectors)]

  def flush(self) -> tf.Operation:
    """Writes the pending values to files."""
    ops = []
    for position, slot, vector in self.pending:
      name = self._name(position, slot)
      parts = [_header(name, self.this_round, vector), tf.io.serialize_tensor(vector)]
      ops.append(tf.io.write_file(self.directory + '/' + name, tf.strings.join(parts)))
    return tf.group(ops)

  def _read(self, position: int, slot: tf.Tensor, stamp: tf.Tensor) -> Any:
    """Returns whether a slot has the round's undamaged vector, and it; zeros if not."""
    size, dtype = self.rows.layout.sizes[position], self.rows.layout.dtypes[position]
    name = self._name(position, slot)
    paths = tf.io.matching_files(_escaped(self.directory) + '/' + name)
    content = tf.cond(tf.size(paths) > 0, lambda: tf.io.read_file(paths[0]), lambda: '')

    def parse() -> tuple[tf.Tensor, tf.Tensor]:
      vector = tf.io.decode_raw(content, dtype)[_HEADER_BYTES // dtype.size :]
      vector = tf.ensure_shape(vector, [size])
      header = _header(name, stamp, vector)
      begin = tf.strings.substr(content, 0, tf.strings.length(header))
      return tf.equal(begin, header), vector

    is_whole = tf.equal(tf.strings.length(content), _HEADER_BYTES + size * dtype.size)
    default = (stamp < 0, tf.zeros([size], dtype))  # Before round 0 values are zeros.
    return tf.cond(is_whole & (stamp >= 0), parse, lambda: default)

  def _name(self, position: int, slot: tf.Tensor) -> tf.Tensor:
    parts = [self.prefix, tf.strings.as_string(slot), str(position)]
    return tf.strings.join(parts, '.')


def _header(name: tf.Tensor, stamp: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
  """Returns the header of a file, which ends where its serialised vector begins."""
  fingerprint = tf.bitcast(tf.fingerprint(vector[tf.newaxis])[0], tf.int64)
  header = tf.strings.join([name, _digits(stamp), _digits(fingerprint)], ' ')
  dtype, num_bytes = vector.dtype, vector.shape[0] * vector.dtype.size
  # The values come after type and shape, a tag, and the length in bytes of 7 bits.
  before = tf.make_tensor_proto(0, dtype, vector.shape).ByteSize() - 2 - dtype.size
  before += 1 - (-num_bytes.bit_length() // 7)
  return tf.strings.substr(header + '.' * _HEADER_BYTES, 0, _HEADER_BYTES - before)
