"""Compares column norms that vary by round with column norms that vary by epoch.

    python -m benchmarks.round_scales [--small]

Strategies are banded for prefix sums, with as many bands as the separation, so that a
client's columns do not overlap. A line for each case, with clients at least that far
apart and in fixed epochs, has the RMSE of

    equal     the best columns of equal norm,
    epochs    the best columns with one or two norms for each epoch,
    rescaled  the same columns, with the best norm for each round,
    rounds    the best columns with a norm for each round, optimised jointly,

and `bound`, a lower bound for all banded strategies with as many bands, whatever their
norms: that of `epoch_scaled.certify`. `gap` is by how much the RMSE before it can
exceed the minimum, for given columns and for all; `gain` by how much `rounds` is below
`epochs`. Sensitivities are exact, and computed from the dense matrix. In the last two
cases the last epoch is incomplete. `_round_norms` describes the method.

--small leaves out all cases but the first and the last but one. One core.
"""

import os

os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'

import functools
import math

from benchmarks import _arguments
from benchmarks import _round_norms
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import epoch_scaled
from tff_dp_aggregators.strategies import sensitivity
from tff_dp_aggregators.strategies import workload
from tff_dp_aggregators.strategies import workload as workload_lib

_SMALL_CASES = [(64, 16, 4), (100, 16, 7)]
_CASES = [(64, 16, 4), (256, 32, 8), (300, 100, 3), (400, 200, 2)]
_CASES += [(100, 16, 7), (250, 100, 3)]


def _rmse(strategy: banded.Banded, participation: Participation) -> float:
  """Returns the RMSE of the dense matrix, with its exact sensitivity."""
  matrix = strategy.materialize()
  squared, exact = sensitivity.squared(matrix, participation)
  assert exact, participation
  errors = workload_lib.errors(matrix, workload.Workload(strategy.num_rounds))
  return math.sqrt(squared * float(errors.mean()))


def _line(
  equal: banded.Banded, epochs: banded.Banded, participation: Participation
) -> str:
  error = functools.partial(_rmse, participation=participation)
  columns = _round_norms.Columns(participation)
  rescaled, norms = columns.rescaled(epochs)
  rounds = columns.optimize(epochs)
  certificate = epoch_scaled.certify(rounds, participation=participation)
  return (
    f'  {error(equal):8.5f}  {error(epochs):8.5f}  {error(rescaled):8.5f}'
    f'  {math.sqrt(1 + norms.gap) - 1:7.1e}  {error(rounds):8.5f}'
    f'  {math.sqrt(certificate.lower_bound):8.5f}'
    f'  {math.sqrt(1 + certificate.gap) - 1:7.1e}'
    f'  {1 - error(rounds) / error(epochs):5.2%}'
  )


def main(small: bool) -> None:
  print(
    'rounds  apart  times  schema           equal    epochs  rescaled      gap'
    '    rounds     bound      gap   gain'
  )
  for case in _SMALL_CASES if small else _CASES:
    apart = Participation(*case)
    options = {'num_bands': case[1], 'cache': False}
    equal = banded.optimize(case[0], **options)
    epochs = epoch_scaled.optimize(equal, participation=apart, cache=False)
    for schema, fixed in (('apart', False), ('fixed epochs', True)):
      line = _line(equal, epochs, Participation(*case, fixed_epoch=fixed))
      print('{:6d}  {:5d}  {:5d}'.format(*case), f' {schema:12s}{line}', flush=True)


if __name__ == '__main__':
  main(_arguments.parse(__doc__ or '', small=False).small)
