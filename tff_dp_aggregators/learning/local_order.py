"""Orders a client's examples by a hash of seed, round and client.

A round that is run again has the same batches, in NumPy and in TensorFlow. The hash
that workers receive reveals neither the seed nor the order of another round.
"""

import numpy as np

from tff_dp_aggregators.sampling import draws

# Bits of an example's number in the hashed integer; the epoch is in the bits above.
EPOCH_BITS = 32


def keys(seed: int, this_round: int, clients: np.ndarray) -> np.ndarray:
  """Keys for `permutation`, uint64 of shape [cohort], from clients' numbers or keys."""
  return draws.of_step(seed, this_round, clients, 'order')


def permutation(key: int, num_examples: int, epoch: int = 0) -> np.ndarray:
  """The numbers of one client's examples, int64, in the order of one pass over them."""
  position = np.arange(num_examples, dtype=np.uint64)
  position += np.uint64(epoch << EPOCH_BITS)
  hashed = draws.mix(np.uint64(key) + position)
  # TensorFlow sorts int64, so the last bit is dropped; ties are sorted by position.
  return np.argsort(hashed >> np.uint64(1), kind='stable')
