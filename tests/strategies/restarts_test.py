"""Tests of strategies that restart: their block-diagonal matrix and sensitivity."""

import numpy as np
import pytest
import scipy.linalg

from tests.strategies import every_kind
from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import restarts

_BLOCKS = {
  'banded': lambda: strategies.banded.optimize(4, num_bands=2),
  'banded_inverse': lambda: strategies.BandedInverse.square_root(4, 2),
  'blt': lambda: strategies.BLT(4, (0.3, 0.1), (0.9, 0.5)),
  'dense': lambda: strategies.Dense(4, np.tril(np.arange(1.0, 17).reshape(4, 4))),
  'identity': lambda: strategies.Identity(4),
  'toeplitz': lambda: strategies.BandedToeplitz.square_root(4, 3),
}
each_kind = pytest.mark.parametrize('kind', _BLOCKS)


@each_kind
@pytest.mark.parametrize(
  ('num_rounds', 'first', 'sizes'),
  [
    (8, None, (4, 4)),
    (10, None, (4, 4, 2)),
    (10, 1, (1, 4, 4, 1)),
    (2, 3, (2,)),
  ],
)
def test_restarted_matrix_is_block_diagonal(kind, num_rounds, first, sizes):
  block = _BLOCKS[kind]()
  matrix = block.materialize()
  restarted = restarts.restarted(block, num_rounds, first=first)
  expected = scipy.linalg.block_diag(*(matrix[:size, :size] for size in sizes))
  np.testing.assert_array_equal(restarted.materialize(), expected)
  assert restarted.num_rounds == num_rounds
  assert restarted.num_bands <= max(sizes)


@each_kind
@pytest.mark.parametrize(
  'participation',
  [
    strategies.Participation(10, min_separation=4),
    strategies.Participation(10, min_separation=3, max_participations=3),
    strategies.Participation.single(10),
  ],
)
def test_restarted_sensitivity_matches_brute_force(kind, participation):
  restarted = restarts.restarted(_BLOCKS[kind](), 10, first=2)
  is_exact = every_kind.check_sensitivity(restarted, participation)
  assert is_exact or participation.min_separation < 4


@pytest.mark.parametrize(
  ('arguments', 'first', 'error', 'message'),
  [
    (('blt', 8), None, TypeError, 'strategy must be a strategies.Strategy'),
    ((strategies.BinaryTree(4), 8), None, ValueError, r'restart_every=4\)'),
    ((strategies.Identity(4), 0), None, ValueError, 'num_rounds must'),
    ((strategies.Identity(4), 8), 0, ValueError, 'first must be'),
    ((strategies.Identity(4), 8), 5, ValueError, 'first must be'),
  ],
)
def test_restarted_refuses_invalid_arguments(arguments, first, error, message):
  with pytest.raises(error, match=message):
    restarts.restarted(*arguments, first=first)
