"""Packs are dealt out by speed, and each counts once, whatever happens to workers.

Claims:

* Through losses, failures, late workers and late answers, each pack is counted exactly
  once and a round ends: what is counted adds up to all packs.
* Workers whose speeds are known are done at about the same time, with few shares.
* An answer counts as a whole, and only if none of its packs was counted before.
* Of a share that fails, each pack is trained alone, and one pack's failure is blamed on
  the pack if it fails twice, and else on the worker.
* A pack that is lost again and again is trained alone, and counted as lost.
* A share holds no more than may be sent, told of or handed up at once.
"""

import collections
import heapq
import itertools

import numpy as np
import pytest

from tff_dp_aggregators.learning.remote import shares


class _Clock:
  """The time of a simulation."""

  def __init__(self, monkeypatch):
    self.now = 0.0
    monkeypatch.setattr(shares.time, 'monotonic', lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
  return _Clock(monkeypatch)


def _worker(parallel=1, pace=None, in_place=True):
  return shares.Worker(parallel, in_place, pace)


def _packs(number, example_bytes=1, bytes_apart=8):
  """Packs of nine examples, of which each is 10 of what a share's work is."""
  return shares.Dealing([1] * number, [9] * number, example_bytes, bytes_apart)


def _next(dealing, worker, ready=None, late=1e9):
  return dealing.next(worker, ready or {worker}, lambda work: late * work)


class _Round:
  """A round whose workers take so long for a pack."""

  def __init__(self, clock, dealing, seconds, hand_up=0.0):
    self._clock, self._dealing, self._seconds = clock, dealing, seconds
    self._hand_up = hand_up
    self._events, self._ties = [], itertools.count()
    self.counted = collections.Counter()
    self.num_shares = 0

  def deal(self):
    """Gives all who may have some a share."""
    ready = set(self._seconds)
    for worker in self._seconds:
      while (share := _next(self._dealing, worker, ready)) is not None:
        took = share.work / 10 * self._seconds[worker] + self._hand_up
        event = (self._clock.now + took, next(self._ties), share, took)
        heapq.heappush(self._events, event)
        self.num_shares += 1

  def run(self):
    """When it is over."""
    begun = self._clock.now
    self.deal()
    while self._events:
      self._clock.now, _, share, took = heapq.heappop(self._events)
      share.worker.took(share, took)
      if self._dealing.counts(share):
        self.counted.update(share.packs)
      self.deal()
    assert self._dealing.is_done
    return self._clock.now - begun


@pytest.mark.parametrize(
  ('seconds', 'parallel'),
  [((1.0, 1.0), (1, 1)), ((1.0, 3.0), (1, 1)), ((1.0, 2.0, 1.0), (4, 1, 2))],
)
def test_workers_of_known_speed_are_done_together_with_few_shares(
  clock, seconds, parallel
):
  workers = {_worker(each): second for each, second in zip(parallel, seconds)}
  packs = 32 * len(workers)
  for this_round in range(3):
    simulated = _Round(clock, _packs(packs), workers)
    lasted = simulated.run()
    assert set(simulated.counted.values()) == {1} and len(simulated.counted) == packs
    if this_round:  # Speeds are known.
      rate = sum(worker.parallel / each for worker, each in workers.items())
      assert lasted < 1.15 * packs / rate + max(seconds)
      assert simulated.num_shares < packs / 4


def test_a_worker_alone_has_all_packs_at_once(clock):
  worker = _worker(parallel=2, pace=0.05)
  share = _next(_packs(32), worker)
  assert share.packs == tuple(range(32)) and share.work == 160


def test_a_share_takes_no_longer_than_ten_seconds_as_far_as_is_known(clock):
  worker = _worker(parallel=2, pace=0.5)
  assert len(_next(_packs(32), worker).packs) == 4
  unknown = _worker(parallel=2)
  assert len(_next(_packs(32), unknown).packs) == 2


def test_the_next_share_comes_when_the_last_one_is_nearly_done(clock):
  worker, other = _worker(pace=0.1), _worker(pace=0.1)
  dealing = _packs(20)
  first = _next(dealing, worker, {worker, other})
  assert _next(dealing, worker, {worker, other}) is None
  assert dealing.seconds_until_next(worker) == pytest.approx(0.8 * len(first.packs))
  clock.now = 0.8 * len(first.packs) + 0.01
  assert _next(dealing, worker, {worker, other}) is not None
  assert dealing.seconds_until_next(worker) == np.inf  # Two are enough.


def test_an_answer_counts_if_none_of_its_packs_did(clock):
  gone, other = _worker(pace=0.1), _worker(pace=1.0)
  dealing = _packs(4)
  early = _next(dealing, gone, {gone, other})
  assert len(early.packs) > 1
  # It takes too long, so the same packs go to another worker, who is the first.
  clock.now = 1000.0
  while (share := _next(dealing, other, {gone, other}, late=1.0)) is not None:
    if not set(share.packs) & set(early.packs):
      assert dealing.counts(share)
      continue
    assert dealing.given_again == len(share.packs)
    assert dealing.counts(share)
    assert not dealing.counts(share)  # It is over.
  assert dealing.is_done
  assert not dealing.counts(early)


def test_packs_of_an_answer_that_does_not_count_are_trained(clock):
  slow, quick = _worker(pace=0.1), _worker(pace=0.1)
  dealing = _packs(3, example_bytes=2**25 // 9)
  slow_share = _next(dealing, slow)
  assert slow_share.packs == (0, 1, 2)
  clock.now = 1000.0
  quick.in_place = False  # It is sent two packs at once, and no more.
  late = _next(dealing, quick, {slow, quick}, late=1.0)
  assert late.packs == (0, 1)
  assert dealing.counts(late) and not dealing.counts(slow_share)
  assert _next(dealing, quick).packs == (2,)


def test_a_share_has_no_more_clients_than_may_be_told_of(clock):
  worker = _worker(pace=1e-6)
  dealing = shares.Dealing([2**15] * 5 + [2**17], [2**15] * 5 + [2**17], 1, 8)
  found = []
  while not dealing.is_done:
    share = _next(dealing, worker)
    found.append(share.packs)
    assert dealing.counts(share)
  assert found == [(0, 1), (2, 3), (4,), (5,)]


def test_of_packs_that_fail_together_each_is_trained_alone(clock):
  one, other = _worker(pace=0.1), _worker(pace=0.1)
  dealing = _packs(3)
  assert dealing.failed(_next(dealing, one)) == 0
  ready = {one, other}
  for pack in range(3):
    share = _next(dealing, one, ready)
    assert share.packs == (pack,)
    if pack != 1:
      assert dealing.counts(share) and not list(dealing.blamed(share))
      continue
    assert dealing.failed(share) == 1
    # Not to the same worker as long as there is another one.
    assert _next(dealing, one, ready).packs == (2,)
    again = _next(dealing, other, ready)
    assert again.packs == (1,)
    assert dealing.counts(again) and list(dealing.blamed(again)) == [one]
    break


def test_a_pack_that_fails_on_two_workers_says_so(clock):
  one, other = _worker(pace=0.1), _worker(pace=0.1)
  dealing = _packs(1)
  assert dealing.failed(_next(dealing, one, {one, other})) == 1
  assert _next(dealing, one, {one, other}) is None
  assert dealing.failed(_next(dealing, other, {one, other})) == 2


def test_a_pack_that_is_lost_twice_is_trained_alone_and_counted_as_lost(clock):
  worker = _worker(pace=0.1)
  dealing = _packs(4)
  assert dealing.lost(_next(dealing, worker)) == 1
  share = _next(dealing, worker)
  assert share.packs == (0, 1, 2, 3)
  assert dealing.lost(share) == 2
  assert dealing.lost(share) == 0  # It was over.
  for times in range(3, 9):
    share = _next(dealing, worker)
    assert share.packs == (0,) and dealing.lost(share) == times


def test_values_that_are_added_up_in_order_are_not_far_ahead(clock):
  worker, other = _worker(pace=0.1), _worker(pace=0.1)
  dealing = _packs(1000, bytes_apart=2**25)
  ready, held = {worker, other}, []
  first = _next(dealing, other, ready)
  assert first.packs == (0, 1)
  while (share := _next(dealing, worker, ready)) is not None:
    assert len(share.packs) <= 2
    assert dealing.counts(share)
    held += share.packs
  assert held == list(range(2, 8))  # The first one is waited for.
  assert dealing.counts(first)
  assert _next(dealing, worker, ready).packs == (8, 9)


def test_packs_of_other_sizes_are_shared_by_their_examples(clock):
  # As a cohort's are, whose largest clients come first.
  sizes = sorted(np.random.default_rng(0).lognormal(3, 1, 64).astype(int))[::-1]
  workers = {_worker(2): 1.0, _worker(2): 1.0}
  for this_round in range(4):
    dealing = shares.Dealing(np.ones_like(sizes), sizes, 1, 8)
    simulated = _Round(clock, dealing, workers)
    lasted = simulated.run()
    if this_round:
      work = np.array(sizes) + 1.0
      assert lasted < 1.2 * work.sum() / 10 / 4 + work.max() / 10
      assert dealing.given_again == 0


@pytest.mark.parametrize('seed', range(200))
def test_each_pack_counts_once_whatever_happens(clock, seed):
  rng = np.random.default_rng(seed)
  num_packs = int(rng.integers(1, 40))
  workers = [
    _worker(int(rng.integers(1, 4)), in_place=bool(rng.integers(2))) for _ in range(3)
  ]
  clients, examples = rng.integers(0, [[2**15], [2**25]], [2, num_packs])
  dealing = shares.Dealing(clients, examples, 1, int(rng.choice([8, 2**25])))
  under_way, over, counted = [], [], collections.Counter()
  for step in itertools.count():
    assert step < 5000
    clock.now += float(rng.exponential(1.0))
    ready = set(workers[: int(rng.integers(1, 4))])
    worker = workers[int(rng.integers(len(ready)))]
    share = _next(dealing, worker, ready, float(rng.choice([1e-7, 1e9])))
    if share is not None:
      under_way.append(share)
    if under_way:
      share = under_way.pop(int(rng.integers(len(under_way))))
      over.append(share)
      what = rng.choice(['counts', 'counts', 'lost', 'failed', 'later'])
      if what == 'counts':
        share.worker.took(share, clock.now - share.begun)
        if dealing.counts(share):
          counted.update(share.packs)
        list(dealing.blamed(share))
      elif what == 'later':
        under_way.append(over.pop())
      else:
        getattr(dealing, what)(share)
    if over and rng.random() < 0.1:  # An answer of whoever was thought to be lost.
      if dealing.counts(over[int(rng.integers(len(over)))]):
        pytest.fail('a share counted that was over')
    if dealing.is_done:
      break
  assert counted == collections.Counter(range(num_packs))
