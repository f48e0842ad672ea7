"""Makes functional models for training, also from Keras models.

A Keras model is traced once, with weights as arguments: its own variables do not
change. Features of a model that need Keras's `fit` are reproduced, or refused by name.
"""

import contextlib
import copy
import hashlib
import random
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from keras.src import backend as keras_backend
from tensorflow.core.function.capture import capture_container
from tensorflow.python.eager import context as tf_context
from tensorflow.python.ops import embedding_ops
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.util import nest

from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import functions
from tff_dp_aggregators.learning import keras_losses

# A Keras loss, its name, or a function of labels and outputs; for several outputs also
# a list or a mapping of these.
Loss = Any
# Methods that `fit` calls. A model that overrides one is not trained by its loss alone.
_FIT_METHODS = ('train_step', 'compute_loss', 'test_step', 'compute_metrics')
_BATCH_NORMALISATIONS = (
  tf.keras.layers.BatchNormalization,
  tf.keras.layers.experimental.SyncBatchNormalization,
)
_MASKED = (
  'outputs of the model have a mask (mask_zero=True), by which fit leaves padding out '
  'of the loss, and here it would count. End the model in tf.keras.layers.Lambda('
  'lambda x: x), which drops the mask, and give padding a label that the loss leaves '
  'out: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, '
  'ignore_class=-1), say.'
)
_SEED_BITS = 32  # Bits of Keras's seeds.
# Number of random inputs for which outputs are checked.
_NUM_INPUTS = 64
# Held while states of TensorFlow that all threads share are changed.
_LOCK = threading.RLock()


def functional(
  model: Any,
  loss: Optional[Loss],
  element_spec: Any,
  owner: str = 'the first client',
  seed: int = 0,
  are_batched: bool = False,
) -> tff.learning.models.FunctionalModel:
  """Makes a functional model, after checking that it takes examples of this spec."""
  if isinstance(model, tff.learning.models.FunctionalModel):
    if loss is not None:
      raise ValueError('loss is for Keras models; a functional model has its own.')
    for weights in model.initial_weights:
      is_flat = isinstance(weights, (list, tuple))
      if not is_flat or any(map(tf.nest.is_nested, weights)):
        raise ValueError(
          'the weights of the functional model are a structure; training takes '
          'models whose trainable and other weights are each a tuple of arrays.'
        )
    if element_spec is not None:
      taken = clients_lib.example_spec(model.input_spec)
      clients_lib.check_spec(element_spec, taken, owner)
    return model
  if element_spec is None:
    raise ValueError(
      'clients are packed.PackedData, which do not say what are inputs and labels: '
      'give a tff.learning.models.FunctionalModel, such as learning.models.functional '
      'makes of a Keras model.'
    )
  clients_lib.inputs_and_labels(element_spec, owner)
  input_spec = clients_lib.batch_spec(element_spec)
  x, _ = clients_lib.pair(input_spec)
  keras_model = make(model, x, seed, are_batched)
  _check_inputs(keras_model, element_spec, owner)
  return KerasFunctionalModel(keras_model, loss, input_spec)


def with_loss(
  model: tff.learning.models.FunctionalModel, loss: Any
) -> tff.learning.models.FunctionalModel:
  """Returns a copy of the model with another loss."""
  copied = copy.copy(model)
  copied._loss_fn = loss
  return copied


def weight_names(model: Any) -> tuple[str, ...]:
  """Returns the names of a model's trainable weights, for parts of joint mechanisms.

  For a Keras model they are number and name, in the order of its `trainable_variables`;
  a pattern may match both, or either. Otherwise they are the paths in the structure of
  `initial_weights`: keys, names of fields and indices, separated by slashes.

  Args:
    model: A model, or a function that makes one, as `learning.train` takes it.

  Returns:
    The names, in the order of `tf.nest.flatten`.

  Raises:
    TypeError: If it is not such a model.
    ValueError: If a Keras model has no weights until it is called.

  Example:
    >>> weight_names(
    ...   lambda: tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])])
    ... )
    ('0 dense/kernel:0', '1 dense/bias:0')
  """
  if isinstance(model, KerasFunctionalModel):
    return model.weight_names
  if isinstance(model, tff.learning.models.FunctionalModel):
    trainable, _ = model.initial_weights
    return tuple(path for path, _ in nest.flatten_with_joined_string_paths(trainable))
  return names_of_weights(make(model, None, seed=0))


