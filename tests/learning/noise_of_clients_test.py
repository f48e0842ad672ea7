"""Tests of `learning.train` with noise that clients add."""

import math
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import learning_curves

_ROUNDS = 6
_LIMITS = strategies.Participation(_ROUNDS, min_separation=3)
_LOCAL = accounting.Mechanism('gaussian', _LIMITS, 1.0, noise_site='local')
_SHARES = accounting.Mechanism(
  'gaussian', _LIMITS, 1.0, noise_site='clients', min_clients=3
)
_SKELLAM = accounting.Mechanism(
  'skellam', _LIMITS, 1.0, min_clients=3, dimension=2, bits=16
)
_OF_FOUR = accounting.Mechanism(
  'skellam', _LIMITS, 1.0, min_clients=3, dimension=4, bits=16
)
_BOTH = accounting.Mechanism(
  'gaussian',
  _LIMITS,
  1.0,
  noise_site='clients_and_server',
  server_noise_multiplier=2.0,
)
_SECRET = {'mechanism': _LOCAL, 'noise_seed': None}


_train = training_runs.train


def _entries(run_dir):
  return ledger_lib.read(str(run_dir / 'ledger.jsonl')).entries


def _checkpoint_files(run_dir):
  names = os.listdir(run_dir / 'checkpoints')
  return sorted(name for name in names if not name.endswith('.json'))


def _matches_last_ledger_line(result, run_dir):
  weights = tf.nest.flatten(result.weights)
  return ledger_lib.checksum_of(weights) == _entries(run_dir)[-1].result_checksum


@pytest.mark.slow
def test_killed_run_with_client_noise_releases_no_round_twice(tmp_path, capfd):
  # Clients add noise, and so does the server, whose key stays the same.
  run_dir, changes = tmp_path / 'run', {**_SECRET, 'mechanism': _BOTH}
  with pytest.raises(training_runs.Killed):
    _train(run_dir, test_metrics=training_runs.kill_in(4), **changes)
  before = (run_dir / 'ledger.jsonl').read_text()
  assert before.count('\n') == 4
  # The result of the fourth is on disk, and that of the third.
  assert _checkpoint_files(run_dir) == ['after_round_3', 'after_round_4']
  fourth = run_dir / 'checkpoints' / 'after_round_4'
  fourth.rename(tmp_path / 'fourth')
  with pytest.raises(ValueError, match='round 3 has a line.*another release'):
    _train(run_dir, test_metrics=training_runs.kill_in(-1), **changes)
  assert (run_dir / 'ledger.jsonl').read_text() == before
  (tmp_path / 'fourth').rename(fourth)
  result = _train(run_dir, test_metrics=training_runs.kill_in(-1), **changes)
  assert result.is_finished and result.epsilon == _BOTH.epsilon(1e-3)
  assert (run_dir / 'ledger.jsonl').read_text().startswith(before)
  assert [each.round for each in _entries(run_dir)] == list(range(_ROUNDS))
  assert _matches_last_ledger_line(result, run_dir)
  assert len(learning_curves.read(str(run_dir / 'metrics.csv'))) == _ROUNDS
  (tag,) = {each.noise_key_tag for each in _entries(run_dir)}
  assert tag
  assert '1 more were released' in capfd.readouterr().err
  assert not (run_dir / 'checkpoints').exists()


@pytest.mark.slow
def test_run_killed_before_ledger_line_resumes_from_stored_result(
  tmp_path, monkeypatch
):
  run_dir, append = tmp_path / 'run', ledger_lib.LedgerWriter.append
  lines_not_written = []

  def append_or_kill(writer, **line):
    if line['round'] == 2 and not lines_not_written:
      lines_not_written.append(line)
      raise training_runs.Killed
    return append(writer, **line)

  monkeypatch.setattr(ledger_lib.LedgerWriter, 'append', append_or_kill)
  with pytest.raises(training_runs.Killed):
    _train(run_dir, **_SECRET)
  assert len(_entries(run_dir)) == 2
  result = _train(run_dir, **_SECRET)
  third = _entries(run_dir)[2]
  assert third.result_checksum == lines_not_written[0]['result_checksum']
  assert result.is_finished and _matches_last_ledger_line(result, run_dir)


