"""Memory of reading data does not grow with the rows of a file or its clients."""

import numpy as np
import pytest

from tests import executing

_PROGRAM = """
import os, sys, threading, time
os.environ['OMP_NUM_THREADS'] = '1'
from experiments.data import loading
from experiments.options import data as data_options

def now():
  with open('/proc/self/status') as file:
    return next(int(line.split()[1]) for line in file if line.startswith('RssAnon'))

peaks = [now()]
begun = peaks[0]
def watch():
  while True:
    peaks[0] = max(peaks[0], now())
    time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
files = data_options.Files(
  sys.argv[1], client_column='who', label_column='y', test_clients=0.1,
  scratch=sys.argv[2])
found = loading.load(data_options.Data(None, 0.5, 1, files))
examples = sum(len(found.clients.examples(i)['y']) for i in range(0, 1000))
print(found.num_clients, examples, (peaks[0] - begun) * 1024)
"""


def _peak(folder, num_rows, num_clients):
  """Returns the peak of memory in bytes, without that of mapped files."""
  path = folder / f'{num_rows}.csv'
  values = np.random.default_rng(1).normal(size=(num_rows, 8)).round(4).tolist()
  with open(path, 'w', encoding='utf-8') as file:
    file.write('who,' + ','.join('abcdefgh') + ',y\n')
    for i, row in enumerate(values):
      file.write(f'client {i % num_clients},{str(row)[1:-1]},{i % 2}\n')
  result = executing.run_python(_PROGRAM, str(path), str(folder))
  assert result.returncode == 0, result.stderr
  clients, examples, peak = map(int, result.stdout.split())
  assert abs(clients - 0.9 * num_clients) < 5.4 * (0.09 * num_clients) ** 0.5
  assert examples == 1000 * num_rows // num_clients
  return peak


@pytest.mark.slow
def test_three_times_the_rows_need_little_more_memory(tmp_path):
  small = _peak(tmp_path, num_rows=60_000, num_clients=15_000)
  large = _peak(tmp_path, num_rows=180_000, num_clients=45_000)
  # 120,000 rows of 8 numbers are 7.7 MB as an array alone, and 70 MB as Python's rows.
  # With more rows, DuckDB reads ahead some 12 MB more, up to a limit.
  assert large < small + 18e6
  assert large < 64e6