def weight_shapes(model: tff.learning.models.FunctionalModel) -> dict[str, list[int]]:
  """The shapes of a model's trainable weights by name, in the order of the names."""
  flat = tf.nest.flatten(model.initial_weights[0])
  return dict(zip(weight_names(model), [list(np.shape(weight)) for weight in flat]))


def part_of(
  mechanism: joint_mechanism.AnyMechanism, model: tff.learning.models.FunctionalModel
) -> tuple[str, ...]:
  """The part of each trainable weight; empty if the mechanism has no parts."""
  shapes = weight_shapes(model)
  return mechanism.part_of(
    tuple(shapes), [f'{name} {shape}' for name, shape in shapes.items()]
  )


def _check_inputs(model: tf.keras.Model, element_spec: Any, owner: str) -> None:
  expected = getattr(model, 'inputs', None)
  if not expected:
    return
  x, y = clients_lib.pair(element_spec)
  given = _inputs_of(model, x)
  if len(given) != len(expected):
    raise ValueError(
      f'{owner} gives {len(given)} inputs, the model takes {len(expected)}: '
      f'{", ".join(getattr(model, "input_names", []))}.'
    )
  wanted = [  # Keras converts dtypes.
    tf.TensorSpec(one.shape[1:], other.dtype) for one, other in zip(expected, given)
  ]
  clients_lib.check_spec((given, y), (wanted, y), owner)


def _inputs_of(model: tf.keras.Model, x: Any) -> list[Any]:
  """Flat inputs in the model's order; a mapping may have the names of its inputs."""
  names = getattr(model, 'input_names', None) or []
  if isinstance(x, Mapping) and set(x) == set(names):
    return [x[name] for name in names]
  return list(tf.nest.flatten(x))


