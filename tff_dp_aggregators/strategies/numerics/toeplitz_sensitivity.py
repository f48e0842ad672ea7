"""Sensitivity of lower-triangular Toeplitz matrices under several participations.

`C[i, j] = c[i - j]`, n rounds, one client in at most k of them, at least b apart. The
earliest, densest pattern u = (0, b, 2b, ...) gives what is *attained*, ||C u||^2. Two
arguments give upper bounds; where one of them meets what is attained, that is the exact
sensitivity, and otherwise the smaller one is used.

**Coefficients.** Let m[i] = |c[i]| for i < b and max_{j >= i} |c[j]| for i >= b. Then

    sens(C)^2 <= ||M u||^2,    M the Toeplitz matrix of m.

For contributions of norm at most 1 in rounds r_0 < r_1 < ..., ||C u||^2 is at most

    sum_{p, q} sum_s m[s] m[s + r_q - r_p]    (s from 0 while s + r_q < n, r_p <= r_q),

because |c| <= m. By r_q - r_p >= (q - p) b and r_q >= q b, each term has a counterpart
for u, with m at an index that is not larger, and if p < q not below b; m does not
increase there. (arXiv:2405.13763 argues so for non-increasing coefficients; here the
first b may be in any order.) The bound is attained if c is not negative and does not
increase from index b on, and if columns b apart do not overlap.

**Pairs.** A rise of c far down need not matter: a client who waits for it loses more
elsewhere. Let R_N(l) be the autocorrelation of the first N coefficients at lag l, so
that contributions v_p, v_q of norm 1 in rounds r_p < r_q of a pattern meet in
<v_p, v_q> R_{n - r_p}(r_q - r_p). (||C u||^2 is convex in each contribution, so norm 1
is the worst; and let r_0 = 0, for to move a pattern to the front only adds rows.) In u,
with all contributions alike, they meet in R_pq = R_{n - p b}((q - p) b). Write

    e_i = r_{i + 1} - r_i - b,    d_i = 1 - <v_i, v_{i + 1}>, from 0 to 2,

and over all N <= n - p b and l >= (q - p) b let gain_pq be the largest R_N(l) - R_pq,
and neg_pq the largest -R_N(l), if above 0. As 1 - <v_p, v_q> is at most (q - p) times
the sum of d_i over p <= i < q, a pair (p, q) exceeds R_pq by at most

    (q - p) neg_pq (d_p + ... + d_{q - 1}),  + gain_pq if e_i > 0 for an i < q.

For neighbours, i and i + 1, with R_i for R_{i, i + 1}, better is known:

    if e_i > 0:  -loss_i = (largest |R_N(l)| over N <= n - i b and l > b) - R_i
    if e_i = 0:  -d_i min(R_i, R_i / 2),
                 + max(gain_i, neg_i) if e_j > 0 for a j < i.

Let K_i be the sum of (q - p) neg_pq over pairs with p <= i < q and q > p + 1, and G_i
that of gain_pq, or max(gain_pq, neg_pq) for neighbours, over all pairs with q > i but
(i, i + 1). Half the excess over ||C u||^2 is then at most

    sum_{i: e_i > 0} (2 K_i + G_i - loss_i)
    + sum_{i: e_i = 0} d_i (K_i - min(R_i, R_i / 2)),

and with each term replaced by its largest value, or 0, this is an upper bound, often 0.
Coefficients whose signs differ much fare better without the d_i: with |R| in place of
R, the sum of all |R_pq| is exceeded at most by gains, in the same way. That sum is
attained if contributions of equal or of alternating sign make all pairs positive.

**Scaled columns.** Let C = T D, T Toeplitz and D = diag(d), d not negative. The first
argument holds with d[i] above d[i] wherever there is one of larger d further on: let
f[i] = max_{j >= i} d[j], which does not increase. Then

    sens(T D)^2 <= ||M F u||^2,    F = diag(f),

as the term of p and q above has the factor d[r_p] d[r_q], which is at most
f[p b] f[q b] by r_p >= p b and r_q >= q b, on each side of which a term of u stands. If
d does not increase, F is D, and the bound is attained in the same two cases: d may fall
within b rounds, or at other rounds than multiples of b, and clients may come back
across its steps. If columns b apart do not overlap, the squared sensitivity is in any
case the largest sum of squared norms over patterns.

**Pairs of scaled columns.** Where d rises, F is far above D. But contributions of norm
at most 1 in rounds i < j meet in |R_{n - j}(j - i)| d[i] d[j] at most, and of the p-th
and q-th round of a client, i >= p b and j - i >= (q - p) b. So

    sens(T D)^2 <= sum_{p, q} max |R_{n - j}(j - i)| d[i] d[j],

the maximum over such i and j (and over i = j >= p b if p = q): of whatever signs and
scales, and the exact value if u attains each of the maxima, found by looking at all
pairs, in O(n m) for the m coefficients that are not negligible. It does for two bands
of T^-1 and columns of one norm: with c[t] = l^t, 0 <= l < 1, a pair is

    l^a sqrt((1 - l^(2 s)) / (1 - l^(2 s + 2 a))),    a = j - i,  s = n - j,

which falls as j moves on, for s + a does not change, and as i and j do with a the same.

The same u and the same bounds hold for fixed-epoch schemas, whose patterns are some of
those above, u among them.
"""

