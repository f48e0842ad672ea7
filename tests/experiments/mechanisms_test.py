"""Every way to draw clients, trained for two rounds by flags."""

import pytest

from tests.experiments import simulations
from tff_dp_aggregators import sampling

CLIENTS = ('--num_clients=24', '--clients_per_round=4')
SHARED = ('--num_rounds=2', '--noise_multiplier=3', '--target_delta=1e-3')
# What some schemes need besides.
_NEEDED = {
  'random_allocation': '--clients_per_round=12',
  'b_min_sep': '--min_separation=2',
  'truncated_poisson': '--max_clients_per_round=5',
}
SAMPLED = {
  kind.flag: (
    f'--sampling={kind.flag}',
    '--mechanism=gaussian',
    *filter(None, [_NEEDED.get(kind.flag)]),
  )
  for kind in sampling.SCHEMES.values()
  if kind.is_sampled
}


def _with_clients(arguments):
  said = {each.partition('=')[0] for each in arguments}
  return [*(each for each in CLIENTS if each.partition('=')[0] not in said), *arguments]


def _run(run_dir, *arguments):
  return simulations.run(run_dir, *_with_clients(arguments))


def _check_spends_as_reported(run_dir, *arguments):
  """The run's report has the numbers of the plan with the same flags."""
  planned = simulations.reported(*_with_clients(arguments))
  spent = simulations.read(run_dir, 'report')
  assert spent['guarantee']['epsilon'] == pytest.approx(
    planned['guarantee']['epsilon'], rel=1e-9
  )
  for name in ('noise_multiplier', 'effective_noise_multiplier', 'strategy_checksum'):
    assert spent['mechanism'][name] == planned['mechanism'][name]


@pytest.fixture(scope='module')
def sampled(tmp_path_factory):
  """Cohorts drawn in secret, some of whom drop out; another optimizer."""
  run_dir = tmp_path_factory.mktemp('runs') / 'sampled'
  shared = (*SAMPLED['poisson'], *SHARED)
  _run(
    run_dir,
    *shared,
    '--dropout_probability=0.3',
    '--server_optimizer=yogi',
    '--server_adaptivity=0.01',
    '--evaluate_every=2',
    '--nopacked_simulation',
  )
  return run_dir, shared


@pytest.mark.slow
def test_a_sampled_run_was_carried_out_as_the_flags_say(sampled):
  run_dir, _ = sampled
  training = simulations.read(run_dir, 'config')['training']
  assert training['schedule']['schedule'] == 'poisson'
  assert training['schedule']['dropouts'] == {'rate': 0.3}  # Its seed is private.
  assert training['server_optimizer']['kind'] == 'Yogi'
  assert training['simulation'] == 'one TFF client for each client'
  rows = simulations.metrics(run_dir)
  assert [row['test_accuracy'] != '' for row in rows] == [False, True]


@pytest.mark.slow
def test_packing_may_not_change_when_a_run_goes_on(sampled):
  run_dir, shared = sampled
  said = simulations.refusal(*CLIENTS, *shared, f'--run_dir={run_dir}')
  assert '--packed_simulation: False then, None now' in said


@pytest.mark.slow
@pytest.mark.parametrize(
  'flags',
  [
    *SAMPLED.values(),
    ('--sampling=fixed_size', '--mechanism=gaussian', '--adjacency=add_or_remove'),
    ('--sampling=poisson', '--num_groups=2', '--mechanism=banded', '--num_bands=2'),
  ],
  ids=' '.join,
)
def test_every_sampling_spends_what_report_says(flags, tmp_path):
  _run(tmp_path / 'run', *flags, *SHARED)
  _check_spends_as_reported(tmp_path / 'run', *flags, *SHARED)
