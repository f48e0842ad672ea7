"""TFF's runtime on this machine, for all tests of a file that has this fixture."""

import pytest

from tff_dp_aggregators.learning import runtime


@pytest.fixture(scope='module', autouse=True)
def local_runtime():
  with runtime.local_runtime():
    yield
