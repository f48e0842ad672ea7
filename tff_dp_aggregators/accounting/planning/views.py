"""A comparison of mechanisms (`planning`) for people: a table, advice and a plot."""

import io
import textwrap
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tff_dp_aggregators import sampling as sampling_lib
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.planning import comparison as planning
from tff_dp_aggregators.accounting.planning import offers
from tff_dp_aggregators.accounting.reports import schemes
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.strategies import registry

# File formats of the picture.
PLOTS = ('pdf', 'png', 'svg')
_WIDTH = 79  # Of a terminal that nobody made wider.
# Of what the advised mechanism keeps and errs, for another one to be worth a word.
_MUCH_LESS, _LITTLE_MORE = 0.1, 1.5
_MANY_LEAPS = 3  # How often a curve goes through the range of its values.


def to_text(comparison: planning.Comparison) -> str:
  """The comparison as a table with notes and advice, for 100 columns."""
  lines = [
    *map(_wrap, _heading(comparison)),
    '',
    *_table(comparison, _columns(comparison), _assumption),
    '',
    *map(_wrap, _notes(comparison)),
    '',
    *map(_wrap, _noise_heading(comparison.task)),
    '',
    *_table(comparison, _noise_columns(comparison), _drawn),
    '',
    _wrap(f'Advice: {advice(comparison)}'),
  ]
  return '\n'.join(lines) + '\n'


def to_json(comparison: planning.Comparison) -> dict[str, Any]:
  """JSON-ready values: `Comparison.to_json` and the advice."""
  return {**comparison.to_json(), 'advice': advice(comparison)}


def advice(comparison: planning.Comparison) -> str:
  """Which mechanism to take and why, in one line."""
  chosen = comparison.advised
  others = [
    row
    for row in comparison.rows
    if row is not chosen and comparison.may_be_advised(row)
  ]
  text = f'{_title(chosen)}, which keeps {_kept(chosen)}.'
  if not others:
    return text
  best = min(others, key=lambda row: row.equal_rmse)
  if best.equal_rmse < chosen.equal_rmse:
    text += (
      f' Its RMSE is {chosen.equal_rmse / best.equal_rmse:.2f} times the least, that '
      f'of {_title(best)}, which keeps {_kept(best)}.'
    )
  else:
    text += f' It has the least RMSE; the next is {_alternative(best, chosen)}.'
  lighter = [
    row
    for row in others
    if row.cost.num_bytes <= _MUCH_LESS * chosen.cost.num_bytes
    and row.equal_rmse <= _LITTLE_MORE * chosen.equal_rmse
  ]
  if lighter:
    light = min(lighter, key=lambda row: row.equal_rmse)
    if light is not best:
      text += f' To keep less: {_alternative(light, chosen)}.'
  return text


def draw(comparison: planning.Comparison, file_format: str) -> bytes:
  """A plot of error against rounds for each mechanism, at equal epsilon.

  Args:
    comparison: Any.
    file_format: One of `PLOTS`.
  """
  # Of matplotlib only what draws into memory: no window, and no state of its own.
  from matplotlib import figure

  task = comparison.task
  made = figure.Figure(figsize=(10, 5.5), layout='constrained')
  axes = made.subplots()
  rounds = range(1, task.limits.num_rounds + 1)
  for row in comparison.rows:
    scale = row.equal_noise_multiplier / row.mechanism.noise_multiplier
    axes.plot(
      rounds,
      scale * row.error_by_round,
      color=_color(row),
      linestyle=offers.offers()[row.sampling].line,
      linewidth=2.2 if row is comparison.advised else 1.2,
      # It would hide what is below it.
      alpha=0.5 if _leaps(row) else 1.0,
      zorder=2.0 if _leaps(row) else 3.0,
      label=_title(row) + (' (advised)' if row is comparison.advised else ''),
    )
  axes.set_yscale('log')
  axes.yaxis.set_major_formatter('{x:g}')
  axes.yaxis.set_minor_formatter(_minor_label)
  axes.set_xlim(1, max(2, task.limits.num_rounds))
  axes.set_xlabel('rounds in the sum')
  axes.set_ylabel('standard deviation of the noise in a prefix sum, in clip norms')
  axes.set_title(
    f'With noise for epsilon = {rounding.up(comparison.equal_epsilon)} at delta = '
    f'{task.target_delta:g}\n{_rounds(task)}',
    fontsize='medium',
  )
  axes.grid(which='major', alpha=0.4)
  axes.grid(which='minor', alpha=0.15)
  made.legend(loc='outside right upper', fontsize='small', frameon=False)
  buffer = io.BytesIO()
  made.savefig(buffer, format=file_format, dpi=150)
  return buffer.getvalue()


def _minor_label(value: float, position: Optional[int]) -> str:
  """2 and 5 of each decade, as there may be only one."""
  return f'{value:g}' if f'{value:e}'[0] in '25' else ''


