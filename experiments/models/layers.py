"""Layers as functions of their weights, in the form that trains clients fastest.

Clients have weights of their own, so a convolution of all of them at once is no
convolution: written as products of matrices, which TensorFlow can vectorise over
clients, it took two to four times as long as one client's after the other. Of recurrent
layers, rounds took as long either way, and twice as long to begin. So both are trained
one client after the other, on every core.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def dense(x: Any, kernel: Any, bias: Any) -> tf.Tensor:
  return tf.tensordot(x, kernel, 1) + bias


def flat(x: Any) -> tf.Tensor:
  return tf.reshape(x, [-1, x.shape[1:].num_elements()])


def embedding(table: Any, tokens: Any) -> tf.Tensor:
  """Rows of a table; its gradient is a tensor, as optimizers take it."""

  @tf.custom_gradient
  def rows(whole: Any) -> Any:
    def gradient(upstream: Any) -> tf.Tensor:
      size = whole.shape[1]
      return tf.math.unsorted_segment_sum(
        tf.reshape(upstream, [-1, size]), tf.reshape(tokens, [-1]), whole.shape[0]
      )

    return tf.gather(whole, tokens), gradient

  return rows(table)


def features(x: Any, tables: Sequence[Any]) -> tf.Tensor:
  """Each example as a vector, in which embeddings stand for the codes at its end."""
  if not tables:
    return flat(x)
  codes = tf.cast(x[:, -len(tables) :], tf.int32)
  parts = [x[:, : -len(tables)]]
  for place, table in enumerate(tables):
    with_unknown = tf.pad(table, [[0, 1], [0, 0]])
    parts.append(embedding(with_unknown, codes[:, place]))
  return tf.concat(parts, axis=1)


@tf.custom_gradient
def lstm(x: Any, kernel: Any, recurrent: Any, bias: Any) -> Any:
  """An LSTM, all of whose states are returned; as `tf.keras.layers.LSTM` computes it.

  Its gradient is written out, so that those of the kernels are one product of matrices
  for all steps, and the loops stay small: a graph of 80 steps takes seconds to make.

  `x`: Of shape [batch, steps, inputs]. What comes later than an example's end does not
  change what comes before, so padding at the end needs no mask here.
  `kernel`: [inputs, 4 * units], for input gate, forget gate, candidate, output gate.
  `recurrent`: [units, 4 * units].

  Returns [batch, steps, units].
  """
  steps, units = x.shape[1], recurrent.shape[0]
  projected = tf.transpose(tf.tensordot(x, kernel, 1) + bias, [1, 0, 2])
  zero = tf.zeros([tf.shape(x)[0], units])

  def forward(step: Any, h: Any, c: Any, gates: Any, cells: Any, states: Any) -> Any:
    z = projected[step] + tf.matmul(h, recurrent)
    i, f, _, o = tf.split(tf.sigmoid(z), 4, axis=1)
    g = tf.tanh(z[:, 2 * units : 3 * units])
    c = f * c + i * g
    h = o * tf.tanh(c)
    gate = tf.concat([i, f, g, o], axis=1)
    return (
      step + 1,
      h,
      c,
      gates.write(step, gate),
      cells.write(step, c),
      states.write(step, h),
    )

  arrays = _loop(
    lambda step, *_: step < steps,
    forward,
    (0, zero, zero, _array(steps), _array(steps), _array(steps)),
  )[3:]
  gates, cells, states = (array.stack() for array in arrays)

  def gradient(upstream: Any) -> Any:
    upstream = tf.transpose(upstream, [1, 0, 2])
    i, f, g, o = tf.split(gates, 4, axis=2)
    squashed = tf.tanh(cells)
    before = tf.concat([zero[tf.newaxis], cells[:-1]], axis=0)
    # How cell and output gate depend on what comes before their nonlinearities.
    of_cell = o * (1 - squashed * squashed)
    of_gates = tf.concat(
      [g * i * (1 - i), before * f * (1 - f), i * (1 - g * g)], axis=2
    )
    of_output = squashed * o * (1 - o)

    def backward(step: Any, dh: Any, dc: Any, array: Any) -> Any:
      dh = dh + upstream[step]
      dc = dc + dh * of_cell[step]
      dz = tf.concat(
        [tf.tile(dc, [1, 3]) * of_gates[step], dh * of_output[step]], axis=1
      )
      dh = tf.matmul(dz, recurrent, transpose_b=True)
      return step - 1, dh, dc * f[step], array.write(step, dz)

    start = (steps - 1, zero, zero, _array(steps))
    dz = _loop(lambda step, *_: step >= 0, backward, start)[3].stack()
    states_before = tf.concat([zero[tf.newaxis], states[:-1]], axis=0)
    rows = tf.reshape(dz, [-1, 4 * units])
    inputs = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, x.shape[2]])
    return (
      tf.transpose(tf.tensordot(dz, kernel, [[2], [1]]), [1, 0, 2]),
      tf.matmul(inputs, rows, transpose_a=True),
      tf.matmul(tf.reshape(states_before, [-1, units]), rows, transpose_a=True),
      tf.reduce_sum(rows, axis=0),
    )

  return tf.transpose(states, [1, 0, 2]), gradient


def _array(steps: int) -> tf.TensorArray:
  return tf.TensorArray(tf.float32, steps, element_shape=[None, None])


def _loop(condition: Any, body: Any, start: Any) -> Any:
  return tf.while_loop(condition, body, start, parallel_iterations=1)
