"""Exact figures that any library of this field can check itself against.

`test_vectors.json` has them: sensitivities, errors, privacy curves and calibrations,
each with its inputs, a decimal number, and how many of its digits are right. `make`
makes them by definition and enumeration: patterns of participation are enumerated,
matrices of rational numbers are inverted entry by entry, and roots are found by
bisection, with 50 digits. That is slow and short, and uses nothing of what it is to
check. `check` compares what this package computes. `tff-dp-vectors` is the program.
"""

import dataclasses
import functools
import itertools
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Callable, Optional, Union

import dp_accounting
import mpmath
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration

# By definition, with nothing of this package.

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


# The file, and how it is made.

PATH = pathlib.Path(__file__).with_name('test_vectors.json')
FORMAT, VERSION = 'tff_dp_aggregators.test_vectors', 1
_DIGITS = 30

DEFINITIONS = {
  'squared_sensitivity': (
    'max ||C u||^2 over the rounds u that one client may take part in, with '
    'contributions of norm at most 1 in each: rounds differ by min_separation at '
    'least (with fixed_epoch, by multiples of it), and are max_participations at '
    'most. Columns of C are rounds of participation.'
  ),
  'mean_squared_error': (
    'Mean of the squared row norms of A C^-1: A[t, j] is the sum of (1 - '
    'weight_decay)^(t - s) momentum^(s - j) over s from j to t, prefix sums '
    'without both. The noise in the queries of round t has this variance if that '
    'of C X + z is 1.'
  ),
  'max_squared_error': 'The largest of these squared row norms.',
  'gaussian_delta': (
    'The smallest delta at this epsilon of N(mu, 1) against N(0, 1): mu is the '
    'sensitivity over the standard deviation of the noise.'
  ),
  'gaussian_epsilon': 'The smallest epsilon at this delta, of the same.',
  'noise_multiplier': (
    'The smallest standard deviation, in clip norms, of z in C X + z for '
    '(epsilon, delta)-DP: the root of squared_sensitivity over the largest mu '
    'whose gaussian_delta at epsilon is not above delta.'
  ),
  'sampled_gaussian_delta': (
    'The smallest delta at this epsilon of one round in which each client takes '
    'part with this probability, under addition and removal of one: the larger '
    'one of the two directions.'
  ),
  'sampled_gaussian_epsilon': 'The smallest epsilon at this delta, of the same.',
}
_LIMITS = {'num_rounds', 'min_separation', 'max_participations', 'fixed_epoch'}
_ERROR = {'num_rounds', 'coefficients', 'momentum', 'weight_decay'}
_SAMPLED = {'sampling_probability', 'noise_multiplier'}
# What a vector of each kind has at least; a matrix is coefficients or a binary tree.
_INPUTS: dict[str, set[str]] = {
  'squared_sensitivity': _LIMITS,
  'mean_squared_error': _ERROR,
  'max_squared_error': _ERROR,
  'gaussian_delta': {'mu', 'epsilon'},
  'gaussian_epsilon': {'mu', 'delta'},
  'noise_multiplier': {'squared_sensitivity', 'epsilon', 'delta'},
  'sampled_gaussian_delta': {*_SAMPLED, 'epsilon'},
  'sampled_gaussian_epsilon': {*_SAMPLED, 'delta'},
}
_MATRIX = (
  'C: coefficients are the first column of a lower-triangular Toeplitz matrix, 0 where '
  'none is given, and column_scales what its columns are multiplied by; '
  'binary_tree has a row of 0 and 1 for each node completed in num_rounds.'
)
_BY_ENUMERATION = 'rational arithmetic, all participation patterns enumerated'
_BY_FRACTIONS = 'rational arithmetic, C inverted by forward substitution'
_BY_CDF = 'normal distribution with 50 digits'
_BY_BISECTION = 'normal distribution with 50 digits, bisection'


