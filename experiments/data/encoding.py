"""From columns as they are on disk to what a model takes, one client at a time."""

import dataclasses

import numpy as np

from . import problems
from . import table


class Moments:
  """Mean and standard deviation of columns, added up chunk by chunk.

  Chan's update of Welford's sums in float64, of differences from the first row, which
  does not lose digits where values are large and differ little: Chan, Golub and
  LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
  1979.

  Example:
    >>> moments = Moments(1)
    >>> for chunk in ([[1e9 + 1.0], [1e9 + 2.0]], [[1e9 + 3.0], [1e9 + 4.0]]):
    ...   moments.add(np.array(chunk))
    >>> mean, scale = moments.mean_and_scale()
    >>> float(mean[0]) - 1e9, round(float(scale[0]) ** 2, 12)
    (2.5, 1.25)
  """

  def __init__(self, num_columns: int):
    self._count = 0
    self._first = np.zeros(num_columns)
    self._mean = np.zeros(num_columns)
    self._squares = np.zeros(num_columns)
    self._least = np.full(num_columns, np.inf)
    self._largest = np.full(num_columns, -np.inf)

  def add(self, chunk: np.ndarray) -> None:
    """Adds rows: float64 of shape [rows, columns]."""
    count = len(chunk)
    if not count:
      return
    self._least = np.minimum(self._least, chunk.min(axis=0))
    self._largest = np.maximum(self._largest, chunk.max(axis=0))
    if not self._count:
      self._first = np.array(chunk[0])
    chunk = chunk - self._first
    mean = chunk.mean(axis=0)
    total = self._count + count
    difference = mean - self._mean
    self._squares += np.square(chunk - mean).sum(axis=0)
    self._squares += np.square(difference) * (self._count * count / total)
    self._mean += difference * (count / total)
    self._count = total

  def mean_and_scale(self) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and standard deviation; that of a column that is constant is taken as 1."""
    is_constant = self._least == self._largest
    mean = np.where(is_constant, self._least, self._first + self._mean)
    scale = np.sqrt(self._squares / max(1, self._count))
    return mean, np.where(is_constant | (scale == 0), 1.0, scale)

  @property
  def is_constant(self) -> np.ndarray:
    return self._least == self._largest


@dataclasses.dataclass(frozen=True)
class Encoder:
  """Makes inputs of columns: scaled numbers, a feature for each name, then codes."""

  # Subtracted from columns of numbers; `None` for no scaling.
  mean: 'np.ndarray | None'
  scale: 'np.ndarray | None'  # What they are divided by.
  # How many names each column of names has; columns with embeddings come behind them,
  # and are their codes.
  num_names: tuple[int, ...]
  shape: tuple[int, ...]  # Of one example's inputs.

  def inputs(self, numbers: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Inputs, float32 of shape [rows, *shape].

    `numbers`: float64 of shape [rows, columns of numbers].
    `names`: uint32 of shape [rows, columns of names].
    """
    count = len(numbers)
    width = numbers.shape[1]
    num_codes = names.shape[1] - len(self.num_names)
    found = np.zeros((count, width + sum(self.num_names) + num_codes), np.float32)
    if self.mean is not None:
      numbers = (numbers - self.mean) / self.scale
    found[:, :width] = numbers
    for place, size in enumerate(self.num_names):
      found[np.arange(count), width + names[:, place]] = 1
      width += size
    found[:, width:] = names[:, len(self.num_names) :]
    return found.reshape(count, *self.shape)


def input_shape(schema: table.Schema) -> tuple[int, ...]:
  """Shape of one example's inputs: that of an image, or all features in a row."""
  shapes = list(schema.number_columns.values())
  if (
    len(shapes) == 1
    and len(shapes[0]) > 1
    and not (schema.name_columns or schema.embedded_columns)
  ):
    return shapes[0]
  size = sum(int(np.prod(shape)) for shape in shapes)
  size += sum(map(len, schema.name_columns.values())) + len(schema.embedded_columns)
  if not size:
    raise problems.DataError('the data have no features; name --feature_columns.')
  return (size,)
