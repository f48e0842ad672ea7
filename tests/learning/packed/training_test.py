"""TensorFlow orders examples as NumPy does, for clients of all sizes at once."""

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning.packed import training


def test_permutations_are_those_of_local_order():
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
