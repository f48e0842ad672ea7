"""The loss of a Keras model: a weighted sum of the losses of its outputs.

Shapes of labels and outputs are compared before anything is computed, because
TensorFlow would broadcast shapes that differ.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from keras.src import losses as losses_lib

_losses = tf.keras.losses
# Names of the functions that compute Keras's losses.
_SPARSE = 'sparse_categorical_crossentropy'
_CATEGORICAL = (_SPARSE, 'categorical_crossentropy', 'categorical_focal_crossentropy')
_BINARY = ('binary_crossentropy', 'binary_focal_crossentropy')
# Size of a batch where shapes are compared; no other dimension has this size.
_BATCH = 1_000_003
# Activations whose outputs are probabilities.
PROBABLE = ('sigmoid', 'softmax')
# Lowest and highest labels of losses of Keras that compute something for any labels.
_LABEL_RANGES = {
  **dict.fromkeys((*_BINARY, *_CATEGORICAL[1:], 'kl_divergence'), (0, 1)),
  **dict.fromkeys(('poisson', 'mean_squared_logarithmic_error'), (0, np.inf)),
}
# TensorFlow's operations that are meant for logits.
_OF_LOGITS = {'SparseSoftmaxCrossEntropyWithLogits', 'SoftmaxCrossEntropyWithLogits'}
_OF_LOGITS |= {'Softmax', 'LogSoftmax', 'Sigmoid'}
# tf.nn.sigmoid_cross_entropy_with_logits applies all of these to logits.
_SIGMOID_CROSS_ENTROPY = {'GreaterEqual', 'Neg', 'Mul'}
# These keep the values; and these scale and clip probabilities before a logarithm.
_KEEPING = {'Identity', 'Reshape', 'Squeeze', 'ExpandDims', 'Cast', 'GatherV2'}
_CLIPPING = {'RealDiv', 'Minimum', 'Maximum', 'AddV2'}
_CALLS = ('PartitionedCall', 'StatefulPartitionedCall')
# Rounding tolerance of float32 probabilities, and of their sums, which should be 1.
_ROUNDING = 1e-3


class BatchLoss(functools.partial[Any]):
  """A loss of outputs, labels and weights of examples that does not use Keras."""


class Penalised(NamedTuple):
  """A model's output for a batch, and the penalty that it adds to the batch's loss."""

  output: Any
  penalty: tf.Tensor


class Losses:
  """The loss of a batch: the weighted sum of the losses of a model's outputs."""

  def __init__(
    self, loss: Any, model: tf.keras.Model, output_spec: Any, label_spec: Any
  ):
    """`loss`: In any form that Keras's `compile` takes; `None` for the compiled one."""
    if loss is None:
      loss = getattr(model, 'loss', None)
    if loss is None:
      raise ValueError(
        'a Keras model needs a loss, such as tf.keras.losses.MeanSquaredError(): none '
        'is given, and the model is not compiled with one.'
      )
    weights = (model.get_compile_config() or {}).get('loss_weights')
    weights = 1.0 if weights is None else weights
    self._model = model
    self._names = names_of_outputs(model, output_spec)
    self._outputs = by_output('outputs', output_spec, self._names)
    self._is_single = isinstance(output_spec, tf.TensorSpec)
    labels = by_output('labels', label_spec, self._names)
    loss_of = by_output('loss', loss, self._names, is_for_all=True)
    weight_of = by_output('loss_weights', weights, self._names, is_for_all=True)
    self._parts = []
    for name, output in self._outputs.items():
      if loss_of[name] is not None or self._is_single:  # As in Keras.
        made = _loss_object(loss_of[name])
        _check_shapes(made, labels[name], output, '' if self._is_single else name)
        self._parts.append((name, made, float(weight_of[name])))
    # Whether a loss divides by the number of labels that are not of `ignore_class`.
    self.ignores_labels = any(
      _function_of(made) and made.get_config().get('ignore_class') is not None
      for _, made, _ in self._parts
    )
    # Users' own losses may fail on these shapes.
    batch_specs = tf.nest.map_structure(
      lambda each: tf.TensorSpec([_BATCH, *each.shape[1:]], each.dtype),
      (output_spec, label_spec),
    )
    graph = tf.function(self.__call__).get_concrete_function(*batch_specs).graph
    traced = graph.inputs[: len(tf.nest.flatten(output_spec))]
    traced = tf.nest.pack_sequence_as(output_spec, traced)
    # Whether the loss of each output takes logits; `None` if it is not known.
    self.takes_logits = {
      name: _graph_takes_logits(tensor)
      for name, tensor in by_output('outputs', traced, self._names).items()
    }
    for name, made, _ in self._parts:
      if type(made).__module__ == losses_lib.__name__ and _function_of(made):
        known = made.get_config().get('from_logits', self.takes_logits[name])
        self.takes_logits[name] = known

  def __call__(self, output: Any, label: Any, sample_weight: Any = None) -> Any:
    """Returns the loss of a batch, whose examples may have weights."""
    outputs = by_output('outputs', output, self._names)
    labels = by_output('labels', label, self._names)
    return tf.add_n(
      [
        weight
        * loss(_fit_labels(labels[name], outputs[name]), outputs[name], sample_weight)
        for name, loss, weight in self._parts
      ]
    )

  def check_labels(self, labels: Any, owner: str) -> None:
    """Refuses labels that a loss of Keras is not for."""
    by_name = by_output('labels', labels, self._names)
    for name, loss, _ in self._parts:
      function = _function_of(loss)
      values = np.asarray(by_name[name])
      what = f'{owner}: the label{f" of {name!r}" if len(self._parts) > 1 else ""}'
      if function in _LABEL_RANGES:
        lowest, highest = _LABEL_RANGES[function]
        _refuse_where(
          (values < lowest - _ROUNDING) | (values > highest + _ROUNDING),
          values,
          what,
          f'the loss {function} takes labels from {lowest} to {highest}. Correct it, '
          'or take another loss: numbers of classes are for '
          'SparseCategoricalCrossentropy, and any numbers for MeanSquaredError.',
        )
      elif function == _SPARSE:
        ignored = loss.get_config().get('ignore_class')
        check_range(values, self._outputs[name].shape[-1], what, 'outputs', ignored)
        why = f'the loss {function} takes whole numbers, those of classes. Correct it.'
        _refuse_where(values % 1 != 0, values, what, why)

  def check_probabilities(self, output: Any) -> None:
    """Refuses logits where the loss takes probabilities, and vice versa."""
    outputs = by_output('outputs', output, self._names)
    for name, loss, _ in self._parts:
      function = _function_of(loss)
      takes_logits = self.takes_logits[name]
      if takes_logits is None:
        continue
      values = np.asarray(outputs[name], np.float64)
      is_binary = function in _BINARY if function else values.shape[-1] == 1
      check = why_no_logits if takes_logits else why_no_probabilities
      model = self._model if self._is_single else None
      is_sure = bool(function or takes_logits or (values < 0).any())
      is_sure |= last_activation(model) == 'linear'
      why = check(values, is_binary, model) if is_sure else None
      if why is not None:
        kind = function.title().replace('_', '')
        option = '' if takes_logits else 'from_logits=True'
        other = f'tf.keras.losses.{kind}({option})' if kind else 'one of the other kind'
        end = 'sigmoid' if is_binary else 'softmax' if kind else 'softmax or sigmoid'
        raise ValueError(
          f'the model {why}, and the loss {kind or loss.name} takes '
          f'{"logits" if takes_logits else "probabilities"}: give {other}, or '
          f'{"leave out" if takes_logits else "end the model in"} the activation {end}.'
        )