class KerasFunctionalModel(tff.learning.models.FunctionalModel):
  """A functional model that computes what a Keras model does."""

  def __init__(self, model: tf.keras.Model, loss: Any, input_spec: Any):
    refuse(model)
    self.keras_model = model
    x, y = clients_lib.pair(input_spec)
    for layer in _layers(model):
      if isinstance(layer, tf.keras.layers.LayerNormalization):
        layer._fused = False  # Its fused kernel cannot be vectorised over clients.
    variables = (model.trainable_variables, model.non_trainable_variables)
    initial = tuple(tuple(each.numpy() for each in part) for part in variables)
    traced = {training: _Traced(model, x, training) for training in (True, False)}
    self._traced = traced
    # Whether penalties depend on inputs, as activity regularizers do.
    self.penalty_needs_inputs = traced[True].penalty_needs_inputs
    self.output_spec = traced[False].output_spec
    self.logits: set[str] = set()  # Outputs that are logits according to the loss.
    self._losses: Optional[keras_losses.Losses] = None
    self.loss_ignores_labels = False  # In Keras, this changes the mean of a batch.
    if not isinstance(loss, keras_losses.BatchLoss):
      loss = keras_losses.Losses(loss, model, self.output_spec, y)
      self.logits = {name for name, is_so in loss.takes_logits.items() if is_so}
      self._losses = loss
      self.loss_ignores_labels = loss.ignores_labels
      if any(traced[True].masks):
        raise ValueError(_MASKED)

    @tf.function
    def predict_on_batch(model_weights: Any, x: Any, training: bool) -> Any:
      output, penalties = traced[bool(training)](model_weights, x)
      return (
        keras_losses.Penalised(output, tf.add_n(penalties)) if penalties else output
      )

    def loss_of_batch(output: Any, label: Any, sample_weight: Any = None) -> Any:
      if not isinstance(output, keras_losses.Penalised):
        return loss(output, label, sample_weight)
      batch_loss = loss(output.output, label, sample_weight)
      return batch_loss + tf.cast(output.penalty, batch_loss.dtype)

    super().__init__(
      initial_weights=initial,
      predict_on_batch_fn=predict_on_batch,
      loss_fn=loss_of_batch,
      input_spec=input_spec,
    )
    self.weight_names = names_of_weights(model)
    if isinstance(loss, keras_losses.Losses):
      loss.check_probabilities(self.sample()[1])

  @property
  def compiled_metrics(self) -> Any:
    """The metrics that the model was compiled with; `None` for none."""
    container = getattr(self.keras_model, 'compiled_metrics', None)
    metrics = getattr(container, '_user_metrics', None)
    weighted = getattr(container, '_user_weighted_metrics', None)
    if metrics and weighted:
      raise ValueError(
        'the model is compiled with metrics and weighted_metrics; give test.metrics.'
      )
    return metrics or weighted or None

  def check_examples(self, examples: Any, owner: str) -> None:
    """Refuses classes without an output, and tokens without an embedding."""
    x, y = clients_lib.pair(examples)
    if self._losses is not None:
      self._losses.check_labels(y, owner)
    inputs = getattr(self.keras_model, 'inputs', None) or []
    for each, tokens in zip(inputs, _inputs_of(self.keras_model, x)):
      for node in each.node.layer._outbound_nodes:
        if isinstance(node.layer, tf.keras.layers.Embedding):
          what = f'{owner}: the input of layer {node.layer.name!r}'
          keras_losses.check_range(tokens, node.layer.input_dim, what, 'embeddings')

  def sample(self) -> tuple[Any, Any]:
    """Random inputs, of deviation 10 or else from 0 to 1, and outputs for them."""
    x, _ = clients_lib.pair(self.input_spec)
    weights = tf.nest.map_structure(tf.constant, self.initial_weights)
    rng = np.random.default_rng(1)

    def sample_of(draw: Callable[[list[int]], Any], integer: int) -> tuple[Any, Any]:
      def of_spec(spec: tf.TensorSpec) -> tf.Tensor:
        shape = [_NUM_INPUTS, *(size or 2 for size in spec.shape[1:])]
        values = draw(shape) if spec.dtype.is_floating else np.full(shape, integer)
        return tf.cast(tf.constant(values), spec.dtype)

      inputs = tf.nest.map_structure(of_spec, x)
      output, _ = self._traced[False](weights, inputs)
      return inputs, tf.nest.map_structure(lambda each: each.numpy(), output)

    with contextlib.suppress(tf.errors.OpError):
      sample = sample_of(lambda shape: 10.0 * rng.normal(size=shape), 0)
      if all(np.isfinite(each).all() for each in tf.nest.flatten(sample[1])):
        return sample
    return sample_of(rng.random, 1)


def names_of_weights(model: tf.keras.Model) -> tuple[str, ...]:
  """Number and name of each trainable weight, in Keras's order."""
  return tuple(f'{i} {each.name}' for i, each in enumerate(model.trainable_variables))


def is_maker(model: Any) -> bool:
  """Whether it may make a model; layers and SavedModels are called with inputs."""
  return callable(model) and not isinstance(
    model, tf.__internal__.tracking.AutoTrackable
  )


