"""Drop-in replacement for TF Privacy's `tree_aggregation_accountant`.

It has the three public functions of this module of
`tensorflow_privacy.privacy.analysis`, with the same arguments and results. As there,
`min_separation` is the number of rounds strictly *between* two rounds of one client;
everywhere else in this package it is their difference, one more. `orders` is a single
order or several, and `noise_multiplier` the standard deviation of a node's noise over
the clip norm; without noise, the result is a single infinity.

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
from typing import Any, Callable, Union

import numpy as np

from tff_dp_aggregators.strategies import tree


def compute_rdp_tree_restart(
  noise_multiplier: float,
  steps_list: Union[int, Collection[int]],
  orders: Union[float, Collection[float]],
) -> Union[float, np.ndarray]:
  """RDP of one tree per epoch, if a client takes part once in each epoch.

  It is the sum of the depths of all trees over `2 sigma^2`, times the order
  (arXiv:2103.00039, Appendix D). `steps_list` has the number of rounds of each epoch,
  which may be 0, or of the only epoch.
  """

  def depths() -> int:
    epochs = np.atleast_1d(np.asarray(steps_list))
    _count('the length of steps_list', len(epochs), at_least=1)
    least = int(np.isscalar(steps_list))
    counts = [_count('steps_list', steps, at_least=least) for steps in epochs]
    return sum(tree.num_levels(steps) for steps in counts if steps)

  return _rdp(noise_multiplier, depths, orders)


def compute_rdp_single_tree(
  noise_multiplier: float,
  total_steps: int,
  max_participation: int,
  min_separation: int,
  orders: Union[float, Collection[float]],
) -> Union[float, np.ndarray]:
  """RDP of a single tree in which a client takes part several times."""

  def sensitivity_squared() -> int:
    return tree.sensitivity_squared(
      _count('total_steps', total_steps, at_least=1),
      min_separation=_count('min_separation', min_separation) + 1,
      max_participations=_count('max_participation', max_participation, at_least=1),
    )

  return _rdp(noise_multiplier, sensitivity_squared, orders)


def compute_zcdp_single_tree(
  noise_multiplier: float,
  total_steps: int,
  max_participation: int,
  min_separation: int,
) -> float:
  """The rho of zCDP of `compute_rdp_single_tree`'s tree: its RDP at order 1."""
  rho: Any = compute_rdp_single_tree(
    noise_multiplier, total_steps, max_participation, min_separation, 1.0
  )
  return rho


def _rdp(
  noise_multiplier: float, sensitivity_squared: Callable[[], int], orders: Any
) -> Any:
  if not noise_multiplier >= 0:
    raise ValueError(
      f'noise_multiplier must be non-negative and not NaN, got {noise_multiplier}.'
    )
  if noise_multiplier == 0:
    return np.inf
  orders = [*orders] if np.iterable(orders) else orders
  rdp = np.asarray(orders, np.float64) * sensitivity_squared()
  rdp = rdp / (2 * noise_multiplier**2)
  return rdp if rdp.ndim else float(rdp)


def _count(name: str, value: Any, at_least: int = 0) -> int:
  if not (value >= at_least and value == np.floor(value) < np.inf):
    raise ValueError(f'{name} must be whole and at least {at_least}, got {value}.')
  return int(value)
