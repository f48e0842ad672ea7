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


class TextFile:
  """A file with one text per line; empty lines are skipped."""

  columns: tuple[str, ...] = (COLUMN,)

  def __init__(self, path: str, wanted: source.Wanted):
    del wanted
    self.path = path

  def batches(self, wanted: Sequence[str]) -> Iterator[source.Batch]:
    rows = numbered(self.path)
    while batch := list(itertools.islice(rows, _LINES_PER_BATCH)):
      places = [f'{self.path}, line {number}' for number, _ in batch]
      columns = dict.fromkeys(wanted, [text.rstrip('\r\n') for _, text in batch])
      yield source.Batch(len(batch), columns, places.__getitem__)


class WholeFile(TextFile):
  def batches(self, wanted: Sequence[str]) -> Iterator[source.Batch]:
    with opened(self.path) as file:
      text = file.read()
    if not text.strip():
      raise problems.DataError(f'{self.path} is empty; remove it, or fill it in.')
    yield source.Batch(1, dict.fromkeys(wanted, [text]), lambda _: self.path)


TEXT = source.Format('text', ('.txt',), 'plain text', TextFile, text_column=COLUMN)
