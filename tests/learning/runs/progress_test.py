"""A terminal of 80 columns shows all that one looks for, from the first round on."""

import contextlib
import fcntl
import io
import os
import struct
import termios

import pytest

from tff_dp_aggregators.learning.runs import progress as progress_lib

LONG = {
  'epsilon': 8.0,
  'test_accuracy': 0.912345,
  'test_loss': 0.318321,
  'clients_per_second': 107_412.5,
}


def _lines_on_terminal(columns, num_rounds, rows):
  """What a terminal of so many columns is shown, line by line."""
  ours, theirs = os.openpty()
  fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
  with open(theirs, 'w', encoding='utf-8') as file:
    progress = progress_lib.Progress(num_rounds, file=file)
    for row in rows:
      progress.update(row)
    progress.close()
  shown = b''
  with contextlib.suppress(OSError):  # How a terminal that nobody writes to ends.
    while chunk := os.read(ours, 4096):
      shown += chunk
  os.close(ours)
  return [line.strip('\n') for line in shown.decode().split('\r') if line.strip()]


@pytest.mark.parametrize('num_rounds', [3, 10_000])
def test_what_one_looks_for_fits_in_80_columns(num_rounds):
  last = _lines_on_terminal(80, num_rounds, 3 * [LONG])[-1]
  assert len(last) <= 80
  for wanted in (' left, ', 'loss=0.318', 'acc', '=0.912', 'eps', '=8.000'):
    assert wanted in last
  assert last.rstrip().endswith('clients/s=107k')


def test_a_file_gets_plain_lines():
  file = io.StringIO()
  progress = progress_lib.Progress(1, file=file)
  progress.update({**LONG, 'epsilon': float('inf')})
  progress.close()
  assert file.getvalue() == (
    'round 1 of 1: loss=0.3183, accuracy=0.9123, epsilon=infinite, '
    'clients/s=107412; 00:00 left\n'
  )
