"""What a strategy's noise costs a server in a round: model-sized vectors, and time.

How often vectors are drawn, read and written follows from the strategy's recursion
(`strategies.recursion`); seconds for each were measured inside TFF
(`benchmarks/noise_round.py`). `noise` chooses by them where to keep what it remembers,
and `accounting` compares mechanisms before any noise is drawn. Nothing here draws it.
"""

from typing import NamedTuple, Optional

from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import strategy as strategy_lib

# Seconds for 10^6 bytes: TFF carries a state to the worker and back; a row is drawn and
# added; a file is read and added, or made and written (benchmarks/noise_round.py).
_CARRY = 0.03
_DRAW = {'chacha20': 0.025, 'philox': 0.01}  # By what the noise is made of.
_READ = 0.0006
_WRITE = 0.0025
_FILE = 0.00015  # Seconds that a file of any size takes.
# The whole noise matrix of other strategies would be part of the computation.
MAX_ROUNDS_WRITTEN_OUT = 1024


class Cost(NamedTuple):
  """What a place for the noise of earlier rounds costs.

  Attributes:
    seconds: Time of a round on one core inside TFF that depends on the place: not
      that of clipping, for instance.
    num_bytes: What is kept from round to round.
  """

  seconds: float
  num_bytes: int


def max_terms(strategy: strategy_lib.Strategy) -> Optional[int]:
  """How many rows of z a round's noise is made of at most, if none is kept.

  Few rows if the recursion says so. All rounds so far, with the noise matrix written
  out, if there are up to `MAX_ROUNDS_WRITTEN_OUT` and it is a matrix of these rows.

  Returns the number; `None` if drawing them all again is not offered.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> max_terms(strategies.BandedInverse.square_root(num_rounds=2000, num_bands=4))
    4
    >>> max_terms(strategies.BLT(1000, (0.5,), (0.8,)))
    1000
  """
  return _max_terms(strategy.recursion(), strategy.num_rounds)


def _max_terms(recursion: recursion_lib.Recursion, num_rounds: int) -> Optional[int]:
  if recursion.max_terms is not None or not recursion.applies_noise_matrix:
    return recursion.max_terms
  return num_rounds if num_rounds <= MAX_ROUNDS_WRITTEN_OUT else None


def by_storage(
  strategy: strategy_lib.Strategy, num_bytes: int, generator: str = 'chacha20'
) -> dict[str, Cost]:
  """What each place for the noise of earlier rounds costs.

  Returns costs by `storage`, as `noise.build` takes it: 'state' carries the past in the
  state of the process, 'files' keeps it in files, 'redraw' draws it again. Only those
  that are offered; only 'redraw' if there is nothing to keep.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> costs = by_storage(strategies.BinaryTree(1000), num_bytes=4 * 10**6)
    >>> sorted(costs), costs['files'].num_bytes
    (['files', 'state'], 40000000)
  """
  megabytes = num_bytes / 1e6
  draw = _DRAW[generator]
  recursion = strategy.recursion()
  buffers, draws, reads, writes = recursion.work
  if not buffers:
    return {'redraw': Cost(draw * megabytes, 0)}
  kept = buffers * num_bytes
  files = (draw * draws + _READ * reads + _WRITE * writes) * megabytes
  costs = {
    'state': Cost((draw * draws + _CARRY * buffers) * megabytes, kept),
    'files': Cost(files + _FILE * (reads + writes), kept),
  }
  terms = _max_terms(recursion, strategy.num_rounds)
  if terms is not None:
    costs['redraw'] = Cost(draw * terms * megabytes, 0)
  return costs


def cheapest(costs: dict[str, Cost]) -> str:
  """The storage with the least time: what 'auto' stands for."""
  return min(costs, key=lambda storage: costs[storage].seconds)
