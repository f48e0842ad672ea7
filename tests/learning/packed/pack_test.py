"""A client's sum is within its bound, however many are encoded at once."""

import fractions

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators.queries import grid

_CLIP_NORM, _NOISE_MULTIPLIER = 0.3, 1.0
_SIZE = 17


def _hostile_records():
  rng = np.random.default_rng(3)
  normal = rng.normal(size=_SIZE)
  just_below = normal / np.linalg.norm(normal) * _CLIP_NORM
  records = [
    normal,
    just_below,
    just_below * (1 + 1e-6),
    normal * 1e30,
    np.full(_SIZE, 3e38),
    normal * 1e-30,
    np.full(_SIZE, 1e-45),
    np.zeros(_SIZE),
    np.where(np.arange(_SIZE) == 4, np.nan, normal),
    np.where(np.arange(_SIZE) == 16, np.inf, normal),
    np.where(np.arange(_SIZE) == 0, -np.inf, 0.0),
    np.eye(_SIZE)[2] * -7,
  ]
  return np.array(records).astype(np.float32)


def test_records_encoded_at_once_are_within_the_bound_and_those_of_each_alone():
  aggregator = aggregators.gaussian(
    clip_norm=_CLIP_NORM, noise_multiplier=_NOISE_MULTIPLIER, clients_per_round=4
  )
  mean = aggregator.mean_of(tff.TensorType(np.float32, [_SIZE]))
  params = tf.constant(_CLIP_NORM, tf.float32)
  records = _hostile_records()

  @tf.function
  def at_once(stacked):
    return tf.vectorized_map(
      lambda record: mean.encode(params, record),
      stacked,
      fallback_to_while_loop=False,
    )

  sample, counts = at_once(tf.constant(records))
  steps = fractions.Fraction(float(grid.steps_per_unit(params, _NOISE_MULTIPLIER)))
  bound = fractions.Fraction(float(np.float32(_CLIP_NORM))) * steps
  for record, integers, nonfinite in zip(
    records, sample.numpy(), counts.nonfinite.numpy()
  ):
    alone, counted = mean.encode(params, tf.constant(record))
    assert nonfinite == counted.nonfinite.numpy() == (not np.isfinite(record).all())
    assert sum(int(each) ** 2 for each in integers) <= bound**2
    np.testing.assert_allclose(integers, alone.numpy(), rtol=1e-6, atol=1)
    if nonfinite:
      assert not integers.any()
  assert counts.clients.numpy().tolist() == [1] * len(records)
