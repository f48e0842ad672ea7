"""Simulations with `--nbafl`: noise by its formulas, and a report of both."""

import html
import json
import math
import re

import pytest
from absl import flags as absl_flags

from experiments import settings
from experiments import simulate
from tests import executing
from tff_dp_aggregators.accounting import nbafl
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.base import rounding

ALL = ('--nbafl', '--num_clients=24', '--clients_per_round=24', '--num_rounds=3')
TARGET = ('--target_epsilon=0.8', '--target_delta=1e-5', '--clip_norm=0.5')
SIZES = ('--num_exposures=1', '--min_examples=5')
C = math.sqrt(2 * math.log(1.25 / 1e-5))


def _settings(*arguments):
  values = absl_flags.FlagValues()
  settings.define(values)
  values(['simulate', *arguments])
  return settings.from_flags(values)


def _run(run_dir, *arguments):
  return executing.execute(simulate, *arguments, f'--run_dir={run_dir}')


def _json(path):
  return json.loads(path.read_text())


def _others(report):
  return {
    (each['against'], each['adjacency']): each['epsilon']
    for each in report['other_guarantees']
  }


def _epsilon(noise_multiplier, rounds):
  mu = math.sqrt(rounds) / noise_multiplier
  return pytest.approx(gaussian.epsilon_of(mu, 1e-5), rel=1e-9)


@pytest.fixture(scope='module', name='run_dir')
def _run_dir(tmp_path_factory):
  """A run of 24 clients, in 40 rounds of which each is seen twice."""
  run_dir = tmp_path_factory.mktemp('nbafl') / 'run'
  many = ('--num_rounds=40', '--num_exposures=2', '--evaluate_every=40')
  result = _run(run_dir, *ALL[:3], *TARGET, '--min_examples=5', *many)
  assert result.returncode == 0, result.stderr
  return run_dir


# By the formulas: c L 2 / (m epsilon), and 2 c sqrt(T^2 - L^2 N) / (m epsilon).
CLIENT = C * 2 * 2 / (5 * 0.8)
SERVER = 2 * C * math.sqrt(40**2 - 2**2 * 24) / (5 * 0.8)


def test_the_run_has_the_noise_of_the_formulas(run_dir):
  config = _json(run_dir / 'config.json')
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
    'num_rounds': 40,
    'num_clients': 24,
    'min_examples': 5,
    'clients_per_round': 24,
    'calibration': 'published',
  }
  assert config['privacy']['target_epsilon'] is None  # Of an example it was.
  entries = ledger_lib.read(str(run_dir / 'ledger.jsonl')).entries
  assert len(entries) == 40
  assert {each.noise_multiplier for each in entries} == {stored['noise_multiplier']}


