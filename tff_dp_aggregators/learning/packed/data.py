"""Stores a population in memory-mapped files, one for each feature.

| file | content |
|------|---------|
| `index.json` | dtype and shape of each feature; written last, so its files are whole |
| `ids.json` | ids by which clients are drawn; missing if these are their numbers |
| `offsets.bin` | number of each client's first example, then of all examples; int64 |
| `feature-<i>.bin` | the examples, in the machine's own byte order |
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning import clients as clients_lib

_INDEX, _OFFSETS, _IDS = 'index.json', 'offsets.bin', 'ids.json'
_FORMAT = 3  # From this format on, all numbers are known to be finite.
_BUFFER = 2**22


class PackedData:
  """A population laid out by `lay_out`.

  Attributes:
    directory: The directory of its files.
    features: All examples of each feature, read-only, mapped into memory, in the order
      of `tf.nest.flatten`.
    checksum: SHA-256 of the examples, of who has them, and of the ids.
    num_examples: Number of examples of all clients together.
  """

  def __init__(self, directory: str):
    """Opens what `lay_out` wrote.

    Raises:
      FileNotFoundError: If there is nothing in the directory.
      ValueError: If the data are cut, or of another release or byte order.
    """
    self.directory = os.path.abspath(directory)
    with open(os.path.join(directory, _INDEX)) as file:
      index = json.load(file)
    self.checksum = str(index['checksum'])
    features = [(np.dtype(each['dtype']), each['shape']) for each in index['features']]
    if index.get('format') != _FORMAT or not all(each.isnative for each, _ in features):
      raise ValueError(
        f'{directory} has packed data of format {index.get("format")}, of another '
        f'release (this one reads format {_FORMAT}) or of another byte order. Remove '
        'it; it is made again.'
      )
    self._offsets = np.memmap(os.path.join(directory, _OFFSETS), np.int64, 'r')
    self.num_examples = int(self._offsets[-1])
    self.features = [
      np.memmap(
        os.path.join(self.directory, f'feature-{number}.bin'),
        dtype,
        'r',
        shape=(self.num_examples, *shape),
      )
      for number, (dtype, shape) in enumerate(features)
    ]

  def __len__(self) -> int:
    return len(self._offsets) - 1

  @property
  def draw_ids(self) -> Sequence[Any]:
    """The ids by which clients are drawn, by number."""
    path = os.path.join(self.directory, _IDS)
    if not os.path.exists(path):
      return range(len(self))
    with open(path) as file:
      ids: list[str] = json.load(file)
      return ids

  @property
  def all_sizes(self) -> np.ndarray:
    """Number of examples of each client; int64 of shape [clients]."""
    return np.diff(self._offsets)

  def starts(self, clients: np.ndarray) -> np.ndarray:
    """Index of the first example of given clients; int64 of the shape of `clients`."""
    return np.asarray(self._offsets[clients])

  def sizes(self, clients: np.ndarray) -> np.ndarray:
    """Number of examples of given clients; int64 of the shape of `clients`."""
    return self.starts(clients + 1) - self.starts(clients)

  def examples(self, number: int) -> list[np.ndarray]:
    """A client's features, read-only, in the order of `features`."""
    first, end = self._offsets[number : number + 2]
    return [feature[first:end] for feature in self.features]

  def check_against(self, input_spec: Any) -> None:
    """Raises ValueError unless a model with this batch spec takes the examples."""
    wanted = tf.nest.flatten(input_spec)
    given = [tf.TensorSpec([None, *f.shape[1:]], f.dtype) for f in self.features]
    if len(wanted) != len(given) or not all(
      one.is_compatible_with(other) for one, other in zip(wanted, given)
    ):
      raise ValueError(
        f'the model takes examples of {wanted}, but those of the clients are {given}.'
      )

  def tensors(self) -> list[tf.Tensor]:
    """All examples of each feature, in a TensorFlow graph, without a copy."""
    return [
      tf.raw_ops.ImmutableConst(
        dtype=tf.as_dtype(feature.dtype),
        shape=feature.shape,
        memory_region_name=feature.filename,
      )
      for feature in self.features
    ]


def lay_out(clients: Any, directory: str) -> PackedData:
  """Writes a population's examples to a new directory, one client at a time.

  Args:
    clients: What `Clients.of` takes; of the same structure, dtypes and shapes.
    directory: The directory; must not exist. It appears when it is complete.

  Raises:
    FileExistsError: If `directory` exists.
    TypeError: If a feature is not numeric.
    ValueError: If clients differ in dtype or shape, or a client has no examples, or
      numbers that are not finite, or examples that change from one read to the next.
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
  """The checksum of `PackedData`, for clients that are not laid out; reads them all."""
  return str(_read(clients_lib.Clients.of(clients), None)['checksum'])


def _read(clients: clients_lib.Clients, directory: Optional[str]) -> dict[str, Any]:
  """Reads all clients, writes them to a directory if given, and returns the index."""
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
      for i, feature in enumerate(flat):
        content = np.ascontiguousarray(feature).data
        digests[i].update(content)
        if files:
          files[i].write(content)
  features = [{'dtype': f.dtype.str, 'shape': list(f.shape[1:])} for f in first]
  # The checksum includes who has which examples, and the ids for drawing clients.
  checksum_hash = hashlib.sha256(json.dumps(features).encode() + offsets.tobytes())
  ids = None
  if (drawn_by := clients.draw_ids) != range(len(clients)):
    ids = [str(each) for each in drawn_by]
    checksum_hash.update(json.dumps(ids).encode())
  for digest in digests:
    checksum_hash.update(digest.digest())
  index = {
    'format': _FORMAT,
    'features': features,
    'checksum': f'sha256:{checksum_hash.hexdigest()}',
  }
  if directory is not None:
    offsets.tofile(os.path.join(directory, _OFFSETS))
    # The index is written last: it shows that the other files are complete.
    for name, written in ((_IDS, ids), (_INDEX, index)):
      if written is not None:
        with open(os.path.join(directory, name), 'w') as file:
          json.dump(written, file)
  return index


def _features(clients: clients_lib.Clients, number: int) -> list[np.ndarray]:
  """A client's features, in the machine's own byte order, as TensorFlow reads them."""
  flat = [np.asarray(each) for each in tf.nest.flatten(clients.examples(number))]
  return [each.astype(each.dtype.newbyteorder('='), copy=False) for each in flat]
