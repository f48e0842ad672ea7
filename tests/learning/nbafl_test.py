"""Tests of `learning.train` with a plan of NbAFL, which its report states."""

import dataclasses
import os

import pytest

from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import learning
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import packed

_PLAN = accounting.nbafl.Nbafl(
  0.8, 1e-3, 0.5, num_exposures=1, num_rounds=6, num_clients=12, min_examples=2
)
_SAMPLED_PLAN = dataclasses.replace(_PLAN, clients_per_round=3)
_ROUNDS = strategies.Participation(6)


def _train(run_dir, plan=_PLAN, **changes):
  arguments = {
    'mechanism': plan,
    'clients_per_round': plan.cohort,
    'noise_seed': None,
    **changes,
  }
  return training_runs.train(run_dir, **arguments)


@pytest.mark.slow
def test_resumed_run_reports_its_nbafl_plan(tmp_path):
  run_dir = tmp_path / 'run'
  with pytest.raises(training_runs.Killed):
    _train(run_dir, test_metrics=training_runs.kill_in(3))
  metrics = training_runs.kill_in(-1)
  other_plan = dataclasses.replace(_PLAN, num_exposures=2)
  with pytest.raises(ValueError, match='.*num_exposures.*'):
    _train(run_dir, other_plan, test_metrics=metrics)
  result = _train(run_dir, test_metrics=metrics)
  assert result.is_finished
  mechanism = accounting.Mechanism(**_PLAN.mechanism_arguments())
  assert result.epsilon == pytest.approx(mechanism.epsilon(1e-3), rel=1e-12)
  assert result.statement['mechanism']['noise_site'] == 'clients_and_server'
  stated = result.statement['nbafl']
  assert stated['plan']['server_noise_multiplier'] == _PLAN.server_noise_multiplier > 0
  assert [
    (each['claimed_epsilon'], each['epsilon']) for each in stated['guarantees']
  ] == [(each.claimed_epsilon, each.epsilon) for each in _PLAN.guarantees()]


@pytest.mark.parametrize(
  ('plan', 'changes', 'message'),
  [
    (_PLAN, {'clip_norm': 0.4}, 'clip_norm=0.4, and NbAFL plans 0.5'),
    (_PLAN, {'delta': 1e-4}, 'delta=0.0001, and NbAFL plans 0.001'),
    (
      _SAMPLED_PLAN,
      {'clients_per_round': 4},
      'has clients_per_round=4, and NbAFL is planned with 3',
    ),
    (
      _PLAN,
      {
        'clients_per_round': None,
        'schedule': sampling.RandomEligible(
          _ROUNDS, 12, 12, seed=7, dropouts=sampling.Dropouts(rate=0.1, seed=4)
        ),
      },
      'counts the noise of all 12 clients',
    ),
    (
      dataclasses.replace(_PLAN, min_examples=3),
      {},
      "client 'client 0' has 2 examples, and NbAFL counts on min_examples=3 or more",
    ),
  ],
)
def test_settings_that_contradict_plan_are_refused(plan, changes, message, tmp_path):
  with pytest.raises((TypeError, ValueError)) as error:
    _train(tmp_path / 'run', plan, **changes)
  assert message in str(error.value)
  assert not os.path.exists(tmp_path / 'run')


def test_sampled_plan_refuses_replayed_cohorts(tmp_path):
  schedule = sampling.RandomEligible(_ROUNDS, 12, 3, seed=7)
  path = str(tmp_path / 'cohorts')
  schedule.save(path)
  arguments = {'clients_per_round': None, 'schedule': sampling.Replay(path)}
  with pytest.raises(ValueError, match='the schedule has schedule=replay'):
    _train(tmp_path / 'run', _SAMPLED_PLAN, **arguments)


@pytest.mark.slow
def test_min_examples_is_checked_in_packed_data(tmp_path):
  clients = learning.Clients.of(training_runs.clients())
  laid_out = packed.lay_out(clients, str(tmp_path / 'data'))
  stricter = dataclasses.replace(_PLAN, min_examples=3)
  with pytest.raises(ValueError, match='client number 0 has 2 examples, and NbAFL'):
    _train(tmp_path / 'run', stricter, clients=laid_out)
  result = _train(tmp_path / 'run', clients=laid_out, test_data=None, num_rounds=6)
  assert result.statement['nbafl']['plan']['min_examples'] == 2
