"""What queries have in common that ask another one, and make something else of it.

Noise and events are the other query's, whatever is done with its results.
"""

import abc
import collections
from typing import Any

import dp_accounting
import tensorflow as tf

from tff_dp_aggregators import strategies
from tff_dp_aggregators.queries import records
from tff_dp_aggregators.queries import spent as spent_lib


class QueryAround(records.GridSumQuery):
  """Asks `inner`; subclasses say what of, and what becomes of the result.

  States and params are the inner query's, unless a subclass says where they are in its
  own, by `_inner_state` and `_inner_params`.
  """

  def __init__(self, inner: records.GridSumQuery, record_specs: Any):
    super().__init__(record_specs)
    self._inner = inner

  def _inner_state(self, global_state: Any) -> Any:
    return global_state

  def _inner_params(self, params: Any) -> Any:
    return params

  @abc.abstractmethod
  def _asked(self, params: Any, record: Any) -> Any:
    """What the inner query is asked about a record."""

  @property
  def noise_multiplier(self) -> float:
    """That of the inner query: scale of the noise over its clip norm."""
    return self._inner.noise_multiplier

  @property
  def participation(self) -> strategies.Participation:
    """What the privacy analysis assumes of clients."""
    return self._inner.participation

  @property
  def generator(self) -> str:
    """What random words the noise is made of: 'chacha20' or 'philox'."""
    return self._inner.generator

  @property
  def seed_identity(self) -> str:
    """'secret', or which seed and stream the noise is of: 'seed 7, stream 0'."""
    return getattr(self._inner, 'seed_identity', 'secret')

  @property
  def min_clients(self) -> int:
    """Fewest clients of a round with which there is as much noise as is stated."""
    return getattr(self._inner, 'min_clients', None) or 1

  @property
  def clients_draw_keys(self) -> bool:
    """Whether they do for the inner query."""
    return self._inner.clients_draw_keys

  @property
  def clients_add_noise(self) -> bool:
    """Whether they do for the inner query."""
    return self._inner.clients_add_noise

  def run_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together, that of the inner query."""
    return self._inner.run_event()

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns the inner query's sum of no records.

    `template`: Structure of float tensors or their specs; `None` for `record_specs`.
    """
    if template is not None:
      super().initial_sample_state(template)
    return self._inner.initial_sample_state()

  def encode_record(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns what the inner query makes of a record, and whether that was finite."""
    asked = self._asked(params, record)
    return self._inner.encode_record(self._inner_params(params), asked)

  def encode_without_noise(self, params: Any, record: Any) -> tuple[Any, tf.Tensor]:
    """Returns what `encode_record` does, less the client's noise."""
    asked = self._asked(params, record)
    return self._inner.encode_without_noise(self._inner_params(params), asked)

  def round_key(self, global_state: Any) -> Any:
    """What the noise of a round's clients follows from; empty if they add none."""
    return self._inner.round_key(self._inner_state(global_state))

  def with_noise_of(
    self, params: Any, sample_state: Any, round_key: Any, number: tf.Tensor
  ) -> Any:
    """Returns a sum with the noise that one more client adds, if it does."""
    return self._inner.with_noise_of(
      self._inner_params(params), sample_state, round_key, number
    )

  def spent(self, global_state: Any) -> spent_lib.Spent:
    """Returns what all rounds that led to a state have spent, and the last of them."""
    return self._inner.spent(self._inner_state(global_state))

  def derive_metrics(
    self, global_state: Any
  ) -> 'collections.OrderedDict[str, tf.Tensor]':
    """Returns what the inner query measures."""
    return collections.OrderedDict(
      self._inner.derive_metrics(self._inner_state(global_state))
    )
