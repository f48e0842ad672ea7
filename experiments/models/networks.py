"""The networks of `--model`: initial weights, and functions that compute outputs.

Initial weights have the distributions of Keras, drawn by a NumPy generator: a model
starts with the same weights on every machine. Convolutions of all clients at once, as
products of matrices, took two to four times as long as one client after the other; so
convolutions and recurrent layers are trained one client after the other, on every core.

A network is a list of layers, made from the shape of examples, the generator of its
initial weights and its widths.
"""

import collections
import functools
import itertools
import math
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from .. import losses
from ..data import population

# Standard deviation of a standard normal distribution truncated at two.
_TRUNCATED_STDDEV = 0.87962566103423978


def glorot_uniform(rng: np.random.Generator, *shape: int) -> np.ndarray:
  limit = math.sqrt(6 / sum(_fans(shape)))
  return rng.uniform(-limit, limit, shape).astype(np.float32)


def glorot_normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
  return rng.normal(0, math.sqrt(2 / sum(_fans(shape))), shape).astype(np.float32)


def lecun_normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
  return rng.normal(0, math.sqrt(1 / _fans(shape)[0]), shape).astype(np.float32)


def he_normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """Normal with variance 2 / fan in, truncated at two standard deviations."""
  stddev = math.sqrt(2 / _fans(shape)[0]) / _TRUNCATED_STDDEV
  drawn = rng.normal(0, 1, shape)
  while (outside := np.abs(drawn) > 2).any():
    drawn[outside] = rng.normal(0, 1, int(outside.sum()))
  return (stddev * drawn).astype(np.float32)


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
  """Orthonormal rows or columns, whichever are fewer."""
  tall = rng.normal(0, 1, (max(rows, columns), min(rows, columns)))
  q, r = np.linalg.qr(tall)
  q *= np.sign(np.diag(r))
  return np.ascontiguousarray(q if rows >= columns else q.T, np.float32)


def zeros(*shape: int) -> np.ndarray:
  return np.zeros(shape, np.float32)


def lstm_weights(
  rng: np.random.Generator, inputs: int, units: int, kernel=glorot_uniform
) -> list[np.ndarray]:
  """Returns kernel, recurrent kernel and bias of an LSTM."""
  bias = zeros(4 * units)
  bias[units : 2 * units] = 1  # Opens the forget gate: Jozefowicz et al., ICML 2015.
  return [kernel(rng, inputs, 4 * units), orthogonal(rng, units, 4 * units), bias]


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
  field = int(np.prod(shape[:-2]))
  return field * shape[-2], field * shape[-1]


def dense(x: Any, kernel: Any, bias: Any) -> tf.Tensor:
  return tf.tensordot(x, kernel, 1) + bias


def flat(x: Any) -> tf.Tensor:
  return tf.reshape(x, [-1, x.shape[1:].num_elements()])


def features(x: Any, *tables: Any) -> tf.Tensor:
  """Returns each example as a vector, with embeddings for the indices at its end."""
  if not tables:
    return flat(x)
  codes = tf.cast(x[:, -len(tables) :], tf.int32)
  parts = [x[:, : -len(tables)]]
  for column, table in enumerate(tables):
    padded = tf.pad(table, [[0, 1], [0, 0]])
    parts.append(tf.gather(padded, codes[:, column]))
  return tf.concat(parts, axis=1)


def lstm(x: Any, kernel: Any, recurrent: Any, bias: Any) -> tf.Tensor:
  """Returns all states of an LSTM, computed as in `tf.keras.layers.LSTM`.

  `x`: Of shape [batch, steps, inputs]. Later steps do not change earlier states, so
  padding at the end needs no mask here.
  `kernel`: [inputs, 4 * units], for input gate, forget gate, candidate, output gate.
  `recurrent`: [units, 4 * units].

  Returns [batch, steps, units].
  """
  projected = dense(tf.transpose(x, [1, 0, 2]), kernel, bias)
  return tf.transpose(_states(projected, recurrent), [1, 0, 2])


