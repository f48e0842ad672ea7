"""Results of rounds that cannot be run again, kept until a checkpoint has them.

A server's noise is a function of its key, which checkpoints have: a round that is run
again comes to the same bits. Noise that clients draw, each for itself, is in no state.
Run again, the round would be another release, of the same clients, with other noise;
nothing would tell. Nor may what a cluster trained come to the same last digits on
those that go on. So its result is on disk before its line is in the ledger, and who
goes on takes it from there: each round is released once, and its line is that of the
result which the model was made of.
"""

import hashlib
import json
import os
import shutil
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from tff_dp_aggregators.base import new_files

_PREFIX = 'result_of_round_'
_DIGEST_BYTES = hashlib.sha256().digest_size


class KeptRound(NamedTuple):
  """What a round came to.

  Attributes:
    state: That of the learning process after it.
    measured: JSON-ready: what its line and its row of metrics are made of besides.
  """

  state: Any
  measured: dict[str, Any]


class KeptRounds:
  """Results of rounds, in the directory of the checkpoints."""

  def __init__(self, directory: str):
    """Takes up what is there.

    Args:
      directory: That of the checkpoints, which only its owner may enter.
    """
    self._directory = directory

  @property
  def is_any(self) -> bool:
    """Whether the result of any round is there."""
    return any(name.startswith(_PREFIX) for name in os.listdir(self._directory))

  def save(self, number: int, kept: KeptRound) -> None:
    """Keeps the result of a round; when it returns, it is on disk.

    Args:
      number: The round.
      kept: What it came to.

    Raises:
      OSError: If it cannot be written.
    """
    measured = json.dumps(kept.measured).encode()
    flat = [
      tf.make_tensor_proto(np.asarray(leaf)).SerializeToString()
      for leaf in (*tf.nest.flatten(kept.state), measured)
    ]
    content = tf.make_tensor_proto(flat).SerializeToString()
    new_files.replace(self._path(number), hashlib.sha256(content).digest() + content)

  def load(self, number: int, like: Any) -> Optional[KeptRound]:
    """The result of a round; `None` if it is not there, or not whole.

    Args:
      number: The round.
      like: A state of the same structure.
    """
    try:
      with open(self._path(number), 'rb') as file:
        digest, content = file.read(_DIGEST_BYTES), file.read()
    except (FileNotFoundError, IsADirectoryError):  # Of a release before.
      return None
    if hashlib.sha256(content).digest() != digest:
      return None
    *flat, measured = [_array(each)[()] for each in _array(content).tolist()]
    return KeptRound(tf.nest.pack_sequence_as(like, flat), json.loads(measured))

  def remove_before(self, number: int) -> None:
    """Removes the results of rounds that checkpoints have.

    Args:
      number: The first round that is still needed.
    """
    for name in os.listdir(self._directory):
      kept = name.removeprefix(_PREFIX)
      if name.startswith(_PREFIX) and kept.isdigit() and int(kept) < number:
        path = os.path.join(self._directory, name)
        if os.path.isdir(path):  # Of a release before.
          shutil.rmtree(path)
        else:
          os.unlink(path)

  def _path(self, number: int) -> str:
    return os.path.join(self._directory, f'{_PREFIX}{number}')


def _array(content: bytes) -> np.ndarray:
  """What a tensor in TensorFlow's own format holds."""
  return tf.make_ndarray(tensor_pb2.TensorProto.FromString(content))
