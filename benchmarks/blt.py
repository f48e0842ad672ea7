"""Buffered linear Toeplitz strategies: error and time, as ratios to a peer's.

    python -m benchmarks.blt

Optimises each case of the peer (jax_privacy 2.3.0.dev0, recorded on one core, not run
here) and prints, a line a case, our error and process time, the ratios of both to the
peer's, and the ratio of our error to a strategy that needs far more memory: for one
participation the square root with n - 1 buffers, which has the least maximal error of
all Toeplitz strategies and, for the mean, its own; for several participations banded
Toeplitz with min_separation - 1 buffers (recorded, mean only).

A second table has the time of the closed forms for growing numbers of rounds. Nothing
is read from the cache of strategies.
"""

import os

for _threads in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'):
  os.environ[_threads] = '1'

import logging  # noqa: E402
import math  # noqa: E402
import time  # noqa: E402
from typing import Optional  # noqa: E402

import numpy as np  # noqa: E402

from tff_dp_aggregators.strategies import BLT  # noqa: E402
from tff_dp_aggregators.strategies import Participation  # noqa: E402
from tff_dp_aggregators.strategies import blt  # noqa: E402
from tff_dp_aggregators.strategies import toeplitz  # noqa: E402

# Rounds, min_separation, participations, objective, buffers; peer's error and seconds.
_CASES = (
  (1000, 1, 1, 'max', 2, 3.32126174, 8.79),
  (1000, 1, 1, 'max', 3, 3.26991781, 8.75),
  (1000, 1, 1, 'max', 4, 3.26537953, 9.26),
  (1000, 1, 1, 'max', 5, 3.2650327, 9.96),
  (10000, 1, 1, 'max', 2, 4.21584811, 6.59),
  (10000, 1, 1, 'max', 3, 4.03325161, 6.59),
  (10000, 1, 1, 'max', 4, 4.00311687, 6.25),
  (10000, 1, 1, 'max', 5, 3.99871616, 6.83),
  (1000000, 1, 1, 'max', 2, 6.64187604, 6.02),
  (1000000, 1, 1, 'max', 3, 5.76573156, 6.77),
  (1000000, 1, 1, 'max', 4, 5.54758411, 6.53),
  (1000000, 1, 1, 'max', 5, 5.48648086, 6.88),
  (1000, 1, 1, 'mean', 2, 3.07584428, 15.8),
  (1000, 1, 1, 'mean', 3, 3.05108177, 16.96),
  (1000, 1, 1, 'mean', 4, 3.04982513, 15.67),
  (1000, 1, 1, 'mean', 5, 3.04979604, 12.48),
  (10000, 1, 1, 'mean', 3, 3.79987223, 41.79),
  (2000, 400, 5, 'max', 2, 9.5015141, 18.95),
  (2000, 400, 5, 'max', 3, 9.45121115, 16.3),
  (2000, 400, 5, 'max', 4, 9.43056292, 15.81),
  (2000, 400, 5, 'max', 5, 9.43056293, 17.26),
  (2000, 400, 5, 'mean', 2, 8.16083153, 20.31),
  (2000, 400, 5, 'mean', 3, 8.16083155, 13.79),
  (2000, 400, 5, 'mean', 4, 8.14661668, 14.6),
  (2000, 100, 20, 'max', 2, 27.0161769, 19.82),
  (2000, 100, 20, 'max', 3, 26.928057, 17.04),
  (2000, 100, 20, 'max', 4, 26.9275135, 18.0),
  (2000, 100, 20, 'mean', 2, 21.3740161, 17.97),
  (2000, 100, 20, 'mean', 3, 21.3740161, 16.52),
  (2000, 100, 20, 'mean', 4, 21.3739669, 13.47),
)
# RMSE of banded Toeplitz with min_separation bands, recorded.
_BANDED = {(2000, 400, 5): 7.849, (2000, 100, 20): 20.207}
_ROUNDS = (10, 10**3, 10**5, 10**7)


def _error(strategy: BLT, objective: str, participation: Participation) -> float:
  if objective == 'max':
    return strategy.max_error(participation)
  return strategy.rmse(participation)


def _reference(num_rounds: int, b: int, k: int, objective: str) -> Optional[float]:
  """The error of the strategy with more memory, where there is one to compare."""
  if k > 1:
    return _BANDED.get((num_rounds, b, k)) if objective == 'mean' else None
  squares = np.cumsum(np.square(toeplitz.square_root_coefficients(num_rounds)))
  mean = squares.mean() if objective == 'mean' else squares[-1]
  return math.sqrt(squares[-1] * mean)


def _compare_optima() -> None:
  print(
    '                                                    ratio to the recorded peer'
  )
  print(
    '  rounds    b   k  objective  buffers      error   time [s]'
    '      error     time   to more memory'
  )
  for num_rounds, b, k, objective, buffers, peer_error, peer_time in _CASES:
    participation = Participation(num_rounds, b, k)
    start = time.process_time()
    strategy = blt.optimize(num_rounds, buffers, objective, participation, cache=False)
    seconds = time.process_time() - start
    error = _error(strategy, objective, participation)
    reference = _reference(num_rounds, b, k, objective)
    last = f'{error / reference:.5f}' if reference else '-'
    print(
      f'{num_rounds:8d} {b:4d} {k:3d}  {objective:9s}  {strategy.num_buffers} of'
      f' {buffers}  {error:11.7f}  {seconds:8.3f}  {error / peer_error:11.8f}'
      f'  {seconds / peer_time:7.4f}  {last:>15s}'
    )


def _time_closed_forms() -> None:
  print('\n  rounds   buffers   optimize [s]   rmse and sensitivity [ms]')
  for num_rounds in _ROUNDS:
    participation = Participation(num_rounds, max(1, num_rounds // 9), 8)
    start = time.process_time()
    strategy = blt.optimize(num_rounds, 8, 'mean', participation, cache=False)
    middle = time.process_time()
    for _ in range(10):
      strategy.rmse(participation)
    end = time.process_time()
    print(
      f'{num_rounds:8d}   {strategy.num_buffers:7d}   {middle - start:12.3f}'
      f'   {(end - middle) * 100:25.2f}'
    )


def main() -> None:
  """Prints both tables."""
  logging.getLogger(blt.__name__).setLevel(logging.ERROR)  # Buffers that do not help.
  _compare_optima()
  _time_closed_forms()


if __name__ == '__main__':
  main()
