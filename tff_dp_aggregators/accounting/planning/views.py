"""Presents a comparison of mechanisms as tables, advice, JSON and a plot.

The sentences are in `templates/`.
"""

import dataclasses
import functools
import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import jinja2

from tff_dp_aggregators import sampling as sampling_lib
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.planning import comparison as planning
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.strategies import registry

PLOTS = ('pdf', 'png', 'svg')
_WIDTH = 79  # Width of text, for a terminal of default size.
# Matplotlib's styles for the assumptions about sampling, in their order.
_LINES = ('-', ':', '--', '-.', (0, (3, 1, 1, 1)), (0, (5, 1)))


def to_text(comparison: planning.Comparison) -> str:
  """Formats the comparison as tables with notes and advice, for 100 columns."""
  rendered = _environment().get_template('plan.txt.j2')
  task = comparison.task
  other_cohorts = {}
  if task.num_clients is not None and task.clients_per_round is not None:
    for row in comparison.rows:
      scheme = sampling_lib.of(row.mechanism.participation)
      expected = scheme.other_cohort(task.num_clients, task.clients_per_round)
      if expected is not None:
        other_cohorts[_sampling(row)] = expected
  text = rendered.render(
    c=comparison,
    errors_table=_errors_table(comparison),
    noise_table=_noise_table(comparison),
    not_advised=[r for r in comparison.rows if not comparison.may_be_advised(r)],
    quick_bound=accountants.QUICK_BOUND,
    quick_bound_title=terms.of_accountant(accountants.QUICK_BOUND).title,
    other_cohorts=other_cohorts,
    advice=advice(comparison),
  )
  return text.strip('\n') + '\n'


def advice(comparison: planning.Comparison) -> str:
  """Says which mechanism to choose and why, in one line."""
  chosen = comparison.advised
  others = [
    r for r in comparison.rows if comparison.may_be_advised(r) and r is not chosen
  ]
  best = min(others, key=lambda row: row.equal_rmse, default=None)
  at = '' if comparison.task.noise_multiplier is None else ' at equal epsilon'
  return _words('advice', chosen, best, at)


def to_json(comparison: planning.Comparison) -> dict[str, Any]:
  """JSON-ready values; infinite numbers are None."""
  stored = {'num_clients': 'population', 'clients_per_round': 'cohort'}
  task = {
    stored.get(field.name, field.name): getattr(comparison.task, field.name)
    for field in dataclasses.fields(comparison.task)
    if field.name not in ('limits', 'options')
  }
  return {
    'format': 'tff_dp_aggregators.plan',
    'version': 1,
    'task': {
      'participation': sampling_lib.to_json(comparison.task.limits),
      **task,
      **dict.fromkeys(registry.options()),
      **comparison.task.options,
    },
    'equal_epsilon': comparison.equal_epsilon,
    'rows': [_row_to_json(comparison, row) for row in comparison.rows],
    'left_out': [each._asdict() for each in comparison.left_out],
    'advised': comparison.rows.index(comparison.advised),
    'advice': advice(comparison),
  }


def _row_to_json(comparison: planning.Comparison, row: planning.Row) -> dict[str, Any]:
  mechanism, cohort = row.mechanism, comparison.task.clients_per_round
  norm = comparison.noise_norm(row)
  return {
    'mechanism': mechanism.name,
    **dict.fromkeys(registry.options()),
    **registry.options_of(mechanism.strategy),
    'sampling': row.sampling,
    'participation': sampling_lib.to_json(mechanism.participation),
    'adjacency': mechanism.adjacency,
    'may_be_advised': comparison.may_be_advised(row),
    'noise_multiplier': mechanism.noise_multiplier,
    'sensitivity': mechanism.sensitivity,
    'effective_noise_multiplier': mechanism.effective_noise_multiplier,
    'epsilon': row.epsilon if math.isfinite(row.epsilon) else None,
    'delta': comparison.task.target_delta,
    'accountant': row.accountant,
    'instead': row.instead and row.instead._asdict(),
    'rmse': row.rmse,
    'max_error': row.max_error,
    'relative_rmse': comparison.relative(row, 'rmse'),
    'relative_max_error': comparison.relative(row, 'max_error'),
    'relative_rmse_at_equal_epsilon': comparison.relative(row, 'equal_rmse'),
    'noise_per_coordinate': row.noise_per_coordinate._asdict(),
    'noise_norm': norm._asdict(),
    'noise_to_signal': cohort and norm.times(1 / cohort)._asdict(),
    'storage': row.storage,
    'noise_bytes': row.cost.num_bytes,
    'seconds_per_round': row.cost.seconds,
    'storages': {
      storage: {'noise_bytes': cost.num_bytes, 'seconds_per_round': cost.seconds}
      for storage, cost in row.costs.items()
    },
  }


