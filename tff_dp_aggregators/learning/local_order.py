"""In which order a client goes through its examples: a function of seed and round.

A round that is run again must see the same batches, however clients are packed, and
whether NumPy or TensorFlow orders them. So the order comes from a hash of numbers, not
from a generator's state. It is for shuffling alone, and no noise is made of it.

Workers are sent what orders the examples of a round, and the seed also draws cohorts
and, in simulations, noise. From the hash (`sampling.draws.of_step`) neither the seed
nor another round follows; who guesses a seed can see that it fits.
"""

import numpy as np

from tff_dp_aggregators.sampling import draws

# An example's number in what is hashed; epochs come above.
EPOCH_BITS = 32


def keys(
  seed: int, this_round: int, clients: np.ndarray, purpose: str = 'order'
) -> np.ndarray:
  """What decides the order of each client's examples in a round.

  `clients`: Client numbers, int64, or keys, uint64, of shape [cohort].

  Returns keys for `permutation`, uint64 of shape [cohort], all different if the clients
  are.
  """
  return draws.of_step(seed, this_round, clients, purpose)


def permutation(key: int, num_examples: int, epoch: int = 0) -> np.ndarray:
  """The order of one client's examples in one pass over them.

  Returns numbers of examples, int64 of shape [num_examples].
  """
  position = np.arange(num_examples, dtype=np.uint64)
  position += np.uint64(epoch << EPOCH_BITS)
  hashed = draws.mix(np.uint64(key) + position)
  # As TensorFlow sorts them: without the last bit, equal ones by position.
  return np.argsort(hashed >> np.uint64(1), kind='stable')
