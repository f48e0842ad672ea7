"""The work of a pack: its clients, some at a time, and the sum of what they return."""

from typing import Any

import tensorflow as tf

from tff_dp_aggregators.learning.packed import cohort
from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.learning.packed import server as server_lib
from tff_dp_aggregators.learning.packed import training as training_lib

# What the tensors of clients that are trained side by side may take, roughly.
_BYTES_IN_FLIGHT = 64 * 2**20
# Copies of a model that local training, clipping and encoding hold at a time.
_COPIES = 8


def at_once(training: training_lib.LocalTraining) -> int:
  """How many clients may be trained side by side, for the memory that it takes.

  However small the model, their examples and what is made of them take memory as well.
  """
  trainable, _ = training.model.initial_weights
  num_bytes = sum(each.nbytes for each in tf.nest.flatten(trainable))
  fitting = _BYTES_IN_FLIGHT // (_COPIES * max(1, num_bytes))
  return max(1, min(fitting, cohort.LARGEST))


def is_padded(training: training_lib.LocalTraining, data: data_lib.PackedData) -> bool:
  """Whether some client has a batch that is short."""
  rest = data.all_sizes * training.local_epochs % training.batch_size
  return bool(rest.any())


class Pack:
  """What is computed of a pack of clients, inside a TensorFlow function."""

  def __init__(
    self,
    training: training_lib.LocalTraining,
    data: data_lib.PackedData,
    server: server_lib.Server,
    *,
    side_by_side: bool,
  ):
    self._training = training
    self._data = data
    self._server = server
    self._side_by_side = side_by_side
    self._at_once = at_once(training) if side_by_side else server.added_at_once
    self._padded = is_padded(training, data)

  def run(self, weights: training_lib.Weights, params: Any, rows: tf.Tensor) -> Any:
    """The sum of what the clients send; zeros if there are none.

    `rows`: Rows of the clients, int64 of shape [clients, 3].
    """
    zeros = self._server.zeros()
    examples = self._data.tensors()

    def body(first: tf.Tensor, sums: Any) -> Any:
      some = rows[first : first + self._at_once]
      if self._side_by_side:
        trained = training_lib.side_by_side(
          self._training, weights, self._batches(examples, some), padded=self._padded
        )
        more = self._server.sum(params, trained)
        added = tf.nest.map_structure(tf.add, sums, more)
      else:
        added = self._one_by_one(weights, params, examples, some, sums)
      return first + self._at_once, tf.nest.map_structure(
        lambda total, before: tf.ensure_shape(total, before.shape), added, sums
      )

    _, sums = tf.while_loop(
      lambda first, unused_sums: first < tf.shape(rows)[0],
      body,
      (tf.constant(0), zeros),
      parallel_iterations=1,
    )
    return sums

  def _batches(self, examples: Any, rows: tf.Tensor) -> training_lib.Batches:
    clients = training_lib.Clients(
      rows[:, 0], rows[:, 1], tf.bitcast(rows[:, 2], tf.uint64)
    )
    return training_lib.Batches(self._training, examples, clients)

  def _one_by_one(
    self,
    weights: training_lib.Weights,
    params: Any,
    examples: Any,
    rows: tf.Tensor,
    sums: Any,
  ) -> Any:
    """The sums with those of clients that are trained one after the other."""

    def train(row: tf.Tensor) -> training_lib.Trained:
      batches = self._batches(examples, row[tf.newaxis])
      return training_lib.one(self._training, weights, batches)

    if self._at_once == 1:
      return self._server.add(params, sums, [train(rows[0])])
    _, _, metrics = sums
    like = training_lib.Trained(tuple(weights.trainable), metrics)
    several = tf.nest.map_structure(
      lambda tensor: tf.TensorArray(
        tensor.dtype, self._at_once, element_shape=tensor.shape, clear_after_read=False
      ),
      like,
    )

    def keep(number: tf.Tensor, several: Any) -> Any:
      trained = train(rows[number])
      return number + 1, tf.nest.map_structure(
        lambda array, tensor: array.write(number, tensor), several, trained
      )

    _, several = tf.while_loop(
      lambda number, unused_several: number < tf.shape(rows)[0],
      keep,
      (tf.constant(0), several),
      parallel_iterations=1,
    )

    def read(place: Any) -> training_lib.Trained:
      return tf.nest.map_structure(lambda array: array.read(place), several)

    def add_together() -> Any:
      trained = [read(place) for place in range(self._at_once)]
      return self._server.add(params, sums, trained)

    def add_each() -> Any:
      _, added = tf.while_loop(
        lambda place, unused_added: place < tf.shape(rows)[0],
        lambda place, added: (
          place + 1,
          self._server.add(params, added, [read(place)]),
        ),
        (tf.constant(0), sums),
        parallel_iterations=1,
      )
      return added

    are_all = tf.equal(tf.shape(rows)[0], self._at_once)
    return tf.cond(are_all, add_together, add_each)
