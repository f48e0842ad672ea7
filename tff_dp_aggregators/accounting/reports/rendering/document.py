"""What a report consists of, whatever its format.

`sections` makes a `Document` from a statement; `writers`, `plots` and the HTML template
write it. Text in a document is plain: each writer escapes what its format would read as
markup. `Code` is text to be shown letter for letter.
"""

import dataclasses
from typing import Optional, Union


class Code(str):
  """Text in which every letter counts: a command, a path, a checksum."""


@dataclasses.dataclass(frozen=True)
class Paragraph:
  """Some sentences."""

  text: str
  kind = 'paragraph'


@dataclasses.dataclass(frozen=True)
class Items:
  """A list, with a line above it."""

  intro: str
  items: tuple[str, ...]
  kind = 'items'


@dataclasses.dataclass(frozen=True)
class Fact:
  """A value under its name, and what the name means in plain words."""

  name: str
  value: str
  meaning: str = ''


@dataclasses.dataclass(frozen=True)
class Facts:
  """Facts, one below the other."""

  facts: tuple[Fact, ...]
  kind = 'facts'


@dataclasses.dataclass(frozen=True)
class Table:
  """Rows of as many cells as the header has."""

  header: tuple[str, ...]
  rows: tuple[tuple[str, ...], ...]
  kind = 'table'


@dataclasses.dataclass(frozen=True)
class Verbatim:
  """Lines to be copied as they are."""

  text: str
  kind = 'verbatim'


@dataclasses.dataclass(frozen=True)
class Plot:
  """One curve; only pages show it.

  Attributes:
    title: What the curve shows.
    caption: How to read it, in a sentence or two.
    x_label: With the unit.
    y_label: With the unit.
    points: (x, y) of the curve, at least one.
    log_x: Whether the x axis is logarithmic.
    is_bars: Whether to draw bars, for values that belong to whole numbers.
    mark: The point to which the report's own number belongs.
    mark_text: What stands at the mark; `None` for its y, rounded up.
  """

  title: str
  caption: str
  x_label: str
  y_label: str
  points: tuple[tuple[float, float], ...]
  log_x: bool = False
  is_bars: bool = False
  mark: Optional[tuple[float, float]] = None
  mark_text: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Plots:
  """Pictures side by side."""

  plots: tuple[Plot, ...]
  kind = 'plots'


Block = Union[Paragraph, Items, Facts, Table, Verbatim, Plots]


@dataclasses.dataclass(frozen=True)
class Section:
  """Blocks under a heading."""

  title: str
  blocks: tuple[Block, ...]


@dataclasses.dataclass(frozen=True)
class Document:
  """A report.

  Attributes:
    title: What it is.
    guarantee: The guarantee in one line.
    is_private: Whether there is one.
    summary: What a reader needs who reads no further.
    sections: The rest.
    warnings: Towards whom the guarantee does not hold, which stands above it.
    condition: What has to be true that nobody states; '' if there is nothing.
  """

  title: str
  guarantee: str
  is_private: bool
  summary: tuple[Block, ...]
  sections: tuple[Section, ...] = ()
  warnings: tuple[str, ...] = ()
  condition: str = ''
