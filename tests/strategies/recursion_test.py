"""Tests of recursions: the noise that they compute and the work that they state."""

import collections

import numpy as np
import pytest

from tests.strategies import every_kind
from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import recursion as recursion_lib

_STRATEGIES = every_kind.STRATEGIES
_SCALES, _DECAYS = every_kind.SCALES, every_kind.DECAYS
all_kinds = pytest.mark.parametrize('kind', _STRATEGIES)
all_sizes = pytest.mark.parametrize('num_rounds', [1, 3, 20])


def test_every_public_kind_of_strategy_is_tested():
  tested = {make(3).kind for make in _STRATEGIES.values()}
  public = {
    value.kind
    for value in vars(strategies).values()
    if isinstance(value, type) and hasattr(value, 'kind')
  }
  assert tested == public


@all_sizes
@all_kinds
def test_noise_rows_and_norms_are_those_of_the_noise_matrix(kind, num_rounds):
  strategy = _STRATEGIES[kind](num_rounds)
  recursion = strategy.recursion()
  assert recursion.applies_noise_matrix == ('tree' not in kind)
  noise = recursion.noise_rows(np.eye(num_rounds))
  expected = strategy.noise_matrix()
  norms = strategy.noise_row_norms()
  for matrix in (noise, expected):
    np.testing.assert_allclose(norms, np.linalg.norm(matrix, axis=1), rtol=1e-12)
  if not recursion.applies_noise_matrix:
    noise, expected = noise @ noise.T, expected @ expected.T
  np.testing.assert_allclose(noise, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
  'make',
  [
    lambda n: strategies.BandedToeplitz.square_root(n, 100),
    lambda n: strategies.BandedInverse.square_root(n, 16),
    lambda n: strategies.WindowedBLT(n, 300, _SCALES, _DECAYS),
    lambda n: strategies.BinaryTree(n, restart_every=1000),
  ],
)
def test_noise_row_norms_of_many_rounds_need_no_dense_matrix(make):
  # A matrix of 10^10 numbers, or a third of that, would not fit into memory.
  norms = make(10**5).noise_row_norms()
  assert norms.shape == (10**5,)
  few = np.linalg.norm(make(300).noise_matrix(), axis=1)
  np.testing.assert_allclose(norms[:300], few, rtol=1e-10)
  assert np.all(np.isfinite(norms)) and norms.min() > 0


class _CountedMemory(collections.UserDict):
  """A memory that records which slots have been read and written."""

  def __getitem__(self, slot):
    self.read.add(slot)
    return super().__getitem__(slot)

  def __setitem__(self, slot, value):
    self.written.add(slot)
    super().__setitem__(slot, value)


@all_sizes
@all_kinds
def test_work_counts_drawn_rows_and_memory_accesses(kind, num_rounds):
  strategy = _STRATEGIES[kind](num_rounds)
  recursion = strategy.recursion()
  memory, counts = _CountedMemory(), []
  for this_round in range(num_rounds):
    drawn = set()
    memory.read, memory.written = set(), set()

    def row(index, this_round=this_round, drawn=drawn):
      assert 0 <= index <= this_round
      drawn.add(index)
      return np.ones(1)

    recursion.serve(this_round, row, memory)
    counts.append([len(drawn), len(memory.read), len(memory.written)])
  largest = np.max(counts, axis=0).tolist()
  assert recursion.work == (len(memory), *largest)
  assert set(memory) == set(range(len(memory)))


@all_sizes
@all_kinds
def test_max_terms_is_the_largest_number_of_noise_terms(kind, num_rounds):
  strategy = _STRATEGIES[kind](num_rounds)
  recursion = strategy.recursion()
  terms = np.count_nonzero(recursion.noise_rows(np.eye(num_rounds)), axis=1).max()
  if recursion.max_terms is None:
    assert strategy.noise_buffers == recursion.work.buffers > 0
  else:
    assert strategy.noise_buffers == 0
    assert terms == recursion.max_terms == strategies.strategy.max_terms(strategy)


