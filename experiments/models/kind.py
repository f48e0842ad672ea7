"""What a model says about itself."""

import dataclasses
from typing import Any, Callable, Optional

from ..data import population

# Two convolutions without padding, of `networks.simple_cnn`, take a pixel on each side.
LOST_PIXELS = 4


@dataclasses.dataclass(frozen=True)
class Options:
  seed: int = 1  # Of the initial weights: same seed, same weights.
  loss: Optional[str] = None  # Its name; `None` for the one that goes with the labels.
  hidden_units: Optional[int] = None  # Width of its hidden layers; `None` for its own.
  # Of a token, or of a value of a column; `None` for its own.
  embedding_size: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Kind:
  """A model that is built for the data."""

  name: str  # Value of `--model`.
  summary: str  # One line, for `--help`.
  # Says why the model is not for examples of such a shape; `None` if it is.
  why_not: Callable[[population.Shape], Optional[str]]
  # Which of `hidden_units` and `embedding_size` it has, with its own values.
  widths: dict[str, int] = dataclasses.field(default_factory=dict)
  # Whether it has embeddings of columns, of `embedding_size`.
  embeds_columns: bool = False

  def build(self, shape: population.Shape, options: Options) -> Any:
    from . import networks  # Flags are checked without TensorFlow.

    asked = {name: getattr(options, name) for name in self.widths}
    given = {name: width for name, width in asked.items() if width is not None}
    return networks.build(self.name, shape, options, **{**self.widths, **given})


def why_not_images(shape: population.Shape) -> Optional[str]:
  """Why a model of images that are of classes is not for such examples."""
  if len(shape.inputs) not in (2, 3) or shape.input_dtype != 'float32':
    return (
      'its inputs are images, float32 of shape [height, width] or '
      f'[height, width, channels], and these are {described(shape)}'
    )
  return why_not_classes(shape)


def why_not_classes(shape: population.Shape) -> Optional[str]:
  """Why a model of numbers that are of classes is not for such examples."""
  return _why_not(shape, 'class', 'float32')


def why_not_logits(shape: population.Shape) -> Optional[str]:
  """Why a model of numbers that are of classes, or have tags, is not for them."""
  return _why_not(shape, 'tags' if shape.label_kind == 'tags' else 'class', 'float32')


def why_not_larger_images(shape: population.Shape) -> Optional[str]:
  """The same of images that lose some pixels on each side."""
  found = why_not_images(shape)
  if found is None and min(shape.inputs[:2]) < LOST_PIXELS + 2:
    return (
      f'its images have at least {LOST_PIXELS + 2} pixels on each side, and these are '
      f'{shape.inputs[0]} x {shape.inputs[1]}'
    )
  return found


def why_not_outputs(shape: population.Shape) -> Optional[str]:
  """Why a model of numbers is not for classes, tags or numbers."""
  if shape.label_kind == 'number':
    return why_not_numbers(shape)
  return why_not_logits(shape)


def why_not_numbers(shape: population.Shape) -> Optional[str]:
  """Why a model of numbers with numbers as labels is not for such examples."""
  return _why_not(shape, 'number', 'float32')


def why_not_tokens(shape: population.Shape) -> Optional[str]:
  """Why a model of the next token is not for such examples."""
  return _why_not(shape, 'tokens', 'int32')


def _why_not(shape: population.Shape, label_kind: str, dtype: str) -> Optional[str]:
  if shape.label_kind != label_kind or shape.input_dtype != dtype:
    return (
      f'it is for {dtype} inputs and labels of the kind {label_kind!r}, and these are '
      f'{described(shape)}'
    )
  return None


def described(shape: population.Shape) -> str:
  """Inputs and labels in words, for messages."""
  return (
    f'{shape.input_dtype} of shape {list(shape.inputs)} with labels of the kind '
    f'{shape.label_kind!r}'
  )
