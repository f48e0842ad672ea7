"""Choosing settings on runs of their own, and what that costs in privacy.

Runs that are only looked at to choose have seeds of their own, none of which is
reported. They are on the same clients, though, and whoever sees what was chosen sees
something of all of them. So the privacy of publishing a tuned run together with the
choice is that of all runs composed, each of which has noise of its own. That holds for
whatever is made of them and of other people's data. What is held out for testing is the
same in all runs (`--split_seed`), so that no client trains in one and is tested on in
another. Where examples of the clients themselves are held out it does not hold, and
sentences say so.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Optional

import dp_accounting

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.base import rounding

from . import cells as cells_lib
from . import grid

_FIRST_SEED = 1_000_001  # Larger than those that are reported.
TIGHTER = (
  'Choosing the best of a random number of runs can be accounted for more tightly '
  '(Papernot and Steinke, arXiv:2110.03620).'
)


@dataclasses.dataclass(frozen=True)
class Selected:
  """What was chosen for a point of the grid."""

  settings: tuple[grid.Setting, ...]  # The flags that were tuned, with the best values.
  num_runs: int  # Among how many runs.
  # Flags whose best value is the smallest or largest that was tried.
  at_edge: tuple[str, ...]
  # All these runs and the one that is reported, composed; `None` without privacy, or
  # with the noise of a larger cohort.
  epsilon: Optional[float]
  num_composed: int  # How many runs that is of.
  delta: float  # At which epsilon was read.

  @property
  def sentence(self) -> Optional[str]:
    """For the report of a run with these settings; `None` without privacy."""
    if self.epsilon is None:
      return None
    if math.isinf(self.epsilon):
      return f'{self._chosen}, which together have no guarantee that is known.'
    return (
      f'{self._chosen}; publishing the choice as well spends at most epsilon = '
      f'{rounding.up(self.epsilon)} at delta = {self.delta:g} (composition of all '
      f'{self.num_composed}), if the test data that it was chosen by are of none of '
      f'these clients. {TIGHTER}'
    )

  @property
  def _chosen(self) -> str:
    chosen = ', '.join(f'{name}={value}' for name, value in self.settings)
    return (
      f'{chosen}: chosen as the best of {self.num_runs} '
      f'run{"s" if self.num_runs > 1 else ""} on the same clients'
    )


def seeds(number: int) -> list[int]:
  """Seeds of runs that are only chosen among."""
  return [_FIRST_SEED + each for each in range(number)]


def combinations(axes: Sequence[grid.Axis]) -> list[tuple[grid.Setting, ...]]:
  """All settings that are tried; one without any if nothing is tuned."""
  return [
    tuple(setting for value in each for setting in value)
    for each in itertools.product(*(axis.values for axis in axes))
  ]


def choose(
  results: Sequence[cells_lib.Result],
  axes: Sequence[grid.Axis],
  make: 'cells_lib.Maker',
) -> Optional[Selected]:
  """The best settings of a point; `None` unless all runs are finished."""
  if not results or not all(each.is_finished for each in results):
    return None
  by_settings: dict[tuple[grid.Setting, ...], list[float]] = {}
  for each in results:
    by_settings.setdefault(each.cell.tuned, []).append(each.metric)
  metric = results[0].cell.settings.model.metric
  sign = 1.0 if metric.higher_is_better else -1.0

  def score(settings: tuple[grid.Setting, ...]) -> float:
    values = by_settings[settings]
    mean = sign * sum(values) / len(values)
    return -math.inf if math.isnan(mean) else mean

  best = max(by_settings, key=score)
  reported = make.cell(results[0].cell.point, 1, tuned=best, chosen=True)
  delta = reported.settings.privacy.delta
  # With the noise of a larger cohort there is no guarantee, whatever that would have.
  privacies = [each.cell.settings.privacy for each in results]
  mechanisms = [
    each.mechanism if each.simulated_cohort_scale == 1 else None for each in privacies
  ]
  epsilon, num_composed = _composed(mechanisms, delta)
  return Selected(
    settings=best,
    num_runs=len(results),
    at_edge=_at_edge(best, axes),
    epsilon=epsilon,
    num_composed=num_composed,
    delta=delta,
  )


def _at_edge(
  best: tuple[grid.Setting, ...], axes: Sequence[grid.Axis]
) -> tuple[str, ...]:
  """Flags of numbers beyond whose best value none was tried."""
  found, chosen = [], dict(best)
  for axis in axes:
    try:
      numbers = [float(value[0][1]) for value in axis.values]
      value = float(chosen[axis.flag])
    except ValueError:
      continue
    if len(numbers) > 1 and value in (min(numbers), max(numbers)):
      found.append(axis.flag)
  return tuple(found)


def _composed(
  mechanisms: Sequence[Optional[joint_mechanism.AnyMechanism]], delta: float
) -> tuple[Optional[float], int]:
  """Epsilon of all runs that were tried and of the one that is reported, composed.

  Where what is tuned changes the mechanism, the choice decides which one is run again.
  Counted is one more run of each, of which all but one need not be looked at.

  Returns epsilon, `None` without privacy and infinite if nothing is known of all
  together, and how many runs it is of.
  """
  with_noise = [each for each in mechanisms if each is not None]
  if not with_noise:
    return None, 0
  # Epsilons for other neighbours (one who is replaced, or removed) do not compose.
  relations = {each.relation for each in with_noise}
  if len(with_noise) < len(mechanisms) or len(relations) > 1:
    return math.inf, 0
  # Equal events are composed as one that is repeated, which accountants do at once.
  counts: list[tuple[dp_accounting.DpEvent, int]] = []
  for event in (each.event for each in with_noise):
    known = [each for each, _ in counts]
    if event in known:
      place = known.index(event)
      counts[place] = event, counts[place][1] + 1
    else:
      counts.append((event, 1))
  parts = [dp_accounting.SelfComposedDpEvent(event, n + 1) for event, n in counts]
  total = parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)
  epsilon = accountants.epsilon(total, delta, None, with_noise[0].relation)
  return epsilon, len(with_noise) + len(counts)
