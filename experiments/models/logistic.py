"""Logistic regression, which starts at zero."""

from typing import Any

import numpy as np

from ..data import population
from . import kind


def build(shape: population.Shape, options: kind.Options) -> Any:
  """Multinomial logistic regression that starts at zero, for TFF."""
  from .parts import functional  # Flags are checked without TensorFlow.
  from .parts import initial
  from .parts import layers

  num_features, num_classes = int(np.prod(shape.inputs)), shape.num_classes
  assert num_classes is not None
  return functional.functional(
    shape,
    options.loss,
    [initial.zeros(num_features, num_classes), initial.zeros(num_classes)],
    lambda weights, x: layers.dense(layers.flat(x), *weights),
  )


KIND = kind.Kind('logistic', 'logistic regression', kind.why_not_classes, build)
