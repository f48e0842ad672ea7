"""How the packs of a round are dealt out to workers, and which answers count.

A *share* is some packs whose sums a worker adds up before it hands them up, as that
costs as much as to train some clients of a large model. A worker gets most of what it
is expected to train, by its speed, with its first share of a round, and then less and
less, so that all are done at about the same time: a way between equal parts and one
pack after the other that is known as factoring (Hummel, Schonberg and Flynn, CACM
35(8), 1992).

What a share came to counts if none of its packs was counted before, and as a whole:
packs of a worker that was lost are dealt again, in other shares, and which of two
answers comes first does not matter.
"""

import bisect
import collections
import dataclasses
import math
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Callable, Optional

import numpy as np

# Parts of what a worker is expected to train, and then of what is left of it.
_FIRST_PART, _LATER_PART = 0.9, 0.5
# The end of a share, from which on its worker has the next one.
_NEARLY_DONE = 0.8
# A share is to take no longer: it is lost as a whole, and others may join meanwhile.
_LONGEST_SHARE_SECONDS = 10.0
_CLOCK_SECONDS = 1e-6
# Of examples that are sent with one, or of values for each of its packs.
_MOST_BYTES = 64 * 2**20
# Who they are is sent with each, some 200 bytes a client until the worker has it.
_MOST_CLIENTS = 2**16
# How many answers are waited with for an earlier one, if they have much of the latter.
_SHARES_AHEAD = 4
# Times a pack is lost with its worker, before it is trained alone.
_TOGETHER = 2


@dataclasses.dataclass(eq=False)
class Worker:
  """What dealing knows of a worker.

  Attributes:
    parallel: How many packs it trains side by side.
    in_place: Whether it reads the data where they are.
    pace: Seconds for `Share.work` of 1; `None` before its first share.
  """

  parallel: int
  in_place: bool
  pace: Optional[float] = None

  def took(self, share: 'Share', seconds: float) -> float:
    """Takes note of how long a share took; returns its pace."""
    pace = max(seconds, _CLOCK_SECONDS) / share.work
    self.pace = (pace + (pace if self.pace is None else self.pace)) / 2
    return pace


@dataclasses.dataclass(eq=False)
class Share:
  """Packs that a worker has.

  Attributes:
    packs: Their numbers, ascending.
    worker: Whose.
    begun: When it was given, by `time.monotonic`.
    work: How much it is to train, one after the other: examples, or more with several
      packs side by side than their share of examples if one has most of them.
  """

  packs: tuple[int, ...]
  worker: Worker
  begun: float
  work: float


