"""Simulations by flags: who makes the noise, how updates are clipped and summed."""

import csv
import json
import math

import pytest
from absl import flags as absl_flags

from experiments import settings
from experiments import simulate
from experiments.comparing import grid
from tests import executing
from tff_dp_aggregators import accounting
from tff_dp_aggregators.accounting import adaptive_clipping
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.base import rounding

CLIENTS = ('--num_clients=24', '--clients_per_round=4')
SHARED = ('--num_rounds=2', '--target_delta=1e-3')
LIMITS = ('--min_separation=2',)
GAUSSIAN, SKELLAM = '--mechanism=gaussian', '--mechanism=skellam'
NONE = '--mechanism=none'


def _settings(*arguments):
  values = absl_flags.FlagValues()
  settings.define(values)
  values(['simulate', *CLIENTS, *LIMITS, *SHARED, *arguments])
  return settings.from_flags(values)


def _mechanism(*arguments):
  return _settings(*arguments).privacy.mechanism


def _run(run_dir, *arguments):
  shared = SHARED[:1] if NONE in arguments else SHARED
  result = executing.execute(
    simulate, *CLIENTS, *shared, *LIMITS, *arguments, f'--run_dir={run_dir}'
  )
  assert result.returncode == 0, result.stderr
  return result


def _json(path):
  return json.loads(path.read_text())


def _rows(run_dir):
  with open(run_dir / 'metrics.csv', newline='') as file:
    return list(csv.DictReader(file))


def _spent(run_dir):
  """Epsilon by the ledger, which the run's report and `report --run_dir` agree with."""
  entries = ledger_lib.read(str(run_dir / 'ledger.jsonl')).entries
  composed = accounting.accountants.epsilon(ledger_lib.total_event(entries), 1e-3)
  said = executing.execute(report_program, f'--run_dir={run_dir}', '--format=json')
  assert said.returncode == 0, said.stderr
  again = json.loads(said.stdout)['guarantee']['epsilon']
  assert again == _json(run_dir / 'report.json')['guarantee']['epsilon']
  assert again == pytest.approx(composed, rel=1e-6)
  assert float(_rows(run_dir)[-1]['epsilon']) == pytest.approx(again, rel=1e-6)
  return again


def _spends_what_report_plans(run_dir, *flags):
  said = executing.execute(report_program, *SHARED, *LIMITS, *flags, '--format=json')
  assert said.returncode == 0, said.stderr
  planned = json.loads(said.stdout)['guarantee']['epsilon']
  assert _spent(run_dir) == pytest.approx(planned, rel=1e-9)


@pytest.mark.slow
def test_local_noise_with_its_target(tmp_path):
  flags = (GAUSSIAN, '--noise_site=local', '--target_epsilon=5')
  result = _run(tmp_path / 'run', *flags)
  _spends_what_report_plans(tmp_path / 'run', *flags)
  assert _spent(tmp_path / 'run') == pytest.approx(5, rel=1e-6)
  assert 'relative to the sensitivity, of each client' in result.stdout
  assert "of each client's own noise" in result.stderr
  # The noise of the sum of four clients is twice that of one.
  (row, _) = _rows(tmp_path / 'run')
  mechanism = _mechanism(*flags)
  one_client = accounting.noise_to_signal.by_round(
    _mechanism(GAUSSIAN, f'--noise_multiplier={mechanism.noise_multiplier!r}'), 650, 4
  )[0]
  assert float(row['noise_to_signal']) == pytest.approx(2 * one_client, rel=1e-4)


