"""Saves the model's architecture when a run begins, and loads it with trained weights.

A Keras model is saved in Keras's own format, a functional one as its TensorFlow graph.
Both have the initial weights, which may be derived from data that no noise protects:
neither must be shared.
"""

import io
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning import clients
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import models
from tff_dp_aggregators.learning import runtime  # noqa: F401  Ends TFF at exit.
from tff_dp_aggregators.learning.runs import progress
from tff_dp_aggregators.learning.runs import run_directory

_MODELS = (tf.keras.Model, tff.learning.models.FunctionalModel)
# In the file of a Keras model: some inputs, its outputs for them, and its weights.
_SAMPLE = 'tried.npz'
_REMEDY = 'learning.load(run_dir, model=make_model), with the function that made it'


class NotKeptError(ValueError):
  """A run directory has weights, but no usable model for them."""


class TrainedModel(tff.learning.models.FunctionalModel):
  """A functional model with the trained weights as `initial_weights`."""

  def __call__(self, x: Any, training: bool = False) -> Any:
    """Returns the model's output."""
    x = tf.nest.map_structure(
      lambda spec, each: tf.cast(each, spec.dtype), clients.pair(self.input_spec)[0], x
    )
    return self.predict_on_batch(self.initial_weights, x, training=training)


def numbered(**parts: Any) -> bytes:
  """Structures of arrays as an npz file, in which they have numbers."""
  buffer = io.BytesIO()
  arrays = {
    f'{name}_{number}': np.asarray(each)
    for name, part in parts.items()
    for number, each in enumerate(tf.nest.flatten(part))
  }
  np.savez(buffer, **arrays)
  return buffer.getvalue()


def _part(arrays: Mapping[str, np.ndarray], name: str) -> tuple[np.ndarray, ...]:
  count = sum(each.startswith(f'{name}_') for each in arrays)
  return tuple(arrays[f'{name}_{number}'] for number in range(count))


def read_weights(path: str) -> tff.learning.models.ModelWeights:
  """The weights in `model.npz`."""
  with np.load(path) as arrays:
    return tff.learning.models.ModelWeights(
      _part(arrays, 'trainable'), _part(arrays, 'non_trainable')
    )


def save(
  directory: run_directory.RunDirectory, model: tff.learning.models.FunctionalModel
) -> None:
  """Saves the architecture of a run's model; prints a line if that is not possible."""
  keras_model = getattr(model, 'keras_model', None)
  try:
    if keras_model is None:
      if not directory.has(run_directory.ARCHITECTURE):
        _save_functional(directory, model)
    elif not directory.has(run_directory.KERAS_ARCHITECTURE):
      content = _keras_bytes(model)
      directory.write(run_directory.KERAS_ARCHITECTURE, content, is_private=True)
  except OSError:
    raise
  except Exception as e:  # A user's model may raise anything.
    progress.say(
      f'{directory.path}: the architecture of the model cannot be kept '
      f'({failures.in_words(e)}). Its weights will be; to use them: {_REMEDY}.',
      sys.stderr,
    )


