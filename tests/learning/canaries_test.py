"""Tests of runs with canaries: an attacker's bounds, and what the report states."""

import json
import shutil

import numpy as np
import pytest

from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import canaries
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import verification
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.queries import grid

_SIZE = 64  # Inputs, and outputs; the model has _SIZE**2 weights.
_CLIENTS, _CANARIES, _ROUNDS = 40, 400, 4
_ALL = _CLIENTS + _CANARIES
_LIMITS = strategies.Participation(_ROUNDS, min_separation=2)
_DELTA = 1e-5


def _clients():
  rng = np.random.default_rng(1)
  return {
    f'client {i}': tuple(rng.normal(size=[2, 2, _SIZE]).astype(np.float32))
    for i in range(_CLIENTS)
  }


_BANDED = accounting.Mechanism('banded', _LIMITS, noise_multiplier=0.8)


def _train(run_dir, mechanism=_BANDED, **changes):
  """Trains; half of all clients and canaries take part, each in every second round."""
  changes = {
    'model': training_runs.model(inputs=_SIZE, outputs=_SIZE),
    'clients': _clients(),
    'mechanism': mechanism,
    'delta': _DELTA,
    'clip_norm': 0.5,
    'clients_per_round': _ALL // 2,
    'test_data': None,
    'audit_canaries': _CANARIES,
    **changes,
  }
  return training_runs.train(run_dir, **changes)


@pytest.fixture(scope='module')
def audited(tmp_path_factory):
  run_dir = tmp_path_factory.mktemp('runs') / 'audited'
  return run_dir, _train(run_dir)


def _released(run_dir):
  """Returns what each round released along each direction, and who took part in it."""
  rows = learning_curves.read(str(run_dir / 'canaries.csv'))
  packed_bits = [
    np.frombuffer(bytes.fromhex(row.pop('took_part')), 'u1') for row in rows
  ]
  assert [row.pop('round') for row in rows] == ['0', '1', '2', '3']
  released = np.array([[float(each) for each in row.values()] for row in rows])
  count = released.shape[1]
  took_part = [np.unpackbits(bits, count=count) for bits in packed_bits]
  return released, np.array(took_part, bool)


def _canary_files(run_dir):
  return [(run_dir / name).read_bytes() for name in ('canaries.csv', canaries.FILE)]


def test_canary_bounds_are_positive_and_below_epsilon(audited):
  run_dir, result = audited
  stated = result.statement['canaries']
  assert stated['num_canaries'] == _CANARIES and stated['confidence'] == 0.95
  assert 150 < stated['num_inserted'] < 250
  one_run, fdp = stated['bounds']
  assert one_run['method'] == 'one_run' and fdp['curve'] == 'gdp'
  assert 1 < one_run['epsilon'] < fdp['epsilon'] < result.epsilon
  assert fdp['epsilon'] > 0.25 * result.epsilon
  assert 0.5 * result.epsilon < stated['estimate'] < 1.2 * result.epsilon
  assert not any(each['contradicts'] for each in stated['bounds'])
  text = (run_dir / 'report.md').read_text('utf-8')
  assert '## What an attacker with canaries reached' in text
  assert 'CONTRADICTED' not in text
  page = (run_dir / 'share' / 'report.html').read_text('utf-8')
  assert 'What an attacker with canaries reached' in page


