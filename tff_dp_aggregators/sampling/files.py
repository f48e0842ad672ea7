"""Files of schedules: a line that states the schema, and a line for each round.

    {"format": "tff_dp_aggregators schedule", "version": 1, "schema": {...},
     "num_clients": 100, "clients_per_round": 3.0}
    [17, 4, 99]
    {"attempts": [{"requested": [5, 0, 8], "reporting": [8]},
                  {"requested": [1, 7, 2], "reporting": [1, 2]}]}

The first line is one line. A round is a list of client numbers, where all that were
asked reported, or an object with all attempts, the last of which counted. A file of
another source may leave out the first line, if the reader knows what it would state.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.sampling import scheme

_FORMAT = 'tff_dp_aggregators schedule'
_VERSION = 1

# Clients asked in an attempt, and those of them that reported.
Asked = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Header:
  """What a file of a schedule is stated to be.

  Attributes:
    schema: What the accountant reads.
    num_clients: Clients to choose from.
    clients_per_round: The mean's denominator.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range.
  """

  schema: scheme.Schema
  num_clients: int
  clients_per_round: float

  def __post_init__(self) -> None:
    scheme.of(self.schema)
    num_clients = checks.check_positive_int('num_clients', self.num_clients)
    object.__setattr__(self, 'num_clients', num_clients)
    checks.check_number('clients_per_round', self.clients_per_round)
    # Of secret draws it is a public number, which must not tell how many there are.
    most = math.inf if scheme.is_sampled(self.schema) else num_clients
    if not (0 < self.clients_per_round <= most and self.clients_per_round < math.inf):
      at_most = '' if most == math.inf else f' and at most num_clients={num_clients}'
      raise ValueError(
        f'clients_per_round must be positive{at_most}; got {self.clients_per_round}.'
      )
    object.__setattr__(self, 'clients_per_round', float(self.clients_per_round))

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values that `from_json` reads back."""
    return {
      'schema': scheme.to_json(self.schema),
      'num_clients': self.num_clients,
      'clients_per_round': self.clients_per_round,
    }

  @classmethod
  def from_json(cls, data: dict[str, Any]) -> 'Header':
    """Reads what `to_json` wrote."""
    values = dict(data)
    if 'schema' in values:
      values['schema'] = scheme.from_json(values['schema'])
    return cls(**values)


def to_text(header: Header, rounds: Iterable[Sequence[Asked]]) -> str:
  """The content of a file."""
  first = {'format': _FORMAT, 'version': _VERSION, **header.to_json()}
  lines = [json.dumps(first)]
  for attempts in rounds:
    requested, reporting = attempts[-1]
    if len(attempts) == 1 and len(requested) == len(reporting):
      lines.append(json.dumps(requested.tolist()))
      continue
    written = [
      {'requested': each.tolist(), 'reporting': those.tolist()}
      for each, those in attempts
    ]
    lines.append(json.dumps({'attempts': written}))
  return '\n'.join([*lines, ''])


def from_text(text: str, path: str) -> tuple[Optional[Header], list[list[Asked]]]:
  """What `to_text` made a text of."""
  lines = text.splitlines()
  header: Optional[Header] = None
  if lines and lines[0].startswith('{"format"'):
    header = _read_header(lines[0], path)
  rounds = []
  for number, line in enumerate(lines[header is not None :], 1 + (header is not None)):
    try:
      rounds.append(list(_read_round(strict_json.loads(line))))
    except (TypeError, ValueError, OverflowError) as e:
      raise ValueError(
        f'line {number} of {path} is not the cohort of a round, a list of client '
        f'numbers: {e}'
      ) from e
  if not rounds:
    raise ValueError(f'{path} has no rounds.')
  return header, rounds


def _read_header(line: str, path: str) -> Header:
  try:
    data = strict_json.loads(line)
    stated = {name: data.pop(name, None) for name in ('format', 'version')}
    if stated != {'format': _FORMAT, 'version': _VERSION}:
      raise ValueError(f'it is of format {stated}, which is not known here.')
    return Header.from_json(data)
  except (TypeError, ValueError) as e:
    raise ValueError(f'line 1 of {path} does not state a schedule: {e}') from e


def _read_round(data: Any) -> Iterator[Asked]:
  if isinstance(data, list):
    clients = _numbers(data)
    yield clients, clients
    return
  if not isinstance(data, dict) or list(data) != ['attempts'] or not data['attempts']:
    raise ValueError('it is neither a list nor an object of attempts.')
  for attempt in data['attempts']:
    if set(attempt) != {'requested', 'reporting'}:
      raise ValueError('an attempt has requested and reporting, and nothing else.')
    yield _numbers(attempt['requested']), _numbers(attempt['reporting'])


def _numbers(data: Any) -> np.ndarray:
  if not isinstance(data, list):
    raise ValueError(f'it has {data!r} where a list of numbers should be.')
  for number in data:
    if type(number) is not int:
      raise ValueError(f'{number!r} is no client number.')
  return np.array(data, np.int64)