def make(model: Any, x: Any, seed: int, are_batched: bool = False) -> tf.keras.Model:
  """Makes a Keras model with its weights, built for the specs `x` if necessary."""
  with as_in_a_new_process(seed):
    made = model() if is_maker(model) else model
    if not isinstance(made, tf.keras.Model):
      given = repr(made) if isinstance(made, str) else type(made).__name__
      raise TypeError(
        'model must be a tff.learning.models.FunctionalModel, a Keras model, or a '
        f'function that makes a Keras model; got {given}. What Keras has saved, '
        'tf.keras.models.load_model(path) makes a Keras model again; what '
        'tf.saved_model.load returns is none. A layer becomes a model by '
        'tf.keras.Sequential([layer]).'
      )
    if made.built and (x is None or getattr(made, 'inputs', None)):
      return made
    if x is None:
      raise ValueError(
        'the model has no weights until it is called; give one that says what it '
        'takes, such as by tf.keras.Input.'
      )
    if are_batched:
      raise ValueError(
        'the clients have datasets of batches, each of which would count as an example '
        'of a model that does not say what it takes. Give datasets of single examples, '
        'by .unbatch(); local.batch_size makes batches. If they are examples, have the '
        'model say so, by tf.keras.Input.'
      )
    made(
      tf.nest.map_structure(
        lambda spec: tf.keras.Input(spec.shape[1:], dtype=spec.dtype), x
      )
    )
    return made


