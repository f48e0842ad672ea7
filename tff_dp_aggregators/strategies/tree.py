"""The binary-tree strategy of DP-FTRL, with or without periodic restarts.

`C` has one row per complete node of the tree over rounds: node (level, j) covers
rounds `[j 2^level, (j + 1) 2^level)` and exists if its last round is before
`num_rounds`. Row entries are 1 in the node's rounds (arXiv:2103.00039). Nodes are
numbered in the order in which they are completed.

**Restarts.** With `restart_every=r` a new tree begins every r rounds. The estimate of
a tree in its last round is added to all later estimates, as in TF Privacy's
`RestartQuery(TreeCumulativeSumQuery, PeriodicRoundRestartIndicator(r))`, and as in
arXiv:2103.00039 without its tree completion.

**Sensitivity** is exact under every participation schema, also across trees
(`numerics.tree_patterns`). A reviewer can check it by hand: `pattern_value` of a worst
pattern of rounds (`BinaryTree.worst_case_rounds`).
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import registry
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import tree_patterns
from tff_dp_aggregators.strategies.participation import Participation


def num_levels(num_rounds: int) -> int:
  """Number of levels of the tree over `num_rounds` rounds: floor(log2 n) + 1."""
  return checks.check_positive_int('num_rounds', num_rounds).bit_length()


@dataclasses.dataclass(frozen=True)
class BinaryTree(strategy_lib.Strategy):
  """The tree strategy with one of its two estimators, optionally with restarts.

  Attributes:
    num_rounds: Rounds n, the tree's leaves.
    honaker: Whether prefix sums are estimated by Honaker's online method, which
      combines each node with all nodes below it and lowers the variance by up to a half
      (Honaker 2015, "Efficient use of differentially private binary trees", estimation
      from below), or by the plain sum of the fewest nodes.
    restart_every: Rounds after which a new tree begins; `None` for a single tree.

  Example:
    >>> participation = Participation(8, min_separation=1)
    >>> BinaryTree(8).sensitivity(participation) ** 2  # 8 + 4*2^2 + 2*4^2 + 8^2
    120.0
  """

  honaker: bool = True
  restart_every: Optional[int] = None
  kind = 'binary_tree'
  _has_max_rounds = False  # The sensitivity needs no array of length num_rounds.

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.honaker, bool):
      raise TypeError(f'honaker must be a bool, got {self.honaker!r}.')
    restart_every = _check_restart_every(self.restart_every)
    object.__setattr__(self, 'restart_every', restart_every)

  def parameters(self) -> dict[str, Any]:
    """The dataclass fields, without `restart_every` if it is `None`."""
    parameters = super().parameters()
    if self.restart_every is None:
      del parameters['restart_every']
    return parameters

  def __repr__(self) -> str:
    values = ', '.join(f'{name}={value!r}' for name, value in self.parameters().items())
    return f'{type(self).__name__}({values})'

  @property
  def tree_rounds(self) -> int:
    """Number of rounds of the first tree, the longest one."""
    return min(self.num_rounds, self.restart_every or self.num_rounds)

  @property
  def num_levels(self) -> int:
    """Number of levels of the longest tree, leaves included."""
    return num_levels(self.tree_rounds)

  @property
  def num_nodes(self) -> int:
    """Number of complete nodes, the rows of `C`: 2 t - popcount(t) for t rounds."""
    whole, rest = divmod(self.num_rounds, self.tree_rounds)
    first, last = (2 * t - bin(t).count('1') for t in (self.tree_rounds, rest))
    return whole * first + last

  def recursion(self) -> recursion_lib.TreeNodes:
    """Honaker's method keeps a combined node a level; plain nodes are drawn again."""
    combination = None
    if self.honaker:
      combination = recursion_lib.honaker_combination(self.num_levels)
    return recursion_lib.TreeNodes(self._weights, combination, self.restart_every)

  def sensitivity_squared_by_round(
    self, participation: Optional[Participation] = None
  ) -> np.ndarray:
    """Exact for every prefix: arXiv:2103.00039, Appendix D.2.

    Calls `tree.sensitivity_squared` for about `log2(num_rounds)` prefixes per distinct
    value: `Participation(10000, 100, 20)` takes 0.1 s, `(10000, 7, 1000)` 5 s.
    """
    participation = self._participation(participation)
    return _search(participation, self.restart_every).profile(self.num_rounds)

  def squared_or_bound(self, participation: Participation) -> tuple[float, bool]:
    """Exact; computed for the whole run only."""
    search = _search(participation, self.restart_every)
    return float(search.value(self.num_rounds)), True

  def sensitivity_kind(self, participation: Optional[Participation] = None) -> str:
    """Always 'exact', without a search."""
    self._participation(participation)
    return 'exact'

  def worst_case_rounds(
    self, participation: Optional[Participation] = None
  ) -> tuple[int, ...]:
    """A pattern of rounds that attains the sensitivity, in increasing order.

    Example:
      >>> participation = Participation(2000, 314, 6)
      >>> rounds = BinaryTree(2000).worst_case_rounds(participation)
      >>> rounds, pattern_value(rounds, 2000)
      ((0, 314, 628, 942, 1256, 1570), 79)
    """
    participation = self._participation(participation)
    return _search(participation, self.restart_every).rounds(self.num_rounds)

  def noise_row_norms(self) -> np.ndarray:
    """Takes O(n): a norm depends only on the level of the highest completed node."""
    in_tree = np.arange(self.num_rounds) % self.tree_rounds
    completed = np.bitwise_xor(in_tree, in_tree + 1)  # A 1-bit for each node completed.
    heights = np.frexp(completed.astype(np.float64))[1] - 1
    return np.sqrt(self.recursion().variance_by_height())[heights]

  def per_query_error(self, workload: workload_lib.WorkloadLike = None) -> np.ndarray:
    """Takes O(n log n) for prefix sums, without a matrix.

    The variance of a node's estimate is equal to its weight.
    """
    workload = workload_lib.check(self.num_rounds, workload)
    if not workload_lib.is_prefix_sums(workload):
      return super().per_query_error(workload)
    ends = np.arange(1, self.tree_rounds + 1)
    error = np.zeros(self.tree_rounds)
    for level, variance in enumerate(self._weights):
      error += variance * (ends >> level & 1)
    earlier_trees, rounds = np.divmod(np.arange(self.num_rounds), self.tree_rounds)
    return earlier_trees * error[-1] + error[rounds]

  def materialize(self) -> np.ndarray:
    """`C` as a dense array; shape [num_nodes, num_rounds]."""
    matrix = np.zeros((self.num_nodes, self.num_rounds))
    for row, (last, level) in zip(matrix, self._nodes()):
      row[last + 1 - 2**level : last + 1] = 1.0
    return matrix

  def materialize_estimator(self) -> np.ndarray:
    """`B` with `B C = A` for prefix sums A, dense; shape [num_rounds, num_nodes]."""
    matrix = np.zeros((self.num_rounds, self.num_nodes))
    estimates: list[tuple[int, np.ndarray]] = []  # The prefix's nodes and levels.
    earlier_trees = np.zeros(self.num_nodes)
    for index, (last, level) in enumerate(self._nodes()):
      if last and last % self.tree_rounds == level == 0:
        earlier_trees, estimates = matrix[last - 1], []
      estimate = np.eye(1, self.num_nodes, index)[0]
      if level:
        (_, right), (_, left) = estimates.pop(), estimates.pop()
        if self.honaker:
          estimate += (left + right) / 2
      estimates.append((level, estimate))
      matrix[last] = earlier_trees
      for node_level, node_estimate in estimates:
        matrix[last] += self._weights[node_level] * node_estimate
    return matrix

  def _nodes(self) -> Iterator[tuple[int, int]]:
    """Yields (last round, level) of each node, in the order of completion."""
    for last in range(self.num_rounds):
      in_tree = last % self.tree_rounds
      for level in range((in_tree ^ (in_tree + 1)).bit_length()):
        yield last, level

  @property
  def _weights(self) -> np.ndarray:
    """Factors that make node estimates unbiased, by level: 1 / (2 - 2^-level), or 1."""
    if not self.honaker:
      return np.ones(self.num_levels)
    return 1.0 / (2.0 - 0.5 ** np.arange(self.num_levels))


