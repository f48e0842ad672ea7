"""Column norms that keep a sensitivity, whatever is searched.

With at most as many bands as the separation b, columns of one client do not overlap,
and its squared sensitivity is the sum of the squared norms of its rounds. Give each of
some runs of b successive rounds a share, all of them 1 together, and let a column's
squared norm be at most the sum of the shares of the runs that it is in. A client is in
each run once at most; so its sum is 1 at most. And no norms that keep to 1 are larger
in any column than what shares of all runs allow, together with one that is spread over
all columns, a k-th part each, if a client is in k rounds at most (duality of linear
programs; `epoch_scaled.certify` has the source).

Few of the runs matter. From rounds 0, b, 2b, ... they are epochs. If clients are done
before the last of them, shares of the first k - 1, and the one that is spread, do it.
Otherwise, where b does not divide n, a client can come once more in the r rounds that
are left. Runs that begin in rounds r, r + b, ... count backwards from the end: the
first r rounds of an epoch can be in a pattern of one round more than its others, which
have norms of their own. By how much shares of all runs would be better,
`python -m benchmarks.round_scales` prints.

A longer column is not always better for given other columns, since its round's noise
takes back noise of the rounds before: those others can be shorter than shares allow.
"""

from typing import NamedTuple

import numpy as np

from tff_dp_aggregators.strategies import participation as participation_lib

# So many shares of one kind there are, at most: with more runs, several have one.
_MAX_SHARES = 32
# What runs have together, of 1 for the share that is spread, where a search begins.
_FIRST_SHARES = 0.2


class ColumnNorms:
  """Norms of columns as a function of what is searched.

  That is, first, the root of each share, whose sum does not matter. Then comes for each
  norm that can be less than shares allow the root of how much more they allow, as a
  part of its square.

  Attributes:
    starts: In which rounds another norm begins, in rising order from 0.
    start: Where to begin a search, at norms that are the same in all epochs, or nearly.
  """

  def __init__(self, participation: participation_lib.Participation):
    n, separation = participation.num_rounds, participation.min_separation
    times = participation.possible_participations
    epochs, left = divmod(n, separation)
    shorter: list[int] = []
    if times < participation.possible_by_separation:
      shares = [_Share(0, n, 1.0 / times), *_runs(0, times - 1, separation)]
      roots = np.full(len(shares), np.sqrt(_FIRST_SHARES / (len(shares) - 1)))
      roots[0] = 1.0
    elif left:
      forwards, backwards = (_runs(i, epochs, separation) for i in (0, left))
      shares = forwards + backwards
      shorter = [share.first for share in backwards]
      rising = np.arange(1.0, len(backwards) + 1.0)
      roots = np.sqrt(np.append(rising[::-1], rising))
    else:
      shares = _runs(0, epochs, separation)
      roots = np.ones(len(shares))
    firsts_and_ends = {round_ for share in shares for round_ in share[:2]}
    self.starts = sorted(firsts_and_ends - {n})
    self._shorter = np.searchsorted(self.starts, shorter)
    self.start = np.append(roots, np.full(len(shorter), epochs**-0.5))
    # The mean square over a client's rounds is to be 1.
    self._squares = times * np.array(
      [[share.of(this_round) for share in shares] for this_round in self.starts]
    )

  def __call__(self, searched: np.ndarray) -> np.ndarray:
    """The norms, shaped as `starts`."""
    roots, more = self._split(searched)
    return np.sqrt(self._squares @ _shares(roots) / self._more(more))

  def pull_back(self, searched: np.ndarray, by_norm: np.ndarray) -> np.ndarray:
    """The gradient by what is searched, from that by the norms."""
    roots, more = self._split(searched)
    norms = self(searched)
    by_allowed = 0.5 * by_norm / norms / self._more(more)
    by_more = -(by_norm * norms)[self._shorter] * more / (1.0 + np.square(more))
    by_share = self._squares.T @ by_allowed
    by_root = 2.0 * roots / (roots @ roots) * (by_share - _shares(roots) @ by_share)
    return np.append(by_root, by_more)

  def _split(self, searched: np.ndarray) -> list[np.ndarray]:
    return np.split(searched, [self._squares.shape[1]])

  def _more(self, more: np.ndarray) -> np.ndarray:
    """What shares allow, as a multiple of each squared norm."""
    multiple = np.ones(len(self.starts))
    multiple[self._shorter] += np.square(more)
    return multiple


class _Share(NamedTuple):
  """What a share allows in the squared norm of each of some rounds.

  Attributes:
    first: The first of them.
    end: The round after the last one.
    part: Of the share.
  """

  first: int
  end: int
  part: float

  def of(self, this_round: int) -> float:
    return self.part if self.first <= this_round < self.end else 0.0


def _shares(roots: np.ndarray) -> np.ndarray:
  return np.square(roots) / (roots @ roots)


def _runs(first: int, count: int, length: int) -> list[_Share]:
  """Shares of so many runs, one after the other, or of several of them together."""
  several = -(-count // _MAX_SHARES)
  shares = []
  for number in range(0, count, several):
    together = min(several, count - number)
    begin = first + number * length
    shares.append(_Share(begin, begin + together * length, 1.0 / together))
  return shares
