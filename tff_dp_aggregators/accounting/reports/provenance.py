"""From where a statement knows what its numbers do not show.

What enforces the limits, where the noise comes from, the clip norm and the version of
the code that trained are facts that computing a report again cannot confirm. Each is
recorded in a file of the run that the report rests on, or stated by who made the report
and verified by nobody, or not stated at all. Which, follows from the inputs alone.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Optional

from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.base import rounding

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
  'cap_enforced_by': ('config',),
  'noise_source': ('config',),
  'clip_norm': ('config', 'ledger'),
  'code_version': ('config',),
}
_SEEDED_NOISE = (
  'Noise from a known seed: no guarantee against who knows it. What follows is what a '
  'run with secret noise would have.'
)
_SEEDED_DRAWS = (
  'Clients drawn from a seed of 64 bits or less: whoever guesses it knows who was '
  'drawn, and towards them sampling saves nothing{}. What follows is what a secret '
  'seed would have.'
)
_SIZES = (
  'The ledger tells how many clients were drawn in each round, which follows from who '
  'was drawn: what follows holds towards those who do not see these numbers.'
)
_DEFAULTS = {
  field.name: field.default for field in dataclasses.fields(inputs_lib.Inputs)
}
_NOTHING_STATED = (None, inputs_lib.NOT_STATED)
# Limits of a report with a log: those that it shows; those of a plan, or a ledger, that
# it shows were kept; or those of a plan, widened by what it shows.
SHOWN, KEPT, WIDENED = 'shown', 'kept', 'widened'
_LIMITS = {
  ('min_wait', SHOWN): 'the limits follow from it and from when rounds were complete',
  ('min_wait', KEPT): (
    'that the limits were kept follows from it and from when rounds were complete'
  ),
  ('min_wait', WIDENED): (
    'the limits are the planned ones, widened to what it and the times at which rounds '
    'were complete leave possible'
  ),
  ('client_ids', SHOWN): (
    'the limits are what the clients of this log happened to keep, and say nothing of '
    'what they might have done'
  ),
  ('client_ids', KEPT): (
    'the clients of this log happened to keep the limits, which says nothing of what '
    'they might have done'
  ),
  ('client_ids', WIDENED): (
    'the limits are the planned ones, widened to what the clients of this log did, '
    'which says nothing of what they might have done'
  ),
}


def which_limits(summary: Mapping[str, Any], has_ledger: bool) -> str:
  """Which limits a report with a log is for: `SHOWN`, `KEPT` or `WIDENED`.

  Args:
    summary: Of the log.
    has_ledger: Whether the limits are those of a ledger.
  """
  planned = summary.get('planned')
  if has_ledger:
    return KEPT
  if planned is None:
    return SHOWN
  return WIDENED if planned['broken'] else KEPT


def capped_by(summary: Mapping[str, Any]) -> str:
  """What caps participations where a log has fewer rounds than were planned.

  Args:
    summary: Of the log.
  """
  number = summary['num_rounds']
  return f'the log has {number} rounds, in which the separation leaves no more possible'


def enforced_by(basis: str, which: str, stated: Optional[str] = None) -> str:
  """What enforces limits that a round log shows.

  Args:
    basis: Of the log's summary, 'min_wait' or 'client_ids'.
    which: From `which_limits`.
    stated: What is said to enforce them, which no log can know; `None` if nothing is.

  Example:
    >>> said = enforced_by('min_wait', SHOWN, 'the app')
    >>> said.endswith('rounds were complete; what enforces the wait: the app')
    True
  """
  limits, is_stated = _LIMITS[basis, which], stated not in _NOTHING_STATED
  if basis == 'min_wait':
    by = f'the wait between two rounds of a device; {limits}'
    return f'{by}; what enforces the wait: {stated}' if is_stated else by
  if not is_stated:
    return f'nothing that is known: {limits}'
  return f'{limits}; what enforces them: {stated}'


def noise_source_of(ledger: Optional[ledger_lib.Ledger]) -> Optional[str]:
  """What a ledger says of where the noise is from; `None` if it does not say.

  Args:
    ledger: Of a run; `None` without one.
  """
  entries = () if ledger is None else ledger.entries
  if any(entry.has_seeded_noise for entry in entries):
    return inputs_lib.SEEDED_NOISE
  if any(entry.noise_source for entry in entries):
    return 'a secret key, as the ledger says'
  return None


def warnings(inputs: inputs_lib.Inputs) -> list[str]:
  """Towards whom the guarantee does not hold, for the top of a report.

  Args:
    inputs: What the report is made of.
  """
  mechanism, ledger = inputs.mechanism, inputs.ledger
  entries = () if ledger is None else ledger.entries
  found = []
  planned = (inputs.participation_source or {}).get('planned') or {}
  if planned.get('broken'):
    cap = planned['max_participations']
    found.append(
      'The planned limits on participation, rounds of a client at least '
      f'{planned["min_separation"]} apart{f" and at most {cap} of them" if cap else ""}'
      f', were not kept: {"; ".join(planned["broken"])}. What follows is of what was '
      'planned and of what the round log shows together, and costs as much or more.'
    )
  seeded = noise_source_of(ledger) == inputs_lib.SEEDED_NOISE
  if mechanism.has_noise and (seeded or inputs.noise_source == inputs_lib.SEEDED_NOISE):
    found.append(_SEEDED_NOISE)
  if mechanism.is_sampled:
    if any(entry.sampling_source == ledger_lib.SEED for entry in entries):
      found.append(_SEEDED_DRAWS.format(_without_sampling(inputs)))
    told = any(entry.cohort_requested is not None for entry in entries)
    if told and not schemas.kind_of(mechanism.participation).has_public_sizes:
      found.append(_SIZES)
  return found


def _without_sampling(inputs: inputs_lib.Inputs) -> str:
  """Epsilon of all planned rounds towards whoever knows the draws, in words."""
  mechanism = inputs.mechanism
  if not isinstance(mechanism, mechanism_lib.Mechanism):
    return ''  # Parts have events of their own.
  replaced = mechanism.relation is Relation.REPLACE_ONE
  relation = schemas.check_relation(
    mechanism.limits, Relation.REPLACE_ONE if replaced else None
  )
  event = schemas.event(
    mechanism.strategy,
    mechanism.limits,
    mechanism.noise_multiplier,
    relation,
    mechanism.noise,
  )
  epsilon = accountants.epsilon(event, inputs.delta, relation=relation)
  if math.isinf(epsilon):
    return ''
  return f': epsilon of all planned rounds is {rounding.up(epsilon)}'


def of(inputs: inputs_lib.Inputs) -> dict[str, str]:
  """`RECORDED`, `STATED` or `NOT_STATED` for each of `FACTS`."""
  roles = {file['role'] for file in inputs.files}
  if inputs.ledger is not None:
    roles.add('ledger')
  return {name: _of(name, inputs, roles) for name in FACTS}


def _of(name: str, inputs: inputs_lib.Inputs, roles: set[str]) -> str:
  value = getattr(inputs, name)
  if name == 'clip_norm' and inputs.mechanism.parts:
    value = [part.clip_norm for part in inputs.mechanism.parts]
  recording = roles & set(FACTS[name])
  if 'ledger' in recording:
    return RECORDED
  if name == 'noise_source' and value == noise_source_of(inputs.ledger):
    return RECORDED
  if value in (_DEFAULTS[name], inputs_lib.NOT_STATED):
    return NOT_STATED
  if name == 'cap_enforced_by' and inputs.mechanism.limits.assumed_at_most is None:
    return NOT_STATED  # There is no such assumption.
  if recording:
    return RECORDED
  if name in ('enforced_by', 'cap_enforced_by'):
    source = inputs.participation_source or {}
    key = source.get('basis', ''), which_limits(source, inputs.ledger is not None)
    if key in _LIMITS and value in (enforced_by(*key), capped_by(source)):
      return RECORDED
  return STATED
