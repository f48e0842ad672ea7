"""Targets in zCDP (target_rho): calibration, budgets, refusals, reports and plans."""

import dataclasses
import json
import math

import dp_accounting
import numpy as np
import pytest

from tests import executing
from tests.accounting import mechanisms
from tests.accounting.programs import reporting
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.programs import plan

_LIMITS = strategies.Participation(9, min_separation=3, max_participations=2)
_TREE = accounting.Mechanism('tree', _LIMITS, 5.0)
_TARGETS = (
  accounting.Target(rho=0.05),
  accounting.Target(2.0, 1e-6),
  accounting.Target(2.0, 1e-6, 'rdp'),
)


def _squared_by_brute_force(strategy, limits):
  """Squared sensitivity: the largest change of C X over all patterns of a client."""
  matrix = strategy.materialize()
  return max(np.sum(matrix[:, list(r)].sum(1) ** 2) for r in limits.patterns())


@pytest.mark.parametrize('name', ['gaussian', 'tree', 'banded'])
@pytest.mark.parametrize('rho', [1e-3, 40.0])
def test_noise_multiplier_is_sensitivity_over_sqrt_2_rho(name, rho):
  made = accounting.Mechanism.for_target(name, _LIMITS, target_rho=rho)
  squared = _squared_by_brute_force(made.strategy, _LIMITS)
  assert made.noise_multiplier == pytest.approx(math.sqrt(squared / 2 / rho), rel=1e-9)
  assert rho * (1 - 1e-11) < accountants.zcdp_rho(made.event) <= rho
  assert made.target == accounting.Target(rho=rho)
  # The least noise for the epsilon that corresponds to this rho is the same.
  epsilon = gaussian.epsilon_of(math.sqrt(2 * rho), 1e-6)
  by_epsilon = accounting.Mechanism.for_target(name, _LIMITS, epsilon, 1e-6)
  assert made.noise_multiplier == pytest.approx(by_epsilon.noise_multiplier, rel=1e-9)


def test_gboard_rho_requires_published_noise_multiplier():
  limits = strategies.Participation.from_rounds_between(2000, 313, 6)
  made = accounting.Mechanism.for_target('tree', limits, target_rho=79 / 98)
  assert made.noise_multiplier == pytest.approx(7, rel=1e-11)


def test_rhos_of_joint_parts_add_up_to_target():
  parts = [
    accounting.JointPart('a', '0', _TREE, 1.0),
    accounting.JointPart('b', '1', accounting.Mechanism('gaussian', _LIMITS, 1.0), 0.5),
  ]
  made = accounting.JointMechanism.for_target(
    parts, target_rho=0.5, shares={'a': 0.75, 'b': 0.25}
  )
  rhos = [accountants.zcdp_rho(part.mechanism.event) for part in made.parts]
  assert rhos == pytest.approx([0.375, 0.125], rel=1e-9)
  assert sum(rhos) <= 0.5
  assert made.target == accounting.Target(rho=0.5)
  laplace = accounting.Mechanism('laplace', _LIMITS, 1.0)
  with pytest.raises(ValueError, match='target_rho is for Gaussian noise'):
    accounting.JointMechanism.for_target(
      [parts[0], accounting.JointPart('b', '1', laplace, 0.5)], target_rho=0.5
    )


@pytest.mark.parametrize(
  'name, schema, options',
  [
    ('gaussian', sampling.PoissonSampling(9, 0.1), {}),
    ('toeplitz', sampling.BallsInBins(9, 3), {}),
    ('laplace', _LIMITS, {}),
    ('skellam', _LIMITS, {'min_clients': 50, 'dimension': 30, 'bits': 16}),
  ],
)
def test_target_rho_requires_unsampled_gaussian_noise(name, schema, options):
  with pytest.raises(ValueError, match='target_rho'):
    accounting.Mechanism.for_target(name, schema, target_rho=0.5, **options)


@pytest.mark.parametrize(
  'target, message',
  [
    ({'target_rho': 0.0}, 'target_rho'),
    ({'target_rho': 1.0, 'target_epsilon': 1.0}, 'target_epsilon=1.0'),
    ({'target_rho': 1.0, 'accountant': 'pld'}, 'accountant=pld'),
    ({'target_epsilon': 1.0}, 'target_delta'),
    ({'target_epsilon': -1.0, 'target_delta': 1e-6}, 'target_epsilon'),
    ({'target_epsilon': 1.0, 'target_delta': 2.0}, 'target_delta'),
  ],
)
def test_invalid_targets_are_refused(target, message):
  with pytest.raises(ValueError, match=message):
    accounting.Target(**{k.replace('target_', ''): each for k, each in target.items()})
  with pytest.raises(ValueError, match=message):
    accounting.Mechanism.for_target('tree', _LIMITS, **target)
  with pytest.raises(ValueError, match=message):
    _TREE.rounds_within(**target)


