"""Documents as text for terminals and as Markdown.

Each function writes a whole `document.Document`. The third writer is the HTML template.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from tff_dp_aggregators.accounting.reports.rendering import document

_WIDTH = 88
_INDENT = 2
_NAMES = 32  # Widest column of names.
_GAP = 2
_NARROWEST = 12  # Column of a table that has to wrap.
# What Markdown reads as markup wherever it stands in a line.
_MARKUP = re.compile(r'([\\`*<>|\[\]&~$]|(?<!\w)_|_(?!\w))')


def to_text(report: document.Document) -> str:
  """A report for terminals: plain, aligned, at most 88 columns wide.

  Only what must not be broken may be longer: a command, a path, a checksum.
  """
  chunks = [_heading(report.title), *(_wrapped(each, 0) for each in report.warnings)]
  chunks.append(_wrapped(f'Guarantee: {report.guarantee}', 0))
  chunks += [_text_block(block) for block in report.summary]
  for section in report.sections:
    chunks.append('\n' + _heading(section.title))
    chunks += [_text_block(block) for block in section.blocks]
  return '\n\n'.join(chunk for chunk in chunks if chunk) + '\n'


def to_markdown(report: document.Document) -> str:
  """A report as Markdown, with tables as GitHub reads them."""
  chunks = [f'# {report.title}', *(f'**{_escaped(e)}**' for e in report.warnings)]
  chunks.append(f'**Guarantee: {_escaped(report.guarantee)}**')
  chunks += [_markdown_block(block) for block in report.summary]
  for section in report.sections:
    chunks.append(f'## {_escaped(section.title)}')
    chunks += [_markdown_block(block) for block in section.blocks]
  return '\n\n'.join(chunk for chunk in chunks if chunk) + '\n'


def _text_block(block: document.Block) -> str:
  if isinstance(block, document.Paragraph):
    return _wrapped(block.text, 0)
  if isinstance(block, document.Items):
    items = [_wrapped(item, _INDENT + 2, '- ') for item in block.items]
    return '\n'.join([_wrapped(block.intro, 0), *items])
  if isinstance(block, document.Facts):
    return _text_facts(block.facts)
  if isinstance(block, document.Table):
    return _text_table([block.header, *block.rows])
  if isinstance(block, document.Verbatim):
    return _indented(block.text, _INDENT)
  return ''  # Plots.


def _heading(title: str) -> str:
  return title.upper()


def _text_facts(facts: Sequence[document.Fact]) -> str:
  width = min(_NAMES, max(len(fact.name) for fact in facts))
  lines: list[str] = []
  for fact in facts:
    meaning = f'({fact.meaning})' if fact.meaning else ''
    values = _lines(fact.value, _WIDTH - _INDENT - width - _GAP)
    values += _lines(meaning, _WIDTH - _INDENT - width - _GAP)
    lines += _side_by_side([_lines(fact.name, width), values], [width])
  return '\n'.join(lines)


def _text_table(rows: Sequence[Sequence[str]]) -> str:
  widths = _widths(rows)
  lines: list[str] = []
  for row in rows:
    cells = [_lines(cell, width) for cell, width in zip(row, widths)]
    lines += _side_by_side(cells, widths)
    if row is rows[0]:
      lines += _side_by_side([['-' * width] for width in widths], widths)
  return '\n'.join(lines)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
  """Of a table's columns: as wide as their cells, the widest ones narrowed to fit."""
  widths = [max(len(_line(cell)) for cell in column) for column in zip(*rows)]
  room = _WIDTH - _INDENT - _GAP * (len(widths) - 1)
  while sum(widths) > room and max(widths) > _NARROWEST:
    widest = widths.index(max(widths))
    widths[widest] = max(_NARROWEST, widths[widest] - (sum(widths) - room))
  return widths


def _side_by_side(
  cells: Sequence[Sequence[str]], widths: Sequence[int]
) -> Iterator[str]:
  """Lines of cells that stand beside each other; the last needs no width."""
  for number in range(max(len(cell) for cell in cells)):
    line = ' ' * _INDENT
    for index, cell in enumerate(cells):
      part = cell[number] if number < len(cell) else ''
      last = index == len(cells) - 1
      line += part if last else f'{part:<{widths[index]}}' + ' ' * _GAP
    yield line.rstrip()


def _lines(text: str, width: int) -> list[str]:
  """Text in lines; words that are longer than a line stay whole."""
  if isinstance(text, document.Code):
    return [_line(text)]
  return textwrap.wrap(
    _line(text), width, break_long_words=False, break_on_hyphens=False
  )


def _wrapped(text: str, indent: int, bullet: str = '') -> str:
  lines = _lines(text, _WIDTH - indent)
  first = ' ' * (indent - len(bullet)) + bullet
  return _joined(lines, first, ' ' * indent)


def _joined(lines: Sequence[str], first: str, others: str) -> str:
  return '\n'.join((others if n else first) + line for n, line in enumerate(lines))


def _indented(text: str, indent: int) -> str:
  return textwrap.indent(text, ' ' * indent)


def _line(text: str) -> str:
  """Text with its white space, line breaks too, as single spaces."""
  return ' '.join(text.split())


def _markdown_block(block: document.Block) -> str:
  if isinstance(block, document.Paragraph):
    return _escaped(block.text)
  if isinstance(block, document.Items):
    items = '\n'.join(f'- {_escaped(item)}' for item in block.items)
    return f'{_escaped(block.intro)}\n\n{items}'
  if isinstance(block, document.Facts):
    rows = ((fact.name, fact.value, fact.meaning) for fact in block.facts)
    return _markdown_table(('what', 'value', 'meaning'), rows)
  if isinstance(block, document.Table):
    return _markdown_table(block.header, block.rows)
  if isinstance(block, document.Verbatim):
    return _indented(block.text, 4)
  return ''  # Plots.


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  written = [header, ['---'] * len(header), *rows]
  return '\n'.join(
    '| ' + ' | '.join(_escaped(cell) for cell in row) + ' |' for row in written
  )


def _escaped(text: str) -> str:
  """Text that Markdown shows as it is, in one line."""
  line = _line(text)
  if isinstance(text, document.Code) and line and not set('`|') & set(line):
    return f'`{line}`'
  return _MARKUP.sub(r'\\\1', line)
