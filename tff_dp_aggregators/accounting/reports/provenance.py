"""From where a statement knows what its numbers do not show.

What enforces the limits, where the noise comes from, the clip norm and the version of
the code that trained are facts that computing a report again cannot confirm. Each is
recorded in a file of the run that the report rests on, or stated by who made the report
and verified by nobody, or not stated at all. Which, follows from the inputs alone.
"""

import dataclasses
from typing import Optional

from tff_dp_aggregators.accounting.reports import inputs as inputs_lib

# In a file that the run left: its configuration, ledger or round log.
RECORDED = 'recorded'
# By who made the report; nothing that the report rests on shows it.
STATED = 'stated'
# Nothing is known.
NOT_STATED = 'not_stated'
# How reports mark what is stated.
MARK = 'stated, not verified'

# Fields of `Inputs` that are such facts, and files that record each.
FACTS = {
  'enforced_by': ('config',),
  'noise_source': ('config',),
  'clip_norm': ('config', 'ledger'),
  'code_version': ('config',),
}
_DEFAULTS = {
  field.name: field.default for field in dataclasses.fields(inputs_lib.Inputs)
}
_BY_LOG = {
  'min_wait': 'the wait between two rounds of a device',
  'client_ids': 'nothing that is known',
}
# What the log then says of the limits; with a ledger, they are those of its events.
_LIMITS = {
  ('min_wait', False): 'the limits follow from it and from when rounds were complete',
  ('min_wait', True): 'by it and by when rounds were complete, the limits were kept',
  ('client_ids', False): (
    'the limits are what the clients of this log happened to keep, and say nothing of '
    'what they might have done'
  ),
  ('client_ids', True): (
    'the clients of this log happened to keep the limits, which says nothing of what '
    'they might have done'
  ),
}


def enforced_by(basis: str, has_ledger: bool, stated: Optional[str] = None) -> str:
  """What enforces limits that a round log shows.

  Args:
    basis: Of the log's summary, 'min_wait' or 'client_ids'.
    has_ledger: Whether the limits are those of a ledger, which the log shows were kept.
    stated: What is said to enforce them, which no log can know; `None` if nothing is.

  Example:
    >>> enforced_by('client_ids', True, 'the scheduler')[:58]
    'the scheduler; the clients of this log happened to keep th'
  """
  by = _BY_LOG[basis]
  if stated is not None:
    waits = ', by a wait between two rounds of a device'
    by = f'{stated}{waits if basis == "min_wait" else ""}'
  separator = '; ' if basis == 'min_wait' or stated is not None else ': '
  return f'{by}{separator}{_LIMITS[basis, has_ledger]}'


def of(inputs: inputs_lib.Inputs) -> dict[str, str]:
  """`RECORDED`, `STATED` or `NOT_STATED` for each of `FACTS`."""
  roles = {file['role'] for file in inputs.files}
  if inputs.ledger is not None:
    roles.add('ledger')
  return {name: _of(name, inputs, roles) for name in FACTS}


def _of(name: str, inputs: inputs_lib.Inputs, roles: set[str]) -> str:
  value = getattr(inputs, name)
  recording = roles & set(FACTS[name])
  if 'ledger' in recording:
    return RECORDED
  if value == _DEFAULTS[name]:
    return NOT_STATED
  if recording:
    return RECORDED
  if name == 'enforced_by':
    shown = (inputs.participation_source or {}).get('basis'), inputs.ledger is not None
    if shown in _LIMITS and value == enforced_by(*shown):
      return RECORDED
  return STATED