@pytest.mark.parametrize(('generator', 'draw'), [('chacha20', 0.025), ('philox', 0.01)])
def test_by_storage_costs_follow_from_the_work(generator, draw):
  strategy = strategies.WindowedBLT(2000, 400, _SCALES, _DECAYS)  # 6 copies.
  assert strategy.recursion().work == (12, 6, 12, 12)
  costs = strategies.strategy.by_storage(strategy, 2 * 10**6, generator)
  assert set(costs) == {'state', 'files'}
  assert costs['state'] == (pytest.approx(2 * (6 * draw + 12 * 0.03)), 24 * 10**6)
  seconds = 2 * (6 * draw + 12 * 0.0006 + 12 * 0.0025) + 24 * 0.00015
  assert costs['files'] == (pytest.approx(seconds), 24 * 10**6)


def test_last_row_of_weights_applies_to_all_later_rounds():
  weights = np.array([[1.0, 0.0], [2.0, -1.0], [3.0, -0.5]])
  noise = recursion_lib.LastRounds(weights, 'row').noise_rows(np.eye(5))
  assert np.diagonal(noise).tolist() == [1, 2, 3, 3, 3]
  assert np.diagonal(noise, -1).tolist() == [-1, -0.5, -0.5, -0.5]


@pytest.mark.parametrize('length', [1, 2, 4])
def test_of_quotient_matches_quotient_of_dense_matrices(length):
  numerator = np.array([2.0, -0.7, 0.4, 0.1])[:length]
  denominator = np.array([0.5, 0.3, -0.2])

  noise = recursion_lib.LastRounds.of_quotient(numerator, denominator)
  upper, lower = (every_kind.lower_toeplitz(c, 8) for c in (denominator, numerator))
  expected = upper @ np.linalg.inv(lower)
  np.testing.assert_allclose(noise.noise_rows(np.eye(8)), expected, atol=1e-14)
  assert noise.work == (max(length, 3) - 1, 1, max(length, 3) - 1, 1)


def test_last_factor_of_scaled_applies_to_all_later_rounds():
  unscaled = recursion_lib.LastRounds([[1.0, -0.5]], 'noise')
  noise = recursion_lib.Scaled(unscaled, [1.0, 10.0], (0, 2)).noise_rows(np.eye(6))
  # The remembered noise is not scaled.
  expected = unscaled.noise_rows(np.eye(6)) * np.array([[1, 1, 10, 10, 10, 10]]).T
  np.testing.assert_array_equal(noise, expected)


def _scaled(factors, starts):
  return recursion_lib.Scaled(recursion_lib.TreeNodes([1.0]), factors, starts)


_LAST, _SUMS = recursion_lib.LastRounds, recursion_lib.DecayingSums


@pytest.mark.parametrize(
  'make, error, message',
  [
    (lambda: _LAST([['x']], 'row'), TypeError, 'weights must be real'),
    (lambda: _LAST([[]], 'row'), ValueError, 'weights must be'),
    (lambda: _LAST([[np.inf]], 'row'), ValueError, 'weights.* finite'),
    (lambda: _LAST([[1.0]], 'rows'), ValueError, "got 'rows'"),
    (lambda: _LAST([[1.0]], 'sum'), ValueError, "'sum' with sums"),
    (lambda: _LAST([[1.0]], 'row', [[1.0]]), ValueError, "got 'row'"),
    (lambda: _LAST([[1.0, 0.5]], 'sum', [[1.0]]), ValueError, 'sums must be .* shape'),
    (lambda: recursion_lib.TreeNodes([1.0], tree_rounds=0), ValueError, 'tree_rounds'),
    (lambda: recursion_lib.Scaled(3, [1.0], (0,)), TypeError, 'a Recursion, got 3'),
    (lambda: _scaled([np.nan], (0,)), ValueError, 'factors must be finite'),
    (lambda: _scaled([1.0], (1,)), ValueError, 'starts must be rounds in rising order'),
    (lambda: _SUMS([0.5], [1.0, 2.0]), ValueError, 'outputs must be .* of shape'),
    (lambda: _SUMS([0.5], [1.0], copies=2, delay=1), ValueError, '2 copies need ends'),
    (lambda: _SUMS([0.5], [1.0], [1.0], copies=2), ValueError, 'delay=0'),
  ],
)
def test_invalid_recursions_are_refused(make, error, message):
  with pytest.raises(error, match=message):
    make()
