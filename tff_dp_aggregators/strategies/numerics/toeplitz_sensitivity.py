"""Sensitivity of lower-triangular Toeplitz matrices under several participations.

`C[i, j] = c[i - j]`, n rounds, one client in at most k of them, at least b apart. The
earliest, densest pattern u = (0, b, 2b, ...) *attains* ||C u||^2, a lower bound. Two
arguments give upper bounds; if one of them equals the attained value, this is the exact
squared sensitivity, and otherwise the smaller one is used.

**Coefficients.** Let m[i] = |c[i]| for i < b and max_{j >= i} |c[j]| for i >= b. Then

    sens(C)^2 <= ||M u||^2,    M the Toeplitz matrix of m.

For contributions of norm at most 1 in rounds r_0 < r_1 < ..., ||C u||^2 is at most

    sum_{p, q} sum_s m[s] m[s + r_q - r_p]    (s from 0 while s + r_q < n, r_p <= r_q),

because |c| <= m. Since r_q - r_p >= (q - p) b and r_q >= q b, each term has a
counterpart for u whose second factor is m at an index that is not larger and, if p < q,
at least b; from b on, m does not increase. (arXiv:2405.13763 argues in this way for
non-increasing coefficients; here the first b may be in any order.) The bound is
attained if c is not negative and does not increase from index b on, and if columns b
apart do not overlap.

**Pairs.** An increase of c at a large index need not matter: a client who waits for it
loses more in other terms. Let R_N(l) be the autocorrelation of the first N coefficients
at lag l. Contributions v_p, v_q of norm 1 in rounds r_p < r_q of a pattern have the
inner product <v_p, v_q> R_{n - r_p}(r_q - r_p). (||C u||^2 is convex in each
contribution, so norm 1 is the worst. Let r_0 = 0, as moving a pattern to the front only
adds rows.) In u, with equal contributions, it is R_pq = R_{n - p b}((q - p) b). Write

    e_i = r_{i + 1} - r_i - b,    d_i = 1 - <v_i, v_{i + 1}>, from 0 to 2,

and over all N <= n - p b and l >= (q - p) b let gain_pq be the maximum of R_N(l) - R_pq
and neg_pq the maximum of -R_N(l), or 0 if that is negative. As 1 - <v_p, v_q> is at
most (q - p) times the sum of d_i over p <= i < q, a pair (p, q) exceeds R_pq by at most

    (q - p) neg_pq (d_p + ... + d_{q - 1}),  + gain_pq if e_i > 0 for an i < q.

For neighbours i and i + 1, with R_i for R_{i, i + 1}, there are better bounds:

    if e_i > 0:  -loss_i = (maximum |R_N(l)| over N <= n - i b and l > b) - R_i
    if e_i = 0:  -d_i min(R_i, R_i / 2),
                 + max(gain_i, neg_i) if e_j > 0 for a j < i.

Let K_i be the sum of (q - p) neg_pq over pairs with p <= i < q and q > p + 1. Let G_i
be the sum of gain_pq, or max(gain_pq, neg_pq) for neighbours, over all pairs with q > i
except (i, i + 1). Half the excess over ||C u||^2 is then at most

    sum_{i: e_i > 0} (2 K_i + G_i - loss_i)
    + sum_{i: e_i = 0} d_i (K_i - min(R_i, R_i / 2)).

Replacing each term by its maximum, or by 0 if that is negative, gives an upper bound,
which is often 0. If the signs of coefficients differ much, a bound without the d_i is
smaller: with |R| in place of R, the sum of all |R_pq| is exceeded by at most the gains,
in the same way. That sum is attained if contributions of equal or of alternating sign
make all pairs positive.

**Scaled columns.** Let C = T D, T Toeplitz and D = diag(d), d not negative. The first
argument holds if d is replaced by f[i] = max_{j >= i} d[j], which does not increase:

    sens(T D)^2 <= ||M F u||^2,    F = diag(f),

because the term of p and q above has the factor d[r_p] d[r_q], which is at most the
factor f[p b] f[q b] of its counterpart for u, since r_p >= p b and r_q >= q b. If d
does not increase, F = D, and the bound is attained in the same two cases. So d may
decrease within b rounds, or at other rounds than multiples of b, and clients may take
part before and after that. If columns b apart do not overlap, the squared sensitivity
is in any case the largest sum of squared norms over patterns.

**Pairs of scaled columns.** Where d increases, F is much larger than D. But the inner
product of contributions of norm at most 1 in rounds i < j is at most |R_{n - i}(j - i)|
d[i] d[j], and for the p-th and q-th round of a client, i >= p b and j - i >= (q - p) b.
So

    sens(T D)^2 <= sum_{p, q} max |R_{n - i}(j - i)| d[i] d[j],

where the maximum is over such i and j (and over i = j >= p b if p = q). This holds for
any signs and scales, and is exact if u attains each of the maxima. They are computed
from all pairs, in O(n m) for the m coefficients that are not negligible. u attains them
if T^-1 has two bands and columns have equal norm: for c[t] = l^t, 0 <= l < 1, a pair is

    l^a sqrt((1 - l^(2 s)) / (1 - l^(2 s + 2 a))),    a = j - i,  s = n - j,

which decreases as j increases, because s + a does not change, and as i and j increase
with the same a.

The same u and the same bounds hold for fixed-epoch schemas, whose patterns are a subset
of those above that contains u.
"""

