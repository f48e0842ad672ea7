"""What streaming noise is: pure `initialize` and `next` over an explicit state.

For a mechanism with noise matrix `D` (`Strategy.noise_matrix`; `C^-1` for a square
strategy) the t-th call of `next` emits `(D z)[t]` with z of unit variance. Scaling it
by clip norm and noise multiplier is the caller's.
"""

import abc
import collections
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_dp_aggregators.noise import rows as rows_lib


def hidden_buffers(vectors: Iterable[Any]) -> Any:
  """What a state remembers of the noise: a named tuple that does not show it.

  TFF prints a part of a state that does not fit a process, as when a run is resumed
  with another strategy, and a plain list would print its numbers. Of other sequences
  TFF's checkpoints lose the type (`tff.program.FileProgramStateManager`).

  Example:
    >>> hidden_buffers([tf.zeros([2, 3])])
    Buffers(vector_0=<secret float32, shape (2, 3)>)
  """
  vectors = tuple(vectors)
  return _buffers_class(len(vectors))(*vectors) if vectors else ()


@functools.cache
def _buffers_class(size: int) -> Any:
  fields = [f'vector_{number}' for number in range(size)]

  def show(values: Any) -> str:
    shown = (f'{name}={hidden(each)}' for name, each in zip(fields, values))
    return f'Buffers({", ".join(shown)})'

  def reduce(values: Any) -> tuple[Any, Any]:
    return hidden_buffers, (tuple(values),)

  # Not of a subclass, which checkpoints would not take for a named tuple.
  kind = collections.namedtuple('Buffers', fields)  # type: ignore[misc]
  for name, method in (('__repr__', show), ('__reduce__', reduce)):
    setattr(kind, name, method)
  return kind


class NoiseState(NamedTuple):
  """Everything needed to continue; secret, because the key and the buffers are.

  Neither is in its `repr` and `str`, nor in those of what it is part of.

  Attributes:
    key: Key of the rows of z, int64 of shape [4].
    round: Number of the round that `next` will serve, int64 scalar.
    buffers: `hidden_buffers`: tensors of shape [buffers, size], one for each vector of
      `layout.Layout`; empty if no noise is kept in the state.
  """

  key: Any
  round: Any
  buffers: Any

  def __repr__(self) -> str:
    return (
      f'{type(self).__name__}(key={hidden(self.key)}, round={self.round!r}, '
      f'buffers={hidden_buffers(self.buffers)!r})'
    )


def hidden(secret: Any) -> str:
  """What may be shown of a tensor or array that is secret: dtype and shape.

  Example:
    >>> hidden(tf.constant([1, 2], tf.int64))
    '<secret int64, shape (2,)>'
  """
  dtype = getattr(secret, 'dtype', None)
  if dtype is None:
    return '<secret>'
  return f'<secret {tf.as_dtype(dtype).name}, shape {tuple(secret.shape)}>'


class StreamingNoise(abc.ABC):
  """Correlated noise, one round after the other.

  Both functions are pure: equal states give equal noise, bit by bit in each of eager
  mode, `tf.function` and TFF computations, and up to rounding between them.

  Attributes:
    storage: Where what it remembers is kept: one of `storage.KINDS`.
  """

  storage: str

  def __init__(self, rows: rows_lib.GaussianRows):
    self._rows = rows

  def initialize(self) -> NoiseState:
    """Returns the state before round 0."""
    zeros = [
      tf.zeros([self.num_buffers, size], dtype)
      for dtype, size in zip(self._rows.layout.dtypes, self._rows.layout.sizes)
    ]
    return NoiseState(
      self._rows.new_key(),
      tf.constant(0, tf.int64),
      hidden_buffers(zeros if self.num_buffers else ()),
    )

  @property
  def num_buffers(self) -> int:
    """Model-sized buffers that the state carries."""
    return 0

  @abc.abstractmethod
  def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
    """Returns the round's noise, a structure like a record, and the next state."""
