"""A round of pfl-research (Apple), if it is installed: a peer for `simulation_round`.

It is in no lock; this adds it to an environment of this package:

    .venv/bin/python -m pip install --no-deps pfl multiprocess dill

It runs on TensorFlow here, as everything beside it (on PyTorch it is faster), and
trains one client after the other in one process.
"""

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

_UNTIMED = 2


def seconds_of_a_round(
  layers: tuple[int, ...],
  examples: Callable[[int], tuple[np.ndarray, np.ndarray]],
  clients: Sequence[int],
  batch_size: int,
  rounds: int,
) -> Optional[float]:
  """The median round of federated averaging with the Gaussian mechanism.

  Args:
    layers: Inputs, units of each hidden layer, and classes.
    examples: A client's, by its number.
    clients: Whom to draw from; as many are drawn in a round.
    batch_size: Examples of a batch.
    rounds: How many are timed.

  Returns:
    Seconds; `None` if pfl is not installed.
  """
  if importlib.util.find_spec('pfl') is None:
    return None
  from pfl import metrics
  from pfl.aggregate import simulate
  from pfl.algorithm import base as algorithm
  from pfl.algorithm import federated_averaging
  from pfl.callback import base as callbacks
  from pfl.data import dataset
  from pfl.data import federated_dataset
  from pfl.data import sampling
  from pfl.hyperparam import base as hyperparam
  from pfl.model import tensorflow as pfl_tensorflow
  from pfl.privacy import gaussian_mechanism
  from pfl.privacy import privacy_mechanism

  class Clock(callbacks.TrainingProcessCallback):
    """Notes when rounds end."""

    def __init__(self) -> None:
      self.times: list[float] = []

    def after_central_iteration(self, *args: Any, **kwargs: Any) -> Any:
      """Notes the time, and goes on."""
      del args, kwargs
      self.times.append(time.perf_counter())
      return False, metrics.Metrics()

  data = {number: examples(number) for number in set(clients)}
  population = federated_dataset.FederatedDataset(
    lambda number: dataset.Dataset(data[number]),
    sampling.get_user_sampler('random', list(data)),
  )
  mechanism = privacy_mechanism.CentrallyAppliedPrivacyMechanism(
    gaussian_mechanism.GaussianMechanism(1.0, 1.0)
  )
  clock = Clock()
  federated_averaging.FederatedAveraging().run(
    algorithm.NNAlgorithmParams(
      central_num_iterations=_UNTIMED + 1 + rounds,
      evaluation_frequency=10**9,
      train_cohort_size=len(clients),
      val_cohort_size=0,
    ),
    simulate.SimulatedBackend(population, population, [mechanism]),
    pfl_tensorflow.TFModel(
      _keras_model(layers), {}, tf.keras.optimizers.SGD(learning_rate=1.0)
    ),
    hyperparam.NNTrainHyperParams(
      local_batch_size=batch_size, local_num_epochs=1, local_learning_rate=0.1
    ),
    callbacks=[clock],
  )
  times = clock.times[_UNTIMED:]
  return statistics.median(b - a for a, b in zip(times, times[1:]))


def _keras_model(layers: tuple[int, ...]) -> tf.keras.Model:
  hidden = [tf.keras.layers.Dense(units, 'relu') for units in layers[1:-1]]
  model = tf.keras.Sequential(
    [tf.keras.Input([layers[0]]), *hidden, tf.keras.layers.Dense(layers[-1])]
  )
  model.compile(
    optimizer=tf.keras.optimizers.SGD(learning_rate=0.1),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )
  return model
