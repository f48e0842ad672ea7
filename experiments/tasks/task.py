"""Definition of a task, from which flags, their help and the simulation follow."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np

from ..data import arrangement
from ..data import population
from ..options import data as data_options


@dataclasses.dataclass(frozen=True)
class Defaults:
  """Default values of the flags of the same names.

  A `num_clients` of `None` means that the data have clients, and `hidden_units` of
  `None` means the model's default.
  """

  model: str
  num_rounds: int
  clients_per_round: int
  min_separation: int
  batch_size: int
  client_learning_rate: float
  server_learning_rate: float
  metric: str = 'accuracy'
  num_clients: Optional[int] = None
  clip_norm: float = 1.0
  local_epochs: int = 1
  hidden_units: Optional[int] = None
  target_delta: float = 1e-5


@dataclasses.dataclass(frozen=True)
class Task:
  """Data, and the defaults of model and settings for them."""

  name: str  # Value of `--task`; part of file names.
  summary: str  # One line for `--help`: what the task trains, and what it shows.
  # Raises `ValueError` or `OSError` for invalid options, within a second: it does not
  # read all data, or load TensorFlow.
  check: Callable[[data_options.Data], Any]
  load: Callable[[data_options.Data], population.Population]
  defaults: Defaults


def of_made_clients(
  name: str,
  num_examples: int,
  num_classes: int,
  check: Callable[[data_options.Data], Any],
  read: Callable[[data_options.Data, np.random.Generator], Mapping[str, Any]],
  **fields: Any,
) -> Task:
  """Returns a task whose examples of classes are dealt out with label skew.

  `num_examples`: Number of training examples.
  `read`: Returns `train` and `test`, inputs and labels each, and fields of the
    population.
  """

  def check_all(options: data_options.Data) -> None:
    check(options)
    if options.num_clients is None or options.num_clients > num_examples:
      raise ValueError(
        f'num_clients must be at most {num_examples}, the number of training '
        f'examples; got {options.num_clients}.'
      )

  def load(options: data_options.Data) -> population.Population:
    assert options.num_clients is not None
    rng = np.random.default_rng([options.seed, 0])
    of_data = dict(read(options, rng))
    (inputs, labels), test = of_data.pop('train'), of_data.pop('test')
    names, size = of_data.pop('names', None), inputs.shape[1:]
    parts = arrangement.split_with_label_skew(
      labels, options.num_clients, options.dirichlet_alpha, rng
    )
    return population.Population(
      clients={i: {'x': inputs[p], 'y': labels[p]} for i, p in enumerate(parts)},
      num_clients=len(parts),
      test_examples=test,
      shape=population.Shape(size, 'float32', (), 'class', num_classes, names),
      facts={'training examples': len(labels), 'test examples': len(test[1])},
      **of_data,
    )

  return Task(name=name, check=check_all, load=load, **fields)
