"""In which order a client goes through its examples: a hash of seed, round and client.

So a round that is run again sees the same batches, whether NumPy or TensorFlow orders
them. Workers are sent the hash (`sampling.draws.of_step`), of which neither the seed,
which draws more than that, nor another round follows; no noise is made of it.
"""

import numpy as np

from tff_dp_aggregators.sampling import draws

# An example's number in what is hashed; epochs come above.
EPOCH_BITS = 32


def keys(
  seed: int, this_round: int, clients: np.ndarray, purpose: str = 'order'
) -> np.ndarray:
  """Keys for `permutation`, uint64 of shape [cohort], of numbers or keys of clients."""
  return draws.of_step(seed, this_round, clients, purpose)


def permutation(key: int, num_examples: int, epoch: int = 0) -> np.ndarray:
  """The numbers of one client's examples, int64, in the order of one pass over them."""
  position = np.arange(num_examples, dtype=np.uint64)
  position += np.uint64(epoch << EPOCH_BITS)
  hashed = draws.mix(np.uint64(key) + position)
  # As TensorFlow sorts them: without the last bit, equal ones by position.
  return np.argsort(hashed >> np.uint64(1), kind='stable')
