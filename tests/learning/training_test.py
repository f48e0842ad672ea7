"""Tests of `learning.train`, from clients to a report, and of resumed runs."""

import asyncio
import dataclasses
import gc
import json
import os
import shutil
import threading
import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from tests import executing
from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import learning
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.accounting.reports import verification
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.runs import run_directory

FILES = {
  '.lock',
  'architecture',
  'config.json',
  'events',
  'ledger.jsonl',
  'metrics.csv',
  'model.npz',
  'private.json',
  'report.html',
  'report.json',
  'report.md',
  'strategy.npz',
  'share',
}


_train = training_runs.train
# Some attempts at its rounds are aborted.
_SCHEDULE = training_runs.schedule()
_SECRET = {'schedule': _SCHEDULE, 'noise_seed': None, 'checkpoint_seconds': 0.0}


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory):
  """Returns a run with secret noise; beside it is a copy as if killed in round 5."""
  run_dir = tmp_path_factory.mktemp('runs') / 'straight'

  def copy():
    shutil.copytree(run_dir, run_dir.parent / 'stopped')

  async def train_in_event_loop():
    return _train(run_dir, test_metrics=training_runs.act_in(6, copy), **_SECRET)

  return run_dir, asyncio.run(train_in_event_loop())


@pytest.mark.optimized_graphs
def test_train_improves_the_model_and_writes_its_files(uninterrupted):
  run_dir, result = uninterrupted
  assert set(os.listdir(run_dir)) == FILES
  assert result.is_finished and result.rounds == 12
  assert 'epsilon=' in repr(result) and len(repr(result)) < 1000
  mechanism = training_runs.arguments('')['mechanism']
  assert result.epsilon == pytest.approx(mechanism.epsilon(1e-3), rel=1e-9)
  assert result.metrics['epsilon'] == pytest.approx(result.epsilon, rel=1e-9)
  rows = training_runs.results(run_dir)['metrics']
  assert float(rows[-1]['test_loss']) < float(rows[0]['test_loss'])
  with np.load(run_dir / 'model.npz') as arrays:
    np.testing.assert_array_equal(arrays['trainable_0'], result.weights.trainable[0])
  report = json.loads((run_dir / 'report.json').read_text())
  assert report == result.statement
  assert report['run']['rounds_completed'] == 12
  assert 'RandomEligible' in report['participation']['enforced_by']


class _Killed(BaseException):
  pass


def test_run_killed_while_it_removed_data_or_key_finishes_later(tmp_path, monkeypatch):
  run_dir, rmtree = tmp_path / 'run', shutil.rmtree
  left = ['offsets.bin', 'original.json']

  def remove_a_file_and_die(path, **kwargs):
    for name in left:
      if os.path.exists(os.path.join(path, name)):
        left.remove(name)
        os.unlink(os.path.join(path, name))
        raise _Killed
    rmtree(path, **kwargs)

  with monkeypatch.context() as patched:
    patched.setattr(shutil, 'rmtree', remove_a_file_and_die)
    while left:
      with pytest.raises(_Killed):
        _train(run_dir)
      assert not run_directory.looks_finished(str(run_dir))
  before = training_runs.results(run_dir)
  assert _train(run_dir).is_finished
  assert run_directory.looks_finished(str(run_dir))
  assert set(os.listdir(run_dir)) == FILES
  assert training_runs.results(run_dir) == before


def test_html_report_has_learning_curves_unless_shared(uninterrupted):
  run_dir, _ = uninterrupted
  page = (run_dir / 'report.html').read_text()
  assert 'Test loss against rounds' in page and 'Epsilon over the training' in page
  printed = executing.execute(report_program, f'--run_dir={run_dir}', '--format=html')
  assert printed.stdout == page
  # Test data may belong to clients, so the shared page leaves out their curves.
  shared = (run_dir / 'share' / 'report.html').read_text()
  assert 'Test loss' not in shared and 'Learning and privacy' not in shared
  assert 'Epsilon against delta' in shared


def test_metrics_have_the_noise_to_signal_ratio_of_each_round(uninterrupted):
  run_dir, _ = uninterrupted
  # Two parameters and three clients a round; clip norms cancel.
  rows = np.linalg.inv(training_runs.mechanism().strategy.materialize())
  expected = 0.1 * np.linalg.norm(rows, axis=1) * np.sqrt(2) / 3
  metrics = training_runs.results(run_dir)['metrics']
  actual = [float(row['noise_to_signal']) for row in metrics]
  np.testing.assert_allclose(actual, expected, rtol=1e-5)
  events = event_accumulator.EventAccumulator(str(run_dir / 'events'))
  events.Reload()
  displayed = [each.value for each in events.Scalars('noise_to_signal')]
  np.testing.assert_allclose(displayed, expected, rtol=1e-5)


