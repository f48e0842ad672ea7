"""Files of plain text: a text a line, or in a folder a text a file; gzipped or not."""

import contextlib
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import IO, cast

from .. import problems
from . import source

COLUMN = 'text'
PACKED = '.gz'
_LINES = 2**12
_NO_UTF8 = re.compile('[\udc80-\udcff]')  # As Python keeps such bytes.


def rows_at_a_time(width: int) -> int:
  """How many rows of so many fields are handed over at a time."""
  return max(2**6, min(2**13, 2**16 // max(1, width)))


def _bytes(path: str) -> IO[bytes]:
  if path.lower().endswith(PACKED):
    return cast(IO[bytes], gzip.open(path))
  return open(path, 'rb')


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[str]]:
  """A file whose lines are left as they are; a byte order mark is passed over."""
  with io.TextIOWrapper(_bytes(path), 'utf-8-sig', newline='') as file:
    try:
      yield file
    except UnicodeDecodeError as e:
      raise _not_utf8(path) from e
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
      raise problems.DataError(
        f'{path} cannot be unpacked: {e}. Is it whole, and gzipped?'
      ) from e


def _not_utf8(path: str) -> problems.DataError:
  """The error for a file with bytes that are no UTF-8, which names the line."""
  with io.TextIOWrapper(_bytes(path), 'utf-8', 'surrogateescape') as file:
    numbered = ((n, _NO_UTF8.search(line)) for n, line in enumerate(file, start=1))
    number, bad = next((number, bad[0]) for number, bad in numbered if bad)
  return problems.DataError(
    f'{path}, line {number}: byte 0x{ord(bad) - 0xDC00:02x} is not UTF-8. Save the '
    'file as UTF-8.'
  )


class TextFile:
  """A file with a text a line; empty lines are between texts."""

  columns: tuple[str, ...] = (COLUMN,)

  def __init__(self, path: str, wanted: source.Wanted):
    del wanted
    self.path = path

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    done = 0
    with opened(self.path) as file:
      while texts := list(itertools.islice(file, _LINES)):
        kept = [number for number, text in enumerate(texts) if text.strip()]
        if kept:
          found = [texts[number].rstrip('\r\n') for number in kept]
          lines = [f'{self.path}, line {done + 1 + number}' for number in kept]
          columns = dict.fromkeys(wanted, found)
          yield source.Batch(len(kept), columns, None, lines.__getitem__)
        done += len(texts)


class WholeFile(TextFile):
  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    with opened(self.path) as file:
      text = file.read()
    if not text.strip():
      raise problems.DataError(f'{self.path} is empty; remove it, or fill it in.')
    yield source.Batch(1, dict.fromkeys(wanted, [text]), None, lambda _: self.path)


TEXT = source.Format('text', ('.txt',), 'plain text', TextFile, text_column=COLUMN)