def test_canaries_count_and_take_part_as_clients(audited):
  run_dir, _ = audited
  config = json.loads((run_dir / 'config.json').read_text('utf-8'))
  schedule = config['training']['schedule']
  assert schedule['num_clients'] == _ALL
  lines = (run_dir / 'ledger.jsonl').read_text('utf-8').splitlines()
  assert {json.loads(line)['cohort_reported'] for line in lines} == {_ALL // 2}
  _, took_part = _released(run_dir)
  # Each canary has to take part in one of two consecutive rounds.
  pairs = took_part.reshape(-1, 2, _CANARIES).sum(axis=1)
  assert (pairs == 1).all()


def test_inserted_canaries_add_one_clip_norm_and_others_nothing(audited):
  run_dir, _ = audited
  released, took_part = _released(run_dir)
  expected_canaries = packed.Canaries(_CANARIES, 7)
  sent = took_part & expected_canaries.inserted
  # Each has noise of about a clip norm, and some from the directions of others.
  for mask, expected in ((sent, 1), (~sent, 0)):
    error = 7 * released[mask].std() / np.sqrt(mask.sum())
    assert error < 0.5
    assert released[mask].mean() == pytest.approx(expected, abs=error)
  config = json.loads((run_dir / 'config.json').read_text('utf-8'))
  directions = expected_canaries.directions(_SIZE**2)
  np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, rtol=1e-5)
  assert config['canaries'] == expected_canaries.to_json()
  assert packed.Canaries(_CANARIES, 8).to_json() != config['canaries']


@pytest.mark.slow
def test_canary_bounds_are_below_epsilon_with_sampling(tmp_path):
  scheme = sampling.PoissonSampling(_ROUNDS, sampling_probability=0.5)
  mechanism = accounting.Mechanism('gaussian', scheme, noise_multiplier=0.5)
  result = _train(tmp_path / 'run', mechanism)
  one_run, fdp = result.statement['canaries']['bounds']
  assert fdp['curve'] == 'any'
  assert 0.5 < one_run['epsilon'] < result.epsilon
  assert 0.5 < fdp['epsilon'] < result.epsilon


def _reduce_noise(monkeypatch):
  add = grid.add_noise
  monkeypatch.setattr(
    grid, 'add_noise', lambda sums, noise, stddev: add(sums, noise, stddev / 4)
  )


def _weaken_clipping(monkeypatch):
  sum_clipped = grid.sum_clipped
  monkeypatch.setattr(
    grid,
    'sum_clipped',
    lambda stacked, clip_norm, steps: sum_clipped(stacked, 3 * clip_norm, steps),
  )


@pytest.mark.parametrize(
  'break_mechanism',
  [_weaken_clipping, pytest.param(_reduce_noise, marks=pytest.mark.slow)],
)
def test_report_contradicts_guarantee_of_broken_mechanism(
  break_mechanism, tmp_path, monkeypatch
):
  break_mechanism(monkeypatch)
  mechanism = accounting.Mechanism('gaussian', _LIMITS, noise_multiplier=1.5)
  result = _train(tmp_path / 'run', mechanism)
  stated = result.statement['canaries']
  assert max(each['epsilon'] for each in stated['bounds']) > result.epsilon
  assert result.statement['warnings'][0].startswith('The guarantee is CONTRADICTED.')
  lines = (tmp_path / 'run' / 'report.md').read_text('utf-8').splitlines()
  assert lines[0] == '# Privacy report'
  assert lines[2].startswith('**The guarantee is CONTRADICTED.')
  assert 'more than is claimed' in '\n'.join(lines)
  assert verification.verify(str(tmp_path / 'run' / 'report.json')).ok


@pytest.mark.slow
def test_resumed_run_on_cluster_has_the_same_canaries(audited, tmp_path):
  run_dir = tmp_path / 'run'
  test_data = tuple(each[:1] for each in _clients()['client 0'])
  arguments = {'checkpoint_seconds': 0.0, 'test_data': test_data}
  with pytest.raises(training_runs.Killed):
    _train(run_dir, test_metrics=training_runs.kill_in(3), **arguments)
  metrics = training_runs.kill_in(0)
  result = _train(run_dir, test_metrics=metrics, scheduler='local:2', **arguments)
  uninterrupted, expected = audited
  assert _canary_files(run_dir) == _canary_files(uninterrupted)
  assert result.statement['canaries'] == expected.statement['canaries']


