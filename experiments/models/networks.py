"""The networks that `--model` names: weights to begin with, and what they predict.

Each is called with the shape of examples, the generator of its initial weights and its
widths. It returns the weights, and a function of weights and inputs that gives what the
model puts out.
"""

import collections
import functools
import math
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from .. import losses
from ..data import population
from . import initial
from . import kind
from . import layers

_Network = tuple[list[np.ndarray], Callable[[Any, Any], Any]]


def build(
  name: str, shape: population.Shape, options: kind.Options, **widths: int
) -> tff.learning.models.FunctionalModel:
  rng = initial.generator(options.seed)
  weights, predict = _NETWORKS[name](shape, rng, **widths)

  @tf.function
  def predict_on_batch(model_weights: Any, x: Any, training: bool) -> Any:
    del training
    return predict(model_weights[0], x)

  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(weights), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=tf.function(losses.function(shape, options.loss)),
    input_spec=input_spec(shape),
  )


def input_spec(shape: population.Shape) -> Any:
  label_dtype = tf.float32 if shape.label_kind == 'number' else tf.int32
  return collections.OrderedDict(
    x=tf.TensorSpec([None, *shape.inputs], tf.as_dtype(shape.input_dtype)),
    y=tf.TensorSpec([None, *shape.labels], label_dtype),
  )


def _one_layer(
  shape: population.Shape, rng: np.random.Generator, embedding_size: int
) -> _Network:
  """One layer of all features, whose outputs start at zero."""
  num_codes, num_outputs = len(shape.embedded), shape.num_outputs
  num_features = _num_features(shape, embedding_size)
  kernel = initial.zeros(num_features, num_outputs)
  if num_codes:
    first = num_features - num_codes * embedding_size
    kernel[first:] = initial.glorot_uniform(rng, num_features - first, num_outputs)
  tables = initial.tables(shape.embedded, embedding_size)

  def predict(w: Any, x: Any) -> Any:
    return layers.dense(layers.features(x, w[:num_codes]), *w[num_codes:])

  return [*tables, kernel, initial.zeros(num_outputs)], predict


def _num_features(shape: population.Shape, embedding_size: int) -> int:
  """Numbers of an example, with the embeddings that stand for codes of its columns."""
  return math.prod(shape.inputs) + len(shape.embedded) * (embedding_size - 1)


def _mlp(
  shape: population.Shape,
  rng: np.random.Generator,
  hidden_units: int,
  embedding_size: int,
) -> _Network:
  """A perceptron with two hidden layers of rectified linear units.

  With 200 units in each it is the "2NN" of arXiv:1602.05629, which has 199,210 weights
  for images of 28 x 28 pixels in 10 classes.
  """
  weights = [
    *initial.tables(shape.embedded, embedding_size),
    *initial.dense(rng, _num_features(shape, embedding_size), hidden_units),
    *initial.dense(rng, hidden_units, hidden_units),
    *initial.dense(rng, hidden_units, shape.num_outputs),
  ]

  def predict(w: Any, x: Any) -> Any:
    x, w = layers.features(x, w[: len(shape.embedded)]), w[len(shape.embedded) :]
    hidden = tf.nn.relu(layers.dense(x, *w[:2]))
    hidden = tf.nn.relu(layers.dense(hidden, *w[2:4]))
    return layers.dense(hidden, *w[4:])

  return weights, predict


def _convolutional(
  shape: population.Shape,
  rng: np.random.Generator,
  hidden_units: int,
  filters: tuple[int, ...] = (32, 64),
  size: int = 5,
  padding: str = 'SAME',
  pooled: tuple[int, ...] = (0, 1),
  kernel: Any = initial.glorot_uniform,
  dense_kernel: Any = initial.glorot_uniform,
  activation: Any = tf.nn.relu,
) -> _Network:
  """Convolutions, some with a 2 x 2 max-pooling behind, then a hidden layer.

  As it is it is the network of federated averaging, without dropout: convolutions of
  5 x 5, arXiv:1602.05629, where it has 1,663,370 weights with 512 units for images of
  28 x 28 pixels in 10 classes. The EMNIST experiment of DP-FTRL (arXiv:2103.00039)
  trains it.

  `pooled`: Numbers of the convolutions behind which there is a pooling.
  """
  height, width, channels = (*shape.inputs, 1)[:3]
  weights = []
  for number, (inputs, outputs) in enumerate(zip((channels, *filters), filters)):
    weights += [kernel(rng, size, size, inputs, outputs), initial.zeros(outputs)]
    lost = 0 if padding == 'SAME' else size - 1
    height, width = height - lost, width - lost
    if number in pooled:
      up = 1 if padding == 'SAME' else 0
      height, width = (height + up) // 2, (width + up) // 2
  num_flat = height * width * filters[-1]
  for inputs, outputs in ((num_flat, hidden_units), (hidden_units, shape.num_outputs)):
    weights += [dense_kernel(rng, inputs, outputs), initial.zeros(outputs)]

  def predict(w: Any, x: Any) -> Any:
    x = x[..., tf.newaxis] if x.shape.rank == 3 else x
    for number in range(len(filters)):
      x = activation(tf.nn.conv2d(x, w[2 * number], 1, padding) + w[2 * number + 1])
      if number in pooled:
        x = tf.nn.max_pool2d(x, 2, 2, padding)
    hidden = activation(layers.dense(layers.flat(x), *w[-4:-2]))
    return layers.dense(hidden, *w[-2:])

  return weights, predict


