"""Kinds of models by their name in `--model`, and the data that each is for.

Does not import TensorFlow until a model is built, so that flags are checked at once.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Optional

from ..data import population


@dataclasses.dataclass(frozen=True)
class Kind:
  name: str  # Value of `--model`.
  summary: str  # One line, for `--help`.
  inputs: Literal['features', 'images', 'tokens']
  label_kinds: tuple[population.LabelKind, ...]
  # Defaults of `hidden_units` and `embedding_size`, if the model has them.
  widths: Mapping[str, int] = dataclasses.field(default_factory=dict)
  min_pixels: int = 1  # Minimum height and width of an image.

  def why_not(self, shape: population.Shape) -> Optional[str]:
    """Returns why the model cannot take examples of this shape; `None` if it can."""
    dtype = 'int32' if self.inputs == 'tokens' else 'float32'
    fits, which = shape.label_kind in self.label_kinds, ''
    if self.inputs == 'images':
      fits &= len(shape.inputs) in (2, 3) and min(shape.inputs[:2]) >= self.min_pixels
      which = (
        ' of shape [height, width] or [height, width, channels], with at least '
        f'{self.min_pixels} pixels a side,'
      )
    if fits and shape.input_dtype == dtype:
      return None
    return (
      f'it is for {dtype} inputs{which} and labels of the kind '
      f'{" or ".join(map(repr, self.label_kinds))}, and these are {shape.input_dtype} '
      f'of shape {list(shape.inputs)} with labels of the kind {shape.label_kind!r}'
    )

  def build(
    self,
    shape: population.Shape,
    seed: int = 1,  # Seed of the initial weights.
    loss: Optional[str] = None,
    **widths: Optional[int],  # `None` for the model's default.
  ) -> Any:
    from . import networks  # Imports TensorFlow, which checks of flags do without.

    stated = {name: width for name, width in widths.items() if width is not None}
    return networks.build(self.name, shape, seed, loss, **{**self.widths, **stated})


_KINDS = (
  Kind(
    'logistic',
    'logistic regression',
    'features',
    ('class', 'tags'),
    {'embedding_size': 8},
  ),
  Kind(
    'char_lstm',
    'two LSTMs that predict the next character, as for Shakespeare',
    'tokens',
    ('tokens',),
    {'hidden_units': 256, 'embedding_size': 8},
  ),
  Kind(
    'cnn',
    'convolutional network of federated averaging and of DP-FTRL on EMNIST',
    'images',
    ('class',),
    {'hidden_units': 512},
  ),
  Kind(
    'linear',
    'linear regression of numbers',
    'features',
    ('number',),
    {'embedding_size': 8},
  ),
  Kind(
    'mlp',
    'perceptron with two hidden layers',
    'features',
    ('class', 'tags', 'number'),
    {'hidden_units': 200, 'embedding_size': 8},
  ),
  Kind(
    'simple_cnn',
    "convolutional network of pfl-research's CIFAR-10 benchmark",
    'images',
    ('class',),
    {'hidden_units': 128},
    min_pixels=6,  # Two convolutions without padding, and a pooling.
  ),
  Kind(
    'vgg',
    "small VGG with tanh, of DP-FTRL's experiments on CIFAR-10",
    'images',
    ('class',),
    {'hidden_units': 128},
  ),
  Kind(
    'word_lstm',
    'LSTM that predicts the next word, as for StackOverflow',
    'tokens',
    ('tokens',),
    {'hidden_units': 670, 'embedding_size': 96},
  ),
)
KINDS: dict[str, Kind] = {each.name: each for each in _KINDS}
