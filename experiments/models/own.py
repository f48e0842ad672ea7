"""Loads the user's own model: `--model=package.module:function`.

The function takes no arguments, or the `Shape` of the examples. It returns a Keras
model or a `tff.learning.models.FunctionalModel` with one output for each class or
token, or one for each numeric label. Modules are searched on Python's path and in the
current directory.
"""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from typing import Any, Optional

from tff_dp_aggregators.accounting.programs import program

from .. import losses
from ..data import population
from . import kind as kind_lib


def kind(name: str) -> kind_lib.Kind:
  """Finds the module, without importing it, which may take long."""
  module, _, function = name.partition(':')
  if not all(part.isidentifier() for part in (*module.split('.'), function)):
    raise ValueError(
      f'--model={name} is not of the form --model=package.module:function.'
    )
  if os.getcwd() not in sys.path:  # As `python -m` does.
    sys.path.insert(0, os.getcwd())
  try:
    found = importlib.util.find_spec(module)
  except Exception as e:  # Raised by a parent package.
    raise ValueError(f'--model={name}: {_why(e)}') from e
  if found is None:
    raise ValueError(
      f'--model={name}: there is no module {module!r} in {os.getcwd()}, nor where '
      'Python looks for modules; it is named without .py.'
    )
  return _OwnModel(name, 'your own', 'features', ())


class _OwnModel(kind_lib.Kind):
  def why_not(self, shape: population.Shape) -> Optional[str]:
    return None

  def build(
    self,
    shape: population.Shape,
    seed: int = 1,
    loss: Optional[str] = None,
    **widths: Optional[int],  # The user's model has its own.
  ) -> Any:
    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_dp_aggregators.learning import models as models_lib
    from tff_dp_aggregators.learning import packed
    from tff_dp_aggregators.learning.packed import training as training_lib

    from . import networks

    with models_lib.as_in_a_new_process(seed):
      made = make(self.name, shape)
    example_spec = tf.nest.map_structure(
      lambda each: tf.TensorSpec(each.shape[1:], each.dtype), networks.input_spec(shape)
    )
    try:
      if isinstance(made, tf.keras.Model):
        loss = _loss(made, shape, loss)
      model = models_lib.functional(made, loss, example_spec, 'the data', seed)
      if isinstance(made, tf.keras.Model):
        _check_logits(model, shape, loss)
      _check_outputs(model, shape)
      plain = tff.learning.optimizers.build_sgdm(1.0)
      training_lib.refuse_random_models(
        packed.LocalTraining(model, plain, batch_size=1)
      )
    except (ValueError, TypeError) as e:
      text = ' '.join(str(e).split())
      raise program.WrongUsage(f'--model={self.name}: {text}') from e
    return model


def make(name: str, shape: population.Shape) -> Any:
  module_name, _, function_name = name.partition(':')
  try:
    function = getattr(importlib.import_module(module_name), function_name)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    takes_shape = any(
      each.default is each.empty and each.kind not in variable
      for each in inspect.signature(function).parameters.values()
    )
    if not shape.embedded or takes_shape:
      return function(shape) if takes_shape else function()
  except (Exception, SystemExit) as e:  # The user's module may raise anything.
    raise program.WrongUsage(f'--model={name} failed: {_why(e)}') from e
  raise program.WrongUsage(
    f'--model={name} takes no shape, so it would take the numbers of values of '
    '--embedding_columns for quantities. Have it take the shape, whose `embedded` says '
    'how many values each has, or leave --embedding_columns out.'
  )


def _why(error: BaseException) -> str:
  frame = traceback.extract_tb(error.__traceback__)[-1]
  text = ' '.join(str(error).split())
  return f'{type(error).__name__}: {text} ({frame.filename}, line {frame.lineno})'


def _loss(model: Any, shape: population.Shape, given: Optional[str]) -> Any:
  """Returns the loss of a Keras model: one of this package, or of Keras."""
  from tff_dp_aggregators.learning import keras_losses

  is_named = given is not None and given not in losses.LOSSES
  if not is_named and (given or getattr(model, 'loss', None) is None):
    return keras_losses.BatchLoss(losses.function(shape, given))
  if shape.ignored_labels:
    raise ValueError(
      f"Keras's losses count padding like other tokens; give --loss="
      f'{losses.name_for(shape, None)}, or a functional model.'
    )
  return given


def _check_logits(model: Any, shape: population.Shape, loss: Any) -> None:
  """Refuses outputs that are probabilities if loss or metric need logits."""
  from tff_dp_aggregators.learning import keras_losses

  are_tags = shape.label_kind == 'tags'  # Their metric takes logits as well.
  is_own = isinstance(loss, keras_losses.BatchLoss) and shape.label_kind != 'number'
  _, outputs = model.sample()
  if not (are_tags or is_own) or not hasattr(outputs, 'shape'):
    return
  why = keras_losses.why_no_logits(outputs, are_tags, model.keras_model)
  if why:
    raise ValueError(
      f'it {why}, like probabilities, but logits are required by '
      f'{"loss and metric of tags" if are_tags else "the loss cross_entropy"}: leave '
      'out the last activation, and give from_logits=True to a loss of Keras; or for '
      'classes give --loss=sparse_categorical_crossentropy, which takes probabilities.'
    )


def _check_outputs(model: Any, shape: population.Shape) -> None:
  import tensorflow as tf

  with tf.Graph().as_default():  # Functional models of Keras need a graph.
    weights = tf.nest.map_structure(tf.constant, model.initial_weights)
    x = tf.compat.v1.placeholder(shape.input_dtype, [None, *shape.inputs])
    outputs = model.predict_on_batch(weights, x, training=False)
  outputs = getattr(outputs, 'output', outputs)  # Without the regularizers' losses.
  last = [[shape.num_classes]] if shape.num_classes is not None else [[], [1]]
  expected = [[None, *shape.labels, *each] for each in last]
  if not hasattr(outputs, 'shape') or not any(
    map(outputs.shape.is_compatible_with, expected)
  ):
    raise ValueError(
      f'it puts out {getattr(outputs, "shape", "several tensors")} for inputs of '
      f'{list(shape.inputs)}; for these data it must be {expected[0]}: a number for '
      'each class, token or label. The function may take the shape of the examples as '
      'its argument.'
    )
