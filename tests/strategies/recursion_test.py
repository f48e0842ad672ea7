"""A recursion is what it says: a strategy's noise, at the cost that it states."""

import collections

import numpy as np
import pytest
import scipy.linalg

from tests.strategies import every_kind
from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import recursion as recursion_lib

_STRATEGIES = every_kind.STRATEGIES
_SCALES, _DECAYS = every_kind.SCALES, every_kind.DECAYS
all_kinds = pytest.mark.parametrize('kind', _STRATEGIES)
all_sizes = pytest.mark.parametrize('num_rounds', [1, 2, 3, 13, 64])


def test_every_kind_is_here():
  made = {make(3).kind for make in _STRATEGIES.values()}
  public = {
    value.kind
    for value in vars(strategies).values()
    if isinstance(value, type) and hasattr(value, 'kind')
  }
  assert made == public


@pytest.mark.few(54)
@all_sizes
@all_kinds
def test_unit_rows_give_the_noise_matrix(kind, num_rounds):
  strategy = _STRATEGIES[kind](num_rounds)
  recursion = strategy.recursion()
  assert recursion.applies_noise_matrix == ('tree' not in kind)
  noise = recursion.noise_rows(np.eye(num_rounds))
  expected = strategy.noise_matrix()
  if not recursion.applies_noise_matrix:
    noise, expected = noise @ noise.T, expected @ expected.T
  np.testing.assert_allclose(noise, expected, rtol=0, atol=1e-12)


@pytest.mark.few(54)
@all_sizes
@all_kinds
def test_row_norms_are_those_of_the_noise(kind, num_rounds):
  strategy = _STRATEGIES[kind](num_rounds)
  norms = strategy.noise_row_norms()
  dense = np.linalg.norm(strategy.noise_matrix(), axis=1)
  np.testing.assert_allclose(norms, dense, rtol=1e-12)
  made = np.linalg.norm(strategy.recursion().noise_rows(np.eye(num_rounds)), axis=1)
  np.testing.assert_allclose(norms, made, rtol=1e-12)


def _narrow(num_rounds):
  below = np.append(np.full(num_rounds - 1, -0.4), 0.0)
  return strategies.Banded(num_rounds, np.stack([np.ones(num_rounds), below]))


@pytest.mark.few(4)
@pytest.mark.parametrize(
  'make',
  [
    strategies.Identity,
    lambda n: strategies.BandedToeplitz.square_root(n, 100),
    _narrow,
    lambda n: strategies.BandedInverse.square_root(n, 16),
    lambda n: strategies.BLT(n, _SCALES, _DECAYS),
    lambda n: strategies.WindowedBLT(n, 300, _SCALES, _DECAYS),
    lambda n: strategies.TailedBLT(n, 300, _SCALES, _DECAYS, 0.05, 0.999),
    lambda n: strategies.EpochToeplitz.of(
      strategies.BandedToeplitz.square_root(n, 100), (0, 70, 100), (1.1, 1.0, 0.9)
    ),
    strategies.BinaryTree,
    lambda n: strategies.BinaryTree(n, restart_every=1000),
    lambda n: strategies.BinaryTree(n, honaker=False),
  ],
)
def test_row_norms_of_many_rounds_take_no_matrix_and_begin_as_those_of_few(make):
  # A matrix of 10^10 numbers, or a third of that, would not fit into the memory.
  norms = make(10**5).noise_row_norms()
  assert norms.shape == (10**5,)
  few = np.linalg.norm(make(300).noise_matrix(), axis=1)
  np.testing.assert_allclose(norms[:300], few, rtol=1e-10)
  assert np.all(np.isfinite(norms)) and norms.min() > 0


class _CountedMemory(collections.abc.MutableMapping):
  """A memory that knows which slots have been read and written."""

  def __init__(self):
    self._slots, self.read, self.written = {}, set(), set()

  def __getitem__(self, slot):
    self.read.add(slot)
    return self._slots[slot]

  def __setitem__(self, slot, value):
    self.written.add(slot)
    self._slots[slot] = value

  def __delitem__(self, slot):
    raise NotImplementedError

  def __iter__(self):
    return iter(self._slots)

  def __len__(self):
    return len(self._slots)


