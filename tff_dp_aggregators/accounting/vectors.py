"""Exact test vectors, which any library for differential privacy can be checked with.

`test_vectors.json` contains sensitivities, errors, privacy curves and calibrations,
each with its inputs, a decimal number, and the number of its correct digits, and the
definitions of these quantities. `remake` computes them from their inputs, by definition
and enumeration, with rational numbers and 50 digits: slow and short, and independent of
the code that is to be checked. `check` compares the values that this package computes.
"""

import functools
import itertools
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Annotated, Any, Callable, Literal, NamedTuple, Optional, Union

import dp_accounting
import mpmath
import msgspec
import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration

# Computation by definition, independent of this package.

DIGITS = 50
_SHOWN = 30  # Digits of a decimal in the file; all of them are correct.


def patterns(
  num_rounds: int, min_separation: int, max_participations: int, fixed_epoch: bool
) -> Iterator[list[int]]:
  """Sets of rounds of one client, min_separation or more, or multiples of it, apart."""
  max_count = min(max_participations, -(-num_rounds // min_separation))
  for count in range(1, max_count + 1):
    for rounds in itertools.combinations(range(num_rounds), count):
      gaps = np.diff(rounds)
      if np.all(gaps % min_separation == 0 if fixed_epoch else gaps >= min_separation):
        yield list(rounds)


def toeplitz(
  coefficients: Sequence[Fraction],
  num_rounds: int,
  column_scales: Optional[Sequence[Fraction]] = None,
) -> np.ndarray:
  """C[i, j] = coefficients[i - j] column_scales[j]; coefficients not given are 0."""
  by_lag, rounds = dict(enumerate(coefficients)), range(num_rounds)
  matrix = np.array([[by_lag.get(i - j, Fraction(0)) for j in rounds] for i in rounds])
  return matrix * np.array(column_scales or Fraction(1))


def tree(num_rounds: int) -> np.ndarray:
  """A row for each node of a binary tree that is completed within the rounds."""
  rows = []
  for width in (2**level for level in range(num_rounds.bit_length())):
    for first in range(0, num_rounds - width + 1, width):
      rows.append([Fraction(first <= j < first + width) for j in range(num_rounds)])
  return np.array(rows)


def squared_sensitivity(
  matrix: np.ndarray, all_patterns: Iterator[list[int]]
) -> Fraction:
  """Max ||C u||^2 over patterns, for a matrix without negative entries."""
  scale = math.lcm(*(entry.denominator for entry in matrix.flat))
  integers = np.vectorize(int, [object])(matrix * scale)  # Sums of fractions are slow.
  largest = max((integers[:, rounds].sum(1) ** 2).sum() for rounds in all_patterns)
  return Fraction(largest, scale**2)


def workload(num_rounds: int, momentum: Fraction, weight_decay: Fraction) -> np.ndarray:
  """A[t, j] = sum_{s = j..t} (1 - weight_decay)^(t - s) momentum^(s - j)."""
  decayed, accumulated = (
    toeplitz([base**i for i in range(num_rounds)], num_rounds)
    for base in (1 - weight_decay, momentum)
  )
  return decayed @ accumulated


def squared_errors(matrix: np.ndarray, queries: np.ndarray) -> np.ndarray:
  """Squared row norms of A C^-1, for a lower-triangular C."""
  solved = queries.copy()
  for j in reversed(range(len(matrix))):
    later = solved[:, j + 1 :] @ matrix[j + 1 :, j]
    solved[:, j] = (solved[:, j] - later) / matrix[j, j]
  return (solved**2).sum(1)


def gaussian_delta(
  probability: mpmath.mpf, noise_multiplier: mpmath.mpf, epsilon: mpmath.mpf
) -> mpmath.mpf:
  """The smallest delta of one round with Poisson sampling, under add-or-remove-one.

  It is the maximum of P = (1 - q) N(0, sigma^2) + q N(1, sigma^2) against Q = N(0,
  sigma^2), and of Q against P.
  """
  q, sigma, factor = probability, noise_multiplier, mpmath.exp(epsilon)

  def masses(ratio: mpmath.mpf, side: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Q and P below (side 1) or above (-1) the x at which P / Q is `ratio`."""
    rest = (ratio - 1 + q) / q
    if rest <= 0:  # P / Q, which increases with x, is larger everywhere.
      return mpmath.mpf(0), mpmath.mpf(0)
    x = sigma**2 * mpmath.log(rest) + mpmath.mpf(1) / 2
    of_q = mpmath.ncdf(side * x / sigma)
    return of_q, (1 - q) * of_q + q * mpmath.ncdf(side * (x - 1) / sigma)

  q_above, p_above = masses(factor, -1)
  q_below, p_below = masses(1 / factor, 1)
  return max(p_above - factor * q_above, q_below - factor * p_below)


def smallest(
  delta_of: Callable[[mpmath.mpf], mpmath.mpf], delta: mpmath.mpf
) -> mpmath.mpf:
  """The smallest argument >= 0 at which a decreasing `delta_of` is at most `delta`."""
  low, high = mpmath.mpf(0), mpmath.mpf(1)
  while delta_of(high) > delta:
    low, high = high, 2 * high
  for _ in range(3 * DIGITS):  # Bisection steps, one bit each.
    middle = (low + high) / 2
    low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
  return high


# The file.

PATH = pathlib.Path(__file__).with_name('test_vectors.json')
Inputs = dict[str, Union[bool, int, str, list[Union[int, str]]]]


class Vector(
  msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
  """One test vector."""

  id: str  # A unique identifier, which is never reused.
  kind: str  # A key of `QUANTITIES`.
  inputs: Inputs  # Non-integer numbers are strings: decimals, or fractions 'p/q'.
  value: str  # A decimal.
  digits: Annotated[int, msgspec.Meta(ge=15)]  # Number of its correct digits.
  method: str  # How it was computed.
  exact: Optional[str] = None  # The exact value as a fraction 'p/q', if it is rational.


class _File(msgspec.Struct, frozen=True):
  format: Literal['tff_dp_aggregators.test_vectors']
  version: Literal[1]
  vectors: Annotated[list[Vector], msgspec.Meta(min_length=1)]


def remake(vectors: Iterable[Vector]) -> list[Vector]:
  """Computes the vectors anew from their inputs, which takes a few seconds."""
  remade = []
  with mpmath.workdps(DIGITS):
    for vector in vectors:
      exact, value = None, _computed(vector, 'exact')
      if isinstance(value, Fraction):
        exact = str(value)
        value = mpmath.mpf(value.numerator) / value.denominator
      decimal = mpmath.nstr(value, _SHOWN, strip_zeros=False)
      computed = {'value': decimal, 'digits': _SHOWN, 'exact': exact}
      computed['method'] = QUANTITIES[vector.kind].method
      remade.append(msgspec.structs.replace(vector, **computed))
  return remade


def _computed(vector: Vector, by: str) -> Any:
  try:
    return getattr(QUANTITIES[vector.kind], by)(vector.inputs)
  except (KeyError, TypeError, ValueError, ZeroDivisionError) as e:
    raise ValueError(f'{vector.id} cannot be computed: {e!r}.') from e


def to_json(vectors: list[Vector]) -> str:
  """Returns the package's file with these vectors instead of its own."""
  content = {**json.loads(PATH.read_bytes()), 'vectors': msgspec.to_builtins(vectors)}
  return json.dumps(content, indent=1) + '\n'


def read(path: Optional[str] = None) -> list[Vector]:
  """Reads the vectors of a file, by default those of this package."""
  chosen = PATH if path is None else pathlib.Path(path)
  try:
    return msgspec.json.decode(chosen.read_bytes(), type=_File).vectors
  except (ValueError, msgspec.DecodeError) as e:
    raise ValueError(
      f'{chosen} is not a file of test vectors that this release reads: {e}.'
    ) from e


def _matrix(inputs: Any) -> np.ndarray:
  if 'binary_tree' in inputs:
    return tree(inputs['num_rounds'])
  coefficients = [Fraction(each) for each in inputs['coefficients']]
  scales = [Fraction(each) for each in inputs.get('column_scales', ())]
  return toeplitz(coefficients, inputs['num_rounds'], scales)


def _exact_errors(inputs: Any) -> np.ndarray:
  rates = (Fraction(inputs[name]) for name in ('momentum', 'weight_decay'))
  return squared_errors(_matrix(inputs), workload(inputs['num_rounds'], *rates))


def _by_delta(inputs: Any) -> Callable[[mpmath.mpf], mpmath.mpf]:
  """Delta as a function of epsilon, or of the noise multiplier if that is computed."""
  if 'squared_sensitivity' in inputs:
    squared, epsilon = Fraction(inputs['squared_sensitivity']), inputs['epsilon']
    sensitivity = mpmath.sqrt(mpmath.mpf(squared.numerator) / squared.denominator)
    return lambda noise: gaussian_delta(1, noise / sensitivity, mpmath.mpf(epsilon))
  if 'mu' in inputs:
    return functools.partial(gaussian_delta, 1, 1 / mpmath.mpf(inputs['mu']))
  names = ('sampling_probability', 'noise_multiplier')
  return functools.partial(gaussian_delta, *(mpmath.mpf(inputs[n]) for n in names))


def _exact_delta(inputs: Any) -> mpmath.mpf:
  return _by_delta(inputs)(mpmath.mpf(inputs['epsilon']))


def _exact_root(inputs: Any) -> mpmath.mpf:
  return smallest(_by_delta(inputs), mpmath.mpf(inputs['delta']))


# Values that this package computes.

_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
_LIMITS = ('num_rounds', 'min_separation', 'max_participations', 'fixed_epoch')
_ROUNDING = 1e-12  # Relative tolerance below and above the exact value.
_BOUND = 1.0  # Relative tolerance above the exact value for upper bounds.


class Checked(NamedTuple):
  """A vector, and the value that this package computes."""

  vector: Vector
  ours: float
  is_bound: bool  # Whether `ours` is documented as an upper bound.

  @property
  def difference(self) -> float:
    """(ours - exact) / exact; without the division if exact is 0."""
    with mpmath.workdps(max(self.vector.digits, DIGITS)):
      exact = mpmath.mpf(self.vector.value)
      return float((mpmath.mpf(self.ours) - exact) / (exact or 1))

  @property
  def is_right(self) -> bool:
    """Whether `ours` is not below the exact value, nor above it more than allowed."""
    above = _BOUND if self.is_bound else QUANTITIES[self.vector.kind].above
    return -_ROUNDING <= self.difference <= above


def check(vectors: Iterable[Vector]) -> list[Checked]:
  """Computes the value of each vector with this package."""
  values = ((each, _computed(each, 'ours')) for each in vectors)
  return [
    Checked(each, *(ours if isinstance(ours, tuple) else (float(ours), False)))
    for each, ours in values
  ]


def _strategy(inputs: dict[str, Any]) -> strategies.Strategy:
  num_rounds = inputs['num_rounds']
  if 'binary_tree' in inputs:
    return strategies.BinaryTree(num_rounds, honaker=False)
  coefficients = tuple(float(Fraction(each)) for each in inputs['coefficients'])
  if 'column_scales' not in inputs:
    return strategies.BandedToeplitz(num_rounds, coefficients)
  scales = tuple(float(Fraction(each)) for each in inputs['column_scales'])
  return strategies.EpochToeplitz(
    num_rounds, tuple(range(num_rounds)), scales, coefficients
  )


def _our_sensitivity(inputs: dict[str, Any]) -> tuple[float, bool]:
  strategy = _strategy(inputs)
  limits = strategies.Participation(*(inputs[name] for name in _LIMITS))
  is_bound = strategy.sensitivity_kind(limits) != 'exact'
  return strategy.sensitivity_squared(limits), is_bound


def _our_errors(inputs: dict[str, Any]) -> np.ndarray:
  workload = strategies.Workload(
    inputs['num_rounds'],
    float(Fraction(inputs['momentum'])),
    weight_decay=float(Fraction(inputs['weight_decay'])),
  )
  return _strategy(inputs).per_query_error(workload)


def _event(inputs: dict[str, Any]) -> dp_accounting.DpEvent:
  if 'mu' in inputs:
    return dp_accounting.GaussianDpEvent(1 / float(inputs['mu']))
  return dp_accounting.PoissonSampledDpEvent(
    float(inputs['sampling_probability']),
    dp_accounting.GaussianDpEvent(float(inputs['noise_multiplier'])),
  )


def _our_delta(inputs: dict[str, Any]) -> float:
  return accountants.delta(_event(inputs), float(inputs['epsilon']), relation=_RELATION)


def _our_epsilon(inputs: dict[str, Any]) -> float:
  return accountants.epsilon(_event(inputs), float(inputs['delta']), relation=_RELATION)


def _noise_multiplier(inputs: dict[str, Any]) -> float:
  sensitivity = math.sqrt(Fraction(inputs['squared_sensitivity']))
  return calibration.noise_multiplier(
    lambda noise: dp_accounting.GaussianDpEvent(noise / sensitivity),
    float(inputs['epsilon']),
    float(inputs['delta']),
  )


class Quantity(NamedTuple):
  """How a quantity is computed; its definition is in the package's file."""

  # Computes it with this package; may also return whether it is a bound.
  ours: Callable[[dict[str, Any]], Union[float, tuple[float, bool]]]
  exact: Callable[[dict[str, Any]], Union[Fraction, mpmath.mpf]]  # By definition.
  method: str  # How `exact` computes it.
  above: float = _ROUNDING  # Relative tolerance of `ours` above the exact value.


_BY_ENUMERATION = 'rational arithmetic, all participation patterns enumerated'
_BY_FRACTIONS = 'rational arithmetic, C inverted by forward substitution'
_BY_CDF = 'normal distribution with 50 digits'
_BY_BISECTION = 'normal distribution with 50 digits, bisection'
QUANTITIES = {
  'squared_sensitivity': Quantity(
    _our_sensitivity,
    lambda inputs: squared_sensitivity(
      _matrix(inputs), patterns(*(inputs[name] for name in _LIMITS))
    ),
    _BY_ENUMERATION,
  ),
  'mean_squared_error': Quantity(
    lambda inputs: _our_errors(inputs).mean(),
    lambda inputs: _exact_errors(inputs).sum() / inputs['num_rounds'],
    _BY_FRACTIONS,
  ),
  'max_squared_error': Quantity(
    lambda inputs: _our_errors(inputs).max(),
    lambda inputs: _exact_errors(inputs).max(),
    _BY_FRACTIONS,
  ),
  'gaussian_delta': Quantity(_our_delta, _exact_delta, _BY_CDF, 1e-9),
  'gaussian_epsilon': Quantity(_our_epsilon, _exact_root, _BY_BISECTION, 1e-9),
  'noise_multiplier': Quantity(_noise_multiplier, _exact_root, _BY_BISECTION, 1e-9),
  # Privacy loss distributions are rounded up, so tolerances are larger.
  'sampled_gaussian_delta': Quantity(_our_delta, _exact_delta, _BY_CDF, 1e-5),
  'sampled_gaussian_epsilon': Quantity(_our_epsilon, _exact_root, _BY_BISECTION, 1e-4),
}