@pytest.mark.parametrize('name', ['cyclic', 'parts', 'tree'])
def test_would_exceed_stops_at_rounds_within(name):
  tree = accounting.Mechanism('tree', strategies.Participation(20, 4), 12.0)
  mechanism = mechanisms.BY_NAME.get(name, tree)
  for target in _TARGETS:
    if target.rho and name != 'tree':
      with pytest.raises(ValueError, match='target_rho is for Gaussian noise'):
        mechanism.would_exceed(target)
      continue
    rounds = 0
    while rounds < 20 and not mechanism.would_exceed(target, rounds):
      rounds += 1
    composed = [
      dp_accounting.ComposedDpEvent(list(mechanism.round_events[:ran]))
      for ran in (rounds, rounds + 1)
    ]
    assert target.is_kept(composed[0], mechanism.relation)
    assert rounds == 20 or not target.is_kept(composed[1], mechanism.relation)
    assert rounds == mechanism.rounds_within(
      target.epsilon,
      target.delta,
      target_rho=target.rho,
      accountant=target.accountant,
    )


def test_would_exceed_is_false_for_mechanism_made_for_target():
  for target in ({'target_rho': 0.3}, {'target_epsilon': 2.0, 'target_delta': 1e-6}):
    made = accounting.Mechanism.for_target('tree', _LIMITS, **target)
    assert not any(made.would_exceed(made.target, rounds) for rounds in range(9))
    less = dataclasses.replace(made, noise_multiplier=made.noise_multiplier * 0.999)
    assert less.would_exceed(made.target, 8)


def test_would_exceed_refuses_rounds_out_of_range():
  with pytest.raises(ValueError, match='rounds=9'):
    _TREE.would_exceed(accounting.Target(rho=0.5), 9)
  with pytest.raises(TypeError, match='rounds'):
    _TREE.would_exceed(accounting.Target(rho=0.5), 1.5)


_FLAGS = ('--mechanism=tree', '--min_separation=5', '--target_delta=1e-6')


@pytest.mark.parametrize(
  'flags, found',
  [
    (('--num_rounds=20',), 'noise_multiplier'),
    (('--noise_multiplier=4',), 'num_rounds'),
  ],
)
def test_report_states_and_verifies_target_rho(flags, found, tmp_path):
  report = reporting.json_of(*_FLAGS, *flags, '--target_rho=0.75')
  assert report['target'] == {'epsilon': None, 'rho': 0.75, 'found': found}
  assert report['guarantee']['zcdp_rho'] <= 0.75
  assert reporting.run_verify(tmp_path, report).returncode == 0
  if found == 'num_rounds':
    num_rounds = report['participation']['num_rounds']
    too_many = (*_FLAGS, *flags, f'--num_rounds={num_rounds + 1}', '--target_rho=0.75')
    assert reporting.execute(*too_many).returncode == 1
  report['target']['rho'] = 0.7
  assert reporting.run_verify(tmp_path, report).returncode == 1


def test_plan_has_noise_for_target_rho_and_no_sampled_rows():
  flags = ('--num_rounds=20', '--min_separation=5', '--model_size=100')
  flags += ('--mechanisms=tree,gaussian', '--num_clients=100', '--clients_per_round=5')
  flags += ('--target_rho=0.75', '--target_delta=1e-6')
  printed = executing.execute(plan, *flags, '--format=json')
  assert printed.returncode == 0, printed.stderr
  rows = json.loads(printed.stdout)['rows']
  limits = strategies.Participation(20, 5)
  assert {row['sampling'] for row in rows} == {'none'}
  for row in rows:
    if not row['restart_every']:
      made = accounting.Mechanism.for_target(row['mechanism'], limits, target_rho=0.75)
      assert row['noise_multiplier'] == pytest.approx(made.noise_multiplier, rel=1e-9)


def test_report_of_run_dir_states_target_rho(tmp_path):
  rho = accountants.zcdp_rho(statements.TREE.event)
  run_dir = statements.run_dir(tmp_path / 'run', target_rho=rho)
  report = reporting.json_of(f'--run_dir={run_dir}')
  assert report['target'] == {
    'epsilon': None,
    'rho': rho,
    'found': 'noise_multiplier',
  }
  (tmp_path / 'more').mkdir()
  less = statements.run_dir(tmp_path / 'more' / 'run', target_rho=rho * 0.999)
  result = reporting.execute(f'--run_dir={less}')
  assert result.returncode == 2 and 'more than target_rho=' in result.stderr


def test_adaptive_clipping_stays_within_target_rho():
  made = accounting.Mechanism.for_target(
    'gaussian', _LIMITS, target_rho=0.5, clipped_count_share=0.1
  )
  assert made.clipped_count_share == pytest.approx(0.1)
  assert accountants.zcdp_rho(made.event) <= 0.5