@contextlib.contextmanager
def as_in_a_new_process(seed: int) -> Iterator[None]:
  """Gives seeds and names as in a new process, and restores the state afterwards."""
  keras_seeds = vars(keras_backend._SEED_GENERATOR)
  tensorflow_state = vars(tf_context.context())
  names = keras_backend.PER_GRAPH_OBJECT_NAME_UIDS
  with _LOCK:
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    # TensorFlow and Keras have no functions to save and restore these.
    saved = [(variables, dict(variables)) for variables in (keras_seeds, names)]
    seeds = {name: tensorflow_state.get(name) for name in ('_seed', '_rng')}
    names.clear()
    if seed >= 2**_SEED_BITS:  # A hash does not reveal the seed, which may be secret.
      digest = hashlib.sha256(str(seed).encode()).digest()
      seed = int.from_bytes(digest[: _SEED_BITS // 8], 'big')
    tf.keras.utils.set_random_seed(seed)
    try:
      yield
    finally:
      random.setstate(states[0])
      np.random.set_state(states[1])  # noqa: NPY002
      tensorflow_state.update(seeds)
      for variables, values in saved:
        variables.clear()
        variables.update(values)


def _layers(model: tf.keras.Model) -> list[Any]:
  return list(model._flatten_modules(include_self=True, recursive=True))


def refuse(model: tf.keras.Model) -> None:
  """Refuses a model that needs features of `fit` which are not reproduced here."""
  for name in _FIT_METHODS:
    defaults = [getattr(each, name) for each in (tf.keras.Model, tf.keras.Sequential)]
    if getattr(type(model), name) not in defaults:
      raise ValueError(
        f'the model has a {name} of its own, which is not called: clients are trained '
        'by the gradient of the loss. Put it into the loss, or into add_loss.'
      )
  for layer in _layers(model):
    if getattr(layer, 'stateful', False) and isinstance(layer, tf.keras.layers.RNN):
      raise ValueError(
        f'the layer {layer.name!r} is stateful: it would hand what one batch left to '
        'the next, of other clients. Make it with stateful=False.'
      )
  if not model.trainable_variables:
    raise ValueError(
      'the model has no weights that are trained: all layers are frozen, or have none.'
    )
  for variable in model.trainable_variables:
    if _inner(variable).dtype != tf.float32 or getattr(variable, 'constraint', None):
      raise ValueError(
        f'the weight {variable.name!r} is of {_inner(variable).dtype.name} with '
        f'the constraint {getattr(variable, "constraint", None)}: optimizers and noise '
        'are of float32, and noise would break a constraint. Make the layer with dtype '
        'float32, and have it use what keeps the constraint, such as tf.nn.softplus of '
        'the weight.'
      )


def refuse_batch_normalisation(model: tf.keras.Model) -> None:
  """Refuses layers that average clients' activations outside of their updates."""
  for layer in _layers(model):
    if isinstance(layer, _BATCH_NORMALISATIONS) and layer.trainable:
      raise ValueError(
        f'the model has the batch normalisation {layer.name!r}: it averages what '
        'clients have outside of their updates, where no noise is added. Use '
        'tf.keras.layers.GroupNormalization or LayerNormalization; or freeze it, by '
        'trainable = False.'
      )


class _Traced:
  """A model's call as a function of its weights and inputs, and of nothing else."""

  def __init__(self, model: tf.keras.Model, x: Any, training: bool):
    variables = (model.trainable_variables, model.non_trainable_variables)
    self._x = x
    self.masks: list[bool] = []
    self.penalty_needs_inputs = False

    @tf.function
    def forward(weights: Any, x: Any) -> Any:
      by_variable = {
        id(_inner(variable)): tensor
        for part, tensors in zip(variables, weights)
        for variable, tensor in zip(part, tensors)
      }
      with _read_instead(by_variable):
        output = model(x, training=training)
        penalties = [tf.cast(each, tf.float32) for each in model.losses]
      # Penalties of weights alone are added by `model.losses`, others by the call.
      self.penalty_needs_inputs = any(
        getattr(each, '_eager_losses', None) for each in _layers(model)
      )
      model._clear_losses()
      flat = tf.nest.flatten(output)
      self.masks = [getattr(each, '_keras_mask', None) is not None for each in flat]
      return output, penalties

    specs = tuple(
      tuple(tf.TensorSpec(each.shape, _inner(each).dtype) for each in part)
      for part in variables
    )
    with tf.init_scope():
      self._function = forward.get_concrete_function(specs, x)
    self.output_spec = functions.specs_of(self._function.structured_outputs[0])
    if any(each.dtype == tf.resource for each, _ in self._function.graph.captures):
      refuse_batch_normalisation(model)
      names = [each.name for each in self._function.graph.variables]
      raise ValueError(
        f'the model uses {", ".join(names) or "a table"}, which is none of its weights '
        'or which its call changes, so clients cannot be given another value of it. '
        'Leave out layers that draw random numbers or change weights of their own; '
        'have layers track their weights; and look names and tokens up before, so that '
        'examples have their numbers.'
      )

  def __call__(self, weights: Any, x: Any) -> tuple[Any, list[tf.Tensor]]:
    x = tf.nest.pack_sequence_as(self._x, tf.nest.flatten(x))
    return self._function(tuple(tuple(tf.nest.flatten(w)) for w in weights), x)


def _inner(variable: Any) -> Any:
  """The variable inside Keras's wrapper that casts it for mixed precision, if any."""
  return getattr(variable, '_variable', variable)


@contextlib.contextmanager
def _read_instead(tensors: Mapping[int, tf.Tensor]) -> Iterator[None]:
  """Has reads of variables return tensors, by id; eager ones become constants."""
  captures = capture_container.FunctionCaptures
  capture = captures.capture_by_value

  def as_constant(own: Any, graph: Any, tensor: Any, name: Any = None) -> tf.Tensor:
    if not hasattr(tensor, 'numpy') or tensor.dtype in (tf.resource, tf.variant):
      return capture(own, graph, tensor, name)
    with graph.as_default(), tf.control_dependencies(None):
      return tf.constant(tensor.numpy())

  def reading(name: str, read_tensor: Callable[..., tf.Tensor]) -> Any:
    read = getattr(variable_kind, name)

    def read_instead(variable: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
      if (tensor := tensors.get(id(variable))) is None:
        return read(variable, *args, **kwargs)
      return read_tensor(tensor, *args, **kwargs)

    return variable_kind, name, read_instead

  variable_kind = resource_variable_ops.BaseResourceVariable
  replaced = (
    (captures, 'capture_by_value', as_constant),
    reading('_read_variable_op', lambda tensor, no_copy=False: tensor),
    reading('sparse_read', tf.gather),
    reading('gather_nd', tf.gather_nd),
    # It would capture a variable without reading it.
    (embedding_ops, '_colocate_with', lambda _: contextlib.nullcontext()),
  )
  with _LOCK, contextlib.ExitStack() as stack:
    for owner, name, value in replaced:
      stack.callback(setattr, owner, name, getattr(owner, name))
      setattr(owner, name, value)
    yield
