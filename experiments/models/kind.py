"""What a model says about itself."""

import dataclasses
from typing import Any, Callable, Optional

from ..data import population


@dataclasses.dataclass(frozen=True)
class Kind:
  """A model that is built for the data.

  Attributes:
    name: Value of `--model`.
    summary: One line, for `--help`.
    why_not: Says why the model is not for examples of such a shape; `None` if it is.
    build: Makes a `tff.learning.models.FunctionalModel`, or a Keras model.
  """

  name: str
  summary: str
  why_not: Callable[[population.Shape], Optional[str]]
  build: Callable[[population.Shape], Any]
