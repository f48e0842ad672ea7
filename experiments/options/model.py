"""Which model, what it minimises, and what is measured of it."""

import dataclasses
from typing import Callable, Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import checks

from .. import losses
from .. import metrics
from .. import models
from ..models import kind as kind_lib
from ..models import own

Flag = program.Flag
_WIDTHS = ('hidden_units', 'embedding_size')


@dataclasses.dataclass(frozen=True)
class Model:
  """What is trained.

  Attributes:
    kind: Makes it for the data.
    metric: What is measured, besides the loss.
    loss: What is minimised; `None` for what goes with the labels.
    hidden_units: Width of hidden layers; `None` for the model's own.
    embedding_size: Of a token, or of a value of a column; `None` for the model's own.
  """

  kind: kind_lib.Kind
  metric: metrics.Metric
  loss: Optional[str] = None
  hidden_units: Optional[int] = None
  embedding_size: Optional[int] = None

  @property
  def is_own(self) -> bool:
    """Whether it is the user's own."""
    return ':' in self.kind.name


def rows(unset: Callable[[str], str]) -> tuple[Flag, ...]:
  """The flags."""
  said = '; '.join(f'{kind.name}, {kind.summary}' for kind in models.KINDS.values())
  return (
    Flag(
      'model',
      str,
      f'Model: {said}; or package.module:function, which makes your own Keras or '
      'functional model, from the current directory or an installed package.',
      unset=unset('model'),
      is_basic=True,
    ),
    Flag(
      'hidden_units',
      int,
      f'Width of hidden layers. {_widths("hidden_units")}',
      unset=unset('hidden_units'),
    ),
    Flag(
      'embedding_size',
      int,
      'Size of the embedding of a token, or of a value of --embedding_columns. '
      + _widths('embedding_size'),
    ),
    Flag(
      'loss',
      str,
      f'What is minimised: {", ".join(losses.LOSSES)}; for your own Keras model also '
      'the name of one of its losses.',
      unset='what goes with the labels',
    ),
    Flag(
      'metric',
      list(metrics.METRICS),
      'What is measured on test data, beside the loss.',
      unset=unset('metric'),
    ),
  )


def _widths(name: str) -> str:
  own_widths = (
    f'{kind.widths[name]} of {kind.name}'
    for kind in models.KINDS.values()
    if name in kind.widths
  )
  return f'Without it, the model has its own: {", ".join(own_widths)}.'


def from_flags(values: flags.FlagValues) -> Model:
  """What the flags say."""
  kind = _kind(values.model)
  for name in _WIDTHS:
    if values[name].value is None:
      continue
    of_columns = name == 'embedding_size' and kind.embeds_columns
    if name not in kind.widths or (of_columns and not values.embedding_columns):
      if values[name].using_default_value:
        values[name].value = None  # A task's, for another model.
        continue
      having = [each.name for each in models.KINDS.values() if name in each.widths]
      if of_columns:
        raise ValueError(
          f'--{name} of --model={kind.name} is that of --embedding_columns; give them '
          'as well, or leave it out.'
        )
      raise ValueError(
        f'--{name} does not go with --model={kind.name}, which has none; those that '
        f'have are {", ".join(having)}.'
      )
    checks.check_positive_int(name, values[name].value)
  if values.loss is not None and ':' not in values.model:
    losses.check(values.loss)
  return Model(
    kind,
    metrics.METRICS[values.metric],
    loss=values.loss,
    hidden_units=values.hidden_units,
    embedding_size=values.embedding_size,
  )


def _kind(name: str) -> kind_lib.Kind:
  if name in models.KINDS:
    return models.KINDS[name]
  if ':' in name:
    return own.kind(name)
  raise ValueError(
    f'--model={name} is none of {", ".join(models.KINDS)}; your own is given as '
    '--model=package.module:function.'
  )
