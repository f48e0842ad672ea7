"""In which order a client goes through its examples: a function of seed and round.

A round that is run again must see the same batches, however clients are packed, and
whether NumPy or TensorFlow orders them. So the order comes from a hash of numbers, not
from a generator's state. It is for shuffling alone, and no noise is made of it.

Workers are sent what orders the examples of a round, and the seed also draws cohorts
and, in simulations, noise. So each round begins with SHA-256 of seed and round, from
which neither the seed nor another round follows; who guesses a seed can see that it
fits. From there on the hash is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA
2014), a bijection of 64 bits: clients of a round have different keys. It is applied
twice, with secret numbers of the round before each: applied once, what workers are sent
would tell by how much the keys of two clients differ, in all rounds.
"""

import hashlib

import numpy as np

# Of the finaliser; `learning.packed` computes the same in TensorFlow.
INCREMENT = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)
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
  hashed = f'tff_dp_aggregators {purpose} {int(seed)} {int(this_round)}'.encode()
  first, second = np.frombuffer(hashlib.sha256(hashed).digest()[:16], '<u8')
  clients = np.asarray(clients)
  if clients.dtype != np.uint64:
    clients = clients.astype(np.int64).astype(np.uint64)
  return _mix(_mix(clients + np.uint64(first)) ^ np.uint64(second))


def permutation(key: int, num_examples: int, epoch: int = 0) -> np.ndarray:
  """The order of one client's examples in one pass over them.

  Returns numbers of examples, int64 of shape [num_examples].

  Example:
    >>> key = keys(seed=1, this_round=0, clients=np.array([7]))[0]
    >>> permutation(key, 5).tolist(), permutation(key, 5, epoch=1).tolist()
    ([4, 1, 2, 3, 0], [0, 4, 1, 2, 3])
  """
  position = np.arange(num_examples, dtype=np.uint64)
  position += np.uint64(epoch << EPOCH_BITS)
  hashed = _mix(np.uint64(key) + position)
  # As TensorFlow sorts them: without the last bit, equal ones by position.
  return np.argsort(hashed >> np.uint64(1), kind='stable')


def _mix(numbers: np.ndarray) -> np.ndarray:
  mixed = numbers + np.uint64(INCREMENT)
  for shift, factor in zip(SHIFTS[:2], FACTORS):
    mixed ^= mixed >> np.uint64(shift)
    mixed *= np.uint64(factor)
  mixed ^= mixed >> np.uint64(SHIFTS[2])
  return mixed