def test_verify_recomputes_canary_bounds_from_shared_files(audited, tmp_path):
  path, report = training_runs.shared_report(audited[0], tmp_path / 'share')
  assert not (tmp_path / 'share' / 'canaries.csv').exists()
  assert verification.verify(str(path)).ok
  for change in (
    {'num_inserted': report['canaries']['num_inserted'] + 1},
    {'bounds': report['canaries']['bounds'][:1]},
  ):
    changed = {**report, 'canaries': {**report['canaries'], **change}}
    path.write_text(json.dumps(changed), 'utf-8')
    assert not verification.verify(str(path)).ok
  without = {name: each for name, each in report.items() if name != 'canaries'}
  path.write_text(json.dumps(without), 'utf-8')
  assert not verification.verify(str(path)).ok


@pytest.mark.parametrize('name', ['config.json', canaries.FILE])
def test_verify_finds_changed_coins_and_scores(name, audited, tmp_path):
  path, _ = training_runs.shared_report(audited[0], tmp_path / 'share')
  changed = tmp_path / 'share' / name
  text = changed.read_text('utf-8')
  if name == canaries.FILE:
    text = text.replace(str(json.loads(text)['scores'][0]), '1.5', 1)
  else:
    coins = json.loads(text)['canaries']['inserted']
    text = text.replace(coins, coins[1:] + coins[:1])
  changed.write_text(text, 'utf-8')
  result = verification.verify(str(path))
  assert not result.ok and (name in result.text or 'sha256' in result.text)


def test_report_without_canary_scores_is_refused(audited, tmp_path):
  shutil.copytree(audited[0], tmp_path / 'run')
  (tmp_path / 'run' / canaries.FILE).unlink()
  with pytest.raises(FileNotFoundError, match='canaries.json'):
    sources.from_run_dir(str(tmp_path / 'run'))


def test_resuming_with_another_number_of_canaries_is_refused(audited):
  with pytest.raises(ValueError, match='canaries.num_canaries: 400 then, 401 now'):
    _train(audited[0], audit_canaries=_CANARIES + 1)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'mechanism': None, 'num_rounds': 2, 'schedule': None}, 'noise of the server'),
    ({'noise_site': 'local'}, 'noise of the server'),
    ({'name': 'laplace'}, 'noise of the server'),
    ({'clipped_count_stddev': 5.0}, 'adaptive clipping'),
    ({'simulated_cohort_scale': 2.0}, 'larger cohort'),
    ({'zeroing_norm': 3.0}, 'zeroing_norm'),
    ({'coordinate_bound': 3.0}, 'coordinate_bound'),
    ({'packed_simulation': False}, 'one by one'),
    ({'audit_canaries': 200_000}, '131072'),
    ({'audit_confidence': 0.4}, 'audit_confidence'),
  ],
  ids=str,
)
def test_arguments_that_canaries_exclude_are_refused(changes, message, tmp_path):
  mechanism_options = ('name', 'noise_site', 'clipped_count_stddev')
  options = {key: changes.pop(key) for key in mechanism_options if key in changes}
  arguments = {'name': 'gaussian', 'noise_multiplier': 8.0, **options}
  mechanism = accounting.Mechanism(participation=_LIMITS, **arguments)
  changes = {'mechanism': mechanism, 'noise_seed': None, **changes}
  with pytest.raises((TypeError, ValueError), match=message):
    _train(tmp_path / 'run', **{'clients_per_round': 30, **changes})
  assert not (tmp_path / 'run').exists()


def test_report_states_bound_above_epsilon_of_completed_rounds(audited):
  report = json.loads((audited[0] / 'report.json').read_text('utf-8'))
  stopped = {'rounds_completed': 2, 'rounds_planned': 3, 'rounds_fixed_by': None}
  report['stopped'] = {**stopped, 'epsilon_completed': 0.5, 'epsilon_planned': 99.0}
  text = rendering.render(report, 'markdown')
  assert 'A bound is above 0.5000, epsilon of the rounds that ran' in text
