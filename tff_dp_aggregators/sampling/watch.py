"""Whether cohorts keep the schema that they are stated to keep."""

import collections
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import schedule as schedule_lib
from tff_dp_aggregators.sampling import scheme
from tff_dp_aggregators.strategies import participation as participation_lib

_TWICE = (
  '; a client that takes part twice in a round is counted with twice its clip norm, '
  'which no epsilon covers.'
)


class ParticipationWatch:
  """Refuses a round in which a client would take part too often, or too soon.

  For a loop of one's own that chooses its clients without a schedule: epsilon rests on
  limits that nothing else keeps there. What was checked is remembered in this object
  alone, so a loop that goes on from a checkpoint checks its earlier rounds again.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> limits = strategies.Participation(num_rounds=10, min_separation=3)
    >>> watch = ParticipationWatch(limits)
    >>> watch.check(0, ['ann', 'bob'])
    ['ann', 'bob']
    >>> watch.check(1, ['bob'])
    Traceback (most recent call last):
    ValueError: round 1: client 'bob' took part in round 0 as well, and in 1 in all; the
      difference must be at least 3, for at most 4 rounds.
  """

  def __init__(self, participation: strategies.Participation):
    self._limits = participation_lib.require(participation)
    self._numbers: dict[Any, int] = {}  # Of clients, as they come.
    self._taken_part = _TakenPart(participation, 0)
    self._next = 0

  def check(self, round_num: int, clients: Iterable[Any]) -> list[Any]:
    """Returns the clients of a round that is about to run, if they may take part.

    Args:
      round_num: The round, from 0, after all that were checked.
      clients: Their ids.

    Raises:
      ValueError: If they may not. Then nothing is remembered of the round.
    """
    if isinstance(clients, (str, bytes)):
      raise TypeError(f'clients must be a list of ids; got the text {clients!r}.')
    limits, cohort = self._limits, list(clients)
    round_num = checks.check_int('round_num', round_num, at_least=0)
    where = f'round {round_num}'
    if not self._next <= round_num < limits.num_rounds:
      raise ValueError(
        f'{where} is not one of rounds {self._next} to {limits.num_rounds - 1}, which '
        'are planned and not checked yet. To begin anew, make another watch.'
      )
    twice = [each for each, n in collections.Counter(cohort).items() if n > 1]
    if twice:
      raise ValueError(f'{where} has client {twice[0]!r} twice{_TWICE}')
    numbers = [self._numbers.setdefault(each, len(self._numbers)) for each in cohort]
    self._taken_part.grow(len(self._numbers))
    self._taken_part.add(where, round_num, np.array(numbers, np.int64), cohort)
    self._next = round_num + 1
    return cohort


def check_cohort(where: str, clients: Any, num_clients: int) -> np.ndarray:
  """Returns the clients of a cohort, if each is one of them, and none there twice."""
  clients = np.asarray(clients)
  if clients.ndim != 1 or (clients.size and clients.dtype.kind not in 'iu'):
    raise TypeError(
      f'{where} must be a vector of client numbers, int64; got {clients.dtype} of '
      f'shape {list(clients.shape)}.'
    )
  clients = clients.astype(np.int64, copy=False)
  strange = clients[(clients < 0) | (clients >= num_clients)]
  if len(strange):
    raise ValueError(
      f'{where} has client {strange[0]}; clients are numbered from 0 to '
      f'{num_clients - 1}.'
    )
  ordered = np.sort(clients)
  twice = ordered[1:][ordered[1:] == ordered[:-1]]
  if len(twice):
    raise ValueError(f'{where} has client {twice[0]} twice{_TWICE}')
  return clients


class Rounds:
  """Rounds in their order, each held against what is stated, with all before it.

  Limits are those on clients whose updates count: those that reported in the attempt
  that counted. `source` says in messages where the rounds are from.
  """

  def __init__(self, source: str, header: schedule_lib.Header):
    self._source, self._header = source, header
    self._scheme = scheme.of(header.schema)
    self._taken_part = _TakenPart(self._scheme.limits, header.num_clients)
    self.checked = 0  # How many there were.

  def add(self, attempts: Sequence[schedule_lib.Attempt]) -> None:
    """Checks the attempts at the next round."""
    where = f'round {self.checked} {self._source}'
    num_clients = self._header.num_clients
    if len(attempts) > 1 and self._scheme.is_sampled:
      raise ValueError(
        f'{where} was tried {len(attempts)} times, and a schema of sampling allows one '
        'attempt: another makes its clients more likely than the sampling says.'
      )
    for requested, reporting, _ in attempts:
      check_cohort(where, requested, num_clients)
      if reporting is not requested:  # Without drop-outs, they are the same.
        check_cohort(where, reporting, num_clients)
        unasked = np.setdiff1d(reporting, requested)
        if len(unasked):
          raise ValueError(
            f'{where}: client {unasked[0]} reported and was not requested.'
          )
      most, least = self._scheme.largest_cohort, 0
      if self._scheme.has_public_sizes:
        most = least = self._scheme.expected_cohort(num_clients)
      if most is not None and not least <= len(requested) <= most:
        raise ValueError(
          f'{where} has {len(requested)} clients; its schema has cohorts from {least} '
          f'to {most}.'
        )
    self._taken_part.add(where, self.checked, attempts[-1].reporting)
    self.checked += 1


class Watch(Rounds):
  """Looks at the rounds of a schedule as they are run, whoever wrote the schedule.

  Privacy rests on what a schedule does, and its schema only states that.
  """

  def __init__(self, schedule: schedule_lib.Schedule):
    super().__init__(f'of {type(schedule).__name__}', schedule.header)
    self._schedule = schedule

  def attempts(self, round_num: int) -> tuple[schedule_lib.Attempt, ...]:
    """The attempts at a round, if they keep the schema, with all before it."""
    for earlier in range(self.checked, round_num):  # Of a run that goes on.
      self.add(self._schedule.attempts(earlier))
    attempts = self._schedule.attempts(round_num)
    self.checked = round_num
    self.add(attempts)
    return attempts


class _TakenPart:
  """In which rounds clients took part, as far as limits are about it."""

  def __init__(self, limits: strategies.Participation, num_clients: int):
    self._limits = limits
    self._last = np.full(num_clients, -1, np.int32)
    self._times = np.zeros(num_clients, np.int32)

  def grow(self, num_clients: int) -> None:
    """Makes room for clients that were not known."""
    more = num_clients - len(self._last)
    self._last = np.append(self._last, np.full(more, -1, np.int32))
    self._times = np.append(self._times, np.zeros(more, np.int32))

  def add(
    self,
    where: str,
    this_round: int,
    clients: np.ndarray,
    names: Optional[Sequence[Any]] = None,
  ) -> None:
    """Adds the clients of a round, unless one breaks the limits."""
    clients, limits = np.asarray(clients, np.int64), self._limits
    last = self._last[clients]
    gaps = this_round - last
    near = gaps < limits.min_separation
    if limits.fixed_epoch:
      near = gaps % limits.min_separation != 0
    often = self._times[clients] >= limits.possible_participations
    wrong = (last >= 0) & near | often
    if wrong.any():
      first = int(np.argmax(wrong))
      client = clients[first] if names is None else repr(names[first])
      wanted = 'a multiple of' if limits.fixed_epoch else 'at least'
      raise ValueError(
        f'{where}: client {client} took part in round {last[first]} as well, and in '
        f'{self._times[clients[first]]} in all; the difference must be {wanted} '
        f'{limits.min_separation}, for at most {limits.possible_participations} rounds.'
      )
    self._times[clients] += 1
    self._last[clients] = this_round
