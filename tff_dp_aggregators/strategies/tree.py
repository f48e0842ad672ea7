"""The binary-tree strategy of DP-FTRL, without restarts.

`C` has one row per complete node of the tree over rounds: node (level, j) covers
rounds `[j 2^level, (j + 1) 2^level)` and exists when its last round is before
`num_rounds`. Row entries are 1 in the node's rounds (arXiv:2103.00039).

Nodes are numbered in the order in which they are completed; the node of level l
whose last round is t has number `2 t - popcount(t) + l`.
"""

import dataclasses
from typing import Optional

import numpy as np

from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import workload as workload_lib

# Value reached, and the earliest round, counted from the end of what was walked so
# far, at which the client may come back.
_Front = list[tuple[int, int]]


def node_index(last_round: int, level: int) -> int:
  """Number of the node of `level` that round `last_round` completes.

  Before round t, `2 t - popcount(t)` nodes are complete; round t completes its leaf
  and then one node of each higher level that ends with it.

  Example:
    >>> [node_index(3, level) for level in range(3)]  # Round 3 ends three nodes.
    [4, 5, 6]
  """
  return 2 * last_round - bin(last_round).count('1') + level


def num_levels(num_rounds: int) -> int:
  """Levels of the tree over `num_rounds` rounds: floor(log2 n) + 1."""
  return participation_lib.check_positive_int('num_rounds', num_rounds).bit_length()


def prefix_nodes(end: int) -> list[tuple[int, int]]:
  """(last round, level) of the fewest nodes that cover rounds 0 to end - 1."""
  return [
    ((end >> level << level) - 1, level)
    for level in range(end.bit_length())
    if end >> level & 1
  ]


@dataclasses.dataclass(frozen=True)
class BinaryTree(strategy_lib.Strategy):
  """The tree strategy with one of its two estimators.

  Attributes:
    num_rounds: Rounds n, the tree's leaves.
    honaker: Whether prefix sums are estimated by Honaker's online method, which
      combines each node with all nodes below it and lowers the variance by up to a
      half (Honaker 2015, "Efficient use of differentially private binary trees",
      estimation from below), or by the plain sum of the fewest nodes.
      The sensitivity is the same.

  Example:
    >>> participation = participation_lib.Participation(8, min_separation=1)
    >>> BinaryTree(8).sensitivity(participation) ** 2  # 8 + 4*2^2 + 2*4^2 + 8^2
    120.0
  """

  honaker: bool = True
  kind = 'binary_tree'

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.honaker, bool):
      raise TypeError(f'honaker must be a bool, got {self.honaker!r}.')

  @property
  def num_levels(self) -> int:
    """Levels of the tree, leaves included."""
    return num_levels(self.num_rounds)

  @property
  def num_nodes(self) -> int:
    """Complete nodes, the rows of `C`."""
    return node_index(self.num_rounds, 0)

  @property
  def noise_buffers(self) -> int:
    """Honaker carries a weighted sum a level; plain nodes are drawn again."""
    return self.num_levels if self.honaker else 0

  def sensitivity_squared_by_round(
    self, participation: Optional[participation_lib.Participation] = None
  ) -> np.ndarray:
    """See `Strategy`. Exact: arXiv:2103.00039, Appendix D.2, for every prefix."""
    participation = self._participation(participation)
    return _sensitivity_squared_of_prefixes(
      list(range(1, self.num_rounds + 1)), participation
    )

  def sensitivity_squared(
    self, participation: Optional[participation_lib.Participation] = None
  ) -> float:
    """See `Strategy`; without the work for shorter prefixes."""
    participation = self._participation(participation)
    return float(_sensitivity_squared_of_prefixes([self.num_rounds], participation)[0])

  def sensitivity_kind(
    self, participation: Optional[participation_lib.Participation] = None
  ) -> str:
    """See `Strategy`. Fixed-epoch patterns are counted as min-separation ones."""
    participation = self._participation(participation)
    return 'bound' if participation.fixed_epoch else 'exact'

  def per_query_error(self, workload: workload_lib.WorkloadLike = None) -> np.ndarray:
    """See `Strategy`; O(n log n) for prefix sums, without the matrix.

    A node's estimate has variance 1, or by Honaker's method 1 / (2 - 2^-level).
    """
    if workload is not None:
      return super().per_query_error(workload)
    ends = np.arange(1, self.num_rounds + 1)
    error = np.zeros(self.num_rounds)
    for level in range(self.num_levels):
      variance = honaker_weight(level) if self.honaker else 1.0
      error += variance * (ends >> level & 1)
    return error

  def materialize(self) -> np.ndarray:
    """See `Strategy`; shape [num_nodes, num_rounds]."""
    matrix = np.zeros((self.num_nodes, self.num_rounds))
    for last in range(self.num_rounds):
      for level in range(self.num_levels):
        if (last + 1) % 2**level == 0:
          matrix[node_index(last, level), last + 1 - 2**level : last + 1] = 1.0
    return matrix

  def materialize_estimator(self) -> np.ndarray:
    """See `Strategy`; shape [num_rounds, num_nodes]."""
    matrix = np.zeros((self.num_rounds, self.num_nodes))
    for row in range(self.num_rounds):
      for last, level in prefix_nodes(row + 1):
        if self.honaker:
          matrix[row] += self._honaker_node(last, level) * honaker_weight(level)
        else:
          matrix[row, node_index(last, level)] = 1.0
    return matrix

  def _honaker_node(self, last: int, level: int) -> np.ndarray:
    """Unnormalised estimate of a node: itself and half of its two children's."""
    row = np.zeros(self.num_nodes)
    row[node_index(last, level)] = 1.0
    if level:
      for child_last in (last - 2 ** (level - 1), last):
        row += 0.5 * self._honaker_node(child_last, level - 1)
    return row


