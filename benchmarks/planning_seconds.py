"""Compares the time of optimising strategies with the estimates of `accounting.plan`.

    python -m benchmarks.planning_seconds

For a grid of rounds, separations and bands, on one core and without the cache, prints
processor seconds, the estimate by which a plan decides whether to skip a mechanism
(`seconds` of the kind of strategy), and their ratio, measured to estimated. Above 1
the user waits longer than announced.
"""

import os

# Set before NumPy counts the cores.
os.environ['OPENBLAS_NUM_THREADS'] = '1'
os.environ['TFF_DP_AGGREGATORS_CACHE'] = ''

import time

from benchmarks import _arguments
from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import registry

# Rounds, separation (and bands of C), and maximum participations if they are limited.
_CASES = {
  'banded': (
    (100, 20),
    (100, 100),
    (400, 200),
    (500, 50),
    (800, 400),
    (1000, 10),
    (1000, 100),
    (2000, 20),
    (2000, 50),
    (2000, 314),
    (5000, 10),
  ),
  'banded_inverse': (
    (1000, 4),
    (2000, 1),
    (4000, 4),
    (8000, 8),
    (20000, 10),
    (20000, 50),
  ),
  'toeplitz': (
    (2000, 314),
    (5000, 4096),
    (100000, 4096),
    # With this many participations, and more bands than the separation.
    (1000, 50, 5),
    (2000, 50, 4),
    (2000, 100, 5),
    (20000, 100, 5),
  ),
  'blt': ((2000, 314), (100000, 4096)),
  'epoch_banded': ((400, 200), (500, 50), (1000, 10), (1000, 100), (2000, 50)),
  'epoch_toeplitz': (
    (400, 200),
    (2000, 400),
    (2000, 100),
    (2000, 10),
    (20000, 50),
    (20000, 4096),
  ),
  'epoch_banded_inverse': (
    (400, 200),
    (2000, 400),
    (2000, 100),
    (2000, 10),
    (20000, 4096),
  ),
  'epoch_windowed_blt': (
    (400, 100),
    (2000, 400),
    (2000, 20),
    (20000, 50),
    (20000, 5000),
  ),
  'tailed_blt': (
    (512, 4, 4),
    (2000, 50, 4),
    (2000, 300, 2),
    (20000, 50, 10),
    (20000, 500, 4),
  ),
  'windowed_blt': (
    (400, 100),
    (1000, 10),
    (2000, 20),
    (2000, 314),
    (2000, 900),
    (20000, 50),
    (20000, 5000),
    (100000, 4096),
  ),
}


def main() -> None:
  print(f'{"mechanism":16}{"rounds":>8}{"bands":>8}{"seconds":>10}{"estimate":>10}')
  for name, cases in _CASES.items():
    kind = registry.kind(name)
    for num_rounds, separation, *times in cases:
      limits = strategies.Participation(num_rounds, separation, *times)
      num_bands = registry.more_bands(limits)
      options = (
        {'num_bands': num_bands} if kind.option('num_bands') and num_bands else {}
      )
      start = time.process_time()
      kind.build(limits, **options)
      seconds = time.process_time() - start
      estimate = kind.seconds(limits, **options)
      ratio = f'{seconds / estimate:10.2f}' if estimate else ''
      print(
        f'{name:16}{num_rounds:8}{separation:8}{seconds:10.2f}{estimate:10.2f}{ratio}',
        flush=True,
      )


if __name__ == '__main__':
  _arguments.parse(__doc__ or '')
  main()