import dataclasses
import math
from typing import Optional

import numpy as np

from tff_dp_aggregators.strategies.participation import Participation

# A bound that exceeds what is attained by less than this is said to be exact.
_ROUNDING = 1e-12
# The second argument takes m^2 operations and m k numbers, up to this many of each, for
# m coefficients of which the last exceeds the largest times this.
_MAX_OPERATIONS = 10**8
_MAX_NUMBERS = 2 * 10**7
_MAX_PAIRS = 10**9  # So many pairs of scaled columns are looked at: some seconds.
_NEGLIGIBLE = 1e-18


def squared_by_round(
  coefficients: np.ndarray,
  participation: Participation,
  scales: Optional[np.ndarray] = None,
) -> np.ndarray:
  """Upper bounds of the squared sensitivity of the first 1, 2, ..., n rounds, [n].

  `coefficients`: c of the matrix T before its columns are scaled, float64 [n].
  `scales`: d, positive, of shape [n], if there are any.
  """
  if participation.possible_participations > 1:
    coefficients = majorant(coefficients, participation.min_separation)
  bounds = _spent(coefficients, participation)
  if scales is None:
    return bounds
  # None of the first t rounds has a larger scale than this, and of all of them, none
  # later than round j one than `falling[j]`.
  largest = np.maximum.accumulate(scales)
  falling = np.maximum.accumulate(scales[::-1])[::-1]
  return np.minimum(
    np.square(largest) * bounds, _spent(coefficients, participation, falling)
  )


def squared(
  coefficients: np.ndarray,
  participation: Participation,
  scales: Optional[np.ndarray] = None,
) -> tuple[float, bool]:
  """Squared sensitivity, and whether it is exact (up to rounding) or an upper bound."""
  bound = float(squared_by_round(coefficients, participation, scales)[-1])
  attained = float(_spent(coefficients, participation, scales)[-1])
  if _meets(bound, attained):
    return bound, True
  attained = max(attained, _alternating(coefficients, participation, scales))
  if scales is None:
    bound = min(bound, _pair_bound(coefficients, participation))
  else:
    bound = min(bound, _scaled_pair_bound(coefficients, scales, participation))
  return bound, _meets(bound, attained)


def is_earliest(coefficients: np.ndarray, participation: Participation) -> bool:
  """Whether ||C u||^2, u the earliest, densest pattern, is known to be the worst."""
  attained = float(_spent(coefficients, participation)[-1])
  return _meets(squared(coefficients, participation)[0], attained)


def majorant(coefficients: np.ndarray, min_separation: int) -> np.ndarray:
  """m: |c|, from index `min_separation` on the smallest above it that never rises."""
  result = np.abs(coefficients)
  tail = result[min_separation:]
  result[min_separation:] = np.maximum.accumulate(tail[::-1])[::-1]
  return result


