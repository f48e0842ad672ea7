"""TF Privacy's `tree_aggregation_accountant`, for programs that were written for it.

The three public functions of `tensorflow_privacy.privacy.analysis`'s module of this
name, with the same numbers, in milliseconds. What TF Privacy refuses is a `ValueError`;
so are NaN and steps that are not whole. As there, `min_separation` is the number of
rounds strictly *between* two rounds of one client; everywhere else in this package it
is their difference, one more.

Example:
  The published run of Gboard's Spanish next-word-prediction model.

  >>> import dp_accounting
  >>> orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
  >>> rdp = compute_rdp_single_tree(
  ...   7.0, total_steps=2000, max_participation=6, min_separation=313, orders=orders
  ... )
  >>> epsilon, order = dp_accounting.rdp.compute_epsilon(orders, rdp, 1e-10)
  >>> print(f'{epsilon:.2f}')
  8.90
"""

from collections.abc import Collection
from typing import Any, Union

import numpy as np

from tff_dp_aggregators.strategies import tree


def compute_rdp_tree_restart(
  noise_multiplier: float,
  steps_list: Union[int, Collection[int]],
  orders: Union[float, Collection[float]],
) -> Union[float, np.ndarray]:
  """RDP of a tree for each epoch, where a client takes part once in each epoch.

  The depths of all trees over `2 sigma^2`, times the order (arXiv:2103.00039,
  Appendix D).

  Args:
    noise_multiplier: Standard deviation of a node's noise over the clip norm, from 0.
    steps_list: Rounds of each epoch, or of the only one. An epoch may have none.
    orders: RDP orders, or a single one.

  Returns:
    A float for a single order, otherwise an array with one for each. Infinite at
    infinite orders. Without noise, infinity alone, whatever `orders` is.
  """
  if _is_without_noise(noise_multiplier):
    return np.inf
  given: Any = steps_list
  if np.isscalar(given):
    epochs = [_count('steps_list', given, at_least=1)]
  else:
    epochs = [_count('steps_list', steps) for steps in given]
    _count('the length of steps_list', len(epochs), at_least=1)
  depths = sum(tree.num_levels(steps) for steps in epochs if steps)
  return _rdp(noise_multiplier, depths, orders)


def compute_rdp_single_tree(
  noise_multiplier: float,
  total_steps: int,
  max_participation: int,
  min_separation: int,
  orders: Union[float, Collection[float]],
) -> Union[float, np.ndarray]:
  """RDP of a single tree in which a client takes part several times.

  Args:
    noise_multiplier: As for `compute_rdp_tree_restart`.
    total_steps: Rounds, the tree's leaves.
    max_participation: Most rounds of one client.
    min_separation: Fewest rounds strictly *between* two rounds of one client.
    orders: As for `compute_rdp_tree_restart`, which has the same returns.
  """
  if _is_without_noise(noise_multiplier):
    return np.inf
  squared = _sensitivity_squared(total_steps, max_participation, min_separation)
  return _rdp(noise_multiplier, squared, orders)


def compute_zcdp_single_tree(
  noise_multiplier: float,
  total_steps: int,
  max_participation: int,
  min_separation: int,
) -> float:
  """Rho of `compute_rdp_single_tree`'s tree, zCDP; infinite without noise."""
  if _is_without_noise(noise_multiplier):
    return np.inf
  squared = _sensitivity_squared(total_steps, max_participation, min_separation)
  return squared / (2 * noise_multiplier**2)


def _sensitivity_squared(
  total_steps: int, max_participation: int, min_separation: int
) -> int:
  return tree.sensitivity_squared(
    _count('total_steps', total_steps, at_least=1),
    min_separation=_count('min_separation', min_separation) + 1,
    max_participations=_count('max_participation', max_participation, at_least=1),
  )


def _rdp(
  noise_multiplier: float, sensitivity_squared: int, orders: Any
) -> Union[float, np.ndarray]:
  def at(order: Any) -> float:
    if np.isinf(order):
      return np.inf
    return order * sensitivity_squared / (2 * noise_multiplier**2)

  return at(orders) if np.isscalar(orders) else np.array([at(o) for o in orders])


def _is_without_noise(noise_multiplier: float) -> bool:
  """Whether the noise is 0; then TF Privacy looks at no other argument."""
  if not noise_multiplier >= 0:
    raise ValueError(
      f'noise_multiplier must be non-negative and not NaN, got {noise_multiplier}.'
    )
  return noise_multiplier == 0


def _count(name: str, value: Any, at_least: int = 0) -> int:
  """`value` as an int; TF Privacy also takes a whole number as a float."""
  if not (value >= at_least and value == np.floor(value) < np.inf):
    raise ValueError(f'{name} must be whole and at least {at_least}, got {value}.')
  return int(value)
