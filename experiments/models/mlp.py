"""A multilayer perceptron with two hidden layers, for classes, tags or numbers.

With 200 units in each it is the "2NN" of arXiv:1602.05629, which has 199,210 weights
for images of 28 x 28 pixels in 10 classes.
"""

from typing import Any, Optional

from ..data import population
from . import kind


def why_not(shape: population.Shape) -> Optional[str]:
  """Why it is not for such examples; `None` if it is."""
  if shape.label_kind == 'number':
    return kind.why_not_numbers(shape)
  return kind.why_not_logits(shape)


def build(shape: population.Shape, options: kind.Options) -> Any:
  """The perceptron, with rectified linear units."""
  import tensorflow as tf  # Flags are checked without it.

  from .parts import functional
  from .parts import initial
  from .parts import layers

  units = KIND.width(options, 'hidden_units')
  size = KIND.width(options, 'embedding_size')
  rng = initial.generator(options.seed)
  weights = [
    *initial.tables(shape.embedded, size),
    *initial.dense(rng, kind.num_features(shape, size), units),
    *initial.dense(rng, units, units),
    *initial.dense(rng, units, shape.num_outputs),
  ]

  def predict(w: Any, x: Any) -> Any:
    x, w = layers.features(x, w[: len(shape.embedded)]), w[len(shape.embedded) :]
    hidden = tf.nn.relu(layers.dense(x, *w[:2]))
    hidden = tf.nn.relu(layers.dense(hidden, *w[2:4]))
    return layers.dense(hidden, *w[4:])

  return functional.functional(shape, options.loss, weights, predict)


KIND = kind.Kind(
  'mlp',
  'perceptron with two hidden layers',
  why_not,
  build,
  embeds_columns=True,
  widths={'hidden_units': 200, 'embedding_size': kind.EMBEDDING_SIZE},
)
