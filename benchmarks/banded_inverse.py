"""Error and time of optimised banded inverses, against a peer's figures.

    python -m benchmarks.banded_inverse

The peer does not install beside TensorFlow Federated; its figures are recorded, on one
core of another machine, from runs that had not converged
(tests/strategies/matrix_factorization.json). Ours are measured here on one core.
"""

import os

# Before NumPy reads them: one core.
for _variable in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'):
  os.environ[_variable] = '1'

import json
import pathlib
import time

from benchmarks import _arguments
from tff_dp_aggregators.strategies import BandedInverse
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import banded_inverse

_RECORDED = (
  pathlib.Path(__file__).parents[1] / 'tests/strategies/matrix_factorization.json'
)


def main() -> None:
  """Prints a line a case."""
  # Imports what is slow to import.
  banded_inverse.optimize(16, num_bands=4, cache=False)
  results = json.loads(_RECORDED.read_text())['results']
  print(
    'rounds  apart times bands  for        error   to peer  seconds   to peer'
    '   closed form  sensitivity'
  )
  for result in results:
    if result['strategy'] != 'banded_inverse_optimised':
      continue
    num_rounds, num_bands = result['num_rounds'], result['num_bands']
    objective, separation = result['objective'], result['min_separation']
    participation = Participation(num_rounds, separation, result['max_participations'])
    start = time.process_time()
    strategy = banded_inverse.optimize(
      num_rounds,
      num_bands=num_bands,
      objective=objective,
      participation=participation,
      cache=False,
    )
    seconds = time.process_time() - start
    measure = 'rmse' if objective == 'mean' else 'max_error'
    error = getattr(strategy, measure)(participation)
    closed = BandedInverse.square_root(num_rounds, num_bands)
    print(
      f'{num_rounds:6d} {separation:6d} {participation.max_participations:5d}'
      f' {num_bands:5d}  {objective:4s} {error:12.6f} {error / result[measure]:9.6f}'
      f' {seconds:8.3f} {seconds / result["peer_seconds_one_core"]:9.1e}'
      f' {getattr(closed, measure)(participation):13.6f}'
      f'  {strategy.sensitivity_kind(participation)}'
    )


if __name__ == '__main__':
  _arguments.parse(__doc__ or '')
  main()
