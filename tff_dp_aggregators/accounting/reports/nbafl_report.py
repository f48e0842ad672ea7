"""The statement of an NbAFL plan: what its formulas claim, and what holds.

`accounting.nbafl` has the formulas and the guarantees. The statement has both beside
each other, and as the guarantee of the whole that of one client towards who sees the
models: it rests on no assumption about single examples.
"""

import dataclasses
import math
from typing import Any, Optional

from tff_dp_aggregators.accounting import nbafl

# What the mechanism of such a statement is called.
NAME = 'nbafl'
_PLAN = tuple(field.name for field in dataclasses.fields(nbafl.Nbafl))
# Of a guarantee; its sentence has rounded numbers.
_ROW = tuple(name for name in nbafl.Guarantee._fields if name != 'words')
_FIGURES = (
  'cohort',
  'uplink_sensitivity',
  'downlink_sensitivity',
  'uplink_stddev',
  'downlink_stddev',
  'client_noise_multiplier',
  'server_noise_multiplier',
  'sum_noise_multiplier',
)


def is_one(statement: dict[str, Any]) -> bool:
  """Whether a statement is of an NbAFL plan.

  Args:
    statement: Of any kind.
  """
  mechanism = statement['mechanism']
  return mechanism is not None and mechanism['name'] == NAME


def of(
  plan: nbafl.Nbafl, software: dict[str, Any], command: Optional[str] = None
) -> dict[str, Any]:
  """What a statement says of a plan, but for format and version.

  Args:
    plan: With all its inputs.
    software: Which computes it.
    command: A command that prints the same numbers again.

  Returns:
    A JSON-ready dict, described by `schema.load`; infinities are `None`.
  """
  rows = plan.guarantees()
  # Zeroed out if all clients take part in every round, and else replaced.
  central = next(each for each in rows if (each.seen, each.unit) == _CENTRAL)
  numbers = {name: getattr(plan, name) for name in _PLAN}
  return {
    'mechanism': {
      'name': NAME,
      **numbers,
      **{name: getattr(plan, name) for name in _FIGURES},
    },
    'guarantee': {
      'epsilon': _finite(central.epsilon),
      'delta': plan.delta,
      'is_private': math.isfinite(central.epsilon),
      'adjacency': central.adjacency,
    },
    'guarantees': [
      {
        **{name: getattr(each, name) for name in _ROW},
        'epsilon': _finite(each.epsilon),
      }
      for each in rows
    ],
    'parts': [],
    'software': software,
    'verification': {'command': command, 'files': [], 'inputs': {'plan': numbers}},
  }


def plan_of(statement: dict[str, Any]) -> nbafl.Nbafl:
  """The plan that a statement is of.

  Args:
    statement: As `of` returned it, or as read from a JSON report.

  Raises:
    TypeError: If an input is missing or not of its type.
    ValueError: If a number is out of range.
  """
  return nbafl.Nbafl(**statement['verification']['inputs']['plan'])


# Of one client, towards who sees the means of all rounds.
_CENTRAL = ('downlink', 'client')


def _finite(value: float) -> Optional[float]:
  return float(value) if math.isfinite(value) else None
