"""Which model, what it minimises, and what is measured of it."""

import dataclasses
from typing import Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import program

from .. import losses
from .. import metrics
from .. import models
from ..models import kind as kind_lib
from ..models import own


def _widths(name: str) -> str:
  own_widths = (
    f'{kind.widths[name]} of {kind.name}'
    for kind in models.KINDS.values()
    if name in kind.widths
  )
  return f'Without it, the model has its own: {", ".join(own_widths)}.'


@dataclasses.dataclass(frozen=True)
class Model:
  kind: kind_lib.Kind  # Makes it for the data.
  metric: metrics.Metric  # What is measured, besides the loss.
  loss: Optional[str] = program.flag(
    f'What is minimised: {", ".join(losses.LOSSES)}; for your own Keras model also the '
    'name of one of its losses.',
    unset='what goes with the labels',
  )
  hidden_units: Optional[int] = program.flag(
    f'Width of hidden layers. {_widths("hidden_units")}', at_least=1
  )
  embedding_size: Optional[int] = program.flag(
    'Size of the embedding of a token, or of a value of --embedding_columns. '
    + _widths('embedding_size'),
    at_least=1,
  )

  @property
  def is_own(self) -> bool:
    return ':' in self.kind.name


def rows() -> tuple[program.Flag, ...]:
  said = '; '.join(f'{kind.name}, {kind.summary}' for kind in models.KINDS.values())
  return (
    program.Flag(
      'model',
      str,
      f'Model: {said}; or package.module:function, which makes your own Keras or '
      'functional model, from the current directory or an installed package.',
    ),
    *program.rows_of(Model),
    program.Flag(
      'metric', list(metrics.METRICS), 'What is measured on test data, beside the loss.'
    ),
  )


def from_flags(values: flags.FlagValues) -> Model:
  kind = _kind(values.model)
  for name in ('hidden_units', 'embedding_size'):
    flag = values[name]
    of_columns = name == 'embedding_size' and kind.embeds_columns
    has_it = name in kind.widths and (values.embedding_columns or not of_columns)
    if flag.value is None or has_it:
      continue
    if flag.using_default_value:
      flag.value = None  # A task's, for another model.
    elif of_columns:
      raise ValueError(
        f'--{name} of --model={kind.name} is that of --embedding_columns; give them '
        'as well, or leave it out.'
      )
    else:
      having = [each.name for each in models.KINDS.values() if name in each.widths]
      raise ValueError(
        f'--{name} does not go with --model={kind.name}, which has none; those that '
        f'have are {", ".join(having)}.'
      )
  if values.loss is not None and ':' not in values.model:
    losses.check(values.loss)
  return Model(kind, metrics.METRICS[values.metric], **program.read(Model, values))


def _kind(name: str) -> kind_lib.Kind:
  if name in models.KINDS:
    return models.KINDS[name]
  if ':' in name:
    return own.kind(name)
  raise ValueError(
    f'--model={name} is none of {", ".join(models.KINDS)}; your own is given as '
    '--model=package.module:function.'
  )
