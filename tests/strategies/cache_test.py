"""Tests of the cache of optimised strategies on disk."""

import logging
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tff_dp_aggregators.strategies import BandedToeplitz
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies import cache

STRATEGY = BandedToeplitz(5, (1.0, 1 / 3))


class Computation:
  """Returns the strategy and counts its calls."""

  def __init__(self):
    self.times = 0

  def __call__(self):
    self.times += 1
    return STRATEGY


@pytest.fixture
def compute(tmp_path, monkeypatch):
  monkeypatch.setenv('TFF_DP_AGGREGATORS_CACHE', str(tmp_path / 'cache'))
  return Computation()


def cached_files(folder):
  return sorted(pathlib.Path(folder).glob('cache/*.npz'))


def test_second_fetch_reads_the_cached_file(compute, tmp_path):
  for _ in range(3):
    assert cache.fetch(BandedToeplitz, 'f', 1, {'num_rounds': 5}, compute) == STRATEGY
  assert compute.times == 1
  assert len(cached_files(tmp_path)) == 1
  assert cached_files(tmp_path)[0].name.startswith('f-')


def test_each_distinct_request_has_its_own_file(compute, tmp_path):
  array = np.arange(6.0)
  requests = [
    ('f', 1, {}),
    ('g', 1, {}),
    ('f', 2, {}),
    ('f', 1, {'x': None}),
    ('f', 1, {'x': 'mean'}),
    ('f', 1, {'x': array}),
    ('f', 1, {'x': array + 1e-15}),
    ('f', 1, {'x': array.reshape(2, 3)}),
    ('f', 1, {'x': Participation(5, 2)}),
    ('f', 1, {'x': Participation(5, 2, fixed_epoch=True)}),
    ('f', 1, {'x': Workload(5)}),
    ('f', 1, {'x': Workload(5, 0.5, (1, 1, 1, 1, 0.5))}),
  ]
  for _ in range(2):
    for request in requests:
      cache.fetch(BandedToeplitz, *request, compute)
  assert compute.times == len(requests) == len(cached_files(tmp_path))


def test_request_without_a_cache_key_is_refused(compute):
  with pytest.raises(TypeError, match='cannot make a cache key of <object'):
    cache.fetch(BandedToeplitz, 'f', 1, {'x': object()}, compute)


def test_nothing_is_cached_if_caching_is_off(compute, tmp_path, monkeypatch):
  for _ in range(2):
    cache.fetch(BandedToeplitz, 'f', 1, {}, compute, use_cache=False)
  monkeypatch.setenv('TFF_DP_AGGREGATORS_CACHE', '')
  assert cache.directory() is None
  cache.fetch(BandedToeplitz, 'f', 1, {}, compute)
  assert compute.times == 3
  assert os.listdir(tmp_path) == []


def test_directory_follows_xdg_cache_home_and_home(monkeypatch):
  monkeypatch.delenv('TFF_DP_AGGREGATORS_CACHE', raising=False)
  monkeypatch.setenv('XDG_CACHE_HOME', '/elsewhere')
  assert cache.directory() == '/elsewhere/tff_dp_aggregators'
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', '/home/someone')
  assert cache.directory() == '/home/someone/.cache/tff_dp_aggregators'


@pytest.mark.parametrize('end', [0, 100, -1])
def test_damaged_file_is_recomputed_and_replaced(compute, tmp_path, caplog, end):
  cache.fetch(BandedToeplitz, 'f', 1, {}, compute)
  (path,) = cached_files(tmp_path)
  content = path.read_bytes()
  path.write_bytes(content[:end])
  with caplog.at_level(logging.WARNING):
    assert cache.fetch(BandedToeplitz, 'f', 1, {}, compute) == STRATEGY
  assert 'cannot be read and is optimised again' in caplog.text
  assert compute.times == 2
  assert path.read_bytes() == content


def test_file_of_another_request_is_recomputed_and_replaced(compute, tmp_path, caplog):
  another = BandedToeplitz(5, (1.0, 0.9))
  cache.fetch(BandedToeplitz, 'f', 1, {'num_rounds': 5, 'max_gap': 1}, lambda: another)
  (path,) = cached_files(tmp_path)
  request = (BandedToeplitz, 'f', 1, {'num_rounds': 5, 'max_gap': 2}, compute)
  assert cache.fetch(*request) == STRATEGY
  (requested_path,) = set(cached_files(tmp_path)) - {path}
  requested_path.write_bytes(path.read_bytes())  # It has the same kind and num_rounds.
  for _ in range(2):  # The first time replaces the file.
    assert cache.fetch(*request) == STRATEGY
    assert compute.times == 2
  for gap in (1, 2):
    assert f'"max_gap": {gap}' in caplog.text and 'answers' in caplog.text


def test_fetch_computes_if_directory_cannot_be_created(compute, tmp_path, caplog):
  (tmp_path / 'cache').write_text('')
  assert cache.fetch(BandedToeplitz, 'f', 1, {}, compute) == STRATEGY
  assert 'nothing is cached in' in caplog.text
  assert 'TFF_DP_AGGREGATORS_CACHE' in caplog.text


def test_fetch_computes_if_disk_is_full(compute, tmp_path, monkeypatch, caplog):
  def fail(path, content):
    raise OSError('no space left')

  monkeypatch.setattr(cache.new_files, 'replace', fail)
  assert cache.fetch(BandedToeplitz, 'f', 1, {}, compute) == STRATEGY
  assert 'could not be cached' in caplog.text
  assert cached_files(tmp_path) == []


def test_failed_computation_caches_nothing_and_releases_the_lock(compute, tmp_path):
  def fail():
    raise RuntimeError('diverged')

  with pytest.raises(RuntimeError, match='diverged'):
    cache.fetch(BandedToeplitz, 'f', 1, {}, fail)
  assert cached_files(tmp_path) == []
  assert cache.fetch(BandedToeplitz, 'f', 1, {}, compute) == STRATEGY


_PROGRAM = """
import sys, time
from tff_dp_aggregators.strategies import BandedToeplitz, cache

def compute():
  with open(sys.argv[1], 'a') as file:
    file.write('computed\\n')
  time.sleep(0.5)
  return BandedToeplitz(5, (1.0, 0.25))

assert cache.fetch(BandedToeplitz, 'f', 1, {}, compute).coefficients == (1.0, 0.25)
"""


def test_concurrent_processes_compute_only_once(compute, tmp_path):
  log = tmp_path / 'log'
  processes = [
    subprocess.Popen([sys.executable, '-c', _PROGRAM, str(log)]) for _ in range(2)
  ]
  assert [process.wait() for process in processes] == [0] * 2
  assert log.read_text() == 'computed\n'