def test_the_report_has_what_is_claimed_beside_what_holds(run_dir):
  report = _json(run_dir / 'report.json')
  assert report['guarantee']['epsilon'] == _epsilon(CLIENT, 40)
  both = math.sqrt(24 * CLIENT**2 + SERVER**2)
  others = _others(report)
  assert others['released', 'zero_out'] == _epsilon(both, 40)
  assert others['released', 'replace_one'] == _epsilon(both / 2, 40)
  found = [
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
  assert found == [
    ('uplink', 'example', 'replace_one', 1, 0.4, _epsilon(CLIENT * 2.5, 1)),
    ('uplink', 'example', 'replace_one', 2, 0.8, _epsilon(CLIENT * 2.5, 2)),
    ('uplink', 'client', 'zero_out', 2, None, _epsilon(CLIENT, 2)),
    ('uplink', 'client', 'replace_one', 2, None, _epsilon(CLIENT / 2, 2)),
    ('uplink', 'client', 'zero_out', 40, None, _epsilon(CLIENT, 40)),
    ('downlink', 'example', 'replace_one', 40, 0.8, _epsilon(both * 2.5, 40)),
    ('downlink', 'client', 'zero_out', 40, None, _epsilon(both, 40)),
    ('downlink', 'client', 'replace_one', 40, None, _epsilon(both / 2, 40)),
  ]
  begins_with = rounding.up(gaussian.epsilon_of(math.sqrt(40) / both, 1e-5))
  for form in ('md', 'html'):
    text = (run_dir / f'report.{form}').read_text()
    text = ' '.join(html.unescape(re.sub('<[^>]*>', '', text)).split())
    asked = text.index('NbAFL was asked for epsilon = 0.8 at delta = 1e-05, which')
    assert asked < text.index('In plain words')
    assert f'begins with epsilon = {begins_with}, of a client as well' in text
    assert 'NbAFL: what is claimed, and what holds' in text
    assert 'not provided for: no examples were clipped' in text
    assert 'of an example holds what holds of its client' in text
    assert 'holds if no more uploads are seen, and no models' in text


def test_the_report_is_made_again_and_verified(run_dir):
  said = executing.execute(report_program, f'--run_dir={run_dir}')
  assert said.returncode == 0, said.stderr
  assert said.stdout == (run_dir / 'report.md').read_text()
  verified = executing.execute(report_program, f'--verify={run_dir}/report.json')
  assert verified.returncode == 0, verified.stdout


def _with_config(run_dir, copy, change):
  """A copy of the run, with something else in its configuration."""
  copy.mkdir()
  for each in run_dir.iterdir():
    if each.is_file():
      (copy / each.name).write_bytes(each.read_bytes())
  config = _json(copy / 'config.json')
  change(config)
  (copy / 'config.json').write_text(json.dumps(config))
  return executing.execute(report_program, f'--run_dir={copy}')


def _set(*path):
  *within, name, value = path

  def change(config):
    for each in within:
      config = config[each]
    config[name] = value

  return change


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (_set('nbafl', 'epsilon', 0.7), 'noise_multiplier is'),
    (_set('nbafl', 'clip_norm', 0.6), 'clip_norm is 0.5, and the plan has 0.6'),
    (_set('nbafl', 'delta', 1e-6), 'the run is not the one that NbAFL plans'),
    (
      _set('nbafl', 'num_clients', 25),
      'has num_clients=24, and NbAFL is planned with 25',
    ),
    (_set('nbafl', 'epsilon', 1.0), 'holds for epsilon < 1 only'),
    (_set('nbafl', 'rounds', 3), 'the stored plan of NbAFL is incomplete'),
    (
      _set('training', 'schedule', 'reporting_goal', 3),
      'the schedule has reporting_goal=3',
    ),
    (
      _set('privacy', 'mechanism', 'server_noise_multiplier', 1.0),
      'server_noise_multiplier is 1.0, and the plan has',
    ),
  ],
)
def test_a_plan_that_is_not_the_run_s_is_refused(change, message, run_dir, tmp_path):
  said = _with_config(run_dir, tmp_path / 'copy', change)
  assert said.returncode == 2
  assert message in said.stderr


def test_a_changed_row_is_found(run_dir, tmp_path):
  report = _json(run_dir / 'report.json')
  report['nbafl']['guarantees'][5]['epsilon'] *= 1 - 1e-8
  (tmp_path / 'report.json').write_text(json.dumps(report))
  verified = executing.execute(report_program, f'--verify={tmp_path}/report.json')
  assert verified.returncode == 1
  assert 'nbafl.guarantees[5].epsilon is' in verified.stdout


def test_without_noise_of_the_server_the_site_is_local():
  chosen = _settings(*ALL, *TARGET, '--min_examples=5')
  mechanism = chosen.privacy.mechanism
  assert chosen.name == 'digits-nbafl'  # Which names its directory.
  assert chosen.privacy.nbafl.num_exposures == 3  # A client may be in every round.
  assert mechanism.noise_site == 'local' and mechanism.server_noise_multiplier is None
  assert mechanism.noise_multiplier == pytest.approx(C * 3 * 2 / (5 * 0.8), rel=1e-12)
  assert chosen.flags['noise_site'] == 'local' and chosen.flags['num_exposures'] == 3


