"""Whether cohorts keep the schema that they are stated to keep."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import files
from tff_dp_aggregators.sampling import schedule as schedule_lib
from tff_dp_aggregators.sampling import scheme


class Watch:
  """Looks at the rounds of a schedule as they are run, whoever wrote the schedule.

  Privacy rests on what a schedule does, and its schema only states that.
  """

  def __init__(self, schedule: schedule_lib.Schedule):
    """Initializes it."""
    self._schedule = schedule
    self._header = files.Header(
      schedule.schema, schedule.num_clients, float(schedule.clients_per_round)
    )
    self._taken_part = _TakenPart(self._header)
    self._next = 0

  def attempts(self, round_num: int) -> tuple[schedule_lib.Attempt, ...]:
    """The attempts at a round, if they keep the schema, with all before it."""
    for earlier in range(self._next, round_num):  # Of a run that goes on.
      self._check(earlier, self._schedule.attempts(earlier))
    attempts = self._schedule.attempts(round_num)
    self._check(round_num, attempts)
    return attempts

  def _check(self, this_round: int, attempts: Sequence[schedule_lib.Attempt]) -> None:
    where = f'round {this_round} of {type(self._schedule).__name__}'
    asked = [(each.requested, each.reporting) for each in attempts]
    _check_attempts(where, self._header, asked)
    self._taken_part.add(where, this_round, asked[-1][1])
    self._next = this_round + 1


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
    ValueError: round 1: client 'bob' took part in round 0 as well; the difference must
      be at least 3.
  """

  def __init__(self, participation: strategies.Participation):
    """Initializes it.

    Args:
      participation: The limits that the mechanism was planned for.

    Raises:
      TypeError: If they are no limits. Sampling is not kept by looking at it: draw
        from the schedule of `for_mechanism`.
    """
    if not isinstance(participation, strategies.Participation):
      raise TypeError(
        'participation must be a strategies.Participation, whose limits can be looked '
        'at; clients that are to be sampled have to be drawn from the schedule of '
        f'sampling.for_mechanism. Got {participation!r}.'
      )
    self._limits = participation
    self._seen: dict[Any, tuple[int, int]] = {}
    self._next = 0

  def check(self, round_num: int, clients: Iterable[Any]) -> list[Any]:
    """Returns the clients of a round that is about to run, if they may take part.

    Args:
      round_num: The round, from 0, after all that were checked.
      clients: Their ids.

    Raises:
      TypeError: If `round_num` is no whole number, or `clients` are a text.
      ValueError: If a client is there twice, or would break the limits; or if the round
        is out of range. Then nothing is remembered of it.
    """
    if isinstance(clients, (str, bytes)):
      raise TypeError(f'clients must be a list of ids; got the text {clients!r}.')
    limits, cohort = self._limits, list(clients)
    round_num = checks.check_int('round_num', round_num, at_least=0)
    if round_num < self._next:
      raise ValueError(
        f'round {round_num} is not after round {self._next - 1}, which was checked: '
        'rounds go forward. To begin anew, make another watch.'
      )
    where = f'round {round_num}'
    if round_num >= limits.num_rounds:
      raise ValueError(f'{where} is not one of the {limits.num_rounds} planned ones.')
    found = {}
    for client in cohort:
      if client in found:
        raise ValueError(
          f'{where} has client {client!r} twice; a client that takes part twice in a '
          'round is counted with twice its clip norm, which no epsilon covers.'
        )
      last, times = self._seen.get(client, (None, 0))
      if last is not None and _too_near(np.asarray(round_num - last), limits):
        raise _took_part(where, repr(client), last, limits)
      if times == limits.possible_participations:
        raise _takes_part_often(where, repr(client), limits)
      found[client] = (round_num, times + 1)
    self._seen.update(found)
    self._next = round_num + 1
    return cohort


def check(
  path: str, header: files.Header, rounds: Sequence[Sequence[files.Asked]]
) -> None:
  """Checks a file's rounds against what it states.

  Limits are those on clients whose updates count: those that reported in the attempt
  that counted.
  """
  num_rounds = header.schema.num_rounds
  if len(rounds) != num_rounds:
    raise ValueError(
      f'{path} has {len(rounds)} rounds, but its schema is for {num_rounds}.'
    )
  taken_part = _TakenPart(header)
  for this_round, attempts in enumerate(rounds):
    where = f'round {this_round} of {path}'
    _check_attempts(where, header, attempts)
    taken_part.add(where, this_round, attempts[-1][1])


