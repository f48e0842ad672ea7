"""TFF's Adafactor, repaired so that TFF's processes accept it.

In TFF 0.87 its `next` makes a float of the number of steps, which was an integer, and
its `set_hparams` returns the hyperparameters instead of the state; every process that
has it refuses one or the other.
"""

import collections
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

_ADAFACTOR = type(tff.learning.optimizers.build_adafactor(1.0))


class _Adafactor(tff.learning.optimizers.Optimizer):
  """The same steps, with a state that stays what it is."""

  def __init__(self, inner: tff.learning.optimizers.Optimizer):
    self._inner = inner

  def initialize(self, specs: Any) -> Any:
    return _state(self._inner.initialize(specs))

  def next(self, state: Any, weights: Any, gradients: Any) -> Any:
    state, weights = self._inner.next(state, weights, gradients)
    return _state(state), weights

  def get_hparams(self, state: Any) -> Any:
    return self._inner.get_hparams(state)

  def set_hparams(self, state: Any, hparams: Any) -> Any:
    return _state({**state, 'hparams': {**state['hparams'], **hparams}})


def _state(state: Any) -> Any:
  return collections.OrderedDict(
    steps=tf.cast(state['steps'], tf.int32),
    moments=state['moments'],
    hparams=collections.OrderedDict(sorted(state['hparams'].items())),
  )


def repaired(
  optimizer: tff.learning.optimizers.Optimizer,
) -> tff.learning.optimizers.Optimizer:
  """An optimizer that does the same, and works in TFF's processes."""
  return _Adafactor(optimizer) if isinstance(optimizer, _ADAFACTOR) else optimizer
