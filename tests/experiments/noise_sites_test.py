"""Flags of where noise is added, and of clipping and secure sums."""

import math

import pytest

from experiments.comparing import grid
from tests.experiments import simulations
from tff_dp_aggregators import accounting
from tff_dp_aggregators.accounting import adaptive_clipping
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.records import ledger as ledger_lib

CLIENTS = ('--num_clients=24', '--clients_per_round=4')
SHARED = ('--num_rounds=2', '--target_delta=1e-3')
LIMITS = ('--min_separation=2',)
GAUSSIAN, SKELLAM = '--mechanism=gaussian', '--mechanism=skellam'
NONE = '--mechanism=none'


def _settings(*arguments):
  return simulations.settings_of(*CLIENTS, *LIMITS, *SHARED, *arguments)


def _mechanism(*arguments):
  return _settings(*arguments).privacy.mechanism


def _run(run_dir, *arguments):
  shared = SHARED[:1] if NONE in arguments else SHARED
  return simulations.run(run_dir, *CLIENTS, *shared, *LIMITS, *arguments)


def _entries(run_dir):
  return ledger_lib.read(str(run_dir / 'ledger.jsonl')).entries


def _check_epsilon(run_dir):
  """Returns the epsilon of a run.

  Checks that ledger and metrics have it, and that `report --run_dir` gives the report
  of the run again.
  """
  event = ledger_lib.total_event(_entries(run_dir))
  report = simulations.reported(f'--run_dir={run_dir}')
  assert report == simulations.read(run_dir, 'report')
  epsilon = report['guarantee']['epsilon']
  assert epsilon == pytest.approx(accounting.accountants.epsilon(event, 1e-3), rel=1e-6)
  row = simulations.metrics(run_dir)[-1]
  assert float(row['epsilon']) == pytest.approx(epsilon, rel=1e-6)
  return epsilon


def _check_spends_planned_epsilon(run_dir, *flags):
  planned = simulations.reported(*SHARED, *LIMITS, *flags)['guarantee']['epsilon']
  assert _check_epsilon(run_dir) == pytest.approx(planned, rel=1e-9)


@pytest.mark.slow
def test_skellam_run_with_secure_sum_spends_planned_epsilon(tmp_path):
  noise = (SKELLAM, '--noise_multiplier=2')
  _run(tmp_path, *noise, '--bits=16', '--inner_aggregator=secure_modular_sum')
  config = simulations.read(tmp_path, 'config')
  numbers = {'min_clients': 4, 'max_clients': 4, 'dimension': 650, 'bits': 16}
  stored = config['privacy']['mechanism']
  assert {name: stored[name] for name in numbers} == numbers
  assert stored['noise_site'] == 'clients'
  assert simulations.read(tmp_path, 'private')['privacy']['noise_seed'] is None
  assert (config['flags']['dimension'], config['flags']['min_clients']) == (650, 4)
  flags = (f'--{name}={value}' for name, value in numbers.items())
  _check_spends_planned_epsilon(tmp_path, *noise, *flags)


@pytest.mark.slow
def test_adaptive_clipping_run_records_norms_and_signal_to_noise(tmp_path):
  _run(
    tmp_path,
    GAUSSIAN,
    '--target_epsilon=5',
    '--clipping=adaptive',
    '--target_quantile=0.9',
    '--clip_learning_rate=0.5',
    '--zeroing_norm=100',
    '--coordinate_bound=0.5',
    '--not_private_signal_to_noise',
  )
  assert _check_epsilon(tmp_path) == pytest.approx(5, rel=1e-6)
  entries = _entries(tmp_path)
  # Each round multiplies the norm by exp(0.5 (0.9 - fraction)), of a noised fraction.
  assert entries[0].clip_norm == 1.0 != entries[1].clip_norm
  aggregation = simulations.read(tmp_path, 'config')['training']['aggregation']
  assert aggregation['target_quantile'] == 0.9
  assert aggregation['clip_learning_rate'] == 0.5
  last = simulations.metrics(tmp_path)[-1]
  assert float(last['not_private_signal_to_noise_so_far']) > 0
  report = simulations.read(tmp_path, 'report')
  not_covered = report['definition']['not_covered']
  assert any('exact sum was measured' in each for each in not_covered)
  before = {'zeroing_norm': 100.0, 'coordinate_bound': 0.5}
  assert report['run']['before_clipping'] == before