@pytest.mark.few(54)
@all_sizes
@all_kinds
def test_work_counts_what_a_round_touches(kind, num_rounds):
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


@pytest.mark.few(54)
@all_sizes
@all_kinds
def test_noise_has_as_many_terms_as_stated(kind, num_rounds):
  strategy = _STRATEGIES[kind](num_rounds)
  recursion = strategy.recursion()
  terms = np.count_nonzero(recursion.noise_rows(np.eye(num_rounds)), axis=1).max()
  if recursion.max_terms is None:
    assert strategy.noise_buffers == recursion.work.buffers > 0
  else:
    assert strategy.noise_buffers == 0
    assert terms == recursion.max_terms == strategies.strategy.max_terms(strategy)


@pytest.mark.parametrize(('generator', 'draw'), [('chacha20', 0.025), ('philox', 0.01)])
def test_costs_follow_from_the_recursion(generator, draw):
  strategy = strategies.WindowedBLT(2000, 400, _SCALES, _DECAYS)  # 6 copies.
  assert strategy.recursion().work == (12, 6, 12, 12)
  costs = strategies.strategy.by_storage(strategy, 2 * 10**6, generator)
  assert set(costs) == {'state', 'files'}
  assert costs['state'] == (pytest.approx(2 * (6 * draw + 12 * 0.03)), 24 * 10**6)
  seconds = 2 * (6 * draw + 12 * 0.0006 + 12 * 0.0025) + 24 * 0.00015
  assert costs['files'] == (pytest.approx(seconds), 24 * 10**6)


def test_the_last_line_of_weights_is_that_of_all_later_rounds():
  weights = np.array([[1.0, 0.0], [2.0, -1.0], [3.0, -0.5]])
  noise = recursion_lib.LastRounds(weights, 'row').noise_rows(np.eye(5))
  assert np.diagonal(noise).tolist() == [1, 2, 3, 3, 3]
  assert np.diagonal(noise, -1).tolist() == [-1, -0.5, -0.5, -0.5]


@pytest.mark.parametrize('length', [1, 2, 4])
def test_a_quotient_of_banded_matrices_is_applied_and_solved(length):
  numerator = np.array([2.0, -0.7, 0.4, 0.1])[:length]
  denominator = np.array([0.5, 0.3, -0.2])

  def matrix(column):
    return scipy.linalg.toeplitz(
      np.append(column, np.zeros(8 - len(column))), [0.0] * 8
    )

  noise = recursion_lib.LastRounds.of_quotient(numerator, denominator)
  upper, lower = np.tril(matrix(denominator)), np.tril(matrix(numerator))
  expected = upper @ np.linalg.inv(lower)
  np.testing.assert_allclose(noise.noise_rows(np.eye(8)), expected, atol=1e-14)
  assert noise.work == (max(length, 3) - 1, 1, max(length, 3) - 1, 1)


def test_the_last_factor_is_that_of_all_later_rounds():
  unscaled = recursion_lib.LastRounds([[1.0, -0.5]], 'noise')
  noise = recursion_lib.Scaled(unscaled, [1.0, 10.0], (0, 2)).noise_rows(np.eye(6))
  # What is remembered is not scaled.
  expected = unscaled.noise_rows(np.eye(6)) * np.array([[1, 1, 10, 10, 10, 10]]).T
  np.testing.assert_array_equal(noise, expected)


def test_several_copies_end_what_the_one_before_began():
  # y[t] = z[t] - (y[t - 1] + y[t - 2]), the window of three of a sum without decay.
  recursion = recursion_lib.DecayingSums(
    [1.0], outputs=[-1.0], ends=[-1.0], copies=5, delay=2
  )
  noise = recursion.noise_rows(np.eye(9))[:, 0]
  assert noise.tolist() == [1, -1, 0, 1, -1, 0, 1, -1, 0]


