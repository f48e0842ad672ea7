"""How a line of a ledger is read: that of a round, or that of an aborted attempt."""

import dataclasses
import json
from typing import Union

from tff_dp_aggregators.accounting.records import aborted_attempt
from tff_dp_aggregators.accounting.records import ledger_entry
from tff_dp_aggregators.accounting.records import strict_json

# What a line says.
Line = Union[ledger_entry.LedgerEntry, aborted_attempt.AbortedAttempt]

_IF_ANY = ('parts', 'noise_site', 'notes', 'sampling_source', 'sampling_tag')


def parse(line: bytes) -> Line:
  """Reads a complete line.

  Raises:
    ValueError: If it is no entry.
  """
  try:
    data = strict_json.loads(line.decode())
    if not isinstance(data, dict):
      raise ValueError(f'an entry is written as an object, got {data!r}.')
    is_aborted = aborted_attempt.MARK in data
    fields = (aborted_attempt if is_aborted else ledger_entry).FIELDS
    unknown = [name for name in data if name not in fields]
    if unknown:
      raise ValueError(f'unknown {unknown}: another release wrote this.')
    missing = [
      name
      for name, field in fields.items()
      if name not in data and field.default is dataclasses.MISSING
    ]
    if ledger_entry.CHAIN in missing:
      raise ValueError(
        f'missing {missing}; its lines are not chained, as those of this release are, '
        'so nothing shows that none was removed. Start another ledger.'
      )
    if missing:
      raise ValueError(f'missing {missing}.')
    if is_aborted:
      return aborted_attempt.AbortedAttempt(**data)
    return ledger_entry.LedgerEntry(**data)
  except (ValueError, OverflowError, RecursionError) as e:
    raise ValueError(f'not a ledger entry: {e}') from e


def write(entry: Line) -> bytes:
  """The line of an entry, with its line feed.

  `_IF_ANY` are in lines that have some.
  """
  values = dataclasses.asdict(entry)
  for name in _IF_ANY:
    if values.get(name, ()) is None:
      del values[name]
  return (json.dumps(values, allow_nan=False) + '\n').encode()
