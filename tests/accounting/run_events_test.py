"""Events of runs and rounds for each scheme of participation."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import run_events

ZERO_OUT = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE
IDENTITY = strategies.Identity(12)
SQUARE_ROOT = strategies.BandedToeplitz.square_root(12, 2)
INVERSE = strategies.BandedInverse.square_root(12, 2)


@pytest.mark.parametrize('fixed_epoch', [False, True])
def test_participation_event_has_sensitivity_of_worst_pattern(fixed_epoch):
  strategy = strategies.BinaryTree(9)
  schema = strategies.Participation(9, 2, 3, fixed_epoch)
  matrix = strategy.materialize()
  worst = max(
    np.linalg.norm(matrix[:, list(rounds)].sum(axis=1)) for rounds in schema.patterns()
  )
  event = run_events.event(strategy, schema, 3.0)
  assert event.noise_multiplier == pytest.approx(3.0 / worst, rel=1e-12)


def test_replace_one_event_matches_brute_force():
  # Two clients that may send opposite vectors in the rounds of a pattern.
  strategy, schema = strategies.BinaryTree(6), strategies.Participation(6, 2)
  matrix = strategy.materialize()
  farthest = max(
    np.linalg.norm(
      matrix[:, list(rounds)] @ (np.array(one)[:, None] - np.array(other)[:, None])
    )
    for rounds in schema.patterns()
    if rounds
    for one in itertools.product((-1.0, 1.0), repeat=len(rounds))
    for other in itertools.product((-1.0, 1.0), repeat=len(rounds))
  )
  event = run_events.event(strategy, schema, 3.0, REPLACE_ONE)
  assert event.noise_multiplier == pytest.approx(3.0 / farthest, rel=1e-12)


def test_cyclic_poisson_event_uses_largest_column_norm():
  schema = sampling.PoissonSampling(20, 0.1, num_groups=4)
  strategy = strategies.banded.optimize(20, num_bands=4, cache=False)
  matrix = strategy.materialize()
  # Rounds of one client share no row of C, so that their columns are orthogonal.
  for group in range(4):
    columns = matrix[:, group::4]
    inner = columns.T @ columns
    np.testing.assert_allclose(inner, np.diag(np.diag(inner)), atol=1e-12)
  event = run_events.event(strategy, schema, 2.0)
  assert event.count == 5
  assert event.event.sampling_probability == 0.1
  largest = np.linalg.norm(matrix, axis=0).max()
  assert event.event.event.noise_multiplier == pytest.approx(2.0 / largest, rel=1e-12)


def test_fixed_size_sampling_event_has_doubled_sensitivity():
  schema = sampling.FixedSizeSampling(7, num_clients=1000, clients_per_round=50)
  event = run_events.event(strategies.Identity(7), schema, 3.0)
  sampled = event.event
  assert event.count == 7
  assert (sampled.sample_size, sampled.source_dataset_size) == (50, 1000)
  assert sampled.event.noise_multiplier == 1.5
  # Whoever is drawn displaces another client, under add-or-remove as well.
  assert run_events.event(strategies.Identity(7), schema, 3.0, ADD_OR_REMOVE) == event


SHARED = 'rounds of a client do not share noise'


@pytest.mark.parametrize(
  'strategy, schema, relation, message',
  [
    (
      strategies.Identity(3),
      sampling.PoissonSampling(4, 0.5),
      None,
      'the schema is for 4 rounds, the strategy for 3',
    ),
    (IDENTITY, strategies.Participation(12), ADD_OR_REMOVE, 'adjacency'),
    (IDENTITY, sampling.PoissonSampling(12, 0.5), REPLACE_ONE, 'adjacency'),
    (IDENTITY, sampling.FixedSizeSampling(12, 10, 2), ZERO_OUT, 'adjacency'),
    (strategies.BinaryTree(12), sampling.PoissonSampling(12, 0.1), None, SHARED),
    (SQUARE_ROOT, sampling.FixedSizeSampling(12, 9, 3), None, SHARED),
    (INVERSE, sampling.PoissonSampling(12, 0.1, 2), None, SHARED),
  ],
)
def test_event_refuses_other_rounds_wrong_adjacency_and_correlated_noise(
  strategy, schema, relation, message
):
  with pytest.raises(ValueError, match=message):
    run_events.event(strategy, schema, 1.0, relation)


@pytest.mark.parametrize(
  'strategy, schema, relation',
  [
    (strategies.BinaryTree(9), strategies.Participation(9, 2, 3), REPLACE_ONE),
    (strategies.Identity(9), sampling.FixedSizeSampling(9, 50, 5), REPLACE_ONE),
    (
      strategies.BandedToeplitz.square_root(9, 2),
      sampling.PoissonSampling(9, 0.1, num_groups=4),
      ADD_OR_REMOVE,
    ),
  ],
)
def test_round_events_compose_to_run_event(strategy, schema, relation):
  rounds = run_events.round_events(strategy, schema, 2.0, relation)
  assert len(rounds) == 9
  composed = accountants.epsilon(
    dp_accounting.ComposedDpEvent(list(rounds)), 1e-6, relation=relation
  )
  event = run_events.event(strategy, schema, 2.0, relation)
  assert composed == pytest.approx(
    accountants.epsilon(event, 1e-6, relation=relation), rel=1e-9
  )
  without_noise = run_events.round_events(strategy, schema, 0.0, relation)
  assert set(without_noise) == {dp_accounting.NonPrivateDpEvent()}


def test_only_rounds_of_first_group_have_sampled_events():
  schema = sampling.PoissonSampling(9, 0.1, num_groups=4)
  rounds = run_events.round_events(strategies.Identity(9), schema, 2.0)
  sampled = [isinstance(e, dp_accounting.PoissonSampledDpEvent) for e in rounds]
  assert np.flatnonzero(sampled).tolist() == [0, 4, 8]


@pytest.mark.parametrize(
  'make, message',
  [
    (lambda: sampling.PoissonSampling(4, 0.0), 'sampling_probability'),
    (lambda: sampling.PoissonSampling(4, math.nan), 'sampling_probability'),
    (lambda: sampling.PoissonSampling(4, 0.5, 0), 'num_groups'),
    (lambda: sampling.BMinSepSampling(6, 1.1, 2), 'sampling_probability'),
    (lambda: sampling.BMinSepSampling(6, 0.1, 0), 'min_separation'),
    (lambda: sampling.FixedSizeSampling(4, 10, 11), 'clients_per_round'),
    (
      lambda: sampling.PoissonSampling.of_cohort(4, 100, 30, num_groups=4),
      'clients_per_round.*, 25',
    ),
  ],
)
def test_invalid_scheme_arguments_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@pytest.mark.parametrize('data', [None, {}, {'schema': 'else'}])
def test_from_json_refuses_invalid_schemes(data):
  with pytest.raises(ValueError, match='participation scheme|is not one'):
    sampling.from_json(data)


def test_check_refuses_num_bands_smaller_than_bands_of_c():
  class WrongNumBands(strategies.BandedInverse):
    kind = 'test_counts_others'

    @property
    def num_bands(self):
      return self.num_inverse_bands  # The number of bands of C^-1, not of C.

  coefficients = strategies.BandedInverse.square_root(20, 3).coefficients
  strategy = WrongNumBands(20, coefficients)
  assert strategy.num_bands == 3
  with pytest.raises(ValueError, match='num_bands=3, but its C has entries'):
    run_events.check(strategy, sampling.PoissonSampling(20, 0.1, num_groups=3))