def last_activation(model: Any) -> Optional[str]:
  """The name of a model's last activation; `None` if it is not known."""
  layer = model
  while getattr(layer, 'layers', None) and isinstance(layer, tf.keras.Model):
    outputs = getattr(layer, 'outputs', None)
    if not outputs:
      return None  # A subclass of Model may call its layers in any order.
    layer = outputs[0].node.layer
  if isinstance(layer, tf.keras.layers.Softmax):
    return 'softmax'
  return getattr(getattr(layer, 'activation', None), '__name__', None)


def check_range(
  numbers: Any,
  count: Optional[int],
  what: str,
  things: str,
  ignored: Optional[int] = None,
) -> None:
  """Refuses indices outside of [0, count), other than `ignored`."""
  indices = np.asarray(numbers)
  if count is None:
    return
  is_outside = (indices < 0) | (indices >= count)
  if ignored is not None:
    is_outside &= indices != ignored
  _refuse_where(
    is_outside,
    indices,
    what,
    f'the model has {count} {things}, numbered from 0 to {count - 1}. Correct it, or '
    f'give the model more {things}.',
  )


def _refuse_where(
  is_wrong: np.ndarray, values: np.ndarray, what: str, why: str
) -> None:
  if is_wrong.any():
    index = tuple(np.argwhere(is_wrong)[0].tolist())
    raise ValueError(f'{what} in row {index[0]} is {values[index]}, and {why}')


