"""Logistic regression, which starts at zero."""

from typing import Any

import numpy as np

from ..data import population
from . import kind


def build(shape: population.Shape, options: kind.Options) -> Any:
  """Logistic regression of classes (multinomial), or of each tag; starts at zero."""
  from .parts import functional  # Flags are checked without TensorFlow.
  from .parts import initial
  from .parts import layers

  num_features, num_outputs = int(np.prod(shape.inputs)), shape.num_outputs
  return functional.functional(
    shape,
    options.loss,
    [initial.zeros(num_features, num_outputs), initial.zeros(num_outputs)],
    lambda weights, x: layers.dense(layers.flat(x), *weights),
  )


KIND = kind.Kind('logistic', 'logistic regression', kind.why_not_logits, build)
