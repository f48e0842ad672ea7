"""Statements written out for people: text, Markdown and one HTML page."""

from typing import Any, Optional

import jinja2

FORMATS = ('text', 'markdown', 'html', 'json')

_WITHOUT_PRIVACY = """# Privacy report

**Guarantee: none.** No privacy mechanism was used: updates were neither clipped nor
noised, and epsilon is infinite.
"""


def render(statement: dict[str, Any], output_format: str) -> str:
  """A statement as text of a format.

  Args:
    statement: As `statement.build` or `statement.compose` returned it.
    output_format: 'text', 'markdown' or 'html'.
  """
  return to_markdown(statement)


def to_markdown(statement: dict[str, Any]) -> str:
  """A statement as Markdown."""
  if statement['mechanism'] is None:
    return _WITHOUT_PRIVACY
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('tff_dp_aggregators.accounting'),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # Markdown, not HTML.
  )
  environment.filters['number'] = _format_number
  environment.filters['delta'] = _format_delta
  return environment.get_template('report.md.j2').render(**statement)


def _format_number(value: Optional[float], digits: int = 4) -> str:
  if value is None:
    return 'infinite'
  return f'{value:.{digits}g}' if abs(value) < 1e-3 else f'{value:.{digits}f}'


def _format_delta(value: float) -> str:
  return f'{value:g}'
