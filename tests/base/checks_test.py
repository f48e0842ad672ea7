"""Tests checks of arguments that several layers share."""

import math

from tff_dp_aggregators.base import checks


def test_timeouts_longer_than_timers_wait_are_no_limit():
  assert checks.check_timeout(2.5) == 2.5
  for seconds in (None, math.inf, 1e12):
    assert checks.check_timeout(seconds) is None
