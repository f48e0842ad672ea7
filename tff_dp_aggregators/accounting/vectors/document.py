"""The file of test vectors: what is in it, and how it is made."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Callable, Optional

import mpmath

from tff_dp_aggregators.accounting.vectors import exact

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
  with mpmath.workdps(exact.DIGITS):
    return [*_sensitivities(), *_errors(), *_curves(), *_calibrations(), *_sampled()]


def to_json(vectors: list[Vector]) -> str:
  """The file's content.

  Args:
    vectors: From `make`.
  """
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
  """The vectors of a file; of the package's own by default.

  Args:
    path: The file.

  Raises:
    OSError: If it cannot be read.
    ValueError: If it is no file of this format and version, has no vectors, or one that
      is not as it should be, which is named.
  """
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
  """A vector, of its JSON.

  Raises:
    ValueError: If something is missing, too much, or of another type.
  """
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


def matrix_of(inputs: dict[str, Any]) -> exact.Matrix:
  """C, of the inputs of a vector."""
  if 'binary_tree' in inputs:
    return exact.tree(inputs['num_rounds'])
  scales = inputs.get('column_scales')
  return exact.toeplitz(
    [Fraction(each) for each in inputs['coefficients']],
    inputs['num_rounds'],
    scales and [Fraction(each) for each in scales],
  )


def patterns_of(inputs: dict[str, Any]) -> Iterator[tuple[int, ...]]:
  """A client's rounds, of the inputs of a vector."""
  return exact.patterns(
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
      value = exact.squared_sensitivity(matrix_of(inputs), patterns_of(inputs))
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
  decimal = exact.decimal_of(value)
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
      queries = exact.workload(
        matrix['num_rounds'], Fraction(momentum), Fraction(decay)
      )
      errors = exact.squared_errors(matrix_of(inputs), queries)
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
  return Vector(name, kind, inputs, exact.decimal_of(value), _DIGITS, method)


def _curves() -> Iterator[Vector]:
  for mu in ('0.01', '0.5', '1', '1.269726', '4', '20'):
    for epsilon in ('0', '0.1', '1', '8', '30'):
      value = exact.gaussian_delta(mpmath.mpf(mu), mpmath.mpf(epsilon))
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
  if exact.gaussian_delta(mu, mpmath.mpf(0)) <= delta:
    return mpmath.mpf(0)
  return _smallest(functools.partial(exact.gaussian_delta, mu), delta)


def _smallest(
  delta_of: Callable[[mpmath.mpf], mpmath.mpf], delta: mpmath.mpf
) -> mpmath.mpf:
  """The smallest argument at which a decreasing delta is not above this one."""
  return exact.root(lambda value: delta_of(value) - delta, 0, 1)


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
        return exact.gaussian_delta(sensitivity / noise, mpmath.mpf(epsilon))

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
      value = exact.sampled_gaussian_delta(*arguments, mpmath.mpf(epsilon))
      yield _real(
        f'sampled/delta/{probability}/{noise}/{epsilon}',
        'sampled_gaussian_delta',
        {**inputs, 'epsilon': epsilon},
        value,
        _BY_CDF,
      )
    for delta in ('1e-3', '1e-6'):
      value = _smallest(
        functools.partial(exact.sampled_gaussian_delta, *arguments), mpmath.mpf(delta)
      )
      yield _real(
        f'sampled/epsilon/{probability}/{noise}/{delta}',
        'sampled_gaussian_epsilon',
        {**inputs, 'delta': delta},
        value,
        _BY_BISECTION,
      )