def _color(row: planning.Row) -> tuple[float, ...]:
  """The same for a mechanism in all plots, sampled or not; variants have their own.

  The ten strong colors of the palette first, and then the ten light ones.
  """
  from matplotlib import colormaps

  names = list(registry.KINDS)
  number = names.index(row.mechanism.name) + row.variant * len(names)
  palette: Sequence[tuple[float, ...]] = colormaps['tab20'].colors
  return palette[(2 * number + number // 10) % len(palette)]


def _leaps(row: planning.Row) -> bool:
  """Whether errors go up and down from round to round, as those of trees do."""
  errors = row.error_by_round
  ups_and_downs = np.abs(np.diff(errors)).sum()
  return bool(ups_and_downs > _MANY_LEAPS * (errors.max() - errors.min()))


class _Column(NamedTuple):
  """A column of the table.

  Attributes:
    title: Two lines.
    cell: What a row has there.
  """

  title: tuple[str, str]
  cell: Callable[[planning.Row], str]


def _table(
  comparison: planning.Comparison,
  columns: list[_Column],
  heading: Callable[[planning.Row], str],
) -> list[str]:
  table = [[column.cell(row) for column in columns] for row in comparison.rows]
  titles = [list(line) for line in zip(*(column.title for column in columns))]
  widths = [max(map(len, cells)) for cells in zip(*titles, *table)]
  lines = [_line(cells, widths) for cells in titles]
  assumed = None
  for row, cells in zip(comparison.rows, table):
    if row.sampling != assumed:
      lines.append(_wrap(heading(row)))
      assumed = row.sampling
    lines.append(_line(cells, widths))
  return lines


def _columns(comparison: planning.Comparison) -> list[_Column]:
  def relative(what: str) -> Callable[[planning.Row], str]:
    return lambda row: f'{comparison.relative(row, what):.3f}'

  columns = [
    _Column(('', 'mechanism'), lambda row: f'  {row.name}'),
    _Column(('', 'RMSE'), relative('rmse')),
    _Column(('max', 'error'), relative('max_error')),
    _Column(('keeps', 'and where'), _kept),
    _Column(('time', 'a round'), lambda row: _seconds(row.cost.seconds)),
  ]
  # What is the same for all rows is said above the table.
  if comparison.task.noise_multiplier is None:
    title = ('noise', 'mult.')
    columns.insert(
      1, _Column(title, lambda row: f'{row.mechanism.noise_multiplier:.5g}')
    )
  else:
    columns.insert(1, _Column(('', 'epsilon'), lambda row: rounding.up(row.epsilon)))
    columns.insert(3, _Column(('at equal', 'epsilon'), relative('equal_rmse')))
  return columns


def _noise_heading(task: planning.Task) -> list[str]:
  """What the table of a round's noise is about."""
  of = (
    'sum of updates'
    if task.clients_per_round is None
    else f'mean of {task.clients_per_round:,} updates'
  )
  heading = (
    f'Noise that a round adds to the {of}, in clip norms: in one parameter, in the '
    f'worst round; in the model, all {task.model_size:,} as the length of a vector, in '
    'the first, worst and last round; and in the sum of all rounds, divided by their '
    'number.'
  )
  if task.clients_per_round is None:
    return [
      f'{heading} That of the model is also how many clients a round takes for the sum '
      'of their updates to be as long as the noise, at most; --num_clients and '
      '--clients_per_round '
      'give the ratio.'
    ]
  return [
    f'{heading} As the mean itself is at most 1 long, that of the model is the ratio '
    'of noise to signal. Above 1 a single round teaches little, and learning rests on '
    'many that agree.'
  ]


def _noise_columns(comparison: planning.Comparison) -> list[_Column]:
  cohort = comparison.task.clients_per_round or 1

  def of_model(field: str) -> Callable[[planning.Row], str]:
    return lambda row: _short(getattr(comparison.noise_norm(row), field) / cohort)

  def of_parameter(row: planning.Row) -> str:
    return _short(row.noise_per_coordinate.worst_round / cohort)

  return [
    _Column(('', 'mechanism'), lambda row: f'  {row.name}'),
    _Column(('parameter,', 'worst'), of_parameter),
    _Column(('model,', 'first'), of_model('first_round')),
    _Column(('model,', 'worst'), of_model('worst_round')),
    _Column(('model,', 'last'), of_model('last_round')),
    _Column(('model,', 'all'), of_model('all_rounds')),
  ]


def _short(value: float) -> str:
  """Three digits, or the whole number if it has more."""
  return f'{value:,.0f}' if value >= 1000 else f'{value:.3g}'


def _line(cells: list[str], widths: list[int]) -> str:
  first = cells[0].ljust(widths[0])
  rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:])]
  return '  '.join([first, *rest]).rstrip()


def _heading(comparison: planning.Comparison) -> list[str]:
  task = comparison.task
  if task.target_epsilon is not None:
    noise = f'the least noise for epsilon = {task.target_epsilon:g}'
  else:
    noise = f'noise multiplier {task.noise_multiplier:g}; epsilon is'
  lines = [
    f'{_rounds(task)}. A model of {task.model_size:,} parameters, '
    f'{_size(task.num_bytes)}. All have {noise} at delta = {task.target_delta:g}.'
  ]
  limits = task.limits
  if task.separation_is_derived:
    lines.append(
      f'min_separation={limits.min_separation} is the most that {task.num_clients:,} '
      f'clients in cohorts of {task.clients_per_round:,} allow; the server must keep '
      'to it.'
    )
  elif (
    limits.min_separation == 1
    and limits.num_rounds <= 2 * limits.possible_participations > 2
  ):
    lines.append(
      'With min_separation=1 correlated noise has little to gain; state what the '
      'server keeps to.'
    )
  return lines


