"""Settings too large for memory are refused before anything is allocated."""

import tracemalloc

import pytest

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.planning import comparison
from tff_dp_aggregators.strategies import registry
from tff_dp_aggregators.strategies.strategy import MAX_ROUNDS

TOO_MANY = 10**9
MESSAGE = f'num_rounds must be at most {MAX_ROUNDS}.*got {TOO_MANY}'


@pytest.fixture
def little_memory():
  tracemalloc.start()
  yield
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 10**7


@pytest.mark.usefixtures('little_memory')
@pytest.mark.parametrize('name', registry.KINDS)
def test_too_many_rounds_are_refused_by_every_kind(name):
  participation = strategies.Participation(TOO_MANY, 500)
  with pytest.raises(ValueError, match=MESSAGE):
    accounting.Mechanism(name, participation, 1.0)


@pytest.mark.usefixtures('little_memory')
def test_too_many_rounds_are_refused_with_sampling_and_in_plans():
  with pytest.raises(ValueError, match=MESSAGE):
    accounting.Mechanism('gaussian', sampling.PoissonSampling(TOO_MANY, 0.1), 1.0)
  with pytest.raises(ValueError, match=MESSAGE):
    comparison.compare(
      comparison.Task(
        strategies.Participation(TOO_MANY, 500),
        model_size=1000,
        target_delta=1e-6,
        noise_multiplier=1.0,
      )
    )


@pytest.mark.usefixtures('little_memory')
def test_too_many_bands_are_refused_and_limit_is_named():
  with pytest.raises(ValueError, match='num_bands=500 .* at most 100 bands'):
    accounting.Mechanism('banded', strategies.Participation(10**6, 500), 1.0)
  # A Toeplitz strategy stores its bands once, and a tree has none.
  assert accounting.Mechanism('tree', strategies.Participation(10**6, 10**6), 1.0)
