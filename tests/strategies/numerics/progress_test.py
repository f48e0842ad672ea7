"""Progress shows itself for what lasts, and keeps quiet for what is short."""

import logging

import pytest

from tff_dp_aggregators.strategies.numerics import progress as progress_lib


@pytest.fixture
def clock(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(progress_lib.time, 'monotonic', lambda: now[0])
  return now


def test_a_short_optimisation_says_nothing(clock, caplog, capfd):
  with caplog.at_level(logging.INFO):
    with progress_lib.Progress('short') as progress:
      for _ in range(100):
        clock[0] += 0.01
        progress(1.0)
  assert caplog.text == ''
  assert capfd.readouterr() == ('', '')


def test_a_long_one_logs_now_and_then_where_there_is_no_terminal(clock, caplog):
  with caplog.at_level(logging.INFO):
    with progress_lib.Progress('long') as progress:
      for iteration in range(1, 31):
        clock[0] += 1.0
        progress(1 / iteration)
  messages = [record.getMessage() for record in caplog.records]
  assert messages == [
    'long: iteration 3, error 0.333333',
    'long: iteration 14, error 0.0714286',
    'long: iteration 25, error 0.04',
  ]