def draw(comparison: planning.Comparison, file_format: str) -> bytes:
  """Plots error against rounds for each mechanism, at equal epsilon."""
  # Not pyplot, which has global state and may open windows.
  from matplotlib import figure

  task, names = comparison.task, list(planning.ASSUMPTIONS)
  plot = figure.Figure(figsize=(10, 5.5), layout='constrained')
  axes = plot.subplots()
  rounds = range(1, task.limits.num_rounds + 1)
  for index, row in enumerate(comparison.rows):
    scale = row.equal_noise_multiplier / row.mechanism.noise_multiplier
    axes.plot(
      rounds,
      scale * row.error_by_round,
      color=f'C{index}',
      linestyle=_LINES[names.index(row.sampling) % len(_LINES)],
      linewidth=2.2 if row is comparison.advised else 1.2,
      label=_title(row) + (' (advised)' if row is comparison.advised else ''),
    )
  axes.set_yscale('log')
  axes.yaxis.set_major_formatter('{x:g}')
  axes.set_xlim(1, max(2, task.limits.num_rounds))
  axes.set_xlabel('rounds in the sum')
  axes.set_ylabel('standard deviation of the noise in a prefix sum, in clip norms')
  axes.set_title(
    f'With noise for epsilon = {rounding.up(comparison.equal_epsilon)} at delta = '
    f'{rounding.exact(task.target_delta)}\n{_words("rounds", task.limits)}',
    fontsize='medium',
  )
  axes.grid(alpha=0.4)
  plot.legend(loc='outside right upper', fontsize='small', frameon=False)
  buffer = io.BytesIO()
  plot.savefig(buffer, format=file_format, dpi=150)
  return buffer.getvalue()


def _table(
  comparison: planning.Comparison,
  columns: Mapping[str, Callable[[planning.Row], str]],
  heading: Callable[[planning.Row], str],
) -> str:
  """A table with column titles of two lines, and a heading above each assumption."""
  table = [[cell(row) for cell in columns.values()] for row in comparison.rows]
  titles = [list(line) for line in zip(*(title.split('\n') for title in columns))]
  widths = [max(map(len, cells)) for cells in zip(*titles, *table)]

  def line(cells: Sequence[str]) -> str:
    rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:]))
    return '  '.join([cells[0].ljust(widths[0]), *rest]).rstrip()

  lines, sampling = [line(cells) for cells in titles], None
  for row, cells in zip(comparison.rows, table):
    if row.sampling != sampling:
      lines.append(_wrap(heading(row)))
      sampling = row.sampling
    lines.append(line(cells))
  return '\n'.join(lines)


def _errors_table(comparison: planning.Comparison) -> str:
  def relative(field: str) -> Callable[[planning.Row], str]:
    return lambda row: rounding.up(comparison.relative(row, field), 3)

  columns = {
    '\nmechanism': lambda row: f'  {row.name}',
    'noise\nmult.': lambda row: rounding.up(row.mechanism.noise_multiplier),
    '\nepsilon': lambda row: rounding.up(row.epsilon),
    '\nRMSE': relative('rmse'),
    'at equal\nepsilon': relative('equal_rmse'),
    'max\nerror': relative('max_error'),
    'keeps\nand where': _kept,
    'time\na round': lambda row: _seconds(row.cost.seconds),
  }
  # Columns that are the same for all rows are stated above the table.
  omitted = ['\nepsilon', 'at equal\nepsilon']
  if comparison.task.noise_multiplier is not None:
    omitted = ['noise\nmult.']
  shown = {title: cell for title, cell in columns.items() if title not in omitted}
  return _table(
    comparison,
    shown,
    lambda row: terms.of_scheme('heading', row.mechanism.participation),
  )


def _noise_table(comparison: planning.Comparison) -> str:
  cohort = comparison.task.clients_per_round or 1

  def of_model(field: str) -> Callable[[planning.Row], str]:
    return lambda row: _digits(getattr(comparison.noise_norm(row), field) / cohort)

  columns = {
    '\nmechanism': lambda row: f'  {row.name}',
    'parameter,\nworst': lambda row: _digits(
      row.noise_per_coordinate.worst_round / cohort
    ),
    'model,\nfirst': of_model('first_round'),
    'model,\nworst': of_model('worst_round'),
    'model,\nlast': of_model('last_round'),
    'model,\nall': of_model('all_rounds'),
  }
  return _table(
    comparison,
    columns,
    lambda row: f'With {_sampling(row)}:' if _sampling(row) else 'Without sampling:',
  )


@functools.cache
def _environment() -> jinja2.Environment:
  environment = terms.environment('planning')
  environment.filters.update(
    called=_title,
    exact=rounding.exact,
    kept=_kept,
    label=lambda row: terms.label(row.accountant, row.instead),
    sampling=_sampling,
    seconds=_seconds,
    size=_size,
    thousands='{:,}'.format,
    up=rounding.up,
    wrap=lambda text: f'{_wrap(text)}\n',
  )
  return environment


def _words(macro: str, *arguments: Any) -> str:
  module = _environment().get_template('words.txt.j2').module
  return terms.in_a_line(getattr(module, macro)(*arguments))


def _wrap(text: str) -> str:
  blocks = (' '.join(each.split()) for each in re.split(r'\n\s*\n', text))
  return '\n'.join(
    textwrap.fill(each, _WIDTH, subsequent_indent='  ') for each in blocks if each
  )


def _sampling(row: planning.Row) -> str:
  return planning.ASSUMPTIONS[row.sampling].title


def _title(row: planning.Row) -> str:
  return ', '.join(filter(None, (row.name, _sampling(row))))


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


def _digits(value: float) -> str:
  """Three digits, or the whole number if it has more; rounded up."""
  if value >= 1000:
    return f'{math.ceil(value):,}'
  return rounding.up(value, 2 - math.floor(math.log10(value)) if value else 0)
