"""The small VGG that experiments with private training use on CIFAR-10.

Three pairs of convolutions of 3 x 3 with 32, 64 and 128 filters, each pair followed by
a 2 x 2 max-pooling, and a layer of 128 units, all with tanh: `vgg128` of
google-research/DP-FTRL (nn.py), the code of arXiv:2103.00039, with its initial weights.
It has 550,570 weights for images of 32 x 32 pixels with 3 channels in 10 classes.
"""

from typing import Any

from ..data import population
from . import kind

_FILTERS = (32, 32, 64, 64, 128, 128)


def build(shape: population.Shape, options: kind.Options) -> Any:
  """The network, for images of any size."""
  import tensorflow as tf  # Flags are checked without it.

  from .parts import functional
  from .parts import initial
  from .parts import layers

  units = KIND.width(options, 'hidden_units')
  height, width, channels = (*shape.inputs, 1)[:3]
  assert shape.num_classes is not None
  rng = initial.generator(options.seed)
  weights = []
  for inputs, filters in zip((channels, *_FILTERS), _FILTERS):
    weights += [
      initial.lecun_normal(rng, 3, 3, inputs, filters),
      initial.zeros(filters),
    ]
  num_flat = -(-height // 8) * -(-width // 8) * _FILTERS[-1]
  for inputs, outputs in ((num_flat, units), (units, shape.num_classes)):
    weights += [initial.glorot_normal(rng, inputs, outputs), initial.zeros(outputs)]

  def predict(w: Any, x: Any) -> Any:
    x = layers.image(x)
    for layer in range(len(_FILTERS)):
      x = tf.tanh(layers.convolution(x, w[2 * layer], w[2 * layer + 1], 'SAME'))
      if layer % 2:
        x = layers.max_pool(x)
    hidden = tf.tanh(layers.dense(layers.flat(x), *w[-4:-2]))
    return layers.dense(hidden, *w[-2:])

  return functional.functional(shape, options.loss, weights, predict)


KIND = kind.Kind(
  'vgg',
  "small VGG with tanh, of DP-FTRL's experiments on CIFAR-10",
  kind.why_not_images,
  build,
  widths={'hidden_units': 128},
)
