"""What this package computes where test vectors have exact figures."""

import dataclasses
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Callable

import dp_accounting
import mpmath
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting.vectors import document

# By how much a figure may be below the exact one, by rounding, and above it.
_ROUNDING = 1e-12
_BOUND = 1.0  # The same of what is said to be a bound: a larger one is of no use.
_ABOVE = {
  'gaussian_delta': 1e-9,
  'gaussian_epsilon': 1e-9,
  'noise_multiplier': 1e-9,
  # Of a privacy loss distribution, whose losses are rounded up.
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

  vector: document.Vector
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


def check(vectors: Iterable[document.Vector]) -> list[Checked]:
  """What this package has for vectors.

  Args:
    vectors: Of the kinds of `document.DEFINITIONS`.

  Raises:
    ValueError: If one cannot be computed; it is named.
  """
  return [_checked(each) for each in vectors]


def _checked(vector: document.Vector) -> Checked:
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


def _sensitivity(inputs: dict[str, Any]) -> tuple[float, bool]:
  strategy = _strategy(inputs)
  participation = strategies.Participation(
    inputs['num_rounds'],
    inputs['min_separation'],
    inputs['max_participations'],
    fixed_epoch=inputs['fixed_epoch'],
  )
  is_bound = strategy.sensitivity_kind(participation) != 'exact'
  return strategy.sensitivity_squared(participation), is_bound


def _errors(inputs: dict[str, Any]) -> np.ndarray:
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


def _sampled(inputs: dict[str, Any]) -> dp_accounting.DpEvent:
  return dp_accounting.PoissonSampledDpEvent(
    float(inputs['sampling_probability']),
    dp_accounting.GaussianDpEvent(float(inputs['noise_multiplier'])),
  )


_SAMPLED = Relation.ADD_OR_REMOVE_ONE
# Of inputs: this package's figure, and whether it is an upper bound.
_OURS: dict[str, Callable[[dict[str, Any]], tuple[float, bool]]] = {
  'squared_sensitivity': _sensitivity,
  'mean_squared_error': lambda inputs: (float(_errors(inputs).mean()), False),
  'max_squared_error': lambda inputs: (float(_errors(inputs).max()), False),
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
    accountants.delta(_sampled(inputs), float(inputs['epsilon']), None, _SAMPLED),
    False,
  ),
  'sampled_gaussian_epsilon': lambda inputs: (
    accountants.epsilon(_sampled(inputs), float(inputs['delta']), None, _SAMPLED),
    False,
  ),
}
