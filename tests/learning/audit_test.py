"""Tests of `learning.audit`, which reads the noise of running code to find mistakes."""

import numpy as np
import pytest
import tensorflow as tf

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import adaptive_clipping
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


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'kind, storage',
  [
    (kind, storage)
    for kind in registry.KINDS
    for storage in ('state', 'redraw', 'files')
    if kind != 'gaussian' and (kind, storage) != ('tree', 'redraw')  # Not offered.
  ],
)
def test_noise_of_each_kind_matches_its_strategy(kind, storage):
  mechanism = _mechanism(kind)
  (reading,) = _audit(mechanism, storage=storage, clip_norm=0.25)
  assert reading.why is None
  assert reading.differs < 1e-6
  assert reading.found <= mechanism.effective_noise_multiplier * 1.2


def test_noise_in_tff_runtime_matches_its_strategy():
  (reading,) = _audit(_mechanism(), 'tff', storage='files')
  assert reading.ok
  assert reading.differs < 1e-6


def test_audit_is_exact_where_patterns_can_be_enumerated():
  (reading,) = _audit(_mechanism('banded'))
  assert reading.exact
  assert reading.found == pytest.approx(2 / np.sqrt(3), rel=1e-6)


def test_audit_reads_each_part_of_joint_mechanism():
  parts = (
    accounting.JointPart('body', '0', _mechanism('gaussian'), 0.3),
    accounting.JointPart('head', '1', _mechanism('banded'), 2.0),
  )
  readings = _audit(accounting.JointMechanism(parts))
  assert [each.part for each in readings] == ['body', 'head']
  assert all(each.ok and each.differs < 1e-6 for each in readings)


def test_claim_with_adaptive_clipping_is_that_of_values_alone(monkeypatch):
  mechanism = _mechanism('gaussian', clipped_count_stddev=1.1)
  (reading,) = _audit(mechanism)
  assert reading.ok
  alone = 1 / np.sqrt(3 * (2**-2 - 2.2**-2))
  assert reading.claimed == pytest.approx(alone, rel=1e-9)
  assert reading.found == pytest.approx(alone, rel=1e-6)
  monkeypatch.setattr(adaptive_clipping, 'values_noise_multiplier', lambda z, s: z)
  (reading,) = _audit(mechanism)
  assert 'is claimed' in reading.why


@pytest.mark.parametrize(
  'kind, schema',
  [
    pytest.param('gaussian', sampling.PoissonSampling(12, 0.1), marks=pytest.mark.slow),
    ('blt', sampling.BallsInBins(12, 4)),
  ],
)
def test_audit_checks_noise_covariance_of_sampled_mechanisms(monkeypatch, kind, schema):
  mechanism = accounting.Mechanism(kind, schema, noise_multiplier=2.0)
  (reading,) = _audit(mechanism)
  assert reading.ok
  _forget_past_noise(monkeypatch)
  (reading,) = _audit(mechanism)
  assert reading.ok == (kind == 'gaussian')  # Its noise does not depend on the past.


def test_audit_refuses_other_noise_and_wrong_options():
  with pytest.raises(ValueError, match='laplace noise, made by server, .*only Gauss'):
    _audit(_mechanism('laplace'))
  with pytest.raises(ValueError, match='noise_multiplier=0'):
    _audit(accounting.Mechanism('gaussian', LIMITS, 0.0))
  with pytest.raises(ValueError, match='noise, made by local, .*only Gaussian'):
    _audit(_mechanism('gaussian', noise_site=noises.LOCAL.name))
  with pytest.raises(ValueError, match='first_rounds must be .* 12; got 13'):
    _audit(_mechanism(), first_rounds=13)


def _reduce_noise(monkeypatch):
  real = grid.add_noise
  monkeypatch.setattr(
    grid, 'add_noise', lambda sums, unit, stddev: real(sums, unit, 0.99 * stddev)
  )


def _repeat_noise_in_tensors(monkeypatch):
  real = grid.add_noise

  def mutated_add(sums, unit, stddev):
    first, second, *others = unit
    second = tf.concat([first, second[-1:]], axis=0)
    return real(sums, type(unit)([first, second, *others]), stddev)

  monkeypatch.setattr(grid, 'add_noise', mutated_add)


def _repeat_rows_in_rounds(monkeypatch):
  real = streaming.CarriedNoise.next

  def mutated_next(self, state):
    noised, after = real(self, state._replace(round=state.round // 2 * 2))
    return noised, after._replace(round=state.round + 1)

  monkeypatch.setattr(streaming.CarriedNoise, 'next', mutated_next)


def _forget_past_noise(monkeypatch):
  real = streaming.CarriedNoise.next

  def mutated_next(self, state):
    forgotten = tf.nest.map_structure(tf.zeros_like, state.buffers)
    return real(self, state._replace(buffers=forgotten))

  monkeypatch.setattr(streaming.CarriedNoise, 'next', mutated_next)


def _keep_only_signs(monkeypatch):
  real = rows_lib.gaussians_of_words
  monkeypatch.setattr(
    rows_lib, 'gaussians_of_words', lambda words, more: tf.sign(real(words, more))
  )


@pytest.mark.few(2)
@pytest.mark.parametrize(
  'mutate',
  [
    _keep_only_signs,
    _reduce_noise,
    _repeat_noise_in_tensors,
    _repeat_rows_in_rounds,
  ],
)
def test_audit_detects_mutated_noise(monkeypatch, mutate):
  mutate(monkeypatch)
  (reading,) = _audit(_mechanism('banded'), storage='state')
  assert not reading.ok
  assert 'all weights, run by simulation: ' in reading.why


def test_audit_detects_sensitivity_bound_that_is_too_low(monkeypatch):
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


def test_audit_detects_noise_key_shared_by_parts(monkeypatch):
  monkeypatch.setattr(
    rows_lib.GaussianRows, 'new_key', lambda self: tf.constant([1, 2, 3, 4], tf.int64)
  )
  parts = [
    accounting.JointPart(name, name, _mechanism('gaussian'), 1.0) for name in 'ab'
  ]
  assert not any(each.ok for each in _audit(accounting.JointMechanism(tuple(parts))))