@dataclasses.dataclass(frozen=True)
class Vector:
  """One figure.

  Attributes:
    id: Unlike that of any other; it never stands for anything else.
    kind: One of `DEFINITIONS`.
    inputs: Numbers that are no integers are text: decimals, or fractions 'p/q'.
    value: A decimal.
    digits: How many of its digits are right.
    method: How it was made.
    exact: The fraction that it is, 'p/q', if it is one.
  """

  id: str
  kind: str
  inputs: dict[str, Any]
  value: str
  digits: int
  method: str
  exact: Optional[str] = None


def make() -> list[Vector]:
  """All vectors, made anew; a few seconds."""
  with mpmath.workdps(DIGITS):
    return [*_sensitivities(), *_errors(), *_curves(), *_calibrations(), *_sampled()]


def to_json(vectors: list[Vector]) -> str:
  """The file's content."""
  content = {
    'format': FORMAT,
    'version': VERSION,
    'matrix': _MATRIX,
    'definitions': DEFINITIONS,
    'vectors': [
      {name: value for name, value in vars(each).items() if value is not None}
      for each in vectors
    ],
  }
  return json.dumps(content, indent=1) + '\n'


def read(path: Optional[str] = None) -> list[Vector]:
  """The vectors of a file; of the package's own by default."""
  chosen = PATH if path is None else pathlib.Path(path)
  try:
    content = json.loads(chosen.read_text(encoding='utf-8'))
  except ValueError as e:  # Of JSON, or of UTF-8.
    raise ValueError(f'{chosen} is no JSON: {e}.') from e
  if not isinstance(content, dict):
    raise ValueError(f'{chosen} is a JSON {type(content).__name__}, not an object.')
  found = (content.get('format'), content.get('version'))
  if found != (FORMAT, VERSION):
    raise ValueError(
      f'{chosen} has format and version {found}, not {(FORMAT, VERSION)}; it is not a '
      'file of test vectors that this release reads.'
    )
  vectors = content.get('vectors')
  if not isinstance(vectors, list) or not vectors:
    raise ValueError(f'{chosen} has no list of vectors, or an empty one.')
  read_so_far: dict[str, Vector] = {}
  for number, each in enumerate(vectors):
    try:
      vector = _vector(each)
    except ValueError as e:
      name = each.get('id') if isinstance(each, dict) else None
      raise ValueError(f'{chosen}: vector {name or f"number {number}"}: {e}') from e
    if vector.id in read_so_far:
      raise ValueError(f'{chosen} has the id {vector.id} twice.')
    read_so_far[vector.id] = vector
  return list(read_so_far.values())


def _vector(content: Any) -> Vector:
  """A vector, of its JSON."""
  if not isinstance(content, dict):
    raise ValueError(f'it is {content!r}, not an object.')
  fields = {field.name for field in dataclasses.fields(Vector)}
  unlike = {*fields - {'exact'}} - {*content} or {*content} - fields
  if unlike:
    raise ValueError(f'{", ".join(sorted(unlike))} is missing or unknown.')
  vector = Vector(**content)
  if vector.kind not in DEFINITIONS:
    raise ValueError(
      f'it is of kind {vector.kind!r}; known are {", ".join(DEFINITIONS)}.'
    )
  needed = _INPUTS[vector.kind]
  if not isinstance(vector.inputs, dict) or not needed <= {*vector.inputs}:
    raise ValueError(f'its inputs need {", ".join(sorted(needed))}.')
  for name, value in vector.inputs.items():
    for each in value if isinstance(value, list) else [value]:
      if not isinstance(each, (int, str)):
        raise ValueError(
          f'the input {name} is {each!r}; numbers that are no integers are text.'
        )
  return vector


def matrix_of(inputs: dict[str, Any]) -> Matrix:
  """C, of the inputs of a vector."""
  if 'binary_tree' in inputs:
    return tree(inputs['num_rounds'])
  scales = inputs.get('column_scales')
  return toeplitz(
    [Fraction(each) for each in inputs['coefficients']],
    inputs['num_rounds'],
    scales and [Fraction(each) for each in scales],
  )


