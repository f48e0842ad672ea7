"""Statements written out: text, Markdown, one HTML page, or JSON.

`sections` decides what is said, once for all formats; `writers` and the template
decide how it looks.
"""

import base64
import dataclasses
import functools
import json
import re
from typing import Any, Optional

from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.accounting.reports.rendering import learning_section
from tff_dp_aggregators.accounting.reports.rendering import sections
from tff_dp_aggregators.accounting.reports.rendering import writers

__all__ = ['FORMATS', 'render']


def __dir__() -> list[str]:
  return sorted(__all__)


# What `render` can make of a statement.
FORMATS = ('text', 'markdown', 'html', 'json')
# A number in HTML with what closes up to it; no digit of a name, of a checksum or
# of an entity.
_NUMBER = re.compile(
  r'(?<![\w.#])\(?(?:arXiv:)?[-+]?'
  r'(?:\d+(?:[.,]\d+)*|\.\d+)(?:[eE][-+]?\d+)?%?(?![\w%])[),.;:]*'
)
_UNBROKEN = r'<span class="number">\g<0></span>'


def render(
  statement: dict[str, Any],
  output_format: str,
  learned: Optional[learning_curves.Curves] = None,
) -> str:
  """A statement in one of `FORMATS`.

  Args:
    statement: As `statement.build`, `compose` or `build_without_privacy` returned it.
      For plots it needs its curves.
    output_format: 'text', 'markdown', 'html' (one file, with nothing to load), or
      'json' (described by `schema.load`).
    learned: What the run learned, which only the page shows beside its privacy; `None`
      if there is no run, or nothing is known of it.

  Raises:
    ValueError: If the format is unknown.

  Example:
    >>> from tff_dp_aggregators.accounting.reports import statement
    >>> print(render(statement.build_without_privacy(), 'text'))
    PRIVACY REPORT
    <BLANKLINE>
    Guarantee: none.
    ...
  """
  if output_format == 'json':
    return json.dumps(statement, indent=2, allow_nan=False) + '\n'
  if output_format not in FORMATS:
    raise ValueError(f'unknown format {output_format!r}; known: {", ".join(FORMATS)}.')
  report = sections.of_statement(statement)
  if output_format == 'text':
    return writers.to_text(report)
  if output_format == 'markdown':
    return writers.to_markdown(report)
  if learned is not None:
    shown = learning_section.section(statement, learned)
    if shown is not None:
      report = dataclasses.replace(report, sections=(shown, *report.sections))
  return _to_html(report)


# Runs of one mechanism, in one process, share most of their plots, and drawing those of
# a page takes longer than many a run's rounds.
@functools.lru_cache(maxsize=64)
def _image(plot: document.Plot) -> str:
  """A plot as the address of a picture, with nothing to load."""
  from tff_dp_aggregators.accounting.reports.rendering import plots

  data = base64.b64encode(plots.to_svg(plot).encode()).decode()
  return f'data:image/svg+xml;base64,{data}'


def _to_html(report: document.Document) -> str:
  # Only here, for text shall be there at once.
  import jinja2
  import markupsafe

  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('tff_dp_aggregators.accounting.reports.rendering'),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=True,
  )

  def unbroken(text: str) -> markupsafe.Markup:
    """Text as HTML in which no line ends within a number."""
    return markupsafe.Markup(_NUMBER.sub(_UNBROKEN, str(markupsafe.escape(text))))

  environment.filters['unbroken'] = unbroken
  environment.tests['code'] = lambda text: isinstance(text, document.Code)
  return environment.get_template('report.html.j2').render(report=report, image=_image)
