"""Whether examples are what a model takes: inputs and labels, of its shapes."""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf


def pair(structure: Any) -> tuple[Any, Any]:
  """Inputs and labels of what is known to be both."""
  if isinstance(structure, Mapping):
    return structure['x'], structure['y']
  return tuple(structure)


def inputs_and_labels(structure: Any, owner: str) -> tuple[Any, Any]:
  """The two parts of examples, however they are kept."""
  if isinstance(structure, Mapping):
    if set(structure) == {'x', 'y'}:
      return pair(structure)
    has = f'has arrays {", ".join(map(str, structure))}'
  elif isinstance(structure, (tuple, list)):
    if len(structure) == 2:
      return pair(structure)
    has = f'has a {type(structure).__name__} of {len(structure)}'
  else:
    has = 'has one array'
  raise ValueError(
    f'{owner} {has}; a model needs inputs and labels: a tuple of both, or arrays named '
    'x and y and no others.'
  )


def check_lengths(lengths: Iterable[tuple[str, int]], owner: str) -> None:
  """Checks that arrays have an entry for each example; lengths with arrays' names."""
  found = list(lengths)
  if len({length for _, length in found}) > 1:
    said = ', '.join(f'{length} in {path}' for path, length in found)
    raise ValueError(
      f'{owner} has arrays of different length: {said}. Every example has an entry in '
      'each. (A list is one array: several inputs are a tuple, or named.)'
    )


def check(given: Any, wanted: Any, owner: str, *, dtypes: bool = True) -> None:
  """Checks that examples are what a model takes."""
  parts = zip(
    'xy', inputs_and_labels(given, owner), inputs_and_labels(wanted, 'the model')
  )
  for name, given_part, wanted_part in parts:
    try:
      tf.nest.assert_same_structure(given_part, wanted_part, check_types=False)
    except (TypeError, ValueError) as e:
      raise ValueError(
        f'{owner} gives {name} as {given_part}, the model takes {wanted_part}.'
      ) from e
    for one, other in zip(tf.nest.flatten(given_part), tf.nest.flatten(wanted_part)):
      if not other.shape.is_compatible_with(one.shape):
        raise ValueError(
          f'{owner} gives {name} of shape {list(one.shape)} for each example, the '
          f'model takes {list(other.shape)}. Reshape it, or have the model take what '
          'there is; datasets are of single examples, not batched; one-hot labels '
          'become numbers of classes by .argmax(-1).'
        )
      if dtypes and one.dtype != other.dtype:
        raise ValueError(
          f'{owner} gives {name} of {one.dtype.name}, the model takes '
          f'{other.dtype.name}; convert it, by .astype.'
        )
