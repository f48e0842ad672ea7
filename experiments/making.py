"""Makes the model that was asked for, if it goes with the data."""

import dataclasses
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.accounting.programs import program

from . import losses
from . import metrics
from . import models
from .data import population
from .models import kind
from .options import model as model_options


def check(model: model_options.Model, shape: population.Shape) -> None:
  """Checks that model, loss and metric go with the data; loads no TensorFlow.

  `shape`: What examples are like.
  """
  why_not = model.kind.why_not(shape)
  if why_not is not None:
    raise program.WrongUsage(
      f'--model={model.kind.name} is not for these data: {why_not}. Of the models '
      f'here, {_fitting(shape)}.'
    )
  if not model.is_own:
    try:
      losses.name_for(shape, model.loss)
    except ValueError as e:
      raise program.WrongUsage(str(e)) from e
  why_not = model.metric.why_not(shape)
  if why_not is not None:
    raise program.WrongUsage(
      f'--metric={model.metric.name} is not for these data: {why_not}.'
    )


def check_measured(model: model_options.Model, found: population.Population) -> None:
  why_not = model.metric.why_not_measured(found)
  if why_not is not None:
    raise program.WrongUsage(
      f'--metric={model.metric.name} cannot be measured: {why_not}.'
    )


def make(model: model_options.Model, shape: population.Shape, seed: int) -> Any:
  """A functional model with its loss.

  `shape`: What examples are like.
  """
  check(model, shape)
  options = kind.Options(seed, model.loss, model.hidden_units, model.embedding_size)
  made = model.kind.build(shape, options)
  if shape.class_weights is None:
    return made
  try:
    return losses.with_class_weights(made, shape.class_weights)
  except ValueError as e:
    raise program.WrongUsage(f'--class_weights: {e}') from e


def size(model: model_options.Model, shape: population.Shape) -> int:
  """How many trainable parameters the model has.

  `shape`: What examples are like.
  """
  trainable, _ = make(model, shape, seed=0).initial_weights
  return sum(int(np.size(weight)) for weight in trainable)


def _fitting(shape: population.Shape) -> str:
  names = [each.name for each in models.KINDS.values() if each.why_not(shape) is None]
  return f'these are: {", ".join(names)}' if names else 'none is'


def test_metrics(
  model: model_options.Model,
  shape: population.Shape,
  label_scaling: Optional[population.LabelScaling] = None,
) -> dict[str, Any]:
  """What is measured on test data: what `learning.train` takes.

  `shape`: What examples are like.
  `label_scaling`: What was done to labels, which is undone; `None` if nothing was.
  """
  metric = model.metric.make(shape)
  if label_scaling is not None:
    metric = _in_own_unit(metric, label_scaling)
  found = {model.metric.name: metric}
  if shape.label_kind == 'tokens' and not model.is_own:
    found['loss'] = metrics.token_loss(shape)
  return found


def _in_own_unit(metric: Any, scaling: population.LabelScaling) -> Any:
  """A metric of numbers, which are scaled while they are trained on."""
  per_example = metric.per_example

  def undone(labels: np.ndarray, outputs: np.ndarray) -> Any:
    return per_example(scaling.undone(labels), scaling.undone(outputs))

  return dataclasses.replace(metric, per_example=undone)