def _spent(
  coefficients: np.ndarray,
  participation: Participation,
  scales: Optional[np.ndarray] = None,
) -> np.ndarray:
  """||C_t u||^2 for the first t rows and the earliest, densest pattern u."""
  return np.cumsum(np.square(_response(coefficients, participation.rounds, scales)))


def _alternating(
  coefficients: np.ndarray,
  participation: Participation,
  scales: Optional[np.ndarray] = None,
) -> float:
  """||C u||^2 for the same pattern with contributions of alternating sign."""
  rounds = participation.rounds
  response = _response(coefficients, rounds[::2], scales)
  if len(rounds) > 1:
    response -= _response(coefficients, rounds[1::2], scales)
  return float(response @ response)


def _response(
  coefficients: np.ndarray,
  rounds: tuple[int, ...],
  scales: Optional[np.ndarray] = None,
) -> np.ndarray:
  response = np.zeros(len(coefficients))
  nonzero = np.flatnonzero(coefficients)
  length = 1 + int(nonzero[-1]) if len(nonzero) else 0  # Zeros add nothing.
  for first in rounds:
    reached = response[first : first + length]
    column = coefficients[: len(reached)]
    reached += column if scales is None else scales[first] * column
  return response


def _meets(bound: float, attained: float) -> bool:
  return bound <= attained * (1 + _ROUNDING)


@dataclasses.dataclass(frozen=True)
class _Pairs:
  """How two rounds of one client meet, for the p-th of them and each lag."""

  here: np.ndarray  # R_{n - p b}(l), shape [k, m] for lags below m.
  # The largest R_N(l'), or 0, over N <= n - p b and l' >= l, shape [k, m].
  largest: np.ndarray
  lowest: np.ndarray  # The same for -R_N(l').


def _pair_bound(coefficients: np.ndarray, participation: Participation) -> float:
  """The smaller of the two bounds by pairs; infinite if that would take too long."""
  count = participation.possible_participations
  size = np.abs(coefficients)
  length = 1 + int(np.flatnonzero(size > _NEGLIGIBLE * size.max())[-1])
  if length**2 > _MAX_OPERATIONS or length * count > _MAX_NUMBERS:
    return math.inf
  pairs = _meetings(coefficients[:length], participation)
  either = np.maximum(pairs.largest, pairs.lowest)
  signless = _Pairs(np.abs(pairs.here), either, np.zeros_like(either))
  separation = participation.min_separation
  bound = min(_bound(pairs, separation), _bound(signless, separation))
  # What is left out of each column adds its norm at most.
  left_out = count * float(np.linalg.norm(coefficients[length:]))
  return (math.sqrt(bound) + left_out) ** 2


def _bound(pairs: _Pairs, separation: int) -> float:
  count, length = pairs.here.shape
  meet, gain, negative = (np.zeros((count, count)) for _ in range(3))
  for p in range(count):
    lags = np.arange(separation, min(separation * (count - p), length), separation)
    later = slice(p + 1, p + 1 + len(lags))
    meet[p, later] = pairs.here[p, lags]
    gain[p, later] = pairs.largest[p, lags] - pairs.here[p, lags]
    negative[p, later] = pairs.lowest[p, lags]
  # A client who takes part less often has fewer of the pairs.
  fewer = np.cumsum(pairs.here[:, 0] + 2 * meet.sum(axis=0)).max()
  nearest = np.diagonal(meet, 1)
  beyond = np.maximum(pairs.largest, pairs.lowest)[: count - 1]
  loss = nearest - (beyond[:, separation + 1] if separation + 1 < length else 0.0)
  # K_i: sums over p <= i of those over q > i.
  apart = np.arange(count) - np.arange(count)[:, np.newaxis]
  weighted = np.where(apart > 1, apart * negative, 0.0)
  covering = np.cumsum(np.cumsum(weighted, axis=0)[:, ::-1], axis=1)[:, ::-1]
  unlike = np.diagonal(covering, 1)
  # G_i: of all pairs with q > i but (i, i + 1).
  gain = np.where(apart == 1, np.maximum(gain, negative), gain)
  later_gains = np.cumsum(gain.sum(axis=0)[::-1])[::-1][1:] - np.diagonal(gain, 1)
  waiting = 2 * unlike + later_gains - loss
  turning = 2 * unlike - np.minimum(nearest, 2 * nearest)
  return float(fewer + 2 * np.maximum(0.0, np.maximum(waiting, turning)).sum())


