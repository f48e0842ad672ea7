"""Figures by their definitions, in rational numbers and 50 digits.

Slow and short: patterns of participation are enumerated, matrices are inverted entry by
entry, and roots are found by bisection. Nothing of it is used elsewhere, and it uses
nothing of what it is to check.
"""

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Callable, Optional, Union

import mpmath

DIGITS = 50
_SHOWN = 30  # Of a decimal; all of them are right.

Matrix = list[list[Fraction]]


def patterns(
  num_rounds: int, min_separation: int, max_participations: int, fixed_epoch: bool
) -> Iterator[tuple[int, ...]]:
  """All sets of rounds that one client may take part in.

  Rounds r1 < r2 of it satisfy r2 - r1 >= min_separation; in fixed epochs their
  differences are multiples of it.
  """
  most = min(max_participations, -(-num_rounds // min_separation))
  for count in range(1, most + 1):
    for rounds in itertools.combinations(range(num_rounds), count):
      gaps = [later - earlier for earlier, later in zip(rounds, rounds[1:])]
      if all(
        gap % min_separation == 0 if fixed_epoch else gap >= min_separation
        for gap in gaps
      ):
        yield rounds


def toeplitz(
  coefficients: Sequence[Fraction],
  num_rounds: int,
  column_scales: Optional[Sequence[Fraction]] = None,
) -> Matrix:
  """C[i, j] = coefficients[i - j] column_scales[j], 0 where there is no coefficient."""
  scales = column_scales or [Fraction(1)] * num_rounds
  return [
    [
      coefficients[i - j] * scales[j] if 0 <= i - j < len(coefficients) else Fraction(0)
      for j in range(num_rounds)
    ]
    for i in range(num_rounds)
  ]


def tree(num_rounds: int) -> Matrix:
  """A row for each node of a binary tree over the rounds that is completed in them."""
  rows = []
  width = 1
  while width <= num_rounds:
    for first in range(0, num_rounds - width + 1, width):
      rows.append(
        [Fraction(int(first <= j < first + width)) for j in range(num_rounds)]
      )
    width *= 2
  return rows


def squared_sensitivity(
  matrix: Matrix, all_patterns: Iterator[Sequence[int]]
) -> Fraction:
  """Max ||C u||^2 over patterns, for a matrix without negative entries.

  Contributions of norm 1 that point in one direction are the worst then.
  """
  return max(
    sum(
      (sum((row[j] for j in rounds), Fraction(0)) ** 2 for row in matrix), Fraction(0)
    )
    for rounds in all_patterns
  )


def workload(num_rounds: int, momentum: Fraction, weight_decay: Fraction) -> Matrix:
  """A[t, j] = sum_{s = j..t} (1 - weight_decay)^(t - s) momentum^(s - j)."""
  kept = 1 - weight_decay
  return [
    [
      sum((kept ** (t - s) * momentum ** (s - j) for s in range(j, t + 1)), Fraction(0))
      for j in range(num_rounds)
    ]
    for t in range(num_rounds)
  ]


def squared_errors(matrix: Matrix, queries: Matrix) -> list[Fraction]:
  """Squared row norms of A C^-1, for a lower-triangular C."""
  size = len(matrix)
  inverse = [[Fraction(0)] * size for _ in range(size)]
  for j in range(size):
    inverse[j][j] = 1 / matrix[j][j]
    for i in range(j + 1, size):
      total = sum((matrix[i][k] * inverse[k][j] for k in range(j, i)), Fraction(0))
      inverse[i][j] = -total / matrix[i][i]
  rows = [
    [
      sum((query[k] * inverse[k][j] for k in range(j, size)), Fraction(0))
      for j in range(size)
    ]
    for query in queries
  ]
  return [sum((entry**2 for entry in row), Fraction(0)) for row in rows]


def _normal_cdf(x: mpmath.mpf) -> mpmath.mpf:
  return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def gaussian_delta(mu: mpmath.mpf, epsilon: mpmath.mpf) -> mpmath.mpf:
  """The smallest delta of mu-Gaussian-DP: N(mu, 1) against N(0, 1)."""
  upper = _normal_cdf(-epsilon / mu + mu / 2)
  return upper - mpmath.exp(epsilon) * _normal_cdf(-epsilon / mu - mu / 2)


def sampled_gaussian_delta(
  probability: mpmath.mpf, noise_multiplier: mpmath.mpf, epsilon: mpmath.mpf
) -> mpmath.mpf:
  """The smallest delta of one round whose clients are drawn by Poisson sampling.

  P = (1 - q) N(0, sigma^2) + q N(1, sigma^2) against N(0, sigma^2), and the other way
  round, whichever is larger: a client is there or not.
  """
  q, sigma = probability, noise_multiplier

  def likelihood_ratio_is(value: mpmath.mpf) -> Optional[mpmath.mpf]:
    """Where P / Q has this value; it increases. `None` if it is larger everywhere."""
    rest = (value - 1 + q) / q
    return None if rest <= 0 else sigma**2 * mpmath.log(rest) + mpmath.mpf(1) / 2

  x = likelihood_ratio_is(mpmath.exp(epsilon))
  assert x is not None  # exp(epsilon) is at least 1.
  above = [_normal_cdf(-x / sigma), _normal_cdf((1 - x) / sigma)]
  removed = (1 - q) * above[0] + q * above[1] - mpmath.exp(epsilon) * above[0]
  x = likelihood_ratio_is(mpmath.exp(-epsilon))
  added = mpmath.mpf(0)
  if x is not None:
    below = [_normal_cdf(x / sigma), _normal_cdf((x - 1) / sigma)]
    added = below[0] - mpmath.exp(epsilon) * ((1 - q) * below[0] + q * below[1])
  return max(removed, added)


def root(
  function: Callable[[mpmath.mpf], mpmath.mpf], lower: float, upper: float
) -> mpmath.mpf:
  """Where a decreasing function is 0, between the two, by bisection."""
  low, high = mpmath.mpf(lower), mpmath.mpf(upper)
  while function(high) > 0:
    low, high = high, 2 * high
  for _ in range(4 * DIGITS):
    middle = (low + high) / 2
    if function(middle) > 0:
      low = middle
    else:
      high = middle
  return high


def decimal_of(value: Union[Fraction, mpmath.mpf]) -> str:
  """A number with 30 digits."""
  with mpmath.workdps(DIGITS):
    if isinstance(value, Fraction):
      value = mpmath.mpf(value.numerator) / value.denominator
    return mpmath.nstr(value, _SHOWN, strip_zeros=False)
