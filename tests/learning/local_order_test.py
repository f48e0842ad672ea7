"""Tests of `local_order`, which shuffles a client's examples reproducibly."""

import hashlib
import math

import numpy as np
import pytest
import tensorflow as tf

from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning.packed import training
from tff_dp_aggregators.sampling import draws


def test_permutation_is_valid_and_reproducible():
  for num_examples in (0, 1, 2, 50):
    (key,) = local_order.keys(3, 5, np.array([11]))
    order = local_order.permutation(key, num_examples)
    assert sorted(order) == list(range(num_examples))
    np.testing.assert_array_equal(order, local_order.permutation(key, num_examples))


def test_order_depends_on_seed_round_client_and_epoch():
  orders = [
    tuple(local_order.permutation(key, 30, epoch))
    for seed in (0, 1)
    for this_round in (0, 1)
    for key in local_order.keys(seed, this_round, np.array([0, 1]))
    for epoch in (0, 1)
  ]
  assert len(set(orders)) == 16


@pytest.mark.parametrize(
  'vary', ['client', 'epoch', pytest.param('round', marks=pytest.mark.slow)]
)
def test_all_orders_are_equally_likely(vary):
  draws = 6_000
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


def test_inverting_keys_reveals_sha256_digest_but_not_seed():
  def unmix(number):
    def unshift(number, shift):
      result = number
      for _ in range(64 // shift):
        result = number ^ (result >> shift)
      return result

    number = unshift(int(number), draws.SHIFTS[2])
    for shift, factor in zip(draws.SHIFTS[1::-1], draws.FACTORS[::-1]):
      number = unshift(number * pow(factor, -1, 2**64) % 2**64, shift)
    return (number - draws.INCREMENT) % 2**64

  seed, clients = 2**63 + 12345, np.array([0, 7, 2**40])
  starts, differences = [], set()
  for this_round in range(100):
    keys = [unmix(key) for key in local_order.keys(seed, this_round, clients)]
    differences.add((keys[1] - keys[0]) % 2**64)
    text = f'tff_dp_aggregators order {seed} {this_round}'
    digest = hashlib.sha256(text.encode()).digest()
    first, second = (int.from_bytes(digest[i : i + 8], 'little') for i in (0, 8))
    starting_values = {
      (unmix(key ^ second) - int(client)) % 2**64 for key, client in zip(keys, clients)
    }
    assert starting_values == {first}
    starts += starting_values
  # Without the second number, keys would show by how much two clients' numbers differ.
  assert len(differences) == 100 and 7 not in differences
  # If keys were mixed and not hashed, one of these would be the seed in each round.
  layers = [np.array(starts, object)]
  for _ in range(3):
    layers.append(np.array([unmix(each) for each in layers[-1]], object))
  for layer in layers:
    for known in (layer, (layer - np.arange(100)) % 2**64):
      assert len(set(known)) == 100 and seed not in known
      assert len(set(np.diff(known) % 2**64)) == 99


def test_packed_permutations_match_local_order():
  sizes = np.array([1, 2, 7, 7, 300])
  keys = local_order.keys(5, 17, np.arange(5))
  orders = training.permutations(
    tf.constant(keys), tf.constant(sizes), tf.constant(300, tf.int64), epochs=3
  ).numpy()
  for order, key, size in zip(orders, keys, sizes):
    for epoch in range(3):
      np.testing.assert_array_equal(
        order[epoch, :size], local_order.permutation(key, size, epoch)
      )
