"""Times a round of pfl-research (Apple) on PyTorch: a peer for `simulation_round`.

It needs a separate environment, which is made once:

    tools/python/make_peer.sh pfl_research

This file is imported here, and run as a program in that environment. One process trains
one client after the other; clients' data are tensors in memory, no model is evaluated,
and nothing is written. PyTorch uses one thread or all cores, whichever is faster. The
mechanism is pfl's Gaussian one: each update is clipped, and noise added to the sum.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PYTHON = _ROOT / 'build' / 'peers' / 'pfl_research' / 'bin' / 'python'
_UNTIMED, _MIN_TIMED = 2, 3
_MAX_SECONDS = 15.0  # After which no more rounds are timed.
HOW_TO_MAKE = (
  'pfl-research on PyTorch: not measured, as it is not there; '
  'tools/python/make_peer.sh pfl_research makes it.'
)


def seconds_of_a_round(
  layers: tuple[int, ...],
  examples: Callable[[int], tuple[np.ndarray, np.ndarray]],
  cohort: int,
  batch_size: int,
  rounds: int,
  *,
  with_privacy: bool,
) -> Optional[float]:
  """Returns the median seconds of a round of federated averaging.

  Args:
    layers: Inputs, units of each hidden layer, and classes.
    examples: Returns the inputs and labels of a client, given its number.
    cohort: Clients of a round.
    batch_size: Examples of a batch.
    rounds: Number of timed rounds.
    with_privacy: Whether updates are clipped and noise is added.

  Returns:
    Seconds; `None` if the environment is not installed.

  Raises:
    RuntimeError: If the program failed there; contains its output.
  """
  if not _PYTHON.exists():
    return None
  x, y = zip(*(examples(number) for number in range(cohort)))
  with tempfile.TemporaryDirectory() as scratch:
    path = os.path.join(scratch, 'clients.npz')
    np.savez(path, x=np.stack(x), y=np.stack(y))
    case = [layers, batch_size, _UNTIMED + rounds, with_privacy]
    process = subprocess.run(
      [_PYTHON, __file__, path, json.dumps(case)], capture_output=True, text=True
    )
  if process.returncode:
    raise RuntimeError(f'pfl-research failed: {process.stderr[-2000:]}')
  by_threads = json.loads(process.stdout.splitlines()[-1])
  return min(statistics.median(seconds[_UNTIMED:]) for seconds in by_threads)


def _seconds_of_rounds(
  clients: Any, layers: list[int], batch_size: int, rounds: int, with_privacy: bool
) -> list[float]:
  """Returns the seconds of each round but the first, in which pfl evaluates."""
  import torch
  from pfl import metrics
  from pfl.aggregate import simulate
  from pfl.algorithm import base as algorithm
  from pfl.algorithm import federated_averaging
  from pfl.callback import base as callbacks
  from pfl.data import dataset
  from pfl.data import federated_dataset
  from pfl.data import sampling
  from pfl.hyperparam import base as hyperparam
  from pfl.model import pytorch as pfl_pytorch
  from pfl.privacy import gaussian_mechanism
  from pfl.privacy import privacy_mechanism

  class Perceptron(torch.nn.Sequential):
    """A model with the methods that pfl requires."""

    def loss(self, x: Any, y: Any) -> Any:
      return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: Any, y: Any) -> Any:
      return {'loss': metrics.Weighted(self.loss(x, y).item() * len(y), len(y))}

  class Clock(callbacks.TrainingProcessCallback):
    """Records when rounds end."""

    def __init__(self) -> None:
      self.times: list[float] = []

    def after_central_iteration(self, *args: Any, **kwargs: Any) -> Any:
      del args, kwargs
      self.times.append(time.perf_counter())
      took_long = self.times[-1] - self.times[0] > _MAX_SECONDS
      enough = len(self.times) > _UNTIMED + _MIN_TIMED
      return took_long and enough, metrics.Metrics()

  modules = []
  for inputs, outputs in zip(layers, layers[1:]):
    modules += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
  model = Perceptron(*modules[:-1])
  data = [
    dataset.Dataset([torch.from_numpy(x), torch.from_numpy(y)])
    for x, y in zip(clients['x'], clients['y'])
  ]
  population = federated_dataset.FederatedDataset(
    data.__getitem__, sampling.get_user_sampler('random', list(range(len(data))))
  )
  mechanism = privacy_mechanism.CentrallyAppliedPrivacyMechanism(
    gaussian_mechanism.GaussianMechanism(1.0, 1.0)
  )
  clock = Clock()
  federated_averaging.FederatedAveraging().run(
    algorithm.NNAlgorithmParams(
      central_num_iterations=1 + rounds,
      evaluation_frequency=10**9,
      train_cohort_size=len(data),
      val_cohort_size=0,
    ),
    simulate.SimulatedBackend(
      population, population, [mechanism] if with_privacy else []
    ),
    pfl_pytorch.PyTorchModel(
      model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)
    ),
    hyperparam.NNTrainHyperParams(
      local_batch_size=batch_size, local_num_epochs=1, local_learning_rate=0.1
    ),
    callbacks=[clock],
  )
  return [b - a for a, b in zip(clock.times, clock.times[1:])]


def main() -> None:
  """Prints the seconds of each round, for one thread and for all cores."""
  import torch

  by_threads = []
  for threads in {1, os.cpu_count() or 1}:
    torch.set_num_threads(threads)
    case = json.loads(sys.argv[2])
    by_threads.append(_seconds_of_rounds(np.load(sys.argv[1]), *case))
  print(json.dumps(by_threads))


if __name__ == '__main__':
  main()
