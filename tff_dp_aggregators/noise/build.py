"""From a strategy to its streaming noise: what to remember, and where."""

import logging
from typing import Union

from tff_dp_aggregators import strategies
from tff_dp_aggregators.noise import carried
from tff_dp_aggregators.noise import file_cache
from tff_dp_aggregators.noise import filed
from tff_dp_aggregators.noise import recursions
from tff_dp_aggregators.noise import redrawn
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import streaming
from tff_dp_aggregators.strategies import noise_cost

_logger = logging.getLogger(__name__)
KINDS = ('state', 'redraw', 'files')
Storage = Union[str, file_cache.Files]


def build(
  strategy: strategies.Strategy,
  rows: rows_lib.GaussianRows,
  storage: Storage = 'auto',
) -> streaming.StreamingNoise:
  """The streaming noise of a strategy, `(D z)[t]` in round t.

  Args:
    strategy: Any strategy of this package.
    rows: Source of the rows of z.
    storage: Where what the noise remembers is: 'state' carries it in the state,
      'redraw' draws the past again in each round, 'files' or a `Files` keeps it in
      files of the machine that adds the noise. 'auto' takes what is least work inside
      TFF, where a state travels in each round.

  Raises:
    OSError: If the directory for files cannot be used.
    RuntimeError: If another process uses it.
    TypeError: If the strategy is of no known kind.
    ValueError: If `storage` is unknown, or not offered for the strategy.
  """
  past = recursion_of(strategy, rewind=0)
  chosen = storage
  if isinstance(storage, str):
    if storage == 'auto':
      chosen = _cheapest(strategy, rows)
    elif storage not in KINDS:
      raise ValueError(
        f"storage must be 'auto', {', '.join(map(repr, KINDS))} or noise.Files(...), "
        f'got {storage!r}.'
      )
  elif not isinstance(storage, file_cache.Files):
    raise TypeError(f'storage must be a string or a Files, got {storage!r}.')
  if chosen == 'redraw' or past.num_slots == 0:
    return redrawn.RedrawnNoise(strategy, rows)
  if chosen == 'state':
    return carried.build(past, rows)
  files = chosen if isinstance(chosen, file_cache.Files) else file_cache.Files()
  past = recursion_of(strategy, files.rewind)
  return filed.build(past, rows, files, strategy.checksum)


def recursion_of(
  strategy: strategies.Strategy, rewind: int
) -> Union[recursions.PastValues, recursions.Decays]:
  """How a strategy's noise follows from what was before.

  Args:
    strategy: Any strategy of this package.
    rewind: How many of the rounds served last can be served again with what is kept
      now: 0 where it is in the state, since an old state has what it needs.

  Raises:
    TypeError: If the strategy is of no known kind.
  """
  if isinstance(strategy, strategies.BinaryTree):
    return recursions.Tree(strategy, rewind)
  if isinstance(strategy, (strategies.BLT, strategies.WindowedBLT)):
    return recursions.Decays(strategy)
  if isinstance(strategy, strategies.BandedInverse):
    return recursions.LastRounds.over_rows(strategy, rewind)
  kinds = (
    strategies.Banded,
    strategies.BandedToeplitz,
    strategies.Dense,
    strategies.Identity,
  )
  if isinstance(strategy, kinds):
    return recursions.LastRounds.solving(strategy, rewind)
  raise TypeError(
    f'no streaming noise is known for a strategy of type {type(strategy).__name__}.'
  )


def _cheapest(strategy: strategies.Strategy, rows: rows_lib.GaussianRows) -> str:
  """The storage with the least work for a round inside TFF."""
  costs = noise_cost.by_storage(strategy, rows.layout.num_bytes)
  chosen = noise_cost.cheapest(costs)
  _logger.info(
    'noise of a %s strategy for %d rounds: storage %r (seconds a round, estimated: %s)',
    strategy.kind,
    strategy.num_rounds,
    chosen,
    ', '.join(f'{name} {cost.seconds:.3g}' for name, cost in costs.items()),
  )
  return chosen