def load(
  run_dir: str, *, model: Any = None, custom_objects: Optional[Mapping[str, Any]] = None
) -> Union[tf.keras.Model, TrainedModel]:
  """Returns the model of a run with the weights that were released last.

  If the run was stopped, these are the weights of its last checkpoint. If the ledger
  has later rounds, a line on standard error says so.

  Args:
    run_dir: Directory of a run that has released a round.
    model: The model given to `learning.train`, if the run could not save it: a
      functional or Keras model, which gets the weights, or a function that makes one.
    custom_objects: Classes and functions of a Keras model by name, as
      `tf.keras.models.load_model` takes them; registered ones can be left out.

  Returns:
    A Keras model, not compiled, or a functional one, for batches of inputs.

  Raises:
    FileNotFoundError: If there is no run.
    NotKeptError: If the model was not saved or cannot be loaded; the message says which
      arguments help.
    TypeError: If `model` is not a model.
    ValueError: If the run has released no round yet, or the weights do not fit.
  """
  weights = read_weights(os.path.join(run_dir, run_directory.MODEL))
  _check_released(run_dir, weights)
  is_keras = os.path.exists(os.path.join(run_dir, run_directory.KERAS_ARCHITECTURE))
  if custom_objects is not None and (model is not None or not is_keras):
    raise ValueError(
      'custom_objects are for the Keras model that a run has kept; leave them out.'
    )
  if model is None:
    model = _load_saved(run_dir, custom_objects)
  elif not isinstance(model, _MODELS) and models.is_maker(model):
    with models.as_in_a_new_process(run_directory.secret_seed(run_dir)):
      model = model()
  if not isinstance(model, _MODELS):
    raise TypeError(
      'model must be a Keras model, a function that makes one, or a '
      f'tff.learning.models.FunctionalModel; got {type(model).__name__}.'
    )
  if isinstance(model, tf.keras.Model):
    _check_constants(model, run_dir)
    _assign(model, weights)
    return model
  return _with_weights(model, weights)


def _save_functional(
  directory: run_directory.RunDirectory, model: tff.learning.models.FunctionalModel
) -> None:
  # TFF saves functional models only if inputs and labels have no names.
  unnamed = tff.learning.models.FunctionalModel(
    initial_weights=model.initial_weights,
    predict_on_batch_fn=_predict_fn(model),
    loss_fn=model.loss,
    input_spec=clients.pair(model.input_spec),
  )
  prefix = run_directory.LAYING_OUT
  with tempfile.TemporaryDirectory(prefix=prefix, dir=directory.path) as folder:
    path = os.path.join(folder, run_directory.ARCHITECTURE)
    os.makedirs(path, mode=0o700)
    tff.learning.models.save_functional_model(unnamed, path)
    new_files.sync_tree(path)
    os.rename(path, directory.file(run_directory.ARCHITECTURE))


def _keras_bytes(model: models.KerasFunctionalModel) -> bytes:
  inputs, outputs = model.sample()
  flat = tf.nest.flatten(inputs)
  trainable, rest = model.initial_weights
  sample = numbered(
    structure=json.dumps(tf.nest.pack_sequence_as(inputs, list(range(len(flat))))),
    input=flat,
    output=outputs,
    trainable=trainable,
    rest=rest,
  )
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, run_directory.KERAS_ARCHITECTURE)
    model.keras_model.save(path)
    with zipfile.ZipFile(path, 'a') as archive:
      archive.writestr(_SAMPLE, sample)
    with open(path, 'rb') as file:
      return file.read()


def _check_constants(model: tf.keras.Model, run_dir: str) -> None:
  """Refuses a model that puts out other numbers than the one that was trained."""
  path = os.path.join(run_dir, run_directory.KERAS_ARCHITECTURE)
  if not os.path.exists(path):
    if not model.built:
      raise ValueError(
        'the model has no weights yet, and the run has not kept what its inputs are: '
        'call it once with some of them in the function that makes it.'
      )
    return
  with zipfile.ZipFile(path) as archive:
    with np.load(io.BytesIO(archive.read(_SAMPLE))) as sample:
      arrays = dict(sample)
  given = _part(arrays, 'input')
  if 'structure_0' not in arrays:
    raise NotKeptError(f'{path} is of an earlier version, which reads it.')
  structure = json.loads(str(arrays['structure_0']))
  inputs = tf.nest.map_structure(lambda number: given[number], structure)
  if not model.built:
    models.make(model, clients.batch_spec(clients.example_spec(inputs)), seed=0)
  weights = _part(arrays, 'trainable'), _part(arrays, 'rest')
  _assign(model, tff.learning.models.ModelWeights(*weights))
  found = [each.numpy() for each in tf.nest.flatten(model(inputs, training=False))]
  for one, other in zip(found, _part(arrays, 'output')):
    scale = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0)) or 1.0
    if one.shape != other.shape or not np.allclose(
      one, other, rtol=0, atol=1e-3 * scale, equal_nan=True
    ):
      raise NotKeptError(
        'the model puts out other numbers than the one that was trained, for the same '
        'inputs and weights: give the model that was trained. If it has constants that '
        'are drawn when it is made, keep them as weights that are not trained.'
      )


