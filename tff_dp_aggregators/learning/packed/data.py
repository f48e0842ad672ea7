"""A population in files that are mapped into memory, one for each feature.

| file | content |
|------|---------|
| `index.json` | dtype and shape of each feature; written last, so its files are whole |
| `ids.json` | what clients are drawn by; not there if these are their numbers |
| `offsets.bin` | number of the first example of each client, and that of all; int64 |
| `feature-<i>.bin` | the examples, in the machine's own byte order |
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning import clients as clients_lib

_INDEX, _OFFSETS, _IDS = 'index.json', 'offsets.bin', 'ids.json'
_FORMAT = 3  # Since it, all numbers are finite.
_BUFFER = 2**22


class Feature(NamedTuple):
  """One feature of all examples: its file, and the shape of one example."""

  path: str
  dtype: np.dtype
  shape: tuple[int, ...]


class PackedData:
  """A population laid out by `lay_out`.

  Attributes:
    directory: Where it is.
    features: Those of an example, in the order of `tf.nest.flatten`.
  """

  def __init__(self, directory: str):
    """Takes up what `lay_out` wrote.

    Raises:
      FileNotFoundError: If there is nothing.
      ValueError: If it is not complete, or of another release.
    """
    self.directory = os.path.abspath(directory)
    with open(os.path.join(directory, _INDEX)) as file:
      index = json.load(file)
    self._checksum = str(index['checksum'])
    self._offsets = np.memmap(os.path.join(directory, _OFFSETS), np.int64, 'r')
    self.features = [
      Feature(
        os.path.join(self.directory, f'feature-{i}.bin'),
        np.dtype(feature['dtype']),
        tuple(feature['shape']),
      )
      for i, feature in enumerate(index['features'])
    ]
    sizes = [
      int(np.prod(each.shape)) * self.num_examples * each.dtype.itemsize
      for each in self.features
    ]
    if (
      index.get('format') != _FORMAT
      or not all(each.dtype.isnative for each in self.features)
      or [os.path.getsize(each.path) for each in self.features] != sizes
    ):
      raise ValueError(
        f'{directory} has packed data of format {index.get("format")} that are not '
        f'what this release lays out in format {_FORMAT} on this machine: of another '
        'release, of another byte order, or cut. Remove it; it is made again.'
      )

  def __len__(self) -> int:
    return len(self._offsets) - 1

  @property
  def draw_ids(self) -> Sequence[Any]:
    """By number, what clients are drawn by."""
    path = os.path.join(self.directory, _IDS)
    if not os.path.exists(path):
      return range(len(self))
    with open(path) as file:
      ids: list[str] = json.load(file)
      return ids

  @property
  def checksum(self) -> str:
    """SHA-256 of what was laid out."""
    return self._checksum

  @property
  def num_examples(self) -> int:
    """Examples of all clients together."""
    return int(self._offsets[-1])

  @property
  def all_sizes(self) -> np.ndarray:
    """How many examples each client has; int64 of shape [clients]."""
    return np.diff(self._offsets)

  def starts(self, clients: np.ndarray) -> np.ndarray:
    """Number of the first example of each client; int64 like `clients`."""
    return np.asarray(self._offsets[clients])

  def sizes(self, clients: np.ndarray) -> np.ndarray:
    """How many examples each client has; int64 like `clients`."""
    return self.starts(clients + 1) - self.starts(clients)

  def examples(self, number: int) -> list[np.ndarray]:
    """A client's features, read-only, in the order of `features`."""
    first, end = (int(each) for each in self._offsets[number : number + 2])
    return [feature[first:end] for feature in self.arrays()]

  def arrays(self) -> list[np.ndarray]:
    """All examples of each feature, read-only, mapped into memory."""
    return [
      np.memmap(
        feature.path, feature.dtype, 'r', shape=(self.num_examples, *feature.shape)
      )
      for feature in self.features
    ]

  def check_against(self, input_spec: Any) -> None:
    """Raises ValueError unless a model with this spec of batches takes the examples."""
    wanted = [(each.dtype, each.shape[1:]) for each in tf.nest.flatten(input_spec)]
    given = [(tf.as_dtype(each.dtype), each.shape) for each in self.features]
    if len(wanted) != len(given) or not all(
      dtype == data_dtype and shape.is_compatible_with(data_shape)
      for (dtype, shape), (data_dtype, data_shape) in zip(wanted, given)
    ):
      raise ValueError(
        f'the model takes examples of {wanted} (dtype and shape, in this order), but '
        f'those of the clients are {given}.'
      )

  def tensors(self) -> list[tf.Tensor]:
    """All examples of each feature, inside a TensorFlow graph; nothing is copied."""
    return [
      tf.raw_ops.ImmutableConst(
        dtype=tf.as_dtype(feature.dtype),
        shape=[self.num_examples, *feature.shape],
        memory_region_name=feature.path,
      )
      for feature in self.features
    ]