def patterns_of(inputs: dict[str, Any]) -> Iterator[tuple[int, ...]]:
  """A client's rounds, of the inputs of a vector."""
  return patterns(
    inputs['num_rounds'],
    inputs['min_separation'],
    inputs['max_participations'],
    inputs['fixed_epoch'],
  )


_BANDS = ['1', '1/2', '3/8', '5/16']
_TAIL = ['1', '3/4', '1/4', '1/8', *['1/16'] * 6]
_EXPONENTIAL = [f'{3**i}/{4**i}' for i in range(10)]
_MATRICES: dict[str, dict[str, Any]] = {
  'identity': {'coefficients': ['1'], 'num_rounds': 10},
  'bands': {'coefficients': _BANDS, 'num_rounds': 10},
  'tail': {'coefficients': _TAIL, 'num_rounds': 10},
  'exponential': {'coefficients': _EXPONENTIAL, 'num_rounds': 10},
  'epochs': {
    'coefficients': _BANDS,
    'num_rounds': 10,
    'column_scales': [*['5/4'] * 4, *['1'] * 4, *['3/4'] * 2],
  },
  'late': {
    'coefficients': ['1', '1/2'],
    'num_rounds': 10,
    'column_scales': [*['1'] * 5, *['2'] * 5],
  },
}
_PARTICIPATIONS: tuple[tuple[int, int, bool], ...] = (
  (10, 1, False),
  (4, 3, False),
  (4, 2, False),
  (4, 3, True),
  (3, 2, False),
  (2, 5, False),
  (1, 10, False),
)


def _sensitivities() -> Iterator[Vector]:
  matrices = {
    **_MATRICES,
    'binary_tree': {'binary_tree': 'completed nodes', 'num_rounds': 10},
  }
  for name, matrix in matrices.items():
    for separation, most, fixed in _PARTICIPATIONS:
      inputs = {
        **matrix,
        'min_separation': separation,
        'max_participations': most,
        'fixed_epoch': fixed,
      }
      value = squared_sensitivity(matrix_of(inputs), patterns_of(inputs))
      where = f'{separation}-{most}{"-fixed" if fixed else ""}'
      yield _rational(
        f'sensitivity/{name}/{where}', 'squared_sensitivity', inputs, value
      )


def _rational(
  name: str,
  kind: str,
  inputs: dict[str, Any],
  value: Fraction,
  method: str = _BY_ENUMERATION,
) -> Vector:
  decimal = decimal_of(value)
  return Vector(name, kind, inputs, decimal, _DIGITS, method, exact=str(value))


def _errors() -> Iterator[Vector]:
  workloads = {
    'prefix': ('0', '0'),
    'momentum': ('1/2', '0'),
    'decay': ('0', '1/8'),
    'both': ('3/4', '1/8'),
  }
  for name, matrix in _MATRICES.items():
    for of_workload, (momentum, decay) in workloads.items():
      inputs = {**matrix, 'momentum': momentum, 'weight_decay': decay}
      queries = workload(matrix['num_rounds'], Fraction(momentum), Fraction(decay))
      errors = squared_errors(matrix_of(inputs), queries)
      for what, value in (
        ('mean', sum(errors, Fraction(0)) / len(errors)),
        ('max', max(errors)),
      ):
        kind = f'{what}_squared_error'
        where = f'error/{name}/{of_workload}/{what}'
        yield _rational(where, kind, inputs, value, _BY_FRACTIONS)


def _real(
  name: str, kind: str, inputs: dict[str, Any], value: mpmath.mpf, method: str
) -> Vector:
  return Vector(name, kind, inputs, decimal_of(value), _DIGITS, method)


