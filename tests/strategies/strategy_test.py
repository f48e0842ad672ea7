"""Tests of what all strategies share: files, checksums, errors, read-only arrays."""

import copy
import json
import math
import pickle

import numpy as np
import pytest

from tests.strategies import every_kind
from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import Banded
from tff_dp_aggregators.strategies import BandedToeplitz
from tff_dp_aggregators.strategies import BinaryTree
from tff_dp_aggregators.strategies import Dense
from tff_dp_aggregators.strategies import EpochToeplitz
from tff_dp_aggregators.strategies import Identity
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import Strategy
from tff_dp_aggregators.strategies import Workload

_SCALED = EpochToeplitz(11, (0, 4), (1.2, 1 / 3), (1.0, 0.5, 0.1))
_NINE_ROUNDS = {name: make(9) for name, make in every_kind.STRATEGIES.items()}
STRATEGIES = {
  **_NINE_ROUNDS,
  'awkward': BandedToeplitz(4, (1 / 3, -5e-324, 1e300)),
  'one_round': BinaryTree(1),
}
each_strategy = pytest.mark.parametrize(
  'strategy', STRATEGIES.values(), ids=STRATEGIES.keys()
)
each_nine_round_strategy = pytest.mark.parametrize(
  'strategy', _NINE_ROUNDS.values(), ids=_NINE_ROUNDS.keys()
)
each_file = pytest.mark.parametrize('name', ['strategy.json', 'strategy.npz'])


@each_strategy
@each_file
def test_saved_strategy_loads_exactly_and_is_not_overwritten(strategy, name, tmp_path):
  strategy.save(tmp_path / name)
  loaded = Strategy.load(tmp_path / name)
  assert type(loaded) is type(strategy)
  assert loaded == strategy and loaded.checksum == strategy.checksum
  with pytest.raises(FileExistsError, match='is not overwritten'):
    strategy.save(str(tmp_path / name))


def test_unknown_suffixes_and_missing_files_are_errors(tmp_path):
  for function in (BinaryTree(8).save, Strategy.load):
    with pytest.raises(ValueError, match=r"in a .json or .npz file, not in '.*\.pkl'"):
      function(tmp_path / 'strategy.pkl')
  with pytest.raises(FileNotFoundError):
    Strategy.load(tmp_path / 'none.npz')


@each_file
@pytest.mark.parametrize('kind', ['awkward', 'dense', 'epoch_windowed_blt'])
def test_file_with_a_flipped_bit_is_refused_or_loads_the_same(kind, name, tmp_path):
  strategy = STRATEGIES[kind]
  path = tmp_path / name
  strategy.save(path)
  data = path.read_bytes()
  refused = 0
  for position in np.random.default_rng(4).integers(len(data), size=60):
    changed = bytes([data[position] ^ 1])
    path.write_bytes(data[:position] + changed + data[position + 1 :])
    try:
      assert Strategy.load(path) == strategy
    except ValueError as e:
      assert str(path) in str(e)
      refused += 1
  assert refused > 20  # Some bits, such as those of dates in an archive, mean nothing.


@each_file
@pytest.mark.parametrize('content', [b'', b'PK', b'\xff\xfe', b'\x93NUMPY', b'{}'])
def test_load_refuses_files_that_are_not_strategies(name, content, tmp_path):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(ValueError, match="not a saved strategy|'utf-8' codec"):
    Strategy.load(tmp_path / name)


def test_load_refuses_archives_of_other_arrays(tmp_path):
  for arrays in (
    {'x': np.ones(3)},
    {'strategy': np.ones(3)},
    {'strategy': np.array('{"format": 1}')},
    {'strategy': np.array('[]')},
    {'strategy': np.array(['pickled'], dtype=object)},
  ):
    np.savez(tmp_path / 'other.npz', **arrays)
    with pytest.raises(ValueError, match='not a saved strategy'):
      Strategy.load(tmp_path / 'other.npz')


def test_checksums_do_not_change_between_releases():
  # Ledgers refer to strategies by these; changing one orphans files on disk.
  assert BinaryTree(8).checksum == (
    'sha256:203be3c86ed2a82757497f0e7dc95768c627435fdf5f26169fddc5efcd5da779'
  )
  assert Identity(8).checksum == (
    'sha256:e3c078cb9f1c7f279b9f34084d6151ea887478506b060c2a2bf36da5c2098dce'
  )
  assert BandedToeplitz(8, (1.0, 0.5, 0.25)).checksum == (
    'sha256:f66e8318bf6211df1e7b56e960267a92e10345d41699677b4e2201d112573b19'
  )


def test_checksums_of_different_strategies_differ():
  others = [
    BinaryTree(10),
    BandedToeplitz(9, (1.0,)),
    BandedToeplitz(9, (1.0 + 2**-52,)),
  ]
  checksums = {strategy.checksum for strategy in [*STRATEGIES.values(), *others]}
  assert len(checksums) == len(STRATEGIES) + len(others)


def altered(strategy, **changes):
  data = json.loads(strategy.to_json())
  for key, value in changes.items():
    if key in data['parameters']:
      data['parameters'][key] = value
    elif value is None:
      del data[key]
    else:
      data[key] = value
  return json.dumps(data)


