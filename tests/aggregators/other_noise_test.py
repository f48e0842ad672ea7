"""Means that are not matrix mechanisms: Laplace noise, and clipping alone."""

import math

import dp_accounting
import numpy as np
import pytest
import scipy.stats
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies

_LIMITS = strategies.Participation(5, min_separation=2, max_participations=2)
_VECTOR = tff.TensorType(np.float32, [2])
_runtime = running.local_runtime


def _laplace(**kwargs):
  return aggregators.laplace(
    **{
      'participation': _LIMITS,
      'clip_norm': 1.0,
      'noise_multiplier': 2.0,
      'clients_per_round': 4,
      'seed': noise.Seed(1),
      **kwargs,
    }
  )


def test_laplace_mean_clips_l1_norm_and_adds_laplace_noise():
  size = 50_000
  factory = _laplace(clip_norm=3.0)
  process = factory.create(tff.TensorType(np.float32, [size]))
  large = np.zeros(size, np.float32)
  large[:2] = [400.0, -200.0]
  values = [large, np.zeros(size, np.float32)]
  output = process.next(process.initialize(), values)
  # (400, -200) clipped to an L1 norm of 3, over four clients.
  signal = np.zeros(size)
  signal[:2] = [2.0 / 4, -1.0 / 4]
  noise_alone = output.result - signal
  scale = 3.0 * 2.0 / 4
  kolmogorov_smirnov = scipy.stats.kstest(noise_alone, 'laplace', args=(0, scale))
  assert kolmogorov_smirnov.pvalue > 1e-8


@pytest.mark.parametrize('order', [1, 3.5])
def test_norm_clip_bounds_each_client_and_is_not_private(order):
  factory = aggregators.norm_clip(order=order, clip_norm=0.5, clients_per_round=2)
  process = factory.create(_VECTOR)
  for value in ([3.0, -4.0], [0.1, 0.2], [1e38, 1e38], [math.nan, 1.0]):
    output = process.next(process.initialize(), [np.float32(value)])
    norm = np.linalg.norm(np.float64(output.result), order)
    # Integers are within the bound (tests/queries); floats of the mean are rounded.
    assert norm <= 0.5 / 2 * (1 + 2.0**-23)
    if 1 < np.linalg.norm(value, order) < math.inf:
      assert norm == pytest.approx(0.5 / 2, rel=1e-5)
  spent = aggregators.extract_dp_event(output.state)
  assert spent.all_rounds_so_far == dp_accounting.NonPrivateDpEvent()
  assert output.measurements['nonfinite_count'] == 1


def test_laplace_factory_has_no_attributes_of_matrix_mechanisms():
  for name in ('strategy', 'effective_noise_multiplier'):
    with pytest.raises(ValueError, match=f'has no {name}'):
      getattr(_laplace(), name)
  assert _laplace().participation == _LIMITS