import dataclasses
import math
from typing import Optional

import numpy as np

from tff_dp_aggregators.strategies.participation import Participation

_ROUNDING = 1e-12  # Relative excess over the attained value of an exact bound.
# Bounds by pairs take m^2 operations and m k numbers, for m coefficients up to the last
# that is not negligible. Above these limits, they are not computed.
_MAX_OPERATIONS = 10**8
_MAX_NUMBERS = 2 * 10**7
_MAX_PAIRS = 10**9  # Maximum number of pairs of scaled columns: some seconds.
_NEGLIGIBLE = 1e-18  # Relative to the largest coefficient.


def squared_by_round(
  coefficients: np.ndarray,
  participation: Participation,
  scales: Optional[np.ndarray] = None,
) -> np.ndarray:
  """Upper bounds of the squared sensitivity of the first 1, 2, ..., n rounds, [n].

  `coefficients` are c, before scaling, float64 [n]; `scales` d, positive [n], if any.
  """
  if participation.possible_participations > 1:
    coefficients = majorant(coefficients, participation.min_separation)
  bounds = _attained(coefficients, participation)
  if scales is None:
    return bounds
  # `largest[t]` is the maximum up to round t, `falling[j]` that from round j on.
  largest = np.maximum.accumulate(scales)
  falling = np.maximum.accumulate(scales[::-1])[::-1]
  return np.minimum(
    np.square(largest) * bounds, _attained(coefficients, participation, falling)
  )


def squared(
  coefficients: np.ndarray,
  participation: Participation,
  scales: Optional[np.ndarray] = None,
) -> tuple[float, bool]:
  """Returns the squared sensitivity and True, up to rounding, or a bound and False."""
  bound = float(squared_by_round(coefficients, participation, scales)[-1])
  attained = float(_attained(coefficients, participation, scales)[-1])
  if _is_exact(bound, attained):
    return bound, True
  attained = max(attained, _alternating(coefficients, participation, scales))
  if scales is None:
    bound = min(bound, _pair_bound(coefficients, participation))
  else:
    bound = min(bound, _scaled_pair_bound(coefficients, scales, participation))
  return bound, _is_exact(bound, attained)


def is_earliest_worst(coefficients: np.ndarray, participation: Participation) -> bool:
  """Whether ||C u||^2, u the earliest, densest pattern, is known to be the worst."""
  attained = float(_attained(coefficients, participation)[-1])
  return _is_exact(squared(coefficients, participation)[0], attained)


def majorant(coefficients: np.ndarray, min_separation: int) -> np.ndarray:
  """m: |c|, replaced from index `min_separation` on by the maximum of later entries."""
  result = np.abs(coefficients)
  tail = result[min_separation:]
  result[min_separation:] = np.maximum.accumulate(tail[::-1])[::-1]
  return result


