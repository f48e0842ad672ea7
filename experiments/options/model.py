"""Which model, and what is measured of it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable

from absl import flags

from .. import metrics
from .. import models
from ..models import kind as kind_lib
from . import of_task

NAMES = ('model', 'metric')


@dataclasses.dataclass(frozen=True)
class Model:
  """What is trained.

  Attributes:
    kind: Makes it for the data.
    metric: What is measured, besides the loss.
  """

  kind: kind_lib.Kind
  metric: metrics.Metric


def define(values: flags.FlagValues, tasks: Mapping[str, Any]) -> None:
  """Defines the flags.

  Args:
    values: Where to define them.
    tasks: The tasks by name, for defaults.
  """
  said = '; '.join(f'{kind.name}, {kind.summary}' for kind in models.KINDS.values())
  of_task.define(values, tasks, _one_of(models.KINDS), 'model', f'Model: {said}.')
  of_task.define(
    values,
    tasks,
    _one_of(metrics.METRICS),
    'metric',
    'What is measured on test data, beside the loss.',
  )


def _one_of(known: Mapping[str, Any]) -> Callable[..., Any]:
  """Defines a flag that is one of some names."""

  def define_flag(name: str, default: None, text: str, **where: Any) -> None:
    flags.DEFINE_enum(name, default, list(known), text, **where)

  return define_flag


def from_flags(values: flags.FlagValues) -> Model:
  """What the flags say.

  Args:
    values: Parsed flags, with the task's defaults.
  """
  return Model(models.KINDS[values.model], metrics.METRICS[values.metric])
