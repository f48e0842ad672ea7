"""A round's clients, cut into packs.

What a client trains may differ in its last bits with how many are trained beside it. So
packs depend on the cohort alone, and neither on the processors nor on the machines that
train them: the same round has the same bits anywhere.
"""

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.sampling import schedule as schedule_lib

# Measured, on two cores: a pack costs 0.8 ms besides its clients, an example of a small
# model 5 us, and adding up the sums of 10^6 parameters what 27 examples of a model of
# that size cost.
_LEAST_SIDE_BY_SIDE, _LEAST_ONE_BY_ONE = 8192, 256
# More of them do not speed up what one machine does, until they are large.
_ENOUGH = 32
# Clients of a pack, and how many are trained at once: what a pack takes does not grow
# with the cohort. More of them take no less time a client. Cohorts of up to 3,000, as
# those of most published runs, are not cut for it: they make two packs anyway.
LARGEST = 1536


class Cohort(Sequence[np.ndarray]):
  """Clients of a round, most examples first; a sequence of the rows of each pack.

  A *row* has of a client the number of its first example, how many it has, and its key;
  the rows of a pack are int64 of shape [clients, 3].

  Attributes:
    rows: Those of all packs, one after the other.
    cuts: Where packs begin and end in them, int32 of shape [packs + 1].
  """

  def __init__(
    self,
    data: data_lib.PackedData,
    clients: np.ndarray,
    keys: np.ndarray,
    *,
    local_epochs: int,
    side_by_side: bool,
    packs: Optional[int] = None,
  ):
    """Orders and cuts them.

    `clients`: Client numbers, int64 of shape [cohort].
    `keys`: What decides the order of each one's examples, uint64 of shape [cohort], of
    `local_order.keys`.
    `packs`: How many packs; `None` for `num_packs`.
    """
    clients = schedule_lib.check_cohort('clients', clients, len(data))
    if np.shape(keys) != clients.shape:
      raise ValueError(
        f'keys must be as many as clients, {len(clients)}; got an array of shape '
        f'{list(np.shape(keys))}. local_order.keys makes one for each.'
      )
    sizes = data.sizes(clients)
    if packs is None:
      packs = num_packs(sizes, local_epochs, side_by_side=side_by_side)
    self.cuts = cuts(len(clients), max(1, min(packs, len(clients))))
    order = np.argsort(-sizes, kind='stable')
    self.rows = np.empty([len(clients), 3], np.int64)
    self.rows[:, 0] = data.starts(clients)[order]
    self.rows[:, 1] = sizes[order]
    self.rows[:, 2] = keys.view(np.int64)[order]

  def __len__(self) -> int:
    return len(self.cuts) - 1

  def __getitem__(self, number: Any) -> Any:
    """The rows of a pack; of a slice a list of them."""
    if isinstance(number, slice):
      return [self[each] for each in range(len(self))[number]]
    number = range(len(self))[number]
    return self.rows[self.cuts[number] : self.cuts[number + 1]]


def num_packs(sizes: np.ndarray, local_epochs: int, *, side_by_side: bool) -> int:
  """How many packs a cohort is cut into.

  Two at least, so that no machine of today has nothing to do, if there are two clients;
  more if all have enough to do; and as many as it takes for none to be large.

  `sizes`: How many examples each client has, int64 of shape [cohort].
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

  Returns int32 of shape [packs + 1], from 0 to `cohort`.
  """
  return (np.arange(packs + 1, dtype=np.int64) * cohort // packs).astype(np.int32)
