"""A target in zCDP is kept to the last digit, in closed form, and refused elsewhere."""

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
  """The most that a client changes C X by, squared, of all that it can do."""
  matrix = strategy.materialize()
  return max(np.sum(matrix[:, list(r)].sum(1) ** 2) for r in limits.patterns())


@pytest.mark.parametrize('name', ['gaussian', 'tree', 'banded'])
@pytest.mark.parametrize('rho', [1e-3, 40.0])
def test_the_noise_is_the_sensitivity_over_the_root_of_two_rho(name, rho):
  made = accounting.Mechanism.for_target(name, _LIMITS, target_rho=rho)
  squared = _squared_by_brute_force(made.strategy, _LIMITS)
  assert made.noise_multiplier == pytest.approx(math.sqrt(squared / 2 / rho), rel=1e-9)
  assert rho * (1 - 1e-11) < accountants.zcdp_rho(made.event) <= rho
  assert made.target == accounting.Target(rho=rho)
  # The same noise is the least for the epsilon that this rho comes to.
  epsilon = gaussian.epsilon_of(math.sqrt(2 * rho), 1e-6)
  by_epsilon = accounting.Mechanism.for_target(name, _LIMITS, epsilon, 1e-6)
  assert made.noise_multiplier == pytest.approx(by_epsilon.noise_multiplier, rel=1e-9)


def test_gboard_s_published_rho_needs_its_published_noise():
  limits = strategies.Participation.from_rounds_between(2000, 313, 6)
  made = accounting.Mechanism.for_target('tree', limits, target_rho=79 / 98)
  assert made.noise_multiplier == pytest.approx(7, rel=1e-11)


def test_rhos_of_parts_add_up_to_the_target():
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
def test_there_is_no_rho_without_gaussian_noise_or_with_sampling(name, schema, options):
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
def test_what_is_no_target_is_refused(target, message):
  with pytest.raises(ValueError, match=message):
    accounting.Target(**{k.replace('target_', ''): each for k, each in target.items()})
  with pytest.raises(ValueError, match=message):
    accounting.Mechanism.for_target('tree', _LIMITS, **target)
  with pytest.raises(ValueError, match=message):
    _TREE.rounds_within(**target)


@pytest.mark.parametrize('name', ['cyclic', 'parts', 'tree'])
def test_a_loop_that_asks_runs_the_most_rounds_that_keep_the_target(name):
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


def test_a_mechanism_that_was_made_for_a_target_runs_all_its_rounds():
  for target in ({'target_rho': 0.3}, {'target_epsilon': 2.0, 'target_delta': 1e-6}):
    made = accounting.Mechanism.for_target('tree', _LIMITS, **target)
    assert not any(made.would_exceed(made.target, rounds) for rounds in range(9))
    less = dataclasses.replace(made, noise_multiplier=made.noise_multiplier * 0.999)
    assert less.would_exceed(made.target, 8)


def test_there_is_no_round_after_the_last():
  with pytest.raises(ValueError, match='rounds=9'):
    _TREE.would_exceed(accounting.Target(rho=0.5), 9)
  with pytest.raises(TypeError, match='rounds'):
    _TREE.would_exceed(accounting.Target(rho=0.5), 1.5)


_FLAGS = ('--mechanism=tree', '--min_separation=5', '--target_delta=1e-6')


@pytest.mark.parametrize(
  'given, found',
  [
    (('--num_rounds=20',), 'noise_multiplier'),
    (('--noise_multiplier=4',), 'num_rounds'),
  ],
)
def test_a_report_says_the_target_and_what_was_found(given, found, tmp_path):
  report = reporting.json_of(*_FLAGS, *given, '--target_rho=0.75')
  assert report['target'] == {'epsilon': None, 'rho': 0.75, 'found': found}
  assert report['guarantee']['zcdp_rho'] <= 0.75
  path = tmp_path / 'report.json'
  path.write_text(json.dumps(report))
  assert reporting.execute(f'--verify={path}').returncode == 0
  if found == 'num_rounds':
    most = report['participation']['num_rounds']
    more = (*_FLAGS, *given, f'--num_rounds={most + 1}', '--target_rho=0.75')
    assert reporting.execute(*more).returncode == 1
  report['target']['rho'] = 0.7
  path.write_text(json.dumps(report))
  assert reporting.execute(f'--verify={path}').returncode == 1


@pytest.mark.parametrize(
  'flags, message',
  [
    (('--target_epsilon=1',), 'or target_rho alone; got target_epsilon=1.0'),
    (('--accountant=pld',), 'accountant=pld'),
    (('--other_release=a: epsilon=1, delta=1e-7',), '--target_rho'),
  ],
)
def test_programs_refuse_what_does_not_go_with_it(flags, message):
  own = ('--mechanism=gaussian', '--num_rounds=20', '--target_delta=1e-6')
  result = reporting.execute(*own, '--target_rho=0.75', *flags)
  assert result.returncode == 2 and message in result.stderr


def test_a_plan_has_the_noise_of_the_target_and_no_sampled_rows():
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


def test_a_run_directory_has_its_target(tmp_path):
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


def test_adaptive_clipping_is_within_the_target():
  made = accounting.Mechanism.for_target(
    'gaussian', _LIMITS, target_rho=0.5, clipped_count_share=0.1
  )
  assert made.clipped_count_share == pytest.approx(0.1)
  assert accountants.zcdp_rho(made.event) <= 0.5
