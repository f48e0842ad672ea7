"""Strategies that begin again: TF Privacy's `RestartQuery`, for any kind but trees.

The matrix of all rounds is block-diagonal, with the strategy's in each block, so that
what a client costs who takes part before and after restarts follows from it.
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
  """The strategy that begins again after as many rounds as it has, for `num_rounds`.

  It remembers no more noise than the rounds of a block, less one; between blocks the
  noise is independent, and adds up. The last block may be cut off, and the first may
  have `first` rounds only; TF Privacy's `warmup`.

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
