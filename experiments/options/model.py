"""Flags for the model, its loss, and the metric on test data."""

import dataclasses
from typing import Any, Optional

from absl import flags

from tff_dp_aggregators.accounting.programs import program

from .. import losses
from .. import metrics
from ..data import population
from ..models import kind as kind_lib
from ..models import own

_WIDTHS = ('hidden_units', 'embedding_size')


def _widths(name: str) -> str:
  own_widths = (
    f'{kind.widths[name]} of {kind.name}'
    for kind in kind_lib.KINDS.values()
    if name in kind.widths
  )
  return f'Without it, that of the model: {", ".join(own_widths)}.'


@dataclasses.dataclass(frozen=True)
class Model:
  kind: kind_lib.Kind  # Makes the model for the data.
  metric: metrics.Metric  # Computed on test data, besides the loss.
  loss: Optional[str] = program.flag(
    f'Loss to minimise: {", ".join(losses.LOSSES)}; for your own Keras model also the '
    'name of a Keras loss. Default: the one for the kind of labels.'
  )
  hidden_units: Optional[int] = program.flag(
    f'Width of hidden layers. {_widths("hidden_units")}', within='[1, inf)'
  )
  embedding_size: Optional[int] = program.flag(
    'Size of the embedding of a token, or of a value of --embedding_columns. '
    + _widths('embedding_size'),
    within='[1, inf)',
  )

  @property
  def is_own(self) -> bool:
    return ':' in self.kind.name

  def check_for(self, data: population.Population) -> None:
    shape = data.shape
    chosen: Any
    for flag, chosen in (('model', self.kind), ('metric', self.metric)):
      why_not = chosen.why_not(shape)
      if why_not is not None:
        raise ValueError(f'--{flag}={chosen.name} is not for these data: {why_not}.')
    if not self.is_own:
      losses.name_for(shape, self.loss)
    why_not = self.metric.why_not_measured(data)
    if why_not is not None:
      raise ValueError(f'--metric={self.metric.name} cannot be measured: {why_not}.')

  def make(self, shape: population.Shape, seed: int) -> Any:
    widths = {name: getattr(self, name) for name in _WIDTHS}
    model = self.kind.build(shape, seed, self.loss, **widths)
    if shape.class_weights is None:
      return model
    return losses.with_class_weights(model, shape.class_weights)

  def test_metrics(
    self,
    shape: population.Shape,
    label_scaling: Optional[population.LabelScaling] = None,
  ) -> dict[str, Any]:
    """Returns the metrics for `learning.train`, in the labels' own unit."""
    metric = self.metric.make(shape)
    if label_scaling is not None:
      per_example, undone = metric.per_example, label_scaling.undone
      metric = dataclasses.replace(
        metric,
        per_example=lambda labels, outputs: per_example(
          undone(labels), undone(outputs)
        ),
      )
    by_name = {self.metric.name: metric}
    if shape.label_kind == 'tokens' and not self.is_own:
      by_name['loss'] = metrics.TOKEN_LOSS.make(shape)
    return by_name


def rows() -> tuple[program.Flag, ...]:
  known = '; '.join(f'{kind.name}, {kind.summary}' for kind in kind_lib.KINDS.values())
  return (
    program.Flag(
      'model',
      str,
      f'Model: {known}; or package.module:function, which makes your own Keras or '
      'functional model, from the current directory or an installed package.',
    ),
    *program.rows_of(Model),
    program.Flag(
      'metric',
      list(metrics.METRICS),
      'Metric to compute on test data, besides the loss.',
    ),
  )


def from_flags(values: flags.FlagValues) -> Model:
  kind = kind_lib.KINDS.get(values.model) or own.kind(values.model)
  for name in _WIDTHS:
    needs_columns = name == 'embedding_size' and kind.inputs == 'features'
    if name not in kind.widths or (needs_columns and not values.embedding_columns):
      having = [each.name for each in kind_lib.KINDS.values() if name in each.widths]
      why = (
        f'does not go with --model={kind.name}, which has none, or only with '
        f'--embedding_columns; those that have are {", ".join(having)}.'
      )
      program.refuse(values, [name], why)
      values[name].value = None  # The task's default, for another model.
  if values.loss is not None and ':' not in values.model:
    losses.check(values.loss)
  return Model(kind, metrics.METRICS[values.metric], **program.read(Model, values))
