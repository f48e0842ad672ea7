"""Tests of how many processors of a machine may be used."""

import os

import pytest

from tff_dp_aggregators.base import machine


@pytest.mark.parametrize(
  ('limit', 'usable'),
  [
    (None, 8),
    ('max 100000', 8),
    ('150000 100000', 2),
    ('20000 100000', 1),
    ('6400000 100000', 8),
    ('nonsense', 8),
  ],
)
def test_usable_processors_respects_cgroup_limit(monkeypatch, tmp_path, limit, usable):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(8)))
  if limit is not None:
    (tmp_path / 'cpu.max').write_text(f'{limit}\n')
  assert machine.usable_processors(str(tmp_path)) == usable
