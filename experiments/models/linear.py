"""Linear regression, which starts at zero."""

from typing import Any

from ..data import population
from . import kind


def build(shape: population.Shape, options: kind.Options) -> Any:
  """Linear regression of a number, or several, that starts at zero."""
  from .parts import functional  # Flags are checked without TensorFlow.

  size = KIND.width(options, 'embedding_size')
  return functional.one_layer(shape, options, size)


KIND = kind.Kind(
  'linear',
  'linear regression of numbers',
  kind.why_not_numbers,
  build,
  embeds_columns=True,
  widths={'embedding_size': kind.EMBEDDING_SIZE},
)
