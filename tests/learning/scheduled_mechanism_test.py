"""Tests of mechanisms with sampling or adaptive clipping, run with their schedules."""

import math

import dp_accounting
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import reports
from tff_dp_aggregators.accounting.records import ledger as ledger_lib

_MECHANISMS = {
  'poisson': accounting.Mechanism('gaussian', sampling.PoissonSampling(6, 0.25), 2.0),
  'cyclic': accounting.Mechanism(
    'toeplitz', sampling.PoissonSampling(6, 0.5, num_groups=2), 2.0, num_bands=2
  ),
  'fixed_size': accounting.Mechanism(
    'gaussian', sampling.FixedSizeSampling(6, 40, 10), 2.0
  ),
  'adaptive': accounting.Mechanism(
    'tree', strategies.Participation(6, 3), 2.0, clipped_count_stddev=1.5
  ),
  'adaptive_poisson': accounting.Mechanism(
    'gaussian', sampling.PoissonSampling(6, 0.25), 2.0, clipped_count_stddev=1.5
  ),
  'balls_in_bins': accounting.Mechanism('blt', sampling.BallsInBins(6, 4), 2.0),
  'b_min_sep': accounting.Mechanism(
    'toeplitz', sampling.BMinSepSampling(6, 1 / 3, 2), 2.0, num_bands=2
  ),
  'random_allocation': accounting.Mechanism(
    'gaussian', sampling.RandomAllocation(8, 2), 2.0
  ),
  'truncated_poisson': accounting.Mechanism(
    'toeplitz',
    sampling.TruncatedPoissonSampling(6, 0.5, 40, 19, num_groups=2),
    2.0,
    num_bands=2,
  ),
}


def _factory(mechanism, schedule, **kwargs):
  arguments = {'clip_norm': 0.5, 'clients_per_round': 10, 'seed': noise.Seed(1)}
  return aggregators.from_mechanism(
    mechanism, schedule=schedule, **{**arguments, **kwargs}
  )


def _schedule(mechanism, seed=1):
  return sampling.for_mechanism(mechanism, 40, 10, seed)


@pytest.mark.parametrize('name', _MECHANISMS)
def test_factory_has_strategy_and_noise_of_mechanism(name):
  mechanism = _MECHANISMS[name]
  factory = _factory(mechanism, _schedule(mechanism))
  assert factory.strategy == mechanism.strategy
  assert factory.noise_multiplier == mechanism.noise_multiplier
  assert factory.participation == mechanism.limits
  if not mechanism.is_sampled:
    assert factory.effective_noise_multiplier == mechanism.effective_noise_multiplier


@pytest.mark.parametrize('name', ['poisson', 'balls_in_bins'])
def test_sampled_mechanism_without_schedule_is_refused(name):
  with pytest.raises(ValueError, match='schedule=sampling.for_mechanism'):
    _factory(_MECHANISMS[name], None)


@pytest.mark.parametrize('name', ['fixed_size', 'adaptive_poisson'])
def test_sampled_mechanism_with_wrong_schedule_is_refused(name):
  mechanism = _MECHANISMS[name]
  other_schedule = sampling.RandomEligible(strategies.Participation(6, 2), 40, 10, 1)
  with pytest.raises(ValueError, match='keeps Participation.* but the mechanism rests'):
    _factory(mechanism, other_schedule)
  with pytest.raises(ValueError, match='clients_per_round is 11, but the schedule'):
    _factory(mechanism, _schedule(mechanism), clients_per_round=11)


def test_unsampled_mechanism_accepts_only_a_fitting_schedule():
  limits = strategies.Participation(6, 3)
  mechanism = accounting.Mechanism('tree', limits, 2.0)
  assert _factory(mechanism, _schedule(mechanism)).participation == limits
  with pytest.raises(ValueError, match='but the mechanism rests on'):
    other_schedule = sampling.RandomEligible(strategies.Participation(6, 2), 40, 10, 1)
    _factory(mechanism, other_schedule)


def _run(mechanism, path):
  """Runs all rounds on the clients that the schedule draws; returns the last state."""
  schedule = _schedule(mechanism)
  process = _factory(mechanism, schedule).create(tff.TensorType(np.float32, [3]))
  state = process.initialize()
  largest = max(len(schedule.cohort(each)) for each in range(schedule.num_rounds))
  with ledger_lib.LedgerWriter(path, 1e-6) as writer:
    for this_round, event in enumerate(mechanism.round_events):
      cohort = schedule.cohort(this_round)
      clients = [np.full(3, client, np.float32) for client in cohort]
      output = process.next(state, clients)
      state = output.state
      writer.append(
        event=event,
        cohort_requested=largest,
        cohort_reported=len(cohort),
        clip_norm=float(output.measurements['dp_query_metrics']['clip_norm']),
        noise_multiplier=mechanism.noise_multiplier,
        strategy_checksum=mechanism.strategy.checksum,
        result_checksum=ledger_lib.checksum_of([output.result]),
      )
  return state


_QUICK = ('adaptive_poisson',)


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[] if name in _QUICK else [pytest.mark.slow])
    for name in _MECHANISMS
  ],
)
def test_reported_epsilon_equals_plan_and_state_claims_no_less(name, tmp_path):
  mechanism = _MECHANISMS[name]
  path = str(tmp_path / 'ledger.jsonl')
  state = _run(mechanism, path)
  inputs = reports.Inputs(mechanism, 1e-6, ledger=ledger_lib.read(path))
  guarantee = reports.statement.build(inputs, with_curves=False)['guarantee']
  planned = mechanism.epsilon(1e-6)
  assert guarantee['epsilon'] == pytest.approx(planned, rel=1e-9)
  spent = aggregators.extract_dp_event(state).all_rounds_so_far
  state_epsilon = accountants.epsilon(spent, 1e-6)
  if mechanism.is_sampled and name != 'fixed_size':
    assert state_epsilon > planned  # Fixed size has another adjacency relation.
  elif not mechanism.is_sampled:
    assert state_epsilon == pytest.approx(planned, rel=1e-9)


def test_state_event_assumes_clients_are_always_sampled(tmp_path):
  mechanism = _MECHANISMS['cyclic']
  state = _run(mechanism, str(tmp_path / 'ledger.jsonl'))
  event = aggregators.extract_dp_event(state).all_rounds_so_far
  num_participations = mechanism.limits.possible_participations
  column_norm = mechanism.strategy.sensitivity(None)
  assert isinstance(event, dp_accounting.GaussianDpEvent)
  expected = 2.0 / column_norm / math.sqrt(num_participations)
  assert event.noise_multiplier == pytest.approx(expected, rel=1e-9)
