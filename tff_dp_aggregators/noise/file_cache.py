"""Vectors kept in files of the machine that computes, from inside a computation.

A file is a cache: what it holds follows from the key and the round in which it was
written. It carries a header that says of which noise, slot and round it is, and a
fingerprint of its values; a file that is missing, torn, damaged or of another round or
key is recognised and not used. Nothing is ever read as zeros or as fresh noise.

Writing needs no rename to be safe: a round writes to slots whose content no earlier
round needs (`recursions`, `rewind`), so that a crash at any point leaves a torn file at
most where the round that is served again will write the same bytes again.

Files are as secret as the key. They are in a directory that only its owner may enter.
"""

import atexit
import dataclasses
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from typing import Optional

import tensorflow as tf

from tff_dp_aggregators.noise import keys

_OWNER = 'owner'
_ALIGNMENT = 64  # Bytes; a slice that is aligned is not copied.
_SHARED_MEMORY = '/dev/shm'
# By process, which is another one after a fork, and path; they end with the process.
_LOCKS: dict[tuple[int, str], int] = {}


@dataclasses.dataclass(frozen=True)
class Files:
  """Noise is kept in files of a directory on the machine that adds it.

  Attributes:
    directory: An absolute path on that machine. It is made, for its owner alone, and
      locked by this process; a second process is refused. Give one that outlives the
      process if training is to be resumed without computing all rounds again. `None`
      makes a temporary one, in memory where there is room, removed at exit.
    rewind: How many of the rounds served last can be served again, from an older
      state, without computing all rounds before them again.

  Raises:
    TypeError: If `rewind` is not an int.
    ValueError: If `rewind` is less than 1, or the path not absolute or with a character
      that has a meaning in patterns.
  """

  directory: Optional[str] = None
  rewind: int = 3

  def __post_init__(self) -> None:
    if not isinstance(self.rewind, int) or isinstance(self.rewind, bool):
      raise TypeError(f'rewind must be an int, got {self.rewind!r}.')
    if self.rewind < 1:
      raise ValueError(
        f'rewind must be at least 1, got {self.rewind}: the round served last is '
        'served again after a crash.'
      )
    if self.directory is None:
      return
    directory = os.fspath(self.directory)
    object.__setattr__(self, 'directory', directory)
    if not os.path.isabs(directory) or set(directory) & set('*?[]\\'):
      raise ValueError(
        'directory must be an absolute path without any of * ? [ ] and backslash, got '
        f'{directory!r}.'
      )

  def open(self, num_bytes: int) -> str:
    """Returns the path of the directory, made, checked and locked.

    Args:
      num_bytes: How much is going to be kept there.

    Raises:
      OSError: If it cannot be made, or others may enter it.
      RuntimeError: If another process uses it.
    """
    if self.directory is None:
      return _temporary_directory(num_bytes)
    path = os.path.realpath(self.directory)
    if (os.getpid(), path) in _LOCKS:
      return path
    os.makedirs(path, mode=0o700, exist_ok=True)
    status = os.stat(path)
    if stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid != os.getuid():
      raise PermissionError(
        f'the noise directory {path} can be entered by others than its owner: what is '
        'in it removes the noise. Use one with mode 700.'
      )
    _LOCKS[os.getpid(), path] = _lock(path)
    return path


def _temporary_directory(num_bytes: int) -> str:
  parent = None
  if os.path.isdir(_SHARED_MEMORY) and os.access(_SHARED_MEMORY, os.W_OK):
    # Half of the room is left to others, among them the next one who asks.
    if num_bytes <= shutil.disk_usage(_SHARED_MEMORY).free // 2:
      parent = _SHARED_MEMORY
  path = os.path.realpath(tempfile.mkdtemp(prefix='tff_dp_aggregators-', dir=parent))
  process = os.getpid()
  _LOCKS[process, path] = _lock(path)

  def remove() -> None:
    if os.getpid() == process:  # A fork is not the owner.
      shutil.rmtree(path, ignore_errors=True)

  atexit.register(remove)
  return path


def _lock(path: str) -> int:
  descriptor = os.open(os.path.join(path, _OWNER), os.O_RDWR | os.O_CREAT, 0o600)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as e:
    os.close(descriptor)
    raise RuntimeError(
      f'the noise directory {path} is in use by another process. Give each process a '
      'directory of its own.'
    ) from e
  return descriptor