def lay_out(clients: Any, directory: str) -> PackedData:
  """Writes a population's examples to a new directory, one client at a time.

  Args:
    clients: What `Clients.of` takes; all alike in structure, dtypes and shapes.
    directory: Where; must not exist. It appears when it is complete.

  Raises:
    FileExistsError: If there is something at `directory` already.
    TypeError: If a feature is not of numbers.
    ValueError: If clients differ in dtype or shape, or one has no examples, or numbers
      that are not finite, or other ones when they are read again.
  """
  if os.path.lexists(directory):
    raise FileExistsError(f'{directory} exists and is not overwritten.')
  parent = os.path.dirname(os.path.abspath(directory))
  os.makedirs(parent, exist_ok=True)
  temporary = tempfile.mkdtemp(dir=parent, prefix='.laying-out-')
  try:
    _read(clients_lib.Clients.of(clients), temporary)
    new_files.sync_tree(temporary)
    os.rename(temporary, directory)
    new_files.sync(parent)
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    raise
  return PackedData(directory)


def checksum(clients: Any) -> str:
  """That of `PackedData`, of clients that are not laid out; reads them all."""
  return str(_read(clients_lib.Clients.of(clients), None)['checksum'])


def _read(clients: clients_lib.Clients, directory: Optional[str]) -> dict[str, Any]:
  """Reads all clients, into files of a directory if there is one; returns the index."""
  clients_lib.check_repeatable(clients)
  first = _features(clients, 0)
  digests = [hashlib.sha256() for _ in first]
  offsets = np.zeros(len(clients) + 1, np.int64)
  with contextlib.ExitStack() as stack:
    files: list[Any] = []
    for number, feature in enumerate(first if directory else ()):
      if feature.dtype.kind not in 'biuf':
        raise TypeError(
          f'feature {number} is of {feature.dtype}; a packed simulation reads numbers '
          'only. Encode texts before, for instance as token numbers.'
        )
      path = os.path.join(str(directory), f'feature-{number}.bin')
      files.append(stack.enter_context(open(path, 'wb', buffering=_BUFFER)))
    for number in range(len(clients)):
      flat = _features(clients, number)
      offsets[number + 1] = offsets[number] + len(flat[0])
      for place, feature in enumerate(flat):
        content = np.ascontiguousarray(feature).data
        digests[place].update(content)
        if files:
          files[place].write(content)
  features = [{'dtype': f.dtype.str, 'shape': list(f.shape[1:])} for f in first]
  # With whose each example is, and what these are drawn by.
  whole = hashlib.sha256(json.dumps(features).encode() + offsets.tobytes())
  ids = None
  if (drawn_by := clients.draw_ids) != range(len(clients)):
    ids = [str(each) for each in drawn_by]
    whole.update(json.dumps(ids).encode())
  for digest in digests:
    whole.update(digest.digest())
  index = {
    'format': _FORMAT,
    'features': features,
    'checksum': f'sha256:{whole.hexdigest()}',
  }
  if directory is not None:
    offsets.tofile(os.path.join(directory, _OFFSETS))
    # The index says that all else is there.
    for name, written in ((_IDS, ids), (_INDEX, index)):
      if written is not None:
        with open(os.path.join(directory, name), 'w') as file:
          json.dump(written, file)
  return index


def _features(clients: clients_lib.Clients, number: int) -> list[np.ndarray]:
  """A client's examples in the machine's own byte order, which TensorFlow reads."""
  flat = [np.asarray(each) for each in tf.nest.flatten(clients.examples(number))]
  return [each.astype(each.dtype.newbyteorder('='), copy=False) for each in flat]