@tf.custom_gradient
def _states(projected: tf.Tensor, recurrent: tf.Tensor) -> Any:
  """Returns the states after each step.

  The gradient of `recurrent` is one product for all steps, not a sum over them: rounds
  take half to a quarter of the time.
  """
  zero = tf.zeros([tf.shape(projected)[1], recurrent.shape[0]])

  def step(before: Any, x: tf.Tensor) -> Any:
    h, c = before
    i, f, g, o = tf.split(x + tf.matmul(h, recurrent), 4, axis=1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c

  states, cells = tf.scan(step, projected, (zero, zero), parallel_iterations=1)

  def gradient(upstream: tf.Tensor) -> Any:
    h, c = (tf.concat([[zero], each[:-1]], axis=0) for each in (states, cells))

    def backward(after: Any, inputs: Any) -> Any:
      upstream, *inputs = inputs
      with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = step(inputs[:2], inputs[2])
      return tuple(tape.gradient(outputs, inputs, [after[0] + upstream, after[1]]))

    _, _, of_projected = tf.scan(
      backward,
      (upstream, h, c, projected),
      (zero, zero, tf.zeros_like(projected[0])),
      parallel_iterations=1,
      reverse=True,
    )
    return of_projected, tf.tensordot(h, of_projected, [[0, 1], [0, 1]])

  return states, gradient


# A function that computes outputs from inputs and weights, and their initial values.
_Layer = tuple[Any, ...]


def _dense(
  rng: np.random.Generator, inputs: int, units: int, kernel: Any = glorot_uniform
) -> _Layer:
  return (dense, kernel(rng, inputs, units), zeros(units))


def _embedding(rng: np.random.Generator, num_tokens: int, size: int) -> _Layer:
  table = rng.uniform(-0.05, 0.05, (num_tokens, size)).astype(np.float32)
  return (lambda tokens, table: tf.gather(table, tokens), table)


def build(
  name: str, shape: population.Shape, seed: int, loss: Optional[str], **widths: int
) -> tff.learning.models.FunctionalModel:
  layers = _NETWORKS[name](shape, np.random.default_rng([seed, 1]), **widths)

  @tf.function
  def predict_on_batch(model_weights: Any, x: Any, training: bool) -> Any:
    del training
    weights = iter(model_weights[0])
    for function, *initial in layers:
      x = function(x, *itertools.islice(weights, len(initial)))
    return x

  weights = itertools.chain.from_iterable(initial for _, *initial in layers)
  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(weights), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=tf.function(losses.function(shape, loss)),
    input_spec=input_spec(shape),
  )


def input_spec(shape: population.Shape) -> Any:
  label_dtype = tf.float32 if shape.label_kind == 'number' else tf.int32
  return collections.OrderedDict(
    x=tf.TensorSpec([None, *shape.inputs], tf.as_dtype(shape.input_dtype)),
    y=tf.TensorSpec([None, *shape.labels], label_dtype),
  )


def _perceptron(
  shape: population.Shape,
  rng: np.random.Generator,
  embedding_size: int,
  hidden_units: Optional[int] = None,
) -> list[_Layer]:
  """One dense layer of all features, or two more before it, which are rectified.

  The outputs of one layer start at zero. With two hidden layers of 200 units it is the
  "2NN" of arXiv:1602.05629.
  """
  tables = [zeros(each, embedding_size) for each in shape.embedded]
  num_embedded = len(tables) * embedding_size
  num_features = math.prod(shape.inputs) - len(tables) + num_embedded
  layers: list[_Layer] = [(features, *tables)]
  if hidden_units is None:
    kernel = zeros(num_features, shape.num_outputs)
    if tables:
      kernel[-num_embedded:] = glorot_uniform(rng, num_embedded, shape.num_outputs)
    return [*layers, (dense, kernel, zeros(shape.num_outputs))]
  for inputs in (num_features, hidden_units):
    layers += [_dense(rng, inputs, hidden_units), (tf.nn.relu,)]
  return [*layers, _dense(rng, hidden_units, shape.num_outputs)]


