"""Time and memory of reading clients' data from a CSV file, against `numpy.loadtxt`.

    python -m benchmarks.reading_clients
    python -m benchmarks.reading_clients --clients=10000 --rows=100000

Writes a file with three numbers, a label and a client's id in each row, the rows of a
client scattered over it; reads it as `--data` does; and reads the same numbers with
`numpy.loadtxt`, which knows nothing of clients and keeps all in memory. Each way has a
process of its own, whose memory besides mapped files is measured: what an import takes
is left out. The last line is the ratio of their seconds.
"""

import multiprocessing
import os
import sys
import tempfile
import threading
import time
from typing import Any, Callable

from benchmarks import _arguments

if __name__ == '__main__':
  _FLAGS = _arguments.parse(
    __doc__ or '', clients=1_000_000, rows=10_000_000, folder=''
  )

import numpy as np

from experiments.data import loading
from experiments.options import data as data_options

_ROWS_AT_A_TIME = 100_000
# Examples of these are made, as a round would ask for them.
_COHORT = 1000


def _write(path: str, num_clients: int, num_rows: int) -> None:
  rng = np.random.default_rng(1)
  with open(path, 'w', encoding='utf-8') as file:
    file.write('client,a,b,c,label\n')
    for first in range(0, num_rows, _ROWS_AT_A_TIME):
      count = min(_ROWS_AT_A_TIME, num_rows - first)
      # Everybody has one row at least.
      ids = np.arange(first, first + count) * 7919 % num_clients
      values = rng.normal(size=(count, 3))
      labels = rng.integers(0, 2, count)
      file.writelines(
        f'user{i},{a:.4f},{b:.4f},{c:.4f},{y}\n'
        for i, (a, b, c), y in zip(ids.tolist(), values.tolist(), labels.tolist())
      )


def _read_clients(path: str) -> str:
  files = data_options.Files(
    path,
    client_column='client',
    label_column='label',
    test_clients=0.1,
    scratch=os.path.dirname(path),
  )
  found = loading.load(data_options.Data(None, 0.5, 1, files))
  numbers = np.random.default_rng(1).integers(0, found.num_clients, _COHORT)
  examples = sum(len(found.clients.examples(int(i))['y']) for i in numbers)
  return f'{found.num_clients} clients take part; {examples} examples of {_COHORT}'


def _read_numbers(path: str) -> str:
  found = np.loadtxt(path, delimiter=',', skiprows=1, usecols=(1, 2, 3, 4))
  return f'an array of shape {found.shape}'


class _Memory(threading.Thread):
  """Watches how much memory the process has, besides files that are mapped."""

  def __init__(self) -> None:
    super().__init__(daemon=True)
    self.begun = self.largest = self._now()

  def run(self) -> None:
    while True:
      self.largest = max(self.largest, self._now())
      time.sleep(0.005)

  def _now(self) -> int:
    with open('/proc/self/status', encoding='ascii') as file:
      (line,) = (line for line in file if line.startswith('RssAnon'))
    return int(line.split()[1]) * 1024


def _measure(work: Callable[[str], str], path: str, queue: Any) -> None:
  memory = _Memory()
  memory.start()
  begun = time.perf_counter(), time.process_time()
  said = work(path)
  seconds = time.perf_counter() - begun[0], time.process_time() - begun[1]
  queue.put((*seconds, memory.largest - memory.begun, said))


def measured(work: Callable[[str], str], path: str) -> tuple[float, float, int, str]:
  """Seconds, processor's seconds, bytes at the peak, and what was read."""
  context = multiprocessing.get_context('spawn')
  queue = context.Queue()
  process = context.Process(target=_measure, args=(work, path, queue))
  process.start()
  process.join()
  if process.exitcode:
    sys.exit(f'{work.__name__} ended with {process.exitcode}.')
  found: tuple[float, float, int, str] = queue.get()
  return found


def main(num_clients: int, num_rows: int, folder: str) -> None:
  """Prints a line for each way, and the ratio."""
  with tempfile.TemporaryDirectory(dir=folder or None) as scratch:
    path = os.path.join(scratch, 'data.csv')
    _write(path, num_clients, num_rows)
    size = os.path.getsize(path) / 1e6
    print(f'{num_rows} rows of {num_clients} clients, {size:.0f} MB')
    print('way                  seconds  processor    rows/s  peak MB')
    seconds = {}
    for work in (_read_clients, _read_numbers):
      wall, processor, peak, said = measured(work, path)
      seconds[work] = processor
      print(
        f'{work.__name__.strip("_"):18} {wall:9.2f}  {processor:9.2f} '
        f'{num_rows / processor:9.0f}  {peak / 1e6:7.0f}  {said}'
      )
    print(f'ratio {seconds[_read_clients] / seconds[_read_numbers]:.2f}')


if __name__ == '__main__':
  main(_FLAGS.clients, _FLAGS.rows, _FLAGS.folder)
