"""The statement of an NbAFL plan: what its formulas claim, and what holds.

The guarantee of the whole is that of one client towards who sees the models: it rests
on no assumption about single examples.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, Optional

from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting.reports import model

# What the mechanism of such a statement is called.
NAME: Final = 'nbafl'
# Noise multipliers of one plan, found on two machines.
_ALIKE = 1e-9


def is_one(statement: dict[str, Any]) -> bool:
  """Whether a statement is of an NbAFL plan."""
  mechanism = statement['mechanism']
  return mechanism is not None and mechanism['name'] == NAME


def of(
  plan: nbafl.Nbafl, software: model.Software, command: Optional[str] = None
) -> model.Nbafl:
  """What a statement says of a plan."""
  said = of_run(plan)
  # That of a client towards who sees the models: zeroed out if all clients take part in
  # every round, and else replaced.
  central = next(
    row for row in said.guarantees if (row.seen, row.unit) == ('downlink', 'client')
  )
  is_private = central.epsilon is not None and math.isfinite(central.epsilon)
  return model.Nbafl(
    mechanism=said.plan,
    guarantee=model.GuaranteeOfPlan.of(central, is_private=is_private),
    guarantees=said.guarantees,
    software=software,
    verification=model.VerificationOfPlan(
      command=command, inputs=model.PlanInputs(plan=model.NbaflInputs.of(plan))
    ),
  )


def of_run(plan: nbafl.Nbafl) -> model.NbaflOfRun:
  """What the statement of a run says of the plan that its noise is from."""
  return model.NbaflOfRun(
    plan=model.NbaflPlan.of(plan, name=NAME),
    guarantees=[model.NbaflGuarantee.of(each) for each in plan.guarantees()],
  )


def check(
  plan: nbafl.Nbafl,
  mechanism: joint_mechanism.AnyMechanism,
  *,
  delta: float,
  clip_norm: Optional[float],
) -> None:
  """Refuses a mechanism that is not the one of a plan."""
  if mechanism.parts:
    raise ValueError('NbAFL plans noise for all weights, and this mechanism has parts.')
  own = mechanism_lib.Mechanism(**plan.mechanism_arguments())
  clip_norm = plan.clip_norm if clip_norm is None else clip_norm
  found = {**mechanism.to_json(), 'delta': delta, 'clip_norm': clip_norm}
  planned = {**own.to_json(), 'delta': plan.delta, 'clip_norm': plan.clip_norm}
  for name, value in planned.items():
    # The least noise is searched for, and its last digits depend on the machine.
    is_alike = name.endswith('noise_multiplier') and math.isclose(
      found[name] or 0.0, value or 0.0, rel_tol=_ALIKE
    )
    if found[name] != value and not is_alike:
      raise ValueError(
        f'the run is not the one that NbAFL plans: {name} is {found[name]}, and the '
        f'plan has {value}. accounting.Mechanism(**plan.mechanism_arguments()) is its '
        'mechanism.'
      )


def check_cohorts(plan: nbafl.Nbafl, schedule: Mapping[str, Any]) -> None:
  """Refuses cohorts that are not those of a plan."""
  planned = {
    'schedule': 'random_eligible',
    'num_clients': plan.num_clients,
    'clients_per_round': plan.cohort,
    'dropouts': None,
    'reporting_goal': None,
  }
  for name, value in planned.items():
    if schedule.get(name) != value:
      raise ValueError(
        f'the schedule has {name}={schedule.get(name)}, and NbAFL is planned with '
        f'{value}, and counts the noise of all {plan.cohort} clients of a round, drawn '
        'at random anew.'
      )
