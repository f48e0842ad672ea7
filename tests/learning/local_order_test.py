"""The order of a client's examples is a shuffle that any round can be given again.

Claims:

* It is a permutation, and the same for the same seed, round, client and epoch.
* Each of these changes it.
* All orders are equally likely, over clients, rounds and epochs.
"""

import math

import numpy as np
import pytest

from tff_dp_aggregators.learning import local_order


def test_it_is_a_permutation_and_repeats():
  for num_examples in (0, 1, 2, 50):
    (key,) = local_order.keys(3, 5, np.array([11]))
    order = local_order.permutation(key, num_examples)
    assert sorted(order) == list(range(num_examples))
    np.testing.assert_array_equal(order, local_order.permutation(key, num_examples))


def test_seed_round_client_and_epoch_each_change_it():
  orders = [
    tuple(local_order.permutation(key, 30, epoch))
    for seed in (0, 1)
    for this_round in (0, 1)
    for key in local_order.keys(seed, this_round, np.array([0, 1]))
    for epoch in (0, 1)
  ]
  assert len(set(orders)) == 16


@pytest.mark.parametrize('vary', ['client', 'round', 'epoch'])
def test_all_orders_are_equally_likely(vary):
  draws = 24_000
  if vary == 'client':
    keys = local_order.keys(0, 0, np.arange(draws))
  elif vary == 'round':
    keys = np.array([local_order.keys(0, t, np.array([0]))[0] for t in range(draws)])
  else:
    keys = np.repeat(local_order.keys(0, 0, np.array([0])), draws)
  epochs = range(draws) if vary == 'epoch' else [0] * draws
  orders = [
    tuple(local_order.permutation(key, 4, epoch)) for key, epoch in zip(keys, epochs)
  ]
  _, counts = np.unique(orders, axis=0, return_counts=True)
  assert len(counts) == math.factorial(4)
  chi_squared = np.sum((counts - draws / 24) ** 2 / (draws / 24))
  assert chi_squared < 78.0  # 23 degrees of freedom: exceeded once in 10^7.
