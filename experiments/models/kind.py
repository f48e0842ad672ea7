"""What a model says about itself."""

import dataclasses
import math
from typing import Any, Callable, Optional

from ..data import population

# Of values of a column.
EMBEDDING_SIZE = 8


@dataclasses.dataclass(frozen=True)
class Options:
  """What a model is built with, besides the shape of examples.

  Attributes:
    seed: Of the initial weights: same seed, same weights.
    loss: Its name; `None` for the one that goes with the labels.
    hidden_units: Width of its hidden layers; `None` for its own.
    embedding_size: Of a token, or of a value of a column; `None` for its own.
  """

  seed: int = 1
  loss: Optional[str] = None
  hidden_units: Optional[int] = None
  embedding_size: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Kind:
  """A model that is built for the data.

  Attributes:
    name: Value of `--model`.
    summary: One line, for `--help`.
    why_not: Says why the model is not for examples of such a shape; `None` if it is.
    build: Makes a `tff.learning.models.FunctionalModel`.
    embeds_columns: Whether it has embeddings of columns, of `embedding_size`.
    widths: Which of `hidden_units` and `embedding_size` it has, with its own values.
  """

  name: str
  summary: str
  why_not: Callable[[population.Shape], Optional[str]]
  build: Callable[[population.Shape, Options], Any]
  embeds_columns: bool = False
  widths: dict[str, int] = dataclasses.field(default_factory=dict)

  def width(self, options: Options, name: str) -> int:
    """A width that was asked for, or the model's own."""
    given = getattr(options, name)
    return self.widths[name] if given is None else int(given)


def num_features(shape: population.Shape, embedding_size: int) -> int:
  """Numbers of an example, with the embeddings that stand for codes of its columns."""
  return math.prod(shape.inputs) + len(shape.embedded) * (embedding_size - 1)


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
