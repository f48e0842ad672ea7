r"""Derives limits on participation from the round log of a production system.

A production system knows when its rounds were complete, and how long a device waits
before it takes part again: 24 hours by default. The limits on participation that
accounting needs follow from these.

**Min separation.** A device that contributes to a round between its start and its
completion, and waits before it contributes again, can be in rounds r1 < r2 if and only
if `completion(r2) - start(r1) >= wait`; the smallest r2 - r1 is the min separation.
Without a column `start_time`, a round starts when the one before is complete, as its
clients need that round's model. The first round starts as --first_start says, or else
as long before its completion as the longest other round took.

**The published accounting**, the notebook on Gboard's Spanish language model
(google-research/federated, dp_ftrl), uses the smallest number of rounds completed in
any 24 hours as the number of rounds *between*. That is right if the wait begins with
the completion of a device's round (--wait_from=completion). If it begins with the
contribution, a device that contributes early can be back one round sooner.

**Rounding is on the safe side.** A completion exactly 24 hours after another does not
count as within them. So times may be rounded to any unit that divides the wait.

**Max participations** is the maximum number of rounds of one device: it takes the first
round at its start, and then always the first that is not complete before the wait ends.

**With client ids**, actual participation is counted and compared with the promised
limits, and with the wait if one is given. This describes one run; a guarantee rests on
the mechanism that enforced the limits.
"""

import bisect
import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.records import round_log
from tff_dp_aggregators.base import checks

# The event from which a device waits: its own contribution, or the end of the round.
WAIT_FROM = ('contribution', 'completion')
_DEFAULT_MIN_WAIT_HOURS = 24.0
_MAX_DENSE = 2048  # Maximum number of rounds for which C^T C is computed.
_AT_ONCE = 2**22  # Contributions in memory at a time.
_MAX_WAIT_HOURS = 24 * 3660


@dataclasses.dataclass(frozen=True)
class Waiting:
  """The participation that is possible for a device that waits between rounds.

  Rounds have the numbers of the log, here and in `Observed`.
  """

  min_wait_hours: float
  wait_from: str  # One of `WAIT_FROM`.
  min_separation: int  # `num_rounds` if a device can be in only one round.
  max_participations: int
  # Minimum number of rounds completed in an open window of the wait's length; `None` if
  # the log is shorter than the wait.
  fewest_rounds_in_wait: Optional[int]
  # Two rounds, `min_separation` apart, that one device can be in.
  closest: Optional[list[int]]
  assumptions: list[str]  # Full sentences.


@dataclasses.dataclass(frozen=True)
class Observed:
  """The actual participation in a log; names of clients are `None` if left out."""

  num_clients: int  # Number of clients that took part.
  # 0 if a client is twice in a round, `num_rounds` if no client took part twice.
  min_separation: int
  max_participations: int
  # A client and two of its rounds, `min_separation` apart.
  closest: Optional[tuple[Optional[str], int, int]]
  most_active: Optional[str]
  rounds_of_most_active: list[int]


