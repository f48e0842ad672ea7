"""The worst participation pattern of binary trees, found exactly.

A client's pattern of rounds is worth the sum, over the complete nodes of a tree (or
of several, one after the other), of the squared number of its rounds below the node.
The largest worth of an allowed pattern is the squared sensitivity zeta* of
arXiv:2103.00039, Appendix D.2, which `strategies.tree` offers.

**Fronts.** Consecutive rounds, a `_Segment`, are searched for the patterns with a given
number of participations, given the first of their rounds that is open to the client.
What follows the segment sees two numbers of a pattern: its value, and the earliest
round at which the client may come back. Only patterns that no other beats in both are
kept; in fixed epochs, where the residue class decides the return, one.

**Bounds.** A front joins those of the segment's two halves, for each split of the
participations among them. No node of a level counts more than `ceil(2^level /
min_separation)` rounds, so the sum of squares of a level is at most that of as many
full nodes as possible and the rest in one more; the sum over levels bounds a segment,
until its exact value is known. Splits are tried in the order of their bounds. Among
what is reached there soon is a pattern that comes back as early as any can; a split
whose bound is not above that one's value adds nothing, nor do those after it.

Nothing is approximated: bounds are proven, and the arithmetic is on whole numbers.
"""

import itertools
from collections.abc import Iterator
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.strategies.participation import Participation

# A pattern of a segment's rounds, as far as it matters: its value, the earliest
# round, counted from the segment's end, at which the client may come back, and, if
# it was joined, the patterns of the left and of the right half.
_Pattern = tuple[int, int, Any]
# Patterns of decreasing value, each of which comes back earlier than the one before.
_Front = list[_Pattern]


