"""In how many rounds one client can have been, and what that cost.

For the queries with independent noise, each round of which costs its clients the same.
"""

import abc
import math
from typing import Any, Optional

import dp_accounting
import numpy as np
import tensorflow as tf

from tff_dp_aggregators import strategies
from tff_dp_aggregators.queries import matrix_mechanism


class IndependentNoiseQuery(matrix_mechanism.NoisySumQuery):
  """What queries have in common each round of which costs its clients the same."""

  def __init__(
    self, participation: Optional[strategies.Participation], record_specs: Any
  ):
    """Counts within a schema; `None` for a client who is in all rounds."""
    super().__init__(record_specs)
    self._limits: Optional[strategies.Participation] = None
    if participation is not None:
      self._limits = strategies.participation.require(participation)
      taken = np.zeros(self._limits.num_rounds + 1, np.int64)
      taken[1 + np.array(self._limits.rounds, np.int64)] = 1
      self._after = np.cumsum(taken)

  @property
  def participation(self) -> strategies.Participation:
    """What the privacy analysis assumes of clients."""
    if self._limits is None:
      raise matrix_mechanism.unlimited()
    return self._limits

  @abc.abstractmethod
  def _event(self) -> dp_accounting.DpEvent:
    """What a round costs a client who is in it."""

  @abc.abstractmethod
  def _facts(self) -> dict[str, Any]:
    """What a state belongs to, but for who takes part how often; JSON."""

  def _belongs_to(self) -> str:
    facts = {**self._facts(), 'num_rounds': None}
    if self._limits is not None:
      for name in ('num_rounds', 'min_separation', 'max_participations'):
        facts[name] = getattr(self._limits, name)
    return matrix_mechanism.mechanism_text(facts)

  def run_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together, for a client who is in as many as it may."""
    most = int(self.participation.possible_participations)
    return dp_accounting.SelfComposedDpEvent(self._event(), most)

  def derive_sample_params(self, global_state: Any) -> Any:
    """Returns the clip norm, all that clients need to know."""
    return global_state.clip_norm

  def _this_round(self, global_state: Any) -> tf.Tensor:
    """The round, after making sure that it is planned, and the state of this query."""
    this_round = matrix_mechanism.check_state(
      global_state.belongs_to, self._belongs_to(), global_state.round
    )
    if self._limits is None:
      return this_round
    return matrix_mechanism.check_round(this_round, self._limits.num_rounds)

  def _participations_after(self, rounds: tf.Tensor) -> tf.Tensor:
    """In how many of the first `rounds` rounds one client can have been; int64."""
    if self._limits is None:
      return rounds
    return tf.gather(tf.constant(self._after, tf.int64), rounds)

  def _added_by_last(self, rounds: tf.Tensor) -> tf.Tensor:
    """How many the last of the first `rounds` rounds added to that, 0 or 1; int64."""
    before = self._participations_after(tf.maximum(rounds - 1, 0))
    return self._participations_after(rounds) - before

  def _event_of(self, this_round: tf.Tensor) -> dp_accounting.DpEvent:
    """What a round adds for the worst client; of infinite noise if that is nothing."""
    event = self._event()
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
      return event
    more = self._added_by_last(this_round + 1) > 0
    # A tensor, because `tf.function` makes float32 of a Python number.
    own = tf.constant(event.noise_multiplier, tf.float64)
    return type(event)(tf.where(more, own, tf.constant(math.inf, tf.float64)))

  def spent(self, global_state: Any) -> matrix_mechanism.Spent:
    """Returns in how many rounds a client can have been, and what each costs."""
    event, rounds = self._event(), global_state.round
    last, total = self._added_by_last(rounds), self._participations_after(rounds)
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
      last, total = tf.minimum(rounds, 1), rounds
    return matrix_mechanism.RepeatedSpent(
      tf.constant(matrix_mechanism.event_text(event)), last, total
    )
