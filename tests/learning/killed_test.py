"""Tests that trainings resume to the same results after kills or a full disk."""

import os
import pathlib
import random
import resource
import subprocess
import sys
import time

import pytest

from tests.learning import training_runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
_ROUNDS, _KILLS = 3000, 40
_CHECKPOINT_SECONDS = 0.2


def _start(run_dir, log, **kwargs):
  return subprocess.Popen(
    [
      sys.executable,
      '-m',
      'tests.learning.training_runs',
      str(run_dir),
      str(_ROUNDS),
      str(_CHECKPOINT_SECONDS),
    ],
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': str(ROOT), 'TF_CPP_MIN_LOG_LEVEL': '3'},
    stdout=log,
    stderr=subprocess.STDOUT,
    **kwargs,
  )


def _metrics_lines(run_dir):
  metrics = run_dir / 'metrics.csv'
  return metrics.read_bytes().count(b'\n') if metrics.exists() else 0


def _kill_at_a_random_moment(run_dir, log, rng):
  """Starts the run, kills it, and returns the exit code."""
  process = _start(run_dir, log)
  # Some runs are killed while they start, the others while they write rounds. A resumed
  # run first cuts the file back to its checkpoint: lines decrease before they increase.
  if rng.random() < 0.1:
    time.sleep(rng.uniform(0, 20))
  else:
    fewest_lines = num_lines = _metrics_lines(run_dir)
    while process.poll() is None and num_lines <= fewest_lines:
      time.sleep(0.01)
      num_lines = _metrics_lines(run_dir)
      fewest_lines = min(fewest_lines, num_lines)
    time.sleep(rng.uniform(0, 0.8))
  process.kill()
  return process.wait()


@pytest.mark.slow
def test_run_killed_40_times_matches_uninterrupted_run(tmp_path):
  with open(tmp_path / 'log', 'w') as log:
    expected, killed = tmp_path / 'straight', tmp_path / 'killed'
    assert _start(expected, log).wait() == 0, (tmp_path / 'log').read_text()[-2000:]
    rng = random.Random(1)
    codes = [_kill_at_a_random_moment(killed, log, rng) for _ in range(_KILLS)]
    assert set(codes) <= {-9, 0}, (tmp_path / 'log').read_text()[-2000:]
    assert codes.count(-9) > _KILLS / 2
    assert _start(killed, log).wait() == 0, (tmp_path / 'log').read_text()[-2000:]
  assert training_runs.results(killed) == training_runs.results(expected)
  assert set(os.listdir(killed)) == set(os.listdir(expected))


@pytest.mark.slow
def test_run_fails_on_full_disk_and_resumes_with_space(tmp_path):
  with open(tmp_path / 'log', 'w') as log:
    expected, full = tmp_path / 'straight', tmp_path / 'full'
    assert _start(expected, log).wait() == 0
    for kilobytes in (40, 100, 300):

      def limit(kilobytes=kilobytes):
        # No file may become larger: writes fail as they do on a full disk.
        limits = (kilobytes * 1024, resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

      assert _start(full, log, preexec_fn=limit).wait() not in (0, -9)
    assert 'File too large' in (tmp_path / 'log').read_text()
    assert _start(full, log).wait() == 0, (tmp_path / 'log').read_text()[-2000:]
  assert training_runs.results(full) == training_runs.results(expected)
