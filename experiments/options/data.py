"""Which data, and how they are dealt out to clients."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from absl import flags

from . import of_task

NAMES = ('num_clients', 'dirichlet_alpha')


@dataclasses.dataclass(frozen=True)
class Data:
  """What a task's data depend on.

  Attributes:
    num_clients: Clients that the examples are dealt out to; `None` if the data have
      clients.
    dirichlet_alpha: Label skew between clients; small is more skewed.
    seed: Of the split.
  """

  num_clients: Optional[int]
  dirichlet_alpha: float
  seed: int


def define(values: flags.FlagValues, tasks: Mapping[str, Any]) -> None:
  """Defines the flags.

  Args:
    values: Where to define them.
    tasks: The tasks by name, for defaults.
  """
  of_task.define(
    values, tasks, flags.DEFINE_integer, 'num_clients', 'Clients in the population.'
  )
  flags.DEFINE_float(
    'dirichlet_alpha',
    0.5,
    'Label skew between clients; small is more skewed.',
    flag_values=values,
  )


def from_flags(values: flags.FlagValues) -> Data:
  """What the flags say.

  Args:
    values: Parsed flags, with the task's defaults.

  Raises:
    ValueError: If a value is out of range.
  """
  if not values.dirichlet_alpha > 0:
    raise ValueError(f'dirichlet_alpha must be positive; got {values.dirichlet_alpha}.')
  return Data(
    num_clients=values.num_clients,
    dirichlet_alpha=values.dirichlet_alpha,
    seed=values.seed,
  )
