"""Example strategies of every kind, and sensitivities by brute force."""

import functools
import itertools
import json
import pathlib

import numpy as np
import pytest
import scipy.linalg

from tff_dp_aggregators import strategies

SCALES, DECAYS = (0.2, 0.4), (0.95, 0.5)
_FIGURES = pathlib.Path(__file__).with_name('matrix_factorization.json')


def _lower_triangular(num_rounds):
  rng = np.random.default_rng(num_rounds)
  matrix = np.tril(rng.uniform(-0.3, 0.3, (num_rounds, num_rounds)), -1)
  return matrix + np.diag(rng.uniform(1.0, 2.0, num_rounds))


def _epochs(num_rounds, starts, scales):
  """Returns starts and scales of the epochs that begin within `num_rounds`."""
  count = sum(start < num_rounds for start in starts)
  return starts[:count], scales[:count]


STRATEGIES = {
  'identity': strategies.Identity,
  'toeplitz_1_band': lambda n: strategies.BandedToeplitz(n, (2.0,)),
  'toeplitz_2_bands': lambda n: strategies.BandedToeplitz.square_root(n, min(2, n)),
  'toeplitz_signed': lambda n: strategies.BandedToeplitz(n, (2.0, -0.7, 0.4, 0.1)[:n]),
  'toeplitz_all_bands': lambda n: strategies.BandedToeplitz.square_root(n, n),
  'banded': lambda n: strategies.Banded.from_matrix(np.triu(_lower_triangular(n), -4)),
  'banded_diagonal': lambda n: strategies.Banded.from_matrix(
    np.diag(np.diagonal(_lower_triangular(n)))
  ),
  'dense': lambda n: strategies.Dense(n, _lower_triangular(n)),
  'inverse_1_band': lambda n: strategies.BandedInverse(n, (0.5,)),
  'inverse_4_bands': lambda n: strategies.BandedInverse.square_root(n, min(4, n)),
  'blt': lambda n: strategies.BLT(n, SCALES, DECAYS),
  'blt_no_buffers': lambda n: strategies.BLT(n, (), ()),
  # The recursion keeps three copies of a decaying sum; then the last rounds.
  'windowed_blt': lambda n: strategies.WindowedBLT(
    n, min(n // 3 + 2, n), (0.4,), (0.9,)
  ),
  'windowed_blt_narrow': lambda n: strategies.WindowedBLT(n, min(5, n), SCALES, DECAYS),
  'windowed_blt_one_copy': lambda n: strategies.WindowedBLT(n, n, SCALES, DECAYS),
  'windowed_blt_no_decays': lambda n: strategies.WindowedBLT(n, min(5, n), (), ()),
  # The recursion keeps sums of the last rounds; three copies of two sums; one sum.
  'tailed_blt': lambda n: strategies.TailedBLT(
    n, min(5, n), SCALES, DECAYS, 0.05, 0.99
  ),
  'tailed_blt_copies': lambda n: strategies.TailedBLT(
    n, min(n // 3 + 4, n), (0.4,), (0.9,), 0.1, 1.0
  ),
  'tailed_blt_one_copy': lambda n: strategies.TailedBLT(n, n, (0.4,), (0.9,), 0.1, 0.5),
  'tailed_blt_no_decays': lambda n: strategies.TailedBLT(n, n, (), (), 0.1, 0.5),
  'tailed_blt_no_tail': lambda n: strategies.TailedBLT(
    n, min(5, n), SCALES, DECAYS, 0.0, 0.0
  ),
  'epoch_toeplitz': lambda n: strategies.EpochToeplitz(
    n, *_epochs(n, (0, 5, 7), (1.5, 0.9, 0.4)), (2.0, -0.7, 0.4, 0.1)[:n]
  ),
  'epoch_toeplitz_1_band': lambda n: strategies.EpochToeplitz(n, (0,), (0.5,), (2.0,)),
  'epoch_inverse': lambda n: strategies.EpochBandedInverse(
    n, *_epochs(n, (0, 4), (1.5, 2.0)), (1.0, -0.4, -0.2)[:n]
  ),
  'epoch_windowed_blt': lambda n: strategies.EpochWindowedBLT(
    n, *_epochs(n, (0, 1, 9), (1.2, 1.0, 0.7)), min(n // 3 + 2, n), (0.4,), (0.9,)
  ),
  'epoch_windowed_blt_narrow': lambda n: strategies.EpochWindowedBLT(
    n, (0,), (0.6,), min(5, n), SCALES, DECAYS
  ),
  'unit_inverse': lambda n: strategies.UnitBandedInverse(n, (1.0, -0.6, 0.2)[:n]),
  'tree_honaker': strategies.BinaryTree,
  'tree_honaker_restarts': lambda n: strategies.BinaryTree(n, restart_every=6),
  'tree_honaker_restarts_at_once': lambda n: strategies.BinaryTree(n, restart_every=1),
  'tree_plain': lambda n: strategies.BinaryTree(n, honaker=False),
  'tree_plain_restarts': lambda n: strategies.BinaryTree(n, False, restart_every=5),
}


def figures(strategy):
  """Returns recorded figures: published, of peers, and computed for comparison."""
  results = json.loads(_FIGURES.read_text())['results']
  found = [result for result in results if result['strategy'] == strategy]
  assert found, strategy  # Without figures, tests would be skipped.
  return found


def lower_toeplitz(column, num_rounds):
  """Returns the lower-triangular Toeplitz matrix whose first column begins so."""
  padded = np.append(column, np.zeros(num_rounds - len(column)))
  return scipy.linalg.toeplitz(padded, np.zeros(num_rounds))


def schemas(num_rounds):
  """Yields participation schemas of all kinds, some with a single round per client."""
  for min_separation, max_participations, fixed_epoch in itertools.product(
    range(1, num_rounds + 2), sorted({1, 2, 3, num_rounds}), [False, True]
  ):
    yield strategies.Participation(
      num_rounds, min_separation, max_participations, fixed_epoch
    )


@functools.cache
def _contributions(participation):
  """Returns a column for each pattern of rounds and signs; the first sign is plus."""
  columns = []
  for rounds in participation.patterns():
    for signs in itertools.product((1.0, -1.0), repeat=max(0, len(rounds) - 1)):
      columns.append(np.zeros(participation.num_rounds))
      columns[-1][list(rounds)] = (1.0, *signs)[: len(rounds)]
  return np.stack(columns, axis=1)


def worst_by_round(matrix, participation):
  """Returns the largest ||C_t u||^2 of the first t rows, over patterns and signs."""
  responses = matrix @ _contributions(participation)
  return np.cumsum(np.square(responses), axis=0).max(axis=1)


def check_sensitivity(strategy, participation):
  """Compares a strategy's sensitivity with brute force; returns whether it is exact."""
  worst = worst_by_round(strategy.materialize(), participation)
  by_round = strategy.sensitivity_squared_by_round(participation)
  squared = strategy.sensitivity_squared(participation)
  assert np.all(by_round >= worst * (1 - 1e-12)), participation
  assert np.all(np.diff(by_round) >= 0), participation
  assert squared == pytest.approx(by_round[-1], rel=1e-14), participation
  assert strategy.sensitivity(participation) == np.sqrt(squared)
  is_exact = strategy.sensitivity_kind(participation) == 'exact'
  if is_exact:
    assert squared == pytest.approx(worst[-1], rel=1e-11), participation
  return is_exact
