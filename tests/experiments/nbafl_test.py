"""`--nbafl`: noise by the formulas of NbAFL, and a report of claims and guarantees."""

import json
import math

import pytest

from tests import executing
from tests.experiments import simulations
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.base import rounding

ALL = ('--nbafl', '--num_clients=24', '--clients_per_round=24', '--num_rounds=3')
TARGET = ('--target_epsilon=0.8', '--target_delta=1e-5', '--clip_norm=0.5')
SIZES = ('--num_exposures=1', '--min_examples=5')
C = math.sqrt(2 * math.log(1.25 / 1e-5))


def _other_epsilons(report):
  return {
    (each['against'], each['adjacency']): each['epsilon']
    for each in report['other_guarantees']
  }


def _epsilon(noise_multiplier, rounds):
  mu = math.sqrt(rounds) / noise_multiplier
  return pytest.approx(gaussian.epsilon_of(mu, 1e-5), rel=1e-9)


@pytest.fixture(scope='module', name='run_dir')
def _run_dir(tmp_path_factory):
  """Returns a run of 12 rounds with 24 clients, each of which is seen twice."""
  run_dir = tmp_path_factory.mktemp('nbafl') / 'run'
  many = ('--num_rounds=12', '--num_exposures=2', '--evaluate_every=12')
  simulations.run(run_dir, *ALL[:3], *TARGET, '--min_examples=5', *many)
  return run_dir


# The formulas are c L 2 / (m epsilon), and 2 c sqrt(T^2 - L^2 N) / (m epsilon).
CLIENT = C * 2 * 2 / (5 * 0.8)
SERVER = 2 * C * math.sqrt(12**2 - 2**2 * 24) / (5 * 0.8)


@pytest.mark.slow
def test_config_has_the_noise_of_the_formulas(run_dir):
  config = simulations.read(run_dir, 'config')
  stored = config['privacy']['mechanism']
  assert stored['name'] == 'gaussian' and stored['min_clients'] == 24
  assert stored['noise_site'] == 'clients_and_server'
  assert stored['noise_multiplier'] == pytest.approx(CLIENT, rel=1e-12)
  assert stored['server_noise_multiplier'] == pytest.approx(SERVER, rel=1e-12)
  assert stored['participation']['min_separation'] == 1
  assert config['nbafl'] == {
    'epsilon': 0.8,
    'delta': 1e-5,
    'clip_norm': 0.5,
    'num_exposures': 2,
    'num_rounds': 12,
    'num_clients': 24,
    'min_examples': 5,
    'clients_per_round': 24,
    'calibration': 'published',
  }
  assert (
    config['privacy']['target_epsilon'] is None
  )  # NbAFL's target is for one example.
  entries = ledger_lib.read(str(run_dir / 'ledger.jsonl')).entries
  assert len(entries) == 12
  assert {each.noise_multiplier for each in entries} == {stored['noise_multiplier']}


def test_report_has_claimed_and_exact_epsilons(run_dir):
  report = simulations.read(run_dir, 'report')
  assert report['guarantee']['epsilon'] == _epsilon(CLIENT, 12)
  both = math.sqrt(24 * CLIENT**2 + SERVER**2)
  others = _other_epsilons(report)
  assert others['released', 'zero_out'] == _epsilon(both, 12)
  assert others['released', 'replace_one'] == _epsilon(both / 2, 12)
  guarantees = [
    (
      each['seen'],
      each['unit'],
      each['adjacency'],
      each['releases'],
      each['claimed_epsilon'],
      each['epsilon'],
    )
    for each in report['nbafl']['guarantees']
  ]
  assert guarantees == [
    ('uplink', 'example', 'replace_one', 1, 0.4, _epsilon(CLIENT * 2.5, 1)),
    ('uplink', 'example', 'replace_one', 2, 0.8, _epsilon(CLIENT * 2.5, 2)),
    ('uplink', 'client', 'zero_out', 2, None, _epsilon(CLIENT, 2)),
    ('uplink', 'client', 'replace_one', 2, None, _epsilon(CLIENT / 2, 2)),
    ('uplink', 'client', 'zero_out', 12, None, _epsilon(CLIENT, 12)),
    ('downlink', 'example', 'replace_one', 12, 0.8, _epsilon(both * 2.5, 12)),
    ('downlink', 'client', 'zero_out', 12, None, _epsilon(both, 12)),
    ('downlink', 'client', 'replace_one', 12, None, _epsilon(both / 2, 12)),
  ]
  first_epsilon = rounding.up(gaussian.epsilon_of(math.sqrt(12) / both, 1e-5))
  text = ' '.join((run_dir / 'report.md').read_text().split())
  claim = text.index('NbAFL was asked for epsilon = 0.8 at delta = 1e-05, which')
  assert claim < text.index('In plain words')
  assert f'begins with epsilon = {first_epsilon}, of a client as well' in text


def test_report_is_reproduced_and_verified(run_dir):
  result = executing.execute(report_program, f'--run_dir={run_dir}')
  assert result.returncode == 0, result.stderr
  assert result.stdout == (run_dir / 'report.md').read_text()
  assert simulations.verifies(run_dir / 'report.json')[0]


@pytest.mark.parametrize(
  ('path', 'value', 'message'),
  [
    ('nbafl.epsilon', 0.7, 'noise_multiplier='),
    ('nbafl.num_clients', 25, 'has num_clients=24, and NbAFL is planned with 25'),
    ('nbafl.rounds', 3, "unexpected keyword argument 'rounds'"),
    ('training.schedule.reporting_goal', 3, 'the schedule has reporting_goal=3'),
    ('privacy.mechanism.server_noise_multiplier', 1.0, 'server_noise_multiplier='),
  ],
)
def test_report_refuses_config_that_contradicts_the_plan(
  path, value, message, run_dir, tmp_path
):
  for each in run_dir.iterdir():
    if each.is_file():
      (tmp_path / each.name).write_bytes(each.read_bytes())
  config = part = simulations.read(tmp_path, 'config')
  *parents, name = path.split('.')
  for each in parents:
    part = part[each]
  part[name] = value
  (tmp_path / 'config.json').write_text(json.dumps(config))
  result = executing.execute(report_program, f'--run_dir={tmp_path}')
  assert result.returncode == 2
  assert message in result.stderr


def test_noise_site_is_local_without_server_noise():
  chosen = simulations.settings_of(*ALL, *TARGET, '--min_examples=5')
  mechanism = chosen.privacy.mechanism
  assert chosen.name == 'digits-nbafl'  # This names the directory.
  assert chosen.privacy.nbafl.num_exposures == 3  # A client may be in every round.
  assert mechanism.noise_site == 'local' and mechanism.server_noise_multiplier is None
  assert mechanism.noise_multiplier == pytest.approx(C * 3 * 2 / (5 * 0.8), rel=1e-12)
  assert chosen.flags['noise_site'] == 'local' and chosen.flags['num_exposures'] == 3


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('--num_exposures=1',), "--nbafl needs .*'min_examples'"),
    ((*SIZES, '--mechanism=tree'), '--mechanism does not go with --nbafl: noise'),
    ((*SIZES, '--simulated_cohort_scale=2'), '--simulated_cohort_scale does not'),
    ((*SIZES, '--min_separation=2'), '--min_separation does not go with --nbafl'),
  ],
  ids=lambda each: ' '.join(each) if isinstance(each, tuple) else None,
)
def test_flags_that_contradict_nbafl_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    simulations.settings_of(*ALL, *TARGET, *arguments)
