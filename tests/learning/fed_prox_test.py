"""Private FedProx pulls clients back to the model that they were given."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.learning import linear
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators.learning import runtime

_SIZES = {1: 8, 2: 4, 3: 20}  # Clients: none of them weighs more than another.


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with runtime.local_runtime():
    yield


def _build(model_fn, strength):
  return learning.build_dp_fed_prox(
    model_fn,
    aggregators.gaussian(clip_norm=1e4, noise_multiplier=0.0, clients_per_round=3),
    proximal_strength=strength,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )


def _clients():
  return [linear.client(seed, size) for seed, size in _SIZES.items()]


def _local_model(model, examples, strength):
  """After local training in batches of 4 (arXiv:1812.06127, equation 2)."""
  weights = model
  columns = np.column_stack([examples['x'], np.ones(len(examples['x']))])
  for begin in range(0, len(columns), 4):
    batch = columns[begin : begin + 4]
    residuals = batch @ weights - examples['y'][begin : begin + 4, 0]
    gradient = 2 * residuals @ batch / len(batch)
    weights = weights - 0.1 * (gradient + strength * (weights - model))
  return weights


@pytest.mark.parametrize(
  'name', ['functional', pytest.param('keras', marks=pytest.mark.slow)]
)
def test_models_follow_proximal_gradients(name):
  process = _build(linear.MODELS[name](), 3)
  _, weights = linear.train(process, _clients(), num_rounds=3)
  expected = np.zeros(3)
  for _ in range(3):
    expected = np.mean(
      [
        _local_model(expected, linear.examples(seed, size), 3.0)
        for seed, size in _SIZES.items()
      ],
      axis=0,
    )
  np.testing.assert_allclose(linear.flat(weights), expected, atol=1e-5)


def _step(process):
  return linear.flat(linear.train(process, _clients(), num_rounds=1)[1])


@pytest.mark.slow
def test_steps_are_shorter_than_those_of_fed_avg_and_with_fed_prox_of_tff_longer():
  without = _step(_build(linear.functional_model(), 0.0))
  shorter = _step(_build(linear.functional_model(), 5.0))
  assert np.linalg.norm(shorter) < 0.8 * np.linalg.norm(without)
  # If this fails with a later TFF, `fed_prox` can build on TFF's again.
  theirs = tff.learning.algorithms.build_unweighted_fed_prox(
    linear.functional_model(),
    5.0,
    tff.learning.optimizers.build_sgdm(0.1),
    tff.learning.optimizers.build_sgdm(1.0),
  )
  assert np.linalg.norm(_step(theirs)) > 1.2 * np.linalg.norm(without)


@pytest.mark.parametrize(
  ('strength', 'error'),
  [(-1.0, ValueError), (np.nan, ValueError), ('1', TypeError)],
)
def test_strengths_that_make_no_sense_are_refused(strength, error):
  with pytest.raises(error, match='proximal_strength'):
    _build(linear.functional_model(), strength)