# pfl-research's CIFAR-10 benchmark (apple/pfl-research, benchmarks/model/tf2/cnn.py,
# `simple_cnn`): 1,626,442 weights with 128 units for images of 32 x 32 pixels with 3
# channels in 10 classes. For EMNIST it is the network of arXiv:2003.00295, which has
# 1,199,882 there. Both have dropout, which draws random numbers anew whenever a round
# is run again; here there is none.
_simple_cnn = functools.partial(_convolutional, size=3, padding='VALID', pooled=(1,))
# `vgg128` of google-research/DP-FTRL (nn.py), the code of arXiv:2103.00039, with its
# initial weights: 550,570 weights for images of 32 x 32 pixels with 3 channels in 10
# classes.
_vgg = functools.partial(
  _convolutional,
  filters=(32, 32, 64, 64, 128, 128),
  size=3,
  pooled=(1, 3, 5),
  kernel=initial.lecun_normal,
  dense_kernel=initial.glorot_normal,
  activation=tf.tanh,
)


def _char_lstm(
  shape: population.Shape,
  rng: np.random.Generator,
  hidden_units: int,
  embedding_size: int,
) -> _Network:
  """The next-character model of Shakespeare: two LSTMs over embedded characters.

  Embedding of 8, two LSTMs of 256 units, and logits: arXiv:1602.05629, and
  arXiv:2003.00295 with the preprocessing of TFF's baselines, where it has 820,522
  weights (90 tokens). The embedding is not tied to the output.
  """
  weights = [
    initial.embedding(rng, shape.num_outputs, embedding_size),
    *initial.lstm(rng, embedding_size, hidden_units, initial.he_normal),
    *initial.lstm(rng, hidden_units, hidden_units, initial.he_normal),
    *initial.dense(rng, hidden_units, shape.num_outputs),
  ]

  def predict(w: Any, x: Any) -> Any:
    states = layers.lstm(layers.embedding(w[0], x), *w[1:4])
    return layers.dense(layers.lstm(states, *w[4:7]), *w[7:])

  return weights, predict


def _word_lstm(
  shape: population.Shape,
  rng: np.random.Generator,
  hidden_units: int,
  embedding_size: int,
) -> _Network:
  """The next-word model of StackOverflow: an LSTM over embedded words.

  Embedding of 96, an LSTM of 670 units, a dense layer back to 96, and logits:
  arXiv:2003.00295, arXiv:2103.00039 and the papers on matrix factorization, where it
  has 4,050,748 weights (10,000 words and 4 special tokens). The embedding is not tied
  to the output: `shared_embedding` is off in google-research/federated, dp_ftrl and
  dp_matrix_factorization.
  """
  weights = [
    initial.embedding(rng, shape.num_outputs, embedding_size),
    *initial.lstm(rng, embedding_size, hidden_units),
    *initial.dense(rng, hidden_units, embedding_size),
    *initial.dense(rng, embedding_size, shape.num_outputs),
  ]

  def predict(w: Any, x: Any) -> Any:
    states = layers.lstm(layers.embedding(w[0], x), *w[1:4])
    return layers.dense(layers.dense(states, *w[4:6]), *w[6:])

  return weights, predict


_NETWORKS: dict[str, Callable[..., _Network]] = {
  'linear': _one_layer,
  'logistic': _one_layer,
  'mlp': _mlp,
  'cnn': _convolutional,
  'simple_cnn': _simple_cnn,
  'vgg': _vgg,
  'char_lstm': _char_lstm,
  'word_lstm': _word_lstm,
}
