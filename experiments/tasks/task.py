"""What a task says about itself; flags, help and the simulation follow from it."""

import dataclasses
from typing import Callable, Optional

from ..data import population
from ..options import data as data_options


@dataclasses.dataclass(frozen=True)
class Defaults:
  """Values of the flags of the same names that the task works well with.

  A `num_clients` of `None` says that the data have their clients already.
  """

  model: str
  metric: str
  num_rounds: int
  num_clients: Optional[int]
  clients_per_round: int
  min_separation: int
  clip_norm: float
  batch_size: int
  local_epochs: int
  client_learning_rate: float
  server_learning_rate: float


@dataclasses.dataclass(frozen=True)
class Task:
  """Data, with the model and the settings that suit them.

  Attributes:
    name: Value of `--task`, and of file names.
    summary: One line, for `--help`: what it trains, and what it shows.
    check: Refuses options that the data cannot be had with (`ValueError`, `OSError`),
      within a second: without reading all data, or loading TensorFlow.
    load: Makes the population.
    defaults: Of flags.
    takes_data: Whether it goes with the user's own data, `--data`, as well.
  """

  name: str
  summary: str
  check: Callable[[data_options.Data], None]
  load: Callable[[data_options.Data], population.Population]
  defaults: Defaults
  takes_data: bool = False
