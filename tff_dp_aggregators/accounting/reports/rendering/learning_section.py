"""The section of a run's page that shows what it learned beside what it spent."""

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.accounting.reports.rendering.document import Fact
from tff_dp_aggregators.base import rounding

_TITLE = 'Learning and privacy over rounds'
_INTRO = (
  'Measured on test data after each round, or some of them, as metrics.csv has it. '
  'These figures are exact, not part of the guarantee and not verified with it. If '
  'test data are those of clients, this section is for who may see these: the page in '
  'share/ is without it.'
)
_LOSS = 'loss'
_POINTS = 400  # Of a curve.


def section(
  statement: dict[str, Any], curves: learning_curves.Curves
) -> Optional[document.Section]:
  """What a run learned and spent, in pictures.

  Args:
    statement: Of the run.
    curves: Of the same run.

  Returns:
    `None` if there is nothing to show.
  """
  plots = tuple(_plots(statement, curves))
  if not plots:
    return None
  blocks = (
    document.Paragraph(_INTRO),
    document.Facts(tuple(_facts(curves))),
    document.Plots(plots),
  )
  return document.Section(_TITLE, blocks)


def _facts(curves: learning_curves.Curves) -> Iterator[Fact]:
  yield Fact('rounds shown', f'{curves.rounds}')
  for name, curve in _ordered(curves.test):
    if curve.points:
      rounds, value = curve.points[-1]
      yield Fact(f'test {_spaced(name)}', _measured(value), f'after {rounds} rounds')


def _ordered(
  test: dict[str, learning_curves.Curve],
) -> Iterator[tuple[str, learning_curves.Curve]]:
  """Measures as the file has them, the loss last."""
  yield from (item for item in test.items() if item[0] != _LOSS)
  yield from (item for item in test.items() if item[0] == _LOSS)


def _plots(
  statement: dict[str, Any], curves: learning_curves.Curves
) -> Iterator[document.Plot]:
  for name, curve in _ordered(curves.test):
    if curve.points:
      yield _over_rounds(
        curve,
        title=f'Test {_spaced(name)} against rounds',
        caption=f'The last value is that after {curve.points[-1][0]} rounds.',
        y_label=f'test {_spaced(name)}',
        mark_text=_measured(curve.points[-1][1]),
      )
  spent, label = curves.epsilon, 'epsilon'
  if statement['mechanism'] is not None:
    caption = f'What had been spent after so many rounds{_at_delta(statement)}.'
  else:
    spent, label = curves.simulated_epsilon, 'simulated epsilon'
    caption = (
      'What a run with the larger cohort would have spent. This run has no guarantee.'
    )
  if not spent.points:
    return
  yield _over_rounds(
    spent,
    title=f'{label.capitalize()} over the training',
    caption=caption,
    y_label=label,
    mark_text=rounding.up(spent.points[-1][1]),
  )
  yield from _against_epsilon(curves, spent, label)


def _at_delta(statement: dict[str, Any]) -> str:
  if statement['parts']:
    return ''
  delta = rounding.exact(statement['guarantee']['delta'])
  is_sampled = schemas.is_sampled(schemas.of_report(statement['participation']))
  parts = statement['mechanism'].get('parts', [statement['mechanism']])
  kinds = [noises.of_mechanism(part['name']) for part in parts]
  if is_sampled or not all(noise.is_gaussian for noise in kinds):
    return f', at delta = {delta}: an upper bound'
  return f', at delta = {delta}'


def _over_rounds(
  curve: learning_curves.Curve, *, caption: str, **options: Any
) -> document.Plot:
  if curve.left_out:
    caption += f' Left out are {curve.left_out} rounds in which it was not finite.'
  return document.Plot(
    caption=caption,
    x_label='rounds',
    points=_thinned(curve.points),
    mark=curve.points[-1],
    **options,
  )


def _against_epsilon(
  curves: learning_curves.Curves, spent: learning_curves.Curve, label: str
) -> Iterator[document.Plot]:
  """What is bought with epsilon, of the first measure."""
  name, curve = next(_ordered(curves.test), ('', learning_curves.Curve()))
  by_round = dict(spent.points)
  points = tuple(
    (by_round[rounds], value) for rounds, value in curve.points if rounds in by_round
  )
  if len({epsilon for epsilon, _ in points}) < 2:
    return
  yield document.Plot(
    title=f'Test {_spaced(name)} against {label}',
    caption='What the training had reached when so much was spent.',
    x_label=label,
    y_label=f'test {_spaced(name)}',
    points=_thinned(points),
    mark=points[-1],
    mark_text=_measured(points[-1][1]),
  )


def _thinned(
  points: tuple[tuple[float, float], ...],
) -> tuple[tuple[float, float], ...]:
  """So many of the points that pictures stay small, the first and the last of them."""
  chosen = np.unique(np.linspace(0, len(points) - 1, _POINTS).round().astype(int))
  return tuple(points[index] for index in chosen)


def _spaced(name: str) -> str:
  return name.replace('_', ' ')


def _measured(value: float) -> str:
  """A measure with four digits; it claims no privacy, and is rounded to the nearest."""
  return f'{value:.4f}' if 1e-3 <= abs(value) < 1e6 else f'{value:.4g}'