def test_aborted_attempts_are_recorded_and_spend_no_epsilon(uninterrupted):
  run_dir, result = uninterrupted
  aborted = [len(_SCHEDULE.attempts(number)) - 1 for number in range(12)]
  record = ledger.read(str(run_dir / 'ledger.jsonl'))
  assert sum(aborted) and [
    (each.round, each.attempt, each.cohort_requested, each.cohort_reported)
    for each in record.aborted
  ] == [
    (number, index, 3, len(attempt.reporting))
    for number in range(12)
    for index, attempt in enumerate(_SCHEDULE.attempts(number)[:-1])
  ]
  assert {each.reporting_goal for each in record.aborted} == {_SCHEDULE.reporting_goal}
  assert all(len(each.event) == 1 for each in record.aborted)
  rows = training_runs.results(run_dir)['metrics']
  assert [int(row['attempts']) - 1 for row in rows] == aborted
  run = result.statement['run']
  assert run['aborted_attempts'] == {
    'count': sum(aborted),
    'rounds': [number for number in range(12) if aborted[number]],
    'epsilon': 0.0,
  }
  assert run['simulation'] == 'packed'
  assert run['reporting'] == {
    'dropout_rate': _SCHEDULE.dropouts.rate,
    'reporting_goal': _SCHEDULE.reporting_goal,
    'denominator': _SCHEDULE.clients_per_round,
  }
  assert 'aborted attempts' in (run_dir / 'report.md').read_text()
  verified = verification.verify(
    str(run_dir / 'report.json'), report_program.statement_of
  )
  assert verified.ok, verified.text


@pytest.mark.optimized_graphs
def test_resumed_run_matches_uninterrupted_run(uninterrupted, tmp_path, capfd):
  run_dir = tmp_path / 'run'
  shutil.copytree(uninterrupted[0].parent / 'stopped', run_dir)
  (run_dir / 'checkpoints' / 'original.json').unlink()  # As if the original were gone.
  result = _train(run_dir, test_metrics=training_runs.kill_in(0), **_SECRET)
  assert result.is_finished
  assert training_runs.results(run_dir) == training_runs.results(uninterrupted[0])
  assert set(os.listdir(run_dir)) == FILES
  events = event_accumulator.EventAccumulator(str(run_dir / 'events')).Reload()
  assert [each.step for each in events.Scalars('epsilon')] == list(range(12))
  stderr = capfd.readouterr().err
  # All updates and losses are finite, and nothing is said of that.
  assert 'finite' not in stderr.replace('infinite', '')
  assert _messages_of(stderr, run_dir)[0] == (
    'going on after round 5 of 12; 1 more were released and are run again.'
  )
  entries = ledger.read(str(run_dir / 'ledger.jsonl')).entries
  assert {entry.noise_source for entry in entries} == {ledger.SECRET}
  assert len({entry.noise_key_tag for entry in entries}) == 1


def _messages_of(stderr, run_dir):
  """Returns the messages about a run, without its directory."""
  start = f'{run_dir}: '
  return [
    line.removeprefix(start) for line in stderr.splitlines() if line.startswith(start)
  ]


def test_finished_run_is_not_trained_again(uninterrupted, capfd):
  run_dir, result = uninterrupted
  capfd.readouterr()
  folders = {'architecture', 'events', 'share'}
  before = {name: (run_dir / name).read_bytes() for name in FILES - folders}
  again = _train(run_dir, test_metrics=training_runs.kill_in(1), **_SECRET)
  assert _messages_of(capfd.readouterr().err, run_dir) == [
    'finished before; nothing was trained.'
  ]
  assert again.metrics == result.metrics and again.statement == result.statement
  assert before == {name: (run_dir / name).read_bytes() for name in before}


def test_resuming_with_changed_settings_is_refused_by_name(uninterrupted):
  changed = training_runs.clients()
  changed['client 9'][1][-1] += 1
  with pytest.raises(ValueError) as error:
    _train(
      uninterrupted[0],
      batch_size=4,
      proximal_strength=0.1,
      mechanism=accounting.Mechanism('tree', training_runs.PARTICIPATION, 0.1),
      model=training_runs.model(loss_factor=0.5),
      clients=changed,
    )
  for message in (
    'batch_size: 2 then, 4 now',
    "client_optimizer.kind: 'SGD' then, 'Proximal' now",
    'client_optimizer.strength: None then, 0.1 now',
    "mechanism.name: 'banded' then, 'tree' now",
    'model.graph: ',
    'clients: another value then',
  ):
    assert message in str(error.value)