@pytest.mark.slow
def test_noise_of_clients_and_of_the_server_on_top(tmp_path):
  flags = (
    GAUSSIAN,
    '--noise_site=clients_and_server',
    '--noise_multiplier=2',
    '--server_noise_multiplier=3',
    '--min_clients=4',
  )
  result = _run(tmp_path / 'run', *flags)
  _spends_what_report_plans(tmp_path / 'run', *flags)
  assert 'of each client, and 3.0000 of the server' in result.stdout
  assert 'and 3.0000 of the noise of the server' in result.stderr
  row = _rows(tmp_path / 'run')[-1]
  loudness = math.sqrt(4 * 2**2 + 3**2) * math.sqrt(650) / 4
  assert float(row['noise_to_signal']) == pytest.approx(loudness, rel=1e-4)
  config = _json(tmp_path / 'run' / 'config.json')
  stored = config['privacy']['mechanism']
  assert stored['server_noise_multiplier'] == config['flags']['server_noise_multiplier']
  report = _json(tmp_path / 'run' / 'report.json')
  assert report['mechanism']['server_noise_multiplier'] == 3.0
  found = {
    (each['against'], each['adjacency']): each['epsilon']
    for each in report['other_guarantees']
  }
  server = _mechanism(GAUSSIAN, f'--noise_multiplier={math.sqrt(4 * 4 + 9)!r}')
  assert found['released', 'zero_out'] == pytest.approx(server.epsilon(1e-3), rel=1e-9)
  said = executing.execute(report_program, f'--verify={tmp_path}/run/report.json')
  assert said.returncode == 0, said.stdout


@pytest.mark.slow
def test_integer_noise_under_a_secure_sum(tmp_path):
  result = _run(
    tmp_path / 'run',
    SKELLAM,
    '--noise_multiplier=2',
    '--bits=16',
    '--inner_aggregator=secure_modular_sum',
  )
  config = _json(tmp_path / 'run' / 'config.json')
  numbers = {'min_clients': 4, 'max_clients': 4, 'dimension': 650, 'bits': 16}
  stored = config['privacy']['mechanism']
  assert {name: stored[name] for name in numbers} == numbers
  assert stored['noise_site'] == 'clients'
  private = _json(tmp_path / 'run' / 'private.json')
  assert private['privacy']['noise_seed'] is None
  assert {name: config['flags'][name] for name in ('dimension', 'min_clients')} == {
    'dimension': 650,
    'min_clients': 4,
  }
  assert 'clients are trained one by one: each client draws' in result.stderr
  flags = (SKELLAM, '--noise_multiplier=2', *(f'--{k}={v}' for k, v in numbers.items()))
  _spends_what_report_plans(tmp_path / 'run', *flags)


@pytest.mark.slow
def test_adaptive_clipping_robustness_and_the_signal_of_each_round(tmp_path):
  _run(
    tmp_path / 'run',
    GAUSSIAN,
    '--target_epsilon=5',
    '--clipping=adaptive',
    '--target_quantile=0.9',
    '--clip_learning_rate=0.5',
    '--zeroing_norm=100',
    '--coordinate_bound=0.5',
    '--not_private_signal_to_noise',
  )
  assert _spent(tmp_path / 'run') == pytest.approx(5, rel=1e-6)
  entries = ledger_lib.read(str(tmp_path / 'run' / 'ledger.jsonl')).entries
  # A step of the norm: exp(0.5 (0.9 - fraction)), with a noised fraction.
  assert entries[0].clip_norm == 1.0 != entries[1].clip_norm
  training = _json(tmp_path / 'run' / 'config.json')['training']['aggregation']
  assert training == {
    'inner_aggregator': 'sum',
    'zeroing_norm': 100.0,
    'coordinate_bound': 0.5,
    'clip_order': None,
    'target_quantile': 0.9,
    'clip_learning_rate': 0.5,
    'not_private_signal_to_noise': True,
  }
  last = _rows(tmp_path / 'run')[-1]
  assert float(last['not_private_signal_to_noise_so_far']) > 0
  report = _json(tmp_path / 'run' / 'report.json')
  told = report['definition']['not_covered']
  assert any('exact sum was measured' in each for each in told)
  before = {'zeroing_norm': 100.0, 'coordinate_bound': 0.5}
  assert report['run']['before_clipping'] == before


@pytest.mark.slow
def test_clipping_without_noise_under_a_secure_sum(tmp_path):
  result = _run(
    tmp_path / 'run',
    NONE,
    '--clipping=fixed',
    '--clip_norm=0.01',
    '--clip_order=inf',
    '--inner_aggregator=secure_sum',
  )
  assert 'No privacy: epsilon is infinite.' in result.stdout
  entries = ledger_lib.read(str(tmp_path / 'run' / 'ledger.jsonl')).entries
  assert [each.clip_norm for each in entries] == [0.01, 0.01]
  config = _json(tmp_path / 'run' / 'config.json')
  assert config['flags']['clip_order'] == 'inf'
  assert config['training']['aggregation']['clip_order'] == 'infinity'