def sensitivity_squared(
  num_rounds: int,
  min_separation: int,
  max_participations: Optional[int] = None,
  *,
  fixed_epoch: bool = False,
  restart_every: Optional[int] = None,
) -> int:
  """Returns the exact squared sensitivity zeta* of the tree.

  It is the maximum over patterns of the sum, over complete nodes, of the squared number
  of a client's rounds below the node (arXiv:2103.00039, Appendix D.2).

  Time and memory hardly grow with `num_rounds` alone, at worst with
  `max_participations` times `min_separation`: 2 s for 10^6 rounds, 101 apart, 10,000
  times, up to a minute for separations just below a power of two.

  Args:
    num_rounds: Leaves of the tree, or of all trees.
    min_separation: See `Participation`, also for the next two.
    max_participations: Maximum rounds of one client; `None` for as many as fit.
    fixed_epoch: Whether differences are multiples of exactly `min_separation`.
    restart_every: Rounds after which a new tree begins; `None` for a single tree.

  Example:
    >>> sensitivity_squared(2000, min_separation=314, max_participations=6)  # Gboard.
    79
  """
  participation = Participation(
    num_rounds, min_separation, max_participations, fixed_epoch
  )
  return _search(participation, restart_every).value(num_rounds)


def best_restart(limits: Participation) -> Optional[int]:
  """The best `restart_every`, `min_separation` 2^i, by RMSE; `None` if none helps."""
  best, least_error = None, BinaryTree(limits.num_rounds).rmse(limits)
  restart_every = max(2, limits.min_separation)
  while restart_every < limits.num_rounds:
    restarted = BinaryTree(limits.num_rounds, restart_every=restart_every)
    error = restarted.rmse(limits)
    if error < least_error:
      best, least_error = restart_every, error
    restart_every *= 2
  return best


