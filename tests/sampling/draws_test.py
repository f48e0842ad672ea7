"""Random draws depend only on client id, seed and sampling scheme."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import stats

from tff_dp_aggregators import sampling
from tff_dp_aggregators.sampling import draws
from tff_dp_aggregators.sampling import schedule as schedule_lib

_FALSE_ALARM = 1e-7
_IDS = [f'client {number}' for number in range(60)]
_SAMPLINGS = [
  sampling.PoissonSampling(24, 0.3),
  sampling.PoissonSampling(24, 0.3, num_groups=2),
  sampling.BallsInBins(24, 4),
  sampling.RandomAllocation(24, 5),
  sampling.BMinSepSampling(24, 0.4, min_separation=3),
]


def _cohorts(scheme, ids, seed, rate=0.0):
  """The ids of the clients in each round's cohort."""
  dropouts = sampling.Dropouts(rate, 1) if rate else None
  expected = scheme.expected_cohort(len(ids))
  schedule = sampling.for_scheme(scheme, len(ids), expected, seed, dropouts=dropouts)
  schedule = schedule.for_clients(ids)
  return [{ids[i] for i in schedule.cohort(t)} for t in range(scheme.num_rounds)]


@pytest.mark.parametrize('scheme', _SAMPLINGS)
@pytest.mark.parametrize('rate', [0.0, 0.25])
def test_removing_a_client_does_not_change_rounds_of_others(scheme, rate):
  removed, seed = _IDS[17], 2**100 + 7
  remaining = [each for each in _IDS if each != removed]
  cohorts = _cohorts(scheme, _IDS, seed, rate)
  assert _cohorts(scheme, remaining, seed, rate) == [r - {removed} for r in cohorts]
  assert _cohorts(scheme, _IDS[::-1], seed, rate) == cohorts


def test_replacing_a_client_changes_one_place_of_fixed_size_cohort():
  scheme = sampling.FixedSizeSampling(40, num_clients=60, clients_per_round=7)
  changed = [*_IDS[:30], 'somebody else', *_IDS[31:]]
  for old, new in zip(_cohorts(scheme, _IDS, 3), _cohorts(scheme, changed, 3)):
    assert len(new) == 7
    assert len(old - new) <= 1 and len(new - old) <= 1


def test_schemes_with_same_seed_draw_independently():
  # Earlier draws did not: the bin of a cycle of 8 determined that of a cycle of 4.
  ids = [str(number) for number in range(20_000)]

  def bins(cycle):
    made = sampling.SampledSchedule(sampling.BallsInBins(8, cycle), len(ids), seed=5)
    made, bin_of = made.for_clients(ids), np.empty(len(ids), int)
    for t in range(cycle):
      bin_of[made.cohort(t)] = t
    return bin_of

  table = np.zeros([4, 8])
  np.add.at(table, (bins(4), bins(8)), 1)
  assert stats.chisquare(table.ravel()).pvalue > _FALSE_ALARM


@pytest.mark.parametrize('step', [1, 2**40])
def test_hashes_are_uniform_and_independent(step):
  # Keys of clients that differ by little, successive rounds, and successive seeds.
  keys = (np.arange(4096, dtype=np.uint64) * np.uint64(step)).astype(np.uint64)
  scheme = sampling.PoissonSampling(10, 0.1)
  uniforms = np.array(
    [
      [draws.uniform(draws.hashed(scheme, seed, keys, 'round', t)) for t in range(16)]
      for seed in range(4)
    ]
  )
  buckets = (uniforms * 8).astype(int)
  pairs = {
    'one': buckets,
    'clients': 8 * buckets[..., 1:] + buckets[..., :-1],
    'rounds': 8 * buckets[:, 1:] + buckets[:, :-1],
    'seeds': 8 * buckets[1:] + buckets[:-1],
  }
  for name, indices in pairs.items():
    counts = np.bincount(indices.ravel(), minlength=8 if name == 'one' else 64)
    assert stats.chisquare(counts).pvalue > _FALSE_ALARM, name


def test_keys_of_ids_depend_on_id_and_seed_only():
  (key,) = draws.keys_of_ids(['b'], seed=1)
  assert draws.keys_of_ids(['a', 'b'], seed=1)[1] == key
  assert draws.keys_of_ids(['b'], seed=2)[0] != key
  assert len(set(draws.keys_of_ids(range(10_000), seed=1).tolist())) == 10_000


def test_clients_per_round_does_not_depend_on_number_of_clients(tmp_path):
  scheme = sampling.BallsInBins(24, 4)
  made = [
    sampling.for_scheme(scheme, number, clients_per_round=12.5, seed=1)
    for number in (59, 60)
  ]
  assert [each.clients_per_round for each in made] == [12.5, 12.5]
  assert sampling.schedule_from_json(made[0].to_json()) == made[0]
  # It may exceed the number of clients, which a refusal would reveal.
  large = dataclasses.replace(made[0], clients_per_round=10.0 * made[0].num_clients)
  large.save(str(tmp_path / 'many.jsonl'))
  replayed = sampling.Replay(str(tmp_path / 'many.jsonl'))
  assert replayed.clients_per_round == large.clients_per_round
  assert schedule_lib.Watch(large).attempts(0)[-1].completed
  derived = dataclasses.replace(made[0], clients_per_round=None)
  expected = scheme.expected_cohort(59)
  assert derived.clients_per_round == pytest.approx(expected, rel=1e-12)
  with pytest.raises(ValueError, match='clients_per_round must be positive'):
    dataclasses.replace(made[0], clients_per_round=0.0)


def test_for_clients_refuses_wrong_number_of_ids():
  schedule = sampling.SampledSchedule(sampling.BallsInBins(4, 2), 5, seed=1)
  with pytest.raises(ValueError, match='num_clients=5'):
    schedule.for_clients(['a', 'b'])


# Pools.


def test_pool_draws_all_subsets_equally_likely():
  counts = dict.fromkeys(itertools.combinations(range(6), 3), 0)
  draws_made = 4_000
  rng = draws.generator(2)
  pool = draws.Pool(np.arange(6))
  for _ in range(draws_made):
    drawn = pool.draw(3, rng)
    counts[tuple(sorted(drawn.tolist()))] += 1
    pool.add(drawn)
  expected = draws_made / 20
  chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
  assert chi_squared < 72.0  # 19 degrees of freedom: exceeded once in 10^7 runs.
