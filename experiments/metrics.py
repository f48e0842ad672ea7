"""What is measured on test data, by name: what `--metric` takes."""

import dataclasses
from typing import Any, Callable, Optional

import numpy as np

from .data import population


@dataclasses.dataclass(frozen=True)
class Metric:
  """What is measured on test data after each round.

  Attributes:
    name: Of its column (after `test_`), its picture and in sentences.
    label_kinds: For which labels it is.
    make: Gives what `learning.train` takes among its `test_metrics`, for examples of a
      shape.
    limits: Least and largest value, for pictures; `None` where there is none.
    higher_is_better: Whether it is.
  """

  name: str
  label_kinds: tuple[population.LabelKind, ...]
  make: Callable[[population.Shape], Any]
  limits: tuple[Optional[float], Optional[float]]
  higher_is_better: bool


def _accuracy(shape: population.Shape) -> Any:
  del shape

  def measure(outputs: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(np.argmax(outputs, axis=1) == labels))

  return measure


METRICS = {
  each.name: each for each in (Metric('accuracy', ('class',), _accuracy, (0, 1), True),)
}