@pytest.mark.slow
def test_seeded_client_noise_is_identical_after_kill_and_resume(tmp_path):
  changes = {'mechanism': _SHARES}
  _train(tmp_path / 'straight', test_metrics=training_runs.kill_in(-1), **changes)
  with pytest.raises(training_runs.Killed):
    _train(tmp_path / 'run', test_metrics=training_runs.kill_in(3), **changes)
  assert _checkpoint_files(tmp_path / 'run') == ['after_round_0']
  result = _train(tmp_path / 'run', test_metrics=training_runs.kill_in(-1), **changes)
  assert result.epsilon == _SHARES.epsilon(1e-3)
  resumed = training_runs.results(tmp_path / 'run')
  assert resumed == training_runs.results(tmp_path / 'straight')


@pytest.mark.slow
def test_coordinate_bound_limits_model_change_without_noise(tmp_path):
  result = _train(
    tmp_path / 'run',
    mechanism=None,
    clip_norm=5.0,
    clip_order=1,
    num_rounds=2,
    noise_seed=None,
    packed_simulation=True,
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
    test_data=None,
    coordinate_bound=0.01,
  )
  assert [each.clip_norm for each in _entries(tmp_path / 'run')] == [5.0, 5.0]
  assert result.epsilon == math.inf
  change = np.max(np.abs(result.weights.trainable[0]))
  # Each of two rounds changes a weight by the bound at most, which all updates exceed.
  assert 0.01 < change <= 0.02 * (1 + 1e-6)


_DROPPING = {'clients_per_round': None, 'schedule': training_runs.schedule(_ROUNDS)}


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'mechanism': _SKELLAM}, 'trained one by one: each client draws its share'),
    (
      {'mechanism': _OF_FOUR, 'noise_seed': None},
      'planned for dimension=4, and values here have 2 numbers',
    ),
    (
      {'mechanism': _LOCAL, 'packed_simulation': False},
      'trained one by one: run.packed_simulation=False. Leave one',
    ),
    (
      {'mechanism': _SKELLAM, 'noise_seed': None, 'packed_simulation': True},
      'run.packed_simulation=True is for packs of clients, and these',
    ),
    ({'mechanism': _SHARES, **_DROPPING}, 'Give the schedule reporting_goal=3 or more'),
    (
      {'mechanism': _LOCAL, **_DROPPING},
      '(reporting_goal=2) do not go with noise_site=local',
    ),
    (
      {'mechanism': _SKELLAM, 'clients_per_round': 4, 'noise_seed': None},
      'max_clients=4 or more',
    ),
    (
      {'mechanism': _SHARES, 'clients_per_round': 2},
      'round 0 is of 2 clients, but min_clients is 3',
    ),
    (
      {'mechanism': _LOCAL, 'simulated_cohort_scale': 2.0},
      'scale=2 does not go with noise_site=local',
    ),
    (
      {'mechanism': _LOCAL, 'not_private_signal_to_noise': True},
      'not_private_signal_to_noise=True is for noise of the server',
    ),
    (
      {'inner_aggregator': 'secure_modular_sum'},
      'server.inner_aggregator=secure_modular_sum does not go with this',
    ),
    (
      {'mechanism': _SKELLAM, 'inner_aggregator': 'secure_sum', 'noise_seed': None},
      'server.inner_aggregator=secure_sum does not go with this',
    ),
    ({'clip_order': 1.0}, 'server.clip_order=1.0 is for a clip_norm without a mech'),
    ({'target_quantile': 0.9}, 'server.target_quantile=0.9 is for adaptive clipping'),
  ],
)
def test_train_refuses_incompatible_arguments_before_writing_files(
  changes, message, tmp_path
):
  with pytest.raises(ValueError, match='.') as error:
    _train(tmp_path / 'run', **changes)
  assert message in str(error.value)
  assert not os.path.exists(tmp_path / 'run')