@dataclasses.dataclass(frozen=True)
class Summary:
  """The participation that a log allows or shows."""

  log: round_log.RoundLog
  waiting: Optional[Waiting]  # Possible participation, if the wait is known.
  observed: Optional[Observed]  # Actual participation, if the log names clients.

  @property
  def num_rounds(self) -> int:
    """Rounds n."""
    return self.log.num_rounds

  @property
  def min_separation(self) -> int:
    """Smallest difference of two rounds of one device, by its wait if that is known."""
    return self._basis.min_separation

  @property
  def rounds_between(self) -> int:
    """The rounds strictly between two rounds of a device, as DP-FTRL papers count."""
    return self.min_separation - 1

  @property
  def max_participations(self) -> int:
    """Maximum number of rounds of one device, by its wait if that is known."""
    return self._basis.max_participations

  @property
  def participation(self) -> strategies.Participation:
    """The limits to account for; raises ValueError if the log contradicts itself."""
    if violations := self.broken():
      raise ValueError(f'{"; ".join(violations)}.')
    return strategies.Participation(
      self.num_rounds, self.min_separation, self.max_participations
    )

  def without_names(self) -> 'Summary':
    """Returns the summary without the names of clients."""
    observed = self.observed
    if observed is None:
      return self
    closest = observed.closest and (None, *observed.closest[1:])
    observed = dataclasses.replace(observed, closest=closest, most_active=None)
    return dataclasses.replace(self, observed=observed)

  def offenders(
    self,
    min_separation: Optional[int] = None,
    max_participations: Optional[int] = None,
  ) -> list[tuple[str, int, Optional[int], int]]:
    """Clients that took part too often or too soon, in the order of the log.

    For each client: its name, its number of contributions, the smallest difference of
    two of its rounds, `None` if it has one contribution, and how many of its
    contributions are too soon after the one before, or are more than it may make.
    """
    if self.log.clients is None:
      return []
    return self.log.clients.query(
      'select name, times, closest, count(*) filter (apart < $1 or place > $2) from ('
      'select *, round - lag(round) over own as apart, row_number() over own as place '
      'from contributions join by_client using (client) where closest < $1 or '
      'times > $2 window own as (partition by client order by round)) '
      'join names using (client) group by client, name, times, closest order by client',
      1 if min_separation is None else min_separation,
      2**62 if max_participations is None else max_participations,
    )

  def broken(
    self,
    min_separation: Optional[int] = None,
    max_participations: Optional[int] = None,
  ) -> list[str]:
    """A clause for each violated limit, with rounds, and the client if it is known.

    If both clients and their wait are known, also says whether they waited.
    """
    promised, violations = (min_separation, max_participations), []
    if self.min_separation == 0:
      assert self.observed is not None
      lines = ', '.join(map(str, self.log.twice))
      lines = f' (lines of the log: {lines})' if lines else ''
      violations.append(
        f'{_closest(self.observed)}{lines}; no schema allows this: if it took '
        'part once, name it once'
      )
    violations += _violations(self.waiting, *promised, 'promised')
    violations += _violations(self.observed, *promised, 'what was promised')
    if self.waiting is not None:
      allowed = (self.waiting.min_separation, self.waiting.max_participations)
      broken = _violations(self.observed, *allowed, 'by the wait')
      remedy = '; it was not kept: leave out min_wait_hours (--min_wait_hours)'
      violations += [each + remedy for each in broken]
    return violations

  def broken_in_short(
    self, min_separation: int, max_participations: Optional[int] = None
  ) -> list[str]:
    """Like `broken`, but with the number of clients instead of their names."""
    promised = (min_separation, max_participations)
    violations = _violations(self.waiting, *promised, 'promised')
    offenders = self.offenders(*promised)
    if self.observed is not None and offenders:
      violations.append(
        f'{len(offenders)} of {self.observed.num_clients} clients took part sooner or '
        f'more often, in {in_contributions(offenders)}'
      )
    return violations

  def sensitivity_squared(self, strategy: strategies.Strategy) -> Optional[float]:
    """The largest ||C u||^2 over the clients of the log, or an upper bound on it.

    Pairs of a client's rounds count with the absolute value of their entry of C^T C.
    This is exact if none of these entries is negative. `None` if the log names no
    clients, or if the strategy, of at least as many rounds, is too large for C^T C.
    """
    clients = self.log.clients
    if clients is None or strategy.num_rounds > _MAX_DENSE:
      return None
    matrix = strategy.materialize()
    products = np.abs(matrix.T @ matrix)
    ((num_clients, total),) = clients.query(
      'select count(*), sum(times) from by_client'
    )
    largest = 0.0
    for part in range(parts := min(num_clients, -(-total // _AT_ONCE))):
      bounds = (part * num_clients // parts, (part + 1) * num_clients // parts)
      rows = clients.arrays(
        'select client - $1 as client, round from contributions where client >= $1 and '
        'client < $2 order by client, round',
        *bounds,
      )
      largest = max(largest, _largest_sum(rows['client'], rows['round'], products))
    return largest

  @property
  def _basis(self) -> Union[Waiting, Observed]:
    basis = self.waiting or self.observed
    assert basis is not None  # `summarize` sets at least one.
    return basis

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values; rounds have the log's numbers."""
    log, waiting, observed = self.log, self.waiting, self.observed
    result: dict[str, Any] = {
      'num_rounds': self.num_rounds,
      'min_separation': self.min_separation,
      'rounds_between': self.rounds_between,
      'max_participations': self.max_participations,
      'basis': 'client_ids' if waiting is None else 'min_wait',
      'first_round': log.first_number,
    }
    if log.completions is not None:
      result['time_format'] = log.time_format
      result['first_completion'] = log.format_time(log.completions[0])
      result['last_completion'] = log.format_time(log.completions[-1])
    if log.cohort_sizes is not None:
      result['smallest_cohort'] = int(log.cohort_sizes.min())
      result['largest_cohort'] = int(log.cohort_sizes.max())
    if waiting is not None:
      result['waiting'] = dataclasses.asdict(waiting)
    if observed is not None:
      data = result['observed'] = dataclasses.asdict(observed)
      if observed.closest is not None:
        client, *rounds = observed.closest
        data['closest'] = {'client': client, 'rounds': rounds}
    result['notes'] = list(log.notes)
    return result

  def to_text(self) -> str:
    """Formats the summary for people."""
    data, waiting, observed = self.to_json(), self.waiting, self.observed
    lines: list[str] = []

    def add(name: str, value: Any) -> None:
      lines.append(f'{name:<20}{value}\n')

    add('rounds', self.num_rounds)
    if 'first_completion' in data:
      add('completed', f'{data["first_completion"]} to {data["last_completion"]}')
    if 'smallest_cohort' in data:
      add('cohort', f'{data["smallest_cohort"]} to {data["largest_cohort"]} clients')
    between = f'{self.rounds_between} between'
    if not self.min_separation:
      between = 'a client is twice in a round'
    add('min separation', f'{self.min_separation} ({between})')
    add('max participations', self.max_participations)
    if waiting is not None:
      if waiting.closest is None:
        add('', 'The log is too short for a device to be in two rounds.')
      else:
        add('for example', _rounds_apart(*waiting.closest))
      if waiting.fewest_rounds_in_wait is not None:
        fewest, hours = waiting.fewest_rounds_in_wait, waiting.min_wait_hours
        add('fewest rounds', f'{fewest} complete within {hours:g} h')
      for assumption in waiting.assumptions:
        add('assumed', assumption)
    if observed is not None:
      add('clients seen', observed.num_clients)
      if observed.closest is None:
        add('', 'No client took part twice.')
      else:
        add('closest seen', _closest(observed))
      text = f'{_client(observed.most_active)}, {observed.max_participations} times'
      add('most active', text)
    for note in self.log.notes:
      add('note', note)
    return ''.join(lines)


def in_contributions(offenders: Sequence[tuple[str, int, Optional[int], int]]) -> str:
  """How many contributions of `Summary.offenders` broke a limit, in words."""
  times = sum(times for _, times, _, _ in offenders)
  return f'{sum(broken for *_, broken in offenders)} of their {times} contributions'


def _violations(
  basis: Union[None, Waiting, Observed],
  min_separation: Optional[int],
  max_participations: Optional[int],
  standard: str,
) -> list[str]:
  broken: list[str] = []
  if basis is None:
    return broken
  if basis.closest is not None and basis.min_separation < (min_separation or 0):
    broken.append(f'{_closest(basis)}; {standard}: at least {min_separation}')
  if max_participations is not None and basis.max_participations > max_participations:
    if isinstance(basis, Waiting):
      text = f'{_device(basis)} {basis.max_participations} rounds'
    else:
      rounds = basis.rounds_of_most_active
      shown = ', '.join(map(str, rounds[:20])) + (', ...' if len(rounds) > 20 else '')
      client = _client(basis.most_active)
      text = f'{client} took part {len(rounds)} times, in rounds {shown}'
    broken.append(f'{text}; {standard}: at most {max_participations}')
  return broken


def _closest(basis: Union[Waiting, Observed]) -> str:
  assert basis.closest is not None
  *client, first, second = basis.closest
  if isinstance(basis, Waiting):
    return f'{_device(basis)} {_rounds_apart(first, second)}'
  if first == second:
    return f'{_client(*client)} is twice in round {first}'
  return f'{_client(*client)} took part in {_rounds_apart(first, second)}'


def _rounds_apart(first: int, second: int) -> str:
  return f'rounds {first} and {second}, which are {second - first} apart'


def _device(waiting: Waiting) -> str:
  return f'a device that waits {waiting.min_wait_hours:g} h can be in'


def _client(client: Optional[str]) -> str:
  return 'a client' if client is None else f'client {client!r}'


def summarize(
  log: round_log.RoundLog,
  min_wait_hours: Optional[float] = None,
  wait_from: str = 'contribution',
  first_start: Optional[str] = None,
) -> Summary:
  """Computes the participation that a log allows or shows.

  `min_wait_hours`: The minimum wait of a device between two rounds. `None` means 24, or
  no such rule if the log names its clients.
  `first_start`: The start of the first round, in the format of the log's times; only
  for logs without starts and with `wait_from='contribution'`.

  Example:
    With one round per hour, a device that contributes at the start of round 0 can
    contribute again at the end of round 23, 24 hours later.

    >>> hours = 3600 * 10**9 * np.arange(1, 101)
    >>> log = round_log.RoundLog(100, 0, completions=hours)
    >>> summarize(log).participation
    Participation(num_rounds=100, min_separation=23, max_participations=5, \
fixed_epoch=False)
  """
  observed = None if log.clients is None else _observe(log.clients, log)
  waiting = None
  if min_wait_hours is None and observed is None:
    min_wait_hours = _DEFAULT_MIN_WAIT_HOURS
  if min_wait_hours is not None:
    waiting = _wait(log, min_wait_hours, wait_from, first_start)
  elif first_start is not None or wait_from != 'contribution':
    raise ValueError(
      'the log names its clients; give min_wait_hours (--min_wait_hours) to look at '
      'waits too.'
    )
  return Summary(log, waiting, observed)


def _wait(
  log: round_log.RoundLog,
  min_wait_hours: float,
  wait_from: str,
  first_start: Optional[str],
) -> Waiting:
  checks.check_positive('min_wait_hours (--min_wait_hours)', min_wait_hours)
  checks.check_within(
    'min_wait_hours (--min_wait_hours)', min_wait_hours, 0, _MAX_WAIT_HOURS
  )
  if wait_from not in WAIT_FROM:
    raise ValueError(f'wait_from must be one of {WAIT_FROM}, got {wait_from!r}.')
  if log.completions is None:
    raise ValueError(
      'min_wait_hours (--min_wait_hours) needs completion times of rounds. The log has '
      'none, or one line per participation, whose times are not read: write one line '
      'per round with completion_time and client_ids, or leave it out.'
    )
  microsecond = datetime.timedelta(microseconds=1)
  wait = datetime.timedelta(hours=min_wait_hours) // microsecond * 1000
  starts, assumptions = _wait_starts(log, wait_from, first_start)
  separations = _rounds_until_back(log.completions, starts, wait)
  closest = None
  if len(separations):
    first = int(np.argmin(separations))
    number = first + log.first_number
    closest = [number, number + int(separations[first])]
  within = _rounds_until_back(log.completions, log.completions, wait) - 1
  return Waiting(
    min_wait_hours=float(min_wait_hours),
    wait_from=wait_from,
    min_separation=log.num_rounds if closest is None else closest[1] - closest[0],
    max_participations=_most_rounds(log.completions, starts, wait),
    fewest_rounds_in_wait=int(within.min()) if len(within) else None,
    closest=closest,
    assumptions=assumptions,
  )


def _wait_starts(
  log: round_log.RoundLog, wait_from: str, first_start: Optional[str]
) -> tuple[np.ndarray, list[str]]:
  """The earliest time at which the wait after each round begins, and assumptions."""
  completions = log.completions
  assert completions is not None
  needs_first = wait_from == 'contribution' and log.starts is None
  if first_start is not None and not needs_first:
    raise ValueError(
      'first_start is for logs without start times and waits from the contribution.'
    )
  assumptions = [
    'The log has all rounds whose results were released, and no others.',
    'No device takes part before its wait is over, by true time, or twice in a round.',
  ]
  if log.time_format == round_log.WITHOUT_ZONE:
    assumptions.append('Times have no zone; their clock was never set back.')
  if wait_from == 'completion':
    assumptions.append('A device waits from the completion of its round.')
    return completions, assumptions
  assumptions.append('A device waits from its contribution to a round.')
  if log.starts is not None:
    assumptions.append('Devices contribute between the start and the completion.')
    # If a later round starts earlier, use its start: earlier is on the safe side.
    return np.minimum.accumulate(log.starts[::-1])[::-1], assumptions
  assumptions.append('Devices contribute to a round after the one before is complete.')
  if first_start is not None:
    first, time_format = round_log.parse_time(first_start)
    if time_format != log.time_format or first > completions[0]:
      raise ValueError(
        f'first_start is {first_start}, {time_format}, but must be {log.time_format} '
        'as the log is, and not after the first completion, '
        f'{log.format_time(completions[0])}.'
      )
    assumptions.append(f'The first round started at {log.format_time(first)}.')
  else:
    longest = int(np.diff(completions).max()) if log.num_rounds > 1 else 0
    first = int(completions[0]) - longest
    assumptions.append(
      'The first round lasted no longer than the longest other one, '
      f'{datetime.timedelta(microseconds=longest // 1000)}; first_start can tell.'
    )
  return np.concatenate([[first], completions[:-1]]), assumptions


def _rounds_until_back(
  completions: np.ndarray, starts: np.ndarray, wait: int
) -> np.ndarray:
  """Rounds until a device can be in another one, for each round that one follows."""
  back, rounds = np.searchsorted(completions, starts + wait), np.arange(len(starts))
  return np.maximum(back - rounds, 1)[np.maximum(back, rounds + 1) < len(starts)]


def _most_rounds(completions: np.ndarray, begins: np.ndarray, wait: int) -> int:
  """Maximum number of rounds of one device, which always takes the first possible one.

  Taking a later one never helps: both arrays are non-decreasing.
  """
  ends, starts = completions.data, begins.data
  count, following, back_at = 0, 0, int(begins[0])
  while True:
    chosen = bisect.bisect_left(ends, back_at, lo=following)
    if chosen == len(ends):
      return count
    count += 1
    following = chosen + 1
    back_at = max(starts[chosen], back_at) + wait


def _observe(clients: round_log.Database, log: round_log.RoundLog) -> Observed:
  def first(order: str) -> tuple[str, list[int]]:
    """The first client in an order, and its rounds."""
    ((name, rounds),) = clients.query(
      f'select name, list(round + {log.first_number} order by round) from (from '
      f'by_client order by {order}, client limit 1) join names using (client) join '
      'contributions using (client) group by name'
    )
    return name, rounds

  ((num_clients,),) = clients.query('select count(*) from by_client')
  most_active, rounds_of_most_active = first('times desc')
  name, rounds = first('closest nulls last')
  closest = None
  if len(rounds) > 1:
    i = int(np.argmin(np.diff(rounds)))
    closest = (name, rounds[i], rounds[i + 1])
  return Observed(
    num_clients=num_clients,
    min_separation=log.num_rounds if closest is None else closest[2] - closest[1],
    max_participations=len(rounds_of_most_active),
    closest=closest,
    most_active=most_active,
    rounds_of_most_active=rounds_of_most_active,
  )


def _largest_sum(client: np.ndarray, rounds: np.ndarray, products: np.ndarray) -> float:
  """Largest sum of `products` over pairs of rounds of a client; sorted by client."""
  sums = np.bincount(client, products[rounds, rounds])
  first = np.arange(len(client))
  for apart in range(1, len(client)):
    first = first[: np.searchsorted(first, len(client) - apart)]
    first = first[client[first] == client[first + apart]]
    if not len(first):
      break
    pairs = 2 * products[rounds[first], rounds[first + apart]]
    sums += np.bincount(client[first], pairs, minlength=len(sums))
  return float(sums.max())


def of_plan(
  seen: strategies.Participation,
  num_rounds: int,
  planned: Optional[strategies.Participation] = None,
  broken: bool = False,
) -> strategies.Participation:
  """Limits for all `num_rounds` of a plan, given the log of its first rounds.

  Returns the planned limits. If these are unknown or were broken: the limits that the
  log shows (`seen`), and after its rounds as many as the smaller separation allows.
  """
  if seen.num_rounds > num_rounds:
    raise ValueError(
      f'the round log has {seen.num_rounds} rounds, but the strategy is for '
      f'{num_rounds}; give the strategy that ran, with all its rounds.'
    )
  if planned is not None and not broken:
    return strategies.Participation(
      num_rounds, planned.min_separation, planned.assumed_at_most
    )
  if planned is None and seen.num_rounds == num_rounds:
    return seen
  separation, participations = seen.min_separation, 0
  if planned is not None:
    # Planned limits count as well: if one was broken, the other is not tighter.
    separation = planned.min_separation
    allowed = of_plan(seen, num_rounds, planned)
    participations = allowed.possible_participations
  # A separation that was broken may be broken again.
  separation = min(separation, seen.min_separation)
  remaining = -(-(num_rounds - seen.num_rounds) // separation)
  return strategies.Participation(
    num_rounds,
    separation,
    max(participations, seen.possible_participations + remaining),
  )


def check_agreement(
  summary: Summary,
  ledger: ledger_lib.Ledger,
  limits: strategies.Participation,
) -> None:
  """Raises ValueError if a ledger and a round log are not of the same run.

  They must have the same rounds with the same numbers of clients, and the log must keep
  the `limits` for which the ledger's events hold.
  """
  log, entries = summary.log, ledger.entries

  def numbered(number: int) -> str:
    # Gives the log's number as well if that counts from 1.
    shift = log.first_number
    return f'{number} (number {number + shift} in the log)' if shift else f'{number}'

  counts: dict[str, Any] = {'clients': log.cohort_sizes}
  if log.clients is not None:
    listed = 'select round, count(*) from contributions group by round'
    zeros = dict.fromkeys(range(log.num_rounds), 0)
    counts['client ids'] = {**zeros, **dict(log.clients.query(listed))}
  differing = [
    f'in round {numbered(entry.round)} the ledger has {entry.cohort_reported} clients '
    f'that reported, the round log {numbers[entry.round]} {what}'
    for entry in entries[: log.num_rounds]
    for what, numbers in counts.items()
    if numbers is not None and entry.cohort_reported not in (None, numbers[entry.round])
  ]
  if len(entries) != log.num_rounds:
    differing.append(
      f'the ledger has {len(entries)} rounds, the round log {log.num_rounds}'
    )
  if differing:
    raise ValueError(
      f'the ledger and the round log are not of the same run: {differing[0]}.'
    )
  if limits.fixed_epoch:
    raise ValueError(
      'a round log cannot show fixed epochs, which the events of the ledger assume; '
      'leave out the round log.'
    )
  broken = summary.broken_in_short(limits.min_separation, limits.max_participations)
  if broken:
    raise ValueError(
      'the round log shows that the limits were not kept, but the events of the ledger '
      f'assume them: {"; ".join(broken)}. Leave out the ledger to account for what the '
      'log shows.'
    )
