"""The curves of a report: points of its plots, as data."""

import math
from typing import Any, Optional, cast

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import gaussian

_POINTS = 200  # Of a curve over rounds.
_SAMPLED_POINTS = 20  # Of one that takes a composition each.
_DELTAS = 33  # Of the curve over delta.
_DRAWN_DELTAS = 7  # The same, where outcomes are drawn for each.
_LAGS = 64  # Of the noise's correlation, and for how many rounds it may be dense.
_MAX_DENSE = 2048


def of_mechanism(
  mechanism: joint_mechanism.AnyMechanism,
  event: dp_accounting.DpEvent,
  delta: float,
  accountant: Optional[str],
  run: Optional[dict[str, Any]],
) -> dict[str, Any]:
  """Points of a report's plots; infinite epsilons are left out.

  Args:
    mechanism: Which one.
    event: What is accounted for.
    delta: At which epsilon after each round is told.
    accountant: Whose epsilon counts over delta; `None` for the tightest.
    run: What is said of the run; `None` if all rounds are planned.
  """
  num_rounds = mechanism.participation.num_rounds
  rounds = np.unique(np.linspace(0, num_rounds - 1, _POINTS).astype(int))
  completed = num_rounds if run is None else run['rounds_completed']
  spent: list[list[float]] = []
  spends_otherwise = mechanism.site.is_of_client and bool(
    run is not None and run['aborted_attempts']['count']
  )
  if not mechanism.is_private or spends_otherwise:
    pass  # Without privacy, or if rounds alone do not say it.
  elif not mechanism.is_one_gaussian:
    spent = _composed_by_round(mechanism, delta, completed)
  else:
    spent = _by_round(mechanism, delta, rounds[rounds < completed])
  return {
    'epsilon_by_delta': by_delta(event, delta, mechanism.relation, accountant),
    'epsilon_by_round': [point for point in spent if math.isfinite(point[1])],
    'epsilon_by_round_accountant': (
      accountants.EXACT if mechanism.is_one_gaussian else _composed_by(mechanism)
    ),
    **_of_noise(mechanism, rounds),
  }


def _of_noise(
  mechanism: joint_mechanism.AnyMechanism, rounds: np.ndarray
) -> dict[str, Any]:
  """Error and correlation of the noise; nothing of parts that each have their own."""
  if mechanism.parts:
    return {'error_by_round': [], 'noise_correlation': []}
  alone = cast(mechanism_lib.Mechanism, mechanism)
  error = error_multiplier(alone) * np.sqrt(alone.strategy.per_query_error())
  return {
    'error_by_round': [[int(each) + 1, float(error[each])] for each in rounds],
    'noise_correlation': _noise_correlation(alone.strategy),
  }


def error_of(mechanism: mechanism_lib.Mechanism) -> str:
  """Of whose noise the error is: 'sum', or 'client' of one client's alone."""
  is_known = noises.MIN_CLIENTS in dict(mechanism.options)
  return 'sum' if is_known or not mechanism.site.is_of_client else 'client'


def error_multiplier(mechanism: mechanism_lib.Mechanism) -> float:
  """Standard deviation of the noise in a round's sum, in clip norms.

  Where each client makes noise of its own that is of the fewest clients, or of one if
  it is not known how many there are (`error_of`).

  Args:
    mechanism: Which one.
  """
  fewest = dict(mechanism.options).get(noises.MIN_CLIENTS, 1)
  return mechanism.sum_noise_multiplier(fewest)


def _by_round(
  mechanism: joint_mechanism.AnyMechanism, delta: float, rounds: np.ndarray
) -> list[list[float]]:
  """Exact epsilon after some rounds, from 0."""
  so_far = mechanism.noise_multipliers_so_far
  return [
    [int(each) + 1, gaussian.epsilon_of(1 / float(so_far[each]), delta)]
    for each in rounds
  ]


def _composed_by(mechanism: joint_mechanism.AnyMechanism) -> str:
  """Who composes rounds for a curve: the quick bound, if it can."""
  event, relation = mechanism.event, mechanism.relation
  return accountants.quick_bound(event, relation) or accountants.tightest(
    event, relation
  )


def _composed_by_round(
  mechanism: joint_mechanism.AnyMechanism, delta: float, completed: int
) -> list[list[float]]:
  """Epsilon by the quick bound when the first group had its turns."""
  limits = mechanism.limits
  most = min(-(-completed // limits.min_separation), limits.possible_participations)
  points = []
  by = _composed_by(mechanism)
  for turns in np.unique(np.linspace(1, most, _SAMPLED_POINTS).astype(int)):
    so_far = mechanism.event_of_turns(int(turns))
    spent = accountants.epsilon(so_far, delta, by, mechanism.relation)
    points.append([(int(turns) - 1) * mechanism.limits.min_separation + 1, spent])
  return points


def by_delta(
  event: dp_accounting.DpEvent,
  delta: float,
  relation: Relation,
  accountant: Optional[str],
) -> list[list[float]]:
  """Epsilon over delta, around the one that is told.

  Args:
    event: What is accounted for.
    delta: The one that is told.
    relation: Which data sets are neighbours.
    accountant: Whose epsilon counts; `None` for the tightest.
  """
  name = accountant or accountants.tightest(event, relation)
  if accountants.ACCOUNTANTS[name].is_drawn:
    powers = np.linspace(math.log10(delta) - 1, -2, _DRAWN_DELTAS)
  else:
    powers = np.linspace(math.log10(min(1e-12, delta)), -2, _DELTAS)
  deltas = sorted({delta, *(float(10.0**power) for power in powers)}, reverse=True)
  composed = accountants.composed(event, name, relation)
  points = [[each, float(composed.get_epsilon(each))] for each in deltas]
  return [point for point in points if math.isfinite(point[1])]


def _noise_correlation(strategy: strategies.Strategy) -> list[list[float]]:
  """Correlation of the noise of the last round with that of earlier ones, by lag."""
  if strategy.num_rounds > _MAX_DENSE and not strategy.needs_no_matrix:
    return []
  correlation = strategy.noise_correlation(_LAGS)
  return [[lag, float(value)] for lag, value in enumerate(correlation)]