@pytest.mark.slow
def test_resume_does_not_record_different_results_of_a_repeated_round(
  tmp_path,
):
  run_dir = tmp_path / 'run'
  with pytest.raises(training_runs.Killed):
    _train(run_dir, test_metrics=training_runs.kill_in(6), checkpoint_seconds=1e9)
  lines = (run_dir / 'ledger.jsonl').read_text()
  labels = run_dir / 'data' / 'feature-1.bin'
  (-np.fromfile(labels, np.float32)).tofile(labels)
  with pytest.raises(ValueError, match='noise would be used for two data sets'):
    _train(run_dir, test_metrics=training_runs.kill_in(0))
  assert (run_dir / 'ledger.jsonl').read_text() == lines
  assert not (run_dir / 'metrics.csv').exists()


@pytest.mark.slow
@pytest.mark.optimized_graphs
def test_run_stops_when_its_directory_is_moved(tmp_path):
  run_dir, moved = tmp_path / 'run', tmp_path / 'moved'

  def move():
    run_dir.rename(moved)
    run_dir.mkdir()
    (run_dir / 'metrics.csv').write_text('of another run')

  metrics = training_runs.act_in(3, move)
  with pytest.raises(OSError, match='was moved or removed while the run'):
    _train(run_dir, test_metrics=metrics, schedule=_SCHEDULE, checkpoint_seconds=0.0)
  assert os.listdir(run_dir) == ['metrics.csv']
  assert (run_dir / 'metrics.csv').read_text() == 'of another run'
  assert len(ledger.read(str(moved / 'ledger.jsonl')).entries) == 3
  # The run can be resumed where it was moved to.
  _train(moved, test_metrics=metrics, schedule=_SCHEDULE)
  never, straight = training_runs.kill_in(0), tmp_path / 'straight'
  _train(straight, test_metrics=never, schedule=_SCHEDULE)
  assert training_runs.results(moved) == training_runs.results(straight)


def test_keras_optimizers_are_refused_by_argument_name(tmp_path):
  for name in ('client_optimizer', 'server_optimizer'):
    field = name.replace('client', 'local').replace('_', '.')
    with pytest.raises(TypeError, match=f'{field} must be .*SGD'):
      _train(tmp_path / 'run', **{name: tf.keras.optimizers.SGD(0.1)})
  assert os.listdir(tmp_path) == []


@dataclasses.dataclass(frozen=True)
class _OneTooSoon(sampling.RandomEligible):
  """Selects the clients of round 1 again in round 2."""

  def attempts(self, round_num):
    return super().attempts(1 if round_num == 2 else round_num)


@pytest.mark.slow
def test_run_samples_by_client_ids_and_refuses_other_ids_on_resume(tmp_path):
  scheme = sampling.PoissonSampling(4, 0.25)
  original = training_runs.clients()
  renamed = {f'x{id_}': examples for id_, examples in original.items()}
  laid_out = packed.lay_out(learning.Clients.of(original), str(tmp_path / 'data'))

  def weights(name, clients):
    return _train(
      tmp_path / name,
      clients=clients,
      mechanism=None,
      clip_norm=None,
      clients_per_round=None,
      schedule=sampling.SampledSchedule(scheme, 12, seed=7),
      test_data=None,
    ).weights.trainable[0]

  np.testing.assert_array_equal(weights('own', original), weights('laid out', laid_out))
  with pytest.raises(ValueError, match='clients: another value then'):
    weights('own', renamed)


@pytest.mark.slow
def test_schedule_that_violates_min_separation_stops_the_run(tmp_path):
  schedule = _OneTooSoon(training_runs.PARTICIPATION, 12, 3, seed=1)
  with pytest.raises(ValueError, match='round 2 of _OneTooSoon: .* at least 3'):
    _train(tmp_path / 'run', schedule=schedule)
  assert len((tmp_path / 'run' / 'ledger.jsonl').read_text().splitlines()) == 2


