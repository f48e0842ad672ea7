"""Compares error and time of buffered linear Toeplitz strategies with a peer's.

    python -m benchmarks.blt

Optimises each case of the peer (tests/strategies/matrix_factorization.json, recorded on
one core of another machine). Prints a line for each case with our error and process
time, the ratios of both to the peer's, and the ratio of our error to that of a strategy
that needs far more memory: for one participation the square root with n - 1 buffers,
which has the least maximum error of all Toeplitz strategies, and whose own error is
taken for the mean as well; for several participations banded Toeplitz with
min_separation - 1 buffers, optimised here.

A second table has the time of the search and of the closed forms for growing numbers of
rounds. The cache of strategies is not read.
"""

import os

for _threads in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'):
  os.environ[_threads] = '1'

import functools
import json
import logging
import math
import pathlib
import time

import numpy as np

from benchmarks import _arguments
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import Strategy
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import toeplitz

_RECORDED = (
  pathlib.Path(__file__).parents[1] / 'tests/strategies/matrix_factorization.json'
)
# Participations of the second table; the last one was the slowest in a random search.
_PARTICIPATIONS = (
  Participation(10, 1, 8),
  Participation(10**3, 111, 8),
  Participation(10**5, 11_111, 8),
  Participation(10**7, 1_111_111, 8),
  Participation(10**7, 37_762, 11),
)


def _error(strategy: Strategy, objective: str, participation: Participation) -> float:
  if objective == 'max':
    return strategy.max_error(participation)
  return strategy.rmse(participation)


@functools.cache
def _reference(objective: str, participation: Participation) -> float:
  """Returns the error of the strategy with more memory."""
  num_rounds = participation.num_rounds
  if participation.possible_participations > 1:
    strategy = toeplitz.optimize(
      num_rounds,
      num_bands=None,
      objective=objective,
      participation=participation,
      cache=False,
    )
    return _error(strategy, objective, participation)
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
  for case in json.loads(_RECORDED.read_text())['results']:
    if case['strategy'] != 'blt':
      continue
    num_rounds, objective = case['num_rounds'], case['objective']
    participation = Participation(
      num_rounds, case['min_separation'], case['max_participations']
    )
    start = time.process_time()
    strategy = blt.optimize(
      num_rounds,
      num_buffers=case['num_buffers'],
      objective=objective,
      participation=participation,
      cache=False,
    )
    seconds = time.process_time() - start
    error = _error(strategy, objective, participation)
    peer_error = case['rmse' if objective == 'mean' else 'max_error']
    print(
      f'{num_rounds:8d} {participation.min_separation:4d}'
      f' {participation.max_participations:3d}  {objective:9s}'
      f'  {strategy.num_buffers} of {case["num_buffers"]}  {error:11.7f}'
      f'  {seconds:8.3f}  {error / peer_error:11.8f}'
      f'  {seconds / case["peer_seconds_one_core"]:7.4f}'
      f'  {error / _reference(objective, participation):15.5f}'
    )


def _time_closed_forms() -> None:
  print('\n  rounds        b    k   buffers   optimize [s]   rmse and sensitivity [ms]')
  for participation in _PARTICIPATIONS:
    num_rounds = participation.num_rounds
    start = time.process_time()
    strategy = blt.optimize(
      num_rounds, num_buffers=8, participation=participation, cache=False
    )
    middle = time.process_time()
    for _ in range(10):
      strategy.rmse(participation)
    end = time.process_time()
    print(
      f'{num_rounds:8d} {participation.min_separation:8d}'
      f' {participation.max_participations:4d}   {strategy.num_buffers:7d}'
      f'   {middle - start:12.3f}   {(end - middle) * 100:25.2f}'
    )


def main() -> None:
  logging.getLogger(blt.__name__).setLevel(logging.ERROR)  # No warnings on buffers.
  _compare_optima()
  _time_closed_forms()


if __name__ == '__main__':
  _arguments.parse(__doc__ or '')
  main()
