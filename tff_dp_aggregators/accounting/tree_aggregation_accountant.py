"""Drop-in replacement for TF Privacy's `tree_aggregation_accountant`.

It has the three public functions of this module of
`tensorflow_privacy.privacy.analysis`, with the same results. As there, `min_separation`
is the number of rounds strictly *between* two rounds of one client; everywhere else in
this package it is their difference, one more.

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
  """RDP of one tree per epoch, if a client takes part once in each epoch.

  It is the sum of the depths of all trees over `2 sigma^2`, times the order
  (arXiv:2103.00039, Appendix D).

  Args:
    noise_multiplier: Standard deviation of a node's noise over the clip norm, >= 0.
    steps_list: Number of rounds of each epoch, which may be 0, or of the only epoch.
    orders: RDP orders, or a single one.

  Returns:
    A float for a single order, otherwise an array with a value for each order. Without
    noise, a single infinity whatever `orders` is.
  """
  if _is_noiseless(noise_multiplier):
    return np.inf
  is_one = np.isscalar(steps_list)
  epochs = np.atleast_1d(np.asarray(steps_list))
  _count('the length of steps_list', len(epochs), at_least=1)
  counts = [_count('steps_list', steps, at_least=int(is_one)) for steps in epochs]
  depths = sum(tree.num_levels(steps) for steps in counts if steps)
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
    total_steps: Number of rounds, which are the tree's leaves.
    max_participation: Maximum number of rounds of one client.
    min_separation: Minimum number of rounds strictly *between* two of one client.
    orders: As for `compute_rdp_tree_restart`, which returns the same types.
  """
  if _is_noiseless(noise_multiplier):
    return np.inf
  squared = _sensitivity_squared(total_steps, max_participation, min_separation)
  return _rdp(noise_multiplier, squared, orders)


def compute_zcdp_single_tree(
  noise_multiplier: float,
  total_steps: int,
  max_participation: int,
  min_separation: int,
) -> float:
  """The rho of zCDP of `compute_rdp_single_tree`'s tree; infinite without noise."""
  if _is_noiseless(noise_multiplier):
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
  rdp = np.asarray(orders, np.float64) * sensitivity_squared / (2 * noise_multiplier**2)
  return rdp if rdp.ndim else float(rdp)


def _is_noiseless(noise_multiplier: float) -> bool:
  """Whether the noise is 0; TF Privacy then ignores all other arguments."""
  if not noise_multiplier >= 0:
    raise ValueError(
      f'noise_multiplier must be non-negative and not NaN, got {noise_multiplier}.'
    )
  return noise_multiplier == 0


def _count(name: str, value: Any, at_least: int = 0) -> int:
  if not (value >= at_least and value == np.floor(value) < np.inf):
    raise ValueError(f'{name} must be whole and at least {at_least}, got {value}.')
  return int(value)
