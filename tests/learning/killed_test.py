"""A training that is killed again and again ends like one that was never touched."""

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


def _rounds(run_dir):
  metrics = run_dir / 'metrics.csv'
  return metrics.read_bytes().count(b'\n') if metrics.exists() else 0


def _kill_at_a_random_moment(run_dir, log, rng):
  """Starts the run, kills it, and returns the exit code."""
  process = _start(run_dir, log)
  # Some are killed while they begin; the others while they write rounds, of which the
  # first is that after the checkpoint: the file is cut to it before.
  if rng.random() < 0.1:
    time.sleep(rng.uniform(0, 20))
  else:
    fewest = before = _rounds(run_dir)
    while process.poll() is None and before <= fewest:
      time.sleep(0.01)
      before = _rounds(run_dir)
      fewest = min(fewest, before)
    time.sleep(rng.uniform(0, 0.8))
  process.kill()
  return process.wait()


@pytest.mark.slow
def test_killed_40_times_it_comes_to_the_same(tmp_path):
  with open(tmp_path / 'log', 'w') as log:
    straight, killed = tmp_path / 'straight', tmp_path / 'killed'
    assert _start(straight, log).wait() == 0, (tmp_path / 'log').read_text()[-2000:]
    rng = random.Random(1)
    codes = [_kill_at_a_random_moment(killed, log, rng) for _ in range(_KILLS)]
    assert set(codes) <= {-9, 0}, (tmp_path / 'log').read_text()[-2000:]
    assert codes.count(-9) > _KILLS / 2
    assert _start(killed, log).wait() == 0, (tmp_path / 'log').read_text()[-2000:]
  assert training_runs.results(killed) == training_runs.results(straight)
  assert set(os.listdir(killed)) == set(os.listdir(straight))


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_the_run_goes_on_with_room(tmp_path):
  with open(tmp_path / 'log', 'w') as log:
    straight, full = tmp_path / 'straight', tmp_path / 'full'
    assert _start(straight, log).wait() == 0
    for kilobytes in (40, 100, 300):

      def limit(kilobytes=kilobytes):
        # No file may become larger: writes fail as they do on a full disk.
        limits = (kilobytes * 1024, resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

      assert _start(full, log, preexec_fn=limit).wait() not in (0, -9)
    assert 'File too large' in (tmp_path / 'log').read_text()
    assert _start(full, log).wait() == 0, (tmp_path / 'log').read_text()[-2000:]
  assert training_runs.results(full) == training_runs.results(straight)
