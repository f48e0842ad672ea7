"""What a task says about itself; flags, help and the simulation follow from it."""

import dataclasses
from typing import Any, Callable

import numpy as np

from experiments.tasks import population


@dataclasses.dataclass(frozen=True)
class Metric:
  """What is measured on test data after each round.

  Attributes:
    name: Of its column (after `test_`), its picture and in sentences.
    measure: Gives it from what the model puts out and the labels.
    limits: Least and largest value, for the picture.
  """

  name: str
  measure: Callable[[np.ndarray, np.ndarray], float]
  limits: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Defaults:
  """Values of the flags of the same names that the task works well with."""

  num_rounds: int
  num_clients: int
  clients_per_round: int
  min_separation: int
  clip_norm: float
  batch_size: int
  local_epochs: int
  client_learning_rate: float
  server_learning_rate: float


@dataclasses.dataclass(frozen=True)
class Task:
  """A federated population and a model to train on it.

  Attributes:
    name: Value of `--task`, and of file names.
    summary: One line, for `--help`: what it trains, and what it shows.
    max_clients: Most clients that there is data for.
    load: Makes the population from the number of clients, the Dirichlet parameter of
      the label skew and the seed of the split.
    model: Makes a `tff.learning.models.FunctionalModel` whose loss is that of a batch.
    metric: What is measured, besides the loss.
    defaults: Of flags.
  """

  name: str
  summary: str
  max_clients: int
  load: Callable[[int, float, int], population.Population]
  model: Callable[[], Any]
  metric: Metric
  defaults: Defaults

  def check_num_clients(self, num_clients: int) -> None:
    """Checks that there is data for so many clients, without loading it.

    Raises:
      ValueError: If there is not.
    """
    if num_clients > self.max_clients:
      raise ValueError(
        f'num_clients must be at most {self.max_clients}, the number of training '
        f'examples; got {num_clients}.'
      )
