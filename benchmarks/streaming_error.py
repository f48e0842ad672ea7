"""Compares the time of errors of a million rounds with a Fourier transform's.

    python -m benchmarks.streaming_error

Computes `per_query_error` of prefix sums for structured strategies on one core. The
unit is one real Fourier transform of 2 n numbers, timed in the same run. `off by` is
the largest relative difference from dividing the power series term by term, which takes
O(n num_bands) and is done where that is about a second.
"""

import os

os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'
os.environ['TFF_DP_AGGREGATORS_CACHE'] = ''  # Disables the cache of strategies.

import time
from typing import Callable

from benchmarks import _arguments

if __name__ == '__main__':
  _arguments.parse(__doc__ or '')

import numpy as np
import scipy.fft
import scipy.signal

from tff_dp_aggregators import strategies

_ROUNDS = 10**6
_RUNS = 3
# Maximum number of bands for which the series is divided term by term as well.
_MAX_BANDS = 1000


def _strategies() -> dict[str, strategies.Strategy]:
  square_root = strategies.BandedToeplitz.square_root
  return {
    'Toeplitz, 10 bands': square_root(_ROUNDS, 10),
    'Toeplitz, 1000 bands': square_root(_ROUNDS, 1000),
    'Toeplitz, all bands': square_root(_ROUNDS, _ROUNDS),
    'BLT, 5 buffers': strategies.blt.optimize(_ROUNDS, num_buffers=5),
    'BISR, 16 bands': strategies.BandedInverse.square_root(_ROUNDS, 16),
    'tree, Honaker': strategies.BinaryTree(_ROUNDS),
  }


def _best_time(function: Callable[[], object]) -> float:
  times = []
  for _ in range(_RUNS):
    start = time.process_time()
    function()
    times.append(time.process_time() - start)
  return min(times)


def _relative_error(strategy: strategies.Strategy, errors: np.ndarray) -> str:
  if not isinstance(strategy, strategies.BandedToeplitz):
    return ''
  if strategy.num_bands > _MAX_BANDS:
    return ''
  ones = np.ones(_ROUNDS)
  column = scipy.signal.lfilter([1.0], strategy.coefficients, ones)
  expected = np.cumsum(np.square(column))
  return f'{np.max(np.abs(errors / expected - 1)):.1e}'


def main() -> None:
  numbers = np.random.default_rng(0).standard_normal(2 * _ROUNDS)
  limit = _best_time(lambda: scipy.fft.rfft(numbers))
  print(f'one Fourier transform: {limit:.3f} s')
  print(f'{"strategy":22} {"seconds":>8} {"transforms":>10} {"off by":>8}')
  for name, strategy in _strategies().items():
    seconds = _best_time(strategy.per_query_error)
    off_by = _relative_error(strategy, strategy.per_query_error())
    print(f'{name:22} {seconds:8.3f} {seconds / limit:10.1f} {off_by:>8}')


if __name__ == '__main__':
  main()