class _Schema:
  """What the search asks of limits on participation."""

  def __init__(self, participation: Participation):
    self.min_separation = participation.min_separation
    self.max_participations = participation.possible_participations
    self.fixed_epoch = participation.fixed_epoch
    self._bounds_of_levels: dict[int, np.ndarray] = {}

  def room(self, size: int, start: int = 0) -> int:
    """Most participations in `size` rounds, none before round `start`."""
    return max(0, -(-(size - start) // self.min_separation))

  def back(self, size: int, start: int, count: int) -> int:
    """Earliest return, from the end of `size` rounds; early rounds attain it."""
    if self.fixed_epoch:
      count = self.room(size, start)
    return max(0, start + count * self.min_separation - size)

  def bound_of_level(self, level: int) -> np.ndarray:
    """Entry c: the largest sum of squares of c participations in nodes of a level."""
    if level not in self._bounds_of_levels:
      full = min(self.room(2**level), self.max_participations)
      filled, rest = np.divmod(np.arange(self.max_participations + 1), full)
      self._bounds_of_levels[level] = filled * full**2 + rest**2
    return self._bounds_of_levels[level]


class _Segment:
  """Consecutive rounds, and the complete nodes that lie inside them."""

  def __init__(
    self,
    schema: _Schema,
    left: Optional['_Segment'],
    right: Optional['_Segment'],
    is_node: bool,
  ):
    """Joins two neighbours, or makes the leaf of one round out of none."""
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
    self.most = min(schema.max_participations, schema.room(self.size))
    # Entry c: at least the value of any c participations; see "Bounds" above.
    self._first_bound = np.zeros(self.most + 1, np.int64)
    for level, nodes in enumerate(self._nodes):
      of_level = schema.bound_of_level(level)
      all_full = min(self.most, nodes * schema.room(2**level))
      self._first_bound[:all_full] += of_level[:all_full]
      self._first_bound[all_full:] += of_level[all_full]
    self._bounds: dict[int, np.ndarray] = {}

  def bound(self, start: int) -> np.ndarray:
    """Entry c: at least the value of c participations, none before `start`.

    Exact once fronts are known; starts share that of 0 but in fixed epochs.
    """
    key = start if self._schema.fixed_epoch else 0
    if key not in self._bounds:
      self._bounds[key] = self._first_bound.copy()
    return self._bounds[key]

  def front(self, count: int, start: int) -> _Front:
    """Best patterns of `count` participations, none before round `start`."""
    if count > self._schema.room(self.size, start):
      return []
    if count == 0 or (count == 1 and self._is_node):
      # Wherever it lies in a node, it counts once a level; early leaves most room.
      value = count * len(self._nodes)
      return [(value, self._schema.back(self.size, start, count), None)]
    key = (count, start)
    if key not in self._fronts:
      self._fronts[key] = self._search(count, start)
      if start == 0 or self._schema.fixed_epoch:
        self.bound(start)[count] = self._fronts[key][0][0]
    return self._fronts[key]

  def _search(self, count: int, start: int) -> _Front:
    """The front, from the splits of `count` that can matter."""
    left, right = self._halves()
    most = min(count, left.most, self._schema.room(left.size, start))
    fewest = max(0, count - right.most)
    right_start = self._schema.back(left.size, start, most)
    upper_bounds = (
      left.bound(start)[fewest : most + 1]
      + right.bound(right_start)[count - most : count - fewest + 1][::-1]
      + self._is_node * count**2
    )
    # The first split, of the earliest rounds, has a pattern that comes back as early
    # as any can. Only patterns worth more than the best of those add to the front.
    earliest = self._schema.back(self.size, start, count)
    best: dict[int, _Pattern] = {earliest: (0, earliest, None)}
    in_left = most
    while upper_bounds[in_left - fewest] > best[earliest][0]:
      self._improve(best, earliest, in_left, count - in_left, start)
      upper_bounds[in_left - fewest] = 0
      in_left = fewest + int(upper_bounds.argmax())
    front: _Front = []  # Of those that no other one beats.
    for back in sorted(best):
      if not front or best[back][0] > front[-1][0]:
        front.append(best[back])
    return front[::-1]

  def _improve(
    self,
    best: dict[int, _Pattern],
    earliest: int,
    in_left: int,
    in_right: int,
    start: int,
  ) -> None:
    """Updates the best pattern for each return by those of one split."""
    left_half, right_half = self._halves()
    own = self._is_node * (in_left + in_right) ** 2
    for left in left_half.front(in_left, start):
      value_so_far, middle, _ = left
      value_so_far += own
      if value_so_far + right_half.bound(middle)[in_right] <= best[earliest][0]:
        return
      for right in right_half.front(in_right, middle):
        value, back = value_so_far + right[0], right[1]
        if back not in best or value > best[back][0]:
          best[back] = value, back, (left, right)

  def rounds(self, pattern: _Pattern, start: int) -> list[int]:
    """The rounds, counted from the segment's first, of a pattern for this start."""
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
  """Worst patterns of the first rounds of trees that follow each other."""

  def __init__(
    self,
    participation: Participation,
    restart_every: Optional[int] = None,
  ):
    """Prepares the search in trees of `restart_every` rounds; `None` for one tree."""
    self._schema = _Schema(participation)
    self._restart_every = restart_every
    self._nodes: list[_Segment] = []
    self._tree_blocks: list[_Segment] = []
    self._prefixes: dict[int, _Segment] = {}

  def value(self, end: int) -> int:
    """zeta* of the nodes in rounds 0 to `end - 1`."""
    return self._best(end)[0][0]

  def rounds(self, end: int) -> tuple[int, ...]:
    """A pattern of that value, in increasing order."""
    pattern, start = self._best(end)
    return tuple(self._prefix(end).rounds(pattern, start))

  def profile(self, num_rounds: int) -> np.ndarray:
    """`value` of 1, ..., `num_rounds`, as float64, found by where it rises."""
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
    """The best pattern of a prefix, and the first round that was open to it."""
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
    """From which rounds, and in how many, a client may take part in a prefix."""
    if not self._schema.fixed_epoch:
      yield 0, range(1, segment.most + 1)
      return
    # One more round of a residue class is always allowed and worth more.
    for start in self._residues(segment.size):
      most = min(segment.most, self._schema.room(segment.size, start))
      yield start, range(most, most + 1)

  def _residues(self, end: int) -> list[int]:
    """Residue classes, by their first round, one of which is the worst.

    Let 2^h be at most `min_separation`, and take all rounds of a class one earlier.
    Unless one begins a block of 2^h rounds, each stays in its nodes of more rounds. A
    node of at most 2^h rounds counts one at most, and an earlier round is in at least
    as many complete ones. So only classes with the beginning of a block need a look;
    their blocks, and the trees, repeat modulo `min_separation`.
    """
    separation = self._schema.min_separation
    block = 2 ** (separation.bit_length() - 1)
    tree = self._restart_every or end
    trees = np.arange(0, min(end, tree * separation), tree)
    blocks = np.arange(0, min(end, tree, block * separation), block)
    classes = np.unique((trees[:, None] + blocks) % separation)
    return [int(start) for start in classes if start < end]

  def _prefix(self, end: int) -> _Segment:
    """The first `end` rounds, as those before the last block and that block."""
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
    """A complete node; all those of a level are one object, searched once."""
    if not self._nodes:
      self._nodes.append(_Segment(self._schema, None, None, is_node=True))
    return self._doubled(self._nodes, level, is_node=True)

  def _tree_block(self, trees: int) -> _Segment:
    """The last 2^i of so many whole trees, with the largest i that divides them."""
    if not self._tree_blocks:
      assert self._restart_every is not None
      last = self._node(_trailing_zeros(self._restart_every))
      self._tree_blocks.append(self._followed_by(last, self._restart_every))
    return self._doubled(self._tree_blocks, _trailing_zeros(trees), is_node=False)

  def _doubled(self, blocks: list[_Segment], times: int, is_node: bool) -> _Segment:
    """Entry `times` of blocks each of which is two of the one before."""
    while len(blocks) <= times:
      blocks.append(_Segment(self._schema, blocks[-1], blocks[-1], is_node))
    return blocks[times]


def _trailing_zeros(number: int) -> int:
  """How often 2 divides a positive number."""
  return (number & -number).bit_length() - 1
