"""Computes the server's part of a packed round, in the round's graph.

It does the work of `DPMeanFactory` and of TFF's finalizer, on the same states.
"""

import collections
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import clientwise
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.base import machine
from tff_dp_aggregators.learning import functions
from tff_dp_aggregators.learning.packed import training as training_lib
from tff_dp_aggregators.queries import grid

# Name of a measurement of the mean, where there are canaries.
CANARY_PROJECTIONS = 'canary_projections'


class Server:
  """Makes the initial state, sums clients' updates, and finishes each round."""

  def __init__(
    self,
    training: training_lib.LocalTraining,
    aggregator: Optional[tff.aggregators.UnweightedAggregationFactory],
    optimizer: tff.learning.optimizers.Optimizer,
  ):
    """Splits the aggregator into its steps; `None` is a mean without privacy."""
    self._training = training
    self._optimizer = optimizer
    trainable, rest = training.model.initial_weights
    self._initial_weights = tff.learning.models.ModelWeights(
      tuple(tf.nest.flatten(trainable)), tuple(tf.nest.flatten(rest))
    )
    # The trainable weights have these, and so has a client's update.
    self.specs = functions.specs_of(self._initial_weights.trainable)
    self._first_steps, mean = clientwise.unwrapped(aggregator)
    # `None` for the mean of `tff.aggregators.UnweightedMeanFactory`.
    self._private_mean: Optional[factory.DPMean] = None
    if isinstance(mean, factory.DPMeanFactory):
      if mean.query.clients_draw_keys:
        raise ValueError(
          f'{mean.query} draws a key in each client, and clients that are simulated '
          'side by side would share it, and so their noise. Use a learning process of '
          "TFF's with this aggregator, such as learning.build_dp_fed_avg."
        )
      types = [
        tff.TensorType(each.dtype.as_numpy_dtype, each.shape) for each in self.specs
      ]
      self._private_mean = mean.mean_of(tff.StructWithPythonType(types, tuple))
    elif not (mean is None or isinstance(mean, tff.aggregators.UnweightedMeanFactory)):
      raise TypeError(
        'aggregator must be a mean of this package, which packed simulation knows how '
        f'to sum; got {type(mean).__name__}.'
      )
    # The query that makes clients' noise, if they add some.
    self._noised_by = None
    if self._private_mean is not None:
      self._noised_by = self._private_mean.noised_by

  def initial_state(self) -> tff.learning.templates.LearningAlgorithmState:
    """The state before the first round."""
    state = tff.learning.templates.LearningAlgorithmState(
      self._initial_weights,
      (),
      () if self._training.schedule is None else tf.constant(0),
      ((), ()) if self._private_mean is None else self._private_mean.initial_state(),
      self._optimizer.initialize(self.specs),
    )
    return tf.nest.map_structure(tf.convert_to_tensor, state)

  def for_clients(self, state: tff.learning.templates.LearningAlgorithmState) -> Any:
    """The broadcast: the model, and parameters of the encoding; it is not secret."""
    model, rate = state.global_model_weights, ()
    if self._training.schedule is not None:
      rate = self._training.schedule.learning_rate(state.client_work)
    weights = training_lib.Weights(
      tuple(model.trainable), tuple(model.non_trainable), rate
    )
    if self._private_mean is None:
      return weights, ()
    return weights, self._private_mean.client_params(state.aggregator.query)

  def zeros(self) -> Any:
    """The sums of no clients: of updates, counts, and metrics."""
    if self._private_mean is None:
      total = tuple(tf.zeros(spec.shape, spec.dtype) for spec in self.specs)
    else:
      total = self._private_mean.no_sum()
    metrics = self._training.model.initialize_metrics_state()
    zero = tf.constant(0, tf.int32)
    return (
      total,
      factory.Counts(zero, zero),
      tf.nest.map_structure(tf.zeros_like, metrics),
    )

  def sum(self, params: Any, stacked: training_lib.Trained) -> Any:
    """The sums of clients; leaves out metrics of updates that are not finite."""
    update = stacked.update
    for step in self._first_steps:
      update = tf.vectorized_map(step, update, fallback_to_while_loop=False)
    if self._private_mean is None:
      counted_finite = _rows_finite(update)
      kept = grid.zero_rows_unless(counted_finite, update)
      total = tf.nest.map_structure(grid.sum_of_rows, kept)
    else:
      total, counted_finite = self._private_mean.sum_without_noise(params, update)
    finite = counted_finite
    # The counts may miss an update that a first step or the client's noise hides.
    if self._first_steps or self._noised_by is not None:
      finite = _rows_finite(stacked.update)
    metrics = grid.zero_rows_unless(finite, stacked.metrics)
    metrics = tf.nest.map_structure(grid.sum_of_rows, metrics)
    nonfinite = tf.reduce_sum(tf.cast(tf.logical_not(counted_finite), tf.int32))
    return total, factory.Counts(tf.size(counted_finite), nonfinite), metrics

  def add_noise(
    self,
    state: tff.learning.templates.LearningAlgorithmState,
    sums: Any,
    clients: tf.Tensor,
  ) -> Any:
    """Adds the noise of clients with these numbers, if they add some, to the sums."""
    query = self._noised_by
    if query is None:
      return sums
    total, counts, metrics = sums
    query_state = state.aggregator.query
    params = query.derive_sample_params(query_state)
    # A round has one key; its clients' noise differs by their numbers.
    key = query.round_key(query_state)

    def body(client: tf.Tensor, noised: Any) -> Any:
      return query.with_noise_of(params, noised, key, clients[client])

    # Only a few in parallel, since each one's noise takes as much memory as an update.
    noised = training_lib.fold(
      body, tf.shape(clients)[0], total, parallel=machine.usable_processors()
    )
    return noised, counts, metrics

  def finish(
    self,
    state: tff.learning.templates.LearningAlgorithmState,
    sums: Any,
    directions: Optional[tf.Tensor] = None,
  ) -> tuple[tff.learning.templates.LearningAlgorithmState, Any]:
    """Returns next state and metrics, with projections onto directions, if any."""
    total, counts, metrics = sums
    counts = factory.Counts(*counts)
    aggregator_state = state.aggregator
    if self._private_mean is None:
      mean = tf.nest.map_structure(
        lambda tensor: tensor / tf.cast(counts.clients, tensor.dtype), total
      )
      measured = collections.OrderedDict(mean_value=(), mean_count=())
    else:
      mean, query_state, spent, query_metrics = self._private_mean.release(
        aggregator_state.query, total, counts
      )
      aggregator_state = aggregator_state._replace(query=query_state, spent=spent)
      measured = collections.OrderedDict(dp_query_metrics=query_metrics, dp=())
    measured[factory.NONFINITE_COUNT] = counts.nonfinite
    if directions is not None:
      flat = [tf.reshape(tf.cast(each, tf.float32), [-1]) for each in mean]
      released = tf.linalg.matvec(directions, tf.concat(flat, axis=0))
      measured[CANARY_PROJECTIONS] = released
    # The optimizer takes a step, unless the update is not finite.
    before = state.finalizer, tuple(state.global_model_weights.trainable)
    stepped = tracing.converted(self._optimizer.next)(*before, tuple(mean))
    finite = grid.all_finite(mean)
    optimizer_state, trainable = tf.nest.map_structure(
      lambda new, old: tf.where(finite, new, old), stepped, before
    )
    weights = tff.learning.models.ModelWeights(
      trainable, state.global_model_weights.non_trainable
    )
    non_finite = tf.cast(tf.logical_not(finite), tf.int32)
    train = tracing.converted(self._training.model.finalize_metrics)(metrics)
    client_work = state.client_work
    if self._training.schedule is not None:
      client_work += 1
    new_state = tff.learning.templates.LearningAlgorithmState(
      weights, state.distributor, client_work, aggregator_state, optimizer_state
    )
    return new_state, collections.OrderedDict(
      distributor=(),
      client_work=collections.OrderedDict(train=train),
      aggregator=measured,
      finalizer=collections.OrderedDict(update_non_finite=non_finite),
    )


def _rows_finite(stacked: Any) -> tf.Tensor:
  return tf.vectorized_map(grid.all_finite, stacked, fallback_to_while_loop=False)
