"""Compares the time to a report's first line with the time of its imports.

    python -m benchmarks.report_start

Starts the report program for the published Gboard run, and Python with NumPy, SciPy's
optimize and dp-accounting alone, which is a lower bound; prints the medians of seven
runs each and their ratio.
"""

import statistics
import subprocess
import sys
import time

from benchmarks import _arguments

_RUNS = 7
_REPORT = [
  '-m',
  'tff_dp_aggregators.accounting.report',
  '--mechanism=tree',
  '--num_rounds=2000',
  '--rounds_between=313',
  '--max_participations=6',
  '--noise_multiplier=7',
  '--target_delta=1e-10',
]
_IMPORTS = ['-c', 'import numpy, scipy.optimize, dp_accounting; print()']


def _seconds_to_first_line(arguments: list[str]) -> float:
  start = time.perf_counter()
  with subprocess.Popen(
    [sys.executable, *arguments], stdout=subprocess.PIPE
  ) as process:
    assert process.stdout is not None
    process.stdout.readline()
    seconds = time.perf_counter() - start
    process.stdout.read()
  if process.returncode:
    raise RuntimeError(f'{arguments} ended with {process.returncode}.')
  return seconds


def main() -> None:
  times: dict[str, list[float]] = {'report': [], 'imports alone': []}
  for _ in range(_RUNS):
    times['report'].append(_seconds_to_first_line(_REPORT))
    times['imports alone'].append(_seconds_to_first_line(_IMPORTS))
  medians = {name: statistics.median(values) for name, values in times.items()}
  for name, median in medians.items():
    print(f'{name:14} {median:6.2f} s')
  print(f'ratio          {medians["report"] / medians["imports alone"]:6.2f}')


if __name__ == '__main__':
  _arguments.parse(__doc__ or '')
  main()
