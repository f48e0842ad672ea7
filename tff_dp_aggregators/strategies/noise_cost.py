"""What a strategy's noise costs a server in a round: model-sized vectors, and time.

How often vectors are drawn, read and written follows from the strategy; seconds for
each were measured inside TFF (`benchmarks/noise_round.py`). `noise` chooses by them
where to keep what it remembers, and `accounting` compares mechanisms before any noise
is drawn. Nothing here draws it.
"""

from typing import NamedTuple, Optional

from tff_dp_aggregators.strategies import banded_inverse
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import tree
from tff_dp_aggregators.strategies import windowed_blt

# Seconds for 10^6 bytes: TFF carries a state to the worker and back; a row is drawn and
# added; a file is read and added, or made and written (benchmarks/noise_round.py).
_CARRY = 0.03
_DRAW = 0.004
_READ = 0.0006
_WRITE = 0.0025
_FILE = 0.00015  # Seconds that a file of any size takes.
# The whole noise matrix of other strategies would be part of the computation.
MAX_ROUNDS_WRITTEN_OUT = 1024


class Work(NamedTuple):
  """What a round takes at most if the noise of earlier rounds is kept.

  Attributes:
    buffers: Model-sized vectors that are kept from round to round.
    draws: Rows of z that are drawn.
    reads: Buffers that the round's noise is made of.
    writes: Buffers that change.
  """

  buffers: int
  draws: int
  reads: int
  writes: int


class Cost(NamedTuple):
  """What a place for the noise of earlier rounds costs.

  Attributes:
    seconds: Time of a round on one core inside TFF that depends on the place: not
      that of clipping, for instance.
    num_bytes: What is kept from round to round.
  """

  seconds: float
  num_bytes: int


def work(strategy: strategy_lib.Strategy) -> Work:
  """What a round takes at most if the noise of earlier rounds is kept.

  Args:
    strategy: Any strategy of this package.

  Example:
    >>> work(tree.BinaryTree(1000))
    Work(buffers=10, draws=1, reads=9, writes=1)
  """
  buffers = strategy.noise_buffers
  if isinstance(strategy, tree.BinaryTree):
    return Work(strategy.num_levels, 1, strategy.num_levels - 1, 1)
  if isinstance(strategy, banded_inverse.BandedInverse):
    buffers = strategy.num_inverse_bands - 1
  if isinstance(strategy, blt.BLT):
    return Work(buffers, 1, buffers, buffers)
  if isinstance(strategy, windowed_blt.WindowedBLT):
    return Work(buffers, max(1, strategy.num_copies), buffers, buffers)
  return Work(buffers, 1, buffers, 1)


def max_terms(strategy: strategy_lib.Strategy) -> Optional[int]:
  """How many rows of z a round's noise is made of at most, if none is kept.

  `None` if drawing them all again is not offered.
  """
  if isinstance(strategy, tree.BinaryTree):
    return None if strategy.honaker else strategy.num_levels
  if isinstance(strategy, banded_inverse.BandedInverse):
    return strategy.num_inverse_bands
  if not strategy.noise_buffers:
    return 1
  few = strategy.num_rounds <= MAX_ROUNDS_WRITTEN_OUT
  return strategy.num_rounds if few else None


def by_storage(strategy: strategy_lib.Strategy, num_bytes: int) -> dict[str, Cost]:
  """What each place for the noise of earlier rounds costs.

  Args:
    strategy: Any strategy of this package.
    num_bytes: Size of a record, a model update, as noise is drawn for it.

  Returns:
    Costs by `storage`, as `noise.build` takes it: 'state' carries the past in the state
    of the process, 'files' keeps it in files, 'redraw' draws it again. Only those that
    are offered; only 'redraw' if there is nothing to keep.

  Example:
    >>> costs = by_storage(tree.BinaryTree(1000), num_bytes=4 * 10**6)
    >>> sorted(costs), costs['files'].num_bytes
    (['files', 'state'], 40000000)
  """
  megabytes = num_bytes / 1e6
  buffers, draws, reads, writes = work(strategy)
  if not buffers:
    return {'redraw': Cost(_DRAW * megabytes, 0)}
  kept = buffers * num_bytes
  files = (_DRAW * draws + _READ * reads + _WRITE * writes) * megabytes
  costs = {
    'state': Cost((_DRAW * draws + _CARRY * buffers) * megabytes, kept),
    'files': Cost(files + _FILE * (reads + writes), kept),
  }
  terms = max_terms(strategy)
  if terms is not None:
    costs['redraw'] = Cost(_DRAW * terms * megabytes, 0)
  return costs


def cheapest(costs: dict[str, Cost]) -> str:
  """The storage with the least time: what 'auto' stands for."""
  return min(costs, key=lambda storage: costs[storage].seconds)
