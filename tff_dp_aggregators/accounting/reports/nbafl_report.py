"""The statement of an NbAFL plan: the claims of its formulas, and what holds.

The guarantee of the statement is that of one client against whoever sees the models; it
assumes nothing about single examples.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, Optional

from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting.reports import model

NAME: Final = 'nbafl'  # The name of the mechanism in such a statement.
_TOLERANCE = 1e-9  # Relative; of noise multipliers that two machines found.


def is_plan(statement: dict[str, Any]) -> bool:
  """Whether a statement is of an NbAFL plan."""
  mechanism = statement['mechanism']
  return mechanism is not None and mechanism['name'] == NAME


def of(
  plan: nbafl.Nbafl, software: model.Software, command: Optional[str] = None
) -> model.Nbafl:
  """The statement of a plan."""
  of_plan = of_run(plan)
  # The guarantee of a client against whoever sees the models. The adjacency is zero-out
  # if all clients take part in every round, and otherwise replace-one.
  central = next(
    row for row in of_plan.guarantees if (row.seen, row.unit) == ('downlink', 'client')
  )
  is_private = central.epsilon is not None and math.isfinite(central.epsilon)
  return model.Nbafl(
    mechanism=of_plan.plan,
    guarantee=model.GuaranteeOfPlan.of(central, is_private=is_private),
    guarantees=of_plan.guarantees,
    software=software,
    verification=model.VerificationOfPlan(
      command=command, inputs=model.PlanInputs(plan=model.NbaflInputs.of(plan))
    ),
  )


def of_run(plan: nbafl.Nbafl) -> model.NbaflOfRun:
  """The plan that the noise of a run is from, for the run's statement."""
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
  """Raises ValueError if a mechanism is not the one of a plan."""
  if mechanism.parts:
    raise ValueError('NbAFL plans noise for all weights, and this mechanism has parts.')
  expected = mechanism_lib.Mechanism(**plan.mechanism_arguments())
  clip_norm = plan.clip_norm if clip_norm is None else clip_norm
  actual = {**mechanism.to_json(), 'delta': delta, 'clip_norm': clip_norm}
  planned = {**expected.to_json(), 'delta': plan.delta, 'clip_norm': plan.clip_norm}
  for name, value in planned.items():
    # The least noise is found by a search, whose last digits depend on the machine.
    is_close = name.endswith('noise_multiplier') and math.isclose(
      actual[name] or 0.0, value or 0.0, rel_tol=_TOLERANCE
    )
    if actual[name] != value and not is_close:
      raise ValueError(
        f'the run is not the one that NbAFL plans: {name} is {actual[name]}, and the '
        f'plan has {value}. accounting.Mechanism(**plan.mechanism_arguments()) is its '
        'mechanism.'
      )


def check_cohorts(plan: nbafl.Nbafl, schedule: Mapping[str, Any]) -> None:
  """Raises ValueError if the cohorts of a schedule are not those of a plan."""
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
