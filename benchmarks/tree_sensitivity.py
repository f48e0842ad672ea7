"""Time of the tree's exact sensitivity, as a ratio to TF Privacy's accountant.

    python -m benchmarks.tree_sensitivity

Both compute zeta* of the same case, one after the other in this process; the program
fails if they differ. Their caches are empty at each start.
"""

import math
import time
from typing import Callable

from tensorflow_privacy.privacy.analysis import tree_aggregation_accountant

from tff_dp_aggregators.strategies import tree

_RUNS = 5
# Rounds, rounds between participations, participations: what the peer does in seconds.
_CASES = ((256, 50, 4), (512, 100, 4), (1000, 20, 20))


def _best_time(function: Callable[[], float]) -> tuple[float, float]:
  """Smallest time of several calls in seconds, and the value."""
  best, value = math.inf, math.nan
  for _ in range(_RUNS):
    start = time.perf_counter()
    value = function()
    best = min(best, time.perf_counter() - start)
  return best, value


def main() -> None:
  """Prints a line a case."""
  print('rounds  between  times   zeta*   ours [ms]   TF Privacy [ms]   ratio')
  for num_rounds, between, participations in _CASES:

    def peer(
      num_rounds: int = num_rounds,
      between: int = between,
      participations: int = participations,
    ) -> float:
      tree_aggregation_accountant._tree_sensitivity_square_sum.cache_clear()
      return tree_aggregation_accountant._max_tree_sensitivity_square_sum(
        participations, between, num_rounds
      )

    def ours(
      num_rounds: int = num_rounds,
      between: int = between,
      participations: int = participations,
    ) -> float:
      return tree.sensitivity_squared(num_rounds, between + 1, participations)

    our_time, our_value = _best_time(ours)
    peer_time, peer_value = _best_time(peer)
    if our_value != peer_value:
      raise AssertionError(f'we found {our_value}, TF Privacy {peer_value}.')
    print(
      f'{num_rounds:6d}  {between:7d}  {participations:5d}  {our_value:6.0f}'
      f'  {our_time * 1e3:10.3f}  {peer_time * 1e3:16.1f}  {our_time / peer_time:.1e}'
    )


if __name__ == '__main__':
  main()
