"""The convolutional network of pfl-research's CIFAR-10 benchmark, without dropout.

Two convolutions of 3 x 3 with 32 and 64 filters, a 2 x 2 max-pooling and a layer of 128
units (apple/pfl-research, benchmarks/model/tf2/cnn.py, `simple_cnn`): 1,626,442 weights
for images of 32 x 32 pixels with 3 channels in 10 classes. For EMNIST it is the network
of arXiv:2003.00295, which has 1,199,882 there. Both have dropout, which draws random
numbers anew whenever a round is run again; here there is none.
"""

from typing import Any, Optional

from ..data import population
from . import kind

_LOST = 4  # Two convolutions without padding take a pixel on each side.


def why_not(shape: population.Shape) -> Optional[str]:
  """Why it is not for such examples; `None` if it is."""
  found = kind.why_not_images(shape)
  if found is None and min(shape.inputs[:2]) < _LOST + 2:
    return (
      f'its images have at least {_LOST + 2} pixels on each side, and these are '
      f'{shape.inputs[0]} x {shape.inputs[1]}'
    )
  return found


def build(shape: population.Shape, options: kind.Options) -> Any:
  """The network, for images of any size."""
  import tensorflow as tf  # Flags are checked without it.

  from .parts import functional
  from .parts import initial
  from .parts import layers

  units = KIND.width(options, 'hidden_units')
  height, width, channels = (*shape.inputs, 1)[:3]
  num_flat = (height - _LOST) // 2 * ((width - _LOST) // 2) * 64
  assert shape.num_classes is not None
  rng = initial.generator(options.seed)
  weights = [
    *initial.convolution(rng, 3, channels, 32),
    *initial.convolution(rng, 3, 32, 64),
    *initial.dense(rng, num_flat, units),
    *initial.dense(rng, units, shape.num_classes),
  ]

  def predict(w: Any, x: Any) -> Any:
    x = layers.image(x)
    for first in (0, 2):
      x = tf.nn.relu(layers.convolution(x, w[first], w[first + 1], 'VALID'))
    x = layers.flat(layers.max_pool(x, 'VALID'))
    hidden = tf.nn.relu(layers.dense(x, *w[4:6]))
    return layers.dense(hidden, *w[6:])

  return functional.functional(shape, options.loss, weights, predict)


KIND = kind.Kind(
  'simple_cnn',
  "convolutional network of pfl-research's CIFAR-10 benchmark",
  why_not,
  build,
  widths={'hidden_units': 128},
)
