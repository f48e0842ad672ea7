"""Rounds that queries count as spent under participation limits, and their events."""

import functools
import itertools

import dp_accounting
import pytest
import tensorflow as tf

from tff_dp_aggregators import queries
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies

_LIMITS = [
  strategies.Participation(num_rounds=7),
  strategies.Participation(num_rounds=7, min_separation=3, max_participations=9),
  strategies.Participation(num_rounds=8, min_separation=2, max_participations=3),
]
_SPECS = tf.TensorSpec([2])
_QUERIES = {
  'laplace': lambda limits: queries.LaplaceSumQuery(
    limits, clip_norm=1.0, noise_multiplier=2.0, record_specs=_SPECS
  ),
  'local_laplace': lambda limits: queries.LocalLaplaceSumQuery(
    limits, clip_norm=1.0, noise_multiplier=2.0, record_specs=_SPECS
  ),
  'skellam': lambda limits: queries.DistributedSumQuery(
    limits,
    noise='skellam',
    clip_norm=1.0,
    noise_multiplier=2.0,
    min_clients=2,
    max_clients=3,
    bits=16,
    record_specs=_SPECS,
  ),
}


def _max_participations(limits, rounds):
  """The most of the first `rounds` rounds that an allowed pattern contains."""
  return max(
    len(pattern)
    for count in range(limits.num_rounds + 1)
    for pattern in itertools.combinations(range(rounds), count)
    if _is_allowed(limits, pattern)
  )


def _is_allowed(limits, pattern):
  apart = all(b - a >= limits.min_separation for a, b in zip(pattern, pattern[1:]))
  return apart and len(pattern) <= limits.max_participations


@pytest.mark.parametrize(
  'name, limits',
  [*(('laplace', limits) for limits in _LIMITS), *((k, _LIMITS[2]) for k in _QUERIES)],
  ids=str,
)
def test_spent_rounds_equal_brute_force_over_participation_patterns(name, limits):
  query = _QUERIES[name](limits)
  assert query.participation == limits
  expected = [_max_participations(limits, n) for n in range(limits.num_rounds + 1)]
  state = query.initial_global_state()
  states = [
    state._replace(round=tf.constant(n, tf.int64)) for n in range(len(expected))
  ]
  assert [int(query.spent(each).all_rounds) for each in states] == expected
  assert _count(query.run_event()) == expected[-1]


def _count(event):
  return getattr(event, 'count', 1)


@pytest.mark.parametrize('limits', [None, *_LIMITS], ids=str)
def test_laplace_round_events_add_up_to_spent_event(limits):
  query = _QUERIES['laplace'](limits)
  once, total = dp_accounting.LaplaceDpEvent(2.0), 0
  state, sums = query.initial_global_state(), query.initial_sample_state()
  for _ in range(7 if limits is None else limits.num_rounds):
    _, state, event = query.get_noised_result(sums, state)
    scale, spent = float(event.noise_multiplier), query.spent(state)
    assert scale == (2.0 if int(spent.last_round) else float('inf'))
    total += int(spent.last_round)
    assert int(spent.all_rounds) == total
    expected = once if total == 1 else dp_accounting.SelfComposedDpEvent(once, total)
    assert spent.to_event() == expected
  assert total == (7 if limits is None else _count(query.run_event()))


def test_query_without_participation_has_no_run_event():
  # Any finite answer would claim too much privacy after enough rounds.
  gaussian = _independent_noise_query('GaussianSumQuery')
  with pytest.raises(ValueError, match='any number of rounds'):
    gaussian.effective_noise_multiplier  # noqa: B018
  assert 'GaussianSumQuery' in repr(gaussian)
  for query in (gaussian, *(build(None) for build in _QUERIES.values())):
    with pytest.raises(ValueError, match='any number of rounds'):
      query.participation  # noqa: B018
    with pytest.raises(ValueError, match='any number of rounds'):
      query.run_event()
  query = _QUERIES['laplace'](None)
  late_state = query.initial_global_state()._replace(round=tf.constant(10**9, tf.int64))
  _, state, _ = query.get_noised_result(query.initial_sample_state(), late_state)
  assert int(query.spent(state).all_rounds) == 10**9 + 1


@pytest.mark.parametrize('name', _QUERIES)
def test_query_refuses_extra_round_and_invalid_participation(name):
  query = _QUERIES[name](_LIMITS[1])
  state = query.initial_global_state()._replace(round=tf.constant(7, tf.int64))
  with pytest.raises(tf.errors.InvalidArgumentError, match='built for 7 rounds'):
    query.get_noised_result(query.initial_sample_state(), state)
  with pytest.raises(TypeError, match='participation must be a strategies.Particip'):
    _QUERIES[name](7)


_EVERY_ROUND = strategies.Participation(8)


@pytest.mark.parametrize('participation', [None, 8, sampling.PoissonSampling(8, 0.1)])
@pytest.mark.parametrize(
  'build',
  [
    functools.partial(queries.MatrixMechanismQuery, strategies.Identity(8)),
    functools.partial(
      queries.BandedMatrixFactorizationQuery, strategies.BandedToeplitz(8, (1.0, 0.5))
    ),
    queries.TreeCumulativeSumQuery,
    queries.TreeResidualSumQuery,
  ],
)
def test_correlated_noise_queries_require_participation(build, participation):
  with pytest.raises(TypeError, match='participation must be a strategies.Particip'):
    build(participation, clip_norm=1.0, noise_multiplier=2.0, record_specs=_SPECS)


def _independent_noise_query(name, *args, **kwargs):
  query = getattr(queries, name)
  norm = 'clip_norm' if name == 'GaussianSumQuery' else 'initial_clip_norm'
  kwargs = {norm: 1.0, **kwargs}
  if name == 'AdaptiveGaussianSumQuery':
    kwargs['clients_per_round'] = 50
  return query(*args, noise_multiplier=2.0, record_specs=_SPECS, **kwargs)


@pytest.mark.parametrize('name', ['GaussianSumQuery', 'AdaptiveGaussianSumQuery'])
def test_gaussian_query_without_participation_counts_every_round(name):
  query = _independent_noise_query(name)
  state = query.initial_global_state()
  for _ in range(8):
    _, state, event = query.get_noised_result(query.initial_sample_state(), state)
    assert float(event.noise_multiplier) == 2.0
  spent = float(query.derive_metrics(state)['effective_noise_multiplier'])
  limited = _independent_noise_query(name, _EVERY_ROUND)
  assert spent == pytest.approx(limited.effective_noise_multiplier)
  with pytest.raises(TypeError, match="'storage' is not an argument"):
    _independent_noise_query(name, storage=None)
