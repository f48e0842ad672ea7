"""What the rounds up to a state have spent, as numbers that the state's reader needs.

A state goes through checkpoints and TFF's worker, where there are tensors and no
events. So a query says what was spent in one of these forms, from which an event
follows without the query: `to_event` and `last_to_event`.

`GaussianSpent` is that of all Gaussian mechanisms, correlated or not: however many
rounds, they are one Gaussian. `RepeatedSpent` is that of independent noise of any other
kind, whose rounds do not add up to one event of the same kind. `ComposedSpent` is that
of several mechanisms beside each other.
"""

import json
from typing import Any, NamedTuple, Union

import dp_accounting
import numpy as np

from tff_dp_aggregators.accounting import events


class GaussianSpent(NamedTuple):
  """What a Gaussian mechanism has spent.

  Attributes:
    last_round_noise_multiplier: Of the last round's event, float64 scalar; infinite if
      it added nothing, and before the first round.
    all_rounds_noise_multiplier: Of the event of all rounds so far together, float64
      scalar; infinite before the first.
  """

  last_round_noise_multiplier: Any
  all_rounds_noise_multiplier: Any

  def to_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds so far."""
    return _gaussian(self.all_rounds_noise_multiplier)

  def last_to_event(self) -> dp_accounting.DpEvent:
    """The event of the last round; those of all rounds compose to `to_event`."""
    return _gaussian(self.last_round_noise_multiplier)


class RepeatedSpent(NamedTuple):
  """What repeated independent noise has spent.

  Attributes:
    event: Of one round, for a client who is in it: JSON of `accounting.events.to_json`,
      string scalar.
    last_round: How many such events the last round added to the worst case, 0 or 1;
      int64 scalar.
    all_rounds: How many all rounds so far make for a client who was in as many of them
      as it may; int64 scalar.
  """

  event: Any
  last_round: Any
  all_rounds: Any

  def to_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds so far."""
    return self._times(self.all_rounds)

  def last_to_event(self) -> dp_accounting.DpEvent:
    """The event of the last round; those of all rounds compose to `to_event`."""
    return self._times(self.last_round)

  def _times(self, count: Any) -> dp_accounting.DpEvent:
    one = events.from_json(json.loads(np.asarray(self.event).item()))
    return events.simplify(dp_accounting.SelfComposedDpEvent(one, int(count)))


class ComposedSpent(NamedTuple):
  """What several mechanisms have spent, in all of which clients took part.

  Attributes:
    parts: What each of them has; a tuple of any of these forms.
  """

  parts: Any

  def to_event(self) -> dp_accounting.DpEvent:
    """The event of all rounds so far."""
    return _composed([part.to_event() for part in self.parts])

  def last_to_event(self) -> dp_accounting.DpEvent:
    """The event of the last round; those of all rounds compose to `to_event`."""
    return _composed([part.last_to_event() for part in self.parts])


# Any of them.
Spent = Union[GaussianSpent, RepeatedSpent, ComposedSpent]


def _composed(parts: list[dp_accounting.DpEvent]) -> dp_accounting.DpEvent:
  return events.simplify(dp_accounting.ComposedDpEvent(parts))


def _gaussian(noise_multiplier: Any) -> dp_accounting.DpEvent:
  return events.simplify(dp_accounting.GaussianDpEvent(float(noise_multiplier)))


def text_of(event: dp_accounting.DpEvent) -> str:
  """The text of an event for `RepeatedSpent`.

  Example:
    >>> text_of(dp_accounting.LaplaceDpEvent(2.0))
    '{"type": "LaplaceDpEvent", "noise_multiplier": 2.0}'
  """
  return json.dumps(events.to_json(event))
