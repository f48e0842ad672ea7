"""Compares windowed BLT with BLT and the best banded Toeplitz matrix.

    python -m benchmarks.windowed_blt

BLT and banded Toeplitz are optimised by this package in the same run; `recorded` is the
RMSE or largest error of jax_privacy 2.3.0.dev0's BLT with 4 buffers for the same
schema.
"""

import os

os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'
os.environ['TFF_DP_AGGREGATORS_CACHE'] = ''  # Disables the cache of strategies.

import functools
import logging
import math
import time
from typing import Callable

from benchmarks import _arguments
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import toeplitz

# Rounds, min_separation and max_participations; recorded (rmse, max_error).
_CASES = {
  (2000, 400, 5): {'mean': 8.146616677344507, 'max': 9.430562915224291},
  (2000, 100, 20): {'mean': 21.373966851946673, 'max': 26.92751351733317},
}


# Numbers of buffers.
_WINDOWED = (1, 2, 3)
_BLT = (2, 3, 4)


def _builds(num_rounds: int, separation: int) -> dict[str, Callable]:
  """Returns name and optimiser of each strategy, beginning with the reference."""
  builds = {
    'banded Toeplitz': functools.partial(
      toeplitz.optimize, num_rounds, num_bands=separation
    )
  }
  for buffers in _WINDOWED:
    builds[f'windowed BLT, {buffers}'] = functools.partial(
      blt.optimize_windowed, num_rounds, num_decays=buffers
    )
  for buffers in _BLT:
    builds[f'BLT, {buffers}'] = functools.partial(
      blt.optimize, num_rounds, num_buffers=buffers
    )
  return builds


def _compare(participation: Participation, objective: str, recorded: float) -> None:
  schema = participation.num_rounds, participation.min_separation
  best = math.nan
  for name, build in _builds(*schema).items():
    start = time.process_time()
    strategy = build(objective=objective, participation=participation)
    seconds = f'{time.process_time() - start:.2f} s'
    if objective == 'mean':
      error = strategy.rmse(participation)
    else:
      error = strategy.max_error(participation)
    if math.isnan(best):
      best = error
    print(
      f'  {name:20} {strategy.noise_buffers:6d} {error:9.4f} {error / best:9.4f} '
      f'{seconds:>9}'
    )
  print(f'  {"BLT, 4":20} {4:6d} {recorded:9.4f} {recorded / best:9.4f}  recorded')


def main() -> None:
  logging.disable(logging.WARNING)  # The table shows that fewer buffers suffice.
  toeplitz.optimize(8, num_bands=2)  # Imports lazily imported modules.
  print(
    f'  {"strategy":20} {"memory":>6} {"error":>9} {"to banded":>9} {"built in":>9}'
  )
  for schema, recorded in _CASES.items():
    for objective in ('mean', 'max'):
      print(
        '{} rounds, {} apart, {} times, {}:'.format(
          *schema, {'mean': 'RMSE', 'max': 'largest error'}[objective]
        )
      )
      _compare(Participation(*schema), objective, recorded[objective])


if __name__ == '__main__':
  _arguments.parse(__doc__ or '')
  main()
