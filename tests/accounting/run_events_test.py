"""Schemes of participation give the events of what is assumed, or an error."""

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


@pytest.mark.parametrize('fixed_epoch', [False, True])
def test_limits_cost_what_the_worst_pattern_costs(fixed_epoch):
  strategy = strategies.BinaryTree(9)
  schema = strategies.Participation(9, 2, 3, fixed_epoch)
  matrix = strategy.materialize()
  worst = max(
    np.linalg.norm(matrix[:, list(rounds)].sum(axis=1)) for rounds in schema.patterns()
  )
  event = run_events.event(strategy, schema, 3.0)
  assert event.noise_multiplier == pytest.approx(3.0 / worst, rel=1e-12)


def test_replacing_a_client_is_as_far_as_its_two_zero_outs():
  # Two clients that send opposite vectors in the worst pattern's rounds.
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


def test_rounds_of_a_client_share_no_row_in_cyclic_sampling():
  schema = sampling.PoissonSampling(20, 0.1, num_groups=4)
  strategy = strategies.banded.optimize(20, num_bands=4, cache=False)
  matrix = strategy.materialize()
  for group in range(4):
    columns = matrix[:, group::4]
    inner = columns.T @ columns
    np.testing.assert_allclose(inner, np.diag(np.diag(inner)), atol=1e-12)
  event = run_events.event(strategy, schema, 2.0)
  assert event.count == 5
  assert event.event.sampling_probability == 0.1
  largest = np.linalg.norm(matrix, axis=0).max()
  assert event.event.event.noise_multiplier == pytest.approx(2.0 / largest, rel=1e-12)


def test_cohorts_of_fixed_size_have_twice_the_sensitivity():
  schema = sampling.FixedSizeSampling(7, num_clients=1000, clients_per_round=50)
  event = run_events.event(strategies.Identity(7), schema, 3.0)
  sampled = event.event
  assert event.count == 7
  assert (sampled.sample_size, sampled.source_dataset_size) == (50, 1000)
  assert sampled.event.noise_multiplier == 1.5
  # Who is drawn takes the place of another, under add-or-remove as well.
  assert run_events.event(strategies.Identity(7), schema, 3.0, ADD_OR_REMOVE) == event


@pytest.mark.parametrize(
  'schema, relation',
  [
    (strategies.Participation(4), ADD_OR_REMOVE),
    (sampling.PoissonSampling(4, 0.5), REPLACE_ONE),
    (sampling.FixedSizeSampling(4, 10, 2), ZERO_OUT),
  ],
)
def test_an_adjacency_that_is_not_valid_is_an_error(schema, relation):
  with pytest.raises(ValueError, match='adjacency'):
    run_events.event(strategies.Identity(4), schema, 1.0, relation)


@pytest.mark.parametrize(
  'strategy, schema',
  [
    (strategies.BinaryTree(12), sampling.PoissonSampling(12, 0.1)),
    (
      strategies.BandedToeplitz.square_root(12, 2),
      sampling.FixedSizeSampling(12, 9, 3),
    ),
    (strategies.BandedInverse.square_root(12, 2), sampling.PoissonSampling(12, 0.1, 2)),
  ],
)
def test_sampling_with_correlated_noise_is_an_error(strategy, schema):
  with pytest.raises(ValueError, match='rounds of a client do not share noise'):
    run_events.event(strategy, schema, 1.0)


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
def test_rounds_compose_to_what_all_of_them_spend(strategy, schema, relation):
  rounds = run_events.round_events(strategy, schema, 2.0, relation)
  assert len(rounds) == 9
  together = accountants.epsilon(
    dp_accounting.ComposedDpEvent(list(rounds)), 1e-6, relation=relation
  )
  event = run_events.event(strategy, schema, 2.0, relation)
  assert together == pytest.approx(
    accountants.epsilon(event, 1e-6, relation=relation), rel=1e-9
  )
  silent = run_events.round_events(strategy, schema, 0.0, relation)
  assert set(silent) == {dp_accounting.NonPrivateDpEvent()}


def test_rounds_of_groups_in_their_turn_cost_what_the_first_group_pays():
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
    (
      lambda: run_events.event(
        strategies.Identity(3), sampling.PoissonSampling(4, 0.5), 1
      ),
      'the schema is for 4 rounds, the strategy for 3',
    ),
  ],
)
def test_what_is_wrong_is_named(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@pytest.mark.parametrize('data', [None, {}, {'schema': 'else'}])
def test_what_is_no_schema_is_refused(data):
  with pytest.raises(ValueError, match='participation scheme|is not one'):
    sampling.from_json(data)


def test_bands_that_are_not_those_of_c_do_not_make_noise_independent():
  class CountsOthers(strategies.BandedInverse):
    kind = 'test_counts_others'

    @property
    def num_bands(self):
      return self.num_inverse_bands  # Of C^-1.

  coefficients = strategies.BandedInverse.square_root(20, 3).coefficients
  strategy = CountsOthers(20, coefficients)
  assert strategy.num_bands == 3
  with pytest.raises(ValueError, match='num_bands=3, but its C has entries'):
    run_events.check(strategy, sampling.PoissonSampling(20, 0.1, num_groups=3))