def _meetings(coefficients: np.ndarray, participation: Participation) -> _Pairs:
  """The meetings of columns whose entries after `coefficients` are 0."""
  length = len(coefficients)
  ends = participation.num_rounds - np.array(participation.rounds)
  ends = np.minimum(ends, length)
  here, largest, lowest = (np.zeros((len(ends), length)) for _ in range(3))
  for lag in range(length):
    sums = np.cumsum(coefficients[: length - lag] * coefficients[lag:])
    meeting = ends > lag
    last = ends[meeting] - lag - 1
    here[meeting, lag] = sums[last]
    largest[meeting, lag] = np.maximum.accumulate(sums)[last]
    lowest[meeting, lag] = np.maximum.accumulate(-sums)[last]
  return _Pairs(here, _of_longer_lags(largest), _of_longer_lags(lowest))


def _of_longer_lags(values: np.ndarray) -> np.ndarray:
  """The largest value at this lag or a longer one, at least 0."""
  largest = np.maximum.accumulate(values[:, ::-1], axis=1)[:, ::-1]
  return np.maximum(largest, 0.0)


def _scaled_pair_bound(
  coefficients: np.ndarray,
  scales: np.ndarray,
  participation: Participation,
) -> float:
  """The bound by pairs of scaled columns; if that takes too long, that by norms."""
  num_rounds = len(coefficients)
  starts = np.array(participation.rounds)
  norms = scales * np.sqrt(np.cumsum(np.square(coefficients))[::-1])
  longest = _from_there_on(norms)[starts]
  size = np.abs(coefficients)
  length = 1 + int(np.flatnonzero(size > _NEGLIGIBLE * size.max())[-1])
  separation = participation.min_separation
  # Lags l b to (l + 1) b - 1 are of pairs with q - p = l, or of nearer ones.
  apart = min(len(starts), 1 + (length - 1) // separation)
  if length * num_rounds > _MAX_PAIRS or apart * len(starts) > _MAX_NUMBERS:
    return float(longest.sum() ** 2)
  largest = np.zeros((len(starts), apart))
  largest[:, 0] = np.square(longest)
  for lag in range(separation, length if len(starts) > 1 else 0):
    sums = np.abs(np.cumsum(coefficients[: length - lag] * coefficients[lag:length]))
    # R_N for N = n - lag down to 1, the number of rows that rounds i and i + lag share.
    rows = np.minimum(np.arange(num_rounds - lag, 0, -1), length - lag)
    meet = sums[rows - 1] * scales[: num_rounds - lag] * scales[lag:]
    first = starts[starts < num_rounds - lag]
    column = largest[: len(first), min(lag // separation, apart - 1)]
    np.maximum(column, _from_there_on(meet)[first], out=column)
  # Pairs may be farther apart than they have to be, but for a round with itself.
  largest[:, 1:] = np.maximum.accumulate(largest[:, :0:-1], axis=1)[:, ::-1]
  bound = largest[:, 0].sum()
  for later in range(1, apart):
    bound += 2.0 * largest[: len(starts) - later, later].sum()
  # What is left out of each column adds its norm at most.
  left_out = float(np.linalg.norm(coefficients[length:]))
  of_scales = float(_from_there_on(scales)[starts].sum())
  return float((math.sqrt(bound) + of_scales * left_out) ** 2)


def _from_there_on(values: np.ndarray) -> np.ndarray:
  """The largest of each value and the later ones."""
  return np.maximum.accumulate(values[::-1])[::-1]
