"""Loads the user's own model: `--model=package.module:function`.

The function takes no arguments, or the `Shape` of the examples. It returns a Keras
model or a `tff.learning.models.FunctionalModel` with one output for each class or
token, or one for each numeric label. Modules are searched on Python's path and in the
current directory.
"""

import ast
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import traceback
from typing import Any, Optional

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import messages

from .. import losses
from ..data import population
from . import kind as kind_lib

_USAGE = '--model=package.module:function'
# Source code that may define names in other ways than by `def` or assignment.
_DYNAMIC = r'import \*|__getattr__|globals|vars|setattr|exec|eval'


def kind(name: str) -> kind_lib.Kind:
  """Finds module and function without importing the module, which may take long."""
  module, _, function = name.partition(':')
  parts = [*module.split('.'), function]
  if not all(part.isidentifier() for part in parts):
    raise ValueError(f'--model={name} is not of the form {_USAGE}.')
  if os.getcwd() not in sys.path:  # As `python -m` does.
    sys.path.insert(0, os.getcwd())
  try:
    spec = importlib.util.find_spec(module)
  except ModuleNotFoundError:
    spec = None
  except Exception as e:  # Raised by a parent package.
    raise ValueError(f'--model={name}: {_why(e)}') from e
  if spec is None:
    raise ValueError(
      f'--model={name}: there is no module {module!r} in {os.getcwd()}, nor where '
      'Python looks for modules; it is named without .py.'
    )
  if isinstance(spec.loader, importlib.machinery.SourceFileLoader):
    try:
      source = spec.loader.get_source(module) or ''
      ast.parse(source)
    except (SyntaxError, ValueError) as e:
      raise ValueError(f'--model={name}: {spec.origin} cannot be read: {e}.') from e
    # A name that is in the source but not a function is detected on import.
    if not re.search(rf'\b{function}\b|{_DYNAMIC}', source):
      functions = re.findall(r'(?m)^def (\w+)', source)
      raise ValueError(_no_function(name, spec.origin, function, functions))
  return _OwnModel(name, 'your own', 'features', ())


def _no_function(name: str, path: Any, function: str, functions: list[str]) -> str:
  near = messages.near(function, functions)
  return (
    f'--model={name}: {path} has no function {function!r}; '
    f'{"similar are" if near else "there are"}: '
    f'{", ".join(near or functions) or "none"}.'
  )


class _OwnModel(kind_lib.Kind):
  embeds_columns = False

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
    from tff_dp_aggregators.learning.packed import step_checks

    from . import networks

    with models_lib.as_in_a_new_process(seed):
      returned = make(self.name, shape)
    spec = networks.input_spec(shape)
    example_spec = tf.nest.map_structure(
      lambda each: tf.TensorSpec(each.shape[1:], each.dtype), spec
    )
    try:
      if isinstance(returned, tff.learning.models.FunctionalModel):
        if loss is not None:
          raise ValueError(
            f'--loss={loss} is for Keras models; this one is functional and '
            'has its own.'
          )
        model = models_lib.functional(returned, None, example_spec, owner='the data')
      elif isinstance(returned, tf.keras.Model):
        model = _from_keras(returned, shape, seed, loss, example_spec)
      else:
        raise ValueError(
          f'it returned {type(returned).__name__}, and must return a Keras model or a '
          'tff.learning.models.FunctionalModel.'
        )
      _check_outputs(model, shape)
      plain = tff.learning.optimizers.build_sgdm(1.0)
      step_checks.refuse_random_models(packed.LocalTraining(model, plain, batch_size=1))
    except (ValueError, TypeError) as e:
      raise program.WrongUsage(f'--model={self.name}: {e}') from e
    return model


