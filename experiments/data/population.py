"""A federated population: who has which examples, and what they are like."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

if TYPE_CHECKING:  # Which imports this.
  from . import preprocessing as preprocessing_lib

import numpy as np

# What labels are: one of so many classes, a number (or several), tags, each of which an
# example has or has not, or the next token at each position of a text.
LabelKind = Literal['class', 'number', 'tags', 'tokens']
# Remarks on populations: whose their test examples are, and that clients were made.
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
  input_dtype: Literal['float32', 'int32']  # `float32`, or `int32` for tokens.
  # Shape of one example's label: empty for one class or number, else [k].
  labels: tuple[int, ...]
  label_kind: LabelKind  # Numbers are float32, others int32.
  # How many classes or tokens there are, padding included; `None` for numbers and tags.
  num_classes: Optional[int] = None
  # What they are called, by number, if they have names; of several numbers or tags,
  # what each is called.
  names: Optional[tuple[str, ...]] = None
  # Tokens that count neither in the loss nor in metrics, such as padding.
  ignored_labels: tuple[int, ...] = ()
  # Further tokens that `token_accuracy` leaves out, as the papers do: those out of
  # vocabulary, and ends of sentences.
  unscored_labels: tuple[int, ...] = ()
  # What the loss of an example counts times, by its class; `None` for 1.
  class_weights: Optional[tuple[float, ...]] = None
  # How many values each column with an embedding has. The last inputs are these, as
  # whole numbers from 0; the number of values is one that training data do not have.
  embedded: tuple[int, ...] = ()

  @property
  def num_outputs(self) -> int:
    """Numbers that a model puts out for an example, or for a token of it."""
    return math.prod(self.labels) if self.num_classes is None else self.num_classes


@dataclasses.dataclass(frozen=True)
class LabelScaling:
  """What was done to labels that are numbers: (label - mean) / scale is trained on.

  The constants are of the training data, without noise.
  """

  # In the labels' own unit; of several labels of a row one of each.
  mean: Union[float, tuple[float, ...]]
  scale: Union[float, tuple[float, ...]]  # As well; positive.

  def done(self, labels: Any) -> np.ndarray:
    """Labels as they are trained on: float64."""
    return (np.asarray(labels, np.float64) - np.array(self.mean)) / np.array(self.scale)

  def undone(self, labels: Any) -> np.ndarray:
    """Labels, or predictions, in their own unit: float64."""
    return np.asarray(labels, np.float64) * np.array(self.scale) + np.array(self.mean)


@dataclasses.dataclass(frozen=True)
class Population:
  clients: Any  # What `learning.train` takes: inputs and labels by client.
  num_clients: int
  # Held-out inputs and labels, for which no privacy is claimed; `None` if there are
  # none.
  test_examples: Optional[tuple[Any, Any]]
  shape: Shape
  # What was done to all labels, also those of `test_examples`; `None` if nothing was.
  label_scaling: Optional[LabelScaling] = None
  # What is told of the data before the training, by what it is: numbers of clients and
  # examples, say. Not private.
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # What else was made of clients' data without noise, such as the scale of features, in
  # a sentence each: the guarantee does not cover it, and reports say so.
  not_covered: tuple[str, ...] = ()
  # What made inputs of the user's own data, for others like them; `None` of the data of
  # a task.
  preprocessing: Optional['preprocessing_lib.Preprocessing'] = None