@pytest.mark.slow
def test_the_approximation_of_local_noise_has_no_guarantee(tmp_path):
  result = _run(tmp_path / 'run', GAUSSIAN, '--noise_site=local_approximate')
  assert 'No guarantee: the server adds Gaussian noise' in result.stdout
  assert 'Privacy spent' not in result.stdout
  local = rounding.up(_mechanism(GAUSSIAN, '--noise_site=local').epsilon(1e-3))
  stands_for = f'It stands for (epsilon, delta) = ({local}, 0.001) local differential'
  assert stands_for in result.stdout
  entries = ledger_lib.read(str(tmp_path / 'run' / 'ledger.jsonl')).entries
  assert {each.event['type'] for each in entries} == {'NonPrivateDpEvent'}
  assert {row['epsilon'] for row in _rows(tmp_path / 'run')} == {'inf'}
  report = _json(tmp_path / 'run' / 'report.json')
  assert report['guarantee']['epsilon'] is None
  said = executing.execute(report_program, f'--run_dir={tmp_path}/run')
  assert said.returncode == 0 and said.stdout == (
    (tmp_path / 'run' / 'report.md').read_text()
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'flags',
  [
    ('--mechanism=laplace', '--noise_site=local', '--noise_multiplier=2'),
    ('--mechanism=laplace', '--noise_multiplier=2'),
  ],
  ids=' '.join,
)
def test_every_site_spends_what_report_plans(flags, tmp_path):
  _run(tmp_path / 'run', *flags)
  _spends_what_report_plans(tmp_path / 'run', *flags)


@pytest.mark.slow
@pytest.mark.parametrize('inner', ['sum', 'secure_sum'])
@pytest.mark.parametrize('site', ['server', 'clients', 'local'])
def test_every_inner_aggregator_sums_what_every_site_sends(site, inner, tmp_path):
  _run(
    tmp_path / 'run',
    GAUSSIAN,
    f'--noise_site={site}',
    '--noise_multiplier=2',
    f'--inner_aggregator={inner}',
    '--secret_noise',
    '--seed=823641',
  )
  assert _spent(tmp_path / 'run') == pytest.approx(
    _mechanism(GAUSSIAN, '--noise_multiplier=2').epsilon(1e-3), rel=1e-9
  )


@pytest.mark.slow
def test_discrete_gaussian_noise_with_drop_outs(tmp_path):
  _run(
    tmp_path / 'run',
    '--mechanism=discrete_gaussian',
    '--target_epsilon=5',
    '--dropout_probability=0.3',
    '--reporting_goal=2',
  )
  stored = _json(tmp_path / 'run' / 'config.json')['privacy']['mechanism']
  assert (stored['min_clients'], stored['max_clients']) == (2, 4)
  assert 5 * (1 - 1e-2) < _spent(tmp_path / 'run') <= 5


def test_noise_is_found_for_every_site_and_the_numbers_of_clients_follow():
  target = '--target_epsilon=5'
  server = _mechanism(GAUSSIAN, target)
  for site in noises.PLACEMENTS:
    more = ('--server_noise_multiplier=9',) * (site == noises.CLIENTS_AND_SERVER.name)
    found = _mechanism(GAUSSIAN, target, f'--noise_site={site}', *more)
    assert found.noise_site == site
    assert found.noise_multiplier == server.noise_multiplier
  dropping = ('--dropout_probability=0.2', '--reporting_goal=3')
  shares = (GAUSSIAN, target, '--noise_site=clients')
  assert dict(_mechanism(*shares).options) == {'min_clients': 4}
  assert dict(_mechanism(*shares, *dropping).options) == {'min_clients': 3}
  stated = _mechanism(*shares, *dropping, '--min_clients=2')
  assert dict(stated.options) == {'min_clients': 2}


def test_what_is_simulated_keeps_no_target():
  chosen = _settings(GAUSSIAN, '--noise_site=local_approximate')
  assert chosen.privacy.target_epsilon is None
  assert math.isinf(chosen.privacy.mechanism.epsilon(1e-3))


