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

  _participations: 'Participations'

  @property
  def participation(self) -> strategies.Participation:
    """What the privacy analysis assumes of clients."""
    return self._participations.limits

  @abc.abstractmethod
  def _event(self) -> dp_accounting.DpEvent:
    """What a round costs a client who is in it."""

  @abc.abstractmethod
  def _facts(self) -> dict[str, Any]:
    """What a state belongs to, but for who takes part how often; JSON."""

  def _belongs_to(self) -> str:
    return matrix_mechanism.mechanism_text(
      {**self._facts(), **self._participations.facts()}
    )

  def run_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together, for a client who is in as many as it may."""
    return dp_accounting.SelfComposedDpEvent(self._event(), self._participations.most)

  def derive_sample_params(self, global_state: Any) -> Any:
    """Returns the clip norm, all that clients need to know."""
    return global_state.clip_norm

  def _this_round(self, global_state: Any) -> tf.Tensor:
    """The round, after making sure that it is planned, and the state of this query."""
    this_round = matrix_mechanism.check_state(
      global_state.belongs_to, self._belongs_to(), global_state.round
    )
    return self._participations.check_round(this_round)

  def spent(self, global_state: Any) -> matrix_mechanism.Spent:
    """Returns in how many rounds a client can have been, and what each costs."""
    return self._participations.spent(global_state.round, self._event())


class Participations:
  """Counts, for independent noise, how often the worst client took part so far."""

  def __init__(self, participation: Optional[strategies.Participation]):
    """Counts within a schema; `None` for a client who is in all rounds."""
    self._limits: Optional[strategies.Participation] = None
    if participation is not None:
      self._limits = strategies.participation.require(participation)
      taken = np.zeros(self._limits.num_rounds + 1, np.int64)
      taken[1 + np.array(self._limits.rounds, np.int64)] = 1
      self._after = np.cumsum(taken)

  @property
  def limits(self) -> strategies.Participation:
    """What is assumed of clients."""
    if self._limits is None:
      raise matrix_mechanism.unlimited()
    return self._limits

  @property
  def most(self) -> int:
    """How often the worst client takes part in all rounds."""
    return int(self.limits.possible_participations)

  def after(self, rounds: tf.Tensor) -> tf.Tensor:
    """In how many of the first `rounds` rounds one client can have been; int64."""
    if self._limits is None:
      return rounds
    return tf.gather(tf.constant(self._after, tf.int64), rounds)

  def in_last(self, rounds: tf.Tensor) -> tf.Tensor:
    """How many the last of the first `rounds` rounds added to that, 0 or 1; int64."""
    return self.after(rounds) - self.after(tf.maximum(rounds - 1, 0))

  def check_round(self, this_round: tf.Tensor) -> tf.Tensor:
    """Returns the round, after making sure that it is one of those planned."""
    if self._limits is None:
      return this_round
    return matrix_mechanism.check_round(this_round, self._limits.num_rounds)

  def event_of(
    self, this_round: tf.Tensor, event: dp_accounting.DpEvent
  ) -> dp_accounting.DpEvent:
    """What a round adds for the worst client; of infinite noise if that is nothing."""
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
      return event
    more = self.in_last(this_round + 1) > 0
    # A tensor, because `tf.function` makes float32 of a Python number.
    own = tf.constant(event.noise_multiplier, tf.float64)
    return type(event)(tf.where(more, own, tf.constant(math.inf, tf.float64)))

  def spent(
    self, rounds: tf.Tensor, event: dp_accounting.DpEvent
  ) -> matrix_mechanism.RepeatedSpent:
    """What the first `rounds` rounds have spent, and the last of them."""
    last, total = self.in_last(rounds), self.after(rounds)
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
      last, total = tf.minimum(rounds, 1), rounds
    return matrix_mechanism.RepeatedSpent(
      tf.constant(matrix_mechanism.event_text(event)), last, total
    )

  def facts(self) -> dict[str, Any]:
    """What a state has to belong to; JSON."""
    if self._limits is None:
      return {'num_rounds': None}
    return {
      'num_rounds': self._limits.num_rounds,
      'min_separation': self._limits.min_separation,
      'max_participations': self._limits.max_participations,
    }

  def __repr__(self) -> str:
    return repr(self._limits)