def _attained(
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
  length = 1 + int(nonzero[-1]) if len(nonzero) else 0
  for first in rounds:
    reached = response[first : first + length]
    column = coefficients[: len(reached)]
    reached += column if scales is None else scales[first] * column
  return response


def _is_exact(bound: float, attained: float) -> bool:
  return bound <= attained * (1 + _ROUNDING)


@dataclasses.dataclass(frozen=True)
class _Pairs:
  """Inner products of two columns of a client, by the index p of the first and lag."""

  products: np.ndarray  # R_{n - p b}(l), shape [k, m] for lags below m.
  # The maximum R_N(l'), or 0, over N <= n - p b and l' >= l, shape [k, m].
  largest: np.ndarray
  lowest: np.ndarray  # The same for -R_N(l').


def _pair_bound(coefficients: np.ndarray, participation: Participation) -> float:
  """The smaller of the two bounds by pairs; infinite if that would take too long."""
  count = participation.possible_participations
  size = np.abs(coefficients)
  length = 1 + int(np.flatnonzero(size > _NEGLIGIBLE * size.max())[-1])
  if length**2 > _MAX_OPERATIONS or length * count > _MAX_NUMBERS:
    return math.inf
  pairs = _pair_products(coefficients[:length], participation)
  either = np.maximum(pairs.largest, pairs.lowest)
  signless = _Pairs(np.abs(pairs.products), either, np.zeros_like(either))
  separation = participation.min_separation
  bound = min(_bound(pairs, separation), _bound(signless, separation))
  # By the triangle inequality, the rest of each column adds at most its norm.
  rest = count * float(np.linalg.norm(coefficients[length:]))
  return (math.sqrt(bound) + rest) ** 2


def _bound(pairs: _Pairs, separation: int) -> float:
  count, length = pairs.products.shape
  # R_pq, gain_pq and neg_pq.
  products, gain, negative = (np.zeros((count, count)) for _ in range(3))
  for p in range(count):
    lags = np.arange(separation, min(separation * (count - p), length), separation)
    later = slice(p + 1, p + 1 + len(lags))
    products[p, later] = pairs.products[p, lags]
    gain[p, later] = pairs.largest[p, lags] - pairs.products[p, lags]
    negative[p, later] = pairs.lowest[p, lags]
  # With fewer participations there are fewer pairs, so this is the maximum for 1 to k.
  attained = np.cumsum(pairs.products[:, 0] + 2 * products.sum(axis=0)).max()
  nearest = np.diagonal(products, 1)
  beyond = np.maximum(pairs.largest, pairs.lowest)[: count - 1]
  loss = nearest - (beyond[:, separation + 1] if separation + 1 < length else 0.0)
  # K_i: sums over p <= i and q > i.
  apart = np.arange(count) - np.arange(count)[:, np.newaxis]
  weighted = np.where(apart > 1, apart * negative, 0.0)
  covering = np.cumsum(np.cumsum(weighted, axis=0)[:, ::-1], axis=1)[:, ::-1]
  unlike = np.diagonal(covering, 1)
  # G_i: sums over all pairs with q > i except (i, i + 1).
  gain = np.where(apart == 1, np.maximum(gain, negative), gain)
  later_gains = np.cumsum(gain.sum(axis=0)[::-1])[::-1][1:] - np.diagonal(gain, 1)
  if_later = 2 * unlike + later_gains - loss  # e_i > 0
  if_unlike = 2 * unlike - np.minimum(nearest, 2 * nearest)  # e_i = 0 and d_i = 2
  return float(attained + 2 * np.maximum(0.0, np.maximum(if_later, if_unlike)).sum())


def _pair_products(coefficients: np.ndarray, participation: Participation) -> _Pairs:
  """The inner products of columns whose entries after `coefficients` are 0."""
  length = len(coefficients)
  ends = participation.num_rounds - np.array(participation.rounds)
  ends = np.minimum(ends, length)
  products, largest, lowest = (np.zeros((len(ends), length)) for _ in range(3))
  for lag in range(length):
    sums = np.cumsum(coefficients[: length - lag] * coefficients[lag:])
    overlaps = ends > lag
    last = ends[overlaps] - lag - 1
    products[overlaps, lag] = sums[last]
    largest[overlaps, lag] = np.maximum.accumulate(sums)[last]
    lowest[overlaps, lag] = np.maximum.accumulate(-sums)[last]
  return _Pairs(products, _max_of_longer_lags(largest), _max_of_longer_lags(lowest))


def _max_of_longer_lags(values: np.ndarray) -> np.ndarray:
  """The maximum over this lag and longer ones, at least 0."""
  largest = np.maximum.accumulate(values[:, ::-1], axis=1)[:, ::-1]
  return np.maximum(largest, 0.0)


def _scaled_pair_bound(
  coefficients: np.ndarray,
  scales: np.ndarray,
  participation: Participation,
) -> float:
  """The bound by pairs of scaled columns; if that takes too long, one by norms."""
  num_rounds = len(coefficients)
  starts = np.array(participation.rounds)
  norms = scales * np.sqrt(np.cumsum(np.square(coefficients))[::-1])
  longest = _suffix_maximum(norms)[starts]
  size = np.abs(coefficients)
  length = 1 + int(np.flatnonzero(size > _NEGLIGIBLE * size.max())[-1])
  separation = participation.min_separation
  # Lags from l b to (l + 1) b - 1 can occur for pairs with q - p <= l.
  apart = min(len(starts), 1 + (length - 1) // separation)
  if length * num_rounds > _MAX_PAIRS or apart * len(starts) > _MAX_NUMBERS:
    return float(longest.sum() ** 2)
  largest = np.zeros((len(starts), apart))
  largest[:, 0] = np.square(longest)
  for lag in range(separation, length if len(starts) > 1 else 0):
    sums = np.abs(np.cumsum(coefficients[: length - lag] * coefficients[lag:length]))
    # Columns i and i + lag share n - lag - i rows: from n - lag down to 1.
    rows = np.minimum(np.arange(num_rounds - lag, 0, -1), length - lag)
    products = sums[rows - 1] * scales[: num_rounds - lag] * scales[lag:]
    first = starts[starts < num_rounds - lag]
    column = largest[: len(first), min(lag // separation, apart - 1)]
    np.maximum(column, _suffix_maximum(products)[first], out=column)
  # Rounds may be farther apart than they have to be, unless p = q.
  largest[:, 1:] = np.maximum.accumulate(largest[:, :0:-1], axis=1)[:, ::-1]
  bound = largest[:, 0].sum()
  for later in range(1, apart):
    bound += 2.0 * largest[: len(starts) - later, later].sum()
  # By the triangle inequality, the rest of each column adds at most its norm.
  rest = float(np.linalg.norm(coefficients[length:]))
  sum_of_scales = float(_suffix_maximum(scales)[starts].sum())
  return float((math.sqrt(bound) + sum_of_scales * rest) ** 2)


def _suffix_maximum(values: np.ndarray) -> np.ndarray:
  """For each entry, the maximum of it and all later ones."""
  return np.maximum.accumulate(values[::-1])[::-1]
