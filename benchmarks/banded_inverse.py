"""Compares error and time of optimised banded inverses with a peer's recorded ones.

    python -m benchmarks.banded_inverse

The peer cannot be installed with TensorFlow Federated; its figures are recorded, on one
core of another machine, from runs that had not converged
(tests/strategies/matrix_factorization.json). Ours are measured here on one core.

Then compares the RMSE without and with columns of equal norm: of BISR, of the best
root, and of the best bands.
"""

import os

# One core; set before NumPy reads them.
for _variable in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'):
  os.environ[_variable] = '1'

import json
import pathlib
import time

from benchmarks import _arguments
from tff_dp_aggregators.strategies import BandedInverse
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import UnitBandedInverse
from tff_dp_aggregators.strategies import banded_inverse

_RECORDED = (
  pathlib.Path(__file__).parents[1] / 'tests/strategies/matrix_factorization.json'
)
# Rounds, separation, and participations of a client.
_LIMITS = ((2000, 400, 5), (512, 512, 1), (512, 64, 8))
_BANDS = (2, 4, 8, 16)


def main() -> None:
  # Imports slow modules before anything is timed.
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
    closed_form = BandedInverse.square_root(num_rounds, num_bands)
    print(
      f'{num_rounds:6d} {separation:6d} {participation.max_participations:5d}'
      f' {num_bands:5d}  {objective:4s} {error:12.6f} {error / result[measure]:9.6f}'
      f' {seconds:8.3f} {seconds / result["peer_seconds_one_core"]:9.1e}'
      f' {getattr(closed_form, measure)(participation):13.6f}'
      f'  {strategy.sensitivity_kind(participation)}'
    )
  _compare_unit_columns()


def _compare_unit_columns() -> None:
  print(
    '\nrounds  apart times bands     BISR  one norm     root  one norm     best'
    '  one norm    gained  sensitivity'
  )
  for limits in _LIMITS:
    num_rounds, separation, times = limits
    participation = Participation(*limits)
    for num_bands in _BANDS:
      arguments = {'num_bands': num_bands, 'participation': participation}
      best = banded_inverse.optimize(num_rounds, **arguments, cache=False)
      pairs = (
        (
          BandedInverse.square_root(num_rounds, num_bands),
          UnitBandedInverse.root(num_rounds, num_bands),
        ),
        (
          banded_inverse.best_root(num_rounds, **arguments),
          banded_inverse.best_root(num_rounds, **arguments, unit_columns=True),
        ),
        (best, UnitBandedInverse.of(best)),
      )
      errors = [[each.rmse(participation) for each in pair] for pair in pairs]
      text = ''.join(f'{first:9.4f} {second:9.4f}' for first, second in errors)
      kinds = {each.sensitivity_kind(participation) for pair in pairs for each in pair}
      print(
        f'{num_rounds:6d} {separation:6d} {times:5d} {num_bands:5d}{text}'
        f' {1 - errors[-1][1] / errors[-1][0]:9.2%}  {", ".join(sorted(kinds))}'
      )


if __name__ == '__main__':
  _arguments.parse(__doc__ or '')
  main()