class Cache:
  """Slots with a vector each, in files whose names and headers say what they hold."""

  def __init__(self, directory: str, identity: str):
    """Initializes the cache.

    Args:
      directory: From `Files.open`.
      identity: What, beside the key, the values depend on.
    """
    digest = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    self._identity = digest
    self.directory = directory

  def names(self, key: tf.Tensor, this_round: tf.Tensor) -> 'Names':
    """What is there when a round begins.

    Args:
      key: Of the rows of z; another one has other files.
      this_round: An int64 scalar.
    """
    prefix = tf.strings.join([self._identity, _digits(keys.tag_of(key))], '.')
    # The round is in the pattern so that the listing is not taken for a constant.
    none = tf.strings.substr(_digits(this_round), 0, 0)
    listed = tf.io.matching_files(tf.strings.join([self.directory, '/*', none]))
    owned = tf.reduce_any(tf.equal(listed, f'{self.directory}/{_OWNER}'))
    there = tf.debugging.Assert(
      owned,
      [
        f'The noise directory {self.directory} is not on the machine that runs this '
        "round. Keep the noise in the state (storage='state'), or in a directory that "
        f'is there and has a file {_OWNER}.'
      ],
    )
    with tf.control_dependencies([] if there is None else [there]):
      return Names(self.directory, tf.identity(prefix), tf.identity(listed))


class Names:
  """The files of one key at one time."""

  def __init__(self, directory: str, prefix: tf.Tensor, listed: tf.Tensor):
    """Initializes the names.

    Args:
      directory: Where they are.
      prefix: What the names of all files of the noise and key begin with.
      listed: Paths of the files that are there.
    """
    self.directory = directory
    self._prefix = prefix
    self._listed = listed

  def write(
    self, slot: tf.Tensor, position: int, stamp: tf.Tensor, vector: tf.Tensor
  ) -> tf.Operation:
    """Writes a vector to a slot.

    Args:
      slot: An int64 scalar.
      position: Of the vector among those of a record.
      stamp: Round whose value it is.
      vector: Float tensor of shape [size].

    Raises:
      tf.errors.OpError: If it cannot be written.
    """
    place = self._place(slot, position)
    content = [_header(place, stamp, vector), tf.io.serialize_tensor(vector)]
    return tf.io.write_file(self._path(place), tf.strings.join(content))

  def read(
    self,
    slot: tf.Tensor,
    position: int,
    stamp: tf.Tensor,
    size: int,
    dtype: tf.DType,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads a vector.

    Returns:
      Whether the slot has this round's value, undamaged, and the value; zeros if not.
    """
    place = self._place(slot, position)
    path = self._path(place)
    lost = (tf.constant(False), tf.zeros([size], dtype))
    num_bytes = _header_bytes(size, dtype) + _prefix_bytes(size, dtype)
    skipped = num_bytes // dtype.size
    num_bytes += size * dtype.size

    def parse(content: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      # Everything before the values, whose length is a multiple of theirs, is skipped.
      vector = tf.io.decode_raw(content, dtype)[skipped:]
      vector = tf.ensure_shape(vector, [size])
      header = tf.strings.substr(content, 0, _header_bytes(size, dtype))
      return tf.equal(header, _header(place, stamp, vector)), vector

    def read() -> tuple[tf.Tensor, tf.Tensor]:
      content = tf.io.read_file(path)
      is_whole = tf.equal(tf.strings.length(content), num_bytes)
      return tf.cond(is_whole, lambda: parse(content), lambda: lost)

    return tf.cond(tf.reduce_any(tf.equal(self._listed, path)), read, lambda: lost)

  def _place(self, slot: tf.Tensor, position: int) -> tf.Tensor:
    parts = [self._prefix, tf.strings.as_string(slot), str(position)]
    return tf.strings.join(parts, '.')

  def _path(self, place: tf.Tensor) -> tf.Tensor:
    return tf.strings.join([self.directory, place], '/')


def _header(place: tf.Tensor, stamp: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
  """Names content and place, and is padded to a length that depends on the size."""
  fingerprint = tf.fingerprint(tf.reshape(vector, [1, -1]))
  fields = [place, _digits(stamp), _digits(tf.bitcast(fingerprint[0], tf.int64))]
  header = tf.strings.join(fields, ' ')
  length = _header_bytes(vector.shape[0], vector.dtype)
  padding = tf.constant('.' * length)
  return tf.strings.substr(tf.strings.join([header, padding]), 0, length)


def _digits(number: tf.Tensor) -> tf.Tensor:
  """An int64 in a fixed number of characters."""
  return tf.strings.as_string(tf.cast(number, tf.int64), width=20, fill='0')


def _prefix_bytes(size: int, dtype: tf.DType) -> int:
  """Bytes before the values in what `tf.io.serialize_tensor` makes of a vector."""
  proto = tf.make_tensor_proto(0, dtype, []).__class__()
  proto.dtype = dtype.as_datatype_enum
  proto.tensor_shape.dim.add().size = size
  proto.tensor_content = b''
  length = size * dtype.size
  # A tag, and a length of seven bits a byte.
  return proto.ByteSize() + 1 + max(1, -(-length.bit_length() // 7))


def _header_bytes(size: int, dtype: tf.DType) -> int:
  return 3 * _ALIGNMENT - _prefix_bytes(size, dtype)
