"""The simulation program: its files, what it refuses, and how it ends on signals.

Most tests execute it in this process. Tests of how it ends, and of what it does before
TensorFlow is loaded, start it as a user does.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf

from experiments import metrics
from experiments import simulate
from experiments import training
from tests import executing
from tests.experiments import simulations
from tests.experiments.data import own_data
from tff_dp_aggregators import accounting
from tff_dp_aggregators import noise
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.base import version

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = {
  '.lock',
  'accuracy.png',
  'architecture',
  'config.json',
  'private.json',
  'share',
  'events',
  'ledger.jsonl',
  'metrics.csv',
  'model.npz',
  'report.html',
  'report.json',
  'report.md',
  'strategy.npz',
}
SEED = 918273645
LONG = ('--mechanism=tree', '--num_rounds=1000')
BANDED = (
  '--num_rounds=12',
  '--min_separation=5',
  '--target_epsilon=6',
  '--target_delta=1e-4',
  f'--seed={SEED}',
)
_ENVIRONMENT = {**os.environ, 'PYTHONPATH': str(ROOT)}


def _start(*arguments, **kwargs):
  return subprocess.Popen(
    [sys.executable, '-m', 'experiments.simulate', *arguments],
    cwd=ROOT,
    env=_ENVIRONMENT,
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    **kwargs,
  )


@pytest.fixture(scope='module')
def banded_run(tmp_path_factory):
  run_dir = tmp_path_factory.mktemp('runs') / 'banded'
  return run_dir, simulations.run(run_dir, *BANDED)


def test_run_writes_the_documented_files(banded_run):
  run_dir, _ = banded_run
  assert set(os.listdir(run_dir)) == FILES
  assert (run_dir / 'accuracy.png').read_bytes().startswith(b'\x89PNG')
  config = simulations.read(run_dir, 'config')
  assert version.current().to_json().items() <= config['software'].items()
  accuracies = [float(row['test_accuracy']) for row in simulations.metrics(run_dir)]
  assert accuracies[-1] > 0.4  # Chance is 0.1; with this seed it is above 0.6.
  report = simulations.read(run_dir, 'report')
  assert simulations.reported(f'--run_dir={run_dir}') == report


def test_spent_epsilon_reaches_but_never_exceeds_target(banded_run):
  run_dir, result = banded_run
  guarantee = simulations.read(run_dir, 'report')['guarantee']
  assert 6 * (1 - 1e-9) < guarantee['epsilon'] <= 6
  assert guarantee['delta'] == 1e-4
  assert 'Privacy spent in 12 of 12 rounds: (epsilon, delta) = (6.0000, 0.0001)' in (
    result.stdout
  )


def test_ledger_has_a_line_per_round_and_composes_to_the_report(banded_run):
  run_dir, _ = banded_run
  entries = ledger.read(str(run_dir / 'ledger.jsonl')).entries
  assert [entry.round for entry in entries] == list(range(12))
  report = simulations.read(run_dir, 'report')
  composed = accounting.accountants.epsilon(ledger.total_event(entries), 1e-4)
  assert composed == pytest.approx(report['guarantee']['epsilon'], rel=1e-9)
  assert len({entry.result_checksum for entry in entries} - {None}) == 12
  assert report['run']['noise_generators'] == ['philox']
  head = ledger.read(str(run_dir / 'ledger.jsonl')).head
  assert report['run']['ledger_head'] == head._asdict()
  spent = [entry.epsilon for entry in entries]
  assert spent == sorted(spent)
  assert spent[-1] == pytest.approx(6, rel=1e-9)
  assert [float(row['epsilon']) for row in simulations.metrics(run_dir)] == spent


def test_seed_is_only_in_private_json_and_key_in_no_file(banded_run):
  run_dir, result = banded_run
  rows = noise.GaussianRows(tf.TensorSpec([]), seed=noise.Seed(SEED))
  key = [int(word) for word in rows.new_key().numpy()]
  assert str(SEED) in (run_dir / 'private.json').read_text()
  assert (run_dir / 'private.json').stat().st_mode & 0o777 == 0o600
  shared = {f'share/{name}' for name in os.listdir(run_dir / 'share')}
  folders = {'architecture', 'events', 'share'}
  for name in FILES - {'private.json', 'accuracy.png'} - folders | shared:
    text = (run_dir / name).read_text(errors='ignore')
    assert str(SEED) not in text, name
    assert not any(str(word) in text for word in key), name
  assert str(SEED) not in result.stdout + result.stderr


def test_more_clients_than_the_data_have_are_refused(tmp_path):
  error = simulations.refusal(
    '--task=text', '--num_clients=5000', f'--run_dir={tmp_path}'
  )
  assert '--num_clients=5000, and the data have' in error
  assert not os.listdir(tmp_path)


def test_wrong_flags_are_refused_before_tensorflow_is_loaded(tmp_path):
  (tmp_path / 'file').write_text('')
  (tmp_path / 'begun').mkdir()
  config = {'flags': {'batch_size': 7}}
  (tmp_path / 'begun' / 'config.json').write_text(json.dumps(config))
  (tmp_path / 'begun' / 'ledger.jsonl').touch()
  code = (
    'import sys\n'
    'from experiments import simulate\n'
    'flags = ["--num_clients=250"], ["--timeout_seconds=0"], '
    f'["--run_dir={tmp_path}/file/x"], ["--run_dir={tmp_path}/begun"]\n'
    'codes = [simulate.execute(each) for each in flags]\n'
    'print(codes, sorted({"tensorflow", "tensorflow_federated"} & set(sys.modules)))\n'
  )
  result = executing.run_python(code)
  assert result.stdout == '[2, 2, 2, 2] []\n'
  # A search for the noise is announced on a slow machine.
  lines = result.stderr.splitlines()
  errors = [line for line in lines if line.startswith('error: ')]
  assert len(errors) == 4
  assert 'flag --timeout_seconds=0.0: must be in (0, inf]' in errors[1]
  assert f'--run_dir={tmp_path}/file/x cannot be made: Not a directory' in errors[2]
  assert '--batch_size: 7 then, 5 now' in errors[3]


def test_run_of_a_task_does_not_resume_with_data(banded_run, tmp_path):
  rows = [{'who': f'c{i // 2}', 'label': i % 2, 'x': i} for i in range(60)]
  path = own_data.write_csv(tmp_path / 'some.csv', rows)
  data = (f'--data={path}', '--client_column=who', '--label_column=label')
  error = simulations.refusal(
    *data, '--num_rounds=3', '--clients_per_round=2', f'--run_dir={banded_run[0]}'
  )
  assert "--task: 'digits' then, None now" in error


@pytest.mark.parametrize(
  ('lost', 'message'),
  [
    (None, 'is a copy of the directory that its run began in'),
    ('ledger.jsonl', 'ledger.jsonl is gone, but there is metrics.csv'),
    ('private.json', 'private.json is gone, which has the seeds of the run'),
  ],
)
def test_copied_or_incomplete_run_directory_is_refused_in_one_line(
  lost, message, banded_run, tmp_path
):
  copy = tmp_path / 'copy'
  shutil.copytree(banded_run[0], copy)
  if lost is None:
    (copy / 'checkpoints').mkdir()
    (copy / 'checkpoints' / 'original.json').write_text('{"inode": 1}')
  else:
    (copy / lost).unlink()
  assert message in simulations.refusal(*BANDED, f'--run_dir={copy}')


@pytest.mark.parametrize(
  ('measured', 'verdict'),
  [
    (0.59, 'the model, with 0.5900, is no better; '),
    (0.60, 'the model, with 0.6000, is no better; '),
    (0.61, None),
  ],
)
def test_remark_on_constant_says_whether_the_model_is_better(measured, verdict):
  labels = np.array([0] * 40 + [1] * 60)
  remark = training.remark_on_constant(metrics.METRICS['accuracy'], measured, labels)
  if verdict is None:
    assert remark == ''
  else:
    assert 'the constant answer 1 to all test examples has accuracy 0.6000' in remark
    assert verdict in remark


def test_help_lists_the_flags_and_the_files():
  text = executing.execute(simulate, '--help').stdout
  assert 'docs/own_data.md#defaults' in text
  named = re.findall(r'(?<![\w/])\w+\.(?:json|jsonl|csv|md|html|npz|png)\b', text)
  assert {*named, 'architecture', 'events', 'share', '.lock'} == FILES
  for name in ('task', 'mechanism', 'clip_norm', 'target_epsilon', 'run_dir', 'seed'):
    assert f'--{name}:' in text or f'--[no]{name}:' in text


def _num_rounds(run_dir):
  """Returns the number of rounds in the metrics file."""
  metrics = run_dir / 'metrics.csv'
  return len(metrics.read_text().splitlines()) - 1 if metrics.exists() else 0


def _check_interrupted(run_dir, stdout):
  assert set(os.listdir(run_dir)) == FILES | {'checkpoints', 'data'}
  rounds = len(ledger.read(str(run_dir / 'ledger.jsonl')).entries)
  assert rounds >= 3
  assert f'Privacy spent in {rounds} of 1000 rounds' in stdout
  assert f'stopped after {rounds} of 1000' in (run_dir / 'report.md').read_text()


@pytest.mark.slow
def test_ctrl_c_leaves_report_and_no_process(tmp_path):
  run_dir = tmp_path / 'run'
  process = _start(
    *LONG,
    f'--run_dir={run_dir}',
    start_new_session=True,
    # A test in the background of a shell ignores Ctrl-C, and children inherit that.
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
  )
  deadline = time.monotonic() + 240
  while _num_rounds(run_dir) < 3:
    assert process.poll() is None, process.stderr.read()
    assert time.monotonic() < deadline
    time.sleep(0.05)
  children = psutil.Process(process.pid).children(recursive=True)
  try:
    os.killpg(process.pid, signal.SIGINT)  # A terminal tells the children as well.
    # Both pipes end only when everyone who holds them is gone.
    stdout, stderr = process.communicate(timeout=60)
  finally:
    if process.poll() is None:
      process.kill()
      for child in filter(psutil.Process.is_running, children):
        child.kill()
  assert process.returncode == 130, stderr
  assert f'{run_dir}: ended after round' in stderr
  _, alive = psutil.wait_procs(children, timeout=10)
  assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
  _check_interrupted(run_dir, stdout)


@pytest.mark.slow
def test_closed_stdout_does_not_stop_the_run(tmp_path):
  run_dir = tmp_path / 'run'
  process = _start('--mechanism=tree', '--num_rounds=4', f'--run_dir={run_dir}')
  process.stdout.readline()
  process.stdout.close()
  stderr = process.stderr.read()
  assert process.wait(timeout=60) == 0, stderr
  assert 'Broken' not in stderr
  assert set(os.listdir(run_dir)) == FILES