def why_no_logits(
  outputs: np.ndarray, is_binary: bool = False, model: Any = None
) -> Optional[str]:
  """Why outputs for random inputs, [examples, ..., classes], are not logits, if so."""
  if not (outputs < 0).any():
    if is_binary:
      # A constant output, as an untrained embedding may give, is no evidence.
      varies = len(outputs) > 1 and np.ptp(outputs, axis=0).any()
      if varies and (outputs <= 1).all():
        return 'puts out numbers between 0 and 1 for whatever input'
    elif outputs.shape[-1] > 1 and np.allclose(
      outputs.sum(axis=-1), 1, rtol=0, atol=_ROUNDING
    ):
      return 'puts out numbers that are not negative and add up to 1'
  ends = last_activation(model)
  return f'ends in the activation {ends}' if ends in PROBABLE else None


def why_no_probabilities(
  outputs: np.ndarray, is_binary: bool = False, model: Any = None
) -> Optional[str]:
  """Why outputs, [examples, ..., classes], are not probabilities, if so."""
  is_outside = (outputs < 0).any() or (is_binary and (outputs > 1).any())
  totals = outputs if is_binary else outputs.sum(axis=-1)
  if is_outside or not (totals.any() if is_binary else totals.all()):
    return f'puts out numbers from {outputs.min():.4g} to {outputs.max():.4g}'
  is_linear = last_activation(model) == 'linear'
  return 'ends in the activation linear' if is_linear else None


def names_of_outputs(model: Any, outputs: Any) -> list[str]:
  """Names of a model's outputs: keys of a mapping, Keras's names, or indices."""
  if isinstance(outputs, Mapping):
    return list(outputs)
  count = len(outputs) if isinstance(outputs, (list, tuple)) else 1
  known = list(getattr(model, 'output_names', None) or ())
  if len(known) == count and len(set(known)) == count:
    return known
  return [str(number) for number in range(count)]


def by_output(
  argument: str, given: Any, names: Sequence[str], is_for_all: bool = False
) -> dict[str, Any]:
  """Maps outputs to values given by name, in order, or once (if `is_for_all`)."""
  is_sequence = isinstance(given, (list, tuple))
  if isinstance(given, Mapping) and set(given) == set(names):
    return dict(given)
  if is_sequence and len(given) == len(names):
    return dict(zip(names, given))
  if isinstance(given, Mapping) or is_sequence or not (is_for_all or len(names) == 1):
    raise ValueError(
      f'{argument} must be for the outputs of the model, {", ".join(names)}: by these '
      f'names, or one for each in this order; got {given!r:.300}.'
    )
  return dict.fromkeys(names, given)


def _loss_object(loss: Any) -> tf.keras.losses.Loss:
  loss = _losses.get(loss)
  if isinstance(loss, type) and issubclass(loss, _losses.Loss):
    loss = loss()
  if not isinstance(loss, _losses.Loss):
    name = getattr(loss, '__name__', None)
    loss = losses_lib.LossFunctionWrapper(loss, name=name)
  if loss.reduction == _losses.Reduction.NONE:
    raise ValueError(
      f'the loss {type(loss).__name__} has reduction none, which makes a value for '
      'each example and no loss of a batch; leave reduction out.'
    )
  return loss


def _fit_labels(labels: Any, outputs: Any) -> Any:
  """Fits labels to outputs as Keras's `fit`: [n] to [n, 1] or back, and the dtype."""
  labels, outputs = tf.convert_to_tensor(labels), tf.convert_to_tensor(outputs)
  if fitted_shape(labels.shape, outputs.shape) is not None:
    labels = tf.reshape(labels, tf.shape(outputs))
  for kind in ('is_floating', 'is_integer'):
    if getattr(labels.dtype, kind) and getattr(outputs.dtype, kind):
      return tf.cast(labels, outputs.dtype)
  return labels


