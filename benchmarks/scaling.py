"""Compares rounds on a local Dask cluster with the same rounds in one process.

    python -m benchmarks.scaling [--cohorts=100,1000,10000] [--workers=1,2] [--rounds=8]

Trains perceptrons (64 features, 10 classes) of about 10^3 and 10^6 parameters on
clients with 20 random examples each, in one batch, with banded noise: in this process
on all cores, and on the workers of `local:N`. A line for each case has clients per
second of the median round, its seconds, and the speedup over one process. Cohorts with
more clients times parameters than --largest are left out.

On a real cluster, each round sends the model, 4 bytes a parameter, once to each worker,
and the sums of packs, 8 bytes a parameter, at most once for each pack; here both go
through memory, not through a network.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import contextlib
import statistics
import tempfile
import time
from typing import Any, Optional

from benchmarks import _arguments

if __name__ == '__main__':
  _FLAGS = _arguments.parse(
    __doc__ or '',
    cohorts='100,1000,10000',
    parameters='1000,1000000',
    workers='1,2',
    largest=2 * 10**8,
    rounds=8,
  )

import numpy as np
import tensorflow_federated as tff

from benchmarks import _perceptron
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed

_FEATURES, _CLASSES, _EXAMPLES = 64, 10, 20
_UNTIMED = 2


class _Clients:
  """Clients with random examples."""

  def __init__(self, count: int):
    self._number = count
    rng = np.random.default_rng(0)
    self._x = rng.normal(size=[_EXAMPLES, _FEATURES]).astype(np.float32)
    self._y = rng.integers(_CLASSES, size=_EXAMPLES)

  def __len__(self) -> int:
    return self._number

  def examples(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same examples for each client, in another order and scale."""
    return np.roll(self._x, number, axis=0) * np.float32(1 + number % 7), self._y


def _seconds(
  layers: tuple[int, ...], data: packed.PackedData, cohort: int, used: Optional[Any]
) -> float:
  """Returns the seconds of the median round."""
  simulation = packed.PackedFedAvg(
    packed.LocalTraining(
      _perceptron.model(layers),
      tff.learning.optimizers.build_sgdm(0.1),
      batch_size=_EXAMPLES,
    ),
    aggregators.banded(
      strategies.Participation(1000, min_separation=10),
      clip_norm=1.0,
      noise_multiplier=1.0,
      clients_per_round=cohort,
      seed=noise.Seed(1),
    ),
    data,
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
    cluster=used,
  )
  state, seconds = simulation.initialize(), []
  rng = np.random.default_rng(3)
  for number in range(_UNTIMED + _FLAGS.rounds):
    clients = rng.choice(len(data), cohort, replace=False)
    keys = local_order.keys(1, number, clients)
    start = time.perf_counter()
    state, _ = simulation.next(state, clients, keys)
    seconds.append(time.perf_counter() - start)
  return statistics.median(seconds[_UNTIMED:])


def _layers(parameters: int) -> tuple[int, ...]:
  """Returns the layers of a perceptron with about so many parameters."""
  units = (parameters - _CLASSES) // (_FEATURES + 1 + _CLASSES)
  return (_FEATURES, units, _CLASSES)


def main() -> None:
  cohorts, sizes, workers = (
    [int(each) for each in text.split(',')]
    for text in (_FLAGS.cohorts, _FLAGS.parameters, _FLAGS.workers)
  )
  with contextlib.ExitStack() as stack:
    scratch = stack.enter_context(tempfile.TemporaryDirectory())
    data = packed.lay_out(_Clients(max(cohorts)), os.path.join(scratch, 'data'))
    alone: dict[tuple[int, int], float] = {}
    for number in (0, *workers):
      with contextlib.ExitStack() as inner:
        used = None
        if number:
          client = inner.enter_context(cluster.connect(f'local:{number}'))
          used = inner.enter_context(contextlib.closing(cluster.Cluster(client)))
        for size in sizes:
          for cohort in (each for each in cohorts if each * size <= _FLAGS.largest):
            seconds = _seconds(_layers(size), data, cohort, used)
            alone.setdefault((size, cohort), seconds)
            label = f'{number} workers' if number else 'one process'
            print(
              f'{size:8d} parameters  {cohort:6d} clients  {label:12} '
              f'{cohort / seconds:9.0f} clients/s  {seconds:7.3f} s  '
              f'{alone[size, cohort] / seconds:5.2f} times one process',
              flush=True,
            )


if __name__ == '__main__':
  main()
