"""A copy of a run directory does not go on by itself.

Claims:

* The original does, also where it was moved to; a copy does not.
* Whoever removes the mark says that the original is gone; then the copy is marked.
"""

import os
import shutil

import pytest

from tff_dp_aggregators.learning.runs import run_directory


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
