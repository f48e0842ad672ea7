"""The audit reads the noise of the code that runs, and notices mistakes in it."""

import numpy as np
import pytest
import tensorflow as tf

from tff_dp_aggregators import accounting
from tff_dp_aggregators import noise
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.learning import audit
from tff_dp_aggregators.noise import rows as rows_lib
from tff_dp_aggregators.noise import streaming
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.strategies import registry

LIMITS = strategies.Participation(num_rounds=12, min_separation=4)


def _mechanism(kind='banded', **options):
  return accounting.Mechanism(kind, LIMITS, noise_multiplier=2.0, **options)


def _audit(mechanism, runtime='simulation', **options):
  return audit.audit(mechanism, runtimes=[runtime], **options)


@pytest.mark.few(2)
@pytest.mark.parametrize(
  'kind, storage',
  [
    (kind, storage)
    for kind in registry.KINDS
    for storage in ('state', 'redraw', 'files')
    if kind != 'gaussian' and (kind, storage) != ('tree', 'redraw')  # Not offered.
  ],
)
def test_the_noise_of_every_kind_is_that_of_its_strategy(kind, storage):
  mechanism = _mechanism(kind)
  (reading,) = _audit(mechanism, storage=storage, clip_norm=0.25)
  assert reading.why is None
  assert reading.differs < 1e-6
  assert reading.found <= mechanism.effective_noise_multiplier * 1.2


def test_tffs_runtime_has_the_same_noise():
  (reading,) = _audit(_mechanism(), 'tff', storage='files')
  assert reading.ok
  assert reading.differs < 1e-6


def test_where_patterns_can_be_enumerated_the_number_is_exact():
  (reading,) = _audit(_mechanism('banded'))
  assert reading.exact
  assert reading.found == pytest.approx(2 / np.sqrt(3), rel=1e-6)


def test_parts_have_noise_of_their_own():
  parts = (
    accounting.JointPart('body', '0', _mechanism('gaussian'), 0.3),
    accounting.JointPart('head', '1', _mechanism('banded'), 2.0),
  )
  readings = _audit(accounting.JointMechanism(parts))
  assert [each.part for each in readings] == ['body', 'head']
  assert all(each.ok and each.differs < 1e-6 for each in readings)


@pytest.mark.slow
def test_noise_of_counts_makes_that_of_adaptive_clipping_more():
  (reading,) = _audit(_mechanism('banded', clipped_count_stddev=3.0))
  assert reading.ok
  assert reading.differs < 1e-6
  assert reading.found > reading.claimed


@pytest.mark.parametrize(
  'kind, schema',
  [
    pytest.param('gaussian', sampling.PoissonSampling(12, 0.1), marks=pytest.mark.slow),
    ('blt', sampling.BallsInBins(12, 4)),
  ],
)
def test_of_sampled_mechanisms_the_covariance_is_the_claim(monkeypatch, kind, schema):
  mechanism = accounting.Mechanism(kind, schema, noise_multiplier=2.0)
  (reading,) = _audit(mechanism)
  assert reading.ok
  assert reading.is_sampled
  _of_less_correlated_noise(monkeypatch)
  (reading,) = _audit(mechanism)
  assert reading.ok == (kind == 'gaussian')  # Whose noise has no past.


def test_only_gaussian_noise_of_the_server_is_read():
  with pytest.raises(ValueError, match='laplace'):
    _audit(_mechanism('laplace'))
  with pytest.raises(ValueError, match='local'):
    _audit(_mechanism('gaussian', noise_site=noises.LOCAL.name))
  with pytest.raises(ValueError, match='first_rounds'):
    _audit(_mechanism(), first_rounds=13)
  with pytest.raises(ValueError, match='seed'):
    _audit(_mechanism(), seed=noise.Seed(1))


def _of_less_noise(monkeypatch):
  real = grid.add_noise
  monkeypatch.setattr(
    grid, 'add_noise', lambda sums, unit, stddev: real(sums, unit, 0.99 * stddev)
  )


def _of_tensors_with_the_same_noise(monkeypatch):
  real = grid.add_noise

  def add(sums, unit, stddev):
    first, second, *others = unit
    second = tf.concat([first, second[-1:]], axis=0)
    return real(sums, type(unit)([first, second, *others]), stddev)

  monkeypatch.setattr(grid, 'add_noise', add)


def _of_rounds_with_the_same_rows(monkeypatch):
  real = streaming.CarriedNoise.next

  def following(self, state):
    noised, after = real(self, state._replace(round=state.round // 2 * 2))
    return noised, after._replace(round=state.round + 1)

  monkeypatch.setattr(streaming.CarriedNoise, 'next', following)


def _of_less_correlated_noise(monkeypatch):
  real = streaming.CarriedNoise.next

  def following(self, state):
    forgotten = tf.nest.map_structure(tf.zeros_like, state.buffers)
    return real(self, state._replace(buffers=forgotten))

  monkeypatch.setattr(streaming.CarriedNoise, 'next', following)


def _of_signs_alone(monkeypatch):
  real = rows_lib.gaussians_of_words
  monkeypatch.setattr(
    rows_lib, 'gaussians_of_words', lambda words, more: tf.sign(real(words, more))
  )


@pytest.mark.parametrize(
  'mutate',
  [
    _of_signs_alone,
    _of_less_noise,
    _of_tensors_with_the_same_noise,
    _of_rounds_with_the_same_rows,
  ],
)
def test_a_mistake_is_noticed(monkeypatch, mutate):
  mutate(monkeypatch)
  (reading,) = _audit(_mechanism('banded'), storage='state')
  assert not reading.ok
  assert 'all weights, run by simulation: ' in reading.why


def test_a_bound_below_what_patterns_come_to_is_noticed(monkeypatch):
  limits = strategies.Participation(32, min_separation=8)
  real = strategies.BinaryTree.squared_or_bound
  monkeypatch.setattr(
    strategies.BinaryTree,
    'squared_or_bound',
    lambda self, schema: (0.25 * real(self, schema)[0], False),
  )
  mechanism = accounting.Mechanism('tree', limits, noise_multiplier=2.0)
  (reading,) = _audit(mechanism)
  assert not reading.exact
  assert 'is claimed' in reading.why


def test_a_key_that_serves_two_parts_is_noticed(monkeypatch):
  monkeypatch.setattr(
    rows_lib.GaussianRows, 'new_key', lambda self: tf.constant([1, 2, 3, 4], tf.int64)
  )
  parts = [
    accounting.JointPart(name, name, _mechanism('gaussian'), 1.0) for name in 'ab'
  ]
  assert not any(each.ok for each in _audit(accounting.JointMechanism(tuple(parts))))