def test_from_epsilon_1_on_the_exact_noise_is_offered_and_found():
  with pytest.raises(ValueError, match="calibration='exact' has the least"):
    _settings(*ALL, *TARGET[1:], *SIZES, '--target_epsilon=4')
  chosen = _settings(
    *ALL, *TARGET[1:], *SIZES, '--target_epsilon=4', '--calibration=exact'
  )
  plan, mechanism = chosen.privacy.nbafl, chosen.privacy.mechanism
  (exposure,) = (
    each
    for each in plan.guarantees()
    if (each.seen, each.unit) == ('uplink', 'example')
  )
  assert 4 * (1 - 1e-6) < exposure.epsilon <= 4
  # 2 C / m is what one example is said to change an upload by.
  one = gaussian.epsilon_of(2 / 5 / mechanism.noise_multiplier, 1e-5)
  assert one == pytest.approx(4, rel=1e-6)


@pytest.mark.slow
def test_clients_that_are_drawn_are_drawn_from_all_in_each_round(tmp_path):
  flags = ('--nbafl', '--num_clients=24', '--clients_per_round=4', '--num_rounds=30')
  sizes = ('--num_exposures=1', '--min_examples=5', '--evaluate_every=30')
  result = _run(tmp_path / 'run', *flags, *TARGET, *sizes)
  assert result.returncode == 0, result.stderr
  schedule = _json(tmp_path / 'run' / 'config.json')['training']['schedule']
  assert schedule['schedule'] == 'random_eligible'
  report = _json(tmp_path / 'run' / 'report.json')
  plan = nbafl.Nbafl(0.8, 1e-5, 0.5, 1, 30, 24, 5, clients_per_round=4)
  rows = report['nbafl']['guarantees']
  downlink = [each for each in rows if each['seen'] == 'downlink']
  assert [each['epsilon'] for each in downlink] == pytest.approx(
    [each.epsilon for each in plan.guarantees() if each.seen == 'downlink'], rel=1e-9
  )
  text = (tmp_path / 'run' / 'report.md').read_text()
  assert 'holds if nobody learns who was drawn, nor the seed of that' in text
  # What rests on no draw is not below it.
  released = _others(report)['released', 'replace_one']
  assert released > downlink[-1]['epsilon']
  verified = executing.execute(report_program, f'--verify={tmp_path}/run/report.json')
  assert verified.returncode == 0, verified.stdout


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('--num_exposures=1',), '--nbafl needs --min_examples as well'),
    ((*SIZES, '--num_exposures=4'), 'num_exposures must be at most num_rounds'),
    ((*SIZES, '--mechanism=tree'), '--mechanism=tree does not go with --nbafl: mech'),
    ((*SIZES, '--simulated_cohort_scale=2'), '--simulated_cohort_scale=2.0 does not'),
    ((*SIZES, '--min_separation=2'), 'are drawn at random anew for each'),
    ((*SIZES, '--dropout_probability=0.1'), 'and all report'),
  ],
  ids=lambda each: ' '.join(each) if isinstance(each, tuple) else None,
)
def test_what_contradicts_the_formulas_is_refused(arguments, message):
  with pytest.raises(ValueError, match='.') as refused:
    _settings(*ALL, *TARGET, *arguments)
  assert message in str(refused.value)


def test_flags_of_nbafl_without_it_or_what_it_needs_are_refused():
  for flag in ('--num_exposures=2', '--min_examples=5', '--calibration=exact'):
    with pytest.raises(ValueError, match='is for --nbafl'):
      _settings('--num_clients=24', '--clients_per_round=2', flag)
  with pytest.raises(ValueError, match='--nbafl does not go with --mechanism=none'):
    _settings('--nbafl', '--mechanism=none')
  with pytest.raises(ValueError, match='--nbafl needs --target_epsilon as well'):
    _settings(*ALL, *SIZES)


def test_what_is_so_anyway_may_be_said():
  said = ('--mechanism=gaussian', '--clipping=fixed', '--min_separation=1')
  found = _settings(*ALL, *TARGET, *SIZES, *said)
  assert found.privacy == _settings(*ALL, *TARGET, *SIZES).privacy
