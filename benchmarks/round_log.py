"""Compares reading a production system's round log with splitting its lines.

    python -m benchmarks.round_log
    python -m benchmarks.round_log --participations=100000000 --memory=1GB

Writes logs of 10^6 rounds, reads them with `records.round_log`, summarizes them with
`records.log_participation`, and prints the ratio to the time of splitting the same
lines in one thread: with the csv module for CSV, the json module for JSON lines. The
last log is the export of a data warehouse: 10^7 lines, each a participation of one of
some million devices. Each log is read in a new process, whose peak memory is printed;
DuckDB stores on disk what does not fit into its memory.
"""

import csv
import datetime
import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator

from benchmarks import _arguments

if __name__ == '__main__':
  _FLAGS = _arguments.parse(__doc__ or '', participations=10**7, memory='2GB')

from tff_dp_aggregators.accounting.records import log_participation as participation
from tff_dp_aggregators.accounting.records import round_log

_ROUNDS = 10**6
_PARTICIPATIONS_PER_ROUND = 5000
_COLUMNS = ('round', 'completion_time', 'cohort_size')


def _rounds() -> Iterator[tuple[int, str, int]]:
  start = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
  for number in range(_ROUNDS):
    completion = start + datetime.timedelta(seconds=97 * number)
    yield number, completion.isoformat(), 5000 + number % 1000


def _write(path: str, participations: int) -> None:
  devices = participations // 6 + 1
  with open(path, 'w', encoding='utf-8') as file:
    if path.endswith('participations.csv'):
      file.write('device,round\n')
      file.writelines(
        f'device-{i * 7919 % devices:08d},{i // _PARTICIPATIONS_PER_ROUND}\n'
        for i in range(participations)
      )
    elif path.endswith('.csv'):
      file.write(','.join(_COLUMNS) + '\n')
      file.writelines(f'{n},{t},{c}\n' for n, t, c in _rounds())
    else:
      for row in _rounds():
        file.write(json.dumps(dict(zip(_COLUMNS, row))) + '\n')


def _split(path: str) -> None:
  with open(path, encoding='utf-8') as file:
    lines = csv.reader(file) if path.endswith('.csv') else map(json.loads, file)
    for _ in lines:
      pass


def _measure(path: str, memory: str) -> str:
  """Measures times of one log, and the peak memory of this process, which is new."""
  round_log.MEMORY = memory
  times = [time.perf_counter()]
  _split(path)
  times.append(time.perf_counter())
  log = round_log.read(path)
  times.append(time.perf_counter())
  participation.summarize(log)
  times.append(time.perf_counter())
  split, read, summarize = (b - a for a, b in zip(times, times[1:]))
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  return f'{split:9.2f} {read:8.2f} {read / split:6.1f} {summarize:12.2f} {peak:8.0f}'


def main() -> None:
  print(f'{_ROUNDS} rounds       split s   read s  ratio  summarize s  peak MB')
  processes = multiprocessing.get_context('spawn')
  with tempfile.TemporaryDirectory() as folder:
    for name in ('log.csv', 'log.jsonl', 'participations.csv'):
      path = os.path.join(folder, name)
      _write(path, _FLAGS.participations)
      with processes.Pool(1) as pool:
        print(f'{name:18} {pool.apply(_measure, (path, _FLAGS.memory))}', flush=True)


if __name__ == '__main__':
  main()