def _curves() -> Iterator[Vector]:
  for mu in ('0.01', '0.5', '1', '1.269726', '4', '20'):
    for epsilon in ('0', '0.1', '1', '8', '30'):
      value = gaussian_delta(mpmath.mpf(mu), mpmath.mpf(epsilon))
      if value > mpmath.mpf(10) ** -300:
        inputs = {'mu': mu, 'epsilon': epsilon}
        yield _real(
          f'curve/delta/{mu}/{epsilon}', 'gaussian_delta', inputs, value, _BY_CDF
        )
    for delta in ('1e-5', '1e-10'):
      value = _gaussian_epsilon(mpmath.mpf(mu), mpmath.mpf(delta))
      if value > 0:
        inputs = {'mu': mu, 'delta': delta}
        yield _real(
          f'curve/epsilon/{mu}/{delta}',
          'gaussian_epsilon',
          inputs,
          value,
          _BY_BISECTION,
        )


def _gaussian_epsilon(mu: mpmath.mpf, delta: mpmath.mpf) -> mpmath.mpf:
  if gaussian_delta(mu, mpmath.mpf(0)) <= delta:
    return mpmath.mpf(0)
  return _smallest(functools.partial(gaussian_delta, mu), delta)


def _smallest(
  delta_of: Callable[[mpmath.mpf], mpmath.mpf], delta: mpmath.mpf
) -> mpmath.mpf:
  """The smallest argument at which a decreasing delta is not above this one."""
  return root(lambda value: delta_of(value) - delta, 0, 1)


def _calibrations() -> Iterator[Vector]:
  for squared in ('1', '5', '79', '205/16'):
    for epsilon, delta in (('1', '1e-6'), ('8', '1e-6'), ('8.5261', '1e-10')):
      fraction = Fraction(squared)
      sensitivity = mpmath.sqrt(mpmath.mpf(fraction.numerator) / fraction.denominator)

      def delta_of(
        noise: mpmath.mpf, sensitivity: mpmath.mpf = sensitivity, epsilon: str = epsilon
      ) -> mpmath.mpf:
        if noise == 0:
          return mpmath.mpf(1)
        return gaussian_delta(sensitivity / noise, mpmath.mpf(epsilon))

      yield _real(
        f'calibration/{squared.replace("/", "_")}/{epsilon}/{delta}',
        'noise_multiplier',
        {'squared_sensitivity': squared, 'epsilon': epsilon, 'delta': delta},
        _smallest(delta_of, mpmath.mpf(delta)),
        _BY_BISECTION,
      )


def _sampled() -> Iterator[Vector]:
  for probability, noise in (('0.01', '1'), ('0.1', '0.8'), ('0.5', '2')):
    arguments = mpmath.mpf(probability), mpmath.mpf(noise)
    inputs = {'sampling_probability': probability, 'noise_multiplier': noise}
    for epsilon in ('0.1', '1', '3'):
      value = sampled_gaussian_delta(*arguments, mpmath.mpf(epsilon))
      yield _real(
        f'sampled/delta/{probability}/{noise}/{epsilon}',
        'sampled_gaussian_delta',
        {**inputs, 'epsilon': epsilon},
        value,
        _BY_CDF,
      )
    for delta in ('1e-3', '1e-6'):
      value = _smallest(
        functools.partial(sampled_gaussian_delta, *arguments), mpmath.mpf(delta)
      )
      yield _real(
        f'sampled/epsilon/{probability}/{noise}/{delta}',
        'sampled_gaussian_epsilon',
        {**inputs, 'delta': delta},
        value,
        _BY_BISECTION,
      )


# What this package computes.

# By how much a figure may be below the exact one, by rounding, and above it.
_ROUNDING = 1e-12
_BOUND = 1.0  # The same of what is said to be a bound: a larger one is of no use.
_ABOVE = {
  'gaussian_delta': 1e-9,
  'gaussian_epsilon': 1e-9,
  'noise_multiplier': 1e-9,
  # Losses of a privacy loss distribution are rounded up.
  'sampled_gaussian_delta': 1e-5,
  'sampled_gaussian_epsilon': 1e-4,
}