def honaker_weight(level: int) -> float:
  """1 / (2 - 2^-level): makes the unnormalised estimate of a node unbiased."""
  return 1.0 / (2.0 - 2.0**-level)


def sensitivity_squared(
  num_rounds: int, min_separation: int, max_participations: Optional[int] = None
) -> int:
  """Exact squared sensitivity zeta* of a single tree without restarts.

  The largest sum, over complete nodes, of the squared number of rounds in which one
  client takes part below the node (arXiv:2103.00039, Appendix D.2).

  The cost grows with the number of (count, first possible round) states that an
  optimal client can reach at each node: about `max_participations^2 * log2(num_rounds)`
  times the length of a front, which is short.

  Args:
    num_rounds: Leaves of the tree.
    min_separation: Smallest difference of two rounds of one client. (The
      literature's accountant counts the rounds between: one less.)
    max_participations: Most rounds of one client; `None` for as many as fit.

  Returns:
    zeta*, a whole number.

  Raises:
    ValueError: If an argument is less than 1.

  Example:
    >>> sensitivity_squared(2000, min_separation=314, max_participations=6)  # Gboard.
    79
  """
  participation = participation_lib.Participation(
    num_rounds, min_separation, max_participations
  )
  return int(_sensitivity_squared_of_prefixes([num_rounds], participation)[0])


def _sensitivity_squared_of_prefixes(
  ends: list[int], participation: participation_lib.Participation
) -> np.ndarray:
  """zeta* of the nodes inside rounds [0, end) for every `end`."""
  nodes = _CompleteNodes(participation.min_separation)
  most = participation.possible_participations
  prefixes: dict[int, list[_Front]] = {0: [[(0, 0)]]}

  def fronts_of_prefix(end: int) -> list[_Front]:
    """Entry j: the front of patterns of j participations in [0, end)."""
    if end not in prefixes:
      last_node = end & -end  # Size of the last, smallest node of the prefix.
      before = fronts_of_prefix(end - last_node)
      level = last_node.bit_length() - 1
      prefixes[end] = nodes.append(before, level, most)
    return prefixes[end]

  return np.array(
    [
      max(value for front in fronts_of_prefix(end) for value, _ in front)
      for end in ends
    ],
    np.float64,
  )


class _CompleteNodes:
  """Fronts of complete nodes by (level, participations, first possible round).

  For a node and a number of participations below it, all that matters to the right
  of it is the value reached and the earliest round of a next participation. Of the
  patterns, only those are kept that no other beats in both: a short front.
  """

  def __init__(self, min_separation: int):
    self._min_separation = min_separation
    self._fronts: dict[tuple[int, int, int], _Front] = {}

  def front(self, level: int, count: int, start: int) -> _Front:
    """Front of `count` participations in the node, none before `start` in it."""
    size = 2**level
    if count == 0:
      return [(0, max(0, start - size))]
    room = -(-(size - start) // self._min_separation)
    if count > room:
      return []
    if count == 1:
      # Wherever it lies, it counts once a level; the earliest leaves most room.
      return [(level + 1, max(0, start + self._min_separation - size))]
    key = (level, count, start)
    if key not in self._fronts:
      joined = [
        (value + right_value + count * count, back)
        for right in range(count + 1)
        for value, middle in self.front(level - 1, count - right, start)
        for right_value, back in self.front(level - 1, right, middle)
      ]
      self._fronts[key] = _prune(joined)
    return self._fronts[key]

  def append(self, before: list[_Front], level: int, most: int) -> list[_Front]:
    """Fronts of a prefix followed by one more complete node of `level`."""
    room = -(-(2**level) // self._min_separation)
    after: list[_Front] = []
    for count in range(min(most, len(before) - 1 + room) + 1):
      joined = [
        (value + node_value, back)
        for in_node in range(max(0, count - len(before) + 1), min(count, room) + 1)
        for value, start in before[count - in_node]
        for node_value, back in self.front(level, in_node, start)
      ]
      after.append(_prune(joined))
    return after


def _prune(pairs: _Front) -> _Front:
  """The pairs that no other one beats in value and in early return."""
  kept: _Front = []
  for value, back in sorted(pairs, key=lambda pair: (-pair[0], pair[1])):
    if not kept or back < kept[-1][1]:
      kept.append((value, back))
  return kept
