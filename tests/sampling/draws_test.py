"""A pool gives out what is in it, uniformly, and takes it back."""

import itertools

import numpy as np

from tff_dp_aggregators.sampling import draws


def _content(pool):
  """What is in a pool; it is empty afterwards."""
  return sorted(pool.draw(len(pool), draws.generator(0)).tolist())


def test_what_is_drawn_is_out_and_all_else_stays():
  rng = draws.generator(1)
  inside, outside = set(range(50)), []
  pool = draws.Pool(np.arange(50))
  for _ in range(500):
    count = int(rng.integers(0, len(pool) + 1)) if len(pool) else 0
    if count:
      drawn = pool.draw(count, rng).tolist()
      assert len(set(drawn)) == count and set(drawn) <= inside
      inside -= set(drawn)
      outside += drawn
    assert len(pool) == len(inside)
    back = outside[: int(rng.integers(0, len(outside) + 1))]
    outside = outside[len(back) :]
    pool.add(np.array(back, np.int64))
    inside |= set(back)
  assert _content(pool) == sorted(inside)


def test_all_subsets_are_equally_likely_after_draws_and_returns():
  counts = dict.fromkeys(itertools.combinations(range(6), 3), 0)
  draws_made = 20_000
  rng = draws.generator(2)
  pool = draws.Pool(np.arange(6))
  for _ in range(draws_made):
    drawn = pool.draw(3, rng)
    counts[tuple(sorted(drawn.tolist()))] += 1
    pool.add(drawn)
  expected = draws_made / 20
  chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
  assert chi_squared < 72.0  # 19 degrees of freedom: exceeded once in 10^7.


def test_streams_for_other_purposes_differ():
  first = [
    draws.generator(*key).integers(2**62)
    for key in [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 1)]
  ]
  assert len(set(first)) == 6