def _load_saved(run_dir: str, custom_objects: Optional[Mapping[str, Any]]) -> Any:
  path = os.path.join(run_dir, run_directory.KERAS_ARCHITECTURE)
  if os.path.exists(path):
    try:
      return tf.keras.models.load_model(
        path, custom_objects=dict(custom_objects or {}), compile=False
      )
    except Exception as e:  # Keras or a user's layer may raise anything.
      raise NotKeptError(
        f'{path} cannot be loaded: {failures.in_words(e)}. If it has classes or '
        'functions of your own, give learning.load(run_dir, custom_objects='
        f'{{"Name": Name, ...}}); else: {_REMEDY}.'
      ) from e
  path = os.path.join(run_dir, run_directory.ARCHITECTURE)
  if not os.path.exists(path):
    raise NotKeptError(
      f'{run_dir} has the weights of a model, and not what they are weights of: it '
      f'could not be kept, or the run is of an earlier version. Give {_REMEDY}.'
    )
  return tff.learning.models.load_functional_model(path)


def _check_released(run_dir: str, weights: tff.learning.models.ModelWeights) -> None:
  """Refuses weights of no released round; prints a line if they are not the last."""
  path = os.path.join(run_dir, run_directory.LEDGER)
  entries = ledger_lib.read(path).entries
  checksum = ledger_lib.checksum_of([*weights.trainable, *weights.non_trainable])
  of = [number for number, e in enumerate(entries, 1) if e.result_checksum == checksum]
  if not of:
    raise ValueError(
      f'{os.path.join(run_dir, run_directory.MODEL)} has the weights of none of the '
      f'{len(entries)} rounds in the ledger. If the run was stopped before its first '
      'checkpoint, the same call of learning.train goes on; else put the file back.'
    )
  if of[-1] != len(entries):
    progress.say(
      f'{run_dir}: the weights are those after {of[-1]} of {len(entries)} rounds that '
      'were released, of the last checkpoint.',
      sys.stderr,
    )


def _assign(model: tf.keras.Model, weights: tff.learning.models.ModelWeights) -> None:
  variables = (model.trainable_variables, model.non_trainable_variables)
  _check_shapes(variables, weights)
  for variable, array in zip(tf.nest.flatten(variables), tf.nest.flatten(weights)):
    variable.assign(array)


def _with_weights(
  model: tff.learning.models.FunctionalModel, weights: tff.learning.models.ModelWeights
) -> TrainedModel:
  _check_shapes(model.initial_weights, weights)
  return TrainedModel(
    initial_weights=tf.nest.pack_sequence_as(
      tuple(model.initial_weights), [*weights.trainable, *weights.non_trainable]
    ),
    predict_on_batch_fn=_predict_fn(model),
    loss_fn=model.loss,
    input_spec=model.input_spec,
  )


def _predict_fn(model: tff.learning.models.FunctionalModel) -> Any:
  @tf.function
  def predict_on_batch(weights: Any, x: Any, training: bool) -> Any:
    return model.predict_on_batch(weights, x, training)

  return predict_on_batch


def _check_shapes(wanted: Any, weights: tff.learning.models.ModelWeights) -> None:
  shapes, found = (
    [[list(np.shape(each)) for each in tf.nest.flatten(part)] for part in parts]
    for parts in (wanted, (weights.trainable, weights.non_trainable))
  )
  if shapes != found:
    raise ValueError(
      f'the weights of the run (trainable ones, others) are of shapes {found}, and '
      f'those of the model of {shapes}: give the model that was trained.'
    )
