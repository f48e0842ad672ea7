"""Compares simulations of local privacy: noise of each client, or its approximation.

    python -m benchmarks.local_privacy [--cohort=1000] [--rounds=30] [--hidden=256]

Trains a perceptron of 64 features, `hidden` units and 10 classes, packed, on clients of
10 random examples in one batch, on all cores. Rounds of three processes run in turn:
each client adds noise (`aggregators.local_gaussian`, `local_laplace`), the server adds
noise of the same error instead (`approximate_local_gaussian`,
`approximate_local_laplace`: simulation only), and only the server adds noise
(`gaussian`), which is the baseline. All have a seed and Philox noise; local Gaussian
noise is measured with a secret key and ChaCha20 noise, too.

Prints the median round of each. The last lines are the ratios of local noise to its
approximation, medians of the ratios of rounds run side by side.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import statistics
import tempfile
import time
from typing import Any

from benchmarks import _arguments

if __name__ == '__main__':
  _FLAGS = _arguments.parse(__doc__ or '', cohort=1000, rounds=30, hidden=256)

import numpy as np
import tensorflow_federated as tff

from benchmarks import _perceptron
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed

_FEATURES, _CLASSES, _EXAMPLES = 64, 10, 10
_UNTIMED = 2
_SEED = noise.Seed(1)
# Each local mechanism with its approximation, and the seed of both.
_PAIRS = {
  'Gaussian, of a seed': ('local_gaussian', 'approximate_local_gaussian', _SEED),
  'Laplace, of a seed': ('local_laplace', 'approximate_local_laplace', _SEED),
  'Gaussian, secret': ('local_gaussian', 'approximate_local_gaussian', None),
}
_CENTRAL = 'noise of the server alone'


def _data(directory: str, cohort: int) -> packed.PackedData:
  rng = np.random.default_rng(0)
  x = rng.normal(size=[_EXAMPLES, _FEATURES]).astype(np.float32)
  y = rng.integers(_CLASSES, size=_EXAMPLES)
  clients = {number: (np.roll(x, number, axis=0), y) for number in range(cohort)}
  return packed.lay_out(learning.Clients.of(clients), os.path.join(directory, 'data'))


def _simulation(
  name: str, seed: noise.SeedLike, data: packed.PackedData, hidden: int
) -> packed.PackedFedAvg:
  training = packed.LocalTraining(
    _perceptron.model((_FEATURES, hidden, _CLASSES)),
    tff.learning.optimizers.build_sgdm(0.1),
    batch_size=_EXAMPLES,
  )
  aggregator = getattr(aggregators, name)(
    clip_norm=1.0, noise_multiplier=1.0, clients_per_round=len(data), seed=seed
  )
  return packed.PackedFedAvg(
    training,
    aggregator,
    data,
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
  )


def _seconds(
  simulations: dict[str, packed.PackedFedAvg], cohort: int, rounds: int
) -> dict[str, list[float]]:
  """Returns the seconds of each round of each simulation, which run in turn."""
  states: dict[str, Any] = {
    name: simulation.initialize() for name, simulation in simulations.items()
  }
  seconds: dict[str, list[float]] = {name: [] for name in simulations}
  clients = np.arange(cohort)
  for this_round in range(_UNTIMED + rounds):
    keys = local_order.keys(1, this_round, clients)
    for name, simulation in simulations.items():
      start = time.perf_counter()
      states[name], _ = simulation.next(states[name], clients, keys)
      if this_round >= _UNTIMED:
        seconds[name].append(time.perf_counter() - start)
  return seconds


def main() -> None:
  with tempfile.TemporaryDirectory() as scratch, learning.runtime.local_runtime():
    data = _data(scratch, _FLAGS.cohort)
    simulations = {_CENTRAL: _simulation('gaussian', _SEED, data, _FLAGS.hidden)}
    for label, (local, approximate, seed) in _PAIRS.items():
      for name in (local, approximate):
        simulations[f'{label}: {name}'] = _simulation(name, seed, data, _FLAGS.hidden)
    seconds = _seconds(simulations, _FLAGS.cohort, _FLAGS.rounds)
  size = (_FEATURES + 1) * _FLAGS.hidden + (_FLAGS.hidden + 1) * _CLASSES
  print(f'{size} parameters, {_FLAGS.cohort} clients a round; median round:')
  for name, times in seconds.items():
    print(f'{name:48s} {statistics.median(times) * 1e3:8.1f} ms')
  for label, (local, approximate, _) in _PAIRS.items():
    pairs = zip(seconds[f'{label}: {local}'], seconds[f'{label}: {approximate}'])
    ratio = statistics.median(exact / approximation for exact, approximation in pairs)
    print(f'noise of each client over its approximation, {label}: {ratio:.1f}')


if __name__ == '__main__':
  main()