@dataclasses.dataclass(frozen=True)
class Checked:
  """A vector and what this package has for it.

  Attributes:
    vector: The vector.
    ours: This package's figure.
    is_bound: Whether it is said to be an upper bound, which may be larger.
  """

  vector: Vector
  ours: float
  is_bound: bool

  @property
  def difference(self) -> float:
    """(ours - exact) / exact."""
    with mpmath.workdps(self.vector.digits):
      exact = mpmath.mpf(self.vector.value)
      return float((mpmath.mpf(self.ours) - exact) / exact)

  @property
  def is_right(self) -> bool:
    """Whether it is not below the exact figure, nor above it; a bound to its double."""
    above = _BOUND if self.is_bound else _ABOVE.get(self.vector.kind, _ROUNDING)
    return -_ROUNDING <= self.difference <= above


def check(vectors: Iterable[Vector]) -> list[Checked]:
  """What this package has for vectors."""
  return [_checked(each) for each in vectors]


def _checked(vector: Vector) -> Checked:
  try:
    return Checked(vector, *_OURS[vector.kind](vector.inputs))
  except (KeyError, TypeError, ValueError, ZeroDivisionError) as e:
    raise ValueError(f'{vector.id} cannot be computed: {e!r}.') from e


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
  participation = strategies.Participation(
    inputs['num_rounds'],
    inputs['min_separation'],
    inputs['max_participations'],
    fixed_epoch=inputs['fixed_epoch'],
  )
  is_bound = strategy.sensitivity_kind(participation) != 'exact'
  return strategy.sensitivity_squared(participation), is_bound


def _our_errors(inputs: dict[str, Any]) -> np.ndarray:
  workload = strategies.Workload(
    inputs['num_rounds'],
    float(Fraction(inputs['momentum'])),
    weight_decay=float(Fraction(inputs['weight_decay'])),
  )
  return _strategy(inputs).per_query_error(workload)


def _gaussian(mu: str) -> dp_accounting.DpEvent:
  return dp_accounting.GaussianDpEvent(1 / float(mu))


def _noise_multiplier(inputs: dict[str, Any]) -> float:
  sensitivity = math.sqrt(Fraction(inputs['squared_sensitivity']))
  return calibration.noise_multiplier(
    lambda noise: dp_accounting.GaussianDpEvent(noise / sensitivity),
    float(inputs['epsilon']),
    float(inputs['delta']),
  )


def _sampled_event(inputs: dict[str, Any]) -> dp_accounting.DpEvent:
  return dp_accounting.PoissonSampledDpEvent(
    float(inputs['sampling_probability']),
    dp_accounting.GaussianDpEvent(float(inputs['noise_multiplier'])),
  )


_SAMPLED = Relation.ADD_OR_REMOVE_ONE
# From inputs to this package's figure, and whether it is an upper bound.
_OURS: dict[str, Callable[[dict[str, Any]], tuple[float, bool]]] = {
  'squared_sensitivity': _our_sensitivity,
  'mean_squared_error': lambda inputs: (float(_our_errors(inputs).mean()), False),
  'max_squared_error': lambda inputs: (float(_our_errors(inputs).max()), False),
  'gaussian_delta': lambda inputs: (
    accountants.delta(_gaussian(inputs['mu']), float(inputs['epsilon'])),
    False,
  ),
  'gaussian_epsilon': lambda inputs: (
    accountants.epsilon(_gaussian(inputs['mu']), float(inputs['delta'])),
    False,
  ),
  'noise_multiplier': lambda inputs: (_noise_multiplier(inputs), False),
  'sampled_gaussian_delta': lambda inputs: (
    accountants.delta(_sampled_event(inputs), float(inputs['epsilon']), None, _SAMPLED),
    False,
  ),
  'sampled_gaussian_epsilon': lambda inputs: (
    accountants.epsilon(_sampled_event(inputs), float(inputs['delta']), None, _SAMPLED),
    False,
  ),
}