def pattern_value(
  rounds: Iterable[int], num_rounds: int, restart_every: Optional[int] = None
) -> int:
  """The sum over nodes of the squared number of one client's rounds below the node.

  Computed from the definition, to check the result of `worst_case_rounds` by hand.

  Example:
    Three of five rounds: three leaves, two of them below the node of rounds 0 and 1,
    one below that of 2 and 3, all below that of 0 to 3: 3 * 1 + 2^2 + 1^2 + 3^2.

    >>> pattern_value([0, 1, 3], num_rounds=5)
    17
  """
  num_rounds = checks.check_positive_int('num_rounds', num_rounds)
  tree_rounds = _check_restart_every(restart_every) or num_rounds
  rounds = [checks.check_int('rounds', r, at_least=0) for r in rounds]
  if len(set(rounds)) < len(rounds) or max(rounds, default=0) >= num_rounds:
    raise ValueError(
      f'rounds must be different and from 0 to {num_rounds - 1}, got {rounds}.'
    )
  counts: collections.Counter[tuple[int, int]] = collections.Counter()
  for round_number in rounds:
    first = round_number - round_number % tree_rounds
    tree_end = min(first + tree_rounds, num_rounds)
    for level in range(num_levels(tree_end - first)):
      end = first + ((((round_number - first) >> level) + 1) << level)
      if end <= tree_end:
        counts[level, end] += 1
  return sum(count**2 for count in counts.values())


def _search(
  participation: Participation, restart_every: Optional[int]
) -> tree_patterns.Search:
  return tree_patterns.Search(participation, _check_restart_every(restart_every))


def _check_restart_every(restart_every: Optional[int]) -> Optional[int]:
  if restart_every is None:
    return None
  return checks.check_positive_int('restart_every', restart_every)


def _build(limits: registry.Limits, restart_every: Optional[int] = None) -> BinaryTree:
  # Unlike its sensitivity, a mechanism's errors need arrays of length num_rounds.
  strategy_lib.check_rounds(limits.num_rounds)
  return BinaryTree(limits.num_rounds, restart_every=restart_every)


def _variants(
  limits: registry.Limits, given: registry.Options
) -> list[registry.Options]:
  """One tree without restarts, and one with those given or the best, if they help."""
  restart_every = given.get('restart_every') or best_restart(limits)
  return [{}] if restart_every is None else [{}, {'restart_every': restart_every}]


registry.register(
  registry.Kind(
    'tree',
    BinaryTree,
    _build,
    words='noise of a binary tree over the rounds, as in DP-FTRL',
    citations=('arXiv:2103.00039',),
    options=(
      registry.Option(
        'restart_every',
        help='rounds after which the tree begins anew, by default never; a plan has '
        'one tree without, and one with the best restarts unless they are given',
        read=lambda strategy: strategy.restart_every,
        words=('a new one each round', 'a new one every {}'),
        title='restarts',
        written='every {} rounds',
        meaning='the tree begins anew',
      ),
    ),
    variants=_variants,
  )
)