def fitted_shape(labels: Any, outputs: Any) -> Optional[list[Optional[int]]]:
  """The shape of outputs if labels differ from it only by a last axis of size 1."""
  one, other = list(labels), list(outputs)
  if other == [*one, 1] or (len(one) > 1 and one == [*other, 1]):
    return other
  return None


def _shape(spec: Any, end: Optional[int] = None) -> str:
  return str(['n', *spec.shape[1:end]]).replace("'", '')


def _check_shapes(
  loss: tf.keras.losses.Loss, label: Any, output: Any, name: str
) -> None:
  if not isinstance(label, tf.TensorSpec):
    raise ValueError(f'the labels of an output must be one array; got {label}.')
  if label.shape.rank is None or output.shape.rank is None:
    return
  fitted = tf.TensorShape(fitted_shape(label.shape, output.shape) or label.shape)
  is_same = output.shape.is_compatible_with(fitted)
  lacks_last_axis = any(
    tf.TensorShape([*output.shape[:-1], *last]).is_compatible_with(fitted)
    for last in ([], [1])
  )
  function = _function_of(loss)
  if function == _SPARSE:
    fits, wanted = lacks_last_axis, f'numbers of classes of shape {_shape(output, -1)}'
  elif function:
    fits, wanted = is_same, f'labels of the shape of outputs, {_shape(output)}'
  else:
    # Integers may be class indices, which a user's own loss looks up.
    are_indices = lacks_last_axis and not label.dtype.is_floating
    pairs = zip([*fitted[:0:-1], _BATCH], [*output.shape[:0:-1], _BATCH])
    broadcasts = lacks_last_axis or all(a == b or 1 in (a, b) for a, b in pairs)
    fits = is_same or are_indices or not broadcasts
    wanted = f'labels that fit outputs of shape {_shape(output)}'
  if not fits:
    of = f' of the output {name!r}' if name else ''
    raise ValueError(
      f'labels{of} are of shape {_shape(label)}, and the loss '
      f'{loss.name or type(loss).__name__} takes {wanted}. TensorFlow would repeat one '
      'along the other. Reshape the labels, change what the model puts out, or take '
      'another loss: numbers of classes are for SparseCategoricalCrossentropy, one-hot '
      'labels for CategoricalCrossentropy.'
    )


def _function_of(loss: tf.keras.losses.Loss) -> str:
  """The name of the function of a Keras loss; '' for a user's own loss."""
  if not isinstance(loss, losses_lib.LossFunctionWrapper):
    return ''
  is_of_keras = getattr(loss.fn, '__module__', '') == losses_lib.__name__
  return str(loss.fn.__name__) if is_of_keras else ''


def _graph_takes_logits(output: tf.Tensor) -> Optional[bool]:
  """Whether a loss takes an output as logits; `None` if its operations do not tell."""
  takes_logits = any(
    uses & _OF_LOGITS or uses >= _SIGMOID_CROSS_ENTROPY
    for _, uses in _made_of(output, _KEEPING)
  )
  # Probabilities are clipped to at most 1 before their logarithm is taken.
  takes_probabilities = any(
    'Log' in uses
    for clipped, _ in _made_of(output, _KEEPING | _CLIPPING)
    if clipped.op.type == 'Minimum' and _is_at_most_one(clipped.op.inputs[1])
    for _, uses in _made_of(clipped, _KEEPING | _CLIPPING)
  )
  return takes_logits if takes_logits != takes_probabilities else None


def _made_of(
  tensor: tf.Tensor, types: set[str]
) -> Iterator[tuple[tf.Tensor, set[str]]]:
  """Yields a tensor and what these operations make of it, each with its users."""
  for call in tensor.consumers():
    if call.type in _CALLS:
      graph = call.graph._get_function(call.get_attr('f').name).graph
      for given, inner in zip(call.inputs, graph.inputs):
        if given is tensor:
          yield from _made_of(inner, types)
  operations = [each for each in tensor.consumers() if each.inputs[0] is tensor]
  yield tensor, {each.type for each in operations}
  for operation in operations:
    if operation.type in types:
      yield from _made_of(operation.outputs[0], types)


def _is_at_most_one(bound: tf.Tensor) -> bool:
  if bound.op.type == 'Sub':  # Keras clips at 1 - epsilon.
    bound = bound.op.inputs[0]
  value = tf.get_static_value(bound)
  return value is not None and bool(np.all(value <= 1))
