"""Tests of writing files whole or not at all, and never over another."""

import os
import stat

import pytest

from tff_dp_aggregators.base import new_files


def test_write_new_file_has_text_and_umask_permissions(tmp_path):
  umask = os.umask(0o027)
  try:
    new_files.write_new(str(tmp_path / 'new'), 'text\n')
  finally:
    os.umask(umask)
  assert (tmp_path / 'new').read_text() == 'text\n'
  assert stat.S_IMODE((tmp_path / 'new').stat().st_mode) == 0o640
  assert os.listdir(tmp_path) == ['new']


def test_write_new_refuses_existing_file(tmp_path):
  (tmp_path / 'old').write_text('mine')
  with pytest.raises(FileExistsError, match='exists and is not overwritten'):
    new_files.write_new(str(tmp_path / 'old'), 'yours')
  assert (tmp_path / 'old').read_text() == 'mine'
  assert os.listdir(tmp_path) == ['old']


def test_failed_write_new_leaves_no_file(tmp_path, monkeypatch):
  def fail(descriptor):
    raise OSError('disk full')

  monkeypatch.setattr(new_files.os, 'fsync', fail)
  with pytest.raises(OSError, match='disk full'):
    new_files.write_new(str(tmp_path / 'new'), 'text')
  assert os.listdir(tmp_path) == []


def test_remove_half_written_removes_nothing_else(tmp_path):
  names = ['.lock', 'a.writing-1', 'writing-2']
  for name in (*names, '.writing-3', '.writing-4'):
    (tmp_path / name).touch()
  new_files.remove_half_written(str(tmp_path))
  assert sorted(os.listdir(tmp_path)) == names


def test_replace_leaves_either_old_or_new_file(tmp_path, monkeypatch):
  path = str(tmp_path / 'file')
  new_files.replace(path, b'\x00old')
  new_files.replace(path, b'\x00new')
  assert (tmp_path / 'file').read_bytes() == b'\x00new'

  def fail(*paths):
    raise OSError('cannot rename')

  monkeypatch.setattr(new_files.os, 'replace', fail)
  with pytest.raises(OSError, match='cannot rename'):
    new_files.replace(path, b'newer')
  assert (tmp_path / 'file').read_bytes() == b'\x00new'
  assert os.listdir(tmp_path) == ['file']
