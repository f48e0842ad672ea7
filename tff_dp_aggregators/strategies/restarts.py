"""Strategies that restart, as TF Privacy's `RestartQuery`, of any kind but trees.

The matrix of all rounds is block-diagonal with the strategy's matrix in each block, so
its sensitivity also covers clients who take part before and after a restart.
"""

from typing import Optional

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import tree


def restarted(
  strategy: strategy_lib.Strategy, num_rounds: int, *, first: Optional[int] = None
) -> banded.Banded:
  """Returns a strategy for `num_rounds` that restarts after the rounds of another.

  A server keeps noise of at most the rounds of a block, less one. The noise of
  different blocks is independent, and adds up. The last block may be cut off, and the
  first block may have only `first` rounds (TF Privacy's `warmup`).

  Example:
    >>> from tff_dp_aggregators.strategies import toeplitz
    >>> restarted(toeplitz.BandedToeplitz(2, (1.0, 0.5)), 3).materialize()
    array([[1. , 0. , 0. ],
           [0.5, 1. , 0. ],
           [0. , 0. , 1. ]])
  """
  strategy_lib.require(strategy)
  num_rounds = checks.check_positive_int('num_rounds', num_rounds)
  period = strategy.num_rounds
  if isinstance(strategy, tree.BinaryTree):
    raise ValueError(
      'a tree restarts by itself: give BinaryTree(num_rounds, '
      f'restart_every={period}), or restart_every={period} to aggregators.tree.'
    )
  start = 0
  if first is not None:
    first = checks.check_positive_int('first', first)
    if first > period:
      raise ValueError(
        f'first must be at most the {period} rounds of the strategy; got {first}.'
      )
    start = first - period
  block = strategy.materialize()
  matrix = np.zeros((num_rounds, num_rounds))
  for begin in range(start, num_rounds, period):
    # Leading rows and columns of a block are the strategy of fewer rounds.
    rows = slice(max(begin, 0), min(begin + period, num_rounds))
    size = rows.stop - rows.start
    matrix[rows, rows] = block[:size, :size]
  return banded.Banded.from_matrix(matrix)
