"""A federated population: the clients' examples, and their shapes and kinds."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

if TYPE_CHECKING:  # It imports this module.
  from . import preprocessing as preprocessing_lib

import numpy as np

# Kinds of labels: a class, one or several numbers, tags that an example has or has not,
# or the next token at each position of a text.
LabelKind = Literal['class', 'number', 'tags', 'tokens']
# Remarks on populations: on the clients of the test examples, and on made clients.
HELD_OUT_OF_CLIENTS = (
  'Test metrics are computed from examples of the same clients, which were held out of '
  'training.'
)
TEST_DATA_OF_CLIENTS = (
  'Test metrics are computed from other examples of some of the same clients.'
)
TEST_DATA_OF_UNKNOWN = (
  'Test metrics are computed from test data that do not say whose they are, which may '
  'be of the same clients.'
)
MADE_CLIENTS = (
  'The data have no clients, so their rows were dealt out to some that were made: what '
  'is protected is one of these, and of a person with several rows only those that are '
  'there.'
)


@dataclasses.dataclass(frozen=True)
class Shape:
  inputs: tuple[int, ...]  # Shape of one example's inputs.
  input_dtype: Literal['float32', 'int32']  # `int32` for tokens.
  # Shape of one example's label: () for one class or number, else (k,).
  labels: tuple[int, ...]
  label_kind: LabelKind  # Numbers are float32, other labels int32.
  # Number of classes or tokens, padding included; `None` for numbers and tags.
  num_classes: Optional[int] = None
  # Names of classes or tokens by index, if they have names; or the name of each of
  # several numbers or tags.
  names: Optional[tuple[str, ...]] = None
  # Tokens such as padding that are left out of the loss and of metrics.
  ignored_labels: tuple[int, ...] = ()
  # Further tokens that `token_accuracy` leaves out, as the papers do:
  # out-of-vocabulary tokens and ends of sentences.
  unscored_labels: tuple[int, ...] = ()
  # Weight of an example's loss, by its class; `None` for 1.
  class_weights: Optional[tuple[float, ...]] = None
  # Number of values of each column with an embedding. The last inputs are indices of
  # these values; an index equal to their number is a value unknown in training.
  embedded: tuple[int, ...] = ()

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a model for an example, or for each of its tokens."""
    return math.prod(self.labels) if self.num_classes is None else self.num_classes


@dataclasses.dataclass(frozen=True)
class LabelScaling:
  """Scaling of numeric labels: the model is trained on (label - mean) / scale.

  The constants are computed from training data without noise.
  """

  # In the labels' unit; one for each of several labels.
  mean: Union[float, tuple[float, ...]]
  scale: Union[float, tuple[float, ...]]  # In the same unit; positive.

  def done(self, labels: Any) -> np.ndarray:
    """Returns the labels as a model is trained on them: float64."""
    return (np.asarray(labels, np.float64) - np.array(self.mean)) / np.array(self.scale)

  def undone(self, labels: Any) -> np.ndarray:
    """Returns labels or predictions in their unit: float64."""
    return np.asarray(labels, np.float64) * np.array(self.scale) + np.array(self.mean)


@dataclasses.dataclass(frozen=True)
class Population:
  clients: Any  # Inputs and labels by client, as `learning.train` takes them.
  num_clients: int
  # Test inputs and labels, for which no privacy is claimed; `None` without any.
  test_examples: Optional[tuple[Any, Any]]
  shape: Shape
  # Scaling of all labels, those of `test_examples` included; `None` if none.
  label_scaling: Optional[LabelScaling] = None
  # Facts on the data printed before training, such as numbers of clients and examples.
  # Not private.
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Other uses of clients' data without noise, such as the scale of features, in a
  # sentence each: the guarantee does not cover them, and reports say so.
  not_covered: tuple[str, ...] = ()
  # Sentences on what the data may not be meant to be, printed before training.
  remarks: tuple[str, ...] = ()
  # Preprocessing of the user's own data, for further data; `None` for a task's data.
  preprocessing: Optional['preprocessing_lib.Preprocessing'] = None