def test_adaptive_clipping_takes_the_default_noise_of_its_count():
  for flags in (('--target_epsilon=5',), ('--noise_multiplier=2',)):
    fixed = _mechanism('--mechanism=tree', *flags)
    found = _mechanism('--mechanism=tree', *flags, '--clipping=adaptive')
    assert found.noise_multiplier == fixed.noise_multiplier
    assert found.clipped_count_stddev == adaptive_clipping.default_stddev(
      fixed.noise_multiplier, 4
    )
    assert found.clipped_count_share == pytest.approx(0.1)
  said = _settings(GAUSSIAN, '--noise_multiplier=2', '--clipped_count_stddev=4')
  assert said.flags['clipping'] == 'adaptive'


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (
      ('--mechanism=laplace', '--noise_site=clients'),
      'noise_site=clients does not go with laplace noise, of which no event',
    ),
    (
      (GAUSSIAN, '--noise_site=clients', '--clipping=adaptive'),
      '--clipping=adaptive does not go with --noise_site=clients and gaussian noise',
    ),
    (('--clipping=none',), '--clipping=none does not go with --mechanism=banded'),
    ((NONE, '--inner_aggregator=secure_sum'), 'updates that are not clipped'),
    (
      (GAUSSIAN, '--noise_site=clients', '--dropout_probability=0.2'),
      'Give the schedule reporting_goal=4 or more',
    ),
    (
      ('--inner_aggregator=secure_sum', '--packed_simulation'),
      '--packed_simulation is for packs of clients, and these clients are trained one '
      'by one: --inner_aggregator=secure_sum sums',
    ),
    (
      (GAUSSIAN, '--noise_site=local', '--nopacked_simulation'),
      'noise of clients without --secret_noise is for packs of clients',
    ),
    (
      (GAUSSIAN, '--noise_site=clients_and_server'),
      'got None with noise_site=clients_and_server',
    ),
  ],
  ids=lambda each: ' '.join(each) if isinstance(each, tuple) else None,
)
def test_what_does_not_go_together_is_refused_with_the_reason(
  arguments, message, tmp_path
):
  limits = () if '--sampling=poisson' in arguments else LIMITS
  shared = SHARED[:1] if NONE in arguments else SHARED
  flags = (*CLIENTS, *shared, *limits, *arguments)
  result = executing.execute(simulate, *flags, f'--run_dir={tmp_path}/run')
  assert result.returncode == 2
  assert message in result.stderr
  assert result.stderr.splitlines()[-1].startswith('error: ')
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (
      ('--dimension=100',),
      '--dimension=100 is not the number of trainable parameters of the model, 650',
    ),
    (('--noise_multiplier=2',), 'skellam with noise_site=clients needs bits'),
    (
      ('--max_clients=3', '--min_clients=2'),
      '--max_clients=3, and rounds ask for 4 clients',
    ),
    (
      ('--noise_multiplier=2', '--bits=16', '--packed_simulation'),
      'each client draws its share of skellam noise',
    ),
    (
      ('--noise_multiplier=2', '--bits=16', '--inner_aggregator=secure_sum'),
      'take secure_modular_sum, all others secure_sum',
    ),
  ],
  ids=lambda each: ' '.join(each) if isinstance(each, tuple) else None,
)
def test_numbers_that_do_not_fit_integer_noise_are_refused(arguments, message):
  with pytest.raises(ValueError, match='.') as refused:
    _settings(SKELLAM, *arguments)
  assert message in str(refused.value)


def test_a_grid_leaves_out_what_a_mechanism_has_no_use_for():
  of_integers = {'min_clients', 'max_clients', 'dimension', 'bits'}
  unused = grid.unused_by('gaussian')
  assert of_integers < unused and 'num_bands' in unused
  assert grid.unused_by('gaussian', 'clients') == unused - {'min_clients'}
  both = {'min_clients', 'server_noise_multiplier'}
  assert grid.unused_by('gaussian', 'clients_and_server') == unused - both
  assert not of_integers & grid.unused_by('skellam')
  assert 'num_bands' in grid.unused_by('skellam')
  # Without a mechanism, clipping is meant only if it is said.
  assert 'clip_norm' in grid.unused_by('none')
  assert {'clipping', 'clip_norm'} <= grid.unused_by('none', clipping='adaptive')
  clipped = grid.unused_by('none', clipping='fixed')
  assert not {'clipping', 'clip_norm', 'clip_order'} & clipped
