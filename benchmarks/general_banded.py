"""Compares optimised general banded strategies with a peer: error, gap, time, memory.

    python -m benchmarks.general_banded [--large]

The peer cannot be installed with TensorFlow Federated: its figures are recorded on one
core of another machine (tests/strategies/matrix_factorization.json has their source),
and those marked with * stopped before convergence. Each of ours is computed in a new
process, to measure its memory, on one core. `gap` is the certified gap of the squared
error, whose time is not included. --large adds 2048 rounds.
"""

import os

os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'

import concurrent.futures
import json
import multiprocessing
import pathlib
import resource
import sys
import time
from typing import Any, Optional

from benchmarks import _arguments
from tff_dp_aggregators.strategies import banded

_RECORDED = pathlib.Path(__file__).parents[1] / (
  'tests/strategies/matrix_factorization.json'
)
_CASES = [(128, 16, 'mean'), (128, 16, 'max'), (512, 64, 'mean'), (512, 64, 'max')]
_CASES += [(1024, 128, 'mean')]
_LARGE_CASES = [(2048, 342, 'mean')]


def _recorded(num_rounds: int, num_bands: int, objective: str) -> Optional[dict]:
  """Returns the peer's figures; None if there are none."""
  for result in json.loads(_RECORDED.read_text())['results']:
    if result['strategy'] == 'general_banded_unit_columns' and (
      num_rounds,
      num_bands,
      objective,
    ) == (result['num_rounds'], result['num_bands'], result['objective']):
      return result
  return None


def _measure(num_rounds: int, num_bands: int, objective: str) -> dict[str, Any]:
  """Optimises a strategy; returns error, gap, and time and memory of this process."""
  start = time.process_time()
  strategy = banded.optimize(
    num_rounds, num_bands=num_bands, objective=objective, cache=False
  )
  seconds = time.process_time() - start
  memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  certificate = banded.certify(strategy, objective)
  return {
    'error': certificate.error**0.5,
    'gap': certificate.gap,
    'seconds': seconds,
    'memory': memory,
  }


def _in_new_process(*case: Any) -> dict[str, Any]:
  context = multiprocessing.get_context('spawn')
  with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
    return executor.submit(_measure, *case).result()


def main() -> None:
  print(
    'rounds  bands  objective     error  peer error     ratio      gap'
    '  seconds  peer (recorded)   ratio  GiB'
  )
  for case in _CASES + (_LARGE_CASES if '--large' in sys.argv[1:] else []):
    ours, peer = _in_new_process(*case), _recorded(*case)
    line = f'{case[0]:6d}  {case[1]:5d}  {case[2]:9s}  {ours["error"]:8.5f}'
    if peer is None:
      line += f'  {"none":>10s}  {"":8s}'
    else:
      error = peer['rmse' if case[2] == 'mean' else 'max_error']
      mark = '*' if 'not_converged' in peer else ' '
      line += f'  {error:9.5f}{mark}  {ours["error"] / error:8.5f}'
    line += f'  {ours["gap"]:.1e}  {ours["seconds"]:7.2f}'
    if peer is None:
      line += f'  {"none":>15s}  {"":6s}'
    else:
      seconds = peer['peer_seconds_one_core']
      line += f'  {seconds:14.2f}{mark}  {ours["seconds"] / seconds:6.3f}'
    print(f'{line}  {ours["memory"]:.2f}', flush=True)


if __name__ == '__main__':
  _arguments.parse(__doc__ or '')
  main()