def test_noise_is_the_same_at_every_site_and_min_clients_follows():
  target = '--target_epsilon=5'
  server = _mechanism(GAUSSIAN, target)
  for site in noises.PLACEMENTS:
    more = ('--server_noise_multiplier=9',) * (site == noises.CLIENTS_AND_SERVER.name)
    mechanism = _mechanism(GAUSSIAN, target, f'--noise_site={site}', *more)
    assert mechanism.noise_site == site
    assert mechanism.noise_multiplier == server.noise_multiplier
  dropping = ('--dropout_probability=0.2', '--reporting_goal=3')
  shares = (GAUSSIAN, target, '--noise_site=clients')
  assert dict(_mechanism(*shares).options) == {'min_clients': 4}
  assert dict(_mechanism(*shares, *dropping).options) == {'min_clients': 3}
  stated = _mechanism(*shares, *dropping, '--min_clients=2')
  assert dict(stated.options) == {'min_clients': 2}


def test_simulated_site_keeps_no_target_epsilon():
  chosen = _settings(GAUSSIAN, '--noise_site=local_approximate')
  assert chosen.privacy.target_epsilon is None
  assert math.isinf(chosen.privacy.mechanism.epsilon(1e-3))


def test_adaptive_clipping_has_default_noise_of_count():
  for flags in (('--target_epsilon=5',), ('--noise_multiplier=2',)):
    fixed = _mechanism('--mechanism=tree', *flags)
    adaptive = _mechanism('--mechanism=tree', *flags, '--clipping=adaptive')
    assert adaptive.noise_multiplier == fixed.noise_multiplier
    assert adaptive.clipped_count_stddev == adaptive_clipping.default_stddev(
      fixed.noise_multiplier, 4
    )
    assert adaptive.clipped_count_share == pytest.approx(0.1)
  chosen = _settings(GAUSSIAN, '--noise_multiplier=2', '--clipped_count_stddev=4')
  assert chosen.flags['clipping'] == 'adaptive'


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (
      (GAUSSIAN, '--noise_site=clients', '--clipping=adaptive'),
      '--clipping=adaptive does not go with --noise_site=clients',
    ),
    (('--clipping=none',), '--clipping=none does not go with --mechanism=banded'),
    ((NONE, '--inner_aggregator=secure_sum'), 'updates without clip norm sum'),
    (
      ('--inner_aggregator=secure_sum', '--packed_simulation'),
      '--packed_simulation is for packs of clients',
    ),
    (
      ('--packed_simulation=false', '--scheduler=local:1'),
      'one: --nopacked_simulation.',
    ),
    (
      (GAUSSIAN, '--noise_site=local', '--nopacked_simulation'),
      'noise that each client draws, with no --secret_noise, is for packs',
    ),
    ((SKELLAM, '--dimension=100'), '--dimension=100 is not the number of trainable'),
    ((SKELLAM, '--noise_multiplier=2'), 'skellam with noise_site=clients needs bits'),
    (
      (SKELLAM, '--max_clients=3', '--min_clients=2'),
      '--max_clients=3, and rounds ask for 4',
    ),
    (
      (SKELLAM, '--noise_multiplier=2', '--bits=16', '--inner_aggregator=secure_sum'),
      'take secure_modular_sum',
    ),
  ],
  ids=lambda each: ' '.join(each) if isinstance(each, tuple) else None,
)
def test_conflicting_flags_are_refused_with_reason(arguments, message, tmp_path):
  shared = SHARED[:1] if NONE in arguments else SHARED
  flags = (*CLIENTS, *shared, *LIMITS, *arguments)
  assert message in simulations.refusal(*flags, f'--run_dir={tmp_path}/run')
  assert not (tmp_path / 'run').exists()


def test_unused_by_lists_flags_that_a_mechanism_ignores():
  of_integers = {'min_clients', 'max_clients', 'dimension', 'bits'}
  unused = grid.unused_by({'mechanism': 'gaussian'})
  assert {'num_bands', *of_integers} < unused
  assert grid.unused_by(
    {'mechanism': 'gaussian', 'noise_site': 'clients'}
  ) == unused - {'min_clients'}
  assert not of_integers & grid.unused_by({'mechanism': 'skellam'})
  # With --mechanism=none, clip_norm is used only if clipping is set.
  assert 'clip_norm' in grid.unused_by({'mechanism': 'none'})
  assert 'clip_norm' not in grid.unused_by({'mechanism': 'none', 'clipping': 'fixed'})
