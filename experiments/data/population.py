"""A federated population: who has which examples, and what they are like."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Optional

if TYPE_CHECKING:  # Which imports this.
  from . import preprocessing as preprocessing_lib

import numpy as np

# What labels are: one of so many classes, a number (or several), or the next token at
# each position of a text.
LabelKind = Literal['class', 'number', 'tokens']
# Of populations whose test examples are of people who train.
HELD_OUT_OF_CLIENTS = (
  'Test metrics are computed from examples of the same clients, which were held out of '
  'training.'
)
# Of test data of their own: some of them, or nobody knows whose.
TEST_DATA_OF_CLIENTS = (
  'Test metrics are computed from other examples of some of the same clients.'
)
TEST_DATA_OF_UNKNOWN = (
  'Test metrics are computed from test data that do not say whose they are, which may '
  'be of the same clients.'
)
# Of populations whose clients are nobody's.
MADE_CLIENTS = (
  'The data have no clients, so their rows were dealt out to some that were made: what '
  'is protected is one of these, and of a person with several rows only those that are '
  'there.'
)


@dataclasses.dataclass(frozen=True)
class Shape:
  """What a model has to know of the examples.

  Attributes:
    inputs: Shape of one example's inputs.
    input_dtype: `float32`, or `int32` for tokens.
    labels: Shape of one example's label: empty for a class or a number.
    label_kind: What labels are; classes and tokens are int32, numbers float32.
    num_classes: How many classes or tokens there are, padding included; `None` for
      numbers.
    names: What they are called, by number, if they have names.
    ignored_labels: Tokens that count neither in the loss nor in metrics, such as
      padding.
    unscored_labels: Further tokens that `token_accuracy` leaves out, as the papers do:
      those out of vocabulary, and ends of sentences.
  """

  inputs: tuple[int, ...]
  input_dtype: Literal['float32', 'int32']
  labels: tuple[int, ...]
  label_kind: LabelKind
  num_classes: Optional[int] = None
  names: Optional[tuple[str, ...]] = None
  ignored_labels: tuple[int, ...] = ()
  unscored_labels: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class LabelScaling:
  """What was done to labels that are numbers: (label - mean) / scale is trained on.

  The constants are of the training data, without noise.

  Attributes:
    mean: In the labels' own unit.
    scale: As well; positive.

  Example:
    >>> LabelScaling(mean=200.0, scale=50.0).undone([-1.0, 2.0])
    array([150., 300.])
  """

  mean: float
  scale: float

  def done(self, labels: Any) -> np.ndarray:
    """Labels as they are trained on: float64."""
    return (np.asarray(labels, np.float64) - self.mean) / self.scale

  def undone(self, labels: Any) -> np.ndarray:
    """Labels, or predictions, in their own unit: float64."""
    return np.asarray(labels, np.float64) * self.scale + self.mean


@dataclasses.dataclass(frozen=True)
class Population:
  """Clients' data and test data.

  Attributes:
    clients: What `learning.train` takes: inputs and labels by client.
    num_clients: How many clients there are.
    test_examples: Held-out inputs and labels, for which no privacy is claimed; `None`
      if there are none.
    shape: What one example is like.
    label_scaling: What was done to all labels, those of `test_examples` included;
      `None` if nothing was.
    facts: What is told of the data before the training, by what it is: numbers of
      clients and examples, say. Not private.
    not_covered: What else was made of clients' data without noise, such as the scale of
      features, in a sentence each: the guarantee does not cover it, and reports say so.
    preprocessing: What made inputs of the user's own data, for others like them; `None`
      of the data of a task.
  """

  clients: Any
  num_clients: int
  test_examples: Optional[tuple[Any, Any]]
  shape: Shape
  label_scaling: Optional[LabelScaling] = None
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  not_covered: tuple[str, ...] = ()
  preprocessing: Optional['preprocessing_lib.Preprocessing'] = None
