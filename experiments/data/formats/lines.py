"""Files of plain text, gzipped or not: one text per line, or per file in a folder."""

import contextlib
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, cast

from .. import problems
from . import source

COLUMN = 'text'
PACKED = '.gz'
_LINES_PER_BATCH = 2**12


def _bytes(path: str) -> IO[bytes]:
  if path.lower().endswith(PACKED):
    return cast(IO[bytes], gzip.open(path))
  return open(path, 'rb')


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[str]]:
  """Opens a text file without translating line ends; skips a byte order mark."""
  with io.TextIOWrapper(_bytes(path), 'utf-8-sig', newline='') as file:
    try:
      yield file
    except UnicodeDecodeError:
      _refuse_first_line_not_utf8(path)
      raise
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
      raise problems.DataError(
        f'{path} cannot be unpacked: {e}. Is it whole, and gzipped?'
      ) from e


def _refuse_first_line_not_utf8(path: str) -> None:
  with _bytes(path) as file:
    for number, line in enumerate(file, start=1):
      try:
        line.decode()
      except UnicodeDecodeError as e:
        raise problems.DataError(
          f'{path}, line {number}: {e}; save the file as UTF-8.'
        ) from e


def numbered(path: str) -> Iterator[tuple[int, str]]:
  """Yields each line that is not empty after its number."""
  with opened(path) as file:
    for number, text in enumerate(file, start=1):
      if text.strip():
        yield number, text


def place(path: str, rows: Iterator[tuple[int, Any]], index: int) -> str:
  """Returns the file and line of a row, given all rows after the numbers of lines."""
  number, _ = next(itertools.islice(rows, index, None))
  return f'{path}, line {number}'


class TextFile(source.Source):
  """A file with one text per line; empty lines are skipped."""

  name, endings, summary = 'text', ('.txt',), 'plain text'
  text_column = COLUMN
  columns = (COLUMN,)

  def read(self, wanted: Sequence[str]) -> Iterator[source.Columns]:
    rows = numbered(self.path)
    while batch := list(itertools.islice(rows, _LINES_PER_BATCH)):
      yield dict.fromkeys(wanted, [text.rstrip('\r\n') for _, text in batch])

  def place(self, row: int) -> str:
    return place(self.path, numbered(self.path), row)


class WholeFile(TextFile):
  def read(self, wanted: Sequence[str]) -> Iterator[source.Columns]:
    with opened(self.path) as file:
      yield dict.fromkeys(wanted, [file.read()])

  def place(self, row: int) -> str:
    return self.path