@pytest.mark.parametrize(
  ('changes', 'match'),
  [
    ({'clip_norm': None}, 'clip_norm is missing: a mechanism needs it'),
    ({'mechanism': None, 'clip_norm': None}, 'num_rounds is missing'),
    ({'clients_per_round': None}, 'clients_per_round is missing'),
    ({'clients_per_round': 6}, 'need 18 clients with min_separation=3; num_clients=12'),
    ({'delta': None}, 'delta is missing: epsilon is reported at it'),
    ({'target_epsilon': 260.0}, 'run.target_epsilon=260 is less .*, epsilon = 260.87'),
    ({'batch_size': 0}, 'batch_size must be at least 1'),
    ({'loss': tf.keras.losses.MeanSquaredError()}, 'loss is for Keras models'),
    (
      {'test_data': ([[1.0, 2.0, 3.0]], [[1.0]])},
      r'test data gives x of float64\[3\] .* the model takes float32\[2\]',
    ),
    (
      {
        'server_optimizer': learning.ServerSchedule(
          strategies.Workload(12, momentum=0.9)
        ).ftrl()
      },
      'server.optimizer is FTRL for the workload.*optimizer\\(\\) of the same',
    ),
    ({'test_data': None, 'evaluate_every': 2}, 'every=2, need data'),
    (
      {'mechanism': None, 'num_rounds': 3, 'noise_seed': 1},
      'run.noise_seed=1 is for a mechanism',
    ),
    ({'model': training_runs.random_model()}, 'random numbers anew'),
    ({'test_metrics': {'max': max}}, r"metrics\['max'\] must make a number"),
    ({'test_data': (np.zeros([0, 2]), np.zeros([0, 1]))}, 'test data has no examples'),
    (
      {'test_data': {'x': np.zeros([2, 2]), 'y': np.array([[0.0], [np.inf]])}},
      r'test data: y\[1, 0\] is inf, .*loss',
    ),
    ({'scheduler': 'nowhere'}, 'scheduler=nowhere is not the address'),
    ({'trusted_network': True}, 'run.trusted_network is for a scheduler='),
    (
      {
        'schedule': sampling.RandomEligible(
          strategies.Participation(12, min_separation=2), 12, 3, seed=1
        )
      },
      'the mechanism rests on',
    ),
    ({'num_rounds': 11}, 'num_rounds is 11, but the schedule is for 12'),
    (
      {
        'mechanism': accounting.Mechanism(
          'gaussian', training_runs.PARTICIPATION, 2.0, adjacency='replace_one'
        )
      },
      'mechanism.adjacency=replace_one does not .* events for zero_out',
    ),
  ],
)
def test_train_refuses_wrong_arguments_before_writing_files(changes, match, tmp_path):
  with pytest.raises(ValueError, match=match):
    _train(tmp_path / 'run', **changes)
  assert os.listdir(tmp_path) == []


def test_train_warns_of_delta_not_below_one_over_num_clients(tmp_path):
  for delta, num_warnings in ((1 / 12, 1), (1 / 13, 0)):
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter('always')
      with pytest.raises(ValueError, match='loss is for Keras'):
        _train(tmp_path / 'run', delta=delta, loss='mse')
    about_delta = [each for each in caught if 'well below 1 / 12' in str(each.message)]
    assert len(about_delta) == num_warnings
    # The warnings name the file that called `learning.train`.
    assert all(each.filename == training_runs.__file__ for each in about_delta)


def test_train_refuses_directory_with_other_files(tmp_path):
  (tmp_path / 'results.txt').write_text('mine')
  with pytest.raises(FileExistsError, match='not the directory of a run'):
    _train(tmp_path)
  assert os.listdir(tmp_path) == ['results.txt']


# Many trainings in one process.


def _train_keras(run_dir, seed=7):
  """Trains a Keras model, as most trainings do."""
  return learning.train(
    lambda: tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])]),
    training_runs.clients(),
    None,
    str(run_dir),
    loss=tf.keras.losses.MeanSquaredError(),
    clients_per_round=3,
    num_rounds=2,
    seed=seed,
    local=learning.ClientTraining(batch_size=2),
    test=training_runs.clients()['client 3'],
  )


def _graphs():
  gc.collect()
  return sum(isinstance(each, tf.Graph) for each in gc.get_objects())


@pytest.mark.slow
def test_training_leaks_no_tensorflow_graphs(tmp_path):
  counts = []
  for number in range(4):
    _train_keras(tmp_path / f'run {number}')
    counts.append(_graphs())
  assert counts[3] == counts[2] <= counts[1]


@pytest.mark.slow
def test_trainings_in_two_threads_match_training_alone(tmp_path):
  weights, errors = {}, []

  def train(seed):
    try:
      result = _train_keras(tmp_path / f'of thread {seed}', seed)
      weights[seed] = result.weights.trainable[0]
    except BaseException as e:
      errors.append(e)

  threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
  for each in threads:
    each.start()
  for each in threads:
    each.join()
  assert not errors and set(weights) == {1, 2}
  assert np.all(weights[1] != weights[2])
  alone = _train_keras(tmp_path / 'alone', 1).weights.trainable[0]
  np.testing.assert_array_equal(weights[1], alone)
