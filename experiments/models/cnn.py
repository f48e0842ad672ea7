"""The convolutional network of federated averaging, for images in classes.

Two convolutions of 5 x 5 with 32 and 64 filters, each followed by a 2 x 2 max-pooling,
and a layer of 512 units: arXiv:1602.05629, where it has 1,663,370 weights for images of
28 x 28 pixels in 10 classes. The EMNIST experiment of DP-FTRL (arXiv:2103.00039) trains
it; without dropout.
"""

from typing import Any

from ..data import population
from . import kind


def build(shape: population.Shape, options: kind.Options) -> Any:
  """The network, for images of any size."""
  import tensorflow as tf  # Flags are checked without it.

  from .parts import functional
  from .parts import initial
  from .parts import layers

  units = KIND.width(options, 'hidden_units')
  height, width, channels = (*shape.inputs, 1)[:3]
  num_flat = -(-height // 4) * -(-width // 4) * 64
  assert shape.num_classes is not None
  rng = initial.generator(options.seed)
  weights = [
    *initial.convolution(rng, 5, channels, 32),
    *initial.convolution(rng, 5, 32, 64),
    *initial.dense(rng, num_flat, units),
    *initial.dense(rng, units, shape.num_classes),
  ]

  def predict(w: Any, x: Any) -> Any:
    x = layers.image(x)
    for first in (0, 2):
      x = tf.nn.relu(layers.convolution(x, w[first], w[first + 1], 'SAME'))
      x = layers.max_pool(x)
    hidden = tf.nn.relu(layers.dense(layers.flat(x), *w[4:6]))
    return layers.dense(hidden, *w[6:])

  return functional.functional(shape, options.loss, weights, predict)


KIND = kind.Kind(
  'cnn',
  'convolutional network of federated averaging and of DP-FTRL on EMNIST',
  kind.why_not_images,
  build,
  widths={'hidden_units': 512},
)