class Dealing:
  """The packs of a round, and what became of them.

  Attributes:
    given_again: How many packs were given to a worker after another one had them.
  """

  def __init__(
    self,
    clients: Sequence[int],
    examples: Sequence[int],
    example_bytes: int,
    bytes_apart: int,
  ):
    """Initializes it.

    Args:
      clients: How many each pack has.
      examples: How many these have.
      example_bytes: Of one, which is sent to who does not see the data.
      bytes_apart: Of what is handed up for each pack, as sums depend on their order.
    """
    # What a pack costs besides its examples is not less than what one of them does.
    self._work = 1.0 + np.asarray(examples, np.float64)
    self._clients = np.asarray(clients, np.int64)
    self._shipped_bytes = np.asarray(examples, np.int64) * example_bytes
    self._num_packs = len(self._work)
    self._most_apart = max(1, _MOST_BYTES // max(1, bytes_apart))
    self._pending = list(range(self._num_packs))
    self._under_way: list[Share] = []
    self._counted: set[int] = set()
    self._first_open = 0
    self._alone: set[int] = set()
    self._failed: dict[int, list[Worker]] = {}
    self._losses: collections.Counter[int] = collections.Counter()
    self._had: set[Worker] = set()
    self._given: set[int] = set()
    self.given_again = 0

  @property
  def is_done(self) -> bool:
    """Whether all packs were counted."""
    return len(self._counted) == self._num_packs

  def next(
    self,
    worker: Worker,
    ready: Collection[Worker],
    late_seconds: Callable[[float], float],
  ) -> Optional[Share]:
    """A share for a worker; `None` if there is none, or not yet.

    Args:
      worker: For whom.
      ready: All that can be given packs.
      late_seconds: How long others may have had packs of so much work, before a second
        worker is given them.
    """
    now = time.monotonic()
    if self.seconds_until_next(worker) > 0:
      return None
    packs = self._open_for(worker, ready) or self._late(worker, late_seconds, now)
    if not packs:
      return None
    taken = set(packs)
    self._pending = [each for each in self._pending if each not in taken]
    share = Share(tuple(packs), worker, now, self._work_of(packs, worker))
    self._under_way.append(share)
    self._had.add(worker)
    self.given_again += len(taken & self._given)
    self._given |= taken
    return share

  def seconds_until_next(self, worker: Worker) -> float:
    """When a worker may be given more: it is to have no second share for long."""
    mine = [share for share in self._under_way if share.worker is worker]
    if not mine:
      return 0.0
    if len(mine) > 1 or worker.pace is None:
      return math.inf
    (share,) = mine
    return share.begun + _NEARLY_DONE * share.work * worker.pace - time.monotonic()

  def _work_of(self, packs: Sequence[int], worker: Worker) -> float:
    work = self._work[list(packs)]
    return float(max(work.sum() / worker.parallel, work.max()))

  def _open_for(self, worker: Worker, ready: Collection[Worker]) -> list[int]:
    """Packs that nobody has, as many as a worker is to have of them."""
    in_all = sum(each.parallel for each in ready)
    end = self._first_open + max(2 * in_all + 2, _SHARES_AHEAD * self._most_apart)
    packs = [
      pack
      for pack in self._pending[: bisect.bisect_left(self._pending, end)]
      if worker not in self._failed.get(pack, ())
      or set(ready).issubset(self._failed[pack])
    ]
    if not packs or packs[0] in self._alone:
      return packs[:1]
    packs = [pack for pack in packs if pack not in self._alone][: self._most_apart]
    if worker.pace is None:
      return self._sent_to(worker, packs[: worker.parallel])
    most = min(self._part(worker, ready), _LONGEST_SHARE_SECONDS / worker.pace)
    work = np.cumsum(self._work[packs]) / worker.parallel
    # With all that it begins with, and one pack at least.
    number = 1 + int(np.searchsorted(work, most * (1 - 1e-9)))
    if worker.parallel < number < len(packs):
      number -= number % worker.parallel
    return self._sent_to(worker, packs[:number])

  def _sent_to(self, worker: Worker, packs: list[int]) -> list[int]:
    """The first packs, as many as may be sent at once, or be told of."""
    packs = _fitting(packs, self._clients[packs], _MOST_CLIENTS)
    if worker.in_place:
      return packs
    return _fitting(packs, self._shipped_bytes[packs], _MOST_BYTES)

  def _part(self, worker: Worker, ready: Collection[Worker]) -> float:
    """How much work a worker is to have next, for its speed; `Share.work`."""
    left = float(self._work[self._pending].sum())
    if len(ready) < 2:
      return left / worker.parallel
    known = [each.pace for each in ready if each.pace is not None]
    usual = sum(known) / len(known) if known else 1.0

    def speed(each: Worker) -> float:
      return each.parallel / (usual if each.pace is None else each.pace)

    fraction = speed(worker) / sum(map(speed, {worker, *ready}))
    if worker in self._had:
      return _LATER_PART * fraction * left / worker.parallel
    return _FIRST_PART * fraction * float(self._work.sum()) / worker.parallel

  def _late(
    self, worker: Worker, late_seconds: Callable[[float], float], now: float
  ) -> list[int]:
    """Packs that another worker has for far longer than they should take."""
    holders = collections.Counter(
      pack for share in self._under_way for pack in share.packs
    )
    for share in self._under_way:
      if share.worker is worker or now - share.begun <= late_seconds(share.work):
        continue
      packs = [
        pack
        for pack in share.packs
        if self._is_open(pack)
        and holders[pack] == 1
        and worker not in self._failed.get(pack, ())
      ]
      if packs:
        return self._sent_to(worker, packs)
    return []

  def _is_open(self, pack: int) -> bool:
    return pack not in self._counted

  def counts(self, share: Share) -> bool:
    """Whether what a share came to is to be added up, once: it is over with this."""
    if share not in self._under_way:
      return False
    self._under_way.remove(share)
    if not all(map(self._is_open, share.packs)):
      self._put_back(share)
      return False
    self._counted.update(share.packs)
    self._pending = [each for each in self._pending if each not in self._counted]
    while self._first_open in self._counted:
      self._first_open += 1
    return True

  def blamed(self, share: Share) -> Iterator[Worker]:
    """Workers on which a pack failed that did not fail with this share."""
    for pack in share.packs:
      for worker in self._failed.pop(pack, ()):
        if worker is not share.worker:
          yield worker

  def lost(self, share: Share) -> int:
    """A share whose worker was lost; returns how often that happened to its packs."""
    if share not in self._under_way:
      return 0
    self._under_way.remove(share)
    self._put_back(share)
    self._losses.update(share.packs)
    self._alone.update(pack for pack in share.packs if self._losses[pack] >= _TOGETHER)
    wanted = filter(self._is_open, share.packs)
    return max((self._losses[pack] for pack in wanted), default=0)

  def failed(self, share: Share) -> int:
    """A share whose training failed; returns on how many workers it did by now.

    Of several packs it is not known which failed: each is trained alone then, and 0
    returned; and so for a pack that was counted meanwhile, see `failed_alone`.
    """
    if share not in self._under_way:
      return 0
    self._under_way.remove(share)
    self._put_back(share)
    self._alone.update(share.packs)
    if len(share.packs) > 1:
      return 0
    (pack,) = share.packs
    if not self._is_open(pack):
      return 0
    failed = self._failed.setdefault(pack, [])
    failed.append(share.worker)
    return len(failed)

  def failed_alone(self, share: Share) -> bool:
    """Whether a share that failed is one pack that another worker trained."""
    return len(share.packs) == 1 and not self._is_open(share.packs[0])

  def _put_back(self, share: Share) -> None:
    held = {pack for other in self._under_way for pack in other.packs}
    held.update(self._pending)
    for pack in share.packs:
      if self._is_open(pack) and pack not in held:
        bisect.insort(self._pending, pack)


def _fitting(packs: list[int], sizes: np.ndarray, most: int) -> list[int]:
  """The first packs, as many as come to no more than that, and one at least."""
  return packs[: max(1, int(np.searchsorted(np.cumsum(sizes), most, 'right')))]
