"""Measures time and memory of the tree's exact sensitivity.

    python -m benchmarks.tree_sensitivity [--slow]

Prints three tables. The first holds the claimed cases against their limits and,
where there is one, against the recorded time of TF Privacy's accountant
(tests/strategies/tree_sensitivity.json). The second shows how the cost grows. The
third compares with TF Privacy's accountant: both compute zeta* of the same case, one
after the other in this process, with empty caches, and the program fails if they
differ.

Times are CPU seconds of one core. Memory is the largest resident size of the process
so far (ru_maxrss), NumPy and the interpreter included, TensorFlow not: the claimed
cases run before it is imported.
"""

import os

os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'

import argparse
import functools
import json
import math
import pathlib
import resource
import time
from typing import Callable, NamedTuple, Optional, Union

from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import tree

_RUNS = 5
_RECORDED = pathlib.Path(__file__).parents[1] / 'tests/strategies/tree_sensitivity.json'


class Case(NamedTuple):
  """Rounds, rounds *between* participations, and maximum participations."""

  num_rounds: int
  rounds_between: int
  max_participations: int

  def __str__(self) -> str:
    return f'{self.num_rounds:8d} {self.rounds_between:8d} {self.max_participations:8d}'


# Cases that take the peer seconds.
_COMPARED = [Case(256, 50, 4), Case(512, 100, 4), Case(1000, 20, 20)]
# Claimed cases, with their limits in seconds.
_CLAIMED = {
  Case(2000, 313, 6): 0.01,
  Case(2**20, 1000, 64): 2.0,
  Case(100_000, 30, 500): 30.0,
}
_GROWTH = [
  Case(100_000, 0, 500),
  Case(100_000, 10, 2000),
  Case(100_000, 30, 100),
  Case(100_000, 30, 1000),
  Case(100_000, 30, 3226),
  Case(2**20, 100, 1000),
  Case(10**6, 0, 10**6),
  Case(10**6, 2, 10**6),
  Case(10**6, 100, 10_000),
  Case(10**6, 1000, 500),
  Case(10**6, 1022, 500),
]
_SLOWEST = Case(10**6, 254, 2000)
_PROFILES = [
  Case(2000, 313, 6),
  Case(2000, 29, 50),
  Case(10_000, 99, 20),
  Case(10_000, 6, 1000),
]


def our_zeta(case: Case) -> float:
  return tree.sensitivity_squared(
    case.num_rounds, case.rounds_between + 1, case.max_participations
  )


def peer_zeta(case: Case) -> float:
  """Returns TF Privacy's zeta*, from an empty cache."""
  from tensorflow_privacy.privacy.analysis import tree_aggregation_accountant as peer

  peer._tree_sensitivity_square_sum.cache_clear()
  return peer._max_tree_sensitivity_square_sum(
    case.max_participations, case.rounds_between, case.num_rounds
  )


def profile(case: Case, fixed_epoch: bool) -> float:
  """Returns our zeta* for all rounds, from those for every prefix."""
  participation = participation_lib.Participation(
    case.num_rounds, case.rounds_between + 1, case.max_participations, fixed_epoch
  )
  strategy = tree.BinaryTree(case.num_rounds)
  return float(strategy.sensitivity_squared_by_round(participation)[-1])


def best_time(function: Callable[[], float], runs: int) -> tuple[float, float]:
  """Returns the shortest time of several calls in seconds, and the value."""
  best, value = math.inf, math.nan
  for _ in range(runs):
    start = time.process_time()
    value = function()
    best = min(best, time.process_time() - start)
  return best, value


def recorded_seconds(case: Case) -> Optional[float]:
  """Returns recorded seconds of TF Privacy's accountant on one core elsewhere."""
  for recorded in json.loads(_RECORDED.read_text())['cases']:
    if case == tuple(recorded[field] for field in Case._fields):
      return float(recorded['reference_seconds'])
  return None


def memory() -> int:
  """Returns the largest resident size of this process so far, in bytes."""
  return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def header(*columns: str) -> None:
  print('\n  rounds  between    times', *columns, sep='  ')


def show_claims() -> None:
  header(
    ' zeta*', 'seconds', 'limit', 'of limit', 'MiB of 1024', 'TF Privacy, recorded'
  )
  for case, limit in _CLAIMED.items():
    seconds, value = best_time(functools.partial(our_zeta, case), _RUNS)
    recorded = recorded_seconds(case)
    peer: Union[str, float] = 'none' if recorded is None else recorded
    print(
      f'{case}  {value:8.0f}  {seconds:7.4f}  {limit:5.2f}  {seconds / limit:8.2g}'
      f'  {memory() / 2**20:11.0f}  {peer}'
    )


def show_growth(slow: bool) -> None:
  """Prints a line for each further case, and for each profile."""
  header('zeta*, or of every prefix  ', 'seconds', 'MiB so far')
  for case in [*_GROWTH, _SLOWEST] if slow else _GROWTH:
    seconds, value = best_time(functools.partial(our_zeta, case), 1)
    print(f'{case}  {value:28.0f}  {seconds:7.3f}  {memory() / 2**20:10.0f}')
  for case in _PROFILES:
    for fixed_epoch in (False, True):
      run = functools.partial(profile, case, fixed_epoch)
      seconds, value = best_time(run, 1)
      kind = 'fixed epochs' if fixed_epoch else 'min. separation'
      print(f'{case}  profile, {kind:19s}  {seconds:7.3f}')


def show_comparison() -> None:
  """Prints a line for each case that is feasible for the peer."""
  header(' zeta*', 'ours [ms]', 'TF Privacy [ms]', 'ratio')
  for case in _COMPARED:
    our_time, our_value = best_time(functools.partial(our_zeta, case), _RUNS)
    peer_time, peer_value = best_time(functools.partial(peer_zeta, case), _RUNS)
    if our_value != peer_value:
      raise AssertionError(f'we found {our_value}, TF Privacy {peer_value}.')
    print(
      f'{case}  {our_value:8.0f}  {our_time * 1e3:9.3f}  {peer_time * 1e3:15.1f}'
      f'  {our_time / peer_time:.1e}'
    )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', 1)[0])
  parser.add_argument('--slow', action='store_true', help='the slowest case as well')
  slow = parser.parse_args().slow
  show_claims()
  show_growth(slow)
  show_comparison()


if __name__ == '__main__':
  main()
