"""Compares time and memory of reading clients' data from CSV with `numpy.loadtxt`.

    python -m benchmarks.reading_clients
    python -m benchmarks.reading_clients --clients=10000 --rows=100000

Writes a file with three numbers, a label and a client's id in each row, each client's
rows scattered over it; reads it as `--data` does; and reads the same numbers with
`numpy.loadtxt`, which knows no clients and keeps all in memory. Each reader runs in a
new process, whose memory is measured without mapped files and imports. The last line is
the ratio of their seconds.
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
_COHORT = 1000  # Number of clients whose examples are made, as for a round.


def _write(path: str, num_clients: int, num_rows: int) -> None:
  rng = np.random.default_rng(1)
  with open(path, 'w', encoding='utf-8') as file:
    file.write('client,a,b,c,label\n')
    for first in range(0, num_rows, _ROWS_AT_A_TIME):
      count = min(_ROWS_AT_A_TIME, num_rows - first)
      # Every client has at least one row.
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
  population = loading.load(data_options.Data(None, 0.5, 1, files))
  numbers = np.random.default_rng(1).integers(0, population.num_clients, _COHORT)
  examples = sum(len(population.clients.examples(int(i))['y']) for i in numbers)
  return f'{population.num_clients} clients take part; {examples} examples of {_COHORT}'


def _read_numbers(path: str) -> str:
  array = np.loadtxt(path, delimiter=',', skiprows=1, usecols=(1, 2, 3, 4))
  return f'an array of shape {array.shape}'


class _Memory(threading.Thread):
  """Records the peak memory of the process, mapped files not included."""

  def __init__(self) -> None:
    super().__init__(daemon=True)
    self.baseline = self.peak = self._now()

  def run(self) -> None:
    while True:
      self.peak = max(self.peak, self._now())
      time.sleep(0.005)

  def _now(self) -> int:
    with open('/proc/self/status', encoding='ascii') as file:
      (line,) = (line for line in file if line.startswith('RssAnon'))
    return int(line.split()[1]) * 1024


def _measure(work: Callable[[str], str], path: str, queue: Any) -> None:
  memory = _Memory()
  memory.start()
  start = time.perf_counter(), time.process_time()
  summary = work(path)
  seconds = time.perf_counter() - start[0], time.process_time() - start[1]
  queue.put((*seconds, memory.peak - memory.baseline, summary))


def measured(work: Callable[[str], str], path: str) -> tuple[float, float, int, str]:
  """Returns seconds, processor seconds, peak bytes, and a summary of what was read."""
  context = multiprocessing.get_context('spawn')
  queue = context.Queue()
  process = context.Process(target=_measure, args=(work, path, queue))
  process.start()
  process.join()
  if process.exitcode:
    sys.exit(f'{work.__name__} ended with {process.exitcode}.')
  result: tuple[float, float, int, str] = queue.get()
  return result


def main(num_clients: int, num_rows: int, folder: str) -> None:
  with tempfile.TemporaryDirectory(dir=folder or None) as scratch:
    path = os.path.join(scratch, 'data.csv')
    _write(path, num_clients, num_rows)
    size = os.path.getsize(path) / 1e6
    print(f'{num_rows} rows of {num_clients} clients, {size:.0f} MB')
    print('way                  seconds  processor    rows/s  peak MB')
    seconds = {}
    for work in (_read_clients, _read_numbers):
      wall, processor, peak, summary = measured(work, path)
      seconds[work] = processor
      print(
        f'{work.__name__.strip("_"):18} {wall:9.2f}  {processor:9.2f} '
        f'{num_rows / processor:9.0f}  {peak / 1e6:7.0f}  {summary}'
      )
    print(f'ratio {seconds[_read_clients] / seconds[_read_numbers]:.2f}')


if __name__ == '__main__':
  main(_FLAGS.clients, _FLAGS.rows, _FLAGS.folder)
