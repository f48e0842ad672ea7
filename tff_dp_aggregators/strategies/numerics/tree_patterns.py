"""Finds the worst participation pattern of binary trees, exactly.

The value of a client's pattern of rounds is the sum, over the complete nodes of a tree
(or of several successive trees), of the squared number of its rounds below the node.
The maximum value of an allowed pattern is the squared sensitivity zeta* of
arXiv:2103.00039, Appendix D.2, which `strategies.tree` offers.

**Fronts.** The search is over patterns of consecutive rounds, a `_Segment`, with a
given number of participations, and with a given first round that is open to the client.
The rounds after the segment depend on two numbers of a pattern: its value, and the
earliest round at which the client may come back. Only the Pareto front of both is kept.
In fixed epochs, where the residue class determines the return, that is one pattern.

**Bounds.** A front is joined from those of the segment's two halves, for each split of
the participations among them. No node of a level counts more than `ceil(2^level /
min_separation)` rounds, so the sum of squares of a level is at most that of as many
full nodes as possible and the rest in one more. The sum over levels bounds a segment,
until its exact value is known. Splits are tried in decreasing order of their bounds,
after one whose pattern allows the earliest return of all. A split whose bound is not
above the best value with that return adds nothing to the front, nor do those after it.

Nothing is approximated: bounds are proven, and all numbers are integers.
"""

import itertools
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.strategies.participation import Participation

# A pattern of a segment's rounds: its value, the earliest round, counted from the
# segment's end, at which the client may come back, and the patterns of the left and of
# the right half, or `None` if it was not joined.
_Pattern = tuple[int, int, Any]
# Patterns of decreasing value, each with an earlier return than the one before.
_Front = list[_Pattern]


