"""Measures the time that privacy adds to a round of federated averaging.

    python -m benchmarks.fed_avg_round [--rounds=15] [--clients=20]

Trains a multilayer perceptron of 996,000 parameters on clients with 20 random examples
each, in TFF's worker on all cores: without privacy, with TFF's own Gaussian mechanism,
and with mechanisms of this package, with secret noise (ChaCha20) or seeded noise
(Philox). The processes run in turn, a round each, so that slower minutes of the machine
affect all of them. Prints the median seconds of a round, and the ratio to the round
without privacy.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import collections
import statistics
import time
from typing import Any

from benchmarks import _arguments

if __name__ == '__main__':
  _FLAGS = _arguments.parse(__doc__ or '', rounds=15, clients=20)

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import _perceptron
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import strategies

_ROUNDS = 2048
_PARTICIPATION = strategies.Participation(
  _ROUNDS, min_separation=64, max_participations=4
)
_EXAMPLES = 20
_UNTIMED = 2
_LAYERS = (784, 796, 450, 27)  # 996,151 parameters.


def _cases() -> dict[str, tff.aggregators.UnweightedAggregationFactory]:
  numbers: dict[str, Any] = {
    'clip_norm': 1.0,
    'noise_multiplier': 1.0,
    'clients_per_round': 20,
  }
  banded = strategies.BandedToeplitz.square_root(_ROUNDS, 64)
  secret = {
    'gaussian': aggregators.gaussian(_PARTICIPATION, **numbers),
    '64 bands': aggregators.from_strategy(banded, _PARTICIPATION, **numbers),
    'tree': aggregators.tree(_PARTICIPATION, **numbers),
  }
  numbers['seed'] = 1
  seeded = {
    'gaussian, seed': aggregators.gaussian(_PARTICIPATION, **numbers),
    '64 bands, seed': aggregators.from_strategy(banded, _PARTICIPATION, **numbers),
    'tree, seed': aggregators.tree(_PARTICIPATION, **numbers),
  }
  return {
    'no privacy': tff.aggregators.UnweightedMeanFactory(),
    "TFF's gaussian": tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
      noise_multiplier=1.0, clients_per_round=20, clip=1.0
    ),
    **seeded,
    **secret,
  }


def _clients(num_clients: int) -> list[tf.data.Dataset]:
  rng = np.random.default_rng(1)
  return [
    tf.data.Dataset.from_tensor_slices(
      (
        rng.normal(size=(_EXAMPLES, _LAYERS[0])).astype(np.float32),
        rng.integers(_LAYERS[-1], size=_EXAMPLES),
      )
    ).batch(_EXAMPLES)
    for _ in range(num_clients)
  ]


def main(num_rounds: int, num_clients: int) -> None:
  model, clients = _perceptron.model(_LAYERS), _clients(num_clients)
  seconds = collections.defaultdict(list)
  with learning.runtime.local_runtime():
    runs = {
      name: learning.build_dp_fed_avg(model, aggregator)
      for name, aggregator in _cases().items()
    }
    states = {name: process.initialize() for name, process in runs.items()}
    for this_round in range(_UNTIMED + num_rounds):
      for name, process in runs.items():
        start = time.perf_counter()
        states[name] = process.next(states[name], clients).state
        if this_round >= _UNTIMED:
          seconds[name].append(time.perf_counter() - start)
  baseline = statistics.median(seconds['no privacy'])
  for name, values in seconds.items():
    median = statistics.median(values)
    print(f'{name:16} {median:7.3f} s   {median / baseline:5.2f} x')


if __name__ == '__main__':
  main(_FLAGS.rounds, _FLAGS.clients)
