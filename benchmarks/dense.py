"""Compares errors of optimal dense strategies with certified bounds and a peer's.

    python -m benchmarks.dense

The ratio in every line is that of the squared error to the certified lower bound for
all strategies: 1 is optimal. The peer cannot be installed with TensorFlow Federated;
its figures are recorded ones (tests/strategies/matrix_factorization.json). One core.
"""

import os

os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'

import json
import pathlib
import time
from typing import Optional

from benchmarks import _arguments
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import dense

_RECORDED = pathlib.Path(__file__).parents[1] / (
  'tests/strategies/matrix_factorization.json'
)
_CASES: list[tuple[str, int, str, Optional[Participation]]] = [
  ('single', 128, 'mean', None),
  ('single', 128, 'max', None),
  ('single', 256, 'mean', None),
  ('4 epochs of 32', 128, 'mean', Participation(128, 32, fixed_epoch=True)),
  ('4 epochs of 32', 128, 'max', Participation(128, 32, fixed_epoch=True)),
  ('2 of 4 epochs', 128, 'mean', Participation(128, 32, 2, fixed_epoch=True)),
]


def _error(
  strategy: banded.Banded, objective: str, participation: Optional[Participation]
) -> float:
  if objective == 'mean':
    return strategy.rmse(participation)
  return strategy.max_error(participation)


def main() -> None:
  print('participation     rounds  objective     error  to bound  seconds  32 bands')
  for name, num_rounds, objective, participation in _CASES:
    start = time.process_time()
    strategy = dense.optimize(
      num_rounds, objective=objective, participation=participation, cache=False
    )
    seconds = time.process_time() - start
    certificate = dense.certify(strategy, objective, participation)
    others = _error(
      banded.optimize(num_rounds, num_bands=32, objective=objective, cache=False),
      objective,
      participation,
    )
    print(
      f'{name:16s}  {num_rounds:6d}  {objective:9s}  {certificate.error**0.5:8.5f}'
      f'  {certificate.gap + 1:8.6f}  {seconds:7.2f}  {others:8.5f}',
      flush=True,
    )
  for result in json.loads(_RECORDED.read_text())['results']:
    if result['strategy'] == 'dense_optimal':
      print(
        f'peer (recorded): single, {result["num_rounds"]} rounds, mean, '
        f'{result["rmse"]:.5f} in {result["peer_seconds_one_core"]} s'
      )


if __name__ == '__main__':
  _arguments.parse(__doc__ or '')
  main()