def _convolutional(
  shape: population.Shape,
  rng: np.random.Generator,
  hidden_units: int,
  filters: tuple[int, ...] = (32, 64),
  size: int = 5,
  padding: str = 'SAME',
  pooled: tuple[int, ...] = (0, 1),
  kernel: Any = glorot_uniform,
  dense_kernel: Any = glorot_uniform,
  activation: Any = tf.nn.relu,
) -> list[_Layer]:
  """Convolutions, some followed by 2 x 2 max-pooling, then a hidden layer.

  The defaults are the network of federated averaging (arXiv:1602.05629), without
  dropout, which the EMNIST experiment of DP-FTRL (arXiv:2103.00039) trains.

  `pooled`: Indices of the convolutions that are followed by pooling.
  """
  height, width, channels = (*shape.inputs, 1)[:3]
  sides = np.array([height, width])

  def convolve(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.conv2d(x, kernel, 1, padding) + bias

  layers: list[_Layer] = [(lambda x: tf.reshape(x, [-1, *shape.inputs, channels][:4]),)]
  for number, (inputs, outputs) in enumerate(zip((channels, *filters), filters)):
    weights = (kernel(rng, size, size, inputs, outputs), zeros(outputs))
    layers += [(convolve, *weights), (activation,)]
    sides -= 0 if padding == 'SAME' else size - 1
    if number in pooled:
      layers.append((lambda x: tf.nn.max_pool2d(x, 2, 2, padding),))
      sides = (sides + (padding == 'SAME')) // 2
  return [
    *layers,
    (flat,),
    _dense(rng, int(sides.prod()) * filters[-1], hidden_units, dense_kernel),
    (activation,),
    _dense(rng, hidden_units, shape.num_outputs, dense_kernel),
  ]


# pfl-research's CIFAR-10 benchmark (apple/pfl-research, benchmarks/model/tf2/cnn.py,
# `simple_cnn`), and the network of arXiv:2003.00295 for EMNIST, but without dropout,
# which would draw new random numbers whenever a round is run again.
_simple_cnn = functools.partial(_convolutional, size=3, padding='VALID', pooled=(1,))
# `vgg128` of google-research/DP-FTRL (nn.py), the code of arXiv:2103.00039, with its
# initial weights.
_vgg = functools.partial(
  _convolutional,
  filters=(32, 32, 64, 64, 128, 128),
  size=3,
  pooled=(1, 3, 5),
  kernel=lecun_normal,
  dense_kernel=glorot_normal,
  activation=tf.tanh,
)


def _char_lstm(
  shape: population.Shape,
  rng: np.random.Generator,
  hidden_units: int,
  embedding_size: int,
) -> list[_Layer]:
  """The next-character model of Shakespeare: two LSTMs over embedded characters.

  arXiv:1602.05629, and arXiv:2003.00295 with the preprocessing of TFF's baselines.
  """
  return [
    _embedding(rng, shape.num_outputs, embedding_size),
    (lstm, *lstm_weights(rng, embedding_size, hidden_units, he_normal)),
    (lstm, *lstm_weights(rng, hidden_units, hidden_units, he_normal)),
    _dense(rng, hidden_units, shape.num_outputs),
  ]


def _word_lstm(
  shape: population.Shape,
  rng: np.random.Generator,
  hidden_units: int,
  embedding_size: int,
) -> list[_Layer]:
  """The next-word model of StackOverflow: an LSTM over embedded words.

  arXiv:2003.00295, arXiv:2103.00039 and the papers on matrix factorization, with a
  dense layer back to the embedding's size. The embedding is not tied to the output, as
  in google-research/federated, dp_ftrl and dp_matrix_factorization.
  """
  return [
    _embedding(rng, shape.num_outputs, embedding_size),
    (lstm, *lstm_weights(rng, embedding_size, hidden_units)),
    _dense(rng, hidden_units, embedding_size),
    _dense(rng, embedding_size, shape.num_outputs),
  ]


_NETWORKS: dict[str, Callable[..., list[_Layer]]] = {
  'linear': _perceptron,
  'logistic': _perceptron,
  'mlp': _perceptron,
  'cnn': _convolutional,
  'simple_cnn': _simple_cnn,
  'vgg': _vgg,
  'char_lstm': _char_lstm,
  'word_lstm': _word_lstm,
}