@pytest.mark.parametrize(
  'text, message',
  [
    (altered(BinaryTree(8), num_rounds=9), 'was altered: it states checksum'),
    (altered(Identity(8), kind='banded_toeplitz'), 'was altered'),
    (altered(_SCALED, epoch_scales=[1.2, 0.3]), 'was altered'),
    (altered(_SCALED, epoch_scales=[1.2, 0.0]), 'must be positive'),
    (altered(STRATEGIES['epoch_windowed_blt'], kind='windowed_blt'), 'incomplete'),
    (altered(BinaryTree(8), checksum='sha256:00'), "states checksum 'sha256:00'"),
    (altered(BinaryTree(8), kind='blt-9'), "unknown strategy kind 'blt-9'; known:"),
    (altered(BinaryTree(8), version=2), 'has version 2; this release reads'),
    (altered(BinaryTree(8), format='pickle'), 'not a saved strategy: it has no'),
    (altered(BinaryTree(8), parameters={}), 'binary_tree strategy is incomplete'),
    (altered(BinaryTree(8), num_rounds=8.0), 'num_rounds must be a whole number'),
    (altered(Identity(8), coefficients=[10**400]), 'incomplete'),
    (altered(Identity(8), coefficients=[float('nan')]), 'must be finite'),
    ('{"format": ', 'not a saved strategy: Expecting value'),
  ],
)
def test_from_json_refuses_altered_or_foreign_text(text, message):
  with pytest.raises(ValueError, match=message):
    Strategy.from_json(text)


@each_nine_round_strategy
def test_error_of_array_workload_equals_dense_linear_algebra(strategy):
  n = strategy.num_rounds
  workload = np.tril(np.random.default_rng(3).normal(size=(n, n)))
  # Any estimate of the workload goes through the noisy prefix sums.
  estimator = workload @ np.linalg.inv(np.tri(n)) @ strategy.materialize_estimator()
  np.testing.assert_allclose(estimator @ strategy.materialize(), workload, atol=1e-12)
  expected = np.square(estimator).sum(axis=1)
  np.testing.assert_allclose(strategy.per_query_error(workload), expected, rtol=1e-9)
  sensitivity = strategy.sensitivity()
  assert strategy.rmse(workload=workload) == pytest.approx(
    sensitivity * math.sqrt(expected.mean()), rel=1e-9
  )
  assert strategy.max_error(workload=workload) == pytest.approx(
    sensitivity * math.sqrt(expected.max()), rel=1e-9
  )


@each_nine_round_strategy
@pytest.mark.parametrize(
  'workload',
  [
    Workload(9, 0.9),
    Workload(9, weight_decay=0.2),
    Workload(9, 0.5, (2.0,) * 5 + (1.0, 0.5, 0.1, 0.0), weight_decay=0.1),
  ],
  ids=['momentum', 'decay', 'all'],
)
def test_error_of_workload_equals_that_of_its_dense_matrix(strategy, workload):
  np.testing.assert_allclose(
    strategy.per_query_error(workload),
    strategy.per_query_error(workload.materialize()),
    rtol=1e-10,
  )


@each_nine_round_strategy
def test_error_by_round_is_sensitivity_times_estimator_row_norms(strategy):
  participation = Participation(9, 3)
  norms = np.linalg.norm(strategy.materialize_estimator(), axis=1)
  expected = strategy.sensitivity(participation) * norms
  actual = strategy.error_by_round(participation)
  np.testing.assert_allclose(actual, expected, rtol=1e-12)


@each_nine_round_strategy
def test_workload_or_participation_of_other_num_rounds_is_refused(strategy):
  for workload in (np.ones((9, 10)), np.tri(10)):
    with pytest.raises(ValueError, match='workload must be lower-triangular of shape'):
      strategy.per_query_error(workload)
  with pytest.raises(ValueError, match='participation.num_rounds is'):
    strategy.sensitivity(Participation(10))
  for wrong in (9, [9, 2]):
    with pytest.raises(TypeError, match='^participation must be a strategies.Parti'):
      strategy.rmse(wrong)


def test_second_class_of_the_same_kind_is_refused():
  with pytest.raises(ValueError, match="'banded_toeplitz' is taken by .*toeplitz"):

    class Other(strategies.Identity):
      kind = 'banded_toeplitz'

  saved = strategies.BandedToeplitz(4, (1.0, 0.5))
  assert type(strategies.Strategy.from_json(saved.to_json())) is type(saved)


@pytest.mark.parametrize(
  'copy_of',
  [
    lambda strategy: strategy,
    copy.copy,
    copy.deepcopy,
    lambda strategy: pickle.loads(pickle.dumps(strategy)),
  ],
)
def test_arrays_of_strategies_and_their_copies_are_read_only(copy_of):
  # Otherwise noise could be that of one matrix, and accounting that of another.
  participation = Participation(8, 2)
  for original, name in (
    (Dense(8, np.tril(np.ones((8, 8)))), 'matrix'),
    (Banded(8, np.array([[1.0] * 8, [0.5] * 7 + [0.0]])), 'diagonals'),
  ):
    sensitivity, checksum = original.sensitivity(participation), original.checksum
    duplicate = copy_of(original)
    assert duplicate == original
    array = getattr(duplicate, name)
    with pytest.raises(ValueError, match='read-only'):
      array[0, 0] = 50.0
    with pytest.raises(ValueError, match='WRITEABLE'):
      array.setflags(write=True)
    assert duplicate.sensitivity(participation) == sensitivity
    assert duplicate.checksum == checksum
