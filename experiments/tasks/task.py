"""Definition of a task, from which flags, their help and the simulation follow."""

import dataclasses
from typing import Any, Callable, Optional

import numpy as np

from ..data import arrangement
from ..data import population
from ..data import texts
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


def check_num_clients(options: data_options.Data, maximum: int) -> None:
  """Refuses more clients than examples, for data that are split over made clients."""
  if options.num_clients is None or options.num_clients > maximum:
    raise ValueError(
      f'num_clients must be at most {maximum}, the number of training examples; got '
      f'{options.num_clients}.'
    )


def split_with_label_skew(
  train: tuple[np.ndarray, np.ndarray],
  test: tuple[np.ndarray, np.ndarray],
  options: data_options.Data,
  rng: np.random.Generator,
  *,
  num_classes: int,
  names: Optional[tuple[str, ...]] = None,
  not_covered: tuple[str, ...] = (),
) -> population.Population:
  """Splits examples of classes over made clients with label skew."""
  inputs, labels = train
  assert options.num_clients is not None
  parts = arrangement.split_with_label_skew(
    labels, options.num_clients, options.dirichlet_alpha, rng
  )
  clients = [{'x': inputs[part], 'y': labels[part]} for part in parts]
  return population.Population(
    clients=dict(enumerate(clients)),
    num_clients=len(clients),
    test_examples=test,
    shape=shape_of_classes(inputs.shape[1:], num_classes, names),
    facts={'training examples': len(labels), 'test examples': len(test[1])},
    not_covered=not_covered,
  )


def shape_of_classes(
  inputs: tuple[int, ...], num_classes: int, names: Optional[tuple[str, ...]] = None
) -> population.Shape:
  return population.Shape(inputs, 'float32', (), 'class', num_classes, names)


def shape_of_tokens(
  vocabulary: texts.Vocabulary, length: int, **unscored: Any
) -> population.Shape:
  return population.Shape(
    (length,),
    'int32',
    (length,),
    'tokens',
    len(vocabulary.names),
    vocabulary.names,
    ignored_labels=(texts.PADDING,),
    **unscored,
  )
