"""In how many packs a cohort is trained, and where one ends.

What a client trains may differ in its last bits with how many are trained beside it. So
packs depend on the cohort alone, and neither on the processors nor on the machines that
train them: the same round has the same bits anywhere. Sums of packs are added up in
their order.
"""

import numpy as np

# Measured, on two cores: a pack costs 0.8 ms besides its clients, an example of a small
# model 5 us, and handing up the sums of 10^6 parameters what 27 examples of a model of
# that size cost.
_LEAST_SIDE_BY_SIDE, _LEAST_ONE_BY_ONE = 8192, 256
# More of them do not speed up what one machine does, until they are large.
_ENOUGH = 32
# Clients of a pack, and how many are trained at once: what a pack takes does not grow
# with the cohort. More of them take no less time a client. Cohorts of up to 3,000, as
# those of most published runs, are not cut for it: they make two packs anyway.
LARGEST = 1536


def num_packs(sizes: np.ndarray, local_epochs: int, *, side_by_side: bool) -> int:
  """How many packs a cohort is cut into.

  Two at least, so that no machine of today has nothing to do, if there are two clients;
  more if all have enough to do; and as many as it takes for none to be large.

  Args:
    sizes: How many examples each client has, int64 of shape [cohort].
    local_epochs: How often each goes through them.
    side_by_side: Whether clients of a pack are trained at once.

  Returns:
    A power of two, unless there are fewer clients.

  Example:
    >>> num_packs(np.full(100, 10), 1, side_by_side=True)
    2
    >>> num_packs(np.full(100, 20), 1, side_by_side=False)
    4
    >>> num_packs(np.full(10**6, 10), 1, side_by_side=True)
    1024
  """
  cohort = len(sizes)
  least = _LEAST_SIDE_BY_SIDE if side_by_side else _LEAST_ONE_BY_ONE
  wanted = min(_ENOUGH, int(sizes.sum()) * local_epochs // least)
  power = max(1, wanted.bit_length() - 1)
  while cohort > LARGEST << power:
    power += 1
  return max(1, min(cohort, 1 << power))


def cuts(cohort: int, packs: int) -> np.ndarray:
  """Where packs begin and end, that are of the same length but for one client.

  Args:
    cohort: Number of clients.
    packs: Number of packs.

  Returns:
    int64 of shape [packs + 1], from 0 to `cohort`.

  Example:
    >>> cuts(10, 4).tolist()
    [0, 2, 5, 7, 10]
  """
  return np.arange(packs + 1, dtype=np.int64) * cohort // packs
