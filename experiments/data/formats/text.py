"""Plain text: of a folder, a file is a text; a file by itself has a text a line."""

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from .. import problems
from . import lines
from . import source

COLUMN = 'text'
_LINES = 2**12


class TextFile:
  """A file with a text a line; empty lines are between texts."""

  columns: tuple[str, ...] = (COLUMN,)

  def __init__(self, path: str, wanted: source.Wanted):
    """Takes up the file; nothing is read."""
    del wanted
    self.path = path

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    """All lines with something on them; see `source.Source`."""
    done = 0
    with lines.opened(self.path) as file:
      while True:
        try:
          texts = list(itertools.islice(file, _LINES))
        except UnicodeDecodeError as e:
          raise lines.not_utf8(self.path) from e
        if not texts:
          return
        kept = [number for number, text in enumerate(texts) if text.strip()]
        if kept:
          found = [texts[number].rstrip('\r\n') for number in kept]
          where = self._where(done, kept)
          yield source.Batch(len(kept), dict.fromkeys(wanted, found), None, where)
        done += len(texts)

  def _where(self, done: int, kept: list[int]) -> Any:
    return lambda number: f'{self.path}, line {done + 1 + kept[number]}'


class WholeFile:
  """A file that is one text."""

  columns: tuple[str, ...] = (COLUMN,)

  def __init__(self, path: str, wanted: source.Wanted):
    """Takes up the file; nothing is read."""
    del wanted
    self.path = path

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    """One row; see `source.Source`."""
    with lines.opened(self.path) as file:
      try:
        text = file.read()
      except UnicodeDecodeError as e:
        raise lines.not_utf8(self.path) from e
    if not text.strip():
      raise problems.DataError(f'{self.path} is empty; remove it, or fill it in.')
    yield source.Batch(1, dict.fromkeys(wanted, [text]), None, lambda _: self.path)


FORMAT = source.Format('text', ('.txt',), 'plain text', TextFile, text_column=COLUMN)
