"""What a report says of a ledger, in words."""

from collections.abc import Iterator
from typing import Any, Optional

from tff_dp_aggregators.accounting.reports.rendering.document import Code
from tff_dp_aggregators.accounting.reports.rendering.document import Fact
from tff_dp_aggregators.base import rounding

# What the hash of a ledger is called.
HASH = 'hash of its last line'
_NOT_RELEASED = (
  'nothing of such an attempt was released, and what is not released spends nothing'
)
_SENT = (
  'nothing of such an attempt was released, but a client that reported had sent what '
  'it sends, so each counts as one more participation of every client'
)


def facts(run: dict[str, Any], is_of_client: bool = False) -> Iterator[Fact]:
  """The ledger itself: its length, its hash, and what else was found in it.

  Args:
    run: Of a statement.
    is_of_client: Whether each client hides what it sends by noise of its own, so that
      aborted attempts are spent as well.
  """
  again, cut = run['rounds_released_again'], run['bytes_cut_off']
  head = run['ledger_head']
  yield Fact('lines of the ledger', f'{head["lines"]}')
  yield Fact(
    HASH,
    Code(f'sha256:{head["sha256"]}'),
    'each line has the hash of the one before, so a ledger of which any line was '
    'changed or removed has another (of a whole ledger, tail -n 1 piped into sha256sum '
    'prints it)',
  )
  if again:
    yield Fact(
      'released again',
      'rounds ' + ', '.join(map(str, again)),
      'the same result a second time, which tells nothing new',
    )
  if run['reporting'] is not None:
    yield Fact('clients that report', *_reporting(run['reporting']))
  aborted = run['aborted_attempts']
  if aborted['count']:
    yield Fact(
      'aborted attempts',
      f'{aborted["count"]}, at {len(aborted["rounds"])} of the rounds, which spent '
      f'epsilon = {rounding.up(aborted["epsilon"])}',
      'the round was tried again, as when too few clients report; '
      + (_SENT if is_of_client else _NOT_RELEASED),
    )
  if cut:
    yield Fact(
      'end of the ledger',
      f'a half line of {cut} bytes',
      'the round that it is of was not used',
    )


def _reporting(reporting: dict[str, Any]) -> tuple[str, str]:
  """Drop-outs and the reporting goal, and what the mean makes of them."""
  rate, goal = reporting['dropout_rate'], reporting['reporting_goal']
  said = []
  if rate is not None:
    said.append(f'each that is asked drops out with probability {rounding.exact(rate)}')
  if goal is not None:
    said.append(f'with fewer than {goal} reports an attempt is aborted')
  meaning = 'it changes no epsilon'
  if reporting['denominator'] is not None:
    asked = rounding.exact(reporting['denominator'])
    meaning = (
      f"the mean's denominator stays {asked} (clients_per_round), however many report; "
      'drop-outs make the mean smaller and change no epsilon'
    )
  return '; '.join(said), meaning


def generators(run: Optional[dict[str, Any]]) -> str:
  """What drew the noise, as far as a ledger says it; empty if it does not at all."""
  found = [] if run is None else run['noise_generators']
  if not any(found):
    return ''
  return ', '.join('not stated in some rounds' if g is None else g for g in found)


def clip_norms(norms: dict[str, Optional[float]]) -> str:
  """The clip norms that a ledger has."""
  smallest, largest = norms['smallest'], norms['largest']
  if smallest is None or largest is None:
    return 'none in some rounds: contributions were not clipped'
  if smallest == largest:
    return f'{rounding.exact(largest)} in all rounds that ran'
  return (
    f'{rounding.exact(smallest)} to {rounding.exact(largest)} in the rounds that ran'
  )
