"""Every mechanism and every way to draw clients, trained for two rounds by flags."""

import csv
import json

import numpy as np
import pytest

from experiments import simulate
from tests import executing
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.strategies import registry

CLIENTS = ('--num_clients=24', '--clients_per_round=4')
SHARED = ('--num_rounds=2', '--noise_multiplier=3', '--target_delta=1e-3')
LIMITS = ('--min_separation=2',)
# What some schemes need besides.
_NEEDED = {
  'random_allocation': '--clients_per_round=12',
  'b_min_sep': LIMITS[0],
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


def _unsaid(known, arguments):
  """Those of `known` that arguments do not say otherwise."""
  said = {each.partition('=')[0] for each in arguments}
  return [each for each in known if each.partition('=')[0] not in said]


def _run(run_dir, *arguments):
  clients = _unsaid(CLIENTS, arguments)
  result = executing.execute(simulate, *clients, *arguments, f'--run_dir={run_dir}')
  assert result.returncode == 0, result.stderr
  return result


def _report(run_dir):
  return json.loads((run_dir / 'report.json').read_text())


def _check_spends_as_reported(run_dir, *arguments, known=()):
  """The run's report has the numbers of the plan with the same flags."""
  known = _unsaid(known, arguments)
  said = executing.execute(report_program, *known, *arguments, '--format=json')
  assert said.returncode == 0, said.stderr
  planned, spent = json.loads(said.stdout), _report(run_dir)
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
  result = _run(
    run_dir,
    *shared,
    '--dropout_probability=0.3',
    '--server_optimizer=yogi',
    '--server_adaptivity=0.01',
    '--evaluate_every=2',
    '--nopacked_simulation',
  )
  return run_dir, result, shared


def test_a_sampled_run_spends_what_report_says(sampled):
  run_dir, result, shared = sampled
  _check_spends_as_reported(run_dir, *shared, known=CLIENTS)
  assert 'for each client, an upper bound.' in result.stdout


def test_a_sampled_run_was_carried_out_as_the_flags_say(sampled):
  run_dir, _, _ = sampled
  training = json.loads((run_dir / 'config.json').read_text())['training']
  assert training['schedule']['schedule'] == 'poisson'
  assert training['schedule']['dropouts'] == {'rate': 0.3}  # Its seed is private.
  assert training['server_optimizer']['kind'] == 'Yogi'
  assert training['simulation'] == 'one TFF client for each client'
  with open(run_dir / 'metrics.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['test_accuracy'] != '' for row in rows] == [False, True]
  assert (run_dir / 'accuracy.png').exists()


def test_packing_may_not_change_when_a_run_goes_on(sampled):
  run_dir, _, shared = sampled
  result = executing.execute(simulate, *CLIENTS, *shared, f'--run_dir={run_dir}')
  assert result.returncode == 2
  assert '--packed_simulation: False then, None now' in result.stderr


@pytest.mark.slow
def test_adaptive_clipping_with_the_strategy_for_the_servers_learning_rates(tmp_path):
  flags = ('--mechanism=toeplitz', '--num_bands=2', *SHARED, *LIMITS)
  _run(
    tmp_path / 'run',
    *flags,
    '--clipped_count_stddev=4',
    '--server_learning_rate_schedule=cooldown',
    '--workload=server',
    '--proximal_strength=0.1',
    '--client_optimizer=adam',
    '--client_learning_rate=0.01',
    '--client_learning_rate_schedule=cosine',
  )
  report = _report(tmp_path / 'run')
  assert report['mechanism']['adaptive_clipping']['clipped_count_stddev'] == 4
  # The ledger has the clip norm of each round; epsilon is that of noise and limits.
  norms = [
    json.loads(line)['clip_norm']
    for line in (tmp_path / 'run' / 'ledger.jsonl').read_text().splitlines()
  ]
  assert norms[0] == 1.0 != norms[1]
  planned = executing.execute(report_program, *flags, '--format=json')
  assert report['guarantee']['epsilon'] == pytest.approx(
    json.loads(planned.stdout)['guarantee']['epsilon'], rel=1e-9
  )
  verified = executing.execute(report_program, f'--verify={tmp_path}/run/report.json')
  assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.slow
def test_dp_ftrlm_comes_to_the_model_of_sgd_with_momentum(tmp_path):
  models = {}
  for optimizer in ('sgd', 'ftrl'):
    run_dir = tmp_path / optimizer
    flags = ('--mechanism=tree', *SHARED, *LIMITS, '--server_momentum=0.5')
    _run(run_dir, *flags, f'--server_optimizer={optimizer}')
    with np.load(run_dir / 'model.npz') as arrays:
      models[optimizer] = [arrays[name] for name in arrays.files]
  for one, other in zip(models['sgd'], models['ftrl']):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_noise_of_a_larger_cohort_is_no_guarantee(tmp_path):
  flags = ('--mechanism=tree', *SHARED, *LIMITS, '--simulated_cohort_scale=10')
  result = _run(tmp_path / 'run', *flags)
  assert 'No guarantee: the noise is that of a cohort of 40' in result.stdout
  assert "10 times the run's own of 4" in result.stdout
  assert 'Privacy spent' not in result.stdout
  assert _report(tmp_path / 'run')['guarantee']['epsilon'] is None


@pytest.mark.slow
@pytest.mark.parametrize('name', registry.KINDS)
def test_every_kind_of_mechanism_spends_what_report_says(name, tmp_path):
  flags = (f'--mechanism={name}', *SHARED, *LIMITS)
  _run(tmp_path / 'run', *flags)
  _check_spends_as_reported(tmp_path / 'run', *flags)


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
  _check_spends_as_reported(tmp_path / 'run', *flags, *SHARED, known=CLIENTS)
