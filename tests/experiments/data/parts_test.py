"""Steps of reading data: moments, hashes, sorting by keys, and partitions."""

import hashlib

import numpy as np
import pytest

from experiments.data import arrangement
from experiments.data import hashing
from experiments.data import loading
from experiments.data import spill

# If these change, other clients are held out and the order of clients changes.
ALICE = [
  [1250016653407945127, 13667478178198035312],
  [3094255822567864430, 3461156691182536150],
]
ROW = [17480000067782634353]


def test_moments_of_large_numbers_are_accurate():
  rng = np.random.default_rng(1)
  values = rng.normal(size=(10_000, 2)) * [1.0, 1e-3] + [1e9, 3e4]
  chunks = (values[first : first + 999] for first in range(0, len(values), 999))
  mean, scale, _ = loading.moments_of(chunks, 2)
  exact = values.astype(np.longdouble)
  assert np.allclose(mean, exact.mean(axis=0).astype(float), rtol=1e-15)
  assert np.allclose(scale, exact.std(axis=0).astype(float), rtol=1e-9)


def test_moments_of_constant_column_have_scale_one():
  chunks = (np.full((size, 1), 0.1) for size in (7, 1, 93))
  mean, scale, is_constant = loading.moments_of(chunks, 1)
  assert is_constant.all()
  assert (mean[0], scale[0]) == (0.1, 1.0)


def test_of_ids_gives_distinct_keys():
  ids = [f'{a}{b}' for a in ('', 'user ', 'x' * 13) for b in range(700)]
  keys = hashing.of_ids(hashing.encoded(ids))
  assert len(np.unique(keys, axis=0)) == len(ids)
  unusual = ['ä', 'a\0', 'a', 'x' * 17, ' ', 'é' * 9]
  keys = hashing.of_ids(hashing.encoded(unusual))
  assert len(np.unique(keys, axis=0)) == len(unusual)


def test_keys_do_not_change():
  assert hashing.of_ids([b'alice', b'b' * 20]).tolist() == ALICE
  assert hashing.of_rows(np.array([[1.0, 2.0]])).tolist() == ROW


def test_keys_are_spread_evenly():
  keys = hashing.of_ids([b'user %d' % i for i in range(50_000)])
  for part in (keys[:, 0], keys[:, 1], hashing.seeded(keys[:, 0], 1, 2)):
    counts = np.bincount((part >> np.uint64(60)).astype(int), minlength=16)
    # 15 degrees of freedom: more than 60 once in two million.
    assert np.square(counts - 3125).sum() / 3125 < 60


@pytest.mark.parametrize('count', [0, 1, 100, 5000])
def test_sorted_array_is_in_order_of_keys(count, tmp_path):
  rng = np.random.default_rng(count)
  firsts = hashing.mixed(rng.integers(0, 50, count).astype(np.uint64))
  seconds = rng.integers(0, 2**10, count).astype(np.uint64)
  keys = np.stack([firsts, seconds, np.arange(count, dtype=np.uint64)], axis=1)
  spilled = spill.Spill(str(tmp_path), '>u8', (3,))
  for first in range(0, count, 77):
    spilled.append(keys[first : first + 77])
  order = np.lexsort(keys.T[::-1])
  assert np.array_equal(spilled.sorted_array(), keys[order])


# If these change, clients get other examples.
SKEWED = {0.01: '31d65aa277894686', 0.5: '5dac0489d6a0828e', 100.0: '4430e629dc901773'}


@pytest.mark.parametrize('alpha', SKEWED)
def test_label_skew_partition_does_not_change(alpha):
  labels, rng = np.random.default_rng(0).integers(0, 5, 400), np.random.default_rng(7)
  parts = arrangement.split_with_label_skew(labels, 23, alpha, rng)
  assert {len(part) for part in parts} == {17, 18}
  dealt = np.concatenate(parts)
  assert sorted(dealt) == list(range(400))
  assert hashlib.sha256(dealt.astype('<i8').tobytes()).hexdigest()[:16] == SKEWED[alpha]


def test_skewed_sizes_are_positive_and_more_skewed_for_small_alpha():
  largest = []
  for alpha in (1e-3, 0.05, 1.0, 1000.0):
    rng = np.random.default_rng(1)
    sizes = arrangement.skewed_sizes(10_000, 50, alpha, rng)
    assert sizes.sum() == 10_000
    assert sizes.min() >= 1
    largest.append(sizes.max())
  assert largest == sorted(largest, reverse=True)
  assert largest[0] > 9000
  assert largest[-1] < 260
