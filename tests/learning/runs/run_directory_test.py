"""Configurations of a run that goes on are compared, and differences named."""

import copy
import fcntl
import json
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
    return directory.begin(config)


def test_how_often_a_run_is_evaluated_may_change(tmp_path):
  for index, every in enumerate([5, 1]):
    config = copy.deepcopy(_CONFIG)
    config['training']['evaluate_every'] = every
    config['flags']['evaluate_every'] = every
    assert _begin(tmp_path, config) == (index == 0)
    (tmp_path / run_directory.LEDGER).touch()
    run_directory.check_flags(str(tmp_path), config['flags'])


def test_a_run_that_goes_on_has_its_seed_and_others_one_that_nobody_guesses(tmp_path):
  for path in (None, str(tmp_path / 'new')):
    seeds = {run_directory.secret_seed(path) for _ in range(4)}
    assert len(seeds) == 4 and min(seeds) > 2**64  # Less by chance: 2^-62.
  config = copy.deepcopy(_CONFIG)
  config['training']['seed'] = 2**100 + 5
  path = str(tmp_path / 'begun')
  with run_directory.RunDirectory(path) as directory:
    directory.begin(config, ('training.seed',))
  assert run_directory.secret_seed(path) == 2**100 + 5
  os.unlink(os.path.join(path, run_directory.PRIVATE))
  with pytest.raises(ValueError, match='private.json is gone'):
    run_directory.secret_seed(path)


def test_every_difference_is_named_as_a_flag_or_an_argument(tmp_path):
  _begin(tmp_path, _CONFIG)
  other = copy.deepcopy(_CONFIG)
  other['training'].update(batch_size=3)
  other['flags'] = {'model': 'another'}
  with pytest.raises(run_directory.OtherSettingsError) as refused:
    _begin(tmp_path, other)
  assert str(refused.value).endswith(
    "only with the same: --model: None then, 'another' now; "
    'local.batch_size: 2 then, 3 now. Give another run_dir.'
  )


def test_one_process_at_a_time_also_of_several_machines(tmp_path):
  path = tmp_path / 'run'
  other = (
    'another process, here or on another machine, runs the training in .*run; wait'
  )
  with run_directory.RunDirectory(str(path)):
    with pytest.raises(BlockingIOError, match=other):
      run_directory.RunDirectory(str(path))
    half = path / '.writing-by-the-first'
    half.touch()
    with pytest.raises(BlockingIOError):
      run_directory.RunDirectory(str(path))
    assert half.exists()
  with run_directory.RunDirectory(str(path)):
    assert not half.exists()
  with open(path / '.lock', 'r+') as theirs:  # All that another machine shows.
    fcntl.flock(theirs, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError, match=other):
      run_directory.RunDirectory(str(path))
  assert _begin(path, _CONFIG)  # With a lock alone it is empty.


@pytest.fixture
def marked(tmp_path):
  with run_directory.RunDirectory(str(tmp_path / 'run')) as directory:
    directory.write('config.json', '{}')
    os.makedirs(directory.file('checkpoints'))
    directory.check_is_original()  # Not marked yet.
    directory.mark_as_original()
  return tmp_path / 'run'


def _check(path):
  with run_directory.RunDirectory(str(path)) as directory:
    directory.check_is_original()
    directory.mark_as_original()


def test_the_original_goes_on_also_where_it_was_moved_to(marked, tmp_path):
  _check(marked)
  marked.rename(tmp_path / 'moved')
  _check(tmp_path / 'moved')


def test_a_copy_goes_on_only_when_told_that_the_original_is_gone(marked, tmp_path):
  copy = tmp_path / 'copy'
  shutil.copytree(marked, copy)
  with pytest.raises(ValueError, match='is a copy.*remove .*copy/checkpoints/original'):
    _check(copy)
  (copy / 'checkpoints' / 'original.json').unlink()
  _check(copy)
  _check(copy)
  # What is copied from the copy is a copy.
  shutil.copytree(copy, tmp_path / 'another')
  with pytest.raises(ValueError, match='another is a copy'):
    _check(tmp_path / 'another')


def _begin_without_training(path):
  config = copy.deepcopy(_CONFIG)
  _begin(path, config)
  (path / run_directory.STRATEGY).touch()
  (path / run_directory.DATA).mkdir()


def test_what_never_drew_noise_is_begun_anew_with_other_settings(tmp_path, capsys):
  (tmp_path / run_directory.LOG).touch()  # Of whoever starts it, before it begins.
  _begin_without_training(tmp_path)
  other = dict(_CONFIG, flags={'model': 'another'})
  run_directory.check_flags(str(tmp_path), other['flags'])
  with run_directory.RunDirectory(str(tmp_path)) as directory:
    directory.forget_untrained(_CONFIG)
    assert directory.config == _CONFIG and directory.has(run_directory.DATA)
    directory.forget_untrained(other)
    assert sorted(os.listdir(tmp_path)) == ['.lock', run_directory.LOG]
    assert directory.begin(other)
  assert 'nothing was trained' in capsys.readouterr().err


@pytest.mark.parametrize(
  'name',
  [
    run_directory.CHECKPOINTS,
    run_directory.LEDGER,
    'notes of my own.txt',
  ],
)
def test_whatever_else_is_there_keeps_a_run_from_being_forgotten(tmp_path, name):
  _begin_without_training(tmp_path)
  (tmp_path / name).touch()
  other = dict(_CONFIG, flags={'model': 'another'})
  with run_directory.RunDirectory(str(tmp_path)) as directory:
    directory.forget_untrained(other)
  assert json.loads((tmp_path / run_directory.CONFIG).read_text()) == _CONFIG
  with pytest.raises(run_directory.OtherSettingsError, match='--model: None then'):
    run_directory.check_flags(str(tmp_path), other['flags'])
