"""Files of text, line by line, and where one is not what it should be."""

import io
import re
from typing import IO

from .. import problems

_BREAK = re.compile(rb'\r\n|\r|\n')


def opened(path: str, offset: int = 0) -> IO[str]:
  """A UTF-8 file whose lines are left as they are; a byte order mark is passed over."""
  file = open(path, 'rb')
  file.seek(offset)
  return io.TextIOWrapper(file, encoding='utf-8' if offset else 'utf-8-sig', newline='')


def not_utf8(path: str) -> problems.DataError:
  """The error for a file with bytes that are no UTF-8, which names the line."""
  number = 1
  with open(path, 'rb') as file:
    for line in file:
      try:
        line.decode('utf-8')
      except UnicodeDecodeError as e:
        number += len(_BREAK.findall(line[: e.start]))
        return problems.DataError(
          f'{path}, line {number}: byte 0x{line[e.start]:02x} is no UTF-8. Save the '
          'file as UTF-8.'
        )
      number += len(_BREAK.findall(line))
  return problems.DataError(f'{path} is no UTF-8. Save the file as UTF-8.')
