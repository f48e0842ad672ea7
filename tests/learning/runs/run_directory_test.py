"""Tests of `run_directory`: settings of resumed runs, locks, copies and restarts."""

import copy
import fcntl
import os
import shutil

import pytest

from tff_dp_aggregators.learning.runs import run_directory

_CONFIG = {
  'flags': {},
  'training': {'batch_size': 2, 'simulated_cohort_scale': 1.0},
  'privacy': {'delta': 1e-3},
  'simulated_cohort': None,
  'not_covered': [],
  'tuning': None,
}


def _begin(path, config):
  with run_directory.RunDirectory(str(path)) as directory:
    directory.begin(config)


def test_evaluate_every_may_change_on_resume(tmp_path):
  for every in (5, 1):
    config = copy.deepcopy(_CONFIG)
    config['training']['evaluate_every'] = every
    config['flags']['evaluate_every'] = every
    _begin(tmp_path, config)
    (tmp_path / run_directory.LEDGER).touch()
    run_directory.check_flags(str(tmp_path), config['flags'])


def test_secret_seed_is_random_or_that_of_the_resumed_run(tmp_path):
  for path in (None, str(tmp_path / 'new')):
    seeds = {run_directory.secret_seed(path) for _ in range(4)}
    assert len(seeds) == 4 and min(seeds) > 2**64  # Fails with probability 2^-62.
  config = copy.deepcopy(_CONFIG)
  config['training']['seed'] = 2**100 + 5
  path = str(tmp_path / 'begun')
  with run_directory.RunDirectory(path) as directory:
    directory.begin(config, ('training.seed',))
  assert run_directory.secret_seed(path) == 2**100 + 5
  os.unlink(os.path.join(path, run_directory.PRIVATE))
  with pytest.raises(ValueError, match='private.json is gone'):
    run_directory.secret_seed(path)


def test_changed_settings_are_named_as_flags_or_arguments(tmp_path):
  _begin(tmp_path, _CONFIG)
  other_config = copy.deepcopy(_CONFIG)
  other_config['training'].update(batch_size=3)
  other_config['flags'] = {'model': 'another'}
  with pytest.raises(run_directory.FilesError) as error:
    _begin(tmp_path, other_config)
  assert str(error.value).endswith(
    "only with the same: --model: None then, 'another' now; "
    'training.batch_size: 2 then, 3 now. Give another run_dir.'
  )


def test_lock_admits_one_process_also_across_machines(tmp_path):
  path = tmp_path / 'run'
  message = (
    'another process, here or on another machine, runs the training in .*run; wait'
  )
  with run_directory.RunDirectory(str(path)):
    with pytest.raises(BlockingIOError, match=message):
      run_directory.RunDirectory(str(path))
    unfinished_file = path / '.writing-by-the-first'
    unfinished_file.touch()
    with pytest.raises(BlockingIOError):
      run_directory.RunDirectory(str(path))
    assert unfinished_file.exists()
  with run_directory.RunDirectory(str(path)):
    assert not unfinished_file.exists()
  with open(path / '.lock', 'r+') as lock:  # All that is visible of another machine.
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError, match=message):
      run_directory.RunDirectory(str(path))
  _begin(path, _CONFIG)  # A directory with nothing but a lock counts as empty.


@pytest.fixture
def original(tmp_path):
  with run_directory.RunDirectory(str(tmp_path / 'run')) as directory:
    directory.write('config.json', '{}')
    os.makedirs(directory.file('checkpoints'))
    directory.check_is_original()  # It is not marked yet.
    directory.mark_as_original()
  return tmp_path / 'run'


def _check(path):
  with run_directory.RunDirectory(str(path)) as directory:
    directory.check_is_original()
    directory.mark_as_original()


def test_original_run_can_be_moved_and_resumed(original, tmp_path):
  _check(original)
  original.rename(tmp_path / 'moved')
  _check(tmp_path / 'moved')


def test_copied_run_resumes_only_after_its_mark_is_removed(original, tmp_path):
  copy = tmp_path / 'copy'
  shutil.copytree(original, copy)
  match = 'is a copy.*remove .*copy/checkpoints/original'
  with pytest.raises(run_directory.FilesError, match=match):
    _check(copy)
  (copy / 'checkpoints' / 'original.json').unlink()
  _check(copy)
  _check(copy)
  # A copy of the copy is a copy as well.
  shutil.copytree(copy, tmp_path / 'another')
  with pytest.raises(ValueError, match='another is a copy'):
    _check(tmp_path / 'another')