def make(name: str, shape: population.Shape) -> Any:
  module_name, _, function_name = name.partition(':')
  try:
    module = importlib.import_module(module_name)
  except (Exception, SystemExit) as e:  # The user's module may raise anything.
    raise program.WrongUsage(
      f'--model={name}: importing {module_name} failed: {_why(e)}'
    ) from e
  function = getattr(module, function_name, None)
  if not callable(function):
    functions = [key for key, each in vars(module).items() if inspect.isfunction(each)]
    path = getattr(module, '__file__', '?')
    raise program.WrongUsage(_no_function(name, path, function_name, functions))
  variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
  parameters = inspect.signature(function).parameters.values()
  takes_shape = any(
    each.default is each.empty and each.kind not in variable for each in parameters
  )
  if shape.embedded and not takes_shape:
    raise program.WrongUsage(
      f'--model={name} takes no shape, so it cannot know that the last '
      f'{len(shape.embedded)} inputs are numbers of values of --embedding_columns, and '
      'no quantities. Have it take the shape, whose `embedded` says how many values '
      'each has, or leave --embedding_columns out.'
    )
  try:
    return function(shape) if takes_shape else function()
  except (Exception, SystemExit) as e:  # The user's function may raise anything.
    raise program.WrongUsage(f'--model={name} failed: {_why(e)}') from e


def _why(error: BaseException) -> str:
  frames = [
    each
    for each in traceback.extract_tb(error.__traceback__)
    if not each.filename.startswith('<frozen')
  ]
  where = f' ({frames[-1].filename}, line {frames[-1].lineno})' if frames else ''
  return f'{type(error).__name__}: {" ".join(str(error).split())}{where}'


def _from_keras(
  returned: Any, shape: population.Shape, seed: int, loss: Any, example_spec: Any
) -> Any:
  """Returns the Keras model with a loss of this package or of Keras."""
  from tff_dp_aggregators.learning import keras_losses
  from tff_dp_aggregators.learning import models as models_lib

  is_named = loss is not None and loss not in losses.LOSSES
  is_keras_loss = is_named or (
    loss is None and getattr(returned, 'loss', None) is not None
  )
  if is_keras_loss and shape.ignored_labels:
    raise ValueError(
      f"Keras's losses count padding like other tokens; give --loss="
      f'{losses.name_for(shape, None)}, or a functional model.'
    )
  name = None if is_keras_loss else losses.name_for(shape, loss)
  if name is not None:
    loss = keras_losses.BatchLoss(losses.function(shape, name))
  model = models_lib.functional(returned, loss, example_spec, 'the data', seed)
  if name == 'cross_entropy' or shape.label_kind == 'tags':
    _check_logits(model, shape)
  return model


def _check_logits(model: Any, shape: population.Shape) -> None:
  """Refuses outputs that are probabilities if loss or metric need logits."""
  from tff_dp_aggregators.learning import keras_losses

  (_, outputs), are_tags = model.sample(), shape.label_kind == 'tags'
  why = hasattr(outputs, 'shape') and keras_losses.why_no_logits(outputs, are_tags)
  activation = keras_losses.last_activation(model.keras_model)
  if not why and activation in keras_losses.PROBABLE:
    why = f'ends in {activation}'
  if why:
    loss = 'loss and metric of tags' if are_tags else 'the loss cross_entropy'
    raise ValueError(
      f'it {why}, like probabilities, but logits are required by {loss}: leave out '
      'the last activation, and give from_logits=True to a loss of Keras; or for '
      'classes give --loss=sparse_categorical_crossentropy, which takes probabilities.'
    )


def _check_outputs(model: Any, shape: population.Shape) -> None:
  import tensorflow as tf

  expected = [None, *shape.labels]
  if shape.num_classes is not None:
    expected.append(shape.num_classes)
  spec = model.input_spec
  x_spec = spec['x'] if hasattr(spec, 'keys') else spec[0]
  with tf.Graph().as_default():  # Functional models of Keras need a graph.
    weights = tf.nest.map_structure(tf.constant, model.initial_weights)
    x = tf.compat.v1.placeholder(x_spec.dtype, x_spec.shape)
    outputs = model.predict_on_batch(weights, x, training=False)
    outputs = getattr(outputs, 'output', outputs)  # Without the regularizers' losses.
  if not hasattr(outputs, 'shape'):
    raise ValueError('it puts out several tensors; loss and metrics take one.')
  shapes = {tuple(expected)}
  if shape.num_classes is None:
    shapes.add((*expected, 1))
  if not any(outputs.shape.is_compatible_with(each) for each in shapes):
    raise ValueError(
      f'it puts out {outputs.shape.as_list()} for inputs of {list(shape.inputs)}; for '
      f'these data it must be {expected}: a number for each class, token or label. The '
      'function may take the shape of the examples as its argument.'
    )