def _rounds(task: planning.Task) -> str:
  limits = task.limits
  rounds = f'{limits.num_rounds:,} rounds'
  times = limits.possible_participations
  if times == 1:
    return f'{rounds}, a client in at most one'
  if limits.min_separation == 1:
    return f'{rounds}, a client in at most {times:,}'
  apart = 'a multiple of' if limits.fixed_epoch else 'at least'
  return (
    f'{rounds}, a client in at most {times:,}, which are {apart} '
    f'{limits.min_separation:,} apart'
  )


def _assumption(row: planning.Row) -> str:
  """What a row's epsilon is for, and what it rests on."""
  schema = row.mechanism.participation
  return schemes.heading(schema)


def _drawn(row: planning.Row) -> str:
  """How clients are drawn, in short."""
  title = offers.offers()[row.sampling].title
  return f'With {title}:' if title else 'Without sampling:'


def _notes(comparison: planning.Comparison) -> list[str]:
  unsampled = comparison.unsampled
  notes = [
    'Errors are of the noise in prefix sums, relative to the least without sampling: '
    f'RMSE {min(row.rmse for row in unsampled):.4g}, max error '
    f'{min(row.max_error for row in unsampled):.4g} clip norms.'
  ]
  if any(not comparison.may_be_advised(row) for row in comparison.rows):
    notes.append(
      'Rows with sampling hold only if the server really samples so, every round and '
      'unobserved; --sampling says that it does.'
    )
  quick = dict.fromkeys(
    offers.offers()[row.sampling].title
    for row in comparison.rows
    if row.accountant == accountants.QUICK_BOUND and not comparison.may_be_advised(row)
  )
  if comparison.task.accountant is None and quick:
    notes.append(
      f'With {", ".join(quick)}, noise and epsilon are upper bounds by '
      f'{terms.of_accountant(accountants.QUICK_BOUND).title}; --sampling gives the '
      'tightest, in up to a minute each.'
    )
  notes.extend(_other_cohorts(comparison))
  for label in dict.fromkeys(
    terms.label(row.accountant, row.instead) for row in comparison.rows if row.instead
  ):
    notes.append(f'Some noise and epsilon are by {label}.')
  for row in comparison.unsampled:
    redrawn = row.costs.get('redraw')
    if (
      redrawn is not None
      and 0 < row.cost.num_bytes
      and (redrawn.seconds <= 5 * row.cost.seconds)
    ):
      notes.append(
        f"{row.name}: with storage='redraw' nothing is kept, and a round takes "
        f'{_seconds(redrawn.seconds)}.'
      )
  for each in comparison.left_out:
    sampled = '' if each.sampling == 'none' else f' ({each.sampling})'
    notes.append(f'Left out: {each.mechanism}{sampled}: {each.reason}')
  return notes


def _other_cohorts(comparison: planning.Comparison) -> list[str]:
  """Where a sampling cannot have the cohort that was asked for, and what it has."""
  population, cohort = comparison.task.num_clients, comparison.task.clients_per_round
  if population is None or cohort is None:
    return []
  drawn = {row.sampling: row.mechanism.participation for row in comparison.rows}
  notes = []
  for sampling, schema in drawn.items():
    has = sampling_lib.of(schema).other_cohort(population, cohort)
    if has is not None:
      notes.append(
        f'With {offers.offers()[sampling].title}, clients have whole numbers of '
        f'rounds: noise and epsilon are for rounds of {has:.4g} clients in the mean, '
        f'not {cohort:,}.'
      )
  return notes


def _title(row: planning.Row) -> str:
  """Name and sampling of a row."""
  title = offers.offers()[row.sampling].title
  return f'{row.name}, {title}' if title else row.name


def _alternative(row: planning.Row, chosen: planning.Row) -> str:
  factor = row.equal_rmse / chosen.equal_rmse
  return f'{_title(row)}, with {factor:.2f} times its RMSE and {_kept(row)} kept'


def _kept(row: planning.Row) -> str:
  if not row.cost.num_bytes:
    return 'nothing'
  return f'{_size(row.cost.num_bytes)} in {row.storage}'


def _size(num_bytes: int) -> str:
  for unit, factor in (('TB', 1e12), ('GB', 1e9), ('MB', 1e6), ('kB', 1e3)):
    if num_bytes >= factor:
      return f'{num_bytes / factor:.3g} {unit}'
  return f'{num_bytes} B'


def _seconds(seconds: float) -> str:
  if seconds < 1e-3:
    return '<1 ms'
  return f'{seconds:.0f} s' if seconds >= 10 else f'{seconds:.2g} s'


def _wrap(text: str) -> str:
  return textwrap.fill(text, _WIDTH, subsequent_indent='  ')