class _Schema:
  """The limits on participation, and bounds that follow from them."""

  def __init__(self, participation: Participation):
    self.min_separation = participation.min_separation
    self.max_participations = participation.possible_participations
    self.fixed_epoch = participation.fixed_epoch
    self._level_bounds: dict[int, np.ndarray] = {}

  def max_count(self, size: int, start: int = 0) -> int:
    """Maximum participations in `size` rounds, none before round `start`."""
    return max(0, -(-(size - start) // self.min_separation))

  def earliest_return(self, size: int, start: int, count: int) -> int:
    """Earliest return, counted from the end; the earliest rounds attain it."""
    if self.fixed_epoch:
      count = self.max_count(size, start)
    return max(0, start + count * self.min_separation - size)

  def level_bound(self, level: int) -> np.ndarray:
    """Entry c: maximum sum of squares of c participations in nodes of a level."""
    if level not in self._level_bounds:
      full = min(self.max_count(2**level), self.max_participations)
      filled, rest = np.divmod(np.arange(self.max_participations + 1), full)
      self._level_bounds[level] = filled * full**2 + rest**2
    return self._level_bounds[level]


class _Segment:
  """Consecutive rounds, and the complete nodes that lie inside them."""

  def __init__(
    self,
    schema: _Schema,
    left: Optional['_Segment'],
    right: Optional['_Segment'],
    is_node: bool,
  ):
    """Joins two successive segments, or makes a leaf of one round from `None`."""
    self._schema = schema
    self._left, self._right = left, right
    self._is_node = is_node
    self._fronts: dict[tuple[int, int], _Front] = {}
    if left is None or right is None:
      self.size = 1
      self._nodes = [1]
    else:
      self.size = left.size + right.size
      pairs = itertools.zip_longest(left._nodes, right._nodes, fillvalue=0)
      self._nodes = [a + b for a, b in pairs] + [1] * is_node
    self.capacity = min(schema.max_participations, schema.max_count(self.size))
    # Entry c: upper bound of the value of c participations; see "Bounds" above.
    self._first_bound = np.zeros(self.capacity + 1, np.int64)
    for level, nodes in enumerate(self._nodes):
      level_bound = schema.level_bound(level)
      all_full = min(self.capacity, nodes * schema.max_count(2**level))
      self._first_bound[:all_full] += level_bound[:all_full]
      self._first_bound[all_full:] += level_bound[all_full]
    self._bounds: dict[int, np.ndarray] = {}

  def bound(self, start: int) -> np.ndarray:
    """Entry c: upper bound of the value of c participations, none before `start`.

    Exact once fronts are known. Without fixed epochs, that of `start` 0 is returned.
    """
    key = start if self._schema.fixed_epoch else 0
    if key not in self._bounds:
      self._bounds[key] = self._first_bound.copy()
    return self._bounds[key]

  def front(self, count: int, start: int) -> _Front:
    """The Pareto front of `count` participations, none before round `start`."""
    if count > self._schema.max_count(self.size, start):
      return []
    if count == 0 or (count == 1 and self._is_node):
      # Every round of a node counts once a level; the earliest allows the most after.
      value = count * len(self._nodes)
      return [(value, self._schema.earliest_return(self.size, start, count), None)]
    key = (count, start)
    if key not in self._fronts:
      self._fronts[key] = self._search(count, start)
      if start == 0 or self._schema.fixed_epoch:
        self.bound(start)[count] = self._fronts[key][0][0]
    return self._fronts[key]

  def _search(self, count: int, start: int) -> _Front:
    """Computes the front, from the splits of `count` that can contribute."""
    left, right = self._halves()
    max_left = min(count, left.capacity, self._schema.max_count(left.size, start))
    min_left = max(0, count - right.capacity)
    right_start = self._schema.earliest_return(left.size, start, max_left)
    upper_bounds = (
      left.bound(start)[min_left : max_left + 1]
      + right.bound(right_start)[count - max_left : count - min_left + 1][::-1]
      + self._is_node * count**2
    )
    # The first split has as many participations in the left half as possible, and so a
    # pattern with the earliest return. Only patterns of more value than the best of
    # those add to the front.
    earliest = self._schema.earliest_return(self.size, start, count)
    best: dict[int, _Pattern] = {earliest: (0, earliest, None)}
    in_left = max_left
    while upper_bounds[in_left - min_left] > best[earliest][0]:
      self._add_split(best, earliest, in_left, count - in_left, start)
      upper_bounds[in_left - min_left] = 0
      in_left = min_left + int(upper_bounds.argmax())
    front: _Front = []
    for earliest_return in sorted(best):
      if not front or best[earliest_return][0] > front[-1][0]:
        front.append(best[earliest_return])
    return front[::-1]

  def _add_split(
    self,
    best: dict[int, _Pattern],
    earliest: int,
    in_left: int,
    in_right: int,
    start: int,
  ) -> None:
    """Updates the best pattern for each return with those of one split."""
    left_half, right_half = self._halves()
    own = self._is_node * (in_left + in_right) ** 2
    for left in left_half.front(in_left, start):
      left_value, middle, _ = left
      left_value += own
      if left_value + right_half.bound(middle)[in_right] <= best[earliest][0]:
        return
      for right in right_half.front(in_right, middle):
        value, earliest_return = left_value + right[0], right[1]
        if earliest_return not in best or value > best[earliest_return][0]:
          best[earliest_return] = value, earliest_return, (left, right)

  def rounds(self, pattern: _Pattern, start: int) -> list[int]:
    """The rounds of a pattern for this start, counted from the segment's first."""
    value, _, halves = pattern
    if halves is None:
      return [start] if value else []
    (left, right), (left_half, right_half) = halves, self._halves()
    in_right = right_half.rounds(right, left[1])
    return left_half.rounds(left, start) + [left_half.size + r for r in in_right]

  def _halves(self) -> tuple['_Segment', '_Segment']:
    assert self._left is not None and self._right is not None
    return self._left, self._right


class Search:
  """Finds worst patterns of the first rounds of successive trees."""

  def __init__(
    self,
    participation: Participation,
    restart_every: Optional[int] = None,
  ):
    """Searches in trees of `restart_every` rounds, or in one tree if `None`."""
    self._schema = _Schema(participation)
    self._restart_every = restart_every
    self._nodes: list[_Segment] = []
    self._tree_blocks: list[_Segment] = []
    self._prefixes: dict[int, _Segment] = {}

  def value(self, end: int) -> int:
    """zeta* of the nodes that are complete in rounds 0 to `end - 1`."""
    return self._best(end)[0][0]

  def rounds(self, end: int) -> tuple[int, ...]:
    """A pattern with the value `value(end)`, in increasing order."""
    pattern, start = self._best(end)
    return tuple(self._prefix(end).rounds(pattern, start))

  def profile(self, num_rounds: int) -> np.ndarray:
    """`value` of 1, ..., `num_rounds`, as float64; bisects where it increases."""
    profile = np.zeros(num_rounds + 1)
    profile[num_rounds] = self.value(num_rounds)
    intervals = [(0, num_rounds)]
    while intervals:
      low, high = intervals.pop()
      if profile[low] == profile[high]:
        profile[low:high] = profile[high]
      elif high - low > 1:
        middle = (low + high) // 2
        profile[middle] = self.value(middle)
        intervals += [(low, middle), (middle, high)]
    return profile[1:]

  def _best(self, end: int) -> tuple[_Pattern, int]:
    """Returns the best pattern of a prefix, and its `start`."""
    segment = self._prefix(end)
    best: _Pattern = (0, 0, None)
    best_start = 0
    for start, counts in self._starts_and_counts(segment):
      upper_bounds = segment.bound(start)[counts.start : counts.stop].copy()
      while upper_bounds.max() > best[0]:
        promising = int(upper_bounds.argmax())
        upper_bounds[promising] = 0
        pattern = segment.front(counts[promising], start)[0]
        if pattern[0] > best[0]:
          best, best_start = pattern, start
    return best, best_start

  def _starts_and_counts(self, segment: _Segment) -> Iterator[tuple[int, range]]:
    """Yields the starts and numbers of participations that are to be searched."""
    if not self._schema.fixed_epoch:
      yield 0, range(1, segment.capacity + 1)
      return
    # In a residue class, more rounds have more value, so only the maximum is searched.
    for start in self._residues(segment.size):
      count = min(segment.capacity, self._schema.max_count(segment.size, start))
      yield start, range(count, count + 1)

  def _residues(self, end: int) -> list[int]:
    """Returns the first rounds of residue classes, one of which is the worst.

    Let 2^h be at most `min_separation`, and move all rounds of a class one earlier.
    Unless a round begins a block of 2^h rounds, each stays in its nodes of more than
    2^h rounds. A node of at most 2^h rounds contains at most one, and an earlier round
    is in at least as many complete ones of these. So only classes with a round that
    begins a block are needed. Blocks and trees repeat modulo `min_separation`.
    """
    separation = self._schema.min_separation
    block = 2 ** (separation.bit_length() - 1)
    tree = self._restart_every or end
    trees = np.arange(0, min(end, tree * separation), tree)
    blocks = np.arange(0, min(end, tree, block * separation), block)
    classes = np.unique((trees[:, None] + blocks) % separation)
    return [int(start) for start in classes if start < end]

  def _prefix(self, end: int) -> _Segment:
    """The first `end` rounds: joins those before the last block and that block."""
    if end not in self._prefixes:
      # The last block: the node that its last round completes, or 2^i trees.
      trees, rounds = divmod(end, self._restart_every or end + 1)
      last = self._node(_trailing_zeros(rounds)) if rounds else self._tree_block(trees)
      self._prefixes[end] = self._followed_by(last, end)
    return self._prefixes[end]

  def _followed_by(self, last: _Segment, end: int) -> _Segment:
    """The first `end` rounds, of which `last` are the last ones."""
    if last.size == end:
      return last
    return _Segment(self._schema, self._prefix(end - last.size), last, is_node=False)

  def _node(self, level: int) -> _Segment:
    """A complete node; nodes of a level share one object, which is searched once."""
    if not self._nodes:
      self._nodes.append(_Segment(self._schema, None, None, is_node=True))
    return self._doubled(self._nodes, level, is_node=True)

  def _tree_block(self, trees: int) -> _Segment:
    """The last 2^i of `trees` whole trees, 2^i the largest that divides `trees`."""
    if not self._tree_blocks:
      assert self._restart_every is not None
      last = self._node(_trailing_zeros(self._restart_every))
      self._tree_blocks.append(self._followed_by(last, self._restart_every))
    return self._doubled(self._tree_blocks, _trailing_zeros(trees), is_node=False)

  def _doubled(self, blocks: list[_Segment], times: int, is_node: bool) -> _Segment:
    """Returns `blocks[times]`, where each block is the one before, twice."""
    while len(blocks) <= times:
      blocks.append(_Segment(self._schema, blocks[-1], blocks[-1], is_node))
    return blocks[times]


def _trailing_zeros(number: int) -> int:
  """How often 2 divides a positive number."""
  return (number & -number).bit_length() - 1