@pytest.mark.parametrize(
  'make, error, message',
  [
    (
      lambda: recursion_lib.LastRounds([['x']], 'row'),
      TypeError,
      'weights must be real',
    ),
    (lambda: recursion_lib.LastRounds([1.0], 'row'), ValueError, 'weights must be'),
    (lambda: recursion_lib.LastRounds([[]], 'row'), ValueError, 'shape .1, 0.'),
    (
      lambda: recursion_lib.LastRounds([[np.inf]], 'row'),
      ValueError,
      'weights.* finite',
    ),
    (lambda: recursion_lib.LastRounds([[1.0]], 'rows'), ValueError, "got 'rows'"),
    (
      lambda: recursion_lib.LastRounds([[1.0]], 'sum'),
      ValueError,
      'sums must be given',
    ),
    (
      lambda: recursion_lib.LastRounds([[1.0]], 'row', [[1.0]]),
      ValueError,
      "only then; got remembers='row'",
    ),
    (
      lambda: recursion_lib.LastRounds([[1.0, 0.5]], 'sum', [[1.0]]),
      ValueError,
      r'sums must be .* of shape \(1, 2\)',
    ),
    (lambda: recursion_lib.TreeNodes([]), ValueError, 'weights must be'),
    (
      lambda: recursion_lib.TreeNodes([1.0, 1.0], np.eye(3)),
      ValueError,
      r'combination must be .* of shape \(2, 2\)',
    ),
    (
      lambda: recursion_lib.TreeNodes([1.0], tree_rounds=0),
      ValueError,
      'tree_rounds must be at least 1',
    ),
    (lambda: recursion_lib.Scaled(3, [1.0], (0,)), TypeError, 'a Recursion, got 3'),
    (
      lambda: recursion_lib.Scaled(recursion_lib.TreeNodes([1.0]), [], (0,)),
      ValueError,
      'factors must be',
    ),
    (
      lambda: recursion_lib.Scaled(recursion_lib.TreeNodes([1.0]), [np.nan], (0,)),
      ValueError,
      'factors must be finite',
    ),
    (
      lambda: recursion_lib.Scaled(recursion_lib.TreeNodes([1.0]), [1.0], (1,)),
      ValueError,
      r'starts must be rounds in rising order from 0, got \(1,\)',
    ),
    (
      lambda: recursion_lib.Scaled(recursion_lib.TreeNodes([1.0]), [1.0], (0, 2, 2)),
      ValueError,
      'starts must be rounds in rising order',
    ),
    (
      lambda: recursion_lib.Scaled(recursion_lib.TreeNodes([1.0]), [1.0], (0, 2)),
      ValueError,
      r'factors must be .* of shape \(2,\)',
    ),
    (
      lambda: recursion_lib.Scaled(recursion_lib.TreeNodes([1.0]), [1.0], (0.0,)),
      TypeError,
      r'starts\[0\] must be a whole number',
    ),
    (lambda: recursion_lib.DecayingSums([], []), ValueError, 'decays must be'),
    (
      lambda: recursion_lib.DecayingSums([0.5], [1.0, 2.0]),
      ValueError,
      r'outputs must be .* of shape \(1,\)',
    ),
    (
      lambda: recursion_lib.DecayingSums([0.5], [1.0], [1.0, 1.0]),
      ValueError,
      'ends must be',
    ),
    (
      lambda: recursion_lib.DecayingSums([0.5], [1.0], copies=2, delay=1),
      ValueError,
      '2 copies need ends',
    ),
    (
      lambda: recursion_lib.DecayingSums([0.5], [1.0], [1.0], copies=2),
      ValueError,
      'delay=0',
    ),
  ],
)
def test_data_that_make_no_recursion_are_refused(make, error, message):
  with pytest.raises(error, match=message):
    make()