def check_cohort(where: str, clients: Any, num_clients: int) -> np.ndarray:
  """Returns the clients of a cohort, if each is one of them, and none there twice.

  The sensitivity is that of a cohort whose clients differ: twice the same client is
  twice its clip norm.
  """
  clients = np.asarray(clients)
  if clients.ndim != 1 or (clients.size and clients.dtype.kind not in 'iu'):
    raise TypeError(
      f'{where} must be a vector of client numbers, int64; got {clients.dtype} of '
      f'shape {list(clients.shape)}.'
    )
  clients = clients.astype(np.int64, copy=False)
  ordered = np.sort(clients)
  if len(ordered) and not 0 <= ordered[0] <= ordered[-1] < num_clients:
    strange = clients[(clients < 0) | (clients >= num_clients)]
    raise ValueError(
      f'{where} has client {strange[0]}; clients are numbered from 0 to '
      f'{num_clients - 1}.'
    )
  twice = ordered[1:][ordered[1:] == ordered[:-1]]
  if len(twice):
    raise ValueError(
      f'{where} has client {twice[0]} twice; a client that takes part '
      'twice in a round is counted with twice its clip norm, which no epsilon covers.'
    )
  return clients


def _check_attempts(
  where: str, header: files.Header, attempts: Sequence[files.Asked]
) -> None:
  if len(attempts) > 1 and scheme.is_sampled(header.schema):
    raise ValueError(
      f'{where} was tried {len(attempts)} times, and a schema of sampling allows one '
      'attempt: another makes its clients more likely than the sampling says.'
    )
  stated = scheme.of(header.schema)
  for requested, reporting in attempts:
    check_cohort(where, requested, header.num_clients)
    if reporting is not requested:  # Without drop-outs, they are the same.
      check_cohort(where, reporting, header.num_clients)
      unasked = np.setdiff1d(reporting, requested)
      if len(unasked):
        raise ValueError(
          f'{where}: client {unasked[0]} reported and was not requested.'
        )
    size = stated.expected_cohort(header.num_clients)
    if stated.has_public_sizes and len(requested) != size:
      raise ValueError(
        f'{where} has {len(requested)} clients; its schema has cohorts of {size}.'
      )


class _TakenPart:
  """In which rounds clients took part, as far as limits are about it."""

  def __init__(self, header: files.Header):
    self._limits = scheme.limits_of(header.schema)
    self._last = np.full(header.num_clients, -1, np.int32)
    self._times = np.zeros(header.num_clients, np.int32)

  def add(self, where: str, this_round: int, clients: np.ndarray) -> None:
    """Adds the clients of a round, unless one breaks the limits."""
    clients, limits = np.asarray(clients, np.int64), self._limits
    last = self._last[clients]
    wrong = (last >= 0) & _too_near(this_round - last, limits)
    if wrong.any():
      first = np.argmax(wrong)
      raise _took_part(where, clients[first], last[first], limits)
    self._times[clients] += 1
    often = self._times[clients] > limits.possible_participations
    if often.any():
      raise _takes_part_often(where, clients[np.argmax(often)], limits)
    self._last[clients] = this_round


def _too_near(gaps: np.ndarray, limits: strategies.Participation) -> np.ndarray:
  """Which differences of two rounds of a client the limits do not allow."""
  if limits.fixed_epoch:
    return gaps % limits.min_separation != 0
  return gaps < limits.min_separation


def _took_part(
  where: str, client: Any, before: int, limits: strategies.Participation
) -> ValueError:
  wanted = 'a multiple of' if limits.fixed_epoch else 'at least'
  return ValueError(
    f'{where}: client {client} took part in round {before} as well; the difference '
    f'must be {wanted} {limits.min_separation}.'
  )


def _takes_part_often(
  where: str, client: Any, limits: strategies.Participation
) -> ValueError:
  return ValueError(
    f'{where}: client {client} takes part once more than '
    f'max_participations={limits.possible_participations} times.'
  )
