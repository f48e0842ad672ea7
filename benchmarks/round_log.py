"""Time of reading a production system's round log, against reading its text alone.

    python -m benchmarks.round_log

Writes logs of 10^6 rounds, reads them with `records.round_log`, summarizes them with
`records.log_participation`, and prints the ratio to what only splitting the same lines
takes: the csv module for CSV, the json module for JSON lines. The last log is the
export of a warehouse: 10^7 lines, each a participation of one of 1.7 million devices.
"""

import csv
import datetime
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from typing import Callable

from benchmarks import _arguments

if __name__ == '__main__':
  _arguments.parse(__doc__ or '')

from tff_dp_aggregators.accounting.records import log_participation as participation
from tff_dp_aggregators.accounting.records import round_log

_ROUNDS = 10**6
_PARTICIPATIONS, _DEVICES, _A_ROUND = 10**7, 1_700_000, 5000
_COLUMNS = ('round', 'completion_time', 'cohort_size')


def _rounds() -> Iterator[tuple[int, str, int]]:
  start = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
  for number in range(_ROUNDS):
    time_of_round = start + datetime.timedelta(seconds=97 * number)
    yield number, time_of_round.isoformat(), 5000 + number % 1000


def _write(path: str) -> None:
  with open(path, 'w', encoding='utf-8') as file:
    if path.endswith('participations.csv'):
      file.write('device,round\n')
      file.writelines(
        f'device-{i * 7919 % _DEVICES:08d},{i // _A_ROUND}\n'
        for i in range(_PARTICIPATIONS)
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


def _seconds(work: Callable[[], object]) -> float:
  start = time.process_time()
  work()
  return time.process_time() - start


def main() -> None:
  """Prints one line for each format."""
  print(f'{_ROUNDS} rounds       split s   read s  ratio  summarize s  peak MB so far')
  with tempfile.TemporaryDirectory() as folder:
    for name in ('log.csv', 'log.jsonl', 'participations.csv'):
      path = os.path.join(folder, name)
      _write(path)
      split = _seconds(lambda path=path: _split(path))  # type: ignore[misc]
      start = time.process_time()
      log = round_log.read(path)
      read = time.process_time() - start
      summarize = _seconds(lambda log=log: participation.summarize(log))  # type: ignore[misc]
      peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
      times = f'{split:9.2f} {read:8.2f} {read / split:6.1f} {summarize:12.2f}'
      print(f'{name:18} {times} {peak:15.0f}', flush=True)


if __name__ == '__main__':
  main()
